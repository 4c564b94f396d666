//! Runs the program once for every fault and checks the result: the directory as it is, the same
//! after a power loss, and the same without the data that the kernel dropped when it could not sync it.
//!
//! A failure is attributed to the fault only if the program succeeds without it: if a power loss at
//! the moment of the fault already fails, that is a finding of the crash states and not of the faults.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use retake_crash::fault::FaultTarget;
use retake_crash::model::{ExploreOptions, Kept, Model, Point, StateKey, Tree, rebuild};
use retake_crash::operation::{Entry, Recording};
use retake_runner::loop_driver::{self, LoopObserver, StepError};
use retake_runner::signals;
use retake_types::loop_record::crash::{CrashFaultState, CrashFinding, TestedFaults};

use crate::check::{Check, CheckError, CheckOutcome, FailedCheck};
use crate::check_worker::{CheckInput, CheckWorker, CheckWorkers};
use crate::error::CrashTestError;
use crate::event::{CrashEvent, CrashObserver, ExplorationProgress};
use crate::exploration::{acks, final_tree};
use crate::fault_finding;
use crate::fault_plan::{FailedFault, FaultPlan, FaultReport, PlannedFault};
use crate::fault_run::{EndedRun, FaultAnswer, FaultLaunch, FaultOutcome};
use crate::report::ReportNote;

/// Minimum time limit of a run with a fault: a program may wait before it tries again.
const LEAST: Duration = Duration::from_secs(15);
/// The time limit as a multiple of the duration without a fault.
const LONGER: u32 = 20;
/// Time limit of the run that lists the calls.
const LISTING: Duration = Duration::from_secs(600);

pub struct FaultTest<'a> {
    /// The program without faults.
    pub recording: &'a Recording,
    pub model: Model,
    pub check: &'a Check,
    pub deadline: Option<Instant>,
    /// Selects which of the calls that repeat often are tried.
    pub seed: u64,
    pub launch: &'a FaultLaunch<'a>,
    pub observer: &'a dyn CrashObserver,
}

/// The result of a test with faults.
#[derive(Default)]
pub struct FaultResults {
    pub tested: TestedFaults,
    /// With the recording of the run.
    pub findings: Vec<(CrashFinding, Recording)>,
    pub notes: Vec<ReportNote>,
}

/// The program without a fault, to compare with.
struct Unfaulted<'a> {
    initial: Tree,
    digest: u128,
    acks: Vec<&'a [u8]>,
    said: String,
    /// It left the same files when it was run again.
    repeatable: bool,
    /// It survives a power loss at its end.
    survives: bool,
    timeout: Duration,
}

type Judged<T> = Result<T, StepError<CheckError>>;

impl FaultTest<'_> {
    pub fn run(&self, workers: &mut CheckWorkers) -> Result<FaultResults, CrashTestError> {
        let not_tried = |why: String| FaultResults {
            notes: vec![ReportNote::FaultsNotTried(why)],
            ..FaultResults::default()
        };
        if let Some(reason) = &workers.other_path {
            return Ok(not_tried(format!(
                "{reason}, and the program must find its directory where it was recorded"
            )));
        }
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(not_tried("the time was spent on crash states".to_owned()));
        }
        let begun = Instant::now();
        let initial = Tree::new(&self.recording.initial);
        let worker = &mut workers.workers[0];
        let (answer, again) = match worker.run_fault(self.launch, &initial, None, LISTING)? {
            EndedRun::Recorded { answer, recording, .. } => (answer, recording),
            EndedRun::NotRecorded(why) => return Ok(not_tried(why)),
            EndedRun::Cancelled => return Ok(not_tried("it was interrupted".to_owned())),
        };
        if answer.outcome != FaultOutcome::Exited(0) {
            let how = answer.outcome.text();
            return Ok(not_tried(format!("run again without any fault the program {how}")));
        }
        let timeout = LEAST.max(begun.elapsed() * LONGER);
        let unfaulted = self.unfaulted(worker, initial, &answer, &again, timeout)?;
        let plan = FaultPlan::new(&answer.calls, self.seed, self.deadline);
        let progress = FaultProgress { observer: self.observer, begun: Instant::now() };
        let driven =
            loop_driver::drive(plan, &mut workers.workers, &progress, |worker, _, step| {
                self.try_fault(worker, step, &unfaulted)
            });
        self.observer.event(CrashEvent::PhaseOver);
        if let Some(error) = driven.failure {
            return Err(CrashTestError::Check(error));
        }
        let mut plan = driven.plan;
        plan.finish();
        let notes = self.notes(&plan, &unfaulted);
        let tested = plan.tested.clone();
        let findings = fault_finding::findings(plan, self.model);
        Ok(FaultResults { tested, findings, notes })
    }

    fn unfaulted(
        &self,
        worker: &mut CheckWorker,
        initial: Tree,
        answer: &FaultAnswer,
        again: &Recording,
        timeout: Duration,
    ) -> Result<Unfaulted<'_>, CrashTestError> {
        let digest = final_tree(self.recording).digest();
        let same_acks = acks(self.recording) == acks(again);
        let power = self.model != Model::Kill;
        let lost = end_state(self.recording, Kept::Only(Vec::new()));
        let survives = power
            && match self.check_state(worker, self.recording, &lost, None) {
                Ok(failed) => failed.is_none(),
                Err(StepError::Cancelled) => false,
                Err(StepError::Failed(error)) => return Err(error.into()),
            };
        Ok(Unfaulted {
            initial,
            digest,
            acks: acks(self.recording),
            said: answer.said.clone(),
            repeatable: same_acks && final_tree(again).digest() == digest,
            survives,
            timeout,
        })
    }

    fn notes(&self, plan: &FaultPlan, unfaulted: &Unfaulted<'_>) -> Vec<ReportNote> {
        let mut notes = Vec::new();
        if self.model != Model::Kill && !unfaulted.survives {
            notes.push(ReportNote::FaultsWithoutPowerLoss);
        }
        if plan.tested.not_reached > 0 {
            notes.push(ReportNote::FaultsNotReached(plan.tested.not_reached));
        }
        if let Some(why) = &plan.not_checked {
            let runs = plan.tested.not_checked;
            notes.push(ReportNote::FaultsNotChecked { runs, why: why.clone() });
        }
        if plan.fail_without_fault > 0 {
            notes.push(ReportNote::FailsWithoutFault(plan.fail_without_fault));
        }
        if let Some((_, call, fault)) = plan.ignored.first() {
            let faults = plan.ignored.len() as u64;
            let first = fault_finding::failure_text(call, &[*fault]);
            notes.push(ReportNote::FaultsIgnored { faults, first });
        }
        notes
    }

    /// One run with one fault.
    fn try_fault(
        &self,
        worker: &mut CheckWorker,
        step: &PlannedFault,
        unfaulted: &Unfaulted<'_>,
    ) -> Judged<FaultReport> {
        let PlannedFault { call, fault, .. } = step;
        let target =
            FaultTarget { call: call.call.clone(), occurrence: call.occurrence, fault: *fault };
        let ended = worker
            .run_fault(self.launch, &unfaulted.initial, Some(target), unfaulted.timeout)
            .map_err(StepError::Failed)?;
        // The signal to this process may have terminated the program first.
        if signals::received().is_some() {
            return Err(StepError::Cancelled);
        }
        match ended {
            EndedRun::Recorded { answer, recording, dropped } => match &answer.injected {
                Some(call) => {
                    let call = call.clone();
                    self.judge(
                        worker,
                        &answer,
                        call,
                        (*recording, dropped.map(|dropped| *dropped)),
                        unfaulted,
                    )
                }
                None => Ok(FaultReport::NotReached),
            },
            EndedRun::NotRecorded(why) => Ok(FaultReport::NotChecked(why)),
            EndedRun::Cancelled => Err(StepError::Cancelled),
        }
    }

    fn judge(
        &self,
        worker: &mut CheckWorker,
        answer: &FaultAnswer,
        call: crate::fault_run::FaultCall,
        (recording, dropped): (Recording, Option<Recording>),
        unfaulted: &Unfaulted<'_>,
    ) -> Judged<FaultReport> {
        let mut states = vec![(CrashFaultState::AsLeft, &recording, Kept::Everything)];
        let nothing = || Kept::Only(Vec::new());
        if unfaulted.survives {
            states.push((CrashFaultState::PowerLoss, &recording, nothing()));
        }
        if let Some(dropped) = &dropped {
            states.push((CrashFaultState::PagesDropped, dropped, Kept::Everything));
            if unfaulted.survives {
                states.push((CrashFaultState::PagesDropped, dropped, nothing()));
            }
        }
        let mut seen = HashSet::new();
        let mut failing = None;
        'states: for (state, of, kept) in states {
            for point in moments(of, call.acknowledgements) {
                let key = StateKey { point, kept: kept.clone(), torn: None };
                if let Some(failed) = self.check_unless_seen(worker, of, &key, &mut seen)? {
                    failing = Some((state, key, failed, of.clone()));
                    break 'states;
                }
            }
        }
        let succeeds = answer.outcome == FaultOutcome::Exited(0);
        if failing.is_none() && succeeds {
            failing = self.silent(worker, answer, &recording, unfaulted)?;
        }
        let Some((state, key, check, of)) = failing else {
            let same = final_tree(&recording).digest() == unfaulted.digest;
            let claims = succeeds && acks(&recording) == unfaulted.acks;
            return Ok(match claims && !same && unfaulted.repeatable {
                true => FaultReport::Ignored(call),
                false => FaultReport::Handled,
            });
        };
        let after_kill = match state {
            CrashFaultState::AsLeft => self.fails_before(worker, &of, &call, Kept::Everything)?,
            CrashFaultState::PowerLoss => {
                if self.fails_before(worker, &of, &call, nothing())? {
                    return Ok(FaultReport::FailsWithoutFault);
                }
                false
            }
            CrashFaultState::PagesDropped | CrashFaultState::Silent => false,
        };
        let acks = acks_by(&of, key.point.operation);
        Ok(FaultReport::Fails(Box::new(FailedFault {
            call,
            state,
            outcome: answer.outcome.clone(),
            said: answer.said.clone(),
            key: key.to_string(),
            acks,
            check,
            after_kill,
            recording: of,
        })))
    }

    /// Whether a program that exited with 0 omitted something without saying so: fewer lines than
    /// without the fault, no different ones, and nothing else on stderr.
    fn silent(
        &self,
        worker: &mut CheckWorker,
        answer: &FaultAnswer,
        recording: &Recording,
        unfaulted: &Unfaulted<'_>,
    ) -> Judged<Option<(CrashFaultState, StateKey, FailedCheck, Recording)>> {
        let said = acks(recording);
        let mut all = unfaulted.acks.iter();
        let is_part = said.iter().all(|line| all.any(|other| other == line));
        if said.len() >= unfaulted.acks.len() || !is_part || answer.said != unfaulted.said {
            return Ok(None);
        }
        let key = end_state(recording, Kept::Everything);
        let failed = self.check_state(worker, recording, &key, Some(&unfaulted.acks))?;
        Ok(failed.map(|failed| (CrashFaultState::Silent, key, failed, recording.clone())))
    }

    /// Whether a crash right before the fault fails, too.
    fn fails_before(
        &self,
        worker: &mut CheckWorker,
        recording: &Recording,
        call: &crate::fault_run::FaultCall,
        kept: Kept,
    ) -> Judged<bool> {
        let point = Point { operation: call.operations, during: false };
        let key = StateKey { point, kept, torn: None };
        let all = acks(recording);
        let before = &all[..call.acknowledgements.min(all.len())];
        Ok(self.check_state(worker, recording, &key, Some(before))?.is_some())
    }

    fn check_unless_seen(
        &self,
        worker: &mut CheckWorker,
        recording: &Recording,
        key: &StateKey,
        seen: &mut HashSet<(u128, usize)>,
    ) -> Judged<Option<FailedCheck>> {
        let built = rebuild(recording, self.model, &ExploreOptions::default(), key);
        let built = built.map_err(|error| StepError::Failed(CheckError::Glob(error)))?;
        match built {
            Some(state) if seen.insert((state.tree.digest(), state.acks)) => {
                self.check_state(worker, recording, key, None)
            }
            _ => Ok(None),
        }
    }

    /// How the check of a state fails, if it does. By default it gets what its recording has
    /// acknowledged by then.
    fn check_state(
        &self,
        worker: &mut CheckWorker,
        recording: &Recording,
        key: &StateKey,
        given: Option<&[&[u8]]>,
    ) -> Judged<Option<FailedCheck>> {
        let built = rebuild(recording, self.model, &ExploreOptions::default(), key);
        let built = built.map_err(|error| StepError::Failed(CheckError::Glob(error)))?;
        let Some(state) = built else { return Ok(None) };
        let own = acks(recording);
        let mut input = CheckInput::new(&state, &own);
        if let Some(given) = given {
            input.acks = given;
        }
        worker.forget_acks();
        match worker.check(self.check, input).map_err(StepError::Failed)? {
            CheckOutcome::Passed => Ok(None),
            CheckOutcome::Cancelled => Err(StepError::Cancelled),
            CheckOutcome::Failed(_) if signals::received().is_some() => Err(StepError::Cancelled),
            CheckOutcome::Failed(failed) => Ok(Some(failed)),
        }
    }
}

/// The state at the end of a recording, with `kept`.
fn end_state(recording: &Recording, kept: Kept) -> StateKey {
    StateKey {
        point: Point { operation: operations(&recording.entries), during: false },
        kept,
        torn: None,
    }
}

fn operations(entries: &[Entry]) -> u32 {
    entries.iter().filter(|entry| matches!(entry, Entry::Operation(_))).count() as u32
}

/// When to check the directory: after the first acknowledgement after the fault, because
/// later work may cover what is missing, and at the end.
fn moments(recording: &Recording, before: usize) -> Vec<Point> {
    let is_ack = |entry: &&Entry| matches!(entry, Entry::Acknowledgement(_));
    let mut acks = recording.entries.iter().enumerate().filter(|(_, entry)| is_ack(entry));
    let first = acks.nth(before).map(|(at, _)| operations(&recording.entries[..at]));
    let end = operations(&recording.entries);
    let moments = first.into_iter().filter(|first| *first != end).chain([end]);
    moments.map(|operation| Point { operation, during: false }).collect()
}

/// How many lines were acknowledged before the next operation.
fn acks_by(recording: &Recording, operation: u32) -> usize {
    let mut left = operation;
    let by = recording.entries.iter().take_while(|entry| match entry {
        Entry::Operation(_) if left == 0 => false,
        Entry::Operation(_) => {
            left -= 1;
            true
        }
        _ => true,
    });
    by.filter(|entry| matches!(entry, Entry::Acknowledgement(_))).count()
}

/// Reports the progress of the plan.
struct FaultProgress<'a> {
    observer: &'a dyn CrashObserver,
    begun: Instant,
}

impl LoopObserver<FaultPlan> for FaultProgress<'_> {
    fn tick(&self, plan: &FaultPlan) {
        self.observer.event(CrashEvent::Faulting(ExplorationProgress {
            verified: plan.tested.tried,
            total: plan.tested.planned,
            failing: plan.tested.failing as usize,
            elapsed: self.begun.elapsed(),
        }));
    }
}

#[cfg(test)]
mod tests {
    use retake_crash::operation::{Action, Node, Operation};

    use super::*;

    #[test]
    fn a_directory_is_looked_at_after_the_next_promise_and_at_the_end() {
        let operation = || {
            let action = Action::Sync { node: Node::ROOT, data_only: false };
            Entry::Operation(Operation { task: 1, call: String::new(), action })
        };
        let ack = || Entry::Acknowledgement(b"x".to_vec());
        let entries = vec![operation(), ack(), operation(), operation(), ack(), ack(), operation()];
        let recording = Recording {
            root: "/r".into(),
            initial: Vec::new(),
            entries,
            stacks: Default::default(),
            left_running: Default::default(),
            outside: Default::default(),
            initial_is_copy: false,
        };
        let at = |before| -> Vec<u32> {
            moments(&recording, before).iter().map(|point| point.operation).collect()
        };
        assert_eq!((at(0), at(1), at(3)), (vec![1, 4], vec![3, 4], vec![4]));
        assert_eq!(
            [0, 1, 2, 3, 4].map(|operation| acks_by(&recording, operation)),
            [0, 1, 1, 3, 3]
        );
    }
}
