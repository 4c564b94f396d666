//! The error of a run: a stable code, what happened, and what to do about it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{LimitKind, SandboxPart};

/// Stable codes. The first four come from the specification; codes are never renumbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorCode {
    /// Command not found or not executable.
    #[serde(rename = "ACODE-EXE-001")]
    NotFound,
    #[serde(rename = "ACODE-EXE-002")]
    Timeout,
    /// The process failed: any non-zero exit or a signal.
    #[serde(rename = "ACODE-EXE-003")]
    Failed,
    /// The output exceeds the size limit of a result, or the capture limit.
    #[serde(rename = "ACODE-EXE-004")]
    OutputTooLarge,
    #[serde(rename = "ACODE-EXE-005")]
    InvalidRequest,
    #[serde(rename = "ACODE-EXE-006")]
    WorkingDirectory,
    #[serde(rename = "ACODE-EXE-007")]
    LimitExceeded,
    #[serde(rename = "ACODE-EXE-008")]
    Cancelled,
    /// The system could not start a process.
    #[serde(rename = "ACODE-EXE-009")]
    NoResources,
    /// The requested confinement is not available.
    #[serde(rename = "ACODE-EXE-010")]
    Sandbox,
}

impl ErrorCode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "ACODE-EXE-001",
            Self::Timeout => "ACODE-EXE-002",
            Self::Failed => "ACODE-EXE-003",
            Self::OutputTooLarge => "ACODE-EXE-004",
            Self::InvalidRequest => "ACODE-EXE-005",
            Self::WorkingDirectory => "ACODE-EXE-006",
            Self::LimitExceeded => "ACODE-EXE-007",
            Self::Cancelled => "ACODE-EXE-008",
            Self::NoResources => "ACODE-EXE-009",
            Self::Sandbox => "ACODE-EXE-010",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What the code alone does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorDetail {
    /// The limit that was exceeded.
    Limit(LimitKind),
    /// The reader of the output closed it.
    ReaderGone,
    /// The destination of the output could not be written.
    OutputNotWritable,
    /// The keeper of the run was killed.
    KeeperKilled,
    NotExecutable,
    /// The program names an interpreter that does not exist.
    MissingInterpreter,
    /// The kernel does not recognise the file's format.
    WrongFormat,
    /// The scheduler stopped it at the scheduler's time limit.
    SchedulerTimeLimit,
    /// The scheduler stopped it for using too much memory.
    SchedulerMemoryLimit,
    /// A part of the confinement is not allowed on this machine.
    SandboxPart(SandboxPart),
    /// The confinement on this machine cannot enforce every rule.
    SandboxDrops,
    /// This machine supports no level of confinement.
    NoSandbox,
    /// Its machine or its scheduler failed, so its end is unknown.
    RunLost,
}

/// Why a run did not succeed, for people and programs alike. The message names no option and no
/// command: the front end that has them writes the hint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunError {
    pub code: ErrorCode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<ErrorDetail>,
    pub message: String,
    pub hint: Option<String>,
    /// Every problem of a refused request; otherwise empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_match_their_serialized_form() {
        for code in [ErrorCode::NotFound, ErrorCode::OutputTooLarge, ErrorCode::NoResources] {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}
