//! Where along a history of commits a metric changed.
//!
//! Two kinds of evidence are kept apart. Commits that were measured in turn, in blocks of one session,
//! are compared within those blocks: whatever the machine did between sessions, or during one, hits
//! both sides alike, so what is found there is a change of the code. What can only be seen from one
//! session to another may be the machine; it is judged by how much sessions differ anyway, and said
//! to be that.
//!
//! Both are found by splitting: the clearest boundary of a stretch of commits is taken if a
//! permutation test of the largest statistic over all boundaries rejects that there is none, and
//! both parts are searched in turn, each with its share of what may be wrong.

mod between;
mod within;

use std::collections::{BTreeMap, BTreeSet};

use super::scale::Scale;
use super::student_point;
use super::summary::median;

/// One value of one commit.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// The index of the commit in its history.
    pub commit: usize,
    pub session: usize,
    /// What was measured in turn has the same one; `None` for what was not measured in turn with
    /// anything.
    pub block: Option<u64>,
    pub value: f64,
}

/// What decides whether a change is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChangeCriteria {
    /// The probability that no change is named where there is none.
    pub confidence: f64,
    /// Changes up to this part are none worth naming.
    pub margin: f64,
    /// How many histories are looked at together.
    pub histories: usize,
}

impl Default for ChangeCriteria {
    fn default() -> Self {
        Self { confidence: 0.95, margin: 0.02, histories: 1 }
    }
}

impl ChangeCriteria {
    /// For each kind of evidence one half.
    fn alpha(&self) -> f64 {
        0.5 * (1.0 - self.confidence) / self.histories.max(1) as f64
    }
}

/// What a change was seen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// Both sides were measured in turn, in the same sessions.
    SameSessions,
    /// The sides were measured in different sessions: it may be the machine.
    DifferentSessions,
}

impl Evidence {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SameSessions => "same_sessions",
            Self::DifferentSessions => "different_sessions",
        }
    }
}

/// A boundary between two commits that follow each other among those measured.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangePoint {
    /// The first commit after the change.
    pub commit: usize,
    /// The last measured one before it.
    pub before: usize,
    pub evidence: Evidence,
    /// The change on its scale: the logarithm of a ratio, or a difference.
    centre: f64,
    ends: [f64; 2],
    ratio: bool,
}

impl ChangePoint {
    /// After divided by before; `None` for a metric that has no ratios.
    pub fn ratio(&self) -> Option<f64> {
        self.ratio.then(|| self.centre.exp())
    }

    pub fn ratio_interval(&self) -> Option<[f64; 2]> {
        self.ratio.then(|| self.ends.map(f64::exp))
    }

    /// After less before, where there is no ratio.
    pub fn difference(&self) -> Option<f64> {
        (!self.ratio).then_some(self.centre)
    }

    pub fn difference_interval(&self) -> Option<[f64; 2]> {
        (!self.ratio).then_some(self.ends)
    }

    pub fn is_more(&self) -> bool {
        self.centre > 0.0
    }
}

/// The changes of a metric over commits, in their order.
pub fn change_points(observations: &[Observation], criteria: &ChangeCriteria) -> Vec<ChangePoint> {
    let values: Vec<f64> = observations.iter().map(|one| one.value).collect();
    let scale = Scale::of(&values, &[]);
    let points: Vec<Point> = observations
        .iter()
        .map(|one| Point {
            commit: one.commit,
            session: one.session,
            block: one.block,
            x: scale.at(one.value),
        })
        .filter(|point| point.x.is_finite())
        .collect();
    let commits: Vec<usize> =
        points.iter().map(|point| point.commit).collect::<BTreeSet<_>>().into_iter().collect();
    let margin = scale.distance(criteria.margin);
    let sure = within::changes(&points, &commits, criteria.alpha());
    let mut cuts: Vec<usize> = sure.clone();
    let possible = between::changes(&points, &commits, &sure, criteria.alpha());
    cuts.extend(&possible);
    cuts.sort_unstable();
    let mut found = Vec::new();
    for (place, &cut) in cuts.iter().enumerate() {
        let from = place.checked_sub(1).map_or(0, |before| cuts[before]);
        let to = cuts.get(place + 1).copied().unwrap_or(commits.len());
        let (evidence, estimate) = match sure.contains(&cut) {
            true => (Evidence::SameSessions, within::estimate(&points, &commits, from, cut, to)),
            false => {
                let estimate = between::estimate(&points, &commits, from, cut, to);
                (Evidence::DifferentSessions, estimate)
            }
        };
        let Some((centre, ends)) = estimate.filter(|(centre, _)| centre.abs() >= margin) else {
            continue;
        };
        let (commit, before) = (commits[cut], commits[cut - 1]);
        let ratio = scale == Scale::Ratio;
        found.push(ChangePoint { commit, before, evidence, centre, ends, ratio });
    }
    found
}

/// An observation on the scale of the comparison.
#[derive(Clone, Copy, Debug)]
struct Point {
    commit: usize,
    session: usize,
    block: Option<u64>,
    x: f64,
}

/// The commits of a stretch: `from..to` among those measured.
fn stretch(points: &[Point], commits: &[usize], from: usize, to: usize) -> Vec<Point> {
    let Some(&first) = commits.get(from) else { return Vec::new() };
    let last = commits[to - 1];
    points.iter().copied().filter(|point| (first..=last).contains(&point.commit)).collect()
}

/// The place of a commit among those measured.
fn place(commits: &[usize], commit: usize) -> usize {
    commits.partition_point(|known| *known < commit)
}

/// Splits a stretch of commits as long as a boundary is found in a part of it; each part is searched
/// at its share of `alpha`, so that all of them together are wrong no more often than that.
fn split(
    count: usize,
    alpha: f64,
    clearest: &mut dyn FnMut(usize, usize, f64) -> Option<usize>,
) -> Vec<usize> {
    let boundaries = count.saturating_sub(1).max(1) as f64;
    let mut cuts = Vec::new();
    let mut open = vec![(0, count)];
    while let Some((from, to)) = open.pop() {
        if to - from < 2 {
            continue;
        }
        let level = alpha * (to - from - 1) as f64 / boundaries;
        if let Some(cut) = clearest(from, to, level) {
            cuts.push(cut);
            open.extend([(from, cut), (cut, to)]);
        }
    }
    cuts.sort_unstable();
    cuts
}

/// Permutations for a level; more than `work` numbers are not shuffled in all.
fn permutations(level: f64, values: usize) -> usize {
    const WORK: usize = 200_000_000;
    let wanted = (20.0 / level).ceil() as usize;
    wanted.clamp(1000, (WORK / values.max(1)).max(1000))
}

/// Whether the largest statistic of a permutation reaches the one seen no more often than `level`.
/// Ends as soon as that is decided.
fn rejects(level: f64, permutations: usize, mut reaches: impl FnMut() -> bool) -> bool {
    // The order seen is one of the permutations.
    let most = level * (permutations + 1) as f64 - 1.0;
    let mut reached = 0.0;
    for _ in 0..permutations {
        if reaches() {
            reached += 1.0;
            if reached > most {
                return false;
            }
        }
    }
    most >= 0.0
}

/// How much the medians of one commit differ from session to session, on the scale of ratios: the
/// standard deviation, and of how many differences. `None` where no commit was measured in two
/// sessions.
pub fn session_spread(observations: &[Observation]) -> Option<SessionSpread> {
    let values: Vec<f64> = observations.iter().map(|one| one.value).collect();
    let scale = Scale::of(&values, &[]);
    let mut cells: BTreeMap<usize, BTreeMap<usize, Vec<f64>>> = BTreeMap::new();
    for one in observations {
        let sessions = cells.entry(one.commit).or_default();
        sessions.entry(one.session).or_default().push(scale.at(one.value));
    }
    let (mut squares, mut degrees) = (0.0, 0);
    for sessions in cells.values() {
        let medians: Vec<f64> = sessions.values().filter_map(|values| median(values)).collect();
        let mean = medians.iter().sum::<f64>() / medians.len().max(1) as f64;
        squares += medians.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
        degrees += medians.len().saturating_sub(1);
    }
    let deviation = (degrees > 0).then(|| (squares / degrees as f64).sqrt())?;
    Some(SessionSpread { deviation, degrees, ratio: scale == Scale::Ratio })
}

/// How much sessions differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SessionSpread {
    deviation: f64,
    degrees: usize,
    ratio: bool,
}

impl SessionSpread {
    /// As a part of a value: 0.03 for 3 %. `None` for a metric that has no ratios.
    pub fn part(&self) -> Option<f64> {
        self.ratio.then(|| self.deviation.exp_m1())
    }

    /// The interval of a median that was measured in this many sessions, wide enough for what they
    /// differ by.
    pub fn widen(&self, median: f64, interval: [f64; 2], sessions: usize) -> [f64; 2] {
        let quantile = student_point(0.025, self.degrees as f64);
        let variance = (quantile * self.deviation).powi(2) / sessions.max(1) as f64;
        let scale = if self.ratio { Scale::Ratio } else { Scale::Difference { size: 1.0 } };
        let centre = scale.at(median);
        let away = |end: f64| (variance + (scale.at(end) - centre).powi(2)).sqrt();
        let ends = [centre - away(interval[0]), centre + away(interval[1])];
        if self.ratio { ends.map(f64::exp) } else { ends }
    }
}

#[cfg(test)]
mod tests;
