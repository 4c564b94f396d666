//! A directory for crash states, in memory where there is room for that. It is removed when its
//! owner ends; what a killed process left is removed by the next one.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

const PREFIX: &str = "retake-crash-";
const LOCK: &str = "lock";
/// Less free memory than this is not worth it.
const ENOUGH: u64 = 64 << 20;

pub(crate) struct StateScratch {
    path: PathBuf,
    /// Held for as long as the directory is in use.
    _lock: File,
}

impl StateScratch {
    /// Not below `root`: what lies there is covered where states are checked.
    pub(crate) fn new(root: &Path) -> io::Result<Self> {
        let memory = Some(PathBuf::from("/dev/shm")).filter(|memory| has_room(memory));
        let disk = [std::env::temp_dir(), PathBuf::from("/var/tmp")];
        let parent = memory
            .into_iter()
            .chain(disk)
            .filter_map(|parent| parent.canonicalize().ok())
            .find(|parent| !parent.starts_with(root))
            .ok_or_else(|| {
                let why = "there is no directory for crash states outside of the recorded one";
                io::Error::new(io::ErrorKind::NotFound, format!("{why}; TMPDIR can name one"))
            })?;
        remove_abandoned(&parent);
        let id = retake_types::RunId::new();
        let path = parent.join(format!("{PREFIX}{id}"));
        DirBuilder::new().mode(0o700).create(&path)?;
        let lock = File::create(path.join(LOCK))?;
        lock.try_lock()?;
        Ok(Self { path, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for StateScratch {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next one.
        drop(std::fs::remove_dir_all(&self.path));
    }
}

/// Whether this is a file system in memory with enough of it left.
fn has_room(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|about| {
        about.f_type == libc::TMPFS_MAGIC
            && about.f_bavail.saturating_mul(about.f_bsize.unsigned_abs()) >= ENOUGH
    }) && rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Removes directories of ours that nobody holds.
fn remove_abandoned(parent: &Path) {
    let user = rustix::process::geteuid().as_raw();
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|about| about.is_dir() && about.uid() == user);
        // One that has no lock yet is just being made.
        if ours && File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok()) {
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_holds_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (held, left) = (dir.path().join("retake-crash-1"), dir.path().join("retake-crash-2"));
        let (young, other) = (dir.path().join("retake-crash-3"), dir.path().join("other"));
        for path in [&held, &left, &young, &other] {
            std::fs::create_dir(path).unwrap();
        }
        let lock = File::create(held.join(LOCK)).unwrap();
        lock.try_lock().unwrap();
        File::create(left.join(LOCK)).unwrap();
        File::create(other.join(LOCK)).unwrap();
        remove_abandoned(dir.path());
        assert!(held.exists() && young.exists() && other.exists());
        assert!(!left.exists());
    }
}
