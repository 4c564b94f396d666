//! A metric over the commits of a branch, with its changes, from all recorded results.

use std::collections::BTreeMap;

use jiff::Timestamp;
use retake_types::{Better, LoopId};
use serde::Serialize;

use crate::stats::{Evidence, Summary, Verdict, is_time, percent, value_text};

/// A metric over the commits of a branch.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitHistory {
    /// The branch, as requested.
    #[serde(rename = "ref")]
    pub reference: String,
    pub metric: String,
    pub unit: Option<String>,
    /// The number of examined commits, measured or not.
    pub looked_at: usize,
    /// With fewer runs of each no change between two commits is conclusive.
    #[serde(skip)]
    pub fewest: usize,
    #[serde(skip)]
    pub better: Better,
    /// The sessions with measurements, oldest first.
    pub sessions: Vec<Session>,
    /// One for each combination of the other axes.
    pub series: Vec<CommitSeries>,
}

/// A loop that measured some of the commits.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// From 1, in chronological order.
    pub number: usize,
    pub loop_id: LoopId,
    pub started: Timestamp,
    /// The recorded properties of the machine.
    pub conditions: BTreeMap<String, String>,
    /// Properties that differ from the previous session: name and value.
    pub differs: Vec<(String, String)>,
}

/// The commits in the order of the branch, all else equal.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitSeries {
    /// The values of the other axes; `None` if each has only one.
    pub cell: Option<String>,
    pub commits: Vec<CommitRow>,
    pub changes: Vec<Change>,
    /// The spread of the same commit between sessions: 0.03 for 3 %.
    pub session_spread: Option<f64>,
}

/// The results of one commit.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitRow {
    pub sha: String,
    pub subject: String,
    /// `None` without a successful run.
    pub summary: Option<Summary>,
    /// Of the median, at 95 %; includes the spread of sessions, if known.
    pub interval: Option<[f64; 2]>,
    pub failed: usize,
    /// The numbers of the sessions that measured it.
    pub sessions: Vec<usize>,
    /// Its number among all commits of the branch.
    #[serde(skip)]
    pub place: usize,
}

/// A commit at which the metric changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The first commit with the change.
    pub commit: String,
    pub subject: String,
    /// The last measured commit without it.
    pub before: String,
    /// Unmeasured commits between the two: the change may be in one of them.
    pub between: usize,
    pub verdict: Verdict,
    pub evidence: Evidence,
    pub ratio: Option<f64>,
    pub interval: Option<[f64; 2]>,
    /// In the unit of the metric, if there is no ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference_interval: Option<[f64; 2]>,
    /// Properties of the machine that differ between the sessions before and after: name and
    /// values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<(String, Vec<String>)>,
}

impl Change {
    /// Whether it is certainly a change of the code; otherwise it may be the machine's.
    pub fn is_sure(&self) -> bool {
        self.evidence == Evidence::SameSessions
    }

    fn is_more(&self) -> bool {
        self.ratio.is_some_and(|ratio| ratio > 1.0) || self.difference.is_some_and(|by| by > 0.0)
    }

    /// `+4.2 %`, or `+3 KB` if there is no ratio.
    pub fn size(&self, unit: Option<&str>) -> String {
        match (self.ratio, self.difference) {
            (Some(ratio), _) => percent(ratio),
            (None, Some(by)) => signed(by, unit),
            (None, None) => String::new(),
        }
    }

    /// `+3.1 % to +5.3 %`.
    pub fn interval_text(&self, unit: Option<&str>) -> String {
        match (self.interval, self.difference_interval) {
            (Some([low, high]), _) => format!("{} to {}", percent(low), percent(high)),
            (None, Some([low, high])) => {
                format!("{} to {}", signed(low, unit), signed(high, unit))
            }
            (None, None) => String::new(),
        }
    }

    /// `slower` for a time, `higher` for anything else.
    pub fn word(&self, metric: &str, unit: Option<&str>) -> &'static str {
        match (is_time(metric, unit), self.is_more()) {
            (true, _) => self.verdict.as_str(),
            (false, true) => "higher",
            (false, false) => "lower",
        }
    }

    /// The change in one line, for people.
    pub fn sentence(&self, metric: &str, unit: Option<&str>) -> String {
        let (size, interval) = (self.size(unit), self.interval_text(unit));
        let word = self.word(metric, unit);
        let mut text = match self.is_sure() {
            true => format!("{metric} is {word} since "),
            false => format!("{metric} may be {word} since "),
        };
        text += &format!("{} ({}): {size}, {interval}", short(&self.commit), self.subject);
        match self.between {
            0 => {}
            1 => text += "; or since the commit before it, which was not measured",
            more => {
                text +=
                    &format!("; or since one of {more} commits before it that were not measured")
            }
        }
        if !self.is_sure() {
            text += "; the two sides were measured in different sessions, so it may be the machine";
        }
        for (what, values) in &self.conditions {
            text += &format!("; {what} was not the same: {}", values.join(", "));
        }
        text
    }
}

/// Neighbouring measured commits that may differ, although no change is conclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenGap {
    pub before: String,
    pub after: String,
    /// Unmeasured commits between the two.
    pub between: usize,
    /// Whether the later one has the higher median.
    pub is_more: bool,
}

impl CommitSeries {
    /// How many runs the least measured commit has, if those are too few to find a change between
    /// two commits.
    pub fn too_few(&self, fewest: usize) -> Option<usize> {
        let samples = self.commits.iter().filter_map(|row| Some(row.summary.as_ref()?.samples));
        samples.min().filter(|least| *least < fewest)
    }

    /// The neighbours with unmeasured commits between them whose medians differ most.
    pub fn open_gap(&self) -> Option<OpenGap> {
        let gaps = self.commits.windows(2).filter_map(|pair| {
            let [before, after] = pair else { return None };
            let [a, b] = [before.summary.as_ref()?.median, after.summary.as_ref()?.median];
            let between = after.place.saturating_sub(before.place + 1);
            let (sha, is_more) = ((before.sha.clone(), after.sha.clone()), b > a);
            let gap = OpenGap { before: sha.0, after: sha.1, between, is_more };
            (between > 0).then_some(((b - a).abs(), gap))
        });
        gaps.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, gap)| gap)
    }

    /// The change that begins with a commit.
    pub fn change_at(&self, row: &CommitRow) -> Option<&Change> {
        self.changes.iter().find(|change| change.commit == row.sha)
    }
}

fn signed(value: f64, unit: Option<&str>) -> String {
    let sign = if value < 0.0 { "-" } else { "+" };
    format!("{sign}{}", value_text(value.abs(), unit))
}

fn short(sha: &str) -> &str {
    &sha[..sha.len().min(7)]
}
