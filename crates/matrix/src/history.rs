//! A metric over the commits of a branch, with its changes: over everything that was ever recorded.

use std::collections::BTreeMap;

use jiff::Timestamp;
use retake_types::LoopId;
use serde::Serialize;

use crate::stats::{Evidence, Summary, Verdict, is_time, percent, value_text};

/// A metric over the commits of a branch.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitHistory {
    /// The branch, as it was asked for.
    #[serde(rename = "ref")]
    pub reference: String,
    pub metric: String,
    pub unit: Option<String>,
    /// The commits of the branch that were looked at, measured or not.
    pub looked_at: usize,
    /// Those that measured something, oldest first.
    pub sessions: Vec<Session>,
    /// One for each combination of the other axes.
    pub series: Vec<CommitSeries>,
}

/// A loop that measured some of the commits.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// From 1, in the order of time.
    pub number: usize,
    pub loop_id: LoopId,
    pub started: Timestamp,
    /// The machine, as far as it is recorded.
    pub conditions: BTreeMap<String, String>,
    /// What is not as in the session before: name and value.
    pub differs: Vec<(String, String)>,
}

/// The commits in the order of the branch, all else equal.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitSeries {
    /// The values of the other axes; `None` where there is only one of each.
    pub cell: Option<String>,
    pub commits: Vec<CommitRow>,
    pub changes: Vec<Change>,
    /// How much one and the same commit differs from session to session: 0.03 for 3 %.
    pub session_spread: Option<f64>,
}

/// What is known of one commit.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitRow {
    pub sha: String,
    pub subject: String,
    /// `None` without a successful run.
    pub summary: Option<Summary>,
    /// Of the median, at 95 %; with what sessions differ by, where that is known.
    pub interval: Option<[f64; 2]>,
    pub failed: usize,
    /// The numbers of the sessions that measured it.
    pub sessions: Vec<usize>,
}

/// A commit with which the metric changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The first commit that has it.
    pub commit: String,
    pub subject: String,
    /// The last one measured that does not.
    pub before: String,
    /// Commits between the two that were not measured: the change may be in one of them.
    pub between: usize,
    pub verdict: Verdict,
    pub evidence: Evidence,
    pub ratio: Option<f64>,
    pub interval: Option<[f64; 2]>,
    /// In the unit of the metric, where there is no ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference_interval: Option<[f64; 2]>,
    /// What of the machine differs between the sessions before and after: name and values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<(String, Vec<String>)>,
}

impl Change {
    /// Whether it is one of the code; else it may be one of the machine.
    pub fn is_sure(&self) -> bool {
        self.evidence == Evidence::SameSessions
    }

    fn is_more(&self) -> bool {
        self.ratio.is_some_and(|ratio| ratio > 1.0) || self.difference.is_some_and(|by| by > 0.0)
    }

    /// `+4.2 %`, or `+3 KB` where there is no ratio.
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

    /// `slower` of a time, `higher` of anything else.
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

impl CommitSeries {
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
