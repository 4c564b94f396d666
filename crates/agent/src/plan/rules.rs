//! What a loop goes by: its mode, its limits, its budgets.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Backoff;

/// How the agent works: one item at a time, or as much as it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    #[default]
    Loop,
    Iterative,
}

impl Mode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::Iterative => "iterative",
        }
    }

    pub fn default_max_iterations(self) -> u32 {
        match self {
            Self::Loop => 50,
            Self::Iterative => 20,
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "loop" => Ok(Self::Loop),
            "iterative" => Ok(Self::Iterative),
            _ => Err(format!("{text:?} is no mode; write loop or iterative")),
        }
    }
}

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
    pub time: Option<Duration>,
    pub iteration_cost_usd: Option<f64>,
    pub iteration_tokens: Option<u64>,
}

/// What was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    pub cost_usd: f64,
    pub tokens: u64,
}

/// Everything a loop goes by.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    pub mode: Mode,
    /// Iterations of this invocation.
    pub max_iterations: u32,
    pub delay: Duration,
    /// Consecutive iterations without work; 0 is never. Only in iterative mode.
    pub stagnation_threshold: u32,
    /// Consecutive failures; 0 is never.
    pub max_failures: u32,
    /// Consecutive iterations without progress; 0 is never.
    pub max_no_progress: u32,
    pub iteration_timeout: Duration,
    pub on_limit: OnLimit,
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
            budgets: Budgets::default(),
            backoff: Backoff::default(),
            verify: None,
        }
    }
}
