//! The input of a search: its settings and observations.

use retake_types::Better;

/// How often a point is measured at most, unless set otherwise.
pub const MOST_SAMPLES: usize = 30;

/// The observation of one run at a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Observation {
    /// The exit code: 0 is good, 125 skips this point, all else is bad.
    Exit(i32),
    /// Counts as bad.
    TimedOut,
    /// The metric of a successful run, and of the paired run of the good end.
    Value { value: f64, beside: f64 },
    /// Nothing could run at this point: no browser, or no setup.
    Unavailable,
}

/// The criterion that makes a point bad.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Judge {
    ExitCode,
    /// The metric differs from the good end by more than this fraction, in the direction of the bad
    /// end; without a fraction, it is closer to the bad end than to the good one.
    Metric {
        threshold: Option<f64>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BisectSettings {
    pub judge: Judge,
    /// Stop when the answer has this probability.
    pub confidence: f64,
    /// Stop asking about a point after this many runs.
    pub most_samples: usize,
    /// Trust the ends and every answer, and halve the interval.
    pub quick: bool,
    /// The better direction of the metric, if known. A search for what made it better is refused.
    pub better: Option<Better>,
}

impl BisectSettings {
    pub fn new(judge: Judge) -> Self {
        Self { judge, confidence: 0.95, most_samples: MOST_SAMPLES, quick: false, better: None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BisectError {
    #[error("{0} is not one of the points to search")]
    Unknown(String),
    #[error("{0} is given as good and as bad; they must differ")]
    Same(String),
}
