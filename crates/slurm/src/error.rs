//! Errors between the submitter, the shared directory and the scheduler.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use retake_types::text;

use crate::slurm_programs::ProgramError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {action} {}: {}", path.display(), text::plain(source))]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is damaged or was not written by retake: {detail}", path.display())]
    Damaged { path: PathBuf, detail: String },
    /// Written by another release of retake.
    #[error("{} has version {found}, this retake reads {known}", path.display())]
    Version { path: PathBuf, found: u32, known: u32 },
    #[error("{} is not in a batch, as BATCH/list/N", .0.display())]
    NotInBatch(PathBuf),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Store(#[from] retake_store::Error),
    #[error("{}", listed(.0))]
    Refused(Vec<RemoteRefusal>),
    #[error("{0:?} is neither slurm nor slurm:PARTITION")]
    UnknownTarget(String),
    #[error(
        "Slurm needs a directory that this machine and every node see; name it as \
         slurm.shared_dir in .agent/config.yml, or in $RETAKE_SLURM__SHARED_DIR"
    )]
    NoSharedDir,
    #[error("slurm.shared_dir: {}: {why}", path.display())]
    SharedDir { path: PathBuf, why: SharedDirError },
    /// Runs of an earlier submission whose shared directory cannot be reached at the moment.
    #[error("the results of {} cannot be looked for in {}: {why}", text::count(*runs, "run"), dir.display())]
    BatchNotReachable { dir: PathBuf, runs: u64, why: Unreachable },
    /// Runs whose results were removed before they were recorded.
    #[error("{} was removed before the results of {} were recorded", dir.display(), text::count(*runs, "run"))]
    BatchRemoved { dir: PathBuf, runs: u64 },
}

/// Why a batch cannot be reached now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    #[error("the shared directory is not there")]
    NoSharedDir,
    #[error("another directory than the shared one is there now")]
    OtherDirectory,
    /// The batch is of an earlier release, which did not record its shared directory.
    #[error("it is not there")]
    Unknown,
    /// The system's own reason.
    #[error("{0}")]
    System(String),
}

/// Why a directory cannot be the shared one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SharedDirError {
    #[error("is not an absolute path, so it is not the same one everywhere")]
    Relative,
    #[error("has white space in it, which the scheduler's scripts cannot take")]
    WhiteSpace,
    #[error("is not there; make it where every node sees it (`mkdir`), or mount what it is on")]
    Missing,
    #[error("is not a directory")]
    NotADirectory,
    #[error("belongs to someone else, who could change what is run")]
    OtherOwner,
    #[error("the variable {0} is not set")]
    NoVariable(String),
    /// The system's own reason.
    #[error("{0}")]
    System(String),
}

/// Why a request cannot be executed on another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteRefusal {
    #[error(
        "an argument contains a secret, which would be written to the shared directory; \
         let the command read it from a variable"
    )]
    SecretInArgument,
    #[error("stdin: a run on another machine cannot read what is typed here; give a file")]
    InheritedStdin,
    /// How another machine confines commands is unknown here.
    #[error("sandbox: a run on another machine cannot be confined")]
    Sandbox,
}

fn listed(refusals: &[RemoteRefusal]) -> impl fmt::Display {
    refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl Error {
    /// Whether a file system is full.
    pub(crate) fn is_full(&self) -> bool {
        let source = match self {
            Self::Io { source, .. } => source,
            Self::Store(retake_store::Error::Io { source, .. }) => source,
            _ => return false,
        };
        matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
    }

    /// Whether the error concerns a file or directory below this one.
    pub(crate) fn is_below(&self, dir: &Path) -> bool {
        matches!(self, Self::Io { path, .. } if path.starts_with(dir))
    }

    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    pub(crate) fn damaged(path: &Path, detail: impl ToString) -> Self {
        Self::Damaged { path: path.to_owned(), detail: detail.to_string() }
    }
}
