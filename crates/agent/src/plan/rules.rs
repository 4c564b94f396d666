//! The rules of a loop: its mode, its limits, its budgets.

use std::time::Duration;

use retake_types::loop_record::agent::Mode;

use super::Backoff;

/// What to do when the account's limit is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLimit {
    #[default]
    Wait,
    Stop,
}

/// The budgets; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budgets {
    pub cost_usd: Option<f64>,
    pub tokens: Option<u64>,
    /// For the whole loop, including its time before a restart.
    pub time: Option<Duration>,
    /// For this invocation alone.
    pub invocation_time: Option<Duration>,
    pub iteration_cost_usd: Option<f64>,
    pub iteration_tokens: Option<u64>,
}

/// All rules of a loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    pub mode: Mode,
    /// Maximum iterations of this invocation.
    pub max_iterations: u32,
    pub delay: Duration,
    /// Maximum consecutive iterations without work; 0 is unlimited. Only in iterative mode.
    pub stagnation_threshold: u32,
    /// Maximum consecutive failures; 0 is unlimited.
    pub max_failures: u32,
    /// Maximum consecutive iterations without progress; 0 is unlimited.
    pub max_no_progress: u32,
    pub iteration_timeout: Duration,
    pub on_limit: OnLimit,
    /// Whether a second agent takes over while the first one waits for a limit.
    pub fallback: bool,
    pub budgets: Budgets,
    pub backoff: Backoff,
    /// Completion must pass this verification, which may fail a limited number of times before the
    /// loop stops.
    pub verify: Option<Gate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    pub max_attempts: u32,
    pub resume_on_fail: bool,
}

impl Rules {
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            max_iterations: mode.default_max_iterations(),
            delay: Duration::from_secs(2),
            stagnation_threshold: 2,
            max_failures: 1,
            max_no_progress: 0,
            iteration_timeout: Duration::from_secs(1800),
            on_limit: OnLimit::Wait,
            fallback: false,
            budgets: Budgets::default(),
            backoff: Backoff::default(),
            verify: None,
        }
    }
}
