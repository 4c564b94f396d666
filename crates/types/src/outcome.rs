//! How a run ended.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::SandboxFailure;

/// How a run ended, with the data that explains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The child exited with this code.
    Exited(i32),
    /// A signal that retake did not send killed the child.
    Signaled(i32),
    /// The timeout expired and retake ended the tree.
    TimedOut,
    /// The run was cancelled by this signal (SIGTERM if there was none).
    Cancelled(i32),
    /// A limit was exceeded; the signal is the one that killed the child.
    LimitExceeded(LimitKind, i32),
    /// The user's program never ran.
    NotStarted(StartFailure),
    /// The runner died; only found in the record.
    Interrupted,
}

/// The word for an outcome in JSON and in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    Exited,
    Signaled,
    TimedOut,
    Cancelled,
    LimitExceeded,
    NotStarted,
    Interrupted,
}

/// Which limit a run exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    Memory,
    Cpu,
    Procs,
    Files,
    Fsize,
}

/// Why nothing was started. The kind decides retake's exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartFailure {
    /// The request was invalid; every problem is listed.
    Refused(Vec<String>),
    /// The working directory cannot be used.
    WorkingDirectory(String),
    NotFound(String),
    NotExecutable(String),
    /// The program exists, but its interpreter (or loader) does not.
    MissingInterpreter(String),
    /// The kernel does not recognise the file's format.
    WrongFormat(String),
    /// The system could not start a process: no memory, no process slot, no descriptor.
    NoResources(String),
    /// The requested confinement is not available.
    Sandbox(SandboxFailure),
}

impl Outcome {
    pub fn kind(&self) -> OutcomeKind {
        match self {
            Self::Exited(_) => OutcomeKind::Exited,
            Self::Signaled(_) => OutcomeKind::Signaled,
            Self::TimedOut => OutcomeKind::TimedOut,
            Self::Cancelled(_) => OutcomeKind::Cancelled,
            Self::LimitExceeded(..) => OutcomeKind::LimitExceeded,
            Self::NotStarted(_) => OutcomeKind::NotStarted,
            Self::Interrupted => OutcomeKind::Interrupted,
        }
    }

    /// retake's exit code; `None` when no process was left to exit.
    pub fn exit_code(&self) -> Option<i32> {
        Some(match self {
            Self::Exited(code) => *code,
            Self::Signaled(signal) | Self::Cancelled(signal) | Self::LimitExceeded(_, signal) => {
                128 + signal
            }
            Self::TimedOut => 124,
            Self::NotStarted(failure) => failure.exit_code(),
            Self::Interrupted => return None,
        })
    }

    pub fn success(&self) -> bool {
        matches!(self, Self::Exited(0))
    }

    /// The signal that killed or cancelled the run.
    pub fn signal(&self) -> Option<i32> {
        match self {
            Self::Signaled(signal) | Self::Cancelled(signal) | Self::LimitExceeded(_, signal) => {
                Some(*signal)
            }
            _ => None,
        }
    }
}

impl StartFailure {
    fn exit_code(&self) -> i32 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable(_) | Self::MissingInterpreter(_) | Self::WrongFormat(_) => 126,
            Self::Refused(_)
            | Self::WorkingDirectory(_)
            | Self::NoResources(_)
            | Self::Sandbox(_) => 125,
        }
    }
}

impl fmt::Display for StartFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(problems) => f.write_str(&problems.join("; ")),
            Self::WorkingDirectory(message)
            | Self::NotFound(message)
            | Self::NotExecutable(message)
            | Self::MissingInterpreter(message)
            | Self::WrongFormat(message)
            | Self::NoResources(message) => f.write_str(message),
            Self::Sandbox(failure) => write!(f, "the command cannot be confined: {failure}"),
        }
    }
}

impl OutcomeKind {
    pub const ALL: [Self; 7] = [
        Self::Exited,
        Self::Signaled,
        Self::TimedOut,
        Self::Cancelled,
        Self::LimitExceeded,
        Self::NotStarted,
        Self::Interrupted,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Signaled => "signaled",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::LimitExceeded => "limit_exceeded",
            Self::NotStarted => "not_started",
            Self::Interrupted => "interrupted",
        }
    }
}

impl fmt::Display for OutcomeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl LimitKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Procs => "procs",
            Self::Files => "files",
            Self::Fsize => "fsize",
        }
    }
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The usual name of a Linux signal, `SIGTERM` for 15; real-time signals count from `SIGRTMIN`.
pub fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    match signal {
        1..=31 => format!("SIG{}", NAMES[signal as usize - 1]),
        34..=64 => format!("SIGRTMIN+{}", signal - 34),
        other => format!("signal {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_follow_the_shell() {
        let code = |outcome: Outcome| outcome.exit_code();
        assert_eq!(code(Outcome::Exited(42)), Some(42));
        assert_eq!(code(Outcome::TimedOut), Some(124));
        assert_eq!(code(Outcome::NotStarted(StartFailure::Refused(vec![]))), Some(125));
        assert_eq!(code(Outcome::NotStarted(StartFailure::WrongFormat("x".into()))), Some(126));
        assert_eq!(code(Outcome::NotStarted(StartFailure::NotFound("x".into()))), Some(127));
        assert_eq!(code(Outcome::Signaled(11)), Some(139));
        assert_eq!(code(Outcome::Cancelled(2)), Some(130));
        assert_eq!(code(Outcome::Interrupted), None);
    }

    #[test]
    fn outcome_words_match_their_serialized_form() {
        for word in OutcomeKind::ALL {
            assert_eq!(serde_json::to_value(word).unwrap(), word.as_str());
        }
    }

    #[test]
    fn signals_have_their_names() {
        assert_eq!(signal_name(2), "SIGINT");
        assert_eq!(signal_name(25), "SIGXFSZ");
        assert_eq!(signal_name(31), "SIGSYS");
        assert_eq!(signal_name(34), "SIGRTMIN+0");
        assert_eq!(signal_name(0), "signal 0");
    }
}
