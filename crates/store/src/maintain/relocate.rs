//! Moves a record to another directory, also on another file system.
//!
//! On the same file system it is one rename. Otherwise everything is copied next to the new place,
//! synced and read back; then the old place gets a note that names the new one, and a rename puts
//! the copy in place. That rename is the instant at which the record moves: until then the old
//! place is the record, and afterwards its note leads to the new one. The old files are removed
//! last. An interrupted move is resumed by the next one: a completely copied file has the timestamp
//! of the original and is not copied again.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::base::crash_points::crash_point;
use crate::base::dir::{IGNORE_FILE, StoreDir, remove, sync_dir};
use crate::base::live_file;
use crate::base::moved_store::{MOVED_TO, moved_to, read_note, write_note};
use crate::base::write_lock::WriteTurn;
use crate::{Error, Result, Store};

/// In an incomplete copy, or one that just became the record: the place it is copied from.
const MOVED_FROM: &str = "moved-from";
const DATABASE: [&str; 2] = ["retake.db", "retake.db-wal"];
/// Created again on demand, or specific to the place.
const NOT_MOVED: [&str; 4] = ["retake.db-shm", "write.lock", MOVED_TO, MOVED_FROM];

/// What a move did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Bytes copied; 0 on the same file system.
    pub copied_bytes: u64,
    /// Whether an earlier move had started it.
    pub resumed: bool,
}

/// The source of an interrupted move to this place.
pub fn interrupted_move(to: &Path) -> Option<PathBuf> {
    let origin = |dir: &Path| {
        let path = read_note(&dir.join(MOVED_FROM))?;
        Some(PathBuf::from(OsString::from(std::ffi::OsStr::from_bytes(&path))))
    };
    origin(&incoming(to)).or_else(|| origin(to))
}

/// Moves the record of one directory to another, which must be empty. Refused while one of its runs
/// or loops is alive.
pub fn relocate(from: &Path, to: &Path) -> Result<Moved> {
    relocate_with(from, to, |source| match rename_whole(source.root(), to) {
        // The second error occurs for a mount point.
        Err(Error::Io { source: error, .. })
            if matches!(
                error.kind(),
                io::ErrorKind::CrossesDevices | io::ErrorKind::ResourceBusy
            ) =>
        {
            copy_whole(source, to)
        }
        renamed => renamed,
    })
}

/// Copies even on the same file system. For crash tests, which have only one.
#[doc(hidden)]
pub fn relocate_by_copying(from: &Path, to: &Path) -> Result<Moved> {
    relocate_with(from, to, |source| copy_whole(source, to))
}

fn relocate_with(
    from: &Path,
    to: &Path,
    transfer: impl FnOnce(&StoreDir) -> Result<Moved>,
) -> Result<Moved> {
    if moved_to(from).as_deref() == Some(to) {
        remove_remains(&StoreDir::new(from), to)?;
        return Ok(Moved { copied_bytes: 0, resumed: true });
    }
    let (source, target) = (StoreDir::new(from), StoreDir::new(to));
    if !source.has_database()? {
        return Err(Error::NoStore { path: from.to_owned() });
    }
    source.check_owner()?;
    if target.has_database()? || has_entries(to) {
        return Err(Error::Occupied { path: to.to_owned() });
    }
    StoreDir::new(to.parent().unwrap_or(Path::new("/"))).prepare_beside()?;
    let turn = WriteTurn::take(&source)?;
    refuse_if_in_use(&source)?;
    let moved = transfer(&source);
    drop(turn);
    moved
}

fn has_entries(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

fn refuse_if_in_use(source: &StoreDir) -> Result<()> {
    let runs = live_file::live_runs(source)?;
    let loops = live_file::live_loops(source)?;
    let running = runs.into_iter().filter(|id| live_file::run_is_alive(source, *id)).count()
        + loops
            .into_iter()
            .filter(|id| live_file::liveness(source, *id) == live_file::Liveness::Alive)
            .count();
    let remote = match fs::read_dir(source.remote_runs_dir()) {
        Ok(marks) => marks.count(),
        Err(_) => 0, // no such directory: none were ever sent
    };
    if running + remote > 0 {
        return Err(Error::InUse { path: source.root().to_owned(), running, remote });
    }
    Ok(())
}

/// Renames the directory; then the old place gets its note. Only a program that creates a new
/// record between these two renames would miss the note.
fn rename_whole(from: &Path, to: &Path) -> Result<Moved> {
    let note = from.with_added_extension("moved");
    let failed = |error: io::Error| Error::io("move", from, error);
    if note.exists() {
        fs::remove_dir_all(&note).map_err(failed)?;
    }
    let former = StoreDir::new(&note);
    former.make(&note)?;
    former.ignore_all()?;
    write_note(&note.join(MOVED_TO), to.as_os_str().as_bytes())?;
    crash_point("before the rename of a move");
    match fs::rename(from, to) {
        Ok(()) => {}
        Err(error) => {
            // Nothing has moved yet: remove the note.
            drop(fs::remove_dir_all(&note));
            return Err(match error.kind() {
                io::ErrorKind::DirectoryNotEmpty => Error::Occupied { path: to.to_owned() },
                _ => Error::Io { action: "move", path: from.to_owned(), source: error },
            });
        }
    }
    crash_point("after the rename of a move");
    fs::rename(&note, from).map_err(failed)?;
    for path in [from, to] {
        path.parent().map_or(Ok(()), sync_dir)?;
    }
    Ok(Moved { copied_bytes: 0, resumed: false })
}

/// The directory for the copy.
fn incoming(to: &Path) -> PathBuf {
    to.with_added_extension("incoming")
}

fn copy_whole(source: &StoreDir, to: &Path) -> Result<Moved> {
    let (from, staging) = (source.root(), incoming(to));
    let resumed = interrupted_move(to).is_some_and(|origin| origin == from);
    if staging.exists() && !resumed {
        // An unfinished copy of another record.
        fs::remove_dir_all(&staging).map_err(|error| Error::io("remove", &staging, error))?;
    }
    let copy = StoreDir::new(&staging);
    copy.make(&staging)?;
    write_note(&staging.join(MOVED_FROM), from.as_os_str().as_bytes())?;
    crash_point("before the copy of a move");
    let copied_bytes = copy_directory(from, &staging)?;
    check_head(from, &staging)?;
    crash_point("after the copy of a move");
    write_note(&from.join(MOVED_TO), to.as_os_str().as_bytes())?;
    crash_point("before the copy becomes the record");
    fs::rename(&staging, to).map_err(|error| match error.kind() {
        io::ErrorKind::DirectoryNotEmpty => Error::Occupied { path: to.to_owned() },
        _ => Error::io("move", &staging, error),
    })?;
    to.parent().map_or(Ok(()), sync_dir)?;
    crash_point("after the copy became the record");
    remove_remains(source, to)?;
    Ok(Moved { copied_bytes, resumed })
}

/// The copy must have the same head.
fn check_head(from: &Path, copy: &Path) -> Result<()> {
    // Does not follow `moved-to`, which an interrupted move may have left.
    let head = |root: &Path| Store::open_read_only(root).and_then(|store| store.head());
    let (expected, found) = (head(from)?, head(copy)?);
    remove(&copy.join("retake.db-shm"))?;
    if expected == found {
        return Ok(());
    }
    Err(not_the_same(copy))
}

fn not_the_same(copy: &Path) -> Error {
    Error::io("copy to", copy, io::Error::other("what was read back is not what was written"))
}

/// Synchronises a directory with another one, synced. Returns how many bytes were copied.
fn copy_directory(from: &Path, to: &Path) -> Result<u64> {
    let failed = |error| Error::io("read", from, error);
    let mut copied = 0;
    let mut kept: BTreeSet<OsString> = BTreeSet::new();
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (name, path) = (entry.file_name(), entry.path());
        if NOT_MOVED.iter().any(|left| name == *left) {
            continue;
        }
        let kind = entry.file_type().map_err(failed)?;
        let target = to.join(&name);
        if kind.is_dir() {
            StoreDir::new(to).make(&target)?;
            copied += copy_directory(&path, &target)?;
        } else if kind.is_file() {
            copied += copy_file(&path, &target, DATABASE.iter().any(|file| name == *file))?;
        } else {
            let error = io::Error::other("it is neither a file nor a directory");
            return Err(Error::io("move", &path, error));
        }
        kept.insert(name);
    }
    for entry in fs::read_dir(to).map_err(|error| Error::io("read", to, error))? {
        let entry = entry.map_err(|error| Error::io("read", to, error))?;
        // Removed from the record since an earlier attempt.
        if !kept.contains(&entry.file_name()) && entry.file_name() != MOVED_FROM {
            remove_any(&entry.path())?;
        }
    }
    sync_dir(to)?;
    Ok(copied)
}

fn copy_file(from: &Path, to: &Path, always: bool) -> Result<u64> {
    let failed = |error| Error::io("copy", from, error);
    let mut source =
        OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(from).map_err(failed)?;
    let metadata = source.metadata().map_err(failed)?;
    let modified = metadata.modified().map_err(failed)?;
    let complete = |there: fs::Metadata| {
        there.len() == metadata.len() && there.modified().is_ok_and(|time| time == modified)
    };
    if !always && fs::symlink_metadata(to).is_ok_and(complete) {
        return Ok(0);
    }
    remove(to)?;
    let writing = |error| Error::io("write", to, error);
    let mut target = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(metadata.mode() & 0o777)
        .open(to)
        .map_err(writing)?;
    let mut buffer = vec![0; 256 * 1024];
    let (mut written, mut bytes) = (blake3::Hasher::new(), 0);
    loop {
        let read = read_some(&mut source, &mut buffer).map_err(failed)?;
        if read == 0 {
            break;
        }
        target.write_all(&buffer[..read]).map_err(writing)?;
        written.update(&buffer[..read]);
        bytes += read as u64;
    }
    target.sync_all().map_err(writing)?;
    let mut copy = File::open(to).map_err(writing)?;
    let mut found = blake3::Hasher::new();
    loop {
        let read = read_some(&mut copy, &mut buffer).map_err(writing)?;
        if read == 0 {
            break;
        }
        found.update(&buffer[..read]);
    }
    if found.finalize() != written.finalize() {
        return Err(not_the_same(to));
    }
    // Last, because the timestamp marks the file as complete.
    target.set_modified(modified).map_err(writing)?;
    Ok(bytes)
}

fn read_some(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match file.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// Removes the old files of a moved record, except the note. The database goes first: without it
/// the rest is not taken for a record.
fn remove_remains(source: &StoreDir, to: &Path) -> Result<()> {
    remove(source.database())?;
    crash_point("while the old place of a move is cleared");
    let root = source.root();
    let failed = |error| Error::io("read", root, error);
    for entry in fs::read_dir(root).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name() != MOVED_TO && entry.file_name() != IGNORE_FILE {
            remove_any(&entry.path())?;
        }
    }
    source.ignore_all()?;
    sync_dir(root)?;
    remove(&to.join(MOVED_FROM))
}

fn remove_any(path: &Path) -> Result<()> {
    let failed = |error| Error::io("remove", path, error);
    if fs::symlink_metadata(path).map_err(failed)?.is_dir() {
        return fs::remove_dir_all(path).map_err(failed);
    }
    remove(path)
}
