//! An exploration whose states are checked on other machines: ranges of states are submitted as
//! runs, and their answers are combined as if the states had been checked here.
//!
//! Failures are explained here, afterwards, as always. A share without an answer is
//! neither clean nor failing: its states were not checked, and the report says so.

use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use retake_crash::model::{CrashStates, Model};
use retake_engine::quote;
use retake_runner::context::RunContext;
use retake_runner::loop_driver::remote::{
    self, Question, RemoteStatus, RemoteSteps, ResumableExecutor, UnderWay,
};
use retake_runner::loop_driver::{LoopPlan, Next};
use retake_runner::prepare::PreparedRun;
use retake_runner::signals;
use retake_runner::worker::Worker;
use retake_types::request::{CommandRequest, LoopPosition};
use retake_types::{Kind, LoopId, RefusalReason, Run, RunRequest, StopReason};

use crate::check::Check;
use crate::check_worker::CheckWorker;
use crate::error::CrashTestError;
use crate::event::{CrashEvent, ExplorationProgress};
use crate::exploration::{Exploration, Explored, acks};
use crate::exploration_plan::{FailingState, without_tree};
use crate::recovery_crashes::RecoveredState;
use crate::share_answers::{SHARE_LABEL, ShareAnswer, ShareAnswers, read_answer, was_cancelled};
use crate::share_failure::ShareFailure;
use crate::state_range::{self, StateRange};

/// How much later than its last check a share may end.
const SLACK: Duration = Duration::from_secs(30);

/// The task of a machine that checks a share.
#[derive(Clone, Copy, Debug)]
pub struct ShareCommand<'a> {
    /// The log of the recording.
    pub log: &'a Path,
    pub range: StateRange,
    pub model: Model,
    pub seed: u64,
    pub check: &'a Check,
    pub recovery: bool,
    /// No check begins after this time.
    pub until: Option<Timestamp>,
    /// Number of parallel checks; by default the processors that the scheduler assigns.
    pub jobs: Option<u16>,
}

/// The target for shares, and the command for a share.
pub struct RemoteExploration<'a, X> {
    pub executor: X,
    /// Runs the scheduler's programs and collects results.
    pub worker: Worker,
    pub context: &'a RunContext,
    pub jobs: Option<u16>,
    /// The arguments that make this program check a share.
    pub arguments: fn(&ShareCommand<'_>) -> Vec<String>,
}

/// Checks the states of one exploration on other machines.
pub trait RemoteExplorer {
    /// `took` is the duration of one check on this machine.
    fn explore(
        &mut self,
        exploration: &Exploration<'_>,
        loop_id: LoopId,
        worker: &mut CheckWorker,
        took: Duration,
    ) -> Result<Explored, CrashTestError>;
}

impl<X> RemoteExplorer for RemoteExploration<'_, X>
where
    X: ResumableExecutor,
    X::Error: fmt::Display,
{
    fn explore(
        &mut self,
        exploration: &Exploration<'_>,
        loop_id: LoopId,
        worker: &mut CheckWorker,
        took: Duration,
    ) -> Result<Explored, CrashTestError> {
        let begun = Instant::now();
        let states = exploration.states()?;
        let coverage = states.coverage().clone();
        if coverage.cut_short {
            exploration.observer.event(CrashEvent::PhaseOver);
            self.executor.finish(&mut self.worker).map_err(refused)?;
            return Ok(Explored { coverage, ..Explored::default() });
        }
        let total = coverage.distinct_states();
        let size = state_range::share_size(total, begun.elapsed(), took);
        let log = retake_crash::log::write(Vec::new(), exploration.recording);
        let log = log.map_err(|error| CrashTestError::Remote(error.to_string()))?;
        let hash = question_hash(exploration, &log);
        let answers = self.take_over(exploration, &hash, total)?;
        let known: Vec<StateRange> = answers.answers.iter().map(|(range, _)| *range).collect();
        let ranges = state_range::uncovered(total, &known, size);
        let answers = if ranges.is_empty() || exploration.is_over() {
            self.executor.finish(&mut self.worker).map_err(refused)?;
            answers
        } else {
            let question = Question { hash, loop_id };
            let log = self.executor.ask(question, log).map_err(refused)?;
            let plan = SharePlan::new(ranges, answers, exploration.deadline);
            self.submit(exploration, plan, loop_id, log, total)?
        };
        exploration.observer.event(CrashEvent::PhaseOver);
        let answers = answers.checked()?;
        let failing = rebuild_failing(exploration, states, &answers, worker)?;
        let verified = answers.verified();
        Ok(Explored {
            coverage,
            verified,
            failing,
            complete: verified == total,
            other_paths: answers.other_paths(),
            lost: answers.lost,
        })
    }
}

impl<X> RemoteExploration<'_, X>
where
    X: ResumableExecutor,
    X::Error: fmt::Display,
{
    /// The complete answers to the same question from submitters that died. Their submissions
    /// can be taken over again until everything is answered.
    fn take_over(
        &mut self,
        exploration: &Exploration<'_>,
        hash: &str,
        total: u64,
    ) -> Result<ShareAnswers, CrashTestError> {
        let mut answers = ShareAnswers::default();
        let loops = self.executor.take_over(&mut self.worker, hash).map_err(refused)?;
        if loops.is_empty() {
            return Ok(answers);
        }
        loops.iter().for_each(|_| exploration.observer.event(CrashEvent::TakenOver));
        self.wait(exploration, total)?;
        for loop_id in loops {
            let store = self.worker.store()?;
            let runs = store.runs_of_loop(loop_id)?;
            answers.adopt(store, &runs, total);
            store.finish_loop(loop_id, &StopReason::Interrupted)?;
        }
        Ok(answers)
    }

    /// Waits until everything that was taken over is in the record.
    fn wait(&mut self, exploration: &Exploration<'_>, total: u64) -> Result<(), CrashTestError> {
        let begun = Instant::now();
        let mut limit = TimeLimit::default();
        let shares = under_way(&self.executor.status());
        loop {
            signals::stop_if_asked();
            if signals::received().is_some() {
                self.executor.cancel().map_err(not_followed)?;
            }
            self.executor.poll(&mut self.worker).map_err(not_followed)?;
            let status = self.executor.status();
            if under_way(&status) == 0 || self.executor.is_left() {
                return Ok(());
            }
            let progress =
                ExplorationProgress { verified: 0, total, failing: 0, elapsed: begun.elapsed() };
            let finished_shares = shares.saturating_sub(under_way(&status));
            let event =
                CrashEvent::CheckingRemotely { progress, finished_shares, shares, status: &status };
            exploration.observer.event(event);
            match limit.decide(exploration.is_over(), &status) {
                UnderWay::Keep => {}
                UnderWay::Refresh => self.executor.refresh_status(),
                UnderWay::Cancel => self.executor.cancel().map_err(not_followed)?,
            }
            std::thread::sleep(self.executor.pause());
        }
    }

    fn submit(
        &mut self,
        exploration: &Exploration<'_>,
        plan: SharePlan,
        loop_id: LoopId,
        log: PathBuf,
        total: u64,
    ) -> Result<ShareAnswers, CrashTestError> {
        let mut steps = ShareSteps {
            exploration,
            program: self.executor.program().map_err(refused)?,
            log,
            context: self.context,
            jobs: self.jobs,
            arguments: self.arguments,
            loop_id,
            total,
            prepared: 0,
            begun: Instant::now(),
            submitted: false,
            limit: TimeLimit::default(),
        };
        let driven = remote::drive(plan, &mut self.worker, &mut self.executor, &mut steps, &());
        match driven.failure {
            None => Ok(driven.plan.answers),
            Some(ShareStepError::Refused(reasons)) => Err(CrashTestError::Refused(reasons)),
            Some(ShareStepError::Executor(error)) if steps.submitted => Err(not_followed(error)),
            Some(ShareStepError::Executor(error)) => Err(refused(error)),
        }
    }
}

fn refused(error: impl fmt::Display) -> CrashTestError {
    CrashTestError::Remote(error.to_string())
}

fn not_followed(error: impl fmt::Display) -> CrashTestError {
    CrashTestError::NotFollowed(error.to_string())
}

fn under_way(status: &RemoteStatus) -> usize {
    status.queued + status.running
}

/// Cancels active shares when the time is used up.
#[derive(Debug, Default)]
struct TimeLimit {
    refreshed: bool,
    cancelled: bool,
}

impl TimeLimit {
    /// A running share ends by itself and answers; a queued one would have nothing to do. The state
    /// of the shares is queried once before it is relied on.
    fn decide(&mut self, over: bool, status: &RemoteStatus) -> UnderWay {
        if !over || self.cancelled || signals::received().is_some() {
            return UnderWay::Keep;
        }
        if !self.refreshed {
            self.refreshed = true;
            return UnderWay::Refresh;
        }
        if status.running > 0 {
            return UnderWay::Keep;
        }
        self.cancelled = true;
        UnderWay::Cancel
    }
}

/// The plan of an exploration on other machines: the next range to submit, and the answers.
/// Starts no process and reads no clock.
struct SharePlan {
    ranges: VecDeque<StateRange>,
    shares: usize,
    under_way: usize,
    finished: usize,
    answers: ShareAnswers,
    deadline: Option<Instant>,
}

impl SharePlan {
    fn new(ranges: Vec<StateRange>, answers: ShareAnswers, deadline: Option<Instant>) -> Self {
        let (shares, ranges) = (ranges.len(), ranges.into());
        Self { ranges, shares, under_way: 0, finished: 0, answers, deadline }
    }
}

/// The result of a share.
enum ShareReport {
    Answered(ShareAnswer),
    Lost(ShareFailure),
    /// It was cancelled because it was no longer needed.
    Unwanted,
}

impl LoopPlan for SharePlan {
    type Step = StateRange;
    type Report = ShareReport;

    fn next(&mut self, now: Instant) -> Next<StateRange> {
        if self.deadline.is_none_or(|deadline| now < deadline)
            && let Some(range) = self.ranges.pop_front()
        {
            self.under_way += 1;
            return Next::Run(range);
        }
        if self.under_way > 0 { Next::Wait } else { Next::Done }
    }

    fn report(&mut self, range: &StateRange, report: ShareReport) {
        self.under_way -= 1;
        self.finished += 1;
        match report {
            ShareReport::Answered(answer) => self.answers.answers.push((*range, answer)),
            ShareReport::Lost(failure) => self.answers.lost.push((*range, failure)),
            ShareReport::Unwanted => {}
        }
    }
}

enum ShareStepError<X> {
    Executor(X),
    Refused(Vec<RefusalReason>),
}

impl<X> From<X> for ShareStepError<X> {
    fn from(error: X) -> Self {
        Self::Executor(error)
    }
}

/// Shares as runs on other machines.
struct ShareSteps<'a> {
    exploration: &'a Exploration<'a>,
    program: PathBuf,
    log: PathBuf,
    context: &'a RunContext,
    jobs: Option<u16>,
    arguments: fn(&ShareCommand<'_>) -> Vec<String>,
    loop_id: LoopId,
    /// The number of all states.
    total: u64,
    prepared: u64,
    begun: Instant,
    /// Whether something is on other machines.
    submitted: bool,
    limit: TimeLimit,
}

impl ShareSteps<'_> {
    fn request(&mut self, range: StateRange) -> RunRequest {
        let Exploration { check, deadline, recovery, model, options, .. } = self.exploration;
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let until = left.and_then(|left| Timestamp::now().checked_add(left).ok());
        let arguments = (self.arguments)(&ShareCommand {
            log: &self.log,
            range,
            model: *model,
            seed: options.seed,
            check,
            recovery: recovery.is_some(),
            until,
            jobs: self.jobs,
        });
        let text = quote(["retake"].into_iter().chain(arguments.iter().map(String::as_str)));
        let program = self.program.display().to_string();
        let command = CommandRequest::arguments(text, [program].into_iter().chain(arguments));
        self.prepared += 1;
        let position =
            LoopPosition { kind: Kind::Crash, id: self.loop_id, iteration: self.prepared };
        let mut request = RunRequest::new(position, command, check.directory());
        // The answer is read from the record, so its size in the result is unlimited.
        request.output.max_bytes = Some(u64::MAX);
        request.label(SHARE_LABEL, range.to_string());
        request.set_timeout(left.map(|left| left + check.timeout() + SLACK));
        request
    }
}

impl<X> RemoteSteps<SharePlan, ShareStepError<X>> for ShareSteps<'_> {
    fn prepare(
        &mut self,
        _plan: &SharePlan,
        range: &StateRange,
    ) -> Result<PreparedRun, ShareStepError<X>> {
        let request = self.request(*range);
        PreparedRun::new(request, self.context)
            .map_err(|refused| ShareStepError::Refused(refused.reasons))
    }

    fn report(
        &mut self,
        worker: &mut Worker,
        _range: &StateRange,
        run: &Run,
    ) -> Option<ShareReport> {
        let answer = match worker.store() {
            Ok(store) => read_answer(store, run, self.total),
            Err(error) => Err(ShareFailure::UnreadableOutput(error.to_string())),
        };
        let unwanted = self.limit.cancelled || signals::received().is_some();
        Some(match answer {
            Ok(answer) => ShareReport::Answered(answer),
            Err(_) if was_cancelled(run) && unwanted => ShareReport::Unwanted,
            Err(_) if was_cancelled(run) => ShareReport::Lost(ShareFailure::CancelledByOthers),
            Err(failure) => ShareReport::Lost(failure),
        })
    }

    fn tick(&mut self, plan: &SharePlan, status: &RemoteStatus) {
        self.submitted = true;
        self.exploration.observer.event(CrashEvent::CheckingRemotely {
            progress: ExplorationProgress {
                verified: plan.answers.verified(),
                total: self.total,
                failing: plan.answers.failing(),
                elapsed: self.begun.elapsed(),
            },
            finished_shares: plan.finished,
            shares: plan.shares,
            status,
        });
    }

    fn decide(&mut self, _plan: &SharePlan, status: &RemoteStatus) -> UnderWay {
        self.limit.decide(self.exploration.is_over(), status)
    }
}

/// Rebuilds the failing states. Failures during recovery are determined once more, here.
fn rebuild_failing(
    exploration: &Exploration<'_>,
    states: CrashStates<'_>,
    answers: &ShareAnswers,
    worker: &mut CheckWorker,
) -> Result<Vec<FailingState>, CrashTestError> {
    let failing = answers.numbers(|answer| &answer.failing);
    let failing_recovery = answers.numbers(|answer| &answer.failing_recovery);
    let last = failing.last().max(failing_recovery.last()).copied().unwrap_or(0);
    let acks = acks(exploration.recording);
    let mut found = Vec::new();
    for (number, state) in (1..=last).zip(states) {
        if failing.binary_search(&number).is_ok() {
            found.push(FailingState { number, state: without_tree(&state), failure: None });
        } else if failing_recovery.binary_search(&number).is_ok()
            && let Some(recovery) = exploration.recovery
        {
            let acks = &acks[..state.acks.min(acks.len())];
            recovery.mark_passed(&state, acks.len());
            recovery.test(worker, &RecoveredState { number, state: &state, acks })?;
        }
    }
    if let Some(recovery) = exploration.recovery {
        recovery.set_remote(answers.during_recovery(), answers.recovery_changes_nothing());
    }
    Ok(found)
}

/// Hashes everything that determines the answers.
fn question_hash(exploration: &Exploration<'_>, log: &[u8]) -> String {
    let Exploration { model, options, check, recovery, .. } = exploration;
    let mut hash = blake3::Hasher::new();
    let words = [
        env!("CARGO_PKG_VERSION").as_bytes(),
        log,
        model.name().as_bytes(),
        &options.seed.to_le_bytes(),
        check.command().as_bytes(),
        &check.timeout().as_millis().to_le_bytes(),
        check.directory().as_os_str().as_encoded_bytes(),
        &[u8::from(recovery.is_some())],
    ];
    for word in words {
        hash.update(&(word.len() as u64).to_le_bytes());
        hash.update(word);
    }
    hash.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: u64, to: u64) -> StateRange {
        StateRange { from, to }
    }

    fn answer(verified: u64, failing: &[u64]) -> ShareAnswer {
        ShareAnswer {
            distinct: Some(20),
            verified,
            complete: true,
            failing: failing.to_vec(),
            failing_recovery: Vec::new(),
            during_recovery: 0,
            recovery_changes_nothing: false,
            other_path: None,
        }
    }

    #[test]
    fn every_range_is_submitted_once_and_its_report_is_kept() {
        let now = Instant::now();
        let ranges = vec![range(1, 10), range(11, 16), range(17, 20)];
        let mut plan = SharePlan::new(ranges, ShareAnswers::default(), None);
        for expected in [range(1, 10), range(11, 16), range(17, 20)] {
            assert_eq!(plan.next(now), Next::Run(expected));
        }
        assert_eq!(plan.next(now), Next::Wait);
        plan.report(&range(11, 16), ShareReport::Answered(answer(6, &[12])));
        plan.report(&range(17, 20), ShareReport::Lost(ShareFailure::CancelledByOthers));
        assert_eq!(plan.next(now), Next::Wait);
        plan.report(&range(1, 10), ShareReport::Unwanted);
        assert_eq!(plan.next(now), Next::Done);
        assert_eq!((plan.answers.verified(), plan.answers.failing()), (6, 1));
        assert_eq!(plan.answers.lost, [(range(17, 20), ShareFailure::CancelledByOthers)]);
    }

    #[test]
    fn nothing_is_submitted_after_the_deadline() {
        let now = Instant::now();
        let mut plan = SharePlan::new(vec![range(1, 10)], ShareAnswers::default(), Some(now));
        assert_eq!(plan.next(now), Next::Done);
    }

    #[test]
    fn when_the_time_is_used_up_only_what_waits_is_cancelled() {
        let (waits, runs) = (
            RemoteStatus { queued: 2, ..RemoteStatus::default() },
            RemoteStatus { queued: 1, running: 1, ..RemoteStatus::default() },
        );
        let mut limit = TimeLimit::default();
        assert_eq!(limit.decide(false, &waits), UnderWay::Keep);
        assert_eq!(limit.decide(true, &waits), UnderWay::Refresh);
        assert_eq!(limit.decide(true, &runs), UnderWay::Keep);
        assert_eq!(limit.decide(true, &waits), UnderWay::Cancel);
        assert_eq!(limit.decide(true, &waits), UnderWay::Keep, "once is enough");
    }
}
