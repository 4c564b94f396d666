//! Disk space that the record reserves, so that a full disk costs output but never an outcome.
//!
//! Blocks are reserved inside the files that need them: the WAL has blocks allocated beyond its end
//! (`fallocate` with `FALLOC_FL_KEEP_SIZE`), and the database grows in chunks. A separate file to
//! delete when the disk is full was rejected: another writer on that disk, such as a concurrent
//! run's output, takes the blocks before the commit does. btrfs writes new blocks for each change,
//! except for files marked no-copy-on-write: the store's are. On other copy-on-write file systems
//! the reserve depends on the file system.
//!
//! Only the WAL is opened here. SQLite's locks on the database belong to the process, and closing a
//! second descriptor of that file would drop them.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rustix::fs::{AtFlags, CWD, IFlags, StatxFlags, statx};

use super::dir::{StoreDir, copies_on_write, free_bytes, makes_inodes};
use super::error::file_size_limit;
use crate::{Error, Result};

/// Reserved for the WAL. A run without output uses 50 KiB of it until the next checkpoint.
pub(crate) const WAL_ROOM: u64 = 512 * 1024;
/// The database grows in these steps, so that a checkpoint has room to write to.
const DATABASE_CHUNK: i32 = 256 * 1024;
/// Free space wanted in the database's file after a checkpoint.
pub(crate) const DATABASE_ROOM: u64 = 128 * 1024;
/// On a full disk a run begins only with this much free space in the database's file: a WAL with
/// more pages than fit could never be folded.
const ROOM_TO_BEGIN: u64 = 48 * 1024;
/// How many concurrent runs can begin when no file can be created.
const SPARE_FILES: usize = 4;
/// Below this much free space the disk counts as full: freed space may be lost to other programs.
const ALMOST_FULL: u64 = 1024 * 1024;

/// How much of the reserve a write may use on a full disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// A new run or loop: its outcome must still fit, and so must an erasure.
    Begin,
    /// The same, together with the outcome of the previous run, which has this many bytes of
    /// output.
    BeginAfter(u64),
    /// Data of a run or loop that has begun.
    Continue,
    /// The same, with this many bytes of output, which may be dropped.
    Output(u64),
    /// A write that frees space.
    Erase,
}

impl Claim {
    /// Maximum WAL length on a full disk at which this is still tried.
    pub(crate) fn wal_limit(self) -> u64 {
        match self {
            Self::Begin | Self::BeginAfter(_) => WAL_ROOM / 2,
            Self::Continue | Self::Output(_) => WAL_ROOM * 3 / 4,
            Self::Erase => u64::MAX,
        }
    }

    /// Whether it begins a run or loop.
    pub(crate) fn begins(self) -> bool {
        matches!(self, Self::Begin | Self::BeginAfter(_))
    }

    /// Room that this needs in the database's file on a full disk.
    pub(crate) fn database_room(self) -> u64 {
        match self {
            Self::Begin => ROOM_TO_BEGIN,
            Self::Output(bytes) | Self::BeginAfter(bytes) => ROOM_TO_BEGIN + bytes,
            Self::Continue | Self::Erase => 0,
        }
    }
}

/// On btrfs: turns off copy-on-write for new files in the store's directory, so that allocated
/// blocks stay reserved. That disables btrfs checksums; the record has its own hashes. After a
/// failure the reserve depends on the file system.
pub(crate) fn write_in_place(dir: &StoreDir) {
    if !copies_on_write(dir.root()) {
        return;
    }
    let Ok(root) = File::open(dir.root()) else { return };
    let flags = rustix::fs::ioctl_getflags(&root);
    _ = flags.and_then(|flags| rustix::fs::ioctl_setflags(&root, flags | IFlags::NOCOW));
}

/// Makes the database grow in chunks on this connection.
pub(crate) fn grow_in_chunks(connection: &Connection) {
    set_chunk(connection, DATABASE_CHUNK);
}

/// Runs `checkpoint` without shortening a database file that has room for all of its pages.
/// Otherwise each checkpoint cuts off the room for the next WAL, and SQLite allocates it again
/// block by block.
pub(crate) fn keeping_length<T>(
    connection: &Connection,
    dir: &StoreDir,
    checkpoint: impl FnOnce() -> T,
) -> T {
    let length = dir.database().metadata().map_or(0, |database| database.len());
    // SQLite rounds the truncated length up to whole chunks: a chunk as large as the file prevents
    // truncation.
    let whole = i32::try_from(length).ok().filter(|whole| {
        pragma(connection, "page_count").is_ok_and(|pages| pages * PAGE <= i64::from(*whole))
    });
    let Some(whole) = whole else { return checkpoint() };
    set_chunk(connection, whole);
    let done = checkpoint();
    grow_in_chunks(connection);
    done
}

fn set_chunk(connection: &Connection, mut chunk: i32) {
    // SAFETY: the handle is that of an open connection, and the argument is the int that this
    // operation reads. A VFS without the operation reports an error, and the database grows as it
    // is written.
    unsafe {
        rusqlite::ffi::sqlite3_file_control(
            connection.handle(),
            c"main".as_ptr(),
            rusqlite::ffi::SQLITE_FCNTL_CHUNK_SIZE,
            (&raw mut chunk).cast::<c_void>(),
        );
    }
}

/// Reserves the missing room of the WAL. Lack of space is not an error here: the write that needs
/// the room reports it.
pub(crate) fn keep_wal_room(dir: &StoreDir) {
    let path = dir.wal();
    // Does not ask for times: reading a file's times makes the kernel update them at the next
    // write, otherwise only a few times per second.
    let wanted = StatxFlags::BLOCKS;
    let wal = statx(CWD, &path, AtFlags::SYMLINK_NOFOLLOW, wanted);
    if wal.is_ok_and(|wal| wal.stx_blocks * 512 >= WAL_ROOM) {
        return;
    }
    let file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path);
    // Without a WAL there is nothing to reserve yet.
    let Ok(file) = file else { return };
    for room in [WAL_ROOM, WAL_ROOM / 2, WAL_ROOM / 4] {
        let length = libc::off_t::try_from(room).unwrap_or(0);
        // SAFETY: a plain call on a descriptor that is open. It changes no byte of the file.
        let done =
            unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, 0, length) };
        if done == 0 {
            return;
        }
    }
}

/// Frees the WAL's blocks beyond its end, for a more important use of the remaining space.
pub(crate) fn give_wal_room_back(dir: &StoreDir) {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(dir.wal());
    // Without a WAL there is nothing to free. After a failure the blocks stay reserved.
    let Ok(file) = file else { return };
    drop(file.metadata().and_then(|wal| file.set_len(wal.len())));
}

/// Creates the spare files for a disk that may fill up. A failure is retried later.
pub(crate) fn keep_spare_files(dir: &StoreDir) {
    if !makes_inodes(dir.root()) || dir.make(&dir.spare_dir()).is_err() {
        return;
    }
    for path in spare_files(dir) {
        if !path.exists() && dir.create_private(&path).is_err() {
            return;
        }
    }
}

fn spare_files(dir: &StoreDir) -> impl Iterator<Item = PathBuf> {
    let spare = dir.spare_dir();
    (0..SPARE_FILES).map(move |number| spare.join(number.to_string()))
}

/// Puts spare files in place of a missing WAL or index that SQLite could not create.
pub(crate) fn replace_missing_files(dir: &StoreDir) {
    for suffix in ["-wal", "-shm"] {
        let path = dir.beside_database(suffix);
        if !path.exists() {
            take_spare_file(dir, &path);
        }
    }
}

/// Renames a spare file and returns its former name; `None` when there is none left.
pub(crate) fn take_spare_file(dir: &StoreDir, name: &Path) -> Option<PathBuf> {
    spare_files(dir).find(|spare| std::fs::rename(spare, name).is_ok())
}

/// Extends the database's file if less than this much of it is free.
pub(crate) fn keep_database_room(connection: &Connection, dir: &StoreDir, room: u64) {
    let Ok(used) = pragma(connection, "page_count").map(|pages| pages * PAGE) else { return };
    let Ok(length) = dir.database().metadata().map(|database| database.len()) else { return };
    let mut wanted = used + room.cast_signed();
    if length.cast_signed() < wanted {
        // SAFETY: as above; this operation reads an i64. After a failure the file keeps its length.
        unsafe {
            rusqlite::ffi::sqlite3_file_control(
                connection.handle(),
                c"main".as_ptr(),
                rusqlite::ffi::SQLITE_FCNTL_SIZE_HINT,
                (&raw mut wanted).cast::<c_void>(),
            );
        }
    }
}

/// How much the database can grow before its file does.
pub(crate) fn database_room(connection: &Connection, dir: &StoreDir) -> rusqlite::Result<u64> {
    let used = pragma(connection, "page_count")? - pragma(connection, "freelist_count")?;
    let length = dir.database().metadata().map_or(0, |database| database.len());
    Ok(length.saturating_sub((used * PAGE).unsigned_abs()))
}

/// SQLite's default, which no migration changes.
const PAGE: i64 = 4096;

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))
}

/// Refuses to begin a run that the file size limit would keep from completing.
pub(crate) fn check_file_size_limit(dir: &StoreDir) -> Result<()> {
    let Some(limit) = file_size_limit() else { return Ok(()) };
    let length = dir.database().metadata().map_or(0, |database| database.len());
    if limit < WAL_ROOM || limit < length + DATABASE_CHUNK.unsigned_abs() as u64 {
        return Err(Error::FileSizeLimit { path: dir.database().to_owned() });
    }
    Ok(())
}

pub(crate) fn disk_is_almost_full(dir: &StoreDir) -> bool {
    free_bytes(dir.root()).is_ok_and(|free| free < ALMOST_FULL)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Store;
    use crate::base::checkpoint::Checkpoint;

    #[test]
    fn a_checkpoint_leaves_the_room_of_the_next_wal() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::open(&temp.path().join("store")).unwrap();
        let (connection, dir) = (&store.connection, &store.dir);
        let length = || dir.database().metadata().unwrap().len();
        let change = |version: i32| {
            connection.pragma_update(None, "application_id", version).unwrap();
        };
        let checkpoint = || store.checkpoint(Checkpoint::Restart, Duration::ZERO);
        // Without a WAL the pages are those of the whole file.
        change(1);
        keep_database_room(connection, dir, 1 << 20);
        let long = length();
        assert!(long > 1 << 20, "{long}");
        for version in 2..5 {
            change(version);
            assert!(keeping_length(connection, dir, checkpoint).unwrap());
            assert_eq!(length(), long);
        }
        // SQLite's default behaviour.
        change(5);
        assert!(checkpoint().unwrap());
        assert!(length() < long);
    }
}
