//! The record of a crash loop: its plan, and entries for the steps of the program, the number of
//! states, each finding, and how the exploration ended.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::RunId;

/// What a crash loop was started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CrashPlan {
    pub purpose: CrashPurpose,
    pub root: String,
    /// The program and its arguments; `None` if a log is explored.
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
    /// Where states were checked, if on other machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// Whether calls are made to fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<CrashFaults>,
}

/// Which faults are tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CrashFaults {
    /// Failing calls besides crashes.
    Too,
    /// Failing calls only, no crashes.
    Only,
}

/// The purpose of a crash loop.
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
    Faults(TestedFaults),
    Finding(Box<CrashFinding>),
    Finished(FinishedExploration),
}

/// Counts from the recording of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RecordedWorkload {
    /// The run of the program, if it was recorded.
    pub run: Option<RunId>,
    pub operations: u64,
    /// How often each system call was made.
    pub calls: BTreeMap<String, u64>,
    pub acknowledgements: u64,
    /// How often each label was reached.
    pub labels: BTreeMap<String, u64>,
    /// Labels that are counted but not listed.
    pub labels_left_out: u64,
    /// Rows of the timeline that have no entry.
    pub steps_left_out: u64,
}

/// Counts of states.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExploredStates {
    pub points: u64,
    pub states: u64,
    pub distinct: u64,
    /// The coverage in words.
    pub coverage: String,
}

/// Counts of the calls that were made to fail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TestedFaults {
    /// Calls on files that can be made to fail.
    pub calls: u64,
    /// Calls times the ways in which each can fail.
    pub faults: u64,
    /// How many of these were planned: repeated calls are not all tried.
    pub planned: u64,
    pub tried: u64,
    /// Faults after which the check fails.
    pub failing: u64,
    /// Faults whose call did not occur in the new run.
    pub not_reached: u64,
    /// Runs that could not be checked: they did not end, or could not be recorded.
    pub not_checked: u64,
    pub complete: bool,
}

/// How far the exploration got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FinishedExploration {
    pub verified: u64,
    pub complete: bool,
}

/// One row of the timeline: an operation of the program, or a message from it.
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
    /// The thread, counted from 1; 0 for a row that is not an operation.
    #[serde(default)]
    pub task: u32,
    /// The files it affects, relative to the root; `.` is the root itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// The operation in words.
    #[serde(default)]
    pub text: String,
    /// Where in the source the program does it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourcePlace>,
}

/// A place in the source of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SourcePlace {
    /// The program or library, if the source is unknown.
    pub file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Without its module path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
}

impl fmt::Display for SourcePlace {
    /// `store.rs:212 commit()`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file.rsplit('/').next().unwrap_or_default())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        match &self.function {
            Some(function) => write!(f, " {function}()"),
            None => Ok(()),
        }
    }
}

/// The source place of one operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OperationPlace {
    pub operation: u32,
    #[serde(flatten)]
    pub place: SourcePlace,
}

impl TimelineRow {
    /// What locates a row relative to a crash: its number, and whether it is an acknowledgement.
    pub fn place(&self) -> (Option<u32>, bool) {
        (self.number, self.kind == TimelineRowKind::Acknowledgement)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TimelineRowKind {
    /// It adds, removes or changes names.
    Name,
    /// It changes bytes, sizes or attributes.
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
    /// How many distinct states fail for this cause.
    pub states: u64,
    /// The command that checks the smallest failing state again.
    pub repro: String,
    /// The smallest failing state.
    pub key: String,
    /// The operation right before the crash.
    pub operation: u32,
    /// What that operation did, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operation_text: String,
    pub label: Option<String>,
    pub acknowledgements: usize,
    /// How the check of that state ended, in words.
    pub verdict: String,
    /// The end of the check's output.
    pub output: String,
    /// The crash happens during recovery, whose operations are not those of the program.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub recovery: bool,
    /// The test stopped before the cause was found.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unexplained: bool,
    /// The operations that the sentence names as lost; any other lost operation depends on one of
    /// them.
    pub named_operations: Vec<u32>,
    /// The operation that survived without them, if that is why the check fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub survivor: Option<u32>,
    /// The states that were checked to prove the sentence.
    pub proof: Vec<CrashProofState>,
    /// Whether the check confirmed the sentence in each of these states.
    pub proven: bool,
    /// The failed call, if the check fails after a fault, not a crash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<CrashFault>,
    /// Source places of the operations in the sentence.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<OperationPlace>,
    /// The sentence in terms of these places.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub source_sentence: String,
}

/// A call that was made to fail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrashFault {
    pub call: String,
    /// The position among calls of this name on files below the root, from 1.
    pub occurrence: u32,
    pub file: String,
    /// The target of a rename.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The errors after which the check fails, such as `ENOSPC`.
    pub faults: Vec<String>,
    pub state: CrashFaultState,
    /// How the program ended, in words.
    pub outcome: String,
    /// The end of the program's stderr.
    pub said: String,
}

/// The state on which the check fails after a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CrashFaultState {
    /// The directory as the program left it.
    #[default]
    AsLeft,
    /// The same after a power loss.
    PowerLoss,
    /// The same, without the pages that the kernel dropped because syncing them failed.
    PagesDropped,
    /// The directory as the program left it, checked against everything it acknowledges without the
    /// fault: the program exited with 0 and reported no loss.
    Silent,
}

impl CrashFinding {
    /// How many rows of a timeline precede the crash: the operations up to its own, and the
    /// acknowledgements by then. A row is its number, if it is an operation, and whether it is an
    /// acknowledgement.
    pub fn rows_before_crash(&self, rows: impl IntoIterator<Item = (Option<u32>, bool)>) -> usize {
        let mut acknowledgements = 0;
        let before = rows.into_iter().take_while(|(number, acknowledges)| {
            acknowledgements += usize::from(*acknowledges);
            number.is_none_or(|number| number <= self.operation)
                && acknowledgements <= self.acknowledgements
        });
        before.count()
    }

    /// What the check said about the states around the failing one, such as "passes with nothing
    /// lost, with operation 5 kept, one step earlier". `None` if none was checked.
    pub fn proof_text(&self) -> Option<String> {
        let with = |answer| -> Vec<String> {
            let states = self.proof.iter().filter(|state| state.answer == answer);
            states.map(CrashProofState::text).collect()
        };
        let answers = [
            ("fails", with(CrashProofAnswer::Fails)),
            ("passes", with(CrashProofAnswer::Passes)),
            ("fails for another reason", with(CrashProofAnswer::FailsOtherwise)),
        ];
        let answers = answers.iter().filter(|(_, states)| !states.is_empty());
        let texts: Vec<String> =
            answers.map(|(answer, states)| format!("{answer} {}", states.join(", "))).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

impl CrashProofState {
    fn text(&self) -> String {
        match (self.role, self.operation) {
            (CrashProofRole::Loss, _) => "with exactly this lost".to_owned(),
            (CrashProofRole::NothingLost, _) => "with nothing lost".to_owned(),
            (CrashProofRole::GivenBack, Some(operation)) => {
                format!("with operation {operation} kept")
            }
            (CrashProofRole::GivenBack, None) => "with a part of it kept".to_owned(),
            (CrashProofRole::MomentBefore, _) => "one step earlier".to_owned(),
            (CrashProofRole::MomentAfter, _) => "at the first step after it".to_owned(),
        }
    }
}

/// A state that was checked to prove a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CrashProofState {
    pub key: String,
    pub role: CrashProofRole,
    /// The operation that survives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<u32>,
    pub answer: CrashProofAnswer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CrashProofRole {
    /// Exactly the named operations are lost.
    Loss,
    NothingLost,
    /// One of the named operations survives.
    GivenBack,
    /// The same loss, one step earlier.
    MomentBefore,
    /// The first later step at which the check passes.
    MomentAfter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CrashProofAnswer {
    Fails,
    Passes,
    /// The check fails, but in another way or for another promise.
    FailsOtherwise,
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
            source: None,
        };
        let written = json!({"event": "operation", "number": 3, "sort": "content", "call": "write",
            "task": 1, "files": ["a"], "text": "write `a` bytes 0–4"});
        round_trip(&row.clone().into(), written);
        let (file, function) = ("/src/store.rs".to_owned(), Some("put".to_owned()));
        let source = Some(SourcePlace { file, line: Some(7), function });
        assert_eq!(source.as_ref().map(ToString::to_string), Some("store.rs:7 put()".to_owned()));
        let written = json!({"event": "operation", "number": 3, "sort": "content", "call": "write",
            "task": 1, "files": ["a"], "text": "write `a` bytes 0–4",
            "source": {"file": "/src/store.rs", "line": 7, "function": "put"}});
        round_trip(&TimelineRow { source, ..row.clone() }.into(), written);
        let label = TimelineRow {
            number: None,
            kind: TimelineRowKind::Label,
            call: String::new(),
            task: 0,
            files: Vec::new(),
            text: "saved".into(),
            source: None,
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
    fn a_crash_is_placed_after_the_acknowledgements_before_it() {
        let ack = (None, true);
        let rows =
            [(Some(1), false), ack, (None, false), (Some(2), false), ack, ack, (Some(3), false)];
        let at = |operation, acknowledgements| {
            let finding = CrashFinding { operation, acknowledgements, ..CrashFinding::default() };
            finding.rows_before_crash(rows)
        };
        assert_eq!(
            [at(0, 0), at(1, 0), at(1, 1), at(2, 1), at(2, 2), at(2, 3), at(3, 3)],
            [0, 1, 3, 4, 5, 6, 7]
        );
    }

    #[test]
    fn the_text_of_a_proof_follows_its_answers() {
        let state = |role, operation, answer| CrashProofState {
            key: "5-3.0".to_owned(),
            role,
            operation,
            answer,
        };
        let mut finding = CrashFinding::default();
        assert_eq!(finding.proof_text(), None);
        finding.proof = vec![
            state(CrashProofRole::Loss, None, CrashProofAnswer::Fails),
            state(CrashProofRole::NothingLost, None, CrashProofAnswer::Passes),
            state(CrashProofRole::GivenBack, Some(3), CrashProofAnswer::FailsOtherwise),
            state(CrashProofRole::MomentBefore, None, CrashProofAnswer::Passes),
        ];
        assert_eq!(
            finding.proof_text().as_deref(),
            Some(
                "fails with exactly this lost; passes with nothing lost, one step earlier; fails for \
                 another reason with operation 3 kept"
            )
        );
        let written = serde_json::to_value(&finding).unwrap();
        assert_eq!(written["proof"][2]["role"], "givenBack");
        assert_eq!(serde_json::from_value::<CrashFinding>(written).unwrap(), finding);
    }

    #[test]
    fn missing_fields_of_a_finding_have_defaults() {
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
