//! Why a command failed. The kind decides the exit code.

use std::io;
use std::path::PathBuf;

use retake_runner::config::ConfigErrors;
use retake_runner::project::ProjectError;

use crate::Exit;
use crate::{term, words};

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    #[error(transparent)]
    Project(#[from] ProjectError),
    #[error("{}", words::store_error(.0))]
    Store(#[from] retake_store::Error),
    /// The same for a command that frees space, to which the usual advice does not apply.
    #[error("{}", words::erasing_error(.0))]
    Erasing(retake_store::Error),
    #[error("`{text}` names several runs; give more digits of one of these:\n{}", candidates.join("\n"))]
    Ambiguous { text: String, candidates: Vec<String> },
    #[error("cannot {action} {}: {}", path.display(), term::plain(source))]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("the answer could not be written: {0}")]
    Output(#[from] io::Error),
    #[error("{0}")]
    Refused(String),
}

impl Failure {
    /// All problems, one by one.
    pub(crate) fn problems(&self) -> Vec<String> {
        match self {
            Self::Config(errors) => errors.texts.clone(),
            other => vec![other.to_string()],
        }
    }

    /// What to do about it, if not to correct the request.
    pub(crate) fn hint(&self) -> Option<String> {
        let Self::Config(errors) = self else { return None };
        let what = match &errors.files[..] {
            [] => "the variable".to_owned(),
            files => {
                let files: Vec<String> =
                    files.iter().map(|file| file.display().to_string()).collect();
                files.join(" and ")
            }
        };
        Some(format!("nothing was started; correct {what} and run it again"))
    }

    pub(crate) fn erasing(error: impl Into<Self>) -> Self {
        match error.into() {
            Self::Store(error) => Self::Erasing(error),
            other => other,
        }
    }

    /// Prints the message, and returns the exit code.
    pub(crate) fn tell(&self) -> Exit {
        match self {
            // The reader is gone: end silently, like any other filter.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Exit::Signal(libc::SIGPIPE);
            }
            _ => term::say(&self.to_string()),
        }
        match self {
            Self::Usage(_) | Self::Config(_) | Self::Project(_) => Exit::USAGE,
            _ => Exit::FAILED,
        }
    }
}
