//! What a search is asked, and what it is fed.

/// The observation of one run at a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Observation {
    /// The exit code: 0 is good, 125 means that this point cannot be judged, all else is bad.
    Exit(i32),
    /// Counts as bad: what hangs is not good.
    TimedOut,
    /// The metric of a successful run, and that of a run of the good end beside it.
    Value { value: f64, beside: f64 },
    /// Nothing could be run here: no browser, no setup.
    Unavailable,
}

/// What makes a point bad.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Judge {
    ExitCode,
    /// The metric differs from the good end by more than this part, in the direction of the bad end,
    /// or, without one, is closer to the bad end than to the good one.
    Metric {
        threshold: Option<f64>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BisectSettings {
    pub judge: Judge,
    /// Stop when the answer is this likely.
    pub confidence: f64,
    /// Stop asking one point after this many runs.
    pub most_samples: usize,
    /// Take the ends for what they are said to be and every answer for the truth: halving.
    pub quick: bool,
}

impl BisectSettings {
    pub fn new(judge: Judge) -> Self {
        Self { judge, confidence: 0.95, most_samples: 30, quick: false }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BisectError {
    #[error("{0} is not one of the points to search")]
    Unknown(String),
    #[error("{0} is given as good and as bad; they must differ")]
    Same(String),
}
