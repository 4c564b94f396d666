//! The same loop with steps that other machines run: what can begin is submitted as requests, and
//! what comes back is reported to the plan as if a worker here had run it.

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

/// How many of the runs under way are where, for the live line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteStatus {
    pub queued: usize,
    pub running: usize,
    /// The machines that run something, as far as they are known.
    pub nodes: Vec<String>,
}

/// Runs requests on other machines. Intents are committed before anything is submitted, and each
/// result is taken into the record exactly once, by this process or a later one.
pub trait RemoteExecutor {
    type Error;

    /// Finds out what [`capacity`](Self::capacity) depends on, before anything is submitted.
    fn begin(&mut self, _worker: &mut Worker) -> Result<(), Self::Error> {
        Ok(())
    }

    /// How many runs may be under way at once.
    fn capacity(&self) -> usize;

    /// How many runs are submitted together at most.
    fn batch_size(&self) -> usize {
        usize::MAX
    }

    /// Submits runs; each comes back from [`poll`](Self::poll) with its number.
    fn submit(
        &mut self,
        worker: &mut Worker,
        runs: Vec<(usize, PreparedRun)>,
    ) -> Result<(), Self::Error>;

    /// The runs that have come back since, as they are in the record.
    fn poll(&mut self, worker: &mut Worker) -> Result<Vec<(usize, Run)>, Self::Error>;

    /// Asks for the end of everything that is under way; the outcomes still come back.
    fn cancel(&mut self) -> Result<(), Self::Error>;

    /// Whether a signal asked for the end and those who run the rest do not answer: nothing more
    /// comes back in time. A later process collects it.
    fn is_left(&self) -> bool {
        false
    }

    /// Finds out with the next poll where every run is, however recently that was found out.
    fn refresh_status(&mut self) {}

    /// How long to wait before the next poll.
    fn pause(&self) -> Duration;

    fn status(&self) -> RemoteStatus;

    /// Whether what prepares a loop runs on other machines, too.
    fn runs_setup(&self) -> bool {
        false
    }

    /// Removes what is no longer needed on the shared directory.
    fn finish(&mut self, worker: &mut Worker) -> Result<(), Self::Error>;

    /// Excludes every other process, also on other machines, from making something in the shared
    /// directory, until the file is dropped.
    fn lock_shared(&self) -> Result<Option<File>, Self::Error> {
        Ok(None)
    }

    /// Waits for the runs of a kind that an earlier process submitted and did not live to collect,
    /// and takes their results into the record. Needs no executor: the record knows where they are.
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

/// How far collecting the runs of an earlier process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EarlierRuns {
    /// There are some, and they are waited for.
    Found,
    /// How many are still to come.
    Left(usize),
    /// All of one submission have come.
    Collected,
}

/// The executor of a program that has none.
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

/// A question whose answers outlive the process that asks it: a process that asks the same after
/// that process died gets the runs it had submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// A hash of everything that the answers depend on.
    pub hash: String,
    /// The loop that the runs belong to.
    pub loop_id: LoopId,
}

/// An executor whose runs read a common file and can be taken over from a submitter that died.
pub trait ResumableExecutor: RemoteExecutor {
    /// This program, under a path that every machine sees.
    fn program(&self) -> Result<PathBuf, Self::Error>;

    /// What the next submissions belong to, and the contents of a file that each of their runs can
    /// read. Gives the path at which the runs find it. Until [`finish`](RemoteExecutor::finish) the
    /// submissions can be taken over.
    fn ask(&mut self, question: Question, input: Vec<u8>) -> Result<PathBuf, Self::Error>;

    /// Takes over what submitters that died had asked with this hash, and gives their loops. Runs of
    /// theirs that are still under way count in [`status`](RemoteExecutor::status);
    /// [`poll`](RemoteExecutor::poll) takes them into the record and does not return them.
    fn take_over(&mut self, worker: &mut Worker, hash: &str) -> Result<Vec<LoopId>, Self::Error>;
}

/// What a loop has to say about its steps when they run on other machines.
pub trait RemoteSteps<P: LoopPlan, E> {
    /// The run that a step asks for.
    fn prepare(&mut self, plan: &P, step: &P::Step) -> Result<PreparedRun, E>;

    /// The report of a step whose run has come back; `None` for a run without a result of its own,
    /// which the plan is not told of.
    fn report(&mut self, worker: &mut Worker, step: &P::Step, run: &Run) -> Option<P::Report>;

    /// How many steps may be under way at once, of those that the executor can take. A plan whose
    /// next steps depend on reports wants few.
    fn limit(&self, _plan: &P, capacity: usize) -> usize {
        capacity
    }

    /// The plan has taken the report of a step.
    fn reported(&mut self, _worker: &mut Worker, _plan: &mut P, _step: &P::Step) {}

    /// Called while runs are under way.
    fn tick(&mut self, plan: &P, status: &RemoteStatus);

    /// What to do with the runs that are under way; asked after every tick.
    fn decide(&mut self, _plan: &P, _status: &RemoteStatus) -> UnderWay {
        UnderWay::Keep
    }
}

/// What to do with runs that are under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnderWay {
    #[default]
    Keep,
    /// Find out where each of them is.
    Refresh,
    /// Their results are no longer wanted.
    Cancel,
}

/// Runs one request on another machine, apart from any plan, and waits for it. `None` if a signal asked
/// for the end and those who run it do not answer.
pub fn run_alone<X: RemoteExecutor>(
    worker: &mut Worker,
    executor: &mut X,
    prepared: PreparedRun,
) -> Result<Option<Run>, X::Error> {
    /// No step of a plan has this number.
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
    // A step that was taken from the plan and is not submitted.
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
        // Many small submissions cost more than waiting for a few runs; but what has ended makes room
        // for what is next, whatever takes long.
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
                    // What waits for runs without a result waits in vain.
                    Next::Wait | Next::Done => return Ok(executor.finish(worker)?),
                }
            } else {
                return Ok(executor.finish(worker)?);
            }
        }
        std::thread::sleep(executor.pause());
    }
}
