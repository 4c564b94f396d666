//! The queue of writers: one file lock that every writer holds for its transaction.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::mpsc;
use std::time::Duration;

use super::dir::{StoreDir, not_writable};
use super::file_lock::{lock, try_lock};
use crate::{Error, Result};

/// How long a writer waits for the others before it gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The turn to write; the next in the queue gets it when this is dropped.
#[derive(Debug)]
pub(crate) struct WriteTurn {
    _file: File,
}

impl WriteTurn {
    /// Queues for the turn. SQLite's own busy handler polls, and under load the unlucky starve;
    /// the kernel's queue is first come, first served.
    pub(crate) fn take(dir: &StoreDir) -> Result<Self> {
        Self::take_within(dir, PATIENCE)
    }

    fn take_within(dir: &StoreDir, patience: Duration) -> Result<Self> {
        let path = dir.write_lock();
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => Error::Vanished { path: dir.root().to_owned() },
                _ => not_writable(&path, error),
            })?;
        let failed = |error| Error::io("lock", &path, error);
        if try_lock(&file).map_err(failed)? {
            return Ok(Self { _file: file });
        }
        // A file lock has no timeout and a polling loop has no queue: a thread waits in our place.
        // When we give up it stays behind, and unlocks as soon as it gets the lock.
        let (sender, receiver) = mpsc::channel();
        std::thread::Builder::new()
            .name("retake-store-queue".to_owned())
            .spawn(move || {
                let locked = lock(&file).map(|()| file);
                drop(sender.send(locked)); // without a receiver the file is closed, and unlocked
            })
            .map_err(failed)?;
        match receiver.recv_timeout(patience) {
            Ok(locked) => locked.map(|file| Self { _file: file }).map_err(failed),
            Err(_) => Err(Error::Busy { path, waited: patience }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_gives_up_on_a_lock_that_stays_taken_and_gets_a_free_one() {
        let temp = tempfile::tempdir().unwrap();
        let dir = StoreDir::new(temp.path());
        let first = WriteTurn::take(&dir).unwrap();
        let error = WriteTurn::take_within(&dir, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, Error::Busy { .. }), "{error}");
        drop(first);
        WriteTurn::take(&dir).unwrap();
    }
}
