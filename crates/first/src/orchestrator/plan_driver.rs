//! Runs a plan's steps as children, several at a time, and reports results in the plan's order.
//!
//! Independent of what a child is: the orchestrator passes real ones, the tests scripted ones.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::plan::{Executed, Finish, Line, Plan, Step};
use super::verdict::Check;

#[derive(Debug)]
pub(crate) enum PointOutcome {
    Executed(Executed),
    Checked(Check),
}

/// The operations that the loop needs.
pub(crate) struct ChildRunner<'a> {
    /// Runs one child to its end. Called on several threads at once, if there are several jobs.
    pub(crate) run: &'a (dyn Fn(&Step) -> PointOutcome + Sync),
    /// Kills the children of all targets beyond this one, now and in future.
    pub(crate) end_beyond: &'a dyn Fn(usize),
}

/// The outcome of a step, and how long it took.
type StepResult = (usize, thread::Result<PointOutcome>, Duration);

/// Runs the plan to its finish. `told` is called on this thread alone: a test's output belongs to
/// the thread it runs on.
pub(crate) fn drive(
    plan: &mut Plan,
    jobs: usize,
    children: &ChildRunner<'_>,
    told: &mut dyn FnMut(Line, Duration),
) -> Finish {
    if jobs == 1 {
        // On this thread: handing a step to another one and being woken by it takes as long as many
        // checks.
        let next = RefCell::new(None);
        let start = |step| next.borrow_mut().replace(step).is_none();
        let result = || next.take().map(|step| take_step(children.run, &step));
        return conduct(plan, jobs, children, told, &start, &result);
    }
    let (to_do, work) = mpsc::channel::<Step>();
    let (done, results) = mpsc::channel();
    let work = Mutex::new(work);
    let run = children.run;
    thread::scope(|scope| {
        for _ in 0..jobs {
            let (work, done) = (&work, done.clone());
            scope.spawn(move || {
                loop {
                    let step = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(step) = step else { return };
                    if done.send(take_step(run, &step)).is_err() {
                        return;
                    }
                }
            });
        }
        // Dropped with this closure, which ends the workers that wait for it.
        let to_do = to_do;
        let start = |step| to_do.send(step).is_ok();
        conduct(plan, jobs, children, told, &start, &|| results.recv().ok())
    })
}

fn take_step(run: &(dyn Fn(&Step) -> PointOutcome + Sync), step: &Step) -> StepResult {
    let start = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| run(step)));
    (step.target(), outcome, start.elapsed())
}

/// `start` hands out a step, unless no worker is left to take it; `result` waits for a started one.
fn conduct(
    plan: &mut Plan,
    jobs: usize,
    children: &ChildRunner<'_>,
    told: &mut dyn FnMut(Line, Duration),
    start: &dyn Fn(Step) -> bool,
    result: &dyn Fn() -> Option<StepResult>,
) -> Finish {
    let mut busy = 0;
    let mut took: HashMap<usize, Duration> = HashMap::new();
    loop {
        while busy < jobs
            && let Some(step) = plan.next()
        {
            if !start(step) {
                break;
            }
            busy += 1;
        }
        while let Some(line) = plan.line() {
            let target = target(&line);
            told(line, took.remove(&target).unwrap_or_default());
        }
        if let Some(finish) = plan.finish() {
            // No running child matters any more; the caller waits for their end.
            (children.end_beyond)(0);
            return finish.clone();
        }
        (children.end_beyond)(plan.bound());
        let Some((target, outcome, duration)) = result() else {
            unreachable!("the workers end after the work, which is still held here")
        };
        busy -= 1;
        *took.entry(target).or_default() += duration;
        match outcome {
            Ok(PointOutcome::Executed(executed)) => plan.executed(target, executed),
            Ok(PointOutcome::Checked(check)) => plan.checked(target, check),
            Err(panic) => {
                (children.end_beyond)(0);
                resume_unwind(panic);
            }
        }
    }
}

pub(crate) fn target(line: &Line) -> usize {
    match line {
        Line::Passed { target, .. } | Line::Same { target, .. } => *target,
        Line::Failed(failure) => failure.target,
    }
}

#[cfg(test)]
mod tests;
