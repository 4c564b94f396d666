//! Input and output of a plan.

use std::time::Duration;

use retake_types::loop_record::agent::{Iteration, IterationStatus, Spent, WaitCause};

use super::AgentStopReason;

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
    /// After this iteration and its gate.
    pub stop: bool,
    /// At once.
    pub stop_now: bool,
    pub pause: bool,
    pub interrupt: bool,
}

/// Which of a loop's agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AgentRole {
    #[default]
    First,
    /// The one that takes over while the first waits for a limit.
    Fallback,
}

impl AgentRole {
    pub(super) fn other(self) -> Self {
        match self {
            Self::First => Self::Fallback,
            Self::Fallback => Self::First,
        }
    }

    pub(crate) fn index(self) -> usize {
        match self {
            Self::First => 0,
            Self::Fallback => 1,
        }
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Run iteration `number`; `attempt` counts from 1 and is more after a limit or an API error.
    Iterate {
        number: u32,
        attempt: u32,
        agent: AgentRole,
        timeout: Duration,
        max_cost_usd: Option<f64>,
    },
    /// The agent says that it is done: check, within the time that is left.
    Verify {
        attempt: u32,
        agent: AgentRole,
        left: Option<Duration>,
    },
    /// Nothing for this long, unless something is requested.
    Wait {
        why: WaitReason,
        remaining: Duration,
    },
    /// Nothing until resumed.
    Pause,
    Stop(AgentStopReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// Between two iterations.
    Delay,
    RateLimit {
        resets_at: i64,
    },
    Backoff {
        attempt: u32,
    },
}

impl WaitReason {
    /// Why the loop waits, where that is worth telling.
    pub fn cause(self) -> Option<WaitCause> {
        match self {
            Self::Delay => None,
            Self::RateLimit { .. } => Some(WaitCause::RateLimit),
            Self::Backoff { .. } => Some(WaitCause::Retry),
        }
    }
}

/// The result of an iteration, for the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IterationReport {
    pub outcome: IterationOutcome,
    /// The agent says, in this iteration, that the task is complete.
    pub complete: bool,
    /// What it said of its own work in this iteration.
    pub worked: Option<bool>,
    /// What was seen of it; unknown where nothing was tracked.
    pub progress: Option<bool>,
    pub spent: Spent,
}

impl IterationReport {
    pub fn new(outcome: IterationOutcome) -> Self {
        Self { outcome, complete: false, worked: None, progress: None, spent: Spent::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IterationOutcome {
    Completed,
    Failed,
    TimedOut,
    /// A hook said to leave this iteration out.
    Skipped,
    /// A hook said to end the loop.
    HookStopped,
    Interrupted,
    /// Cut off because it used up what it may spend.
    OverBudget(AgentStopReason),
    RateLimited {
        resets_at: Option<i64>,
    },
    /// `limit` where the service says that too much was asked of it.
    Transient {
        limit: bool,
    },
}

impl IterationOutcome {
    /// Whether another agent, with another account, would do better.
    pub(super) fn is_limit(self) -> bool {
        matches!(self, Self::RateLimited { .. } | Self::Transient { limit: true })
    }
}

/// An iteration of a loop that broke off, as far as the plan must know it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PastIteration {
    pub number: u32,
    pub status: IterationStatus,
    pub worked: Option<bool>,
    pub progress: Option<bool>,
    pub spent: Spent,
    pub duration: Duration,
}

impl From<&Iteration> for PastIteration {
    fn from(iteration: &Iteration) -> Self {
        Self {
            number: iteration.number,
            status: iteration.status,
            worked: iteration.facts.worked,
            progress: iteration.progress(),
            spent: iteration.spent(),
            duration: Duration::from_millis(iteration.duration_ms().unwrap_or(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use retake_types::loop_record::agent::IterationResult;

    use super::*;

    #[test]
    fn an_iteration_feeds_the_plan() {
        let mut iteration = Iteration::new(4, "p".into(), Timestamp::UNIX_EPOCH);
        let result = IterationResult {
            progress_detected: Some(true),
            duration_ms: 1500,
            ..IterationResult::default()
        };
        iteration.end(IterationStatus::Failed, Timestamp::UNIX_EPOCH, Some(result));
        iteration.facts.cost_usd = Some(0.25);
        iteration.facts.tokens = Some(17);
        iteration.facts.worked = Some(false);
        let past = PastIteration::from(&iteration);
        assert_eq!((past.number, past.worked, past.progress), (4, Some(false), Some(true)));
        assert_eq!(past.spent, Spent { cost_usd: 0.25, tokens: 17 });
        assert_eq!(past.duration, Duration::from_millis(1500));
    }
}
