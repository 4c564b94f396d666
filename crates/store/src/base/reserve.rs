//! Room that the record keeps for itself, so that a full disk costs output and never an outcome.
//!
//! Blocks are reserved inside the files that need them: the WAL has blocks allocated beyond its end
//! (`fallocate` with `FALLOC_FL_KEEP_SIZE`), and the database grows in chunks. A separate file that is
//! given up when the disk is full was rejected: another writer on that disk, such as the output of a
//! run beside this one, takes the blocks before the commit does. btrfs writes new blocks for each change,
//! unless a file is marked: the store's are. On other file systems that copy on write the reserve is what
//! the file system makes of the request.
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

/// Allocated for the WAL. A run without output takes 50 KiB of it until the next checkpoint.
pub(crate) const WAL_ROOM: u64 = 512 * 1024;
/// The database grows by this much at a time, so that a checkpoint has somewhere to write to.
const DATABASE_CHUNK: i32 = 256 * 1024;
/// How much of the database's file should be free after a checkpoint.
pub(crate) const DATABASE_ROOM: u64 = 128 * 1024;
/// On a full disk a run begins only where this much of the database's file is free: a WAL that has
/// more pages than the file has room for could never be folded again.
const ROOM_TO_BEGIN: u64 = 48 * 1024;
/// Runs that can begin beside each other where no file can be made any more.
const SPARE_FILES: usize = 4;
/// With less than this free the disk counts as full: what is given up now may not come back.
const ALMOST_FULL: u64 = 1024 * 1024;

/// What a write may leave of the reserve when the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// A new run or loop: its outcome has to fit too, and so has an erasure.
    Begin,
    /// The same together with the outcome of the run before it, which has this many bytes of output.
    BeginAfter(u64),
    /// What belongs to a run or loop that has begun.
    Continue,
    /// The same with this many bytes of output, which can be given up.
    Output(u64),
    /// What gives space back.
    Erase,
}

impl Claim {
    /// How long the WAL may be on a full disk for this to be tried.
    pub(crate) fn wal_limit(self) -> u64 {
        match self {
            Self::Begin | Self::BeginAfter(_) => WAL_ROOM / 2,
            Self::Continue | Self::Output(_) => WAL_ROOM * 3 / 4,
            Self::Erase => u64::MAX,
        }
    }

    /// Whether a run or loop begins with it.
    pub(crate) fn begins(self) -> bool {
        matches!(self, Self::Begin | Self::BeginAfter(_))
    }

    /// How much room the database's file needs on a full disk for this to be tried.
    pub(crate) fn database_room(self) -> u64 {
        match self {
            Self::Begin => ROOM_TO_BEGIN,
            Self::Output(bytes) | Self::BeginAfter(bytes) => ROOM_TO_BEGIN + bytes,
            Self::Continue | Self::Erase => 0,
        }
    }
}

/// On btrfs: has files that are made in the store's directory written in place, so that what is allocated
/// ahead stays theirs. That costs btrfs its checksums; the record has hashes of its own. What fails leaves
/// the reserve to the file system.
pub(crate) fn write_in_place(dir: &StoreDir) {
    if !copies_on_write(dir.root()) {
        return;
    }
    let Ok(root) = File::open(dir.root()) else { return };
    let flags = rustix::fs::ioctl_getflags(&root);
    _ = flags.and_then(|flags| rustix::fs::ioctl_setflags(&root, flags | IFlags::NOCOW));
}

/// Makes the database grow in chunks through this connection.
pub(crate) fn grow_in_chunks(connection: &Connection) {
    set_chunk(connection, DATABASE_CHUNK);
}

/// Runs `checkpoint`, which leaves the database's file as long as it is where that has room for all of
/// its pages. Otherwise SQLite cuts off the room of the next WAL with each checkpoint, and it is
/// allocated again, one block after another.
pub(crate) fn keeping_length<T>(
    connection: &Connection,
    dir: &StoreDir,
    checkpoint: impl FnOnce() -> T,
) -> T {
    let length = dir.database().metadata().map_or(0, |database| database.len());
    // SQLite rounds the length that it cuts to up to whole chunks: one chunk is all of the file.
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
    // operation reads. A VFS that does not know the operation says so, and the database grows as
    // it is written.
    unsafe {
        rusqlite::ffi::sqlite3_file_control(
            connection.handle(),
            c"main".as_ptr(),
            rusqlite::ffi::SQLITE_FCNTL_CHUNK_SIZE,
            (&raw mut chunk).cast::<c_void>(),
        );
    }
}

/// Allocates the WAL's room where it is missing. A disk that has no room left is no error here: the
/// write that needs the room reports it.
pub(crate) fn keep_wal_room(dir: &StoreDir) {
    let path = dir.wal();
    // Not its times: the kernel gives a file whose times were read a new one with the next write, which
    // it would otherwise do a few times in a second.
    let wanted = StatxFlags::BLOCKS;
    let wal = statx(CWD, &path, AtFlags::SYMLINK_NOFOLLOW, wanted);
    if wal.is_ok_and(|wal| wal.stx_blocks * 512 >= WAL_ROOM) {
        return;
    }
    let file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path);
    // Without a WAL there is nothing to allocate for yet.
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

/// Frees the WAL's blocks beyond its end: for what has a better use for the last of the room.
pub(crate) fn give_wal_room_back(dir: &StoreDir) {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(dir.wal());
    // Without a WAL there is nothing to free. What fails leaves the blocks where they are.
    let Ok(file) = file else { return };
    drop(file.metadata().and_then(|wal| file.set_len(wal.len())));
}

/// Makes the spare files where a full disk could not make a live file. What fails is tried again later.
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

/// Puts spare files where SQLite would make the WAL and its index, if another program removed them.
pub(crate) fn replace_missing_files(dir: &StoreDir) {
    for suffix in ["-wal", "-shm"] {
        let path = dir.beside_database(suffix);
        if !path.exists() {
            take_spare_file(dir, &path);
        }
    }
}

/// Gives a spare file another name, and returns the one it had; `None` when there is none left.
pub(crate) fn take_spare_file(dir: &StoreDir, name: &Path) -> Option<PathBuf> {
    spare_files(dir).find(|spare| std::fs::rename(spare, name).is_ok())
}

/// Extends the database's file where less than this much of it is free.
pub(crate) fn keep_database_room(connection: &Connection, dir: &StoreDir, room: u64) {
    let Ok(used) = pragma(connection, "page_count").map(|pages| pages * PAGE) else { return };
    let Ok(length) = dir.database().metadata().map(|database| database.len()) else { return };
    let mut wanted = used + room.cast_signed();
    if length.cast_signed() < wanted {
        // SAFETY: as above; this operation reads an i64. Where it fails the file stays as it is.
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

/// What the database can take before its file has to grow.
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

/// Refuses to begin what the process's own limit would keep from being completed.
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
        // What SQLite does by itself.
        change(5);
        assert!(checkpoint().unwrap());
        assert!(length() < long);
    }
}
