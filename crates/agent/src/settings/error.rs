//! What can be wrong with settings. The texts name the key; a front end whose user gave a value in
//! another way, such as by a flag, names that instead.

use retake_types::UnitError;

use crate::adapters::AgentKind;
use crate::notify::UnknownEvent;

/// Everything that is wrong with some settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct SettingsErrors(pub Vec<SettingError>);

/// One thing that is wrong; paths are without the `agent.` in front.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    #[error("there is no key agent.{path}")]
    UnknownKey { path: String },
    #[error("agent.{path}: {reason}")]
    Invalid { path: String, reason: InvalidSetting },
}

/// Why a value cannot be used.
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

/// A setting that cannot be kept with the chosen agent. Refused, since an ignored limit is worse
/// than none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsupportedSetting {
    /// A budget of money for an agent that does not report its cost.
    CostNotReported { path: &'static str, kind: AgentKind },
    /// A budget of tokens for an agent that does not report them.
    TokensNotReported { path: &'static str, kind: AgentKind },
    /// A limit of iterations without progress, while file changes are not tracked.
    ProgressNotTracked,
    /// A custom agent without a program; the key that would name it.
    NoCommand { path: &'static str },
    /// The fallback would meet the same limit.
    FallbackIsSame { kind: AgentKind },
}
