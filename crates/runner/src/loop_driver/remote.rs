//! Drives a loop whose steps run on other machines: submits steps as requests, and reports returned
//! results to the plan like those of a local worker.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use retake_types::{Kind, LoopId, Run};

use super::{Driven, LoopObserver, LoopPlan, Next};
use crate::prepare::PreparedRun;
use crate::signals;
use crate::worker::Worker;

/// Counts of submitted runs by state, for the live line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteStatus {
    pub queued: usize,
    pub running: usize,
    /// The machines in use, as far as known.
    pub nodes: Vec<String>,
}

/// Runs requests on other machines. Intents are committed before submission, and each result is
/// imported exactly once, by this process or a later one.
pub trait RemoteExecutor {
    type Error;

    /// Determines what [`capacity`](Self::capacity) depends on, before any submission.
    fn begin(&mut self, _worker: &mut Worker) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Maximum submitted runs at once.
    fn capacity(&self) -> usize;

    /// Maximum runs per submission.
    fn batch_size(&self) -> usize {
        usize::MAX
    }

    /// Submits runs; [`poll`](Self::poll) returns each with its number.
    fn submit(
        &mut self,
        worker: &mut Worker,
        runs: Vec<(usize, PreparedRun)>,
    ) -> Result<(), Self::Error>;

    /// The runs that have returned since the last poll, as recorded.
    fn poll(&mut self, worker: &mut Worker) -> Result<Vec<(usize, Run)>, Self::Error>;

    /// Cancels all submitted runs; their outcomes still come back.
    fn cancel(&mut self) -> Result<(), Self::Error>;

    /// Whether a signal asked for the end and the scheduler does not respond: no more results come
    /// back in time. A later process collects them.
    fn is_left(&self) -> bool {
        false
    }

    /// Makes the next poll query the state of every run, even if it was queried recently.
    fn refresh_status(&mut self) {}

    /// How long to wait before the next poll.
    fn pause(&self) -> Duration;

    fn status(&self) -> RemoteStatus;

    /// Whether the setup of a loop also runs on other machines.
    fn runs_setup(&self) -> bool {
        false
    }

    /// Removes what is no longer needed on the shared directory.
    fn finish(&mut self, worker: &mut Worker) -> Result<(), Self::Error>;

    /// Locks the shared directory against other processes, also on other machines, until the file
    /// is dropped.
    fn lock_shared(&self) -> Result<Option<File>, Self::Error> {
        Ok(None)
    }

    /// Waits for runs of a kind that a dead process submitted, and imports their results. Needs no
    /// executor, because the record knows where they are.
    fn collect_earlier(
        _worker: &mut Worker,
        _kind: Kind,
        _progress: &mut dyn FnMut(EarlierRuns),
    ) -> Result<(), Self::Error>
    where
        Self: Sized,
    {
        Ok(())
    }
}

/// The progress of collecting the runs of an earlier process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EarlierRuns {
    /// There are some; waiting for them.
    Found,
    /// How many are missing.
    Left(usize),
    /// All runs of one submission have returned.
    Collected,
}

/// The executor of a program without remote execution.
#[derive(Debug)]
pub enum NoRemoteExecutor {}

impl RemoteExecutor for NoRemoteExecutor {
    type Error = Infallible;

    fn capacity(&self) -> usize {
        match *self {}
    }

    fn submit(&mut self, _: &mut Worker, _: Vec<(usize, PreparedRun)>) -> Result<(), Infallible> {
        match *self {}
    }

    fn poll(&mut self, _: &mut Worker) -> Result<Vec<(usize, Run)>, Infallible> {
        match *self {}
    }

    fn cancel(&mut self) -> Result<(), Infallible> {
        match *self {}
    }

    fn pause(&self) -> Duration {
        match *self {}
    }

    fn status(&self) -> RemoteStatus {
        match *self {}
    }

    fn finish(&mut self, _: &mut Worker) -> Result<(), Infallible> {
        match *self {}
    }
}

/// Identifies work whose results outlive the submitting process: after its death, a process with
/// the same question gets the submitted runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// A hash of everything that the results depend on.
    pub hash: String,
    /// The loop that the runs belong to.
    pub loop_id: LoopId,
}

/// An executor whose runs read a common file, and whose runs can be taken over from a dead
/// submitter.
pub trait ResumableExecutor: RemoteExecutor {
    /// This program, at a path that every machine sees.
    fn program(&self) -> Result<PathBuf, Self::Error>;

    /// Sets the question of the next submissions, and the content of a file that their runs read.
    /// Returns the path of that file for the runs. Until [`finish`](RemoteExecutor::finish) the
    /// submissions can be taken over.
    fn ask(&mut self, question: Question, input: Vec<u8>) -> Result<PathBuf, Self::Error>;

    /// Takes over what dead submitters had asked with this hash, and returns their loops. Their
    /// unfinished runs count in [`status`](RemoteExecutor::status); [`poll`](RemoteExecutor::poll)
    /// imports them without returning them.
    fn take_over(&mut self, worker: &mut Worker, hash: &str) -> Result<Vec<LoopId>, Self::Error>;
}

/// Defines the steps of a loop for other machines.
pub trait RemoteSteps<P: LoopPlan, E> {
    /// The run of a step.
    fn prepare(&mut self, plan: &P, step: &P::Step) -> Result<PreparedRun, E>;

    /// The report of a step whose run has returned; `None` for a run without a result of its own,
    /// which is not reported to the plan.
    fn report(&mut self, worker: &mut Worker, step: &P::Step, run: &Run) -> Option<P::Report>;

    /// Maximum submitted steps at once, given the executor's capacity. A plan whose next steps
    /// depend on reports uses few.
    fn limit(&self, _plan: &P, capacity: usize) -> usize {
        capacity
    }

    /// The plan has processed the report of a step.
    fn reported(&mut self, _worker: &mut Worker, _plan: &mut P, _step: &P::Step) {}

    /// Called while submitted runs are unfinished.
    fn tick(&mut self, plan: &P, status: &RemoteStatus);

    /// What to do with unfinished runs; called after every tick.
    fn decide(&mut self, _plan: &P, _status: &RemoteStatus) -> UnderWay {
        UnderWay::Keep
    }
}

/// What to do with unfinished runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnderWay {
    #[default]
    Keep,
    /// Query the state of each run.
    Refresh,
    /// Cancel them: their results are no longer needed.
    Cancel,
}

/// Runs one request on another machine, outside of any plan, and waits for it. `None` if a signal
/// asked for the end and the scheduler does not respond.
pub fn run_alone<X: RemoteExecutor>(
    worker: &mut Worker,
    executor: &mut X,
    prepared: PreparedRun,
) -> Result<Option<Run>, X::Error> {
    /// The number of a run outside of any plan.
    const ALONE: usize = usize::MAX;
    executor.submit(worker, vec![(ALONE, prepared)])?;
    loop {
        signals::stop_if_asked();
        if signals::received().is_some() {
            executor.cancel()?;
        }
        let found = executor.poll(worker)?.into_iter().find(|(number, _)| *number == ALONE);
        if let Some((_, run)) = found {
            return Ok(Some(run));
        }
        if signals::received().is_some() && executor.is_left() {
            return Ok(None);
        }
        std::thread::sleep(executor.pause());
    }
}

/// Runs the plan to its end on other machines.
pub fn drive<P, X, E>(
    mut plan: P,
    worker: &mut Worker,
    executor: &mut X,
    steps: &mut impl RemoteSteps<P, E>,
    observer: &impl LoopObserver<P>,
) -> Driven<P, E>
where
    P: LoopPlan,
    X: RemoteExecutor,
    E: From<X::Error>,
{
    let failure = submit_and_collect(&mut plan, worker, executor, steps, observer).err();
    Driven { plan, failure, cancelled: signals::received().is_some() }
}

fn submit_and_collect<P, X, E>(
    plan: &mut P,
    worker: &mut Worker,
    executor: &mut X,
    steps: &mut impl RemoteSteps<P, E>,
    observer: &impl LoopObserver<P>,
) -> Result<(), E>
where
    P: LoopPlan,
    X: RemoteExecutor,
    E: From<X::Error>,
{
    let mut under_way: HashMap<usize, P::Step> = HashMap::new();
    let mut submitted = 0;
    // A step taken from the plan but not submitted yet.
    let mut held: Option<P::Step> = None;
    executor.begin(worker)?;
    loop {
        signals::stop_if_asked();
        let stopping = signals::received().is_some();
        if stopping {
            executor.cancel()?;
        }
        let mut runs = Vec::new();
        let limit = steps.limit(plan, executor.capacity());
        let batch = executor.batch_size();
        // Larger submissions cost less than many small ones, so it waits for a few runs to end; but
        // finished runs make room for new ones, even while a long one runs.
        let room = limit.saturating_sub(under_way.len());
        if !stopping && room >= batch.min((limit / 8).max(1)) {
            while under_way.len() < limit && runs.len() < batch {
                let next = held.take().map_or_else(|| plan.next(Instant::now()), Next::Run);
                let Next::Run(step) = next else { break };
                runs.push((submitted, steps.prepare(plan, &step)?));
                under_way.insert(submitted, step);
                submitted += 1;
            }
        }
        if !runs.is_empty() {
            executor.submit(worker, runs)?;
        }
        for (number, run) in executor.poll(worker)? {
            let Some(step) = under_way.remove(&number) else { continue };
            if let Some(report) = steps.report(worker, &step, &run) {
                plan.report(&step, report);
                steps.reported(worker, plan, &step);
                observer.reported(plan, &step);
            }
        }
        if stopping && executor.is_left() {
            return Ok(());
        }
        let status = executor.status();
        steps.tick(plan, &status);
        match steps.decide(plan, &status) {
            UnderWay::Keep => {}
            UnderWay::Refresh => executor.refresh_status(),
            UnderWay::Cancel => executor.cancel()?,
        }
        observer.tick(plan);
        if under_way.is_empty() {
            if !stopping {
                match plan.next(Instant::now()) {
                    Next::Run(step) => held = Some(step),
                    Next::Delay(_) => {}
                    // No run is left that could wake the plan.
                    Next::Wait | Next::Done => return Ok(executor.finish(worker)?),
                }
            } else {
                return Ok(executor.finish(worker)?);
            }
        }
        std::thread::sleep(executor.pause());
    }
}
