//! A directory for crash states, in memory if there is room. It is removed when its
//! owner ends; a directory of a killed process is removed by the next one.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

const PREFIX: &str = "retake-crash-";
const LOCK: &str = "lock";
/// With less free memory than this, a disk is used.
const ENOUGH: u64 = 64 << 20;

pub(crate) struct StateScratch {
    path: PathBuf,
    /// Held as long as the directory is in use.
    _lock: File,
}

impl StateScratch {
    /// For states that need this many bytes at a time. Not below `root`, which is covered by a mount
    /// when states are checked.
    pub(crate) fn new(root: &Path, bytes: u64) -> io::Result<Self> {
        let memory = Some(PathBuf::from("/dev/shm")).filter(|memory| has_room(memory, bytes));
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
        // The next one removes what cannot be removed now.
        drop(std::fs::remove_dir_all(&self.path));
    }
}

/// Whether this is a file system in memory with enough free space. A check may write as much
/// again, and other programs on the machine need memory, too.
fn has_room(path: &Path, bytes: u64) -> bool {
    rustix::fs::statfs(path).is_ok_and(|about| {
        let free = about.f_bavail.saturating_mul(about.f_bsize.unsigned_abs());
        about.f_type == libc::TMPFS_MAGIC && fits(bytes, free, available_memory())
    }) && rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

fn fits(bytes: u64, free: u64, available: Option<u64>) -> bool {
    let wanted = bytes.saturating_mul(2).max(ENOUGH);
    free >= wanted && available.is_none_or(|available| available / 2 >= wanted)
}

/// How much memory is available without swapping, if the kernel says so.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Removes directories of this kind that no process holds.
fn remove_abandoned(parent: &Path) {
    let user = rustix::process::geteuid().as_raw();
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|about| about.is_dir() && about.uid() == user);
        // A directory without a lock is just being created.
        if ours && File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok()) {
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_that_memory_has_no_room_for_are_on_disk() {
        const GIB: u64 = 1 << 30;
        assert!(fits(0, GIB, None) && fits(GIB, 4 * GIB, Some(8 * GIB)));
        assert!(!fits(0, ENOUGH - 1, None) && !fits(GIB, 4 * GIB, Some(2 * GIB)));
        assert!(!fits(3 * GIB, 4 * GIB, Some(64 * GIB)) && !fits(u64::MAX, GIB, None));
        assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
        let root = Path::new("/nonexistent");
        let large = StateScratch::new(root, u64::MAX).unwrap();
        assert!(!large.path().starts_with("/dev/shm"), "{}", large.path().display());
    }

    #[test]
    fn only_unlocked_scratch_directories_are_removed() {
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
