//! The standard library's file locks, repeated when a signal interrupts them.
//!
//! They are `flock`s on an open file description. The death of a process unlocks them; a child
//! forked without exec keeps the lock, so fork such a child before locking, or close the descriptor
//! in it.

use std::fs::{File, TryLockError};
use std::io;

/// Waits for the exclusive lock.
pub(crate) fn lock(file: &File) -> io::Result<()> {
    loop {
        match file.lock() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// `false` when another process holds the lock.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    retried(|| file.try_lock())
}

/// `false` when another process holds the exclusive lock.
pub(crate) fn try_lock_shared(file: &File) -> io::Result<bool> {
    retried(|| file.try_lock_shared())
}

fn retried(attempt: impl Fn() -> Result<(), TryLockError>) -> io::Result<bool> {
    loop {
        match attempt() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}
