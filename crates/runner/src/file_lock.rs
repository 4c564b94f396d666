//! A lock on something that only one retake may use at a time: a matrix's worktrees, an agent's
//! workspace, the push of a record.
//!
//! The kernel releases the file lock when its holder dies. Fork keepers before taking it, or they
//! hold it as well.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;

use crate::machine;

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The holder's description of itself.
    #[error("held by {holder}")]
    Held { holder: String },
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// How often a held lock is retried, and the interval: a process that only reads the holder holds
/// the lock for a moment.
const LOOKS: u32 = 50;
const LOOKS_IF_NAMED: u32 = 20;
const LOOK: Duration = Duration::from_millis(10);

/// Held until dropped, or until the process dies.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    abandoned: Option<String>,
}

impl FileLock {
    /// Whether it is held. An unreadable lock counts as held.
    pub fn is_held(path: &Path) -> bool {
        match File::open(path) {
            Ok(file) => {
                let held = file.try_lock_shared().is_err();
                // A child between fork and exec also has this descriptor for a moment.
                _ = file.unlock();
                held
            }
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// The current holder's description of itself; `None` if it is not held.
    pub fn holder(path: &Path) -> Option<String> {
        let mut file = File::open(path).ok()?;
        let held = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
        _ = file.unlock();
        held.then(|| description(&mut file).unwrap_or_else(|| UNNAMED.to_owned()))
    }

    /// `purpose` is what the holder does, such as `retake matrix run`.
    pub fn acquire(path: &Path, purpose: &str) -> Result<Self, LockError> {
        let failed = |error| LockError::Io { path: path.to_owned(), error };
        let mut tries = 0;
        loop {
            let mut file = open(path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let known = description(&mut file);
                    let limit = if known.is_some() { LOOKS_IF_NAMED } else { LOOKS };
                    if tries < limit {
                        tries += 1;
                        std::thread::sleep(LOOK);
                        continue;
                    }
                    return Err(LockError::Held {
                        holder: known.unwrap_or_else(|| UNNAMED.to_owned()),
                    });
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // The directory may have been moved away or replaced meanwhile.
            let ours = file.metadata().map_err(failed)?;
            let there = std::fs::metadata(path).map_err(failed)?;
            if (there.dev(), there.ino()) != (ours.dev(), ours.ino()) {
                continue;
            }
            let abandoned = description(&mut file);
            let holder = format!(
                "`{purpose}` (pid {} on {}, since {:.0})\n",
                std::process::id(),
                machine::host(),
                Timestamp::now()
            );
            file.rewind()
                .and_then(|()| file.set_len(0))
                .and_then(|()| file.write_all(holder.as_bytes()))
                .map_err(failed)?;
            return Ok(Self { file, abandoned });
        }
    }

    /// A previous holder that died.
    pub fn abandoned(&self) -> Option<&str> {
        self.abandoned.as_deref()
    }
}

const UNNAMED: &str = "an unknown process";

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

/// The last holder's description of itself.
fn description(file: &mut File) -> Option<String> {
    let mut text = String::new();
    file.rewind().ok()?;
    Read::by_ref(file).take(4096).read_to_string(&mut text).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Only the lock counts; a remaining name is never shown without it.
        _ = self.file.set_len(0);
        // A child between fork and exec also has this descriptor for a moment.
        _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn querying_a_lock_does_not_prevent_acquiring_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert!(!FileLock::is_held(&path), "there is none");
        let lock = FileLock::acquire(&dir.path().join("lock"), "retake matrix run").unwrap();
        assert!(FileLock::is_held(&path));
        drop(lock);
        assert!(!FileLock::is_held(&path));
        // Another process is reading the holder.
        let looking = File::open(&path).unwrap();
        looking.lock_shared().unwrap();
        let done = std::thread::spawn(move || {
            std::thread::sleep(LOOK);
            drop(looking);
        });
        FileLock::acquire(&dir.path().join("lock"), "retake matrix run").unwrap();
        done.join().unwrap();
    }

    #[test]
    fn a_failed_attempt_to_lock_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let first = FileLock::acquire(&dir.path().join("lock"), "retake matrix run").unwrap();
        let error = FileLock::acquire(&dir.path().join("lock"), "retake matrix bisect")
            .unwrap_err()
            .to_string();
        let holder = format!("`retake matrix run` (pid {}", std::process::id());
        assert!(error.contains(&holder), "{error}");
        drop(first);
        FileLock::acquire(&dir.path().join("lock"), "retake matrix bisect").unwrap();
    }
}
