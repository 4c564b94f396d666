//! The arguments of a test's closures.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The directory that a workload writes to and its check reads from: a new one for every crash.
#[derive(Debug, Clone)]
pub struct Env {
    root: PathBuf,
    seed: u64,
}

impl Env {
    pub(crate) fn new(root: PathBuf, seed: u64) -> Self {
        Self { root, seed }
    }

    /// An absolute path inside the directory. `""` is the directory itself. Nothing is created.
    ///
    /// # Panics
    ///
    /// If the path leads out of the directory: an absolute path, one with `..`, or one through a
    /// symbolic link that points elsewhere.
    #[track_caller]
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        let relative = relative.as_ref();
        let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        assert!(
            relative.components().all(inside),
            "first: Env::path takes a path inside the test's directory, without `..`; got {relative:?}"
        );
        if relative.as_os_str().is_empty() {
            return self.root.clone();
        }
        let path = self.root.join(relative);
        if let Some(out) = self.leads_out(&path) {
            panic!(
                "first: {} leads out of the test's directory, to {}",
                path.display(),
                out.display()
            );
        }
        path
    }

    /// The seed of this test, the same in every run: for a workload that needs randomness.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The real path of the longest existing part, if that is outside.
    fn leads_out(&self, path: &Path) -> Option<PathBuf> {
        let root = self.root.canonicalize().ok()?;
        let real = path.ancestors().find_map(|part| part.canonicalize().ok())?;
        // Before the directory exists, the first existing part is above it.
        (!real.starts_with(&root) && !root.starts_with(&real)).then_some(real)
    }
}

/// The crash that a check is about.
///
/// A check that does not use it is not repeated for equal states: see `OK (same state as …)`.
#[derive(Clone)]
#[non_exhaustive]
pub struct CrashInfo {
    point_id: usize,
    label: String,
    seed: u64,
    acks: Vec<String>,
    looked: Arc<AtomicBool>,
}

impl CrashInfo {
    pub(crate) fn new(point_id: usize, label: String, seed: u64, acks: Vec<String>) -> Self {
        Self { point_id, label, seed, acks, looked: Arc::new(AtomicBool::new(false)) }
    }

    /// The number of the crash point in the order they are reached, from 1.
    pub fn point_id(&self) -> usize {
        self.look();
        self.point_id
    }

    /// The label passed to [`crash_point`](crate::crash_point).
    pub fn label(&self) -> &str {
        self.look();
        &self.label
    }

    /// The seed of this test.
    pub fn seed(&self) -> u64 {
        self.look();
        self.seed
    }

    /// The promises made before the crash by [`ack`](crate::ack), in order. All of them must be
    /// kept.
    pub fn acks(&self) -> &[String] {
        self.look();
        &self.acks
    }

    pub(crate) fn looked(&self) -> bool {
        self.looked.load(Ordering::Relaxed)
    }

    fn look(&self) {
        self.looked.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for CrashInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrashInfo")
            .field("point_id", &self.point_id())
            .field("label", &self.label())
            .field("seed", &self.seed())
            .field("acks", &self.acks())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn paths_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::new(dir.path().to_owned(), 0);
        assert_eq!(env.path("a/b"), dir.path().join("a/b"));
        assert_eq!(env.path("./a"), dir.path().join("a"));
        assert_eq!(env.path(""), dir.path());
        std::os::unix::fs::symlink("/etc", dir.path().join("out")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("in")).unwrap();
        assert_eq!(env.path("in"), dir.path().join("in"));
        for refused in ["/etc/passwd", "..", "a/../b", "a/../../b", "out/passwd", "out"] {
            let env = env.clone();
            let panic = catch_unwind(move || env.path(refused)).unwrap_err();
            let said = panic.downcast_ref::<String>().unwrap();
            assert!(said.contains("the test's directory"), "{said}");
        }
    }

    #[test]
    fn a_directory_yet_to_be_made_is_no_escape() {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::new(dir.path().join("later"), 0);
        assert_eq!(env.path("a"), dir.path().join("later/a"));
    }

    #[test]
    fn each_access_to_the_crash_info_is_noticed() {
        let fresh = || CrashInfo::new(3, "x".into(), 7, vec!["kept".into()]);
        assert!(!fresh().looked());
        let looks: [fn(&CrashInfo); 5] = [
            |info| assert_eq!(info.acks(), ["kept"]),
            |info| assert_eq!(info.point_id(), 3),
            |info| assert_eq!(info.label(), "x"),
            |info| assert_eq!(info.seed(), 7),
            |info| assert!(format!("{:?}", info.clone()).contains("\"x\"")),
        ];
        for look in looks {
            let info = fresh();
            look(&info);
            assert!(info.looked());
        }
    }
}
