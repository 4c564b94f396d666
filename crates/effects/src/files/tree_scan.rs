//! Walks a tree with several workers and examines every file that counts.
//!
//! A directory with unchanged times and rules since the last snapshot is not read again: its names
//! are known, and each file costs one `stat`. Large directories are split among workers.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

use super::directory_listing::{DirectoryListing, DirectoryReader, OpenDirectory};
use super::file_examiner::{FileExaminer, ScanTime};
use super::ignore_files::IgnoreFiles;
use super::line_store::{LineStore, LineStoreWriter};
use super::snapshot::{Directory, FileEntry, SnapshotTree, SubdirRule};
use super::syscalls;
use super::tracking_rules::TrackingRules;
use super::work_queue::WorkQueue;

/// How many files one worker takes at a time.
const PART: usize = 512;
/// A longer path is reported instead of entered: real trees are not that deep, and each level would
/// cost as much as all above it.
const MAX_PATH: usize = 64 << 10;
const NAMES_BUFFER: usize = 64 << 10;

pub(super) struct TreeScan<'a> {
    pub(super) root: OwnedFd,
    pub(super) rules: &'a TrackingRules,
    /// The ignore files that apply at the root, and the path from the topmost of them to the root.
    pub(super) above: (Arc<IgnoreFiles>, Vec<u8>),
    pub(super) previous: Option<&'a SnapshotTree>,
    pub(super) scan_time: ScanTime,
    pub(super) sink: &'a LineStore,
    pub(super) workers: usize,
    pub(super) stop: Option<&'a AtomicBool>,
}

#[derive(Default)]
pub(super) struct ScanResult {
    pub(super) directories: Vec<Arc<Directory>>,
    pub(super) closed: Vec<Box<[u8]>>,
    pub(super) hidden: Vec<Box<[u8]>>,
}

enum Task {
    Directory { path: Vec<u8>, ignore_files: Arc<IgnoreFiles>, passing: bool },
    Part { split: Arc<SplitDirectory>, at: usize },
}

/// A large directory shared by several workers; the last one to finish assembles it.
struct SplitDirectory {
    listing: DirectoryListing,
    parts: Mutex<Vec<Vec<FileEntry>>>,
}

impl TreeScan<'_> {
    pub(super) fn run(self) -> ScanResult {
        let ignore_files = self.above.0.clone();
        let queue =
            WorkQueue::new(Task::Directory { path: Vec::new(), ignore_files, passing: false });
        let all = Mutex::new(ScanResult::default());
        std::thread::scope(|scope| {
            for _ in 1..self.workers.max(1) {
                // If a thread cannot be started, the others do the work.
                _ = std::thread::Builder::new()
                    .name("retake-scan".to_owned())
                    .spawn_scoped(scope, || Worker::new(&self, &queue).work(&all));
            }
            Worker::new(&self, &queue).work(&all);
        });
        let mut found = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.directories.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        found.closed.sort_unstable();
        found
    }
}

struct Worker<'s> {
    scan: &'s TreeScan<'s>,
    queue: &'s WorkQueue<Task>,
    bare: Arc<IgnoreFiles>,
    examiner: FileExaminer<'s>,
    found: ScanResult,
    buffer: Vec<MaybeUninit<u8>>,
    entries: Vec<FileEntry>,
    /// The file systems seen so far, and whether they are local.
    devices: Vec<(u32, bool)>,
}

impl<'s> Worker<'s> {
    fn new(scan: &'s TreeScan<'s>, queue: &'s WorkQueue<Task>) -> Self {
        Self {
            scan,
            queue,
            bare: IgnoreFiles::bare(scan.rules),
            examiner: FileExaminer::new(scan.scan_time, LineStoreWriter::new(scan.sink)),
            found: ScanResult::default(),
            buffer: vec![MaybeUninit::uninit(); NAMES_BUFFER],
            entries: Vec::new(),
            devices: Vec::new(),
        }
    }

    fn work(mut self, all: &Mutex<ScanResult>) {
        self.queue.work(|task| {
            if self.scan.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                return self.queue.stop();
            }
            match task {
                Task::Directory { path, ignore_files, passing } => {
                    self.enter(path, &ignore_files, passing)
                }
                Task::Part { split, at } => self.part(split, at),
            }
        });
        self.examiner.finish();
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.directories.append(&mut self.found.directories);
        all.closed.append(&mut self.found.closed);
        all.hidden.append(&mut self.found.hidden);
    }

    fn enter(&mut self, path: Vec<u8>, ignore_files: &Arc<IgnoreFiles>, passing: bool) {
        let mut listing = match self.list(&path, ignore_files, passing) {
            Ok(listing) => listing,
            // Removed, or no longer a directory, since its parent was read.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return,
            Err(_) => return self.found.closed.push(path.into_boxed_slice()),
        };
        if let Some(fresh) = &mut listing.fresh {
            self.found.hidden.append(&mut fresh.hidden);
        }
        let names = listing.names();
        self.queue.push(listing.subdirs().iter().map(|subdir| {
            let mut path = Vec::with_capacity(path.len() + 1 + usize::from(subdir.name.len));
            path.extend_from_slice(&listing.directory.path);
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(subdir.name.bytes(names));
            let ignore_files =
                if subdir.rule == SubdirRule::Top { &self.bare } else { &listing.ignore_files };
            Task::Directory {
                path,
                ignore_files: ignore_files.clone(),
                passing: subdir.rule == SubdirRule::Passing,
            }
        }));
        let count = listing.len();
        if count <= PART * 2 {
            let mut entries = std::mem::take(&mut self.entries);
            self.examine(&listing, 0, count, &mut entries);
            self.complete(listing, &entries);
            entries.clear();
            self.entries = entries;
            return;
        }
        let parts = count.div_ceil(PART);
        let split = Arc::new(SplitDirectory { listing, parts: vec![Vec::new(); parts].into() });
        self.queue.push((0..parts).map(|at| Task::Part { split: split.clone(), at }));
        self.finish_part(split);
    }

    fn list(
        &mut self,
        path: &[u8],
        ignore_files: &Arc<IgnoreFiles>,
        passing: bool,
    ) -> Result<DirectoryListing, Errno> {
        if path.len() > MAX_PATH {
            return Err(Errno::NAMETOOLONG);
        }
        let fd = syscalls::open_dir(self.scan.root.as_fd(), path)?;
        let stat = syscalls::stat_of(fd.as_fd())?;
        let local = self.is_local(&fd, stat.dev);
        let reader = DirectoryReader {
            rules: self.scan.rules,
            prefix: &self.scan.above.1,
            passing,
            lasting: local && !self.scan.scan_time.exact,
        };
        let old = self.scan.previous.and_then(|tree| tree.directory(path));
        let directory = OpenDirectory { path: path.to_owned(), fd, stat, local };
        reader.list(directory, ignore_files, old, &mut self.buffer)
    }

    /// Determined once per file system.
    fn is_local(&mut self, fd: &OwnedFd, dev: u32) -> bool {
        if let Some((_, local)) = self.devices.iter().find(|(known, _)| *known == dev) {
            return *local;
        }
        let local = syscalls::keeps_directory_times(fd.as_fd());
        self.devices.push((dev, local));
        local
    }

    fn examine(
        &mut self,
        listing: &DirectoryListing,
        from: usize,
        to: usize,
        entries: &mut Vec<FileEntry>,
    ) {
        let names = listing.names();
        for at in from..to {
            let Some((name, listed)) = listing.file(at) else { continue };
            entries.extend(self.examiner.examine(
                listing.directory.fd.as_fd(),
                name,
                name.c_str(names),
                listed,
                listing.directory.local,
            ));
        }
    }

    fn part(&mut self, split: Arc<SplitDirectory>, at: usize) {
        let mut entries = Vec::new();
        let to = split.listing.len().min((at + 1) * PART);
        self.examine(&split.listing, at * PART, to, &mut entries);
        split.parts.lock().unwrap_or_else(PoisonError::into_inner)[at] = entries;
        self.finish_part(split);
    }

    /// The last worker to finish assembles the directory.
    fn finish_part(&mut self, split: Arc<SplitDirectory>) {
        if let Some(split) = Arc::into_inner(split) {
            let parts = split.parts.into_inner().unwrap_or_else(PoisonError::into_inner);
            self.complete(split.listing, &parts.concat());
        }
    }

    fn complete(&mut self, listing: DirectoryListing, entries: &[FileEntry]) {
        let reliable =
            self.scan.scan_time.reliable(&listing.directory.stat, listing.directory.local);
        self.found.directories.push(listing.into_directory(entries, reliable));
    }
}
