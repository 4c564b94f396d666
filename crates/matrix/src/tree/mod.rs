//! A directory tree as it was at one time, kept so that it can be made so again.
//!
//! A [`TreeSnapshot`] is a list of what is in a directory (its type, mode, owner, size, times and
//! inode) and a copy of every file beside it. Copies share their blocks with the original where the
//! file system can do that. A reset walks the directory and compares: what looks untouched is not
//! read, what may have been touched is compared with its copy, and what differs, is gone or is new
//! is put right, with its mode, owner and times of modification, which build systems look at.
//! Extended attributes and times of access are not restored.
//!
//! Nothing here starts a process or knows git.

mod reset;
mod snapshot;
mod walk;

use std::io;
use std::path::{Path, PathBuf};

pub use snapshot::{TreeSnapshot, remove_tree};

/// What a reset had to put right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeChanges {
    /// Files, links and directories that were changed or gone.
    pub restored: Vec<PathBuf>,
    /// What had not been there.
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
