//! Crashes during recovery: the check of a state that passes is watched while it works, and what a
//! crash in the middle of it could leave must pass, too. One level deep: a recovery of a recovery is
//! not looked at.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Mutex;

use retake_crash::model::{
    CrashState, CrashStates, Explainer, ExploreOptions, Model, StateKey, path_text, rebuild,
};
use retake_crash::operation::{Entry, Recording};
use retake_crash::recorder::{RecordError, WorkloadOutcome};
use retake_crash::verify::{StateToCheck, Verifier, VerifierPool};

use super::explore::lock;
use super::finding::Finding;
use super::station::{Check, Scene, Station, Verdict};
use retake_runner::signals;

/// What watches checks, and what came of it.
pub struct Relapses<'a> {
    pool: VerifierPool,
    check: &'a Check,
    model: Model,
    options: ExploreOptions,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// By digest: with how many promises a state passed.
    passed: HashMap<u128, usize>,
    /// States during recovery.
    checked: u64,
    /// By sentence without its numbers.
    causes: HashMap<String, Cause>,
    /// The states whose recovery does not survive a crash.
    patients: BTreeSet<u64>,
}

struct Cause {
    /// The place of the first state in the exploration, for a stable order.
    number: u64,
    finding: Finding,
    recording: Recording,
}

/// The state whose check is watched.
pub struct Patient<'a> {
    pub number: u64,
    pub state: &'a CrashState,
    pub acks: &'a [&'a [u8]],
}

/// A finding, and the recording of the check in which the crash comes.
pub struct Relapsed {
    pub finding: Finding,
    pub recording: Recording,
}

impl<'a> Relapses<'a> {
    pub fn new(
        check: &'a Check,
        root: &std::path::Path,
        model: Model,
        options: ExploreOptions,
    ) -> io::Result<Self> {
        let mut verifier = Verifier::new("/bin/sh", root)
            .args(["-c", &check.command])
            .current_dir(&check.cwd)
            .timeout(check.timeout);
        for (name, value) in &check.environment {
            verifier = verifier.env(name, value);
        }
        let pool = verifier.prepare()?;
        Ok(Self { pool, check, model, options, seen: Mutex::default() })
    }

    /// How many states during recovery were checked.
    pub fn checked(&self) -> u64 {
        lock(&self.seen).checked
    }

    /// The states whose recovery does not survive a crash, by number.
    pub fn patients(&self) -> Vec<u64> {
        lock(&self.seen).patients.iter().copied().collect()
    }

    /// So many were checked by others.
    pub fn checked_elsewhere(&self, states: u64) {
        lock(&self.seen).checked = states;
    }

    /// Watches the check of a state that passed, and checks what it could leave.
    pub fn examine(
        &self,
        slot: usize,
        station: &mut Station,
        patient: &Patient<'_>,
    ) -> io::Result<()> {
        let Some(recording) = self.watch(slot, patient)? else { return Ok(()) };
        let states = CrashStates::new(&recording, self.model, self.options.clone());
        let states = states.map_err(|error| io::Error::other(error.to_string()))?;
        let mut failing = Vec::new();
        for state in states {
            if signals::received().is_some() {
                return Ok(());
            }
            if self.is_known(&state, patient.acks.len()) {
                continue;
            }
            match station.check(self.check, scene(&state, patient))? {
                Verdict::Passed => self.passes(&state, patient.acks.len()),
                Verdict::Failed { .. } => failing.push(state),
                Verdict::Cancelled => return Ok(()),
            }
            lock(&self.seen).checked += 1;
        }
        self.explain(&recording, &failing, station, patient)
    }

    /// What the check did to the state; none if that is nothing.
    fn watch(&self, slot: usize, patient: &Patient<'_>) -> io::Result<Option<Recording>> {
        let acks: Vec<Vec<u8>> = patient.acks.iter().map(|ack| ack.to_vec()).collect();
        let case = StateToCheck {
            tree: &patient.state.tree,
            point: patient.state.key.point.operation.into(),
            label: patient.state.label.as_deref().unwrap_or_default(),
            acks: &acks,
        };
        match self.pool.record(slot, &case) {
            // It passed before; one that fails while it is watched has nothing to recover from.
            Ok(recorded) if recorded.outcome != WorkloadOutcome::Exited(0) => Ok(None),
            Ok(recorded) => {
                let acts = |entry: &Entry| matches!(entry, Entry::Operation(_));
                Ok(Some(recorded.recording).filter(|recording| recording.entries.iter().any(acts)))
            }
            Err(RecordError::Cancelled) => Ok(None),
            Err(error) => Err(io::Error::other(format!("the check cannot be watched: {error}"))),
        }
    }

    fn is_known(&self, state: &CrashState, acks: usize) -> bool {
        lock(&self.seen).passed.get(&state.tree.digest()).is_some_and(|passed| *passed >= acks)
    }

    /// Notes that a state passed, whoever checked it.
    pub fn passes(&self, state: &CrashState, acks: usize) {
        let mut seen = lock(&self.seen);
        let passed = seen.passed.entry(state.tree.digest()).or_default();
        *passed = acks.max(*passed);
    }

    fn explain(
        &self,
        recording: &Recording,
        failing: &[CrashState],
        station: &mut Station,
        patient: &Patient<'_>,
    ) -> io::Result<()> {
        if failing.is_empty() {
            return Ok(());
        }
        let bad = |error: retake_crash::model::BadGlob| io::Error::other(error.to_string());
        let mut explainer =
            Explainer::new(recording, self.model, &self.options).map_err(bad)?.of_recovery();
        for state in failing {
            explainer.add(state, |state| {
                let verdict = station.check(self.check, scene(state, patient));
                matches!(verdict, Ok(Verdict::Failed { .. }))
            });
            if signals::received().is_some() {
                return Ok(());
            }
        }
        for cause in explainer.findings() {
            let state = rebuild(recording, self.model, &self.options, &cause.key).map_err(bad)?;
            let Some(state) = state else { continue };
            let said = station.check(self.check, scene(&state, patient))?;
            let (verdict, output) = match said {
                Verdict::Failed { how, output } => (how, output),
                Verdict::Passed => ("fails only sometimes".to_owned(), String::new()),
                Verdict::Cancelled => return Ok(()),
            };
            let outer = &patient.state.key;
            let finding = Finding {
                id: String::new(),
                sentence: format!("a crash during recovery from state {outer}: {}", cause.sentence),
                files: cause.files.iter().map(|path| path_text(path)).collect(),
                lost_operations: patient.state.lost.clone(),
                states: cause.states as u64,
                repro: String::new(),
                key: cause.key.to_string(),
                operation: outer.point.operation,
                label: patient.state.label.clone(),
                acknowledgements: patient.acks.len(),
                verdict,
                output,
                recovery: true,
            };
            self.note(patient.number, &cause.sentence, finding, recording);
        }
        Ok(())
    }

    fn note(&self, number: u64, sentence: &str, finding: Finding, recording: &Recording) {
        let shape: String = sentence.chars().filter(|c| !c.is_ascii_digit()).collect();
        let mut seen = lock(&self.seen);
        seen.patients.insert(number);
        match seen.causes.get_mut(&shape) {
            Some(known) if known.number <= number => known.finding.states += finding.states,
            known => {
                let before = known.map_or(0, |known| known.finding.states);
                let states = finding.states + before;
                let finding = Finding { states, ..finding };
                seen.causes.insert(shape, Cause { number, finding, recording: recording.clone() });
            }
        }
    }

    /// In the order of the exploration.
    pub fn findings(self) -> Vec<Relapsed> {
        let seen = self.seen.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut causes: Vec<_> = seen.causes.into_iter().collect();
        causes.sort_by(|(a, one), (b, other)| (one.number, a).cmp(&(other.number, b)));
        causes
            .into_iter()
            .map(|(_, Cause { finding, recording, .. })| Relapsed { finding, recording })
            .collect()
    }
}

/// The check is told of the first crash: that is when promises ended.
fn scene<'a>(state: &'a CrashState, patient: &Patient<'a>) -> Scene<'a> {
    let StateKey { point, .. } = &patient.state.key;
    let label = patient.state.label.as_deref();
    Scene { tree: &state.tree, operation: point.operation, label, acks: patient.acks }
}
