//! A run in few words, for tables and messages.

use retake_types::text;
use std::time::Duration;

use retake_types::{OutcomeKind, Run, State};

use crate::colour::Shade;

/// How a run ended, and the colour that goes with it.
pub fn outcome(run: &Run) -> (String, Shade) {
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

/// How long a run took; empty while it goes on.
pub fn duration(run: &Run) -> String {
    let known = run.outcome.as_ref().map(|outcome| outcome.duration_ms);
    known.map_or_else(String::new, |ms| text::duration(Duration::from_millis(ms)))
}
