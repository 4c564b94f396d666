//! A crash loop: what the program did to its files, step by step, and where that loses data.

use std::collections::BTreeMap;

use retake_store::Store;
use serde::{Deserialize, Serialize};

use crate::error::RequestError;
use super::{LoopQuery, LoopSummary};

/// Steps of the timeline that are shown at once.
pub(crate) const WINDOW: usize = 300;
const PAGE: usize = 2000;
const MOST_FINDINGS: usize = 200;

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Crash {
    pub(crate) findings: Vec<Finding>,
    /// Findings there are beside those told.
    pub(crate) findings_left_out: usize,
    /// Steps from `after` on.
    pub(crate) timeline: Vec<Step>,
    pub(crate) after: u64,
    pub(crate) counts: Counts,
    /// What was explored, once that is known.
    pub(crate) states: Option<States>,
    /// How far the check came, once it is over.
    pub(crate) finished: Option<Finished>,
    /// Every step there is, for the picture of all of it.
    #[serde(skip)]
    pub(crate) steps: Vec<Step>,
}

/// How much there is of each kind. Of a long recording not all steps are in the record.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Counts {
    pub(crate) operations: u64,
    pub(crate) syncs: u64,
    pub(crate) labels: u64,
    pub(crate) acknowledgements: u64,
    pub(crate) steps_left_out: u64,
}

/// What a step is worth when the power fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Sort {
    Operation,
    Sync,
    Label,
    Acknowledgement,
}

/// One step, as it was recorded.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Step {
    pub(crate) seq: u64,
    pub(crate) sort: Sort,
    /// Of an operation, syncs included.
    pub(crate) number: Option<u32>,
    pub(crate) call: String,
    pub(crate) text: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct States {
    pub(crate) points: u64,
    pub(crate) states: u64,
    pub(crate) distinct: u64,
    pub(crate) coverage: String,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Finished {
    pub(crate) verified: u64,
    pub(crate) complete: bool,
}

/// What is shown of a finding. What a later retake does not tell any more is empty.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Finding {
    pub(crate) id: String,
    pub(crate) sentence: String,
    pub(crate) files: Vec<String>,
    pub(crate) lost_operations: Vec<u32>,
    pub(crate) states: u64,
    pub(crate) repro: String,
    /// The crash comes after this operation.
    pub(crate) operation: u32,
    pub(crate) label: Option<String>,
    pub(crate) acknowledgements: u64,
    pub(crate) verdict: String,
    pub(crate) output: String,
    /// The crash comes during recovery, whose operations are not those of the timeline.
    pub(crate) recovery: bool,
}

/// What the crash test said, in the words of its chronicle.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "camelCase")]
enum Told {
    Recorded(Recorded),
    Operation(Row),
    Sync(Row),
    Label(Row),
    Acknowledgement(Row),
    States(States),
    Finding(Finding),
    Finished(Finished),
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Recorded {
    operations: u64,
    acknowledgements: u64,
    labels: BTreeMap<String, u64>,
    labels_left_out: u64,
    steps_left_out: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    number: Option<u32>,
    #[serde(default)]
    call: String,
    #[serde(default)]
    text: String,
}

impl Crash {
    pub(super) fn read(store: &Store, summary: &LoopSummary, query: &LoopQuery) -> Result<Self, RequestError> {
        let mut crash = Self { after: query.after, ..Self::default() };
        let mut after = 0;
        loop {
            let events = store.loop_entries(summary.id, after, PAGE)?;
            let Some(last) = events.last() else { break };
            after = last.seq;
            for event in &events {
                // What a later retake tells in other words is not for this one.
                if let Ok(told) = serde_json::from_str(&event.body) {
                    crash.hear(event.seq, told);
                }
            }
        }
        let shown = crash.steps.iter().filter(|step| step.seq > query.after).take(WINDOW);
        crash.timeline = shown.cloned().collect();
        Ok(crash)
    }

    fn hear(&mut self, seq: u64, told: Told) {
        match told {
            Told::Recorded(recorded) => {
                self.counts.operations = recorded.operations;
                self.counts.acknowledgements = recorded.acknowledgements;
                self.counts.labels =
                    recorded.labels.values().sum::<u64>() + recorded.labels_left_out;
                self.counts.steps_left_out = recorded.steps_left_out;
            }
            Told::Operation(row) => self.step(seq, Sort::Operation, row),
            Told::Sync(row) => {
                self.counts.syncs += 1;
                self.step(seq, Sort::Sync, row);
            }
            Told::Label(row) => self.step(seq, Sort::Label, row),
            Told::Acknowledgement(row) => self.step(seq, Sort::Acknowledgement, row),
            Told::States(states) => self.states = Some(states),
            Told::Finding(finding) if self.findings.len() < MOST_FINDINGS => {
                self.findings.push(finding);
            }
            Told::Finding(_) => self.findings_left_out += 1,
            Told::Finished(finished) => self.finished = Some(finished),
        }
    }

    fn step(&mut self, seq: u64, sort: Sort, row: Row) {
        let Row { number, call, text } = row;
        self.steps.push(Step { seq, sort, number, call, text });
    }

    /// Where an operation is on the timeline, if the record has it.
    pub(crate) fn operation(&self, number: u32) -> Option<&Step> {
        self.steps.iter().find(|step| step.number == Some(number))
    }
}
