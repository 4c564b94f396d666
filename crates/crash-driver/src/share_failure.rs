//! Why a share of the states has no answer.

use std::fmt;

use retake_types::{RunId, text};

/// Why there is no answer about a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShareFailure {
    NotEnded,
    /// Its process did not end by itself; the reasons, if known.
    CutShort(Vec<String>),
    /// Neither this process nor the time limit cancelled it.
    CancelledByOthers,
    /// The machine could not test anything.
    CouldNotTest {
        node: Option<String>,
        error: Option<String>,
        run: RunId,
    },
    /// The output is not an answer.
    BadAnswer {
        run: RunId,
        error: String,
    },
    UnreadableOutput(String),
    /// The other machine finds different states in the same recording.
    OtherStates {
        there: u64,
        here: u64,
    },
}

impl fmt::Display for ShareFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEnded => f.write_str("it has not ended"),
            Self::CutShort(reasons) if reasons.is_empty() => f.write_str("it was cut short"),
            Self::CutShort(reasons) => f.write_str(&reasons.join("; ")),
            Self::CancelledByOthers => f.write_str("cancelled in Slurm by someone else"),
            Self::CouldNotTest { node, error, run } => {
                write!(f, "on {}: ", node.as_deref().unwrap_or("another machine"))?;
                match error.as_deref().and_then(|error| error.lines().next()) {
                    Some(line) => f.write_str(line),
                    None => write!(f, "run {} shows why", run.short()),
                }
            }
            Self::BadAnswer { run, error } => {
                write!(f, "run {} has no answer: {error}", run.short())
            }
            Self::UnreadableOutput(error) => f.write_str(error),
            Self::OtherStates { there, here } => {
                write!(f, "{} there and {here} here", text::count(*there, "state"))
            }
        }
    }
}
