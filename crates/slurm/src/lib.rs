//! Runs on other machines, through a scheduler that people already operate.
//!
//! Theory of operation. What is to be run becomes a value ([`order`]) in a directory that every
//! machine sees ([`batch`]); its intent is committed to the record before the scheduler hears of
//! it. A machine that gets it runs it with the same engine as everywhere ([`node`]) and links one
//! complete result into place ([`publish`]): the first that is there counts, later ones are kept
//! beside it. Whoever submitted, or comes after him, takes results into the record exactly once
//! ([`collect`]). What the scheduler says ([`slurm`]) decides only how long to wait, and what to say
//! of a run that will never have a result ([`fold`]): then the submitter publishes one himself, in
//! the same way as a machine would.
//!
//! Nothing here schedules, and no machine but the submitter's touches the record.

pub mod batch;
pub mod collect;
pub mod fold;
pub mod journal;
pub mod node;
pub mod order;
pub mod publish;
pub mod settle;
pub mod shared;
pub mod slurm;
pub mod stop;
pub mod successor;
pub mod tools;
pub mod whereabouts;

use retake_types::text;
use std::io;
use std::path::{Path, PathBuf};

/// What goes wrong between the submitter, the shared directory and the scheduler.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {action} {}: {}", path.display(), text::plain(source))]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is not what retake wrote there: {detail}", path.display())]
    Garbled { path: PathBuf, detail: String },
    #[error("{0}")]
    Tool(#[from] tools::ToolError),
    #[error(transparent)]
    Store(#[from] retake_store::Error),
    #[error(
        "--on slurm needs a directory that this machine and every node see; name it as \
         slurm.shared_dir in .agent/config.yml, or in $RETAKE_SLURM__SHARED_DIR"
    )]
    NoSharedDir,
    #[error("slurm.shared_dir: {}: {why}", path.display())]
    SharedDir { path: PathBuf, why: String },
}

impl Error {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    fn garbled(path: &Path, detail: impl ToString) -> Self {
        Self::Garbled { path: path.to_owned(), detail: detail.to_string() }
    }
}
