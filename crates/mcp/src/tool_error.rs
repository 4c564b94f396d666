//! Why a tool failed, in terms of tools and their arguments: a model has no
//! command line.

use std::fmt;
use std::io;

use retake_policy::PolicyRefusal;
use retake_runner::again::AgainRefusal;
use retake_types::{RefusalReason, RunId, text};
use rmcp::model::{CallToolResult, ContentBlock};

use super::policy_words;

/// Why a tool failed, so that the model can react. Never a protocol error: clients
/// hide those from their models.
#[derive(Debug)]
pub(super) enum ToolError {
    /// Invalid arguments of a tool that runs a command; every problem is named.
    RunArguments(Vec<String>),
    /// An invalid argument of a tool that does not run anything.
    Argument(String),
    /// The request is invalid; every reason as a sentence. Recorded under this run, if runs are
    /// recorded and that succeeded.
    InvalidRequest {
        reasons: Vec<String>,
        recorded: Option<Result<RunId, Box<retake_store::Error>>>,
    },
    /// A recorded run cannot be run again.
    NotRepeatable(Vec<AgainRefusal>),
    /// The run could not be recorded, which the configuration requires.
    NotRecordable(retake_store::Error),
    /// The project's policy refuses it. The refusal is recorded under this run, if that succeeded.
    Policy {
        refusals: Vec<PolicyRefusal>,
        recorded: Result<RunId, Box<retake_store::Error>>,
    },
    Store(retake_store::Error),
    /// The text names several runs; one line for each.
    Ambiguous {
        text: String,
        candidates: Vec<String>,
    },
    /// No process could be started.
    NoProcess(io::Error),
    /// An error of the server itself.
    Other(String),
}

impl ToolError {
    pub(super) fn argument(problem: impl Into<String>) -> Self {
        Self::Argument(problem.into())
    }

    pub(super) fn into_result(self) -> CallToolResult {
        CallToolResult::error(vec![ContentBlock::text(self.to_string())])
    }
}

impl From<retake_store::Error> for ToolError {
    fn from(error: retake_store::Error) -> Self {
        Self::Store(error)
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunArguments(problems) => write!(f, "not run: {}", problems.join("; ")),
            Self::Argument(problem) => f.write_str(problem),
            Self::InvalidRequest { reasons, recorded } => {
                write!(f, "not run: {}", reasons.join("; "))?;
                recorded.as_ref().map_or(Ok(()), |recorded| write_recorded(f, recorded))
            }
            Self::NotRepeatable(refusals) => {
                let refusals: Vec<String> = refusals.iter().map(again_refusal).collect();
                write!(f, "not run: {}", refusals.join("; "))
            }
            Self::NotRecordable(error) => write!(
                f,
                "not run: it cannot be recorded, and execution.audit.required is set: {}",
                store_error(error)
            ),
            Self::Policy { refusals, recorded } => {
                let reasons: Vec<String> = refusals.iter().map(policy_words::reason).collect();
                let reasons = reasons.join("; ");
                let advice = policy_words::advice(refusals);
                write!(f, "refused by this project's policy: {reasons}. {advice}")?;
                write_recorded(f, recorded)
            }
            Self::Store(error) => f.write_str(&store_error(error)),
            Self::Ambiguous { text, candidates } => write!(
                f,
                "`{text}` names several runs; give more digits of one of these:\n{}",
                candidates.join("\n")
            ),
            Self::NoProcess(error) => {
                write!(f, "could not start a process: {}", text::plain(error))
            }
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// Says where a refusal is recorded.
fn write_recorded(
    f: &mut fmt::Formatter<'_>,
    recorded: &Result<RunId, Box<retake_store::Error>>,
) -> fmt::Result {
    match recorded {
        Ok(id) => write!(f, " (recorded as run {})", id.short()),
        Err(error) => write!(f, " (this could not be recorded: {})", store_error(error)),
    }
}

/// Why a request is invalid.
pub(super) fn refusal_reason(reason: &RefusalReason) -> String {
    match reason {
        RefusalReason::DirectoryMissing(path) => format!(
            "working directory {}: there is no such directory; create it or correct cwd",
            path.display()
        ),
        RefusalReason::StringTooLong { string, bytes, limit } => format!(
            "{string} is {bytes} bytes long and the kernel takes at most {limit}; pass it in a file"
        ),
        RefusalReason::StringsTooLong { bytes, limit } => format!(
            "the arguments and variables are {bytes} bytes together and the kernel takes {limit} here; pass data in a file, or raise `ulimit -s`"
        ),
        RefusalReason::ShellNeeded(why) => {
            format!("{why}, which needs a shell, and \"shell\" is false; give argv instead")
        }
        other => other.to_string(),
    }
}

fn again_refusal(refusal: &AgainRefusal) -> String {
    match refusal {
        AgainRefusal::VariableNotSet { name } => format!(
            "the variable {name} was redacted in the record and is not set for this server; use exec"
        ),
        AgainRefusal::RedactedArgument { .. } => {
            "an argument was redacted in the record, so its value is unknown; use exec".to_owned()
        }
        AgainRefusal::RedactedPart(_) => {
            "a path was redacted in the record, so its value is unknown; use exec".to_owned()
        }
        AgainRefusal::Reported => {
            "the run was reported from inside a sandbox, by a program that could report anything; use exec".to_owned()
        }
        AgainRefusal::NoArguments => "the record has no usable arguments; use exec".to_owned(),
    }
}

/// Why the record failed. Commands that help are for the user to run.
pub(super) fn store_error(error: &retake_store::Error) -> String {
    use retake_store::Error;
    match error {
        Error::NotFound { text } => {
            format!("no run matches `{text}`; runs_list shows the recorded runs")
        }
        Error::DiskFull { path } => format!(
            "the disk of {} is full; free some space (for the user: `retake runs prune` helps) and run again",
            path.display()
        ),
        Error::BadEntry { seq, detail } => format!(
            "ledger entry {seq} cannot be read: {detail}; for the user: `retake audit verify` shows the place"
        ),
        Error::OutputDamaged { .. } | Error::OrderAltered { .. } | Error::Reading { .. } => {
            format!("{error}; for the user: `retake audit verify` finds everything that is damaged")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_speak_of_tools() {
        let missing = retake_store::Error::NotFound { text: "abc".to_owned() };
        assert_eq!(
            ToolError::from(missing).to_string(),
            "no run matches `abc`; runs_list shows the recorded runs"
        );
        let reasons = [
            RefusalReason::DirectoryMissing("/x".into()),
            RefusalReason::StringsTooLong { bytes: 9, limit: 8 },
            RefusalReason::ShellNeeded("`|` is a shell operator".to_owned()),
        ];
        assert_eq!(
            ToolError::InvalidRequest {
                reasons: reasons.iter().map(refusal_reason).collect(),
                recorded: None
            }
            .to_string(),
            "not run: working directory /x: there is no such directory; create it or correct cwd; \
             the arguments and variables are 9 bytes together and the kernel takes 8 here; pass \
             data in a file, or raise `ulimit -s`; `|` is a shell operator, which needs a shell, \
             and \"shell\" is false; give argv instead"
        );
    }
}
