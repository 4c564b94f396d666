//! A snapshot of a directory tree that the tree can be reset to.
//!
//! A [`TreeSnapshot`] is a list of a directory's entries (type, mode, owner, size, times and inode)
//! with a copy of every file. Copies share their blocks with the original if the file system
//! supports that. A reset walks the directory and compares: apparently untouched entries are not
//! read, possibly touched ones are compared with their copy, and changed, missing or new ones are
//! corrected, including mode, owner and modification times, which build systems use. Extended
//! attributes and access times are not restored.
//!
//! Nothing here starts a process or uses git.

mod reset;
mod snapshot;
mod walk;

use std::io;
use std::path::{Path, PathBuf};

pub use snapshot::{TreeSnapshot, remove_tree};

/// The corrections of a reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeChanges {
    /// Files, links and directories that were changed or missing.
    pub restored: Vec<PathBuf>,
    /// New entries that were removed.
    pub removed: Vec<PathBuf>,
}

impl TreeChanges {
    pub fn is_empty(&self) -> bool {
        self.restored.is_empty() && self.removed.is_empty()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub struct TreeError {
    pub path: PathBuf,
    pub error: io::Error,
}

impl TreeError {
    fn at<E: Into<io::Error>>(path: &Path) -> impl Fn(E) -> Self {
        let path = path.to_owned();
        move |error| Self { path: path.clone(), error: error.into() }
    }
}
