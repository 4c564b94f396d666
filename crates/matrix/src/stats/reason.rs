//! Why a comparison is not decided.

use std::fmt;

use serde::{Serialize, Serializer};

/// Why a comparison is undecided; or, if it is equal without samples, why that is so.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// A side has no successful run with this metric.
    NoValues { side: String, metric: String },
    /// Too few samples of a side.
    TooFew { samples: usize, needed: usize },
    /// Too few samples for this number of simultaneous comparisons.
    TooFewForFamily { samples: usize, comparisons: usize, needed: usize },
    /// Too few blocks for a sequence.
    TooFewBlocks { blocks: usize },
    /// The interval is too wide.
    Wide { low: f64, high: f64, difference: bool },
    /// The steps between values are larger than the margin: this fraction of a value.
    Coarse { step: f64, part: f64, margin: f64 },
    /// The ratio changed during the measurement.
    Inconstant,
    /// The two sides were not measured in turn in one session, so the numbers include changes of
    /// the machine. `together` samples were.
    DifferentSessions { together: usize },
    /// The cells of one session ran one after the other.
    NotInterleaved,
    /// Two names of one thing.
    Identical { what: String },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoValues { side, metric } => {
                write!(f, "{side} has no successful run that reports {metric}")
            }
            Self::TooFew { samples, needed } => {
                write!(
                    f,
                    "only {}; at least {needed} of each side are needed",
                    count_text(*samples)
                )
            }
            Self::TooFewForFamily { samples, comparisons, needed } => write!(
                f,
                "only {}; {comparisons} comparisons at once need {needed} of each side",
                count_text(*samples)
            ),
            Self::TooFewBlocks { blocks } => {
                write!(f, "{blocks} blocks are too few to say anything")
            }
            Self::Wide { low, high, difference: false } => {
                write!(f, "anything from {} to {} is possible", percent(*low), percent(*high))
            }
            Self::Wide { low, high, difference: true } => {
                write!(f, "anything from {low:+} to {high:+} is possible")
            }
            Self::Coarse { step, part, margin } => write!(
                f,
                "values come in steps of {step}, {:.1} % of them, which is too coarse for a margin \
                 of {:.1} %",
                100.0 * part,
                100.0 * margin
            ),
            Self::Inconstant => write!(f, "the ratio was not the same all the time"),
            Self::DifferentSessions { together: 0 } => write!(
                f,
                "they were measured in different sessions, and the machine may have changed in between"
            ),
            Self::DifferentSessions { together } => write!(
                f,
                "only {together} samples of a side were measured in the same session; between \
                 sessions the machine may have changed"
            ),
            Self::NotInterleaved => write!(
                f,
                "they ran one after the other and not in turn, so a change of the machine looks \
                 like one of theirs"
            ),
            Self::Identical { what } => write!(f, "both are {what}"),
        }
    }
}

fn count_text(samples: usize) -> String {
    format!("{samples} {}", if samples == 1 { "sample" } else { "samples" })
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A ratio as a change: `+4.2 %`.
pub fn percent(ratio: f64) -> String {
    format!("{:+.1} %", (ratio - 1.0) * 100.0)
}
