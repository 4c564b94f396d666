//! A test directory, and the changes in it.

#![expect(dead_code, reason = "each test file uses its own part of this")]
#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use retake_effects::files::{Changes, Snapshot, Tracker, TrackingRules};

pub(crate) struct TrackedTree {
    home: tempfile::TempDir,
}

impl TrackedTree {
    pub(crate) fn new() -> Self {
        let tree = Self { home: tempfile::tempdir().unwrap() };
        std::fs::create_dir(tree.root()).unwrap();
        tree
    }

    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let tree = Self::new();
        files.iter().for_each(|(path, text)| tree.put(path, text));
        tree
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.home.path().join("tree")
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.home.path().join("kept/cache")
    }

    pub(crate) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root().join(path)
    }

    pub(crate) fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.at(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        std::fs::remove_file(self.at(path)).unwrap();
    }

    pub(crate) fn rename(&self, from: &str, to: &str) {
        std::fs::create_dir_all(self.at(to).parent().unwrap()).unwrap();
        std::fs::rename(self.at(from), self.at(to)).unwrap();
    }

    pub(crate) fn link(&self, target: &str, path: &str) {
        std::os::unix::fs::symlink(target, self.at(path)).unwrap();
    }

    pub(crate) fn chmod(&self, path: &str, mode: u32) {
        std::fs::set_permissions(self.at(path), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Waits until the next snapshot considers the `stat` of this path reliable: its ctime must be
    /// far enough in the past.
    pub(crate) fn settle(&self, path: &str) {
        let metadata = std::fs::symlink_metadata(self.at(path)).unwrap();
        let changed = Duration::new(metadata.ctime() as u64, metadata.ctime_nsec() as u32);
        while SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
            < changed + Duration::from_millis(11)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn tracker(&self) -> Tracker {
        self.tracker_with(TrackingRules::new())
    }

    pub(crate) fn tracker_with(&self, rules: TrackingRules) -> Tracker {
        Tracker::new(&self.root(), rules).unwrap()
    }

    /// A tracker as in a new process.
    pub(crate) fn cached(&self) -> Tracker {
        self.tracker().with_cache(&self.cache())
    }

    pub(crate) fn paths(&self, rules: TrackingRules) -> Vec<String> {
        paths(&self.tracker_with(rules).snapshot().unwrap())
    }

    /// The changes that a tracker without a cache reports for `act`.
    pub(crate) fn during(&self, act: impl FnOnce()) -> Changes {
        let mut tracker = self.tracker();
        let before = tracker.snapshot().unwrap();
        act();
        before.changes(&tracker.snapshot().unwrap())
    }
}

pub(crate) fn paths(snapshot: &Snapshot) -> Vec<String> {
    snapshot.paths().iter().map(|path| path.to_str().unwrap().to_owned()).collect()
}

/// One line per change, in the order of the lists.
pub(crate) fn shown(changes: &Changes) -> Vec<String> {
    let text = |path: &Path| String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned();
    let list = |mark: &str, paths: &[PathBuf]| -> Vec<String> {
        paths.iter().map(|path| format!("{mark}{}", text(path))).collect()
    };
    let renamed = changes.renamed.iter().map(|r| format!("{}>{}", text(&r.from), text(&r.to)));
    [
        list("+", &changes.created),
        list("~", &changes.modified),
        list("-", &changes.deleted),
        renamed.collect(),
        list("?", &changes.unreadable),
    ]
    .concat()
}

pub(crate) fn lines(changes: &Changes, path: &str) -> Option<(u64, u64)> {
    changes.lines.get(Path::new(OsStr::new(path))).map(|lines| (lines.added, lines.removed))
}
