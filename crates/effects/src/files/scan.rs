//! Walks a tree with several workers and looks at every file that counts.
//!
//! A directory whose times are those of the last snapshot, under the same rules, is not read again:
//! its names are known, and each file costs one `stat`. Large directories are split among workers.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

use super::chain::Chain;
use super::examine::{Examiner, Moment};
use super::listing::{Entrance, Here, Listing};
use super::queue::Queue;
use super::rules::Rules;
use super::segments::{Sink, Writer};
use super::sys;
use super::tree::{Directory, Entry, Tree, Way};

/// How many files one worker takes at a time.
const PART: usize = 512;
/// A longer path is not entered but reported: nothing good is that deep, and each level would cost
/// as much as all above it.
const MAX_PATH: usize = 64 << 10;
const NAMES_BUFFER: usize = 64 << 10;

pub(super) struct Scan<'a> {
    pub(super) root: OwnedFd,
    pub(super) rules: &'a Rules,
    /// The chain at the root, and the path from where it begins.
    pub(super) above: (Arc<Chain>, Vec<u8>),
    pub(super) previous: Option<&'a Tree>,
    pub(super) moment: Moment,
    pub(super) sink: &'a Sink,
    pub(super) workers: usize,
    pub(super) stop: Option<&'a AtomicBool>,
}

#[derive(Default)]
pub(super) struct Found {
    pub(super) directories: Vec<Arc<Directory>>,
    pub(super) closed: Vec<Box<[u8]>>,
    pub(super) hidden: Vec<Box<[u8]>>,
}

enum Job {
    Directory { path: Vec<u8>, chain: Arc<Chain>, passing: bool },
    Part { split: Arc<Split>, at: usize },
}

/// A large directory in the hands of several workers; the last one to finish puts it together.
struct Split {
    listing: Listing,
    parts: Mutex<Vec<Vec<Entry>>>,
}

impl Scan<'_> {
    pub(super) fn run(self) -> Found {
        let chain = self.above.0.clone();
        let queue = Queue::new(Job::Directory { path: Vec::new(), chain, passing: false });
        let all = Mutex::new(Found::default());
        std::thread::scope(|scope| {
            for _ in 1..self.workers.max(1) {
                // With fewer threads than wished for the work is done all the same.
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
    scan: &'s Scan<'s>,
    queue: &'s Queue<Job>,
    bare: Arc<Chain>,
    examiner: Examiner<'s>,
    found: Found,
    buffer: Vec<MaybeUninit<u8>>,
    entries: Vec<Entry>,
    /// The file systems met so far, and whether they are local.
    devices: Vec<(u32, bool)>,
}

impl<'s> Worker<'s> {
    fn new(scan: &'s Scan<'s>, queue: &'s Queue<Job>) -> Self {
        Self {
            scan,
            queue,
            bare: Chain::bare(scan.rules),
            examiner: Examiner::new(scan.moment, Writer::new(scan.sink)),
            found: Found::default(),
            buffer: vec![MaybeUninit::uninit(); NAMES_BUFFER],
            entries: Vec::new(),
            devices: Vec::new(),
        }
    }

    fn work(mut self, all: &Mutex<Found>) {
        self.queue.work(|job| {
            if self.scan.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                return self.queue.stop();
            }
            match job {
                Job::Directory { path, chain, passing } => self.enter(path, &chain, passing),
                Job::Part { split, at } => self.part(split, at),
            }
        });
        self.examiner.finish();
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.directories.append(&mut self.found.directories);
        all.closed.append(&mut self.found.closed);
        all.hidden.append(&mut self.found.hidden);
    }

    fn enter(&mut self, path: Vec<u8>, chain: &Arc<Chain>, passing: bool) {
        let mut listing = match self.list(&path, chain, passing) {
            Ok(listing) => listing,
            // Gone, or no longer a directory, since its parent was read.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return,
            Err(_) => return self.found.closed.push(path.into_boxed_slice()),
        };
        if let Some(fresh) = &mut listing.fresh {
            self.found.hidden.append(&mut fresh.hidden);
        }
        let names = listing.names();
        self.queue.push(listing.subdirs().iter().map(|subdir| {
            let mut path = Vec::with_capacity(path.len() + 1 + usize::from(subdir.name.len));
            path.extend_from_slice(&listing.here.path);
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(subdir.name.bytes(names));
            let chain = if subdir.way == Way::Top { &self.bare } else { &listing.chain };
            Job::Directory { path, chain: chain.clone(), passing: subdir.way == Way::Passing }
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
        let split = Arc::new(Split { listing, parts: vec![Vec::new(); parts].into() });
        self.queue.push((0..parts).map(|at| Job::Part { split: split.clone(), at }));
        self.let_go(split);
    }

    fn list(&mut self, path: &[u8], chain: &Arc<Chain>, passing: bool) -> Result<Listing, Errno> {
        if path.len() > MAX_PATH {
            return Err(Errno::NAMETOOLONG);
        }
        let fd = sys::open_dir(self.scan.root.as_fd(), path)?;
        let stat = sys::stat_of(fd.as_fd())?;
        let local = self.is_local(&fd, stat.dev);
        let entrance = Entrance {
            rules: self.scan.rules,
            prefix: &self.scan.above.1,
            passing,
            lasting: local && !self.scan.moment.exact,
        };
        let old = self.scan.previous.and_then(|tree| tree.directory(path));
        let here = Here { path: path.to_owned(), fd, stat, local };
        entrance.list(here, chain, old, &mut self.buffer)
    }

    /// Asked once per file system.
    fn is_local(&mut self, fd: &OwnedFd, dev: u32) -> bool {
        if let Some((_, local)) = self.devices.iter().find(|(known, _)| *known == dev) {
            return *local;
        }
        let local = sys::keeps_directory_times(fd.as_fd());
        self.devices.push((dev, local));
        local
    }

    fn examine(&mut self, listing: &Listing, from: usize, to: usize, entries: &mut Vec<Entry>) {
        let names = listing.names();
        for at in from..to {
            let Some((name, listed)) = listing.file(at) else { continue };
            entries.extend(self.examiner.examine(
                listing.here.fd.as_fd(),
                name,
                name.c_str(names),
                listed,
                listing.here.local,
            ));
        }
    }

    fn part(&mut self, split: Arc<Split>, at: usize) {
        let mut entries = Vec::new();
        let to = split.listing.len().min((at + 1) * PART);
        self.examine(&split.listing, at * PART, to, &mut entries);
        split.parts.lock().unwrap_or_else(PoisonError::into_inner)[at] = entries;
        self.let_go(split);
    }

    /// Whoever lets go last puts the directory together.
    fn let_go(&mut self, split: Arc<Split>) {
        if let Some(split) = Arc::into_inner(split) {
            let parts = split.parts.into_inner().unwrap_or_else(PoisonError::into_inner);
            self.complete(split.listing, &parts.concat());
        }
    }

    fn complete(&mut self, listing: Listing, entries: &[Entry]) {
        let settled = self.scan.moment.settled(&listing.here.stat, listing.here.local);
        self.found.directories.push(listing.into_directory(entries, settled));
    }
}
