//! Takes snapshots of one directory, each based on the last.

use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use retake_types::TextRedactor;

use super::Error;
use super::file_examiner::ScanTime;
use super::ignore_files::IgnoreFiles;
use super::line_store::{LineStore, Segments};
use super::snapshot::{Snapshot, SnapshotTree, bytes};
use super::snapshot_cache::SnapshotCache;
use super::syscalls;
use super::tracking_rules::TrackingRules;
use super::tree_scan::{ScanResult, TreeScan};

/// Tracks one directory from snapshot to snapshot.
#[derive(Debug)]
pub struct Tracker {
    root: PathBuf,
    rules: TrackingRules,
    cache: Option<SnapshotCache>,
    exact: bool,
    stop: Option<Arc<AtomicBool>>,
    last: Option<Arc<SnapshotTree>>,
    /// The tree on disk.
    saved: Option<Arc<SnapshotTree>>,
    problem: Option<Error>,
}

impl Tracker {
    /// Tracks a directory, which must exist; links that lead to it are resolved once, here.
    pub fn new(root: &Path, rules: TrackingRules) -> Result<Self, Error> {
        let bad = |source| Error::Root { path: root.to_owned(), source };
        let root = root.canonicalize().map_err(bad)?;
        Ok(Self {
            root,
            rules,
            cache: None,
            exact: false,
            stop: None,
            last: None,
            saved: None,
            problem: None,
        })
    }

    /// Saves snapshots in a directory for this root only ([`cache_name`] gives a name for it).
    /// Creates the directory if necessary, readable only by the user.
    pub fn with_cache(mut self, directory: &Path) -> Self {
        self.cache = Some(SnapshotCache::new(directory));
        self
    }

    /// Ignores `stat` and hashes every file, every time. Finds the one change that `stat` does not
    /// show: a store through a memory mapping to a page that was already dirty.
    pub fn exact(mut self, exact: bool) -> Self {
        self.exact = exact;
        self
    }

    /// Ends a snapshot with [`Error::Stopped`] soon after this becomes true.
    pub fn stop_on(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = Some(stop);
        self
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What prevented the last snapshot from keeping lines or reading the cache. The snapshot
    /// itself is still correct.
    pub fn problem(&self) -> Option<&Error> {
        self.problem.as_ref()
    }

    /// The last snapshot, or else the last saved one of this root, by any process.
    pub fn last(&mut self) -> Option<Snapshot> {
        self.load();
        self.last.clone().map(|tree| Snapshot { tree })
    }

    fn load(&mut self) {
        if self.last.is_none()
            && let Some(cache) = &self.cache
        {
            self.last = cache.load(&self.root).map(Arc::new);
            self.saved = self.last.clone();
        }
    }

    /// Scans the whole tree.
    pub fn snapshot(&mut self) -> Result<Snapshot, Error> {
        self.problem = None;
        self.load();
        let bad = |source: io::Error| Error::Root { path: self.root.clone(), source };
        let start = syscalls::now();
        let root =
            syscalls::open_dir(rustix::fs::CWD, bytes(&self.root)).map_err(|e| bad(e.into()))?;
        let segments = match &self.last {
            Some(last) => last.segments.clone(),
            None => Segments::new().map_err(bad)?,
        };
        // Without a cache directory the lines are stored in an unnamed temporary file.
        let directory = self.cache.as_ref().and_then(|cache| match cache.prepare() {
            Ok(()) => Some(cache.directory()),
            Err(error) => {
                self.problem = Some(error);
                None
            }
        });
        let sink = LineStore::new(segments, directory);
        let scan = TreeScan {
            root: root.as_fd().try_clone_to_owned().map_err(bad)?,
            rules: &self.rules,
            above: IgnoreFiles::above(&self.root, &self.rules),
            previous: self.last.as_deref(),
            scan_time: ScanTime { start, exact: self.exact },
            sink: &sink,
            workers: std::thread::available_parallelism().map_or(1, usize::from).min(8),
            stop: self.stop.as_deref(),
        };
        let found = scan.run();
        let (segments, problem) = sink.finish();
        if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return Err(Error::Stopped { path: self.root.clone() });
        }
        if let Some(source) = problem {
            self.problem = Some(Error::Lines { path: self.root.clone(), source });
        }
        let ScanResult { directories, closed, mut hidden } = found;
        if closed.first().is_some_and(|closed| closed.is_empty()) {
            return Err(bad(io::ErrorKind::PermissionDenied.into()));
        }
        hidden.extend(self.last.iter().flat_map(|last| last.hidden.iter().cloned()));
        let mut tree = SnapshotTree { directories, closed, hidden: Vec::new(), start, segments };
        hidden.retain(|path| !tree.counts(path));
        hidden.sort_unstable();
        hidden.dedup();
        tree.hidden = hidden;
        let tree = Arc::new(tree);
        self.last = Some(tree.clone());
        Ok(Snapshot { tree })
    }

    /// Saves the last snapshot for the next process. Costs nothing if nothing has changed since the
    /// last save.
    ///
    /// A directory whose path or file names contain a secret is not saved: the next process reads
    /// it again.
    pub fn save(&mut self, redactor: &mut dyn TextRedactor) -> Result<(), Error> {
        let (Some(cache), Some(last)) = (&self.cache, &self.last) else { return Ok(()) };
        let same = self.saved.as_ref().is_some_and(|saved| {
            saved.directories.len() == last.directories.len()
                && saved.directories.iter().zip(&last.directories).all(|(a, b)| Arc::ptr_eq(a, b))
        });
        if same {
            return Ok(());
        }
        let saved = cache.save(&self.root, last, redactor)?;
        self.last = Some(saved.clone());
        self.saved = Some(saved);
        Ok(())
    }
}

/// A name for the cache of this root within a directory of several caches.
pub fn cache_name(root: &Path) -> String {
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    blake3::hash(bytes(&root)).to_hex()[..16].to_owned()
}

/// Removes a cache and everything next to it. A tracker that is using it continues without it.
pub fn clear_cache(directory: &Path) -> Result<(), Error> {
    SnapshotCache::new(directory).clear()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unchanged_directories_are_shared_and_changed_ones_are_not() {
        let home = tempfile::tempdir().unwrap();
        for name in ["a/1", "b/1", "c/1"] {
            let path = home.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        // Wait until all changes are safely in the past.
        std::thread::sleep(std::time::Duration::from_millis(12));
        let mut tracker = Tracker::new(home.path(), TrackingRules::new()).unwrap();
        let before = tracker.snapshot().unwrap();
        std::fs::write(home.path().join("b/1"), "other").unwrap();
        let after = tracker.snapshot().unwrap();
        let shared: Vec<_> = (before.tree.directories.iter().zip(&after.tree.directories))
            .map(|(before, after)| {
                (String::from_utf8_lossy(&before.path), Arc::ptr_eq(before, after))
            })
            .collect();
        let expected = [("", true), ("a", true), ("b", false), ("c", true)];
        assert_eq!(shared, expected.map(|(path, same)| (path.into(), same)));
        // Also if everything is read again.
        std::thread::sleep(std::time::Duration::from_millis(12));
        let reliable = tracker.snapshot().unwrap();
        let exact = tracker.exact(true).snapshot().unwrap();
        let mut pairs = reliable.tree.directories.iter().zip(&exact.tree.directories);
        assert!(pairs.all(|(reliable, exact)| Arc::ptr_eq(reliable, exact)));
    }
}
