//! The queue of writers: one file lock that every writer holds for its transaction.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::dir::{StoreDir, not_writable};
use super::file_lock::{lock, try_lock};
use crate::{Error, Result};

/// How long a writer waits for the others before it gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The turn to write; the next in the queue gets it when this is dropped.
#[derive(Debug)]
pub(crate) struct WriteTurn {
    file: Arc<File>,
}

/// The file for taking turns, kept open by a program that takes many.
#[derive(Debug, Default)]
pub(crate) struct WriteQueue {
    file: Option<Arc<File>>,
}

impl WriteQueue {
    pub(crate) fn take_turn(&mut self, dir: &StoreDir) -> Result<WriteTurn> {
        if let Some(file) = self.file.take().filter(|file| has_name(file)) {
            let path = dir.write_lock();
            let locked = try_lock(&file).map_err(|error| Error::io("lock", &path, error))?;
            self.file = Some(file.clone());
            // A waiting thread opens its own file: all locks on one open file are the same lock.
            return if locked { Ok(WriteTurn { file }) } else { WriteTurn::take(dir) };
        }
        let turn = WriteTurn::take(dir)?;
        self.file = Some(turn.file.clone());
        Ok(turn)
    }
}

/// Whether others can still open it.
fn has_name(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
}

impl Drop for WriteTurn {
    fn drop(&mut self) {
        // If unlocking fails, closing the last descriptor ends the lock.
        drop(self.file.unlock());
    }
}

impl WriteTurn {
    /// Queues for the turn. SQLite's own busy handler polls, which starves some writers under load;
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
            return Ok(Self { file: Arc::new(file) });
        }
        // A file lock has no timeout and a polling loop has no queue, so a thread waits. After a
        // timeout the thread keeps waiting, and unlocks as soon as it gets the lock.
        let (sender, receiver) = mpsc::channel();
        std::thread::Builder::new()
            .name("retake-store-queue".to_owned())
            .spawn(move || {
                let locked = lock(&file).map(|()| file);
                drop(sender.send(locked)); // without a receiver the file is closed, and unlocked
            })
            .map_err(failed)?;
        match receiver.recv_timeout(patience) {
            Ok(locked) => locked.map(|file| Self { file: Arc::new(file) }).map_err(failed),
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

    #[test]
    fn a_kept_lock_file_is_locked_per_turn_and_reopened_if_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let dir = StoreDir::new(temp.path());
        let is_free = || WriteTurn::take_within(&dir, Duration::ZERO).is_ok();
        let mut queue = WriteQueue::default();
        for _ in 0..3 {
            let turn = queue.take_turn(&dir).unwrap();
            assert!(!is_free());
            drop(turn);
            assert!(is_free());
        }
        // Another program holds a turn: the next one waits for it, but not forever.
        let other = WriteTurn::take(&dir).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.take_turn(&dir).map(drop));
            assert!(!waiting.is_finished());
            drop(other);
            waiting.join().unwrap().unwrap();
        });
        std::fs::remove_file(dir.write_lock()).unwrap();
        let turn = queue.take_turn(&dir).unwrap();
        assert!(!is_free(), "the turn is taken on a file that nobody else finds");
        drop(turn);
    }
}
