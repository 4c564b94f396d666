//! The last snapshot on disk, so that the next process need not hash everything.
//!
//! Only a cache: a torn, foreign, outdated or otherwise incorrect one is ignored. It is written to
//! a temporary file and renamed, under a lock that is held only for that.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use retake_types::TextRedactor;
use xxhash_rust::xxh3::Xxh3;

use super::Error;
use super::cache_format;
use super::line_records::RecordPosition;
use super::line_store::{self, LineStore, LineStoreWriter, Segment, Segments};
use super::snapshot::{Directory, FileEntry, SnapshotTree};
use super::syscalls;

const FILE: &str = "cache";
const LOCK: &str = "lock";
const SUM: usize = 16;
/// How long to wait for another process that is saving, in steps.
const PATIENCE: (u32, Duration) = (400, Duration::from_millis(5));
/// More segments than this are merged.
const MAX_SEGMENTS: usize = 8;
/// Dead records take at most this much more than the records in use.
const SPARE_BYTES: u64 = 1 << 20;

/// The cache directory of one root.
#[derive(Debug, Clone)]
pub(super) struct SnapshotCache {
    directory: PathBuf,
}

impl SnapshotCache {
    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(io::Error) -> Error {
        let path = self.directory.clone();
        move |source| Error::Cache { action, path, source }
    }

    /// Makes sure that the directory exists and that only the user can access it.
    pub(super) fn prepare(&self) -> Result<(), Error> {
        let make = || -> io::Result<()> {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
            let mut permissions = std::fs::metadata(&self.directory)?.permissions();
            if permissions.mode() & 0o077 != 0 {
                permissions.set_mode(0o700);
                std::fs::set_permissions(&self.directory, permissions)?;
            }
            Ok(())
        };
        make().map_err(self.failed("prepare"))
    }

    /// The saved tree, if it is intact and belongs to this root.
    pub(super) fn load(&self, root: &Path) -> Option<SnapshotTree> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(syscalls::NO_FOLLOW | syscalls::NON_BLOCKING);
        let mut file = options.open(self.directory.join(FILE)).ok()?;
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || metadata.uid() != own_uid() {
            return None;
        }
        let payload = metadata.len().checked_sub(SUM as u64)?;
        let summed = Checksummed { inner: (&file).take(payload), sum: Xxh3::new() };
        let mut reader = BufReader::with_capacity(256 << 10, summed);
        let saved = cache_format::read(&mut reader, root, payload).ok()?;
        // Detects trailing data, which the checksum would cover as well.
        if reader.read(&mut [0]).ok()? != 0 {
            return None;
        }
        let sum = reader.into_inner().sum.digest128().to_le_bytes();
        let mut expected = [0; SUM];
        file.read_exact(&mut expected).ok()?;
        if sum != expected {
            return None;
        }
        Some(SnapshotTree {
            directories: saved.directories,
            closed: Vec::new(),
            hidden: Vec::new(),
            start: saved.start,
            segments: Segments::open(&self.directory, saved.seed, &saved.segments),
        })
    }

    /// Writes the tree and removes obsolete files. Returns the saved tree, which differs if its
    /// line records were merged.
    pub(super) fn save(
        &self,
        root: &Path,
        tree: &Arc<SnapshotTree>,
        redactor: &mut dyn TextRedactor,
    ) -> Result<Arc<SnapshotTree>, Error> {
        if redactor.redact(root.as_os_str().as_bytes()).is_some() {
            return Ok(tree.clone());
        }
        self.prepare()?;
        let _turn = self.lock()?;
        let old = tree;
        let needed = old.directories.iter().map(|directory| live(directory) as u64).sum();
        let tree = match self.gathered(old, needed) {
            Some(gathered) => Arc::new(gathered),
            None => old.clone(),
        };
        let kept = || tree.segments.all.iter().flatten();
        if kept().map(|segment| segment.records()).sum::<u64>() <= needed {
            kept().for_each(|segment| segment.settle());
        }
        let aside = self.directory.join(format!("{FILE}.new"));
        self.write(&aside, root, &tree, redactor)
            .and_then(|()| std::fs::rename(&aside, self.directory.join(FILE)))
            .map_err(self.failed("write to"))?;
        tree.segments.all.iter().flatten().for_each(|segment| segment.keep());
        if !Arc::ptr_eq(old, &tree) {
            let released = old.segments.all.iter().flatten().map(|segment| segment.release());
            released.collect::<io::Result<()>>().map_err(self.failed("unlock"))?;
        }
        self.tidy(&tree).map_err(self.failed("tidy"))?;
        Ok(tree)
    }

    fn lock(&self) -> Result<File, Error> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        let file = options
            .custom_flags(syscalls::NO_FOLLOW)
            .open(self.directory.join(LOCK))
            .map_err(self.failed("lock"))?;
        for _ in 0..PATIENCE.0 {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(PATIENCE.1),
                Err(std::fs::TryLockError::Error(error)) => return Err(self.failed("lock")(error)),
            }
        }
        Err(Error::Busy { path: self.directory.clone() })
    }

    fn write(
        &self,
        aside: &Path,
        root: &Path,
        tree: &SnapshotTree,
        redactor: &mut dyn TextRedactor,
    ) -> io::Result<()> {
        // Left by a dead process; while the lock is held no other process writes.
        remove(aside)?;
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(aside)?;
        let summed = Checksummed { inner: &file, sum: Xxh3::new() };
        let mut writer = BufWriter::with_capacity(256 << 10, summed);
        cache_format::write(&mut writer, root, tree, redactor)?;
        let summed = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        let sum = summed.sum.digest128().to_le_bytes();
        (&file).write_all(&sum)
    }

    /// The tree with all its line records merged into one new segment, if there are too many segments,
    /// too many dead records or bytes of them, or if another process removed a segment. `needed` are
    /// the records in use.
    fn gathered(&self, tree: &SnapshotTree, needed: u64) -> Option<SnapshotTree> {
        let segments = &tree.segments;
        let present = || segments.all.iter().flatten();
        let records: u64 = present().map(|segment| segment.records()).sum();
        let bytes: u64 = present().map(|segment| segment.size()).sum();
        let settled: u64 = present().map(|segment| segment.settled()).sum();
        let full = present().any(|segment| segment.is_full()) && records > needed + needed / 4;
        let tidy = !full
            && present().count() <= MAX_SEGMENTS
            && records <= 2 * needed + 1000
            // A large file that changes each time leaves few records, but large ones.
            && (records <= needed || bytes <= 2 * settled + SPARE_BYTES)
            && present().all(|segment| segment.is_named());
        if tidy {
            return None;
        }
        let sink = LineStore::new(Segments::seeded(segments.seed), Some(&self.directory));
        let mut writer = LineStoreWriter::new(&sink);
        let directories = tree
            .directories
            .iter()
            .map(|directory| {
                if live(directory) == 0 {
                    return directory.clone();
                }
                let moved = |entry: &FileEntry| {
                    let record = segments.record(entry);
                    let mut entry = *entry;
                    entry.lines =
                        record.map_or(RecordPosition::NONE, |record| writer.push_record(&record));
                    entry
                };
                let entries = directory.entries.iter().map(moved).collect();
                Arc::new(directory.with_entries(entries))
            })
            .collect();
        writer.finish();
        let (segments, _unwritten_records_are_not_believed_later) = sink.finish();
        let (closed, hidden) = (tree.closed.clone(), tree.hidden.clone());
        Some(SnapshotTree { directories, closed, hidden, start: tree.start, segments })
    }

    /// Removes segments that neither the saved tree nor a live process refers to.
    fn tidy(&self, tree: &SnapshotTree) -> io::Result<()> {
        let used: Vec<String> = tree
            .segments
            .all
            .iter()
            .flatten()
            .map(|segment| line_store::segment_name(segment.id))
            .collect();
        for entry in std::fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| name.starts_with("lines-")) else {
                continue;
            };
            if !used.iter().any(|used| used == name) && Segment::is_abandoned(&entry.path()) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Removes everything that was saved.
    pub(super) fn clear(&self) -> Result<(), Error> {
        let clear = || -> io::Result<()> {
            for entry in std::fs::read_dir(&self.directory)? {
                let entry = entry?;
                let name = entry.file_name();
                let name = name.to_string_lossy();
                if name == LOCK || name.starts_with(FILE) || name.starts_with("lines-") {
                    remove(&entry.path())?;
                }
            }
            std::fs::remove_dir(&self.directory)
        };
        match clear() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(self.failed("clear")),
        }
    }
}

/// A missing file is fine: its last user may have removed it.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn live(directory: &Directory) -> usize {
    directory.entries.iter().filter(|entry| entry.lines.get().is_some()).count()
}

/// Computes a checksum of the data that passes.
struct Checksummed<I> {
    inner: I,
    sum: Xxh3,
}

impl<R: Read> Read for Checksummed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.sum.update(&buffer[..read]);
        Ok(read)
    }
}

impl<W: Write> Write for Checksummed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.sum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
