//! Why a loop stopped.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentStopReason {
    Completed,
    MaxIterations,
    Stagnation,
    NoProgress,
    Failed,
    BudgetCost,
    BudgetTokens,
    BudgetTime,
    RateLimit,
    VerifyFailed,
    Stopped,
    Interrupted,
}

impl AgentStopReason {
    pub const ALL: [Self; 12] = [
        Self::Completed,
        Self::MaxIterations,
        Self::Stagnation,
        Self::NoProgress,
        Self::Failed,
        Self::BudgetCost,
        Self::BudgetTokens,
        Self::BudgetTime,
        Self::RateLimit,
        Self::VerifyFailed,
        Self::Stopped,
        Self::Interrupted,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::MaxIterations => "max_iterations",
            Self::Stagnation => "stagnation",
            Self::NoProgress => "no_progress",
            Self::Failed => "failed",
            Self::BudgetCost => "budget_cost",
            Self::BudgetTokens => "budget_tokens",
            Self::BudgetTime => "budget_time",
            Self::RateLimit => "rate_limit",
            Self::VerifyFailed => "verify_failed",
            Self::Stopped => "stopped",
            Self::Interrupted => "interrupted",
        }
    }

    /// The exit code of `run`. `None` for an interrupt: that is 128 plus the signal.
    pub fn exit_code(self, fail_incomplete: bool) -> Option<u8> {
        let code = match self {
            Self::Completed => 0,
            Self::Failed | Self::VerifyFailed => return Some(1),
            Self::Interrupted => return None,
            Self::MaxIterations => 3,
            Self::Stagnation | Self::NoProgress => 4,
            Self::BudgetCost | Self::BudgetTokens | Self::BudgetTime => 5,
            Self::Stopped => 6,
            Self::RateLimit => 7,
        };
        Some(if fail_incomplete { code } else { 0 })
    }
}

impl fmt::Display for AgentStopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for AgentStopReason {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|reason| reason.as_str() == text)
            .ok_or_else(|| format!("{text:?} is not a stop reason"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_codes() {
        for reason in AgentStopReason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
            assert_eq!(reason.as_str().parse(), Ok(reason));
        }
        let codes = |fail| AgentStopReason::ALL.map(|reason| reason.exit_code(fail).unwrap_or(130));
        assert_eq!(codes(false), [0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 130]);
        assert_eq!(codes(true), [0, 3, 4, 4, 1, 5, 5, 5, 7, 1, 6, 130]);
    }
}
