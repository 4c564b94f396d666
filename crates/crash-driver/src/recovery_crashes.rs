//! Crashes during recovery: the check of a state that passes is recorded, and the states that a
//! crash during it could leave must pass, too. One level deep: the recovery of a recovery
//! is not tested.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use retake_crash::model::{CrashState, CrashStates, Explainer, ExploreOptions, Model, rebuild};
use retake_crash::operation::Recording;
use retake_runner::signals;
use retake_types::loop_record::crash::CrashFinding;

use crate::changes::changes_anything;
use crate::check::{Check, CheckError, CheckOutcome, FLAKY};
use crate::check_worker::{CheckInput, CheckWorker};
use crate::exploration_plan::FailingState;
use crate::failing_state;

/// Tests recoveries, from any worker, and collects the findings.
pub struct RecoveryCrashes<'a> {
    check: &'a Check,
    model: Model,
    options: ExploreOptions,
    results: Mutex<RecoveryResults>,
}

#[derive(Default)]
struct RecoveryResults {
    /// By digest: the number of acknowledgements with which a state passed.
    passed: HashMap<u128, usize>,
    /// How many states during recovery were checked.
    checked: u64,
    /// How many checks were recorded.
    recorded: u64,
    /// How many of them changed their directory.
    changing: u64,
    /// By sentence without its numbers.
    causes: HashMap<String, RecoveryCause>,
    /// The states whose recovery does not survive a crash.
    failing: BTreeSet<u64>,
}

struct RecoveryCause {
    /// The number of the first state, for a stable order.
    number: u64,
    finding: CrashFinding,
    recording: Recording,
}

/// A state that passed, whose recovery is tested.
pub struct RecoveredState<'a> {
    pub number: u64,
    pub state: &'a CrashState,
    pub acks: &'a [&'a [u8]],
}

impl<'a> RecoveredState<'a> {
    /// A state during the recovery. The check gets the data of the first crash: the program
    /// acknowledged nothing after it.
    fn input(&self, during: &'a CrashState) -> CheckInput<'a> {
        CheckInput {
            tree: &during.tree,
            operation: self.state.key.point.operation,
            label: self.state.label.as_deref(),
            acks: self.acks,
        }
    }
}

/// A finding, and the recording of the check during which the crash happens.
pub struct RecoveryFinding {
    pub finding: CrashFinding,
    pub recording: Recording,
}

impl<'a> RecoveryCrashes<'a> {
    pub fn new(check: &'a Check, model: Model, options: ExploreOptions) -> Self {
        Self { check, model, options, results: Mutex::default() }
    }

    fn results(&self) -> MutexGuard<'_, RecoveryResults> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many states during recovery were checked.
    pub fn checked(&self) -> u64 {
        self.results().checked
    }

    /// The states whose recovery does not survive a crash, by number.
    pub fn failing(&self) -> Vec<u64> {
        self.results().failing.iter().copied().collect()
    }

    /// Whether there was no recovery to interrupt: checks were recorded, and none changed its directory.
    pub fn changes_nothing(&self) -> bool {
        let results = self.results();
        results.recorded > 0 && results.changing == 0
    }

    /// Sets what other machines found: how many states they checked, and [`RecoveryCrashes::changes_nothing`].
    pub(crate) fn set_remote(&self, states: u64, changes_nothing: bool) {
        let mut results = self.results();
        results.checked = states;
        results.recorded = 1;
        results.changing = u64::from(!changes_nothing);
    }

    /// Records the check of a state that passed, and checks the states it could leave.
    pub(crate) fn test(
        &self,
        worker: &mut CheckWorker,
        recovered: &RecoveredState<'_>,
    ) -> Result<(), CheckError> {
        // It passed before; if it fails while it is recorded there is no recovery to test.
        let recording = worker.record(self.check, recovered.input(recovered.state))?;
        let Some(recording) = recording else { return Ok(()) };
        let changes = changes_anything(&recording);
        {
            let mut results = self.results();
            results.recorded += 1;
            results.changing += u64::from(changes);
        }
        if !changes {
            return Ok(());
        }
        let states = CrashStates::new(&recording, self.model, self.options.clone());
        let mut failing = Vec::new();
        for state in states.map_err(CheckError::Glob)? {
            if signals::received().is_some() {
                break;
            }
            if self.is_known(&state, recovered.acks.len()) {
                continue;
            }
            match worker.check(self.check, recovered.input(&state))? {
                CheckOutcome::Passed => self.mark_passed(&state, recovered.acks.len()),
                // The signal to this process may have terminated the check first.
                CheckOutcome::Failed(_) if signals::received().is_some() => break,
                CheckOutcome::Failed(failed) => failing.push(FailingState {
                    number: recovered.number,
                    state,
                    failure: Some(Arc::new(failed)),
                }),
                CheckOutcome::Cancelled => break,
            }
            self.results().checked += 1;
        }
        if failing.is_empty() {
            return Ok(());
        }
        self.explain(&recording, &failing, worker, recovered)
    }

    fn is_known(&self, state: &CrashState, acks: usize) -> bool {
        self.results().passed.get(&state.tree.digest()).is_some_and(|passed| *passed >= acks)
    }

    /// Remembers that a state passed, so that it is not checked again.
    pub(crate) fn mark_passed(&self, state: &CrashState, acks: usize) {
        let mut results = self.results();
        let passed = results.passed.entry(state.tree.digest()).or_default();
        *passed = acks.max(*passed);
    }

    fn explain(
        &self,
        recording: &Recording,
        failing: &[FailingState],
        worker: &mut CheckWorker,
        recovered: &RecoveredState<'_>,
    ) -> Result<(), CheckError> {
        let mut explainer = Explainer::new(recording, self.model, &self.options)
            .map_err(CheckError::Glob)?
            .of_recovery();
        for FailingState { state, failure, .. } in failing {
            if signals::received().is_some() {
                break;
            }
            let kind = failure.as_ref().map(|failed| failed.kind());
            explainer.add(state, kind, |state| {
                match worker.check(self.check, recovered.input(state)) {
                    Ok(CheckOutcome::Failed(failed)) => Some(failed.kind()),
                    _ => None,
                }
            });
        }
        if signals::received().is_some() {
            // An interrupted explanation may be wrong.
            let found = failing_state::unexplained(&explainer, failing);
            if let Some(finding) = found {
                let cause = finding.sentence.clone();
                self.add_finding(recovered, &cause, finding, recording);
            }
            return Ok(());
        }
        for cause in explainer.findings() {
            let state = rebuild(recording, self.model, &self.options, &cause.key);
            let state = state.map_err(CheckError::Glob)?;
            let checked = match &state {
                Some(state) => worker.check(self.check, recovered.input(state))?,
                None => CheckOutcome::Cancelled,
            };
            let (verdict, output) = match checked {
                CheckOutcome::Failed(failed) => (failed.verdict(), failed.output),
                CheckOutcome::Passed => (FLAKY.to_owned(), String::new()),
                // It failed before, even if a signal keeps it from being checked again.
                CheckOutcome::Cancelled => (failing_state::NOT_REPEATED.to_owned(), String::new()),
            };
            let sentence = cause.sentence.clone();
            let label = state.and_then(|state| state.label);
            let finding = failing_state::finding(cause, label, verdict, output);
            self.add_finding(recovered, &sentence, finding, recording);
        }
        Ok(())
    }

    /// Findings whose sentences differ only in numbers are merged.
    fn add_finding(
        &self,
        recovered: &RecoveredState<'_>,
        sentence: &str,
        finding: CrashFinding,
        recording: &Recording,
    ) {
        let number = recovered.number;
        let outer = &recovered.state.key;
        let finding = CrashFinding {
            sentence: format!("a crash during recovery from state {outer}: {sentence}"),
            lost_operations: recovered.state.lost.clone(),
            operation: outer.point.operation,
            survivor: None,
            named_operations: Vec::new(),
            label: recovered.state.label.clone(),
            acknowledgements: recovered.acks.len(),
            recovery: true,
            ..finding
        };
        let pattern: String = sentence.chars().filter(|c| !c.is_ascii_digit()).collect();
        let mut results = self.results();
        results.failing.insert(number);
        match results.causes.get_mut(&pattern) {
            Some(known) if known.number <= number => known.finding.states += finding.states,
            known => {
                let before = known.map_or(0, |known| known.finding.states);
                let finding = CrashFinding { states: finding.states + before, ..finding };
                let recording = recording.clone();
                results.causes.insert(pattern, RecoveryCause { number, finding, recording });
            }
        }
    }

    /// In the order of the exploration.
    pub fn findings(self) -> Vec<RecoveryFinding> {
        let results = self.results.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut causes: Vec<_> = results.causes.into_iter().collect();
        causes.sort_by(|(a, one), (b, other)| (one.number, a).cmp(&(other.number, b)));
        causes
            .into_iter()
            .map(|(_, RecoveryCause { finding, recording, .. })| RecoveryFinding {
                finding,
                recording,
            })
            .collect()
    }
}
