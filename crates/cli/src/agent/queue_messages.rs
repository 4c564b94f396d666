//! The messages of `retake agent queue`.

use retake_agent::display;
use retake_agent::driver::{FinishedQueue, QueueEvent};
use retake_agent::queue::{QueueError, QueueStopReason, TaskEnd};

use retake_engine::quote;
use retake_types::loop_record::agent::Spent;

use super::messages;
use crate::term;

pub(super) fn error(error: &QueueError) -> String {
    match error {
        QueueError::Held { holder } => held(holder),
        QueueError::Queued(name) => {
            format!("{name} is already in the queue; `retake agent queue remove {name}` removes it")
        }
        QueueError::NotQueued(name) => {
            format!("{name} is not in the queue; `retake agent queue list` shows it")
        }
        QueueError::Runs(name) => {
            format!(
                "{name} is running; `retake agent stop {name}` stops it, and the queue continues"
            )
        }
        QueueError::Io { .. } | QueueError::Invalid { .. } => error.to_string(),
    }
}

pub(super) fn held(holder: &str) -> String {
    format!("the queue is already run by {holder}; `retake agent queue list` shows it")
}

/// The message after a queue was started in the background.
pub(super) fn detached(tasks: usize) -> impl Fn(i32) -> String {
    move |pid| {
        format!(
            "✓ The queue runs in the background (pid {pid}): {}\n\
             → See its state: retake agent queue list\n\
             → Stop it: retake agent queue stop\n",
            term::count(tasks as u64, "task")
        )
    }
}

/// The message for an event, and whether it is an error.
pub(super) fn event(event: &QueueEvent<'_>) -> (String, bool) {
    match event {
        QueueEvent::Continued { spent, time } => {
            let used = messages::used_before(*spent, *time);
            (format!("Continuing the queue whose process died; it had {used}"), false)
        }
        QueueEvent::TaskStarted { name, left: 0 } => (format!("Task {name}"), false),
        QueueEvent::TaskStarted { name, left } => {
            (format!("Task {name} ({} after it)", term::count(*left as u64, "task")), false)
        }
        QueueEvent::TaskEnded { name, report } => match &report.end {
            TaskEnd::Stopped { reason, .. } => {
                let mark = match &report.end {
                    end if end.completed() => "✓",
                    end if end.failed() => "✗",
                    _ => "⚠️",
                };
                let why = messages::stop_reason(*reason);
                (format!("{mark} {name}: {why}, {}", display::spent(report.spent)), false)
            }
            TaskEnd::AlreadyComplete => (format!("✓ {name} is already complete"), false),
            TaskEnd::NotStarted { why } => (format!("{name} was not started: {why}"), true),
        },
        QueueEvent::TimeNotKept(error) => {
            (format!("a restart will not know how much of --max-time is used: {error}"), true)
        }
    }
}

/// Why a run of the queue ended, and what it did.
pub(super) fn finished(finished: &FinishedQueue, options: &[String]) -> String {
    let why = match finished.reason {
        QueueStopReason::Empty => "the queue is empty",
        QueueStopReason::BudgetCost => "the cost budget for all tasks is exhausted",
        QueueStopReason::BudgetTokens => "the token budget for all tasks is exhausted",
        QueueStopReason::BudgetTime => "the time budget for all tasks is exhausted",
        QueueStopReason::Failed => "a task failed",
        QueueStopReason::Stopped => "stopped on request",
        QueueStopReason::Interrupted => "interrupted",
    };
    let completed = term::count(finished.completed.into(), "task");
    let mut text = format!("The queue has ended: {why}; {completed} completed");
    if finished.failures > 0 {
        text += &format!(", {} failed", finished.failures);
    }
    if finished.incomplete > 0 {
        text += &format!(", {} stopped before completion", finished.incomplete);
    }
    text += &match finished.spent == Spent::default() {
        true => format!(", {}", display::spent(finished.spent)),
        false => format!(", {} spent", display::spent(finished.spent)),
    };
    if finished.left > 0 {
        let left = term::count(finished.left as u64, "task");
        let words = ["retake", "agent", "queue", "run"].into_iter();
        let command = quote(words.chain(options.iter().map(String::as_str)));
        text += &format!("\n→ Run the {left} left: {command}");
    }
    text
}
