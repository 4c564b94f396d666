//! Why a recording failed. An incomplete recording is never returned, so
//! with every variant there is none.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a workload was not recorded.
#[derive(Debug)]
#[non_exhaustive]
pub enum RecordError {
    /// Watching a process is not allowed here: a container or a security module forbids it, or
    /// another tracer is attached already. Re-execution still works, and is weaker.
    Forbidden {
        /// The system's error.
        source: io::Error,
    },
    /// The recorder does not support this processor or kernel.
    Unsupported {
        /// Why.
        why: String,
    },
    /// The program could not be started.
    Start {
        /// The program.
        program: OsString,
        /// The system's error.
        source: io::Error,
    },
    /// The watched directory cannot be read.
    Root {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The watched directory was moved or removed.
    Moved {
        /// The directory.
        path: PathBuf,
    },
    /// The workload did something to the directory that no model understands.
    Refused {
        /// The system call.
        call: String,
        /// Why.
        why: String,
    },
    /// The workload did not end in time.
    TimedOut {
        /// Its time limit.
        limit: Duration,
    },
    /// The caller cancelled the recording.
    Cancelled,
    /// The replayed log differs from the directory on disk.
    Differs {
        /// The differences, as sentences.
        differences: Vec<String>,
    },
    /// The system refused something that the recorder needs.
    System {
        /// What it is.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

impl RecordError {
    /// Whether only re-execution, the weaker method, is possible.
    pub fn needs_re_execution(&self) -> bool {
        matches!(self, Self::Forbidden { .. } | Self::Unsupported { .. })
    }

    /// The system refused something that `what` needs.
    pub fn system(what: impl Into<String>, source: io::Error) -> Self {
        Self::System { what: what.into(), source }
    }
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forbidden { source } => write!(
                f,
                "a process may not be watched here ({source}); a container needs the right to \
                 ptrace, and no debugger may be attached"
            ),
            Self::Unsupported { why } => write!(f, "recording does not work here: {why}"),
            Self::Start { program, source } => {
                write!(f, "cannot start {}: {source}", program.to_string_lossy())
            }
            Self::Root { path, source } => write!(f, "cannot read {}: {source}", path.display()),
            Self::Moved { path } => write!(
                f,
                "the workload removed or renamed {} itself; watch the directory above it instead",
                path.display()
            ),
            Self::Refused { call, why } => write!(f, "`{call}` cannot be recorded: {why}"),
            Self::TimedOut { limit } => {
                write!(f, "the workload did not finish within {limit:?}")
            }
            Self::Cancelled => f.write_str("the recording was cancelled"),
            Self::Differs { differences } => {
                f.write_str("the recording does not match the directory")?;
                for difference in differences.iter().take(5) {
                    write!(f, "; {difference}")?;
                }
                match differences.len() {
                    0..=5 => f.write_str("; something outside the workload may have written there"),
                    n => write!(f, "; and {} more", n - 5),
                }
            }
            Self::System { what, source } => write!(f, "{what}: {source}"),
        }
    }
}

impl std::error::Error for RecordError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Forbidden { source }
            | Self::Start { source, .. }
            | Self::Root { source, .. }
            | Self::System { source, .. } => Some(source),
            _ => None,
        }
    }
}
