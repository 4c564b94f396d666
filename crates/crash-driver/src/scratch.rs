//! A directory for crash states, in memory where there is room for that. It is gone when we are;
//! what a killed runner left is removed by the next one.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

const PREFIX: &str = "retake-crash-";
const LOCK: &str = "lock";
/// Less free memory than this is not worth it.
const ENOUGH: u64 = 64 << 20;

pub struct Scratch {
    path: PathBuf,
    /// Held for as long as the directory is in use.
    _lock: File,
}

impl Scratch {
    /// Not below `root`: what lies there is covered where states are checked.
    pub fn new(root: &Path) -> io::Result<Self> {
        let places = [PathBuf::from("/dev/shm"), std::env::temp_dir(), PathBuf::from("/var/tmp")];
        let places = places.into_iter().enumerate().filter(|(at, place)| *at > 0 || roomy(place));
        let parent = places
            .filter_map(|(_, place)| place.canonicalize().ok())
            .find(|place| !place.starts_with(root))
            .ok_or_else(|| {
                let why = "there is no directory for crash states outside of the recorded one";
                io::Error::new(io::ErrorKind::NotFound, format!("{why}; TMPDIR can name one"))
            })?;
        sweep(&parent);
        let id = retake_types::RunId::new();
        let path = parent.join(format!("{PREFIX}{id}"));
        DirBuilder::new().mode(0o700).create(&path)?;
        let lock = File::create(path.join(LOCK))?;
        take(&lock)?;
        Ok(Self { path, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next one.
        drop(std::fs::remove_dir_all(&self.path));
    }
}

fn take(lock: &File) -> io::Result<()> {
    // SAFETY: a descriptor that we hold.
    match unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn roomy(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(name) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: zero is a valid statfs, filled by the query; the path ends with a zero.
    unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        libc::statfs(name.as_ptr(), &raw mut about) == 0
            && about.f_type == libc::TMPFS_MAGIC
            && about.f_bavail.saturating_mul(about.f_bsize.unsigned_abs()) >= ENOUGH
            && libc::access(name.as_ptr(), libc::W_OK) == 0
    }
}

/// Removes directories of ours that nobody holds.
fn sweep(parent: &Path) {
    // SAFETY: no arguments, no failure.
    let user = unsafe { libc::geteuid() };
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|about| about.is_dir() && about.uid() == user);
        // One that has no lock yet is just being made.
        if ours && File::open(entry.path().join(LOCK)).is_ok_and(|lock| take(&lock).is_ok()) {
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_holds_is_swept() {
        let dir = tempfile::tempdir().unwrap();
        let (held, left) = (dir.path().join("retake-crash-1"), dir.path().join("retake-crash-2"));
        let (young, other) = (dir.path().join("retake-crash-3"), dir.path().join("other"));
        for path in [&held, &left, &young, &other] {
            std::fs::create_dir(path).unwrap();
        }
        let lock = File::create(held.join(LOCK)).unwrap();
        take(&lock).unwrap();
        File::create(left.join(LOCK)).unwrap();
        File::create(other.join(LOCK)).unwrap();
        sweep(dir.path());
        assert!(held.exists() && young.exists() && other.exists());
        assert!(!left.exists());
    }
}
