//! A run in few words, for tables and messages.

use retake_types::text;
use std::time::Duration;

use retake_types::{Run, State, Word};

use crate::colour::Shade;

/// How a run ended, and the colour that goes with it.
pub fn outcome(run: &Run) -> (String, Shade) {
    let Some(ending) = &run.ending else {
        let word = if run.state == State::Running { "running" } else { "interrupted" };
        return (word.to_owned(), Shade::Open);
    };
    let text = match (ending.outcome, ending.exit_code) {
        (Word::Exited, Some(0)) => return ("ok".to_owned(), Shade::Good),
        (Word::Exited, Some(code)) => format!("exit {code}"),
        (Word::Signaled, _) => ending.signal.clone().unwrap_or_else(|| "signaled".to_owned()),
        (Word::Interrupted, _) => return ("interrupted".to_owned(), Shade::Open),
        (word, _) => word.as_str().replace('_', " "),
    };
    (text, Shade::Bad)
}

/// How long a run took; empty while it goes on.
pub fn duration(run: &Run) -> String {
    let known = run.ending.as_ref().map(|ending| ending.duration_ms);
    known.map_or_else(String::new, |ms| text::duration(Duration::from_millis(ms)))
}
