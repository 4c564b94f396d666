//! Why a request is refused before anything is started.
//!
//! One variant per reason, with its data. The sentences name the part of the request, never an
//! option of a command line: a front end maps [`RefusalReason::field`] to its own option.

use std::fmt;
use std::path::PathBuf;

use crate::{HostProblem, ParentProxyProblem, UnitError};

/// One reason why a request is refused. Its text says what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    EmptyCommand,
    /// A NUL byte would end the string for the program.
    NulByte(RequestString),
    VariableName {
        name: String,
    },
    ZeroTimeout,
    Timeout(UnitError),
    /// One string exceeds the kernel's limit.
    StringTooLong {
        string: RequestString,
        bytes: usize,
        limit: usize,
    },
    /// All strings together exceed the kernel's limit.
    StringsTooLong {
        bytes: usize,
        limit: usize,
    },
    DirectoryMissing(PathBuf),
    DirectoryIsFile(PathBuf),
    /// Its x permission is missing.
    DirectoryClosed(PathBuf),
    /// The front end's current directory was removed, and the request names no other.
    CurrentDirectoryGone,
    /// The system's error for a directory.
    Directory {
        path: PathBuf,
        why: String,
    },
    /// The system's error for the file for stdin.
    StdinFile {
        path: PathBuf,
        why: String,
    },
    /// The command line needs a shell, and none is allowed.
    ShellNeeded(String),
    /// A secret whose value is not transferred and that this machine does not have.
    HostSecretMissing {
        name: String,
    },
    /// A variable named as a secret that is not set anywhere.
    UnknownSecret {
        name: String,
    },
    /// A variable named as a secret whose value is too short to search for.
    ShortSecret {
        name: String,
        shortest: usize,
    },
    /// A configured pattern that is not NAME=REGEX.
    RedactionPattern {
        pattern: String,
    },
    /// The search for secrets cannot be built.
    Redaction(String),
    /// The system's error for a path of the sandbox. A missing path can be neither opened nor
    /// protected.
    SandboxPath {
        path: PathBuf,
        why: String,
    },
    /// A sandbox has its own version of this path, or the path is the root.
    SandboxOwnPath(PathBuf),
    /// The sandbox would make the whole home directory writable.
    SandboxHome(PathBuf),
    /// Not a valid host rule.
    SandboxHost {
        host: String,
        problem: HostProblem,
    },
    /// The sandbox cannot use the program's parent proxy.
    SandboxParentProxy {
        variable: String,
        problem: ParentProxyProblem,
    },
    /// More ports of this machine than a sandbox can open.
    SandboxPorts {
        most: usize,
    },
    /// No process outlives a sandbox.
    SandboxDetach,
    /// Sandbox rules without a sandbox.
    SandboxOff,
    /// A reason of a front end, in its own words; only front ends create it.
    Other(String),
}

/// A string of a request that is handed to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestString {
    /// The command given as one line.
    CommandLine,
    ProgramName,
    /// Counted from 1.
    Argument(usize),
    VariableName(String),
    /// The value of the variable with this name.
    VariableValue(String),
}

/// A part of a request that front ends have a name for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestField {
    Arguments,
    Environment,
    WorkingDirectory,
    Timeout,
    Stdin,
    Secrets,
    Sandbox,
}

impl RefusalReason {
    /// All of them in one line.
    pub fn listed(reasons: &[Self]) -> String {
        reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    /// The part of the request it is about; `None` if it is about several, or unknown.
    pub fn field(&self) -> Option<RequestField> {
        match self {
            Self::EmptyCommand => Some(RequestField::Arguments),
            Self::NulByte(string) | Self::StringTooLong { string, .. } => Some(match string {
                RequestString::CommandLine
                | RequestString::ProgramName
                | RequestString::Argument(_) => RequestField::Arguments,
                RequestString::VariableName(_) | RequestString::VariableValue(_) => {
                    RequestField::Environment
                }
            }),
            Self::VariableName { .. } => Some(RequestField::Environment),
            Self::ZeroTimeout | Self::Timeout(_) => Some(RequestField::Timeout),
            Self::DirectoryMissing(_)
            | Self::DirectoryIsFile(_)
            | Self::DirectoryClosed(_)
            | Self::CurrentDirectoryGone
            | Self::Directory { .. } => Some(RequestField::WorkingDirectory),
            Self::StdinFile { .. } => Some(RequestField::Stdin),
            Self::ShellNeeded(_) => Some(RequestField::Arguments),
            Self::HostSecretMissing { .. }
            | Self::UnknownSecret { .. }
            | Self::ShortSecret { .. } => Some(RequestField::Secrets),
            Self::SandboxPath { .. }
            | Self::SandboxOwnPath(_)
            | Self::SandboxHome(_)
            | Self::SandboxHost { .. }
            | Self::SandboxParentProxy { .. }
            | Self::SandboxPorts { .. }
            | Self::SandboxDetach
            | Self::SandboxOff => Some(RequestField::Sandbox),
            Self::StringsTooLong { .. }
            | Self::RedactionPattern { .. }
            | Self::Redaction(_)
            | Self::Other(_) => None,
        }
    }

    /// Whether it is about the working directory, which has its own error code.
    pub fn is_directory(&self) -> bool {
        self.field() == Some(RequestField::WorkingDirectory)
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyCommand => f.write_str("the command is empty; give a program to run"),
            Self::NulByte(string) => write!(
                f,
                "{string} contains a NUL byte, which no program can receive; remove it or encode it"
            ),
            Self::VariableName { name } => write!(
                f,
                "{name:?} is not a valid variable name; use letters, digits and _, not beginning with a digit"
            ),
            Self::ZeroTimeout => f.write_str("the timeout is 0; give a positive number of seconds"),
            Self::Timeout(error) => write!(f, "the timeout {error}"),
            Self::StringTooLong { string, bytes, limit } => write!(
                f,
                "{string} is {bytes} bytes long and the kernel takes at most {limit}; pass it in a file or on stdin"
            ),
            Self::StringsTooLong { bytes, limit } => write!(
                f,
                "the arguments and variables are {bytes} bytes together and the kernel takes {limit} here; pass data in a file or on stdin, or raise `ulimit -s`"
            ),
            Self::DirectoryMissing(path) => write!(
                f,
                "working directory {}: there is no such directory; create it or give another",
                path.display()
            ),
            Self::DirectoryIsFile(path) => write!(
                f,
                "working directory {}: is not a directory but a file; give the directory it is in",
                path.display()
            ),
            Self::DirectoryClosed(path) => write!(
                f,
                "working directory {}: permission denied; you need its x permission",
                path.display()
            ),
            Self::CurrentDirectoryGone => f.write_str(
                "working directory .: the current directory no longer exists; cd to one that does, or give another",
            ),
            Self::Directory { path, why } => {
                write!(f, "working directory {}: {why}", path.display())
            }
            Self::StdinFile { path, why } => {
                write!(f, "stdin file {}: {why}; give a file that can be read", path.display())
            }
            Self::ShellNeeded(why) => write!(f, "{why}, which needs a shell"),
            Self::HostSecretMissing { name } => write!(
                f,
                "{name} is a secret, so its value is not sent, and this machine does not have it; \
                 set it in the job's environment there, or start retake without it: env -u {name}"
            ),
            Self::ShortSecret { name, shortest } => write!(
                f,
                "the secret {name} has fewer than {shortest} characters and cannot be redacted"
            ),
            Self::UnknownSecret { name } => {
                write!(f, "the secret {name}: there is no such variable")
            }
            Self::RedactionPattern { pattern } => {
                write!(f, "redaction.patterns: {pattern:?}: write NAME=REGEX")
            }
            Self::SandboxPath { path, why } => write!(
                f,
                "sandbox: {}: {why}; create it first, since a missing path can be neither opened nor protected",
                path.display()
            ),
            Self::SandboxOwnPath(path) => write!(
                f,
                "sandbox: {}: cannot be named in a rule, since a sandbox has its own; name a path below it",
                path.display()
            ),
            Self::SandboxHome(path) => write!(
                f,
                "sandbox: in {} all of your files would be writable; work in the directory of a project",
                path.display()
            ),
            Self::SandboxHost { host, problem } => write!(f, "sandbox: {host:?}: {problem}"),
            Self::SandboxParentProxy { variable, problem } => {
                write!(f, "sandbox: {variable}: {problem}")
            }
            Self::SandboxPorts { most } => {
                write!(f, "sandbox: more than {most} ports of this machine; leave some out")
            }
            Self::SandboxOff => f.write_str(
                "sandbox rules are given but no sandbox is requested; request one or remove the rules",
            ),
            Self::SandboxDetach => {
                f.write_str("sandbox: no process can be left running, since all processes of a sandbox end with it")
            }
            Self::Redaction(error) => f.write_str(error),
            Self::Other(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for RefusalReason {}

impl fmt::Display for RequestString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommandLine => f.write_str("the command"),
            Self::ProgramName => f.write_str("the program's name"),
            Self::Argument(index) => write!(f, "argument {index}"),
            Self::VariableName(name) => write!(f, "the variable name {name:?}"),
            Self::VariableValue(name) => write!(f, "the value of {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_about_a_directory_is_one() {
        assert!(RefusalReason::DirectoryMissing("/x".into()).is_directory());
        assert!(RefusalReason::CurrentDirectoryGone.is_directory());
        assert!(!RefusalReason::ZeroTimeout.is_directory());
        assert!(!RefusalReason::Other(String::new()).is_directory());
    }

    #[test]
    fn a_string_says_whether_it_is_an_argument_or_a_variable() {
        let nul = RefusalReason::NulByte(RequestString::Argument(2));
        assert_eq!(nul.field(), Some(RequestField::Arguments));
        assert!(nul.to_string().starts_with("argument 2 contains a NUL byte"));
        let nul = RefusalReason::NulByte(RequestString::VariableValue("A".to_owned()));
        assert_eq!(nul.field(), Some(RequestField::Environment));
        assert!(nul.to_string().starts_with("the value of A contains a NUL byte"));
    }

    #[test]
    fn reasons_are_listed_in_one_line() {
        let reasons = [RefusalReason::EmptyCommand, RefusalReason::ZeroTimeout];
        assert_eq!(
            RefusalReason::listed(&reasons),
            "the command is empty; give a program to run; \
             the timeout is 0; give a positive number of seconds"
        );
    }
}
