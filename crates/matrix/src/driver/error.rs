//! Why a matrix did not run to its end.

use std::io;
use std::path::PathBuf;

use retake_engine::ShellNeeded;
use retake_runner::file_lock::LockError;
use retake_runner::prepare::RefusedRun;
use retake_runner::worker::Unrecorded;
use retake_types::{RefusalReason, RunOutcome, text};

use super::resources::{ProvisionError, Unavailable};
use crate::bisect::BisectError;
use crate::browsers::{BrowserError, VersionError};
use crate::git::GitError;
use crate::plan::FilterError;
use crate::tree::TreeError;

#[derive(Debug, thiserror::Error)]
pub enum MatrixError {
    /// A signal asked for the end.
    #[error("interrupted")]
    Interrupted,
    /// Another process uses the matrices of this project.
    #[error("{0}")]
    Lock(LockError),
    #[error("{0}")]
    Store(#[from] retake_store::Error),
    #[error("{0}")]
    Git(#[from] GitError),
    #[error("{0}")]
    Browser(BrowserError),
    #[error("{0}")]
    Unavailable(Unavailable),
    #[error("{}", RefusalReason::listed(.0))]
    Refused(Vec<RefusalReason>),
    /// A run that must not start.
    #[error("{0}")]
    Unrecorded(Unrecorded),
    /// A run took place but is not recorded.
    #[error("a run could not be recorded, so no more runs start")]
    NotRecorded,
    /// A tree could not be reset to its state after setup.
    #[error("the worktree cannot be reset: {0}")]
    Reset(#[from] TreeError),
    #[error("{}: {error}", path.display())]
    Scratch { path: PathBuf, error: io::Error },
    /// Runs on other machines that ended without a result.
    #[error("{} without a result", text::count(.0.len() as u64, "cell"))]
    WithoutResult(Vec<CellWithoutResult>),
    #[error("{0}")]
    Filter(#[from] FilterError),
    #[error("{0}")]
    Bisect(#[from] BisectError),
    #[error("{0}")]
    Version(#[from] VersionError),
    /// The request concerns commits.
    #[error("the configuration has no code")]
    NoCode,
    /// A search needs one value of every other axis.
    #[error("the search needs one value of {axis}")]
    SeveralValues { axis: String },
    /// A command that must not use a shell needs one.
    #[error("`{command}`: {why}, which needs a shell")]
    ShellNeeded { command: String, why: ShellNeeded },
    /// No two cells differ in only one value.
    #[error("there are no two cells that differ in one value")]
    NothingToCompare,
}

/// Why a run of a matrix ended early: because of the matrix itself, or of the executor for other
/// machines.
#[derive(Debug)]
pub enum MatrixRunError<E> {
    Matrix(MatrixError),
    Executor(E),
}

impl<E, T> From<T> for MatrixRunError<E>
where
    MatrixError: From<T>,
{
    fn from(error: T) -> Self {
        Self::Matrix(error.into())
    }
}

/// A cell whose run on another machine was cancelled, lost or refused there: neither a success nor
/// a failure of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellWithoutResult {
    pub name: String,
    pub iteration: u64,
    /// The recorded reason; `None` for an interrupted run.
    pub why: Option<String>,
}

impl CellWithoutResult {
    pub(super) fn new(name: String, iteration: u64, outcome: &RunOutcome) -> Self {
        let why = outcome.error.as_ref().map(|error| match &error.problems[..] {
            [] => error.message.clone(),
            problems => problems.join("; "),
        });
        Self { name, iteration, why }
    }
}

impl From<RefusedRun> for MatrixError {
    fn from(refused: RefusedRun) -> Self {
        Self::Refused(refused.reasons)
    }
}

impl From<Unrecorded> for MatrixError {
    fn from(unrecorded: Unrecorded) -> Self {
        Self::Unrecorded(unrecorded)
    }
}

impl From<LockError> for MatrixError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<BrowserError> for MatrixError {
    fn from(error: BrowserError) -> Self {
        match error {
            BrowserError::Interrupted { .. } => Self::Interrupted,
            error => Self::Browser(error),
        }
    }
}

impl From<ProvisionError> for MatrixError {
    fn from(error: ProvisionError) -> Self {
        match error {
            ProvisionError::Interrupted => Self::Interrupted,
            ProvisionError::Unavailable(unavailable) => Self::Unavailable(unavailable),
        }
    }
}
