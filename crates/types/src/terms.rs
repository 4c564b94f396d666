//! How a run was asked for.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What a run was asked for beyond what its result shows, so that it can be repeated and compared
/// with. Records of retake 0.1.0 and earlier have none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terms {
    /// The program's file, when it could be found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramFile>,
    /// A short hash of each variable's name and of its value, secrets left out: enough to name what
    /// changed, not to tell a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variables: Option<String>,
    /// `inherit`, or a file; `None` is no input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pty: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nice: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// Which streams were kept; `None` is all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub detach: bool,
    /// Variables that were named as secrets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
}

impl Terms {
    pub(crate) fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

/// A program's file, told apart from a later one of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgramFile {
    pub path: String,
    pub bytes: u64,
    pub modified: Timestamp,
}
