//! What a plan is told and what it answers.

use std::time::Duration;

use super::{Spent, StopReason};
use crate::iteration::IterationStatus;

/// What time it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Now {
    /// Since this invocation began.
    pub elapsed: Duration,
    /// Seconds since 1970.
    pub unix: i64,
}

/// What others want of the loop at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    pub stop: bool,
    pub pause: bool,
    pub interrupt: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Run iteration `number`; `attempt` counts from 1 and is more after a limit or an API error.
    Iterate {
        number: u32,
        attempt: u32,
        timeout: Duration,
        max_cost_usd: Option<f64>,
    },
    /// The agent says that it is done: check, within the time that is left.
    Verify {
        attempt: u32,
        left: Option<Duration>,
    },
    /// Nothing for this long, unless something is requested.
    Wait {
        why: Why,
        remaining: Duration,
    },
    /// Nothing until resumed.
    Pause,
    Stop(StopReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Between two iterations.
    Delay,
    RateLimit {
        resets_at: i64,
    },
    Backoff {
        attempt: u32,
    },
}

/// What an iteration came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    pub ending: Ending,
    /// The agent says, in this iteration, that the task is complete.
    pub complete: bool,
    /// What it said of its own work in this iteration.
    pub worked: Option<bool>,
    /// What was seen of it; unknown where nothing was tracked.
    pub progress: Option<bool>,
    pub spent: Spent,
}

impl Report {
    pub fn new(ending: Ending) -> Self {
        Self { ending, complete: false, worked: None, progress: None, spent: Spent::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ending {
    Completed,
    Failed,
    TimedOut,
    /// A hook said to leave this iteration out.
    Skipped,
    /// A hook said to end the loop.
    HookStopped,
    Interrupted,
    /// Cut off because it used up what it may spend.
    OverBudget(StopReason),
    RateLimited {
        resets_at: Option<i64>,
    },
    Transient,
}

/// An iteration of a loop that broke off, as far as the plan must know it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Past {
    pub number: u32,
    pub status: IterationStatus,
    pub worked: Option<bool>,
    pub progress: Option<bool>,
    pub spent: Spent,
    pub duration: Duration,
}
