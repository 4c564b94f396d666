//! A crash loop: the steps of the program, and the findings.

use retake_types::loop_record::crash::{
    CrashEntry, CrashFinding, ExploredStates, FinishedExploration, TestedFaults, TimelineRow,
};
use serde::{Serialize, Serializer};
use serde_json::json;

use super::{LoopQuery, LoopSummary};
use crate::error::RequestError;
use crate::store_pool::Store;

/// How many steps of the timeline are shown at once.
pub(crate) const WINDOW: usize = 300;
const PAGE: usize = 2000;
const MAX_FINDINGS: usize = 200;

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CrashDetail {
    #[serde(serialize_with = "serialize_findings")]
    pub(crate) findings: Vec<CrashFinding>,
    /// How many findings there are besides the listed ones.
    pub(crate) findings_left_out: usize,
    /// Steps from `after` on.
    pub(crate) timeline: Vec<Step>,
    pub(crate) after: u64,
    pub(crate) counts: Counts,
    /// What was explored; `None` until that is known.
    pub(crate) states: Option<ExploredStates>,
    /// Which calls were made to fail, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) faults: Option<TestedFaults>,
    /// How far the exploration got; `None` until it ends.
    pub(crate) finished: Option<FinishedExploration>,
    /// All steps, for the picture of the whole timeline.
    #[serde(skip)]
    pub(crate) steps: Vec<Step>,
}

/// How many steps of each kind there are. Not all steps of a long recording are in the record.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Counts {
    pub(crate) operations: u64,
    pub(crate) syncs: u64,
    pub(crate) labels: u64,
    pub(crate) acknowledgements: u64,
    pub(crate) steps_left_out: u64,
}

/// The lane of the timeline that a step belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum StepKind {
    Operation,
    Sync,
    Label,
    Acknowledgement,
}

/// One step of the program.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Step {
    /// The number of its entry.
    pub(crate) seq: u64,
    #[serde(rename = "sort")]
    pub(crate) kind: StepKind,
    /// Of operations, including syncs.
    pub(crate) number: Option<u32>,
    pub(crate) call: String,
    pub(crate) text: String,
}

/// In the API a finding always says whether it is about a recovery; the record omits a false value.
fn serialize_findings<S: Serializer>(
    findings: &[CrashFinding],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let findings = findings.iter().map(|finding| {
        let mut document = json!(finding);
        document["recovery"] = json!(finding.recovery);
        document
    });
    serializer.collect_seq(findings)
}

impl CrashDetail {
    pub(super) fn read(
        store: &Store,
        summary: &LoopSummary,
        query: &LoopQuery,
    ) -> Result<Self, RequestError> {
        let mut detail = Self { after: query.after, ..Self::default() };
        let mut after = 0;
        loop {
            let entries = store.loop_entries(summary.id, after, PAGE)?;
            let Some(last) = entries.last() else { break };
            after = last.seq;
            for entry in &entries {
                // Skip entries that only a later release knows.
                if let Ok(read) = serde_json::from_str(&entry.body) {
                    detail.add(entry.seq, read);
                }
            }
        }
        let shown = detail.steps.iter().filter(|step| step.seq > query.after).take(WINDOW);
        detail.timeline = shown.cloned().collect();
        Ok(detail)
    }

    fn add(&mut self, seq: u64, entry: CrashEntry) {
        match entry {
            CrashEntry::Recorded(recorded) => {
                self.counts.operations = recorded.operations;
                self.counts.acknowledgements = recorded.acknowledgements;
                self.counts.labels =
                    recorded.labels.values().sum::<u64>() + recorded.labels_left_out;
                self.counts.steps_left_out = recorded.steps_left_out;
            }
            CrashEntry::Operation(row) => self.add_step(seq, StepKind::Operation, row),
            CrashEntry::Sync(row) => {
                self.counts.syncs += 1;
                self.add_step(seq, StepKind::Sync, row);
            }
            CrashEntry::Label(row) => self.add_step(seq, StepKind::Label, row),
            CrashEntry::Acknowledgement(row) => self.add_step(seq, StepKind::Acknowledgement, row),
            CrashEntry::States(states) => self.states = Some(states),
            CrashEntry::Faults(faults) => self.faults = Some(faults),
            CrashEntry::Finding(finding) if self.findings.len() < MAX_FINDINGS => {
                self.findings.push(*finding);
            }
            CrashEntry::Finding(_) => self.findings_left_out += 1,
            CrashEntry::Finished(finished) => self.finished = Some(finished),
        }
    }

    fn add_step(&mut self, seq: u64, kind: StepKind, row: TimelineRow) {
        let TimelineRow { number, call, text, .. } = row;
        self.steps.push(Step { seq, kind, number, call, text });
    }

    /// An operation on the timeline, if the record has it.
    pub(crate) fn operation(&self, number: u32) -> Option<&Step> {
        self.steps.iter().find(|step| step.number == Some(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_become_counts_findings_and_a_timeline() {
        let entries = [
            json!({"event": "recorded", "operations": 2, "labels": {"saved": 1}, "labelsLeftOut": 2}),
            json!({"event": "operation", "number": 1, "sort": "content", "call": "write", "text": "a"}),
            json!({"event": "sync", "number": 2, "sort": "sync", "call": "fsync"}),
            json!({"event": "finding", "id": "F1", "operation": 1}),
        ];
        let mut detail = CrashDetail::default();
        for (seq, entry) in (1..).zip(entries) {
            detail.add(seq, serde_json::from_value(entry).unwrap());
        }
        assert_eq!((detail.counts.operations, detail.counts.syncs), (2, 1));
        assert_eq!(detail.counts.labels, 3);
        assert_eq!(detail.operation(2).map(|step| step.kind), Some(StepKind::Sync));
        let document = serde_json::to_value(&detail).unwrap();
        assert_eq!(document["findings"][0]["recovery"], false);
    }
}
