//! The loop driver: asks a plan for the next step, runs it on a worker, passes the report back, and
//! repeats until the plan is done, a signal ends it, or a failure leaves nothing to run.
//!
//! A plan is a pure state machine: it starts no process, reads no clock and opens no record. The
//! driver owns the workers' threads, the waiting, the cancellation and the ticks that refresh a
//! live line. Each loop defines its steps and how to run them: an agent's iteration, a cell of a
//! matrix, a point of a bisection, a crash state.
//!
//! [`drive`] runs steps on this machine; [`remote::drive`] runs them on others.

pub mod remote;

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::signals;

/// How often a waiting worker checks whether to stop.
const LOOK: Duration = Duration::from_millis(100);

/// How often the observer is called while no step ends.
const TICK: Duration = Duration::from_secs(1);

/// The next action of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<S> {
    Run(S),
    /// Nothing can start before a running step has reported.
    Wait,
    /// Nothing starts before this much time has passed; the plan is asked again meanwhile, because
    /// other events may change its answer.
    Delay(Duration),
    Done,
}

/// The state machine of a loop.
pub trait LoopPlan {
    type Step;
    /// The result of running a step.
    type Report;

    /// The action at this time. Called after every report, and while waiting.
    fn next(&mut self, now: Instant) -> Next<Self::Step>;

    fn report(&mut self, step: &Self::Step, report: Self::Report);
}

/// Why a step gave no report.
#[derive(Debug)]
pub enum StepError<E> {
    /// It was cancelled together with the loop: no result, and no more steps start.
    Cancelled,
    /// No more steps can run.
    Failed(E),
}

/// A finished loop.
#[derive(Debug)]
pub struct Driven<P, E> {
    pub plan: P,
    /// The failure that ended the loop, if any.
    pub failure: Option<E>,
    /// A signal, or the loop itself, ended it before the plan was done.
    pub cancelled: bool,
}

/// Observes a loop, called from any of its threads with the plan locked.
pub trait LoopObserver<P: LoopPlan>: Sync {
    /// A step has reported, and the plan has processed the report.
    fn reported(&self, _plan: &P, _step: &P::Step) {}

    /// Time has passed, or something has changed.
    fn tick(&self, _plan: &P) {}
}

/// Observes nothing.
impl<P: LoopPlan> LoopObserver<P> for () {}

/// Runs the steps of a loop on its workers.
pub trait StepRunner<P: LoopPlan, W>: Sync {
    type Error: Send;

    /// Runs one step on one worker, given by number.
    fn run(
        &self,
        worker: &mut W,
        number: usize,
        step: &P::Step,
    ) -> Result<P::Report, StepError<Self::Error>>;

    /// The plan, still locked, has processed the report of a step of this worker: follow-up work
    /// can use the worker.
    fn reported(&self, _worker: &mut W, _plan: &mut P, _step: &P::Step) {}

    /// Whether work of the last step is pending, to be done with the next step or when the worker
    /// [settles](Self::settle).
    fn holds(&self, _worker: &W) -> bool {
        false
    }

    /// Completes pending work. Called before the worker waits, and when its loop ends.
    fn settle(&self, _worker: &mut W) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Runs steps with a function.
struct RunBy<F>(F);

impl<P, W, E, F> StepRunner<P, W> for RunBy<F>
where
    P: LoopPlan,
    E: Send,
    F: Fn(&mut W, usize, &P::Step) -> Result<P::Report, StepError<E>> + Sync,
{
    type Error = E;

    fn run(
        &self,
        worker: &mut W,
        number: usize,
        step: &P::Step,
    ) -> Result<P::Report, StepError<E>> {
        (self.0)(worker, number, step)
    }
}

/// State shared by the threads of a loop.
struct Shared<P, E> {
    plan: Mutex<P>,
    changed: Condvar,
    state: Mutex<State<E>>,
    /// Notified when a worker leaves.
    left: Condvar,
}

/// A thread's answer when it asks for a step.
enum Asked<S> {
    Run(S),
    /// It has to wait.
    Later(Duration),
    /// There is none any more.
    Over,
}

struct State<E> {
    working: usize,
    stop: bool,
    cancelled: bool,
    failure: Option<E>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the plan to its end on all workers at once. `execute` runs one step on one worker, given by
/// number.
pub fn drive<P, W, E>(
    plan: P,
    workers: &mut [W],
    observer: &impl LoopObserver<P>,
    execute: impl Fn(&mut W, usize, &P::Step) -> Result<P::Report, StepError<E>> + Sync,
) -> Driven<P, E>
where
    P: LoopPlan + Send,
    P::Step: Send,
    P::Report: Send,
    W: Send,
    E: Send,
{
    drive_steps(plan, workers, observer, &RunBy(execute))
}

/// The same for a loop with follow-up work after a report.
pub fn drive_steps<P, W, R>(
    plan: P,
    workers: &mut [W],
    observer: &impl LoopObserver<P>,
    runner: &R,
) -> Driven<P, R::Error>
where
    P: LoopPlan + Send,
    P::Step: Send,
    P::Report: Send,
    W: Send,
    R: StepRunner<P, W>,
{
    let shared = Shared {
        plan: Mutex::new(plan),
        changed: Condvar::new(),
        state: Mutex::new(State {
            working: workers.len(),
            stop: false,
            cancelled: false,
            failure: None,
        }),
        left: Condvar::new(),
    };
    observer.tick(&lock(&shared.plan));
    std::thread::scope(|scope| {
        let shared = &shared;
        let work = move |number, worker: &mut W| {
            shared.work(worker, number, observer, runner);
            lock(&shared.state).working -= 1;
            shared.changed.notify_all();
            shared.left.notify_all();
        };
        let mut workers = workers.iter_mut().enumerate();
        // One of them runs in the calling thread, whose memory is cached.
        let here = workers.next();
        for (number, worker) in workers {
            scope.spawn(move || work(number, worker));
        }
        scope.spawn(|| shared.watch(observer));
        if let Some((number, worker)) = here {
            work(number, worker);
        }
    });
    let state = shared.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    let plan = shared.plan.into_inner().unwrap_or_else(PoisonError::into_inner);
    let cancelled = state.cancelled || signals::received().is_some();
    Driven { plan, failure: state.failure, cancelled }
}

/// Runs the plan on one worker in the calling thread, for loops with steps that cannot be sent to
/// another thread.
pub fn drive_here<P: LoopPlan, W, E>(
    mut plan: P,
    worker: &mut W,
    mut execute: impl FnMut(&mut W, &mut P, &P::Step) -> Result<P::Report, StepError<E>>,
    mut waiting: impl FnMut(&mut W, &P, Duration),
) -> Driven<P, E> {
    loop {
        let step = match plan.next(Instant::now()) {
            Next::Run(step) => step,
            // A single worker has nothing to wait for.
            Next::Done | Next::Wait => {
                let cancelled = signals::received().is_some();
                return Driven { plan, failure: None, cancelled };
            }
            Next::Delay(left) => {
                waiting(worker, &plan, left);
                std::thread::sleep(left.min(LOOK));
                continue;
            }
        };
        match execute(worker, &mut plan, &step) {
            Ok(report) => plan.report(&step, report),
            Err(StepError::Cancelled) => return Driven { plan, failure: None, cancelled: true },
            Err(StepError::Failed(failure)) => {
                return Driven { plan, failure: Some(failure), cancelled: false };
            }
        }
    }
}

impl<P: LoopPlan, E> Shared<P, E> {
    fn work<W>(
        &self,
        worker: &mut W,
        number: usize,
        observer: &impl LoopObserver<P>,
        runner: &impl StepRunner<P, W, Error = E>,
    ) {
        let ended = self.run_steps(worker, number, observer, runner);
        // Also after a failure or cancellation.
        let settled = runner.settle(worker).map_err(StepError::Failed);
        if let Err(error) = ended.and(settled) {
            let mut state = lock(&self.state);
            match error {
                StepError::Cancelled => state.cancelled = true,
                StepError::Failed(failure) => {
                    state.failure.get_or_insert(failure);
                }
            }
            state.stop = true;
        }
    }

    fn run_steps<W>(
        &self,
        worker: &mut W,
        number: usize,
        observer: &impl LoopObserver<P>,
        runner: &impl StepRunner<P, W, Error = E>,
    ) -> Result<(), StepError<E>> {
        let mut plan = lock(&self.plan);
        loop {
            let step = match self.ask(&mut plan) {
                Asked::Run(step) => step,
                Asked::Over | Asked::Later(_) if runner.holds(worker) => {
                    drop(plan);
                    runner.settle(worker).map_err(StepError::Failed)?;
                    plan = lock(&self.plan);
                    // The completed step replaced the live line: draw it again.
                    observer.tick(&plan);
                    continue;
                }
                Asked::Over => return Ok(()),
                Asked::Later(wait) => {
                    let waited = self.changed.wait_timeout(plan, wait);
                    plan = waited.unwrap_or_else(PoisonError::into_inner).0;
                    continue;
                }
            };
            drop(plan);
            let report = runner.run(worker, number, &step)?;
            plan = lock(&self.plan);
            plan.report(&step, report);
            runner.reported(worker, &mut plan, &step);
            observer.reported(&plan, &step);
            observer.tick(&plan);
            self.changed.notify_all();
        }
    }

    fn stopped(&self) -> bool {
        lock(&self.state).stop || signals::received().is_some()
    }

    fn ask(&self, plan: &mut P) -> Asked<P::Step> {
        if self.stopped() {
            return Asked::Over;
        }
        match plan.next(Instant::now()) {
            Next::Run(step) => Asked::Run(step),
            Next::Done => Asked::Over,
            Next::Wait => Asked::Later(LOOK),
            Next::Delay(left) => Asked::Later(left.min(LOOK)),
        }
    }

    /// Refreshes the live line while long steps run.
    fn watch(&self, observer: &impl LoopObserver<P>) {
        let mut state = lock(&self.state);
        while state.working > 0 {
            let waited = self.left.wait_timeout(state, TICK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.working > 0 {
                drop(state);
                observer.tick(&lock(&self.plan));
                state = lock(&self.state);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts down; after every third step it waits for all running ones.
    struct Countdown {
        left: u32,
        under_way: u32,
        done: Vec<u32>,
    }

    impl LoopPlan for Countdown {
        type Step = u32;
        type Report = u32;

        fn next(&mut self, _now: Instant) -> Next<u32> {
            match self.left {
                0 if self.under_way == 0 => Next::Done,
                0 => Next::Wait,
                left if left.is_multiple_of(3) && self.under_way > 0 => Next::Wait,
                left => {
                    self.left -= 1;
                    self.under_way += 1;
                    Next::Run(left)
                }
            }
        }

        fn report(&mut self, step: &u32, report: u32) {
            assert_eq!(report, step * 2);
            self.under_way -= 1;
            self.done.push(*step);
        }
    }

    fn countdown(left: u32) -> Countdown {
        Countdown { left, under_way: 0, done: Vec::new() }
    }

    #[test]
    fn every_step_runs_once_and_reports_whatever_the_number_of_workers() {
        for workers in 1..5 {
            let mut workers = vec![(); workers];
            let driven = drive(countdown(20), &mut workers, &(), |(), _, step| {
                Ok::<_, StepError<()>>(step * 2)
            });
            let mut done = driven.plan.done;
            done.sort_unstable();
            assert_eq!(done, (1..=20).collect::<Vec<_>>());
            assert!(!driven.cancelled && driven.failure.is_none());
        }
    }

    /// Defers the end of each step to the next one, or to a wait.
    struct Holding;

    #[derive(Default)]
    struct Holder {
        held: Option<u32>,
        settled: Vec<u32>,
    }

    impl StepRunner<Countdown, Holder> for Holding {
        type Error = ();

        fn run(&self, holder: &mut Holder, _: usize, step: &u32) -> Result<u32, StepError<()>> {
            self.settle(holder).map_err(StepError::Failed)?;
            if *step == 15 {
                return Err(StepError::Cancelled);
            }
            Ok(step * 2)
        }

        fn reported(&self, holder: &mut Holder, _: &mut Countdown, step: &u32) {
            holder.held = Some(*step);
        }

        fn holds(&self, holder: &Holder) -> bool {
            holder.held.is_some()
        }

        fn settle(&self, holder: &mut Holder) -> Result<(), ()> {
            holder.settled.extend(holder.held.take());
            Ok(())
        }
    }

    #[test]
    fn held_results_are_settled_before_a_worker_waits_or_ends() {
        for (steps, workers) in [(12, 1), (12, 3), (17, 1), (17, 2)] {
            let mut holders: Vec<Holder> = (0..workers).map(|_| Holder::default()).collect();
            let driven = drive_steps(countdown(steps), &mut holders, &(), &Holding);
            assert!(holders.iter().all(|holder| holder.held.is_none()));
            let mut settled: Vec<u32> = holders.into_iter().flat_map(|h| h.settled).collect();
            settled.sort_unstable();
            let mut done = driven.plan.done;
            done.sort_unstable();
            assert_eq!(settled, done);
            assert_eq!(driven.cancelled, steps > 15);
        }
    }

    #[test]
    fn a_failure_ends_the_loop_and_is_kept() {
        let mut workers = vec![(); 3];
        let driven = drive(countdown(20), &mut workers, &(), |(), _, step| match step {
            15 => Err(StepError::Failed("no disk")),
            step => Ok(step * 2),
        });
        assert_eq!(driven.failure, Some("no disk"));
        assert!(driven.plan.left > 0, "nothing begins after a failure");
    }

    #[test]
    fn a_cancelled_step_is_no_result() {
        let driven = drive(countdown(5), &mut [()], &(), |(), _, step| match step {
            4 => Err::<u32, StepError<()>>(StepError::Cancelled),
            step => Ok(step * 2),
        });
        assert!(driven.cancelled);
        assert_eq!(driven.plan.done, [5]);
    }

    #[test]
    fn a_single_worker_runs_in_the_calling_thread() {
        let here = std::thread::current().id();
        let driven = drive_here(
            countdown(4),
            &mut (),
            |(), _, step| {
                assert_eq!(std::thread::current().id(), here);
                Ok::<_, StepError<()>>(step * 2)
            },
            |(), _, _| {},
        );
        assert_eq!(driven.plan.done, [4, 3, 2, 1]);
    }
}
