//! Directories that nobody else uses and that go with their owner, in memory where there is some:
//! durability is a matter of the models, so no disk has to be waited for.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where Linux keeps a file system in memory that anybody may use.
const MEMORY: &str = "/dev/shm";

/// A directory of one's own, removed when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// In `parent`, or else in memory, or else among the temporary files.
    pub fn new(parent: Option<&Path>) -> io::Result<Self> {
        match parent {
            Some(parent) => Self::inside(parent),
            None => {
                Self::inside(Path::new(MEMORY)).or_else(|_| Self::inside(&std::env::temp_dir()))
            }
        }
    }

    fn inside(parent: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let parent = parent.canonicalize()?;
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("first-{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                // Left by an earlier process with our number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes over a directory that is about to be made.
    pub(crate) fn adopt(path: PathBuf) -> Self {
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nobody is left to be told; it lies where temporary files lie.
        _ = crate::place::remove_tree(&self.path);
    }
}

/// Empties a directory that only its owner uses.
pub(crate) fn emptied(path: &Path) -> io::Result<()> {
    crate::place::remove_tree(path)?;
    fs::create_dir(path)
}
