//! The browsers between two: configured ones and those in the index. They are listed regardless of
//! availability: a search downloads what it needs.

use std::collections::BTreeMap;

use super::event::{MatrixEvent, MatrixObserver};
use super::project::MatrixProject;
use crate::browsers::{BrowserError, BrowserRequest, Browsers, Version};

/// With more versions than this the newest of each milestone are searched first: these are most
/// likely downloaded and measured already.
const MANY: usize = 64;

/// The points of a search, oldest first.
pub(super) struct SearchPoints {
    pub(super) points: Vec<String>,
    /// A subset for the first stage, if there are many.
    pub(super) milestones: Option<Vec<String>>,
    pub(super) good: String,
    pub(super) bad: String,
}

impl SearchPoints {
    /// Points that are all searched in one stage.
    pub(super) fn all(points: Vec<String>, good: &str, bad: &str) -> Self {
        Self { points, milestones: None, good: good.to_owned(), bad: bad.to_owned() }
    }
}

/// The exact version of a request. Milestones and channels use their pinned version.
fn exact(
    browsers: &Browsers,
    request: &BrowserRequest,
    pins: &mut BTreeMap<String, String>,
) -> Result<Option<Version>, BrowserError> {
    if matches!(request, BrowserRequest::Program { .. }) {
        return Ok(None);
    }
    let text = browsers.resolve(request, pins)?;
    if !matches!(request, BrowserRequest::Exact(_)) {
        pins.insert(request.to_string(), text.clone());
    }
    Ok(text.parse().ok())
}

/// Fails only if interrupted: if the index cannot be read, the configured versions are searched.
pub(super) fn between(
    project: &mut MatrixProject,
    pins: &mut BTreeMap<String, String>,
    (good, bad): (&str, &str),
    observer: &dyn MatrixObserver,
) -> Result<SearchPoints, BrowserError> {
    let browsers = project.browsers();
    let Some(chrome) = &mut project.config.chrome else {
        return Ok(SearchPoints::all(Vec::new(), good, bad));
    };
    let mut numbers: BTreeMap<&str, Version> = BTreeMap::new();
    let mut failure = None;
    for value in &chrome.versions {
        let (Some(request), Some(browsers)) = (chrome.requests.get(value), &browsers) else {
            continue;
        };
        match exact(browsers, request, pins) {
            Ok(version) => numbers.extend(version.map(|version| (value.as_str(), version))),
            Err(error @ BrowserError::Interrupted { .. }) => return Err(error),
            Err(error) => failure = Some(error),
        }
    }
    let ends = numbers.get(good).copied().zip(numbers.get(bad).copied());
    let known = match (ends, &browsers) {
        (Some((from, to)), Some(browsers)) => match browsers.index().between(from, to) {
            Ok(known) => known,
            Err(error @ BrowserError::Interrupted { .. }) => return Err(error),
            Err(error) => {
                failure = Some(error);
                Vec::new()
            }
        },
        _ => Vec::new(),
    };
    if let Some(error) = failure {
        observer.event(MatrixEvent::BrowserIndexUnavailable(&error));
    }
    let Some((from, to)) = ends else {
        let points = in_order(&chrome.versions, &chrome.requests);
        return Ok(SearchPoints::all(points, good, bad));
    };
    let mut line: BTreeMap<Version, String> =
        known.into_iter().map(|version| (version, version.to_string())).collect();
    // A version keeps its configured or requested name.
    line.extend(numbers.iter().map(|(name, version)| (*version, (*name).to_owned())));
    line.extend([(from, good.to_owned()), (to, bad.to_owned())]);
    for (version, name) in &line {
        let request = BrowserRequest::Exact(*version);
        chrome.requests.entry(name.clone()).or_insert(request);
    }
    let inside = line.range(from.min(to)..=from.max(to));
    let milestones = (inside.clone().count() > MANY).then(|| {
        let mut newest: BTreeMap<u32, Version> = BTreeMap::new();
        newest.extend(inside.map(|(version, _)| (version.major(), *version)));
        let mut chosen: Vec<Version> = newest.into_values().chain([from, to]).collect();
        chosen.sort_unstable();
        chosen.dedup();
        chosen.iter().filter_map(|version| line.get(version).cloned()).collect()
    });
    // Two names of one version make the ends equal, which the search reports.
    let name = |version: Version| line.get(&version).cloned().unwrap_or_default();
    let (good, bad) = (name(from), name(to));
    Ok(SearchPoints { points: line.into_values().collect(), milestones, good, bad })
}

/// Sorted numerically if all are numbers; otherwise in the order of the configuration.
fn in_order(versions: &[String], requests: &BTreeMap<String, BrowserRequest>) -> Vec<String> {
    let number = |value: &String| match requests.get(value) {
        Some(BrowserRequest::Exact(version)) => Some(version.0),
        Some(BrowserRequest::Milestone(milestone)) => {
            Some([*milestone, u32::MAX, u32::MAX, u32::MAX])
        }
        _ => None,
    };
    let mut values = versions.to_vec();
    if values.iter().all(|value| number(value).is_some()) {
        values.sort_by_key(number);
    }
    values
}
