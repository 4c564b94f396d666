//! Short texts about a run, for tables and messages.

use retake_types::text;
use std::time::Duration;

use retake_types::{LeftFate, LeftProcess, OutcomeKind, Run, RunOutcome, State};

use crate::colour::Shade;

/// A run's outcome as text, with its colour. A run reported from inside a sandbox is marked and
/// never shown as good, because nothing outside observed it.
pub fn outcome(run: &Run) -> (String, Shade) {
    let (text, shade) = ending(run);
    match (run.intent.reported_by, shade) {
        (None, shade) => (text, shade),
        (Some(_), Shade::Good) => (format!("{text} (reported)"), Shade::Open),
        (Some(_), shade) => (format!("{text} (reported)"), shade),
    }
}

/// A run's outcome as text, wherever it ran.
pub(crate) fn ending(run: &Run) -> (String, Shade) {
    let Some(outcome) = &run.outcome else {
        let word = if run.state == State::Running { "running" } else { "interrupted" };
        return (word.to_owned(), Shade::Open);
    };
    let text = match (outcome.kind, outcome.exit_code) {
        (OutcomeKind::Exited, Some(0)) => return ("ok".to_owned(), Shade::Good),
        (OutcomeKind::Exited, Some(code)) => format!("exit {code}"),
        (OutcomeKind::Signaled, _) => {
            outcome.signal.clone().unwrap_or_else(|| "signaled".to_owned())
        }
        (OutcomeKind::Interrupted, _) => return ("interrupted".to_owned(), Shade::Open),
        (word, _) => word.as_str().replace('_', " "),
    };
    (text, Shade::Bad)
}

/// Up to this many processes are named individually; beyond that, a count and a few examples.
const LEFT_NAMED: usize = 5;
const LEFT_EXAMPLES: usize = 3;

/// Left processes of one fate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftGroup {
    pub fate: LeftFate,
    pub count: u64,
    /// The process, or a few examples.
    pub named: String,
}

impl LeftGroup {
    /// One line with the word for its fate.
    pub fn line(&self, fate: &str) -> String {
        match self.count {
            1 => format!("{}, {fate}", self.named),
            count => format!("{}, {fate}: {}", text::count(count, "process"), self.named),
        }
    }
}

/// The processes that a run left: individually, or grouped by fate if there are many.
pub fn left_processes(outcome: &RunOutcome) -> Vec<LeftGroup> {
    let name = |left: &LeftProcess| format!("{} ({})", left.command, left.pid);
    let counts = outcome.left_counts();
    if counts.total() <= LEFT_NAMED as u64 {
        let single =
            |left: &LeftProcess| LeftGroup { fate: left.fate, count: 1, named: name(left) };
        return outcome.left_processes.iter().map(single).collect();
    }
    let mut groups = Vec::new();
    for fate in LeftFate::ALL {
        let count = counts.with_fate(fate);
        let listed = outcome.left_processes.iter().filter(|left| left.fate == fate);
        let mut named: Vec<_> = listed.take(LEFT_EXAMPLES).map(name).collect();
        if count > named.len() as u64 {
            named.push("…".to_owned());
        }
        groups.push(LeftGroup { fate, count, named: named.join(", ") });
    }
    groups.retain(|group| group.count > 0);
    groups
}

/// The duration of a run; empty while it runs. A lower bound is marked.
pub fn duration(run: &Run) -> String {
    let Some(outcome) = &run.outcome else { return String::new() };
    let took = text::duration(Duration::from_millis(outcome.duration_ms));
    match outcome.duration_is_exact() {
        true => took,
        false => format!("≥{took}"),
    }
}
