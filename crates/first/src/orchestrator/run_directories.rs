//! The directories of one test's runs: `<tmp>/first/<test>-<pid>/run_{target}`.
//!
//! Files of a passed run are removed immediately; those of a failed one are never touched.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::plan::FailedPhase;
use crate::setup_error::SetupError;
use retake_crash::scratch::{ignore_missing, remove_tree};

#[derive(Debug)]
pub(crate) struct RunDirectories {
    base: PathBuf,
    keep: bool,
}

impl RunDirectories {
    /// Creates the directory of the `index`-th FIRST test of a test function, in `root` if given.
    pub(crate) fn create(
        root: Option<&Path>,
        test: &str,
        index: usize,
        keep: bool,
    ) -> Result<Self, SetupError> {
        let root = root.map_or_else(|| std::env::temp_dir().join("first"), Path::to_owned);
        let root = std::path::absolute(&root)
            .map_err(|source| SetupError::Directory { path: root.clone(), source })?;
        let name = format!("{}-{}", file_name(test), std::process::id());
        let name = if index > 1 { format!("{name}-{index}") } else { name };
        let mut attempt = 1;
        loop {
            // A directory of an earlier process with the same pid contains a failure that someone may need.
            let base = match attempt {
                1 => root.join(&name),
                n => root.join(format!("{name}.{n}")),
            };
            shared(&root).map_err(|source| SetupError::Directory { path: root.clone(), source })?;
            match DirBuilder::new().mode(0o700).create(&base) {
                Ok(()) => return Ok(Self { base, keep }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => attempt += 1,
                // Another test has just removed the parent, which was empty.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(SetupError::Directory { path: base, source }),
            }
        }
    }

    pub(crate) fn run_dir(&self, target: usize) -> PathBuf {
        self.base.join(format!("run_{target}"))
    }

    pub(crate) fn log(&self, target: usize, phase: FailedPhase) -> PathBuf {
        let phase = match phase {
            FailedPhase::Execution => "execution",
            FailedPhase::Verify => "verify",
        };
        self.base.join(format!("run_{target}.{phase}.log"))
    }

    /// The workload's output while it was recorded.
    pub(crate) fn recording_log(&self) -> PathBuf {
        self.base.join("recording.log")
    }

    /// The recording itself, for findings.
    pub(crate) fn crash_log(&self) -> PathBuf {
        self.base.join("recording.crash")
    }

    /// The state that shows a finding.
    pub(crate) fn finding(&self, id: &str) -> PathBuf {
        self.base.join(id)
    }

    /// The description of a finding, beside its state.
    pub(crate) fn finding_record(&self, id: &str) -> PathBuf {
        self.base.join(format!("{id}.json"))
    }

    /// The output of the check of a finding, or of another state with a name.
    pub(crate) fn check_log(&self, name: &str) -> PathBuf {
        self.base.join(format!("{name}.verify.log"))
    }

    /// The promises made before a crash.
    pub(crate) fn acks(&self, target: usize) -> PathBuf {
        self.base.join(format!("run_{target}.acks"))
    }

    /// The description of a failure, beside its directory.
    pub(crate) fn record(&self, target: usize) -> PathBuf {
        self.base.join(format!("run_{target}.json"))
    }

    pub(crate) fn create_run_dir(&self, target: usize) -> io::Result<PathBuf> {
        let path = self.run_dir(target);
        fs::create_dir(&path)?;
        Ok(path)
    }

    /// Removes a run that passed.
    pub(crate) fn passed(&self, target: usize) -> io::Result<()> {
        if self.keep { Ok(()) } else { self.remove(target) }
    }

    /// Removes a run and its logs. A missing run is not an error.
    pub(crate) fn remove(&self, target: usize) -> io::Result<()> {
        for phase in [FailedPhase::Execution, FailedPhase::Verify] {
            ignore_missing(fs::remove_file(self.log(target, phase)))?;
        }
        ignore_missing(fs::remove_file(self.acks(target)))?;
        remove_tree(&self.run_dir(target))
    }

    /// Removes empty directories. Kept runs, and other tests' directories, stay.
    pub(crate) fn remove_if_empty(&self) {
        // Not empty, or already gone: both are expected.
        _ = fs::remove_dir(&self.base);
        _ = self.base.parent().map(fs::remove_dir);
    }
}

/// The parent of all tests' directories. Every user may create entries in it, as in the directory for
/// temporary files itself, and no one may remove those of others.
fn shared(root: &Path) -> io::Result<()> {
    if root.is_dir() {
        return Ok(());
    }
    match fs::create_dir(root) {
        // Another test was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && root.is_dir() => {
            return Ok(());
        }
        made => made?,
    }
    ignore_missing(fs::set_permissions(root, Permissions::from_mode(0o1777)))
}

/// A test's name as a file name of limited length.
fn file_name(test: &str) -> String {
    let safe = |c: char| if c == '/' || c.is_control() { '_' } else { c };
    let mut name: String = test.chars().map(safe).collect();
    name.truncate(name.floor_char_boundary(180));
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hold_the_test_the_process_and_the_index() {
        let root = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let base = |test, index| {
            let dirs = RunDirectories::create(Some(root.path()), test, index, false).unwrap();
            dirs.run_dir(3).strip_prefix(root.path()).unwrap().display().to_string()
        };
        assert_eq!(base("wal::a", 1), format!("wal::a-{pid}/run_3"));
        assert_eq!(base("wal::a", 2), format!("wal::a-{pid}-2/run_3"));
        assert_eq!(base("wal::a", 1), format!("wal::a-{pid}.2/run_3"), "the first is not touched");
        assert_eq!(base("a/../b\n", 1), format!("a_.._b_-{pid}/run_3"));
        assert!(base(&"ü".repeat(500), 1).starts_with("üü"));
    }

    #[test]
    fn directories_of_passed_runs_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let first = root.path().join("first");
        let dirs = RunDirectories::create(Some(&first), "a", 1, false).unwrap();
        let dir = dirs.create_run_dir(1).unwrap();
        fs::create_dir(dir.join("locked")).unwrap();
        fs::write(dir.join("locked/f"), "").unwrap();
        fs::set_permissions(dir.join("locked"), Permissions::from_mode(0o500)).unwrap();
        fs::write(dirs.log(1, FailedPhase::Execution), "x").unwrap();
        assert!(dirs.create_run_dir(1).is_err(), "a directory is fresh or an error");
        dirs.passed(1).unwrap();
        dirs.passed(7).unwrap();
        dirs.remove_if_empty();
        assert!(!first.exists());
    }

    #[test]
    fn directories_are_kept_on_request() {
        let root = tempfile::tempdir().unwrap();
        let dirs = RunDirectories::create(Some(root.path()), "a", 1, true).unwrap();
        dirs.create_run_dir(1).unwrap();
        dirs.passed(1).unwrap();
        dirs.remove_if_empty();
        assert!(dirs.run_dir(1).is_dir());
    }

    #[test]
    fn a_root_that_cannot_be_created_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        for root in [file.join("first"), file] {
            let said = RunDirectories::create(Some(&root), "a", 1, false).unwrap_err().to_string();
            assert!(
                said.contains(&root.display().to_string()) && said.contains("TMPDIR"),
                "{said}"
            );
        }
    }
}
