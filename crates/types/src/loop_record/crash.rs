//! The record of a crash loop: its plan, and as entries what the program did step by step, how many
//! states there are, each finding, and how the exploration ended.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::RunId;

/// What a crash loop was planned as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CrashPlan {
    pub purpose: CrashPurpose,
    pub root: String,
    /// The program and its arguments; none where a log is explored.
    pub command: Option<String>,
    pub log: Option<String>,
    pub verify: String,
    /// The name of the file system model.
    pub model: String,
    pub jobs: usize,
    pub budget_ms: Option<u64>,
    pub verify_timeout_ms: u64,
    pub seed: u64,
    /// Whether crashes during recovery are tested, too.
    pub recovery: bool,
    /// Where states were checked, if not on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
}

/// What a crash loop does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CrashPurpose {
    /// Records a program and explores its states.
    Run,
    /// Explores the states of a recorded log.
    Explore,
}

/// One entry of a crash loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase")]
pub enum CrashEntry {
    Recorded(RecordedWorkload),
    Operation(TimelineRow),
    Sync(TimelineRow),
    Label(TimelineRow),
    Acknowledgement(TimelineRow),
    States(ExploredStates),
    Finding(CrashFinding),
    Finished(FinishedExploration),
}

/// What was recorded of the program, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RecordedWorkload {
    /// The run of the program, where it is on the record.
    pub run: Option<RunId>,
    pub operations: u64,
    /// How often each system call was made.
    pub calls: BTreeMap<String, u64>,
    pub acknowledgements: u64,
    /// How often each label was passed.
    pub labels: BTreeMap<String, u64>,
    /// Labels that are only counted.
    pub labels_left_out: u64,
    /// Rows of the timeline that are not among the entries.
    pub steps_left_out: u64,
}

/// How many states there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExploredStates {
    pub points: u64,
    pub states: u64,
    pub distinct: u64,
    /// All of it in words.
    pub coverage: String,
}

/// How far the exploration came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FinishedExploration {
    pub verified: u64,
    pub complete: bool,
}

/// One row of the timeline: an operation of the program, or what it said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TimelineRow {
    /// Operations are numbered from 1; labels and acknowledgements have no number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    #[serde(rename = "sort")]
    pub kind: TimelineRowKind,
    /// The system call.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub call: String,
    /// The thread, counted from 1; 0 for what is not an operation.
    #[serde(default)]
    pub task: u32,
    /// The files it affects, relative to the root; `.` is the root itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// All of it in words.
    #[serde(default)]
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TimelineRowKind {
    /// Names are added, removed or changed.
    Name,
    /// Bytes, sizes and attributes change.
    Content,
    Sync,
    Close,
    Label,
    Acknowledgement,
}

impl From<TimelineRow> for CrashEntry {
    fn from(row: TimelineRow) -> Self {
        match row.kind {
            TimelineRowKind::Name | TimelineRowKind::Content | TimelineRowKind::Close => {
                Self::Operation(row)
            }
            TimelineRowKind::Sync => Self::Sync(row),
            TimelineRowKind::Label => Self::Label(row),
            TimelineRowKind::Acknowledgement => Self::Acknowledgement(row),
        }
    }
}

/// One cause of failing states.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrashFinding {
    pub id: String,
    pub sentence: String,
    pub files: Vec<String>,
    pub lost_operations: Vec<u32>,
    /// How many distinct states fail because of it.
    pub states: u64,
    /// The command that checks the smallest failing state again.
    pub repro: String,
    /// The smallest failing state.
    pub key: String,
    /// The crash comes after this operation.
    pub operation: u32,
    pub label: Option<String>,
    pub acknowledgements: usize,
    /// How the check of that state ended, in words.
    pub verdict: String,
    /// The last that the check printed.
    pub output: String,
    /// The crash comes during recovery, whose operations are not those of the program.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub recovery: bool,
    /// The test was stopped before the cause was found.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unexplained: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn round_trip(entry: &CrashEntry, expected: serde_json::Value) {
        assert_eq!(serde_json::to_value(entry).unwrap(), expected);
        assert_eq!(serde_json::from_value::<CrashEntry>(expected).unwrap(), *entry);
    }

    #[test]
    fn entries_have_the_shape_that_earlier_releases_wrote() {
        let row = TimelineRow {
            number: Some(3),
            kind: TimelineRowKind::Content,
            call: "write".into(),
            task: 1,
            files: vec!["a".into()],
            text: "write `a` bytes 0–4".into(),
        };
        let written = json!({"event": "operation", "number": 3, "sort": "content", "call": "write",
            "task": 1, "files": ["a"], "text": "write `a` bytes 0–4"});
        round_trip(&row.clone().into(), written);
        let label = TimelineRow {
            number: None,
            kind: TimelineRowKind::Label,
            call: String::new(),
            task: 0,
            files: Vec::new(),
            text: "saved".into(),
        };
        let written = json!({"event": "label", "sort": "label", "task": 0, "text": "saved"});
        round_trip(&label.into(), written);
        let finished = FinishedExploration { verified: 7, complete: true };
        let written = json!({"event": "finished", "verified": 7, "complete": true});
        round_trip(&CrashEntry::Finished(finished), written);
        let states = ExploredStates { points: 1, states: 2, distinct: 2, coverage: "all".into() };
        let written = json!({"event": "states", "points": 1, "states": 2, "distinct": 2,
            "coverage": "all"});
        round_trip(&CrashEntry::States(states), written);
        let recorded = RecordedWorkload {
            operations: 2,
            calls: BTreeMap::from([("write".into(), 2)]),
            ..RecordedWorkload::default()
        };
        let written = json!({"event": "recorded", "run": null, "operations": 2, "calls": {"write": 2},
            "acknowledgements": 0, "labels": {}, "labelsLeftOut": 0, "stepsLeftOut": 0});
        round_trip(&CrashEntry::Recorded(recorded), written);
    }

    #[test]
    fn a_finding_is_read_with_what_it_has() {
        let finding: CrashFinding =
            serde_json::from_value(json!({"id": "F1", "states": 2})).unwrap();
        assert_eq!((finding.id.as_str(), finding.states, finding.recovery), ("F1", 2, false));
        let written = serde_json::to_value(&finding).unwrap();
        assert_eq!(written["lostOperations"], json!([]));
        assert!(written.get("recovery").is_none());
        let plan = json!({"purpose": "run", "root": "/r", "command": "p", "log": null,
            "verify": "v", "model": "ext4", "jobs": 2, "budgetMs": null, "verifyTimeoutMs": 30000,
            "seed": 0, "recovery": false});
        let read: CrashPlan = serde_json::from_value(plan.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), plan);
    }
}
