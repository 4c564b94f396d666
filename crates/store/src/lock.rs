//! Kernel file locks: the queue of writers, and the proof that a runner is alive.
//!
//! Locks are `flock`s on an open file description. A process that dies, however it dies, lets go;
//! a process forked without exec after a lock was taken would keep it, so such helpers must be
//! forked before, or close the descriptor.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use crate::dir::{Dir, not_writable, remove};
use crate::{Error, Result, away};
use retake_types::RunId;

/// How long a writer waits for the others before it gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How many milliseconds a new run waits for its own live file.
const LIVE_PATIENCE: u32 = 500;

fn flock(file: &File, operation: i32) -> io::Result<()> {
    loop {
        // SAFETY: the descriptor is open for as long as `file` is borrowed.
        if unsafe { libc::flock(file.as_raw_fd(), operation) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// `false` when someone else holds the lock.
fn try_flock(file: &File, operation: i32) -> io::Result<bool> {
    match flock(file, operation | libc::LOCK_NB) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// The turn to write; the next in the queue gets it when this is dropped.
#[derive(Debug)]
pub(crate) struct WriteTurn {
    _file: File,
}

impl WriteTurn {
    /// Queues for the turn. SQLite's own busy handler polls, and under load the unlucky starve;
    /// the kernel's queue is first come, first served.
    pub(crate) fn take(dir: &Dir) -> Result<Self> {
        Self::take_within(dir, PATIENCE)
    }

    fn take_within(dir: &Dir, patience: Duration) -> Result<Self> {
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
        if try_flock(&file, libc::LOCK_EX).map_err(failed)? {
            return Ok(Self { _file: file });
        }
        // flock has no timeout and a polling loop has no queue: a thread waits in our place. When
        // we give up it stays behind, and lets go as soon as it gets the lock.
        let (sender, receiver) = mpsc::channel();
        std::thread::Builder::new()
            .name("retake-store-queue".to_owned())
            .spawn(move || {
                let outcome = flock(&file, libc::LOCK_EX).map(|()| file);
                drop(sender.send(outcome)); // nobody listens any more: the file closes, unlocking
            })
            .map_err(failed)?;
        match receiver.recv_timeout(patience) {
            Ok(outcome) => outcome.map(|file| Self { _file: file }).map_err(failed),
            Err(_) => Err(Error::Busy { path, waited: patience }),
        }
    }
}

/// Held for a run's life. Whoever finds the file unlocked knows that the runner is dead.
#[derive(Debug)]
pub(crate) struct LiveLock {
    _file: File,
}

impl LiveLock {
    pub(crate) fn take(dir: &Dir, id: RunId) -> Result<Self> {
        let path = dir.live(id);
        let mut patience = LIVE_PATIENCE;
        loop {
            let file = dir.create_private(&path)?;
            let locked = try_flock(&file, libc::LOCK_EX);
            if !locked.map_err(|error| Error::io("lock", &path, error))? {
                // A reader's probe lasts microseconds; what lasts longer is a run with this id.
                if patience == 0 {
                    return Err(Error::Duplicate { id });
                }
                patience -= 1;
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            // A recovery that came between our creating and locking took the file for a leftover.
            let links =
                file.metadata().map_err(|error| Error::io("look at", &path, error))?.nlink();
            if links > 0 {
                return Ok(Self { _file: file });
            }
        }
    }

    /// Takes over the lock of a dead runner; `None` while it lives or once it is cleaned up.
    pub(crate) fn adopt(path: &Path) -> Result<Option<Self>> {
        let failed = |error| Error::io("lock", path, error);
        let file = match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        if !try_flock(&file, libc::LOCK_EX).map_err(failed)? {
            return Ok(None);
        }
        let linked = file.metadata().map_err(failed)?.nlink() > 0;
        Ok(linked.then_some(Self { _file: file }))
    }

    /// Removes the file while the lock is still held, so that nobody can mistake it for a death.
    pub(crate) fn release(self, path: &Path) -> Result<()> {
        remove(path)
    }
}

/// The runs that have a live file: those that run, and those whose runner died.
pub(crate) fn live_ids(dir: &Dir) -> Result<Vec<RunId>> {
    let path = dir.live_dir();
    let entries = match std::fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("read", &path, error)),
    };
    let mut ids = Vec::new();
    for entry in entries {
        let name = entry.map_err(|error| Error::io("read", &path, error))?.file_name();
        // Any other name is not ours to judge.
        ids.extend(name.to_str().and_then(|name| name.parse::<RunId>().ok()));
    }
    Ok(ids)
}

/// Whether the runner of a run lives, or lives elsewhere as far as anyone here knows; found out
/// without writing anything.
pub(crate) fn is_alive(dir: &Dir, id: RunId) -> bool {
    let Ok(file) = File::open(dir.live(id)) else {
        // No file, or none we may read: no one on this machine is running it.
        return away::is_away(dir, id);
    };
    // A shared probe cannot be mistaken for a runner, which holds the lock exclusively.
    !try_flock(&file, libc::LOCK_SH).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Dir) {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::new(temp.path());
        (temp, dir)
    }

    #[test]
    fn a_writer_gives_up_on_a_lock_that_stays_taken_and_gets_a_free_one() {
        let (_temp, dir) = store();
        let first = WriteTurn::take(&dir).unwrap();
        let error = WriteTurn::take_within(&dir, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, Error::Busy { .. }), "{error}");
        drop(first);
        WriteTurn::take(&dir).unwrap();
    }

    #[test]
    fn a_live_lock_is_seen_by_a_probe_and_cannot_be_adopted() {
        let (_temp, dir) = store();
        let id = RunId::new();
        assert!(!is_alive(&dir, id));
        let live = LiveLock::take(&dir, id).unwrap();
        assert!(is_alive(&dir, id));
        assert!(LiveLock::adopt(&dir.live(id)).unwrap().is_none());
        drop(live);
        assert!(!is_alive(&dir, id));
        let adopted = LiveLock::adopt(&dir.live(id)).unwrap().unwrap();
        adopted.release(&dir.live(id)).unwrap();
        assert!(LiveLock::adopt(&dir.live(id)).unwrap().is_none());
    }
}
