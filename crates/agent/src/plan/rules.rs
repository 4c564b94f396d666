//! What a loop goes by: its mode, its limits, its budgets.

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

/// What may be spent; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budgets {
    pub cost_usd: Option<f64>,
    pub tokens: Option<u64>,
    /// Of the whole loop, with what it had used before a restart.
    pub time: Option<Duration>,
    /// Of this invocation alone.
    pub invocation_time: Option<Duration>,
    pub iteration_cost_usd: Option<f64>,
    pub iteration_tokens: Option<u64>,
}

/// Everything a loop goes by.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    pub mode: Mode,
    /// Iterations of this invocation.
    pub max_iterations: u32,
    pub delay: Duration,
    /// Consecutive iterations without work; 0 means never. Only in iterative mode.
    pub stagnation_threshold: u32,
    /// Consecutive failures; 0 means never.
    pub max_failures: u32,
    /// Consecutive iterations without progress; 0 means never.
    pub max_no_progress: u32,
    pub iteration_timeout: Duration,
    pub on_limit: OnLimit,
    /// A second agent takes over while the first one waits for a limit.
    pub fallback: bool,
    pub budgets: Budgets,
    pub backoff: Backoff,
    /// Completion must pass a gate, which may fail this often before the loop gives up.
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
