//! A crash test in the record: one loop, with entries for the program's steps, the number of
//! states, each finding, and the outcome. Its size does not depend on the number of
//! states.

use retake_crash::model::Coverage;
use retake_crash::operation::{Entry, Recording};
use retake_store::redact::Redactor;
use retake_store::{LoopRecording, Store};
use retake_types::loop_record::crash::{
    CrashEntry, CrashFinding, CrashPlan, ExploredStates, FinishedExploration, RecordedWorkload,
    TestedFaults,
};
use retake_types::{Kind, LoopId, Redacted, RunId, StopReason};

use crate::event::{CrashEvent, CrashObserver};
use crate::source_places::SourcePlaces;
use crate::timeline;

/// Maximum number of recorded labels; further ones are only counted.
const MOST_LABELS: usize = 1000;
/// Maximum number of recorded rows of the timeline; further ones are in the log only.
const MOST_ROWS: usize = 5000;

/// Records the loop as long as the record can be written to.
pub struct CrashRecorder<'a> {
    store: Option<Store>,
    id: LoopId,
    redactor: Redactor,
    /// Held until the end of the loop is recorded.
    recording: Option<LoopRecording>,
    observer: &'a dyn CrashObserver,
}

impl<'a> CrashRecorder<'a> {
    /// Begins the loop; without a store nothing is recorded.
    pub fn begin(
        store: Option<Store>,
        plan: &CrashPlan,
        mut redactor: Redactor,
        observer: &'a dyn CrashObserver,
    ) -> Self {
        let plan = Redacted::json(plan, &mut redactor).expect("plain data");
        let id = LoopId::new();
        let mut recorder = Self { store, id, redactor, recording: None, observer };
        recorder.write(|store, recording| {
            *recording = Some(store.begin_loop_as(id, Kind::Crash, &plan)?);
            Ok(())
        });
        recorder
    }

    pub fn id(&self) -> LoopId {
        self.id
    }

    /// After an error nothing more is recorded, and the test continues.
    fn write(
        &mut self,
        with: impl FnOnce(&mut Store, &mut Option<LoopRecording>) -> retake_store::Result<()>,
    ) {
        if let Some(store) = &mut self.store
            && let Err(error) = with(store, &mut self.recording)
        {
            self.observer.event(CrashEvent::LoopNotRecorded(&error));
            self.store = None;
        }
    }

    /// Calls a function while the record is closed.
    pub fn while_closed<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let path = self.store.take().map(|store| store.path().to_owned());
        let returned = call();
        match path.map(|path| Store::open(&path)) {
            Some(Ok(store)) => self.store = Some(store),
            Some(Err(error)) => self.observer.event(CrashEvent::RestNotRecorded(&error)),
            None => {}
        }
        returned
    }

    /// Removes secrets from a text.
    pub fn without_secrets(&self, text: &str) -> String {
        self.redactor.redact_str(text).0.into_owned()
    }

    pub fn store(&mut self) -> Option<&mut Store> {
        self.store.as_mut()
    }

    fn append(&mut self, entries: &[CrashEntry]) {
        let mut redactor = self.redactor.clone();
        self.write(|store, recording| match recording {
            Some(recording) => recording.append(store, entries, &mut redactor).map(drop),
            None => Ok(()),
        });
    }

    /// Appends the steps of the program.
    pub fn append_workload(
        &mut self,
        recording: &Recording,
        places: &SourcePlaces,
        run: Option<RunId>,
    ) {
        let mut recorded = RecordedWorkload { run, ..RecordedWorkload::default() };
        for entry in &recording.entries {
            match entry {
                Entry::Operation(operation) => {
                    recorded.operations += 1;
                    *recorded.calls.entry(operation.call.clone()).or_default() += 1;
                }
                Entry::Label(label)
                    if recorded.labels.len() < MOST_LABELS
                        || recorded.labels.contains_key(label) =>
                {
                    *recorded.labels.entry(label.clone()).or_default() += 1;
                }
                Entry::Label(_) => recorded.labels_left_out += 1,
                Entry::Acknowledgement(_) => recorded.acknowledgements += 1,
            }
        }
        let mut rows = timeline::rows(recording);
        places.add_to(&mut rows);
        recorded.steps_left_out = rows.len().saturating_sub(MOST_ROWS) as u64;
        let mut entries = vec![CrashEntry::Recorded(recorded)];
        entries.extend(rows.into_iter().take(MOST_ROWS).map(CrashEntry::from));
        self.append(&entries);
    }

    pub(crate) fn append_states(&mut self, coverage: &Coverage) {
        self.append(&[CrashEntry::States(ExploredStates {
            points: coverage.points,
            states: coverage.states(),
            distinct: coverage.distinct_states(),
            coverage: coverage.to_string(),
        })]);
    }

    pub(crate) fn append_faults(&mut self, tested: &TestedFaults) {
        self.append(&[CrashEntry::Faults(tested.clone())]);
    }

    pub(crate) fn append_findings(
        &mut self,
        findings: &[CrashFinding],
        verified: u64,
        complete: bool,
    ) {
        let mut entries: Vec<_> =
            findings.iter().cloned().map(|one| CrashEntry::Finding(Box::new(one))).collect();
        entries.push(CrashEntry::Finished(FinishedExploration { verified, complete }));
        self.append(&entries);
    }

    /// Ends the loop.
    pub fn finish(&mut self, reason: &StopReason) {
        self.write(|store, recording| match recording.take() {
            Some(recording) => recording.finish(store, reason),
            None => Ok(()),
        });
    }
}
