//! Errors in settings. The texts name the key; a front end whose user set a value differently, such
//! as by a flag, names that instead.

use retake_types::UnitError;

use crate::adapters::AgentKind;
use crate::notify::UnknownEvent;

/// All errors in some settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct SettingsErrors(pub Vec<SettingError>);

/// One error; paths are without the prefix `agent.`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    #[error("there is no key agent.{path}")]
    UnknownKey { path: String },
    #[error("agent.{path}: {reason}")]
    Invalid { path: String, reason: InvalidSetting },
}

/// Why a value is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSetting {
    #[error("takes one value, not a list")]
    NotOneValue,
    #[error("takes a list")]
    NotAList,
    #[error("takes names with values")]
    NotPairs,
    #[error("is empty")]
    Empty,
    #[error("{0:?} is not a file name")]
    NotFileName(String),
    #[error("{0:?} is not an address; it starts with http:// or https://")]
    NotAddress(String),
    #[error("{0:?} is neither true nor false")]
    NotTruth(String),
    #[error("{given:?} is not one of {}", .words.join(", "))]
    NotAmong { given: String, words: &'static [&'static str] },
    #[error("{given:?} is not a whole number from {min} to {max}")]
    NotNumber { given: String, min: u64, max: u64 },
    #[error("{0:?} is not an amount of money above 0")]
    NotMoney(String),
    #[error(transparent)]
    NotDuration(#[from] UnitError),
    #[error("must be longer than 0")]
    ZeroDuration,
    #[error(transparent)]
    UnknownEvent(#[from] UnknownEvent),
}

/// A setting that cannot work with the chosen agent. Refused, because an ignored limit is worse
/// than none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsupportedSetting {
    /// A cost budget for an agent that does not report its cost.
    CostNotReported { path: &'static str, kind: AgentKind },
    /// A token budget for an agent that does not report them.
    TokensNotReported { path: &'static str, kind: AgentKind },
    /// A limit on iterations without progress, without tracking of file changes.
    ProgressNotTracked,
    /// A custom agent without a program; with the key that would set it.
    NoCommand { path: &'static str },
    /// The fallback would reach the same limit.
    FallbackIsSame { kind: AgentKind },
}
