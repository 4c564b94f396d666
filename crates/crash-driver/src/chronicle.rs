//! A crash test in the record: one loop, and as events what the program did step by step, how many
//! states there are, each finding, and how it ended. A hundred thousand states add nothing to it.

use retake_runner::terminal;
use std::collections::BTreeMap;

use jiff::Timestamp;
use retake_crash::operation::{Entry, Recording};
use retake_store::redact::Redactor;
use retake_store::{LoopRecording, Store};
use retake_types::{Kind, LoopId, RunId, StopReason};
use serde::{Deserialize, Serialize};

use super::finding::Finding;
use super::timeline::{self, Row, Sort};
use retake_runner::run;

/// Labels beyond this many are only counted.
const MOST_LABELS: usize = 1000;
/// Steps beyond this many are in the log only.
const MOST_STEPS: usize = 5000;

/// What a loop was planned as.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// `run` or `explore`.
    pub purpose: String,
    pub root: String,
    /// The program and its arguments; none where a log is explored.
    pub command: Option<String>,
    pub log: Option<String>,
    pub verify: String,
    pub model: String,
    pub jobs: usize,
    pub budget_ms: Option<u64>,
    pub verify_timeout_ms: u64,
    pub seed: u64,
    pub recovery: bool,
    /// Where states were checked, if not here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum Event<'a> {
    Recorded {
        run: Option<RunId>,
        operations: usize,
        calls: BTreeMap<&'a str, usize>,
        acknowledgements: usize,
        labels: BTreeMap<&'a str, usize>,
        labels_left_out: usize,
        steps_left_out: usize,
    },
    Operation(&'a Row),
    Sync(&'a Row),
    Label(&'a Row),
    Acknowledgement(&'a Row),
    States {
        points: u64,
        states: u64,
        distinct: u64,
        coverage: String,
    },
    Finding(&'a Finding),
    Finished {
        verified: u64,
        complete: bool,
    },
}

/// The loop, as long as it can be written to.
pub struct Chronicle {
    store: Option<Store>,
    pub id: LoopId,
    redactor: Redactor,
    /// Held until the loop has ended on the record.
    recording: Option<LoopRecording>,
}

impl Chronicle {
    /// Begins the loop; without a store it is told to nobody.
    pub fn begin(store: Option<Store>, planned: &Planned, redactor: Redactor) -> Self {
        let plan = without_secrets(planned, &redactor).to_string();
        let id = LoopId::new();
        let mut chronicle = Self { store, id, redactor, recording: None };
        chronicle.write(|store, recording| {
            *recording = Some(store.begin_loop_as(id, Kind::Crash, &plan)?);
            Ok(())
        });
        chronicle
    }

    /// A record that fails is given up: the test itself goes on.
    fn write(
        &mut self,
        with: impl FnOnce(&mut Store, &mut Option<LoopRecording>) -> retake_store::Result<()>,
    ) {
        if let Some(store) = &mut self.store
            && let Err(error) = with(store, &mut self.recording)
        {
            terminal::say(&format!("this crash test is not recorded: {error}"));
            self.store = None;
        }
    }

    /// Does something while the record is closed.
    pub fn aside<T>(&mut self, then: impl FnOnce() -> T) -> T {
        let path = self.store.take().map(|store| store.path().to_owned());
        let done = then();
        match path.map(|path| Store::open(&path)) {
            Some(Ok(store)) => self.store = Some(store),
            Some(Err(error)) => terminal::say(&format!("the rest is not recorded: {error}")),
            None => {}
        }
        done
    }

    /// What may be written down of a text.
    pub fn without_secrets(&self, text: &str) -> String {
        self.redactor.redact_str(text).0.into_owned()
    }

    pub fn store(&mut self) -> Option<&mut Store> {
        self.store.as_mut()
    }

    fn add(&mut self, events: &[Event<'_>]) {
        let entries: Vec<_> =
            events.iter().map(|event| without_secrets(event, &self.redactor)).collect();
        self.write(|store, recording| match recording {
            Some(recording) => recording.append(store, &entries).map(drop),
            None => Ok(()),
        });
    }

    pub fn recorded(&mut self, recording: &Recording, run: Option<RunId>) {
        let (mut calls, mut labels) = (BTreeMap::new(), BTreeMap::new());
        let (mut operations, mut acknowledgements, mut labels_left_out) = (0, 0, 0);
        for entry in &recording.entries {
            match entry {
                Entry::Operation(operation) => {
                    operations += 1;
                    *calls.entry(operation.call.as_str()).or_default() += 1;
                }
                Entry::Label(label)
                    if labels.len() < MOST_LABELS || labels.contains_key(label.as_str()) =>
                {
                    *labels.entry(label.as_str()).or_default() += 1;
                }
                Entry::Label(_) => labels_left_out += 1,
                Entry::Acknowledgement(_) => acknowledgements += 1,
            }
        }
        let rows = timeline::rows(recording);
        let mut events = vec![Event::Recorded {
            run,
            operations,
            calls,
            acknowledgements,
            labels,
            labels_left_out,
            steps_left_out: rows.len().saturating_sub(MOST_STEPS),
        }];
        events.extend(rows.iter().take(MOST_STEPS).map(|row| match row.sort {
            Sort::Name | Sort::Content | Sort::Close => Event::Operation(row),
            Sort::Sync => Event::Sync(row),
            Sort::Label => Event::Label(row),
            Sort::Acknowledgement => Event::Acknowledgement(row),
        }));
        self.add(&events);
    }

    pub fn states(&mut self, coverage: &retake_crash::model::Coverage) {
        self.add(&[Event::States {
            points: coverage.points,
            states: coverage.states(),
            distinct: coverage.distinct_states(),
            coverage: coverage.to_string(),
        }]);
    }

    pub fn finished(&mut self, findings: &[Finding], verified: u64, complete: bool) {
        let mut events: Vec<_> = findings.iter().map(Event::Finding).collect();
        events.push(Event::Finished { verified, complete });
        self.add(&events);
    }

    /// Ends the loop.
    pub fn end(&mut self, reason: &StopReason) {
        self.write(|store, recording| match recording.take() {
            Some(recording) => recording.finish(store, reason),
            None => Ok(()),
        });
    }
}

fn without_secrets(value: &impl Serialize, redactor: &Redactor) -> serde_json::Value {
    let value = serde_json::to_value(value).expect("plain data");
    drive::redacted(value, redactor)
}
