//! Runs the tasks of a queue one after another, each as a loop of its own, under one budget.
//!
//! The queue's file says before each task that it runs, so that a killed queue goes on with it; the
//! loop itself goes on by its own record.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use retake_runner::loop_driver::{self, LoopPlan, Next, StepError};
use retake_runner::signals;
use retake_store::Store;
use retake_types::LoopId;
use retake_types::loop_record::agent::Spent;

use crate::clock::Clock;
use crate::queue::{
    Queue, QueueError, QueuePlan, QueueRules, QueueRun, QueueStep, QueueStopReason, QueuedTask,
    TaskAllowance, TaskEnd, TaskOutcome, TaskReport, TaskState,
};

use super::recorded_loop;

/// What a person is shown of a queue while it runs.
#[derive(Debug)]
pub enum QueueEvent<'a> {
    /// The queue goes on after its process died; what it had spent by then.
    Continued {
        spent: Spent,
        time: Duration,
    },
    TaskStarted {
        name: &'a str,
        left: usize,
    },
    TaskEnded {
        name: &'a str,
        report: &'a TaskReport,
    },
    /// A restart will not know how much of the time is used.
    TimeNotKept(&'a std::io::Error),
}

/// A run of the queue that is over.
#[derive(Debug)]
pub struct FinishedQueue {
    pub reason: QueueStopReason,
    pub failures: u32,
    pub spent: Spent,
    /// Tasks that wait for the next run.
    pub left: usize,
}

/// One task to run, with what is left for it.
pub struct QueueTask<'a> {
    pub task: &'a QueuedTask,
    pub allowance: TaskAllowance,
    /// The run of the queue that it is part of.
    pub run: &'a str,
}

/// The plan with the queue's file and the clock of this invocation.
struct SteeredQueue<'a> {
    plan: QueuePlan,
    queue: &'a Queue,
    begun: Instant,
    /// Time used before a restart.
    before: Duration,
    failure: Option<QueueError>,
    display: &'a dyn Fn(QueueEvent<'_>),
}

/// A task and what is left for it.
struct TaskStep {
    task: Box<QueuedTask>,
    allowance: TaskAllowance,
}

/// Runs what waits in the queue. `given` are the rules of this call; a queue whose process died keeps
/// its own where none are given. `execute` runs one task to its end.
pub fn run_queue(
    queue: &Queue,
    given: QueueRules,
    store: Option<&Store>,
    display: &dyn Fn(QueueEvent<'_>),
    mut execute: impl FnMut(&QueueTask<'_>) -> TaskReport,
) -> Result<FinishedQueue, QueueError> {
    let _lock = queue.lock()?;
    queue.forget_stop()?;
    let (run, continued) = begin(queue, given)?;
    let (mut spent, mut before) = (Spent::default(), Duration::ZERO);
    if let Some(continued) = continued {
        if let Some(store) = store {
            // Without a record nothing is known of what was spent.
            spent = recorded_loop::spent_by_queue(store, &run.id, &continued).unwrap_or_default();
        }
        before = Clock::used(queue.dir(), &run.id).unwrap_or_default();
        display(QueueEvent::Continued { spent, time: before });
    }
    let clock = Clock::start(queue.dir(), &run.id, before);
    if let (Err(error), Some(_)) = (&clock, run.rules.max_time) {
        display(QueueEvent::TimeNotKept(error));
    }
    let plan = SteeredQueue {
        plan: QueuePlan::new(run.rules, spent),
        queue,
        begun: Instant::now(),
        before,
        failure: None,
        display,
    };
    let driven = loop_driver::drive_here(
        plan,
        &mut execute,
        |execute, _, step: &TaskStep| {
            let task = QueueTask { task: &step.task, allowance: step.allowance, run: &run.id };
            Ok::<_, StepError<QueueError>>(execute(&task))
        },
        |_, _, _| {},
    );
    drop(clock);
    let SteeredQueue { plan, failure, .. } = driven.plan;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let left = queue.edit(|content| {
        content.run = None;
        Ok(content.tasks.iter().filter(|task| waits(task)).count())
    })?;
    queue.forget_stop()?;
    let reason = plan.stopped().unwrap_or(QueueStopReason::Interrupted);
    Ok(FinishedQueue { reason, failures: plan.failures(), spent: plan.spent(), left })
}

fn waits(task: &QueuedTask) -> bool {
    !matches!(task.state, TaskState::Ended { .. })
}

/// Notes that the queue runs. Gives the tasks that broke off where its process had died.
fn begin(queue: &Queue, given: QueueRules) -> Result<(QueueRun, Option<Vec<String>>), QueueError> {
    queue.edit(|content| {
        let continued = content.run.take();
        let QueueRules { max_cost_usd, max_tokens, max_time, stop_on_failure } = given;
        let run = match &continued {
            Some(run) => QueueRun {
                rules: QueueRules {
                    max_cost_usd: max_cost_usd.or(run.rules.max_cost_usd),
                    max_tokens: max_tokens.or(run.rules.max_tokens),
                    max_time: max_time.or(run.rules.max_time),
                    stop_on_failure: stop_on_failure || run.rules.stop_on_failure,
                },
                ..run.clone()
            },
            None => {
                QueueRun { id: LoopId::new().to_string(), started: Timestamp::now(), rules: given }
            }
        };
        content.run = Some(run.clone());
        let broken_off = |task: &&QueuedTask| matches!(task.state, TaskState::Running { .. });
        let names = content.tasks.iter().filter(broken_off).map(|task| task.name.clone());
        let names: Vec<String> = names.collect();
        Ok((run, continued.map(|_| names)))
    })
}

impl SteeredQueue<'_> {
    fn time_used(&self) -> Duration {
        self.before.saturating_add(self.begun.elapsed())
    }

    fn next_task(&mut self) -> Result<Option<TaskStep>, QueueError> {
        if signals::asked().load(Ordering::Relaxed) {
            self.plan.stop(QueueStopReason::Interrupted);
        } else if self.queue.is_stop_requested() {
            self.plan.stop(QueueStopReason::Stopped);
        }
        let content = self.queue.read()?;
        let (task, allowance) = match self.plan.next(&content.tasks, self.time_used()) {
            QueueStep::Run { task, allowance } => (task, allowance),
            QueueStep::Stop(_) => return Ok(None),
        };
        // A task that broke off keeps the time when it began.
        if task.state == TaskState::Waiting {
            let state = TaskState::Running { since: Timestamp::now() };
            if !self.queue.begin_task(&task.name, &state)? {
                // It was taken out in this very moment.
                return self.next_task();
            }
        }
        let left = content.tasks.iter().filter(|task| waits(task)).count() - 1;
        (self.display)(QueueEvent::TaskStarted { name: &task.name, left });
        Ok(Some(TaskStep { task, allowance }))
    }

    fn end_task(&mut self, task: &QueuedTask, report: TaskReport) -> Result<(), QueueError> {
        let state = match self.plan.done(&report, self.time_used()) {
            TaskOutcome::WaitsAgain => TaskState::Waiting,
            TaskOutcome::Ended => {
                TaskState::Ended { at: Timestamp::now(), end: report.end.clone() }
            }
        };
        self.queue.set_state(&task.name, &state)?;
        (self.display)(QueueEvent::TaskEnded { name: &task.name, report: &report });
        Ok(())
    }
}

impl LoopPlan for SteeredQueue<'_> {
    type Step = TaskStep;
    type Report = TaskReport;

    fn next(&mut self, _now: Instant) -> Next<TaskStep> {
        if self.failure.is_some() {
            return Next::Done;
        }
        match self.next_task() {
            Ok(Some(step)) => Next::Run(step),
            Ok(None) => Next::Done,
            Err(error) => {
                self.failure = Some(error);
                Next::Done
            }
        }
    }

    fn report(&mut self, step: &TaskStep, report: TaskReport) {
        if let Err(error) = self.end_task(&step.task, report) {
            self.failure = Some(error);
        }
    }
}

impl TaskReport {
    /// A task that did not come to a loop.
    pub fn without_loop(end: TaskEnd) -> Self {
        Self { end, spent: Spent::default() }
    }
}
