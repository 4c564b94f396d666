//! When the WAL is folded into the database, and what becomes of its file then.
//!
//! A program that records one run leaves a short WAL behind, because every cold open reads all of it to
//! rebuild its index, and folding empties the file. A program that records many runs has the index in
//! memory. It lets the WAL grow as far as blocks are reserved for it, and writes the next frames over
//! the old ones: a sync of blocks that the file has already needs no change to the file system's own
//! journal, which is more than half of its cost. When it closes the record it empties the file; if it
//! is killed, the next writer does.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, ffi};

use super::reserve::{self, DATABASE_ROOM, WAL_ROOM};
use super::store::Store;
use super::write_lock::PATIENCE;
use crate::Result;

/// A page and its header.
const FRAME: u64 = 4096 + 24;
/// How many frames the WAL may have, of a program that writes once or twice.
const SHORT_WAL: u32 = 64;
/// The same of a program that writes again and again. What one run adds still fits into [`WAL_ROOM`].
const LONG_WAL: u32 = 96;
/// A connection that has committed this often will do so again.
const MANY_COMMITS: u32 = 16;

/// What becomes of the WAL's file once its content is in the database.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checkpoint {
    /// It is empty, and its blocks are free.
    Truncate,
    /// It keeps its blocks; the next writer starts at its beginning.
    Restart,
}

/// What a connection has committed.
#[derive(Debug)]
pub(crate) struct Commits {
    count: u32,
    /// How many frames the WAL had after the last one. In a place of its own, which SQLite knows.
    frames: Box<AtomicU32>,
    /// The database's file has room for a long WAL.
    has_room: Cell<bool>,
}

/// SQLite calls this after each commit.
extern "C" fn note_frames(
    frames: *mut c_void,
    _: *mut ffi::sqlite3,
    _: *const c_char,
    count: c_int,
) -> c_int {
    // SAFETY: the pointer is the one given in `Commits::of`, which outlives the connection.
    let frames = unsafe { &*frames.cast::<AtomicU32>() };
    frames.store(count.unsigned_abs(), Ordering::Relaxed);
    ffi::SQLITE_OK
}

impl Commits {
    /// Follows the commits of a connection, which must be closed before this is dropped. From now on
    /// SQLite itself folds nothing.
    pub(crate) fn of(connection: &Connection) -> Self {
        let frames = Box::new(AtomicU32::new(0));
        let place: *const AtomicU32 = &raw const *frames;
        // SAFETY: the handle is that of an open connection. The place does not move with the box, and
        // is shared without being written but through atomics.
        unsafe {
            ffi::sqlite3_wal_hook(
                connection.handle(),
                Some(note_frames),
                place.cast_mut().cast::<c_void>(),
            );
        }
        Self { count: 0, frames, has_room: Cell::new(false) }
    }

    pub(crate) fn add(&mut self) {
        self.count = self.count.saturating_add(1);
    }

    /// Whether there will be more.
    pub(crate) fn are_many(&self) -> bool {
        self.count >= MANY_COMMITS
    }
}

impl Store {
    /// Folds the WAL if it is long. The caller has the write turn.
    pub(crate) fn fold_wal(&self) -> Result<()> {
        let many = self.commits.are_many();
        // Before the WAL grows longer than that of others.
        if many && !self.commits.has_room.replace(true) {
            self.keep_database_room();
        }
        let limit = if many { LONG_WAL } else { SHORT_WAL };
        if self.commits.frames.load(Ordering::Relaxed) <= limit {
            return Ok(());
        }
        // One that grew beyond its room, behind a reader that took long, gives it back.
        let keeps = many && self.wal_length() <= WAL_ROOM;
        self.fold_into(if keeps { Checkpoint::Restart } else { Checkpoint::Truncate })
    }

    fn fold_into(&self, checkpoint: Checkpoint) -> Result<()> {
        // On a full disk the next writer may not get back the blocks that a shorter WAL frees.
        let full = reserve::disk_is_almost_full(&self.dir);
        match if full { Checkpoint::Restart } else { checkpoint } {
            Checkpoint::Truncate => self.checkpoint(Checkpoint::Truncate, Duration::ZERO)?,
            Checkpoint::Restart => reserve::keeping_length(&self.connection, &self.dir, || {
                self.checkpoint(Checkpoint::Restart, Duration::ZERO)
            })?,
        };
        reserve::keep_wal_room(&self.dir);
        self.keep_database_room();
        if !full {
            reserve::keep_spare_files(&self.dir);
        }
        Ok(())
    }

    /// Has the database's file take what a long WAL may hold.
    fn keep_database_room(&self) {
        let room = match self.commits.are_many() {
            true => u64::from(LONG_WAL) * FRAME,
            false => DATABASE_ROOM,
        };
        reserve::keep_database_room(&self.connection, &self.dir, room);
    }

    pub(super) fn wal_length(&self) -> u64 {
        self.dir.wal().metadata().map_or(0, |wal| wal.len()) // none yet: empty
    }

    /// Before the connection is closed: leaves a WAL that a cold open reads quickly.
    pub(super) fn shorten_wal(&self) {
        if self.commits.are_many()
            && self.is_unchanged()
            && self.wal_length() > u64::from(SHORT_WAL) * FRAME
        {
            // What fails is done by the next writer.
            drop(self.fold_into(Checkpoint::Truncate));
        }
    }

    /// Folds the WAL into the database and empties it; `false` when a reader was in the way for
    /// longer than `patience`. What could be folded is folded either way.
    pub(crate) fn truncate_wal(&self, patience: Duration) -> Result<bool> {
        self.checkpoint(Checkpoint::Truncate, patience)
    }

    pub(super) fn checkpoint(&self, checkpoint: Checkpoint, patience: Duration) -> Result<bool> {
        let failed = |error| self.failed("checkpoint", error);
        self.connection.busy_timeout(patience).map_err(failed)?;
        let sql = match checkpoint {
            Checkpoint::Truncate => "PRAGMA wal_checkpoint(TRUNCATE)",
            Checkpoint::Restart => "PRAGMA wal_checkpoint(RESTART)",
        };
        let busy =
            self.connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map(|busy| busy != 0);
        self.connection.busy_timeout(PATIENCE).map_err(failed)?;
        let code = busy.as_ref().err().and_then(rusqlite::Error::sqlite_error_code);
        match (busy, code) {
            (Ok(busy), _) => Ok(!busy),
            // The last: the commit is safe in the WAL; only folding it back failed, for want of space.
            (
                Err(_),
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull),
            ) => Ok(false),
            (Err(error), _) => Err(failed(error)),
        }
    }
}
