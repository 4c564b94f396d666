//! Stores line records in append-only files next to the cache.
//!
//! A segment is only appended to, and only by the process that holds its lock; other processes read
//! it, or start their own. Records are found only by offset, so garbage at the end after a crash is
//! harmless. A process with an open segment can read it even after another process has removed its
//! name.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use retake_types::LineChange;

use super::cache_format::SavedSegment;
use super::line_records::{self, RecordPosition};
use super::snapshot::FileEntry;
use super::syscalls;

const MAGIC: [u8; 8] = *b"rtkline1";
const HEAD: u64 = 16;
/// Beyond this no more records are kept; the next tidying frees space.
const MAX_SEGMENT: u64 = 256 << 20;
/// Write sizes of a worker: small at first, since most scans find few new records.
const CHUNKS: std::ops::RangeInclusive<usize> = 4 << 10..=128 << 10;

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) id: u64,
    file: File,
    /// `None` once the file has no name: it is freed with its last user.
    path: Option<PathBuf>,
    end: AtomicU64,
    /// Records appended so far, including dead ones.
    records: AtomicU64,
    /// Its size in bytes when it last had no dead records: about the bytes in use.
    settled: AtomicU64,
    /// A saved cache refers to it, so it must outlive this process.
    kept: AtomicBool,
}

impl Drop for Segment {
    fn drop(&mut self) {
        if let Some(path) = &self.path
            && !self.kept.load(Ordering::Relaxed)
        {
            // If this fails, the next process that saves removes it.
            _ = std::fs::remove_file(path);
        }
    }
}

pub(super) fn segment_name(id: u64) -> String {
    format!("lines-{id:016x}")
}

impl Segment {
    /// Creates a segment in the cache's directory, or an unnamed one among the temporary files.
    fn create(directory: Option<&Path>, seed: u64) -> io::Result<Self> {
        loop {
            let id = syscalls::random()?;
            let home = directory.map_or_else(std::env::temp_dir, Path::to_owned);
            let path = home.join(segment_name(id));
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .custom_flags(syscalls::NO_FOLLOW)
                .open(&path)?;
            let mut segment = Self {
                id,
                file,
                path: Some(path),
                end: HEAD.into(),
                records: 0.into(),
                settled: 0.into(),
                kept: false.into(),
            };
            if directory.is_none() {
                segment.path.take().map_or(Ok(()), std::fs::remove_file)?;
            } else if segment.file.try_lock().is_err() || segment.file.metadata()?.nlink() == 0 {
                // Another process tidied up between creating and locking.
                continue;
            }
            let mut head = [0; HEAD as usize];
            head[..8].copy_from_slice(&MAGIC);
            head[8..].copy_from_slice(&seed.to_le_bytes());
            segment.file.write_all_at(&head, 0)?;
            return Ok(segment);
        }
    }

    /// Opens a segment of a cache. The second value says whether it may be appended to.
    fn open(directory: &Path, saved: &SavedSegment, seed: u64) -> Option<(Self, bool)> {
        let path = directory.join(segment_name(saved.id));
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(syscalls::NO_FOLLOW | syscalls::NON_BLOCKING);
        let file = options.open(&path).ok()?;
        let mut head = [0; HEAD as usize];
        file.read_exact_at(&mut head, 0).ok()?;
        if head[..8] != MAGIC || head[8..] != seed.to_le_bytes() {
            return None;
        }
        let ours = file.try_lock().is_ok();
        let end = file.metadata().ok()?.len();
        let segment = Self {
            id: saved.id,
            file,
            path: Some(path),
            end: end.into(),
            records: saved.records.into(),
            settled: saved.settled.into(),
            kept: true.into(),
        };
        Some((segment, ours))
    }

    fn reserve(&self, len: usize) -> Option<u64> {
        let at = self.end.fetch_add(len as u64, Ordering::Relaxed);
        (at + len as u64 <= MAX_SEGMENT).then_some(at)
    }

    /// Releases unused reserved space, if it is the last.
    fn give_back(&self, end: u64, unused: usize) {
        let (relaxed, new) = (Ordering::Relaxed, end - unused as u64);
        // Otherwise another worker has reserved space after it, and it stays a hole.
        _ = self.end.compare_exchange(end, new, relaxed, relaxed);
    }

    fn record(&self, offset: u64, hash: &[u8; 32]) -> Option<Vec<u8>> {
        let mut head = [0; 24];
        self.file.read_exact_at(&mut head, offset).ok()?;
        let mut record = vec![0; line_records::record_len(&head, hash)?];
        self.file.read_exact_at(&mut record, offset).ok()?;
        Some(record)
    }

    pub(super) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    pub(super) fn size(&self) -> u64 {
        self.end.load(Ordering::Relaxed)
    }

    pub(super) fn settled(&self) -> u64 {
        self.settled.load(Ordering::Relaxed)
    }

    /// Notes that it has no dead records now.
    pub(super) fn settle(&self) {
        self.settled.store(self.size(), Ordering::Relaxed);
    }

    pub(super) fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    /// Ends appending by this process.
    pub(super) fn release(&self) -> io::Result<()> {
        self.file.unlock()
    }

    /// Whether it is full.
    pub(super) fn is_full(&self) -> bool {
        self.end.load(Ordering::Relaxed) >= MAX_SEGMENT
    }

    /// Whether no live process appends to the segment with this name.
    pub(super) fn is_abandoned(path: &Path) -> bool {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(syscalls::NO_FOLLOW | syscalls::NON_BLOCKING);
        options.open(path).is_ok_and(|file| file.try_lock().is_ok())
    }

    /// Whether its name still leads to it.
    pub(super) fn is_named(&self) -> bool {
        let Some(path) = &self.path else { return false };
        match (std::fs::symlink_metadata(path), self.file.metadata()) {
            (Ok(named), Ok(own)) => (named.dev(), named.ino()) == (own.dev(), own.ino()),
            _ => false,
        }
    }
}

/// The segments of a tree, by position.
#[derive(Debug, Clone, Default)]
pub(super) struct Segments {
    pub(super) seed: u64,
    pub(super) all: Vec<Option<Arc<Segment>>>,
    /// The segment that this process may append to.
    own: Option<u16>,
}

impl Segments {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self::seeded(syscalls::random()?))
    }

    pub(super) fn seeded(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Opens the segments of a cache; records in missing or foreign ones are unknown.
    pub(super) fn open(directory: &Path, seed: u64, named: &[SavedSegment]) -> Self {
        let mut segments = Self::seeded(seed);
        for (at, saved) in named.iter().enumerate() {
            let opened = Segment::open(directory, saved, seed);
            if let Some((_, true)) = &opened {
                segments.own = u16::try_from(at).ok();
            }
            segments.all.push(opened.map(|(segment, _)| Arc::new(segment)));
        }
        segments
    }

    fn lines(&self, entry: &FileEntry) -> Option<Vec<u64>> {
        if entry.stat.size == 0 {
            return Some(Vec::new());
        }
        line_records::decode(&self.record(entry)?)
    }

    pub(super) fn record(&self, entry: &FileEntry) -> Option<Vec<u8>> {
        let (segment, offset) = entry.lines.get()?;
        self.all.get(usize::from(segment))?.as_ref()?.record(offset, &entry.hash)
    }
}

/// Counts the changed lines between two states of a file; either may be missing.
pub(super) fn count_changes(
    before: Option<(&Segments, &FileEntry)>,
    after: Option<(&Segments, &FileEntry)>,
) -> Option<LineChange> {
    let seeds = [before, after].map(|side| side.map(|(segments, _)| segments.seed));
    if let [Some(before), Some(after)] = seeds
        && before != after
    {
        return None;
    }
    let lines = |side: Option<(&Segments, &FileEntry)>| {
        side.map_or(Some(Vec::new()), |(segments, entry)| segments.lines(entry))
    };
    Some(line_records::compare(&lines(before)?, &lines(after)?))
}

/// Stores the records of one scan by several workers.
#[derive(Debug)]
pub(super) struct LineStore {
    segments: Mutex<Segments>,
    directory: Option<PathBuf>,
    problem: Mutex<Option<io::Error>>,
    pub(super) seed: u64,
}

impl LineStore {
    pub(super) fn new(segments: Segments, directory: Option<&Path>) -> Self {
        let seed = segments.seed;
        let directory = directory.map(Path::to_owned);
        Self { segments: segments.into(), directory, problem: None.into(), seed }
    }

    /// The segments for the snapshot, and the error if lines could not be kept.
    pub(super) fn finish(self) -> (Segments, Option<io::Error>) {
        let segments = self.segments.into_inner().unwrap_or_else(PoisonError::into_inner);
        (segments, self.problem.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn own(&self) -> io::Result<(u16, Arc<Segment>)> {
        let mut segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = segments.own
            && let Some(Some(segment)) = segments.all.get(usize::from(at))
        {
            return Ok((at, segment.clone()));
        }
        let at = u16::try_from(segments.all.len()).map_err(io::Error::other)?;
        let segment = Arc::new(Segment::create(self.directory.as_deref(), segments.seed)?);
        segments.all.push(Some(segment.clone()));
        segments.own = Some(at);
        Ok((at, segment))
    }

    fn fail(&self, error: io::Error) {
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

/// One worker's writer for the [`LineStore`]: buffers records and writes them in large pieces.
#[derive(Debug)]
pub(super) struct LineStoreWriter<'s> {
    sink: &'s LineStore,
    open: Option<(u16, Arc<Segment>)>,
    buffer: Vec<u8>,
    /// Offset of the buffer's first byte, and the reserved length.
    at: u64,
    room: usize,
    chunk: usize,
    failed: bool,
}

impl<'s> LineStoreWriter<'s> {
    pub(super) fn new(sink: &'s LineStore) -> Self {
        let chunk = *CHUNKS.start();
        Self { sink, open: None, buffer: Vec::new(), at: 0, room: 0, chunk, failed: false }
    }

    /// Stores the lines of a text. Returns [`RecordPosition::NONE`] for binary content, and after
    /// any failure.
    pub(super) fn push(&mut self, content: &[u8], hash: &[u8; 32]) -> RecordPosition {
        if self.failed || content.is_empty() {
            return RecordPosition::NONE;
        }
        let start = self.buffer.len();
        if !line_records::encode(content, hash, self.sink.seed, &mut self.buffer) {
            return RecordPosition::NONE;
        }
        self.reserve_record(start).unwrap_or_else(|error| {
            self.failed = true;
            self.sink.fail(error);
            RecordPosition::NONE
        })
    }

    pub(super) fn push_record(&mut self, record: &[u8]) -> RecordPosition {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(record);
        self.reserve_record(start).unwrap_or(RecordPosition::NONE)
    }

    /// Reserves space for the record that begins at `start` and ends with the buffer.
    fn reserve_record(&mut self, start: usize) -> io::Result<RecordPosition> {
        let mut start = start;
        if self.buffer.len() > self.room {
            let record = self.buffer.split_off(start);
            self.flush()?;
            if self.open.is_none() {
                self.open = Some(self.sink.own()?);
            }
            let room = record.len().max(self.chunk);
            self.chunk = (self.chunk * 2).min(*CHUNKS.end());
            let Some(at) = self.open.as_ref().and_then(|(_, segment)| segment.reserve(room)) else {
                // Full: the rest of this scan has no line counts.
                (self.failed, self.room) = (true, 0);
                return Ok(RecordPosition::NONE);
            };
            (self.buffer, self.at, self.room) = (record, at, room);
            start = 0;
        }
        let Some((index, segment)) = &self.open else { return Ok(RecordPosition::NONE) };
        segment.records.fetch_add(1, Ordering::Relaxed);
        Ok(RecordPosition::new(*index, self.at + start as u64).unwrap_or(RecordPosition::NONE))
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some((_, segment)) = &self.open {
            segment.file.write_all_at(&self.buffer, self.at)?;
            segment.give_back(self.at + self.room as u64, self.room - self.buffer.len());
        }
        self.buffer.clear();
        self.room = 0;
        Ok(())
    }

    /// Must be called: unwritten records are lost.
    pub(super) fn finish(mut self) {
        if let Err(error) = self.flush() {
            self.sink.fail(error);
        }
    }
}
