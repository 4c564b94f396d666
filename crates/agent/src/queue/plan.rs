//! The queue as a pure state machine: the next task and its remaining budget.

use std::time::Duration;

use retake_types::loop_record::agent::Spent;

use super::{QueueRules, QueuedTask, TaskEnd, TaskState};
use crate::plan::{AgentStopReason, Budgets};

/// Why a run of the queue ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueStopReason {
    /// No task waits any more.
    Empty,
    BudgetCost,
    BudgetTokens,
    BudgetTime,
    /// A task failed, which ends the queue by its rules.
    Failed,
    Stopped,
    Interrupted,
}

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub enum QueueStep {
    Run { task: Box<QueuedTask>, allowance: TaskAllowance },
    Stop(QueueStopReason),
}

/// The rest of the common budget.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TaskAllowance {
    pub cost_usd: Option<f64>,
    pub tokens: Option<u64>,
    pub time: Option<Duration>,
}

impl From<QueueRules> for TaskAllowance {
    /// For a queue that has spent nothing yet.
    fn from(rules: QueueRules) -> Self {
        let QueueRules { max_cost_usd, max_tokens, max_time, .. } = rules;
        Self { cost_usd: max_cost_usd, tokens: max_tokens, time: max_time }
    }
}

impl TaskAllowance {
    /// A task's own budgets, or the rest of the common one if that is less.
    pub fn limit(self, own: Budgets) -> Budgets {
        fn least<T: PartialOrd>(a: Option<T>, b: Option<T>) -> Option<T> {
            match (a, b) {
                (Some(a), Some(b)) => Some(if b < a { b } else { a }),
                (a, b) => a.or(b),
            }
        }
        Budgets {
            cost_usd: least(own.cost_usd, self.cost_usd),
            tokens: least(own.tokens, self.tokens),
            invocation_time: least(own.invocation_time, self.time),
            ..own
        }
    }
}

/// How a task ended, and what its loop has spent, including before a restart.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskReport {
    pub end: TaskEnd,
    pub spent: Spent,
}

/// The state of a run of the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuePlan {
    rules: QueueRules,
    /// The cost of ended loops.
    spent: Spent,
    completed: u32,
    failures: u32,
    incomplete: u32,
    stopped: Option<QueueStopReason>,
}

impl QueuePlan {
    /// `spent` is what the loops of this run spent before its process died.
    pub fn new(rules: QueueRules, spent: Spent) -> Self {
        Self { rules, spent, completed: 0, failures: 0, incomplete: 0, stopped: None }
    }

    /// Counts a task that ended before the process died.
    pub fn restore(&mut self, end: &TaskEnd) {
        self.completed += u32::from(end.completed());
        self.failures += u32::from(end.failed());
        self.incomplete += u32::from(!end.completed() && !end.failed());
    }

    pub fn stopped(&self) -> Option<QueueStopReason> {
        self.stopped
    }

    /// Tasks that are complete.
    pub fn completed(&self) -> u32 {
        self.completed
    }

    /// Tasks that failed.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Tasks that ended without completion and without a failure.
    pub fn incomplete(&self) -> u32 {
        self.incomplete
    }

    pub fn spent(&self) -> Spent {
        self.spent
    }

    /// The next step for the current tasks. An interrupted task comes first.
    pub fn next(&mut self, tasks: &[QueuedTask], time_used: Duration) -> QueueStep {
        if let Some(reason) = self.stopped.or_else(|| self.budget_spent(time_used)) {
            return self.stop(reason);
        }
        let broken_off = |task: &&QueuedTask| matches!(task.state, TaskState::Running { .. });
        let waits = |task: &&QueuedTask| task.state == TaskState::Waiting;
        let next = tasks.iter().find(broken_off).or_else(|| tasks.iter().find(waits));
        match next {
            Some(task) => QueueStep::Run {
                task: Box::new(task.clone()),
                allowance: self.allowance(time_used),
            },
            None => self.stop(QueueStopReason::Empty),
        }
    }

    /// A task was added when none was waiting.
    pub fn resume(&mut self) {
        if self.stopped == Some(QueueStopReason::Empty) {
            self.stopped = None;
        }
    }

    /// Requests the end.
    pub fn stop(&mut self, reason: QueueStopReason) -> QueueStep {
        self.stopped = Some(reason);
        QueueStep::Stop(reason)
    }

    /// Processes the end of a task; returns its new state in the queue. A task that the common
    /// budget or a signal interrupted waits for the next run.
    pub fn done(&mut self, report: &TaskReport, time_used: Duration) -> TaskOutcome {
        self.spent.add(report.spent);
        let reason = match &report.end {
            TaskEnd::Stopped { reason, .. } => Some(*reason),
            _ => None,
        };
        if reason == Some(AgentStopReason::Interrupted) {
            self.stopped = Some(QueueStopReason::Interrupted);
            return TaskOutcome::WaitsAgain;
        }
        let cut_off = match (reason, self.budget_spent(time_used)) {
            (
                Some(
                    AgentStopReason::BudgetCost
                    | AgentStopReason::BudgetTokens
                    | AgentStopReason::BudgetTime,
                ),
                Some(spent),
            ) => Some(spent),
            _ => None,
        };
        if let Some(spent) = cut_off {
            self.stopped = Some(spent);
            return TaskOutcome::WaitsAgain;
        }
        self.completed += u32::from(report.end.completed());
        self.incomplete += u32::from(!report.end.completed() && !report.end.failed());
        if report.end.failed() {
            self.failures += 1;
            if self.rules.stop_on_failure {
                self.stopped = Some(QueueStopReason::Failed);
            }
        }
        TaskOutcome::Ended
    }

    pub(crate) fn budget_spent(&self, time_used: Duration) -> Option<QueueStopReason> {
        let QueueRules { max_cost_usd, max_tokens, max_time, .. } = self.rules;
        if max_cost_usd.is_some_and(|most| self.spent.cost_usd >= most) {
            Some(QueueStopReason::BudgetCost)
        } else if max_tokens.is_some_and(|most| self.spent.tokens >= most) {
            Some(QueueStopReason::BudgetTokens)
        } else if max_time.is_some_and(|most| time_used >= most) {
            Some(QueueStopReason::BudgetTime)
        } else {
            None
        }
    }

    pub(crate) fn allowance(&self, time_used: Duration) -> TaskAllowance {
        let QueueRules { max_cost_usd, max_tokens, max_time, .. } = self.rules;
        TaskAllowance {
            cost_usd: max_cost_usd.map(|most| (most - self.spent.cost_usd).max(0.0)),
            tokens: max_tokens.map(|most| most.saturating_sub(self.spent.tokens)),
            time: max_time.map(|most| most.saturating_sub(time_used)),
        }
    }
}

/// The state of a task after it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskOutcome {
    Ended,
    /// The next run of the queue continues with it.
    WaitsAgain,
}
