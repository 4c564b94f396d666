//! Input and output of a plan.

use std::time::Duration;

use retake_types::loop_record::agent::{Iteration, IterationStatus, Spent, WaitCause};

use super::AgentStopReason;

/// The current time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Now {
    /// Since this invocation began.
    pub elapsed: Duration,
    /// Seconds since 1970.
    pub unix: i64,
}

/// Current requests of other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Stop after this iteration and its verification.
    pub stop: bool,
    /// Stop immediately.
    pub stop_now: bool,
    pub pause: bool,
    pub interrupt: bool,
}

/// The role of one of a loop's agents.
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

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Run iteration `number`; `attempt` counts from 1 and increases after a limit or an API error.
    Iterate {
        number: u32,
        attempt: u32,
        agent: AgentRole,
        timeout: Duration,
        max_cost_usd: Option<f64>,
    },
    /// The agent reports completion: verify within the remaining time.
    Verify {
        attempt: u32,
        agent: AgentRole,
        left: Option<Duration>,
    },
    /// Wait this long, unless there is a request.
    Wait {
        why: WaitReason,
        remaining: Duration,
    },
    /// Wait until resumed.
    Pause,
    Stop(AgentStopReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The delay between two iterations.
    Delay,
    RateLimit {
        resets_at: i64,
    },
    Backoff {
        attempt: u32,
    },
}

impl WaitReason {
    /// Why the loop waits, if that should be shown.
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
    /// Whether the agent reported in this iteration that the task is complete.
    pub complete: bool,
    /// What it reported about its own work in this iteration.
    pub worked: Option<bool>,
    /// Observed progress; `None` if nothing was tracked.
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
    /// A hook skipped this iteration.
    Skipped,
    /// A hook ended the loop.
    HookStopped,
    Interrupted,
    /// Stopped because it exhausted a budget.
    OverBudget(AgentStopReason),
    RateLimited {
        resets_at: Option<i64>,
    },
    /// `limit` if the service reported too many requests.
    Transient {
        limit: bool,
    },
}

impl IterationOutcome {
    /// Whether another agent, with another account, could continue.
    pub(super) fn is_limit(self) -> bool {
        matches!(self, Self::RateLimited { .. } | Self::Transient { limit: true })
    }
}

/// An iteration of an interrupted loop, as the plan needs it.
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
