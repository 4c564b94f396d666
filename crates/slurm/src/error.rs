//! What goes wrong between the submitter, the shared directory and the scheduler.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use retake_types::text;

use crate::slurm_programs::ProgramError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {action} {}: {}", path.display(), text::plain(source))]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is not what retake wrote there: {detail}", path.display())]
    Damaged { path: PathBuf, detail: String },
    /// Written by another release of retake.
    #[error("{} has version {found}, this retake reads {known}", path.display())]
    Version { path: PathBuf, found: u32, known: u32 },
    #[error("{} does not lie in a batch, as BATCH/order/N.json", .0.display())]
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
    /// What another machine can confine is not known here.
    #[error("sandbox: a run on another machine cannot be confined")]
    Sandbox,
}

fn listed(refusals: &[RemoteRefusal]) -> impl fmt::Display {
    refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    pub(crate) fn damaged(path: &Path, detail: impl ToString) -> Self {
        Self::Damaged { path: path.to_owned(), detail: detail.to_string() }
    }
}
