//! Runs the tasks of a queue one after another, each with its own loop, under a common budget.
//!
//! The queue's file names each task before it runs, so that a killed queue continues with it; the
//! loop itself continues from its own record.

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

/// What users see of a running queue.
#[derive(Debug)]
pub enum QueueEvent<'a> {
    /// The queue continues after its process died; with what it had spent by then.
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

/// A finished run of the queue.
#[derive(Debug)]
pub struct FinishedQueue {
    pub reason: QueueStopReason,
    /// Completed tasks, and failed ones.
    pub completed: u32,
    pub failures: u32,
    /// Tasks that ended at a limit or on request, neither completed nor failed.
    pub incomplete: u32,
    pub spent: Spent,
    /// Tasks that wait for the next run.
    pub left: usize,
}

/// One task to run, with the remaining budget.
pub struct QueueTask<'a> {
    pub task: &'a QueuedTask,
    pub allowance: TaskAllowance,
    /// The id of the queue's run.
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

/// A task with its remaining budget.
struct TaskStep {
    task: Box<QueuedTask>,
    /// Its start, possibly before a restart.
    since: Timestamp,
    allowance: TaskAllowance,
}

/// Runs the waiting tasks. `given` are the rules of this call; without any, a restarted queue keeps
/// its own. `execute` runs one task to its end.
pub fn run_queue(
    queue: &Queue,
    given: QueueRules,
    store: Option<&Store>,
    display: &dyn Fn(QueueEvent<'_>),
    mut execute: impl FnMut(&QueueTask<'_>) -> TaskReport,
) -> Result<FinishedQueue, QueueError> {
    let mut lock = Some(queue.lock()?);
    queue.forget_stop()?;
    let (run, continued) = begin(queue, given)?;
    let (mut spent, mut before) = (Spent::default(), Duration::ZERO);
    if let Some(broken_off) = &continued {
        if let Some(store) = store {
            // Without a record the amount spent is unknown.
            spent = recorded_loop::spent_by_queue(store, &run.id, broken_off).unwrap_or_default();
        }
        before = Clock::used(queue.dir(), &run.id).unwrap_or_default();
        display(QueueEvent::Continued { spent, time: before });
    }
    let clock = Clock::start(queue.dir(), &run.id, before);
    if let (Err(error), Some(_)) = (&clock, run.rules.max_time) {
        display(QueueEvent::TimeNotKept(error));
    }
    let mut plan = SteeredQueue {
        plan: QueuePlan::new(run.rules, spent),
        queue,
        begun: Instant::now(),
        before,
        failure: None,
        display,
    };
    if continued.is_some() {
        plan.count_ended(&run)?;
    }
    for name in continued.iter().flatten() {
        plan.end_broken_off(name, &run.id, store)?;
    }
    let (reason, left) = loop {
        let driven = loop_driver::drive_here(
            plan,
            &mut execute,
            |execute, _, step: &TaskStep| {
                let task = QueueTask { task: &step.task, allowance: step.allowance, run: &run.id };
                Ok::<_, StepError<QueueError>>(execute(&task))
            },
            |_, _, _| {},
        );
        plan = driven.plan;
        if let Some(failure) = plan.failure {
            return Err(failure);
        }
        let reason = plan.plan.stopped().unwrap_or(QueueStopReason::Interrupted);
        let left = queue.edit(|content| {
            let left = content.tasks.iter().filter(|task| waits(task)).count();
            if reason == QueueStopReason::Empty && left > 0 {
                return Ok(None);
            }
            content.run = None;
            // Released while adding is blocked: a task that is added later must not be expected to
            // run.
            drop(lock.take());
            Ok(Some(left))
        })?;
        match left {
            Some(left) => break (reason, left),
            None => plan.plan.resume(),
        }
    };
    drop(clock);
    let plan = plan.plan;
    Ok(FinishedQueue {
        reason,
        completed: plan.completed(),
        failures: plan.failures(),
        incomplete: plan.incomplete(),
        spent: plan.spent(),
        left,
    })
}

fn waits(task: &QueuedTask) -> bool {
    !matches!(task.state, TaskState::Ended { .. })
}

/// Marks the queue as running. Returns the interrupted tasks if its process had died.
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

    /// The next task, marked as running.
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
        let since = match task.state {
            TaskState::Running { since } => since,
            _ => Timestamp::now(),
        };
        let waited = task.state == TaskState::Waiting;
        if waited && !self.queue.begin_task(&task.name, &TaskState::Running { since })? {
            // It was removed at this moment.
            return self.next_task();
        }
        let left = content.tasks.iter().filter(|task| waits(task)).count() - 1;
        (self.display)(QueueEvent::TaskStarted { name: &task.name, left });
        Ok(Some(TaskStep { task, since, allowance }))
    }

    /// Counts the tasks that this run of the queue finished before its process died.
    fn count_ended(&mut self, run: &QueueRun) -> Result<(), QueueError> {
        for task in self.queue.read()?.tasks {
            if let TaskState::Ended { since: Some(since), end, .. } = task.state
                && since >= run.started
            {
                self.plan.restore(&end);
            }
        }
        Ok(())
    }

    /// A task whose loop had ended before its queue died is not run again.
    fn end_broken_off(
        &mut self,
        name: &str,
        run: &str,
        store: Option<&Store>,
    ) -> Result<(), QueueError> {
        // Without a readable record, it is run.
        let ended = store.map(|store| recorded_loop::ended_in_queue(store, run, name));
        let Some(Ok(Some((id, reason)))) = ended else { return Ok(()) };
        let content = self.queue.read()?;
        let Some(task) = content.tasks.into_iter().find(|task| task.name == name) else {
            return Ok(());
        };
        let TaskState::Running { since } = task.state else { return Ok(()) };
        let end = TaskEnd::Stopped { reason, loop_id: Some(id) };
        let step = TaskStep { task: Box::new(task), since, allowance: TaskAllowance::default() };
        // Its cost is in the record.
        self.end_task(&step, TaskReport::without_loop(end))
    }

    fn end_task(&mut self, step: &TaskStep, report: TaskReport) -> Result<(), QueueError> {
        let name = step.task.name.as_str();
        let state = match self.plan.done(&report, self.time_used()) {
            TaskOutcome::WaitsAgain => TaskState::Waiting,
            TaskOutcome::Ended => {
                let (since, at) = (Some(step.since), Timestamp::now());
                TaskState::Ended { since, at, end: report.end.clone() }
            }
        };
        self.queue.set_state(name, &state)?;
        (self.display)(QueueEvent::TaskEnded { name, report: &report });
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
        if let Err(error) = self.end_task(step, report) {
            self.failure = Some(error);
        }
    }
}

impl TaskReport {
    /// A task without a loop.
    pub fn without_loop(end: TaskEnd) -> Self {
        Self { end, spent: Spent::default() }
    }
}
