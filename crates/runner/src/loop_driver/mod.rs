//! The one loop driver: asks a plan for the next step, runs it on a worker, feeds the report back,
//! and repeats until the plan is done, a signal asks for the end, or nothing can be run any more.
//!
//! A plan is a pure state machine: it starts no process, reads no clock and opens no record. The
//! driver owns the workers' threads, the waiting, the cancellation and the ticks by which a live
//! line stays true. What a step is, and how one is run, is for the loop to say: an agent's
//! iteration, a cell of a matrix, a point of a bisection, a crash state.
//!
//! [`drive`] runs steps here; [`remote::drive`] has other machines run them.

pub mod remote;

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::signals;

/// How often a worker that waits looks whether it should stop.
const LOOK: Duration = Duration::from_millis(100);

/// How often the observer is called while nothing ends.
const TICK: Duration = Duration::from_secs(1);

/// What a plan says to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<S> {
    Run(S),
    /// Nothing can begin before a step that is under way has reported.
    Wait,
    /// Nothing begins before this much time has passed; the plan is asked again until then, since
    /// someone may have told it something else.
    Delay(Duration),
    Done,
}

/// The state machine of a loop.
pub trait LoopPlan {
    type Step;
    /// What running a step came to.
    type Report;

    /// What to do at this time. Asked again after every report, and while waiting.
    fn next(&mut self, now: Instant) -> Next<Self::Step>;

    fn report(&mut self, step: &Self::Step, report: Self::Report);
}

/// Why a step gave no report.
#[derive(Debug)]
pub enum StepError<E> {
    /// It was ended together with the loop: no result, and nothing more starts.
    Cancelled,
    /// Nothing can be run any more.
    Failed(E),
}

/// A loop that is over.
#[derive(Debug)]
pub struct Driven<P, E> {
    pub plan: P,
    /// Why nothing more could be run, if that is why it ended.
    pub failure: Option<E>,
    /// A signal, or the loop itself, asked for the end before the plan was done.
    pub cancelled: bool,
}

/// Receives the progress of a loop, from any of its threads, with the plan locked.
pub trait LoopObserver<P: LoopPlan>: Sync {
    /// A step has reported; the plan knows it already.
    fn reported(&self, _plan: &P, _step: &P::Step) {}

    /// Time has passed, or something has changed.
    fn tick(&self, _plan: &P) {}
}

/// Nobody.
impl<P: LoopPlan> LoopObserver<P> for () {}

/// Runs the steps of a loop on its workers.
pub trait StepRunner<P: LoopPlan, W>: Sync {
    type Error: Send;

    /// Runs one step on one worker; the number is the worker's own.
    fn run(
        &self,
        worker: &mut W,
        number: usize,
        step: &P::Step,
    ) -> Result<P::Report, StepError<Self::Error>>;

    /// The plan has taken the report of a step that this worker ran, and is locked: what follows
    /// from the report can be done on the worker.
    fn reported(&self, _worker: &mut W, _plan: &mut P, _step: &P::Step) {}

    /// Whether something of the last step is left to do, with the next step or when the worker
    /// [settles](Self::settle).
    fn holds(&self, _worker: &W) -> bool {
        false
    }

    /// Completes what the worker holds. Called when it has to wait, and when its loop ends.
    fn settle(&self, _worker: &mut W) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Runs steps by a function.
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

/// What the threads of a loop share.
struct Shared<P, E> {
    plan: Mutex<P>,
    changed: Condvar,
    state: Mutex<State<E>>,
    /// Told when a worker leaves.
    left: Condvar,
}

/// What a thread finds when it asks for a step.
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

/// Runs the plan to its end with all workers at once. `execute` runs one step on one worker; the
/// number is the worker's own.
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

/// The same for a loop that does something on the worker once the plan has taken a report.
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
        // One of them works in the thread that calls, whose memory is at hand.
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

/// Runs the plan on one worker in the thread that calls, for loops whose steps need what cannot be
/// sent to another thread.
pub fn drive_here<P: LoopPlan, W, E>(
    mut plan: P,
    worker: &mut W,
    mut execute: impl FnMut(&mut W, &mut P, &P::Step) -> Result<P::Report, StepError<E>>,
    mut waiting: impl FnMut(&mut W, &P, Duration),
) -> Driven<P, E> {
    loop {
        let step = match plan.next(Instant::now()) {
            Next::Run(step) => step,
            // One worker waits for nobody.
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
        // Whatever ended it.
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
                    // The line of the step that was held took the place of the live line.
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

    /// Keeps the live line true while long steps run.
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

    /// Counts down; after every third step it waits for all that are under way.
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

    /// Leaves the end of each step to the next one, or to the time when the worker has to wait.
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
    fn what_is_held_is_settled_before_a_worker_waits_and_whatever_ends_it() {
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
    fn one_worker_runs_in_the_thread_that_calls() {
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
