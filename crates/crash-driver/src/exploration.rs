//! Checks every state with all workers in parallel. The model decides which states there are and in which
//! order; failures are explained afterwards.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use retake_crash::model::{
    Coverage, CrashState, CrashStates, ExploreOptions, FirstPass, Model, Tree,
};
use retake_crash::operation::{Action, Content, Entry, Recording};
use retake_runner::loop_driver::{self, LoopObserver, StepError};
use retake_runner::signals;

use crate::changes::is_change;
use crate::check::{Check, CheckError, CheckOutcome};
use crate::check_worker::{CheckInput, CheckWorker};
use crate::error::CrashTestError;
use crate::event::{CrashEvent, CrashObserver, ExplorationProgress};
use crate::exploration_plan::{ExplorationPlan, FailingState, NumberedState, StateReport};
use crate::recovery_crashes::{RecoveredState, RecoveryCrashes};
use crate::share_failure::ShareFailure;
use crate::state_range::StateRange;

/// Maximum delay between a signal that terminates a child and the same signal to this process.
const SIGNAL_DELAY: Duration = Duration::from_millis(500);

/// What to explore, and how.
pub struct Exploration<'a> {
    pub recording: &'a Recording,
    pub model: Model,
    pub options: ExploreOptions,
    pub check: &'a Check,
    pub deadline: Option<Instant>,
    /// Set if crashes during recovery are tested, too.
    pub recovery: Option<&'a RecoveryCrashes<'a>>,
    pub observer: &'a dyn CrashObserver,
    /// Only these states; `None` for all.
    pub range: Option<StateRange>,
}

/// The result of an exploration.
#[derive(Default)]
pub struct Explored {
    pub coverage: Coverage,
    pub verified: u64,
    /// Every state that fails, in the order of the exploration.
    pub failing: Vec<FailingState>,
    pub complete: bool,
    /// Shares of other machines without an answer.
    pub lost: Vec<(StateRange, ShareFailure)>,
    /// Why checks on other machines did not see the recorded path, if so.
    pub other_paths: Vec<String>,
}

/// What the program acknowledged, in order.
pub fn acks(recording: &Recording) -> Vec<&[u8]> {
    let entries = recording.entries.iter();
    entries
        .filter_map(|entry| match entry {
            Entry::Acknowledgement(text) => Some(text.as_slice()),
            _ => None,
        })
        .collect()
}

/// How many files existed before the program ran.
pub(crate) fn files_before(recording: &Recording) -> u64 {
    let initial = recording.initial.iter();
    initial.filter(|one| one.content != Content::Directory).count() as u64
}

/// How many of them were probably left by an earlier run: all, unless they were put there for this recording.
pub(crate) fn files_left(recording: &Recording) -> u64 {
    if recording.initial_is_copy { 0 } else { files_before(recording) }
}

/// The number of acknowledgements, if there are several and all came after the last operation, as
/// from a program with buffered output.
pub(crate) fn late_acks(recording: &Recording) -> Option<u64> {
    let is_ack = |entry: &Entry| matches!(entry, Entry::Acknowledgement(_));
    let first = recording.entries.iter().position(is_ack)?;
    let acks = recording.entries.iter().filter(|entry| is_ack(entry)).count() as u64;
    (acks > 1 && !recording.entries[first..].iter().any(is_change)).then_some(acks)
}

/// The directory as the program left it.
pub(crate) fn final_tree(recording: &Recording) -> Tree {
    let mut tree = Tree::new(&recording.initial);
    for entry in &recording.entries {
        if let Entry::Operation(operation) = entry {
            tree.apply(&operation.action);
        }
    }
    tree
}

/// Refuses a check whose command is missing or is not executable.
pub fn check_runs(
    check: &Check,
    recording: &Recording,
    worker: &mut CheckWorker,
) -> Result<(), CrashTestError> {
    let (tree, acks) = (final_tree(recording), acks(recording));
    let input =
        CheckInput { tree: &tree, operation: operations(recording), label: None, acks: &acks };
    match worker.check(check, input)? {
        CheckOutcome::Failed(failed) => CrashTestError::not_run(check, &failed).map_or(Ok(()), Err),
        CheckOutcome::Passed | CheckOutcome::Cancelled => Ok(()),
    }
}

fn operations(recording: &Recording) -> u32 {
    let entries = recording.entries.iter();
    entries.filter(|entry| matches!(entry, Entry::Operation(_))).count() as u32
}

impl Exploration<'_> {
    /// The directory as the program left it must pass, or the check tests something else.
    pub fn check_uncrashed(&self, worker: &mut CheckWorker) -> Result<(), CrashTestError> {
        let mut tree = Tree::new(&self.recording.initial);
        let (mut operation, mut label) = (0, None);
        for entry in &self.recording.entries {
            match entry {
                Entry::Operation(done) => {
                    tree.apply(&done.action);
                    operation += 1;
                }
                Entry::Label(text) => label = Some(text.as_str()),
                Entry::Acknowledgement(_) => {}
            }
        }
        let acks = acks(self.recording);
        let input = CheckInput { tree: &tree, operation, label, acks: &acks };
        match worker.check(self.check, input)? {
            CheckOutcome::Passed => Ok(()),
            CheckOutcome::Failed(failed) => {
                Err(match CrashTestError::not_run(self.check, &failed) {
                    Some(not_run) => not_run,
                    None => CrashTestError::UncrashedFails {
                        failed,
                        root: self.recording.root.clone(),
                        files: files_left(self.recording),
                    },
                })
            }
            CheckOutcome::Cancelled => Err(CrashTestError::Cancelled),
        }
    }

    /// Whether the check also accepts a directory without any file, and one whose files are all empty,
    /// after everything that the program acknowledged: then it looks at no data.
    pub(crate) fn accepts_nothing(&self, worker: &mut CheckWorker) -> Result<bool, CrashTestError> {
        let acks = acks(self.recording);
        let mut cut = final_tree(self.recording);
        let has_data = |tree: &Tree| {
            tree.walk().any(|one| tree.file(one.node).is_some_and(|file| file.size() > 0))
        };
        if acks.is_empty() || !has_data(&cut) || self.is_over() {
            return Ok(false);
        }
        let nodes: Vec<_> = cut.walk().map(|one| one.node).collect();
        for node in nodes {
            if cut.file(node).is_some() {
                cut.apply(&Action::Truncate { node, size: 0 });
            }
        }
        let operation = operations(self.recording);
        let only_root = &self.recording.initial[..1.min(self.recording.initial.len())];
        for tree in [Tree::new(only_root), cut] {
            let input = CheckInput { tree: &tree, operation, label: None, acks: &acks };
            if worker.check(self.check, input)? != CheckOutcome::Passed {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Determines the states, until no more checks may begin: then there are none, and
    /// [`Coverage::cut_short`] is set.
    pub(crate) fn states(&self) -> Result<CrashStates<'_>, CrashTestError> {
        let begun = Instant::now();
        let mut shown = None;
        let states =
            CrashStates::watched(self.recording, self.model, self.options.clone(), |pass| {
                if shown.replace(pass) != Some(pass) {
                    let FirstPass { looked_at, points } = pass;
                    let elapsed = begun.elapsed();
                    self.observer.event(CrashEvent::FindingStates { looked_at, points, elapsed });
                }
                if self.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        states.map_err(CrashTestError::Glob)
    }

    /// Checks the states on this machine.
    pub fn explore(&self, workers: &mut [CheckWorker]) -> Result<Explored, CrashTestError> {
        let states = self.states()?;
        let coverage = states.coverage().clone();
        if coverage.cut_short {
            self.observer.event(CrashEvent::PhaseOver);
            return Ok(Explored { coverage, ..Explored::default() });
        }
        let stopped = AtomicBool::new(false);
        let states = states.stop_when(|| {
            let over = self.is_over();
            stopped.fetch_or(over, Ordering::Relaxed);
            over
        });
        let progress = ProgressObserver {
            observer: self.observer,
            total: self.range.map_or(coverage.distinct_states(), StateRange::states),
            begun: Instant::now(),
        };
        let acks = acks(self.recording);
        let plan = ExplorationPlan::new(states, self.range, self.deadline);
        let driven = loop_driver::drive(plan, workers, &progress, |worker, _, step| {
            self.check_state(worker, step, &acks)
        });
        self.observer.event(CrashEvent::PhaseOver);
        if let Some(error) = driven.failure {
            return Err(CrashTestError::Check(error));
        }
        let explored = driven.plan.finish();
        let complete = explored.complete && !stopped.load(Ordering::Relaxed);
        Ok(Explored {
            coverage,
            verified: explored.verified,
            failing: explored.failing,
            complete,
            ..Explored::default()
        })
    }

    fn check_state(
        &self,
        worker: &mut CheckWorker,
        step: &NumberedState,
        acks: &[&[u8]],
    ) -> Result<StateReport, StepError<CheckError>> {
        let NumberedState { number, state } = step;
        let input = CheckInput::new(state, acks);
        let checked = worker.check(self.check, input).map_err(StepError::Failed)?;
        match checked {
            CheckOutcome::Cancelled => Err(StepError::Cancelled),
            // The signal to this process may have terminated the check first.
            CheckOutcome::Failed(_) if signals::received().is_some() => Err(StepError::Cancelled),
            CheckOutcome::Failed(failed)
                if self.range.is_some() && failed.may_be_ended_by_scheduler() && signal_comes() =>
            {
                Err(StepError::Cancelled)
            }
            CheckOutcome::Failed(failed) => Ok(StateReport::Fails(failed)),
            CheckOutcome::Passed => {
                if let Some(recovery) = self.recovery {
                    recovery.mark_passed(state, input.acks.len());
                    let recovered = RecoveredState { number: *number, state, acks: input.acks };
                    recovery.test(worker, &recovered).map_err(StepError::Failed)?;
                    if signals::received().is_some() {
                        return Err(StepError::Cancelled);
                    }
                }
                Ok(StateReport::Recovers)
            }
        }
    }

    /// Whether no more checks may begin.
    pub(crate) fn is_over(&self) -> bool {
        let passed = |deadline: Instant| Instant::now() >= deadline;
        signals::received().is_some() || self.deadline.is_some_and(passed)
    }
}

/// Waits for the signal that a scheduler sends to every process of a job.
fn signal_comes() -> bool {
    let until = Instant::now() + SIGNAL_DELAY;
    while signals::received().is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    signals::received().is_some()
}

/// Reports the progress of the plan.
struct ProgressObserver<'a> {
    observer: &'a dyn CrashObserver,
    total: u64,
    begun: Instant,
}

impl<I: Iterator<Item = CrashState>> LoopObserver<ExplorationPlan<I>> for ProgressObserver<'_> {
    fn tick(&self, plan: &ExplorationPlan<I>) {
        self.observer.event(CrashEvent::Checking(ExplorationProgress {
            verified: plan.verified(),
            total: self.total,
            failing: plan.failing(),
            elapsed: self.begun.elapsed(),
        }));
    }
}
