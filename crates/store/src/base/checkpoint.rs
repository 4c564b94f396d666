//! When the WAL is folded into the database, and whether its file is truncated.
//!
//! A program that records one run leaves a short WAL, because every cold open reads the whole WAL
//! to rebuild its index, and truncates the file after folding. A program that records many runs has
//! the index in memory: it lets the WAL grow up to the reserved blocks, then overwrites the old
//! frames. Syncing blocks that the file already has leaves the file system's own journal alone,
//! which is more than half of the cost. The program truncates the file when it closes the record;
//! after a kill, the next writer does.

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
/// Maximum frames of the WAL for a program that writes once or twice.
const SHORT_WAL: u32 = 64;
/// The same for a program that writes often. One more run still fits into [`WAL_ROOM`].
const LONG_WAL: u32 = 96;
/// After this many commits a connection counts as one that writes often.
const MANY_COMMITS: u32 = 16;

/// What happens to the WAL's file after its content is folded into the database.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checkpoint {
    /// It is truncated and its blocks are freed.
    Truncate,
    /// It keeps its blocks; the next writer starts at its beginning.
    Restart,
}

/// The commits of a connection.
#[derive(Debug)]
pub(crate) struct Commits {
    count: u32,
    /// Frames in the WAL after the last commit. Boxed, because SQLite holds a pointer to it.
    frames: Box<AtomicU32>,
    /// Whether the database's file has room for a long WAL.
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
    /// Counts the commits of a connection, which must be closed before this is dropped. Turns off
    /// SQLite's automatic checkpoints.
    pub(crate) fn of(connection: &Connection) -> Self {
        let frames = Box::new(AtomicU32::new(0));
        let place: *const AtomicU32 = &raw const *frames;
        // SAFETY: the handle is that of an open connection. The heap allocation does not move with
        // the box and is only accessed atomically.
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

    /// Whether the connection writes often.
    pub(crate) fn are_many(&self) -> bool {
        self.count >= MANY_COMMITS
    }
}

impl Store {
    /// Folds the WAL if it is long. The caller has the write turn.
    pub(crate) fn fold_wal(&self) -> Result<()> {
        let many = self.commits.are_many();
        // Before the WAL exceeds the usual length.
        if many && !self.commits.has_room.replace(true) {
            self.keep_database_room();
        }
        let limit = if many { LONG_WAL } else { SHORT_WAL };
        if self.commits.frames.load(Ordering::Relaxed) <= limit {
            return Ok(());
        }
        // A WAL that exceeded its room behind a slow reader is truncated.
        let keeps = many && self.wal_length() <= WAL_ROOM;
        self.fold_into(if keeps { Checkpoint::Restart } else { Checkpoint::Truncate })
    }

    fn fold_into(&self, checkpoint: Checkpoint) -> Result<()> {
        // On an almost full disk, blocks freed by truncating may be lost to other programs.
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

    /// Extends the database's file by what a long WAL may hold.
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

    /// Before the connection is closed: shortens the WAL so that a cold open reads it quickly.
    pub(super) fn shorten_wal(&self) {
        if self.commits.are_many()
            && self.is_unchanged()
            && self.wal_length() > u64::from(SHORT_WAL) * FRAME
        {
            // After a failure the next writer does it.
            drop(self.fold_into(Checkpoint::Truncate));
        }
    }

    /// Folds the WAL into the database and truncates it; `false` if a reader prevented that for
    /// longer than `patience`. Frames that could be folded are folded in either case.
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
            // The last case: the commit is safe in the WAL; only folding failed, for lack of space.
            (
                Err(_),
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull),
            ) => Ok(false),
            (Err(error), _) => Err(failed(error)),
        }
    }
}
