//! One holder at a time of something that several retakes could want: a matrix's worktrees, an
//! agent's workspace, the push of a record.
//!
//! A file lock that the kernel releases when its holder dies. Keepers must be forked before it is
//! taken, or they would hold it as well.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;

use crate::machine;

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// By whom, as the holder described itself.
    #[error("held by {holder}")]
    Held { holder: String },
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// How often a lock without a name is tried again, and after what time.
const LOOKS: u32 = 50;
const LOOK: Duration = Duration::from_millis(10);

/// Held until dropped, or until the process dies.
#[derive(Debug)]
pub struct FileLock {
    file: File,
}

impl FileLock {
    /// Whether someone holds it. One that cannot be looked at counts as held.
    pub fn is_held(path: &Path) -> bool {
        match File::open(path) {
            Ok(file) => {
                let held = file.try_lock_shared().is_err();
                // A fork that is about to start a program has this descriptor, too, for a moment.
                _ = file.unlock();
                held
            }
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// `purpose` is what the holder does, such as `retake matrix run`.
    pub fn acquire(path: &Path, purpose: &str) -> Result<Self, LockError> {
        let failed = |error| LockError::Io { path: path.to_owned(), error };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        let mut tries = 0;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    let mut text = String::new();
                    let read = file.rewind().and_then(|()| {
                        Read::by_ref(&mut file).take(4096).read_to_string(&mut text)
                    });
                    let known = read.is_ok() && !text.trim().is_empty();
                    // Who only looks whether it is held does not write a name, and is soon gone.
                    if !known && tries < LOOKS {
                        tries += 1;
                        std::thread::sleep(LOOK);
                        continue;
                    }
                    let holder = if known { text.trim() } else { "it does not say who it is" };
                    return Err(LockError::Held { holder: holder.to_owned() });
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
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
        Ok(Self { file })
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Only the lock counts; a name that stays behind is never shown without it.
        _ = self.file.set_len(0);
        // A fork that is about to start a program has this descriptor, too, for a moment.
        _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_takes_nothing_away_from_who_wants_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert!(!FileLock::is_held(&path), "there is none");
        let lock = FileLock::acquire(&dir.path().join("lock"), "retake matrix run").unwrap();
        assert!(FileLock::is_held(&path));
        drop(lock);
        assert!(!FileLock::is_held(&path));
        // Someone looks just now.
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
    fn a_second_one_is_told_who_holds_it() {
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
