//! The state of a loop, and why it stopped.
//!
//! Both are words in the database. A word that this release does not know is kept unchanged.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The state of a loop.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LoopState {
    /// From its start until it has a stop reason, even if its runner died.
    Running,
    /// It has a stop reason.
    Finished,
    Other(String),
}

/// Why a loop stopped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// Everything that was planned is done.
    Completed,
    /// Some of what was planned could not be done.
    Incomplete,
    Failed,
    /// A signal stopped it, or its runner died.
    Interrupted,
    /// A user stopped it.
    Stopped,
    /// Agent: the configured number of iterations is reached.
    MaxIterations,
    /// Agent: too many iterations without progress.
    Stagnation,
    /// Agent: no progress at all.
    NoProgress,
    BudgetCost,
    BudgetTokens,
    BudgetTime,
    RateLimit,
    /// Agent: verification failed too often.
    VerifyFailed,
    /// Crash: every state was checked and none lost data.
    Clean,
    /// Crash: some states lost data.
    Findings,
    /// Crash: the time ran out before all states were checked.
    Budget,
    /// Crash: no state could be checked.
    CouldNotTest,
    Other(String),
}

impl LoopState {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Other(word) => word,
        }
    }
}

impl From<&str> for LoopState {
    fn from(word: &str) -> Self {
        match word {
            "running" => Self::Running,
            "finished" => Self::Finished,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl StopReason {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Stopped => "stopped",
            Self::MaxIterations => "max_iterations",
            Self::Stagnation => "stagnation",
            Self::NoProgress => "no_progress",
            Self::BudgetCost => "budget_cost",
            Self::BudgetTokens => "budget_tokens",
            Self::BudgetTime => "budget_time",
            Self::RateLimit => "rate_limit",
            Self::VerifyFailed => "verify_failed",
            Self::Clean => "clean",
            Self::Findings => "findings",
            Self::Budget => "budget",
            Self::CouldNotTest => "could not test",
            Self::Other(word) => word,
        }
    }
}

impl From<&str> for StopReason {
    fn from(word: &str) -> Self {
        match word {
            "completed" => Self::Completed,
            "incomplete" => Self::Incomplete,
            "failed" => Self::Failed,
            "interrupted" => Self::Interrupted,
            "stopped" => Self::Stopped,
            "max_iterations" => Self::MaxIterations,
            "stagnation" => Self::Stagnation,
            "no_progress" => Self::NoProgress,
            "budget_cost" => Self::BudgetCost,
            "budget_tokens" => Self::BudgetTokens,
            "budget_time" => Self::BudgetTime,
            "rate_limit" => Self::RateLimit,
            "verify_failed" => Self::VerifyFailed,
            "clean" => Self::Clean,
            "findings" => Self::Findings,
            "budget" => Self::Budget,
            "could not test" => Self::CouldNotTest,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// Implements what both kinds of word share.
macro_rules! word {
    ($($name:ident),*) => {$(
        impl FromStr for $name {
            type Err = Infallible;

            fn from_str(word: &str) -> Result<Self, Infallible> {
                Ok(Self::from(word))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Ok(Self::from(String::deserialize(deserializer)?.as_str()))
            }
        }
    )*};
}

word!(LoopState, StopReason);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_reasons_round_trip_and_unknown_ones_are_kept() {
        let reasons = [
            "completed",
            "incomplete",
            "failed",
            "interrupted",
            "stopped",
            "max_iterations",
            "stagnation",
            "no_progress",
            "budget_cost",
            "budget_tokens",
            "budget_time",
            "rate_limit",
            "verify_failed",
            "clean",
            "findings",
            "budget",
            "could not test",
        ];
        for word in reasons {
            let reason = StopReason::from(word);
            assert_eq!(reason.as_str(), word);
            assert!(!matches!(reason, StopReason::Other(_)), "{word}");
        }
        assert_eq!(StopReason::from("bored"), StopReason::Other("bored".into()));
        assert_eq!(LoopState::from("running"), LoopState::Running);
        assert_eq!(LoopState::from("finished").as_str(), "finished");
        assert_eq!(LoopState::from("paused").as_str(), "paused");
        let json = serde_json::to_string(&StopReason::CouldNotTest).unwrap();
        assert_eq!(json, "\"could not test\"");
        assert_eq!(serde_json::from_str::<StopReason>(&json).unwrap(), StopReason::CouldNotTest);
    }
}
