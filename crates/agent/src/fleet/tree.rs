//! The trees that agents work in: each is a clone that shares only the objects of the main
//! repository.
//!
//! Rejected: linked worktrees, which share configuration, stash, hooks and branch names. A tree is
//! identified by device and inode, which are in the record, and only such a tree is removed.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use retake_runner::scratch_dir;
use retake_types::loop_record::fleet::{CollectedWork, FleetLoopPlan};

use super::git::{FleetGit, FleetGitError, GitCall, at, gone};
use super::shared::Unshared;
use crate::checkpoint;

/// The identity of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeMark {
    pub device: u64,
    pub inode: u64,
}

impl TreeMark {
    /// The identity of an existing directory that is not a link.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let meta = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_dir)?;
        Some(Self { device: meta.dev(), inode: meta.ino() })
    }
}

/// Why a tree was not removed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TreeStays {
    /// It is not the directory that was created.
    Another,
    /// Something is mounted in it.
    Mounted(PathBuf),
    /// A process works in it.
    InUse(i32),
}

impl std::fmt::Display for TreeStays {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Another => f.write_str("it is not the directory that was made for the agent"),
            Self::Mounted(path) => write!(f, "{} is mounted in it", path.display()),
            Self::InUse(pid) => write!(f, "process {pid} works in it"),
        }
    }
}

/// The index of a tree, next to it. Names of agents contain no dots.
pub(super) fn index_of(tree: &Path) -> PathBuf {
    beside(tree, ".index")
}

/// The place of a tree during its removal, so that its remains after a crash are not taken for a
/// tree.
pub(super) fn removal_of(tree: &Path) -> PathBuf {
    beside(tree, ".removing")
}

fn beside(tree: &Path, ending: &str) -> PathBuf {
    let mut name = tree.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    tree.with_file_name(name)
}

impl FleetGit<'_> {
    /// Creates a clone of the main repository with a commit checked out on a branch with this name.
    pub(super) fn make_tree(
        &mut self,
        tree: &Path,
        commit: &str,
        branch: &str,
    ) -> Result<TreeMark, FleetGitError> {
        let parent = tree.parent().unwrap_or(tree);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(parent);
        made.map_err(at(parent))?;
        let common = self.main.common.clone();
        self.clone_into(&common, tree, parent)?;
        let checkout = ["checkout", "--quiet", "--no-track", "-B", branch, commit];
        self.text(GitCall::new(tree, &checkout))?;
        self.check_out_submodules(tree, commit, None)?;
        self.name_submodules(&tree.join(".git"), commit)?;
        let index = index_of(tree);
        fs::copy(tree.join(".git/index"), &index).map(drop).or_else(gone).map_err(at(&index))?;
        TreeMark::of(tree).ok_or_else(|| FleetGitError::NoRepository(tree.to_owned()))
    }

    /// Creates a clone without files that borrows all objects of a repository.
    pub(super) fn clone_into(
        &mut self,
        repository: &Path,
        directory: &Path,
        parent: &Path,
    ) -> Result<(), FleetGitError> {
        let mut clone: Vec<String> = [
            "clone",
            "--quiet",
            "--shared",
            "--no-checkout",
            "--template=",
            "--config",
            "gc.auto=0",
            "--config",
            "maintenance.auto=false",
            "--config",
            "commit.gpgSign=false",
            "--config",
            "merge.conflictStyle=zdiff3",
            // An agent's work is fetched by retake, never pushed.
            "--config",
            "remote.origin.pushurl=results-are-fetched-by-retake",
        ]
        .map(str::to_owned)
        .into();
        // In a sandbox the agent can neither read the user's configuration nor write its own.
        for (key, value) in &self.main.committer {
            clone.extend(["--config".to_owned(), format!("{key}={value}")]);
        }
        clone.push("--".to_owned());
        self.text(GitCall::new(parent, &clone).and(repository).and(directory)).map(drop)
    }

    /// Collects an agent's work into the main repository, below `prefix`; uncommitted changes
    /// become a commit.
    pub(super) fn collect(
        &mut self,
        tree: &Path,
        plan: &FleetLoopPlan,
        (prefix, agent): (&str, &str),
    ) -> Result<CollectedWork, FleetGitError> {
        let base = plan.base.as_str();
        let fetched = self.fetch_all(tree, prefix)?;
        let start = fetched.head.as_deref().unwrap_or(base);
        let nested = checkpoint::nested_repositories(tree).map_err(at(tree))?;
        let index = index_of(tree);
        let common = self.main.common.clone();
        let links = self.collect_submodules(tree, start, (&nested, prefix))?;
        let snapshot = self.snapshot(&common, tree, start, (&index, &nested, &links))?;
        let unshared = self.without_shared((tree, &index), plan, (start, prefix))?;
        let result = unshared.as_ref().map_or(&snapshot, |unshared| &unshared.tree);
        let started_with = self.tree_of(start)?;
        let message = match &unshared {
            Some(Unshared { undone, .. }) if started_with == snapshot => {
                format!("Undo changes of agent {agent} to {}", undone.join(", "))
            }
            _ => format!("Uncommitted work of agent {agent}"),
        };
        let commit = match started_with == *result {
            true => start.to_owned(),
            false => self.commit_tree(result, &[start], &message)?,
        };
        self.set_ref(&format!("{prefix}result"), &commit)?;
        let mut not_covered = self.not_covered(tree, &commit, &nested)?;
        if !fetched.whole {
            not_covered.push(".git".to_owned());
        }
        let changed = self.tree_of(&commit)? != self.tree_of(base)?;
        let compared_with = self.start_of(base, &commit)?;
        let [files, added, removed] = self.counts(&compared_with, &commit)?;
        self.sync()?;
        Ok(CollectedWork { commit, changed, files, added, removed, not_covered })
    }

    /// Makes what git wrote survive a power loss, before a tree that is still needed is removed.
    fn sync(&self) -> Result<(), FleetGitError> {
        let common = &self.main.common;
        let directory = fs::File::open(common).map_err(at(common))?;
        rustix::fs::syncfs(&directory).map_err(|error| at(common)(error.into()))
    }
}

/// Removes a tree if it is the created one, nothing is mounted in it, and no process works in it.
/// Does not follow links.
pub(super) fn remove_tree(
    tree: &Path,
    mark: Option<TreeMark>,
) -> Result<Option<TreeStays>, FleetGitError> {
    let index = index_of(tree);
    fs::remove_file(&index).or_else(gone).map_err(at(&index))?;
    if fs::symlink_metadata(tree).is_err() {
        remove_moved(tree).map_err(at(tree))?;
        return Ok(None);
    }
    if mark.is_some() && TreeMark::of(tree) != mark {
        return Ok(Some(TreeStays::Another));
    }
    if let Some(stays) = mounted_below(tree).map(TreeStays::Mounted) {
        return Ok(Some(stays));
    }
    if let Some(pid) = worker_in(tree) {
        return Ok(Some(TreeStays::InUse(pid)));
    }
    move_and_remove(tree).map_err(at(tree))?;
    Ok(None)
}

/// Removes a directory so that no part of it has its name after a crash.
pub(super) fn move_and_remove(directory: &Path) -> io::Result<()> {
    remove_moved(directory)?;
    match fs::rename(directory, removal_of(directory)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        renamed => renamed?,
    }
    remove_moved(directory)
}

/// Removes what an earlier removal has renamed.
fn remove_moved(directory: &Path) -> io::Result<()> {
    scratch_dir::remove(&removal_of(directory)).or_else(gone)
}

/// All mount points, parents first.
pub(super) fn mount_points() -> Vec<PathBuf> {
    let mounts = fs::read("/proc/thread-self/mountinfo").unwrap_or_default();
    let lines = mounts.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    points.map(|point| PathBuf::from(OsString::from_vec(unescaped(point)))).collect()
}

/// The kernel escapes blanks and backslashes as octal numbers.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| byte == b'\\');
        let number = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match number.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = &after[3..];
            }
            None => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    plain
}

fn mounted_below(tree: &Path) -> Option<PathBuf> {
    mount_points().into_iter().find(|point| point.starts_with(tree))
}

/// A process of this user whose working directory is in the tree.
pub(super) fn worker_in(tree: &Path) -> Option<i32> {
    let processes = fs::read_dir("/proc").ok()?;
    processes.flatten().find_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let directory = fs::read_link(process.path().join("cwd")).ok()?;
        directory.starts_with(tree).then_some(pid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tree_that_was_made_is_removed_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "mine").unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("link")).unwrap();
        let mark = TreeMark::of(&tree);
        assert!(mark.is_some());
        // Another directory in its place.
        let moved = dir.path().join("moved");
        fs::rename(&tree, &moved).unwrap();
        fs::create_dir(&tree).unwrap();
        assert_eq!(remove_tree(&tree, mark).unwrap(), Some(TreeStays::Another));
        assert!(tree.exists());
        std::os::unix::fs::symlink(&outside, dir.path().join("entry")).unwrap();
        let entry = dir.path().join("entry");
        assert_eq!(remove_tree(&entry, mark).unwrap(), Some(TreeStays::Another));
        assert_eq!(remove_tree(&moved, mark).unwrap(), None);
        assert!(!moved.exists());
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "mine");
        assert_eq!(remove_tree(&moved, mark).unwrap(), None, "it is gone already");
    }

    #[test]
    fn a_tree_that_is_half_removed_is_not_found_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("file"), "").unwrap();
        // As a killed removal leaves it.
        fs::rename(&tree, removal_of(&tree)).unwrap();
        assert_eq!(TreeMark::of(&tree), None);
        assert_eq!(remove_tree(&tree, None).unwrap(), None);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // A link that another process created is removed itself.
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("file"), "mine").unwrap();
        fs::create_dir(&tree).unwrap();
        std::os::unix::fs::symlink(outside.path(), removal_of(&tree)).unwrap();
        drop(remove_tree(&tree, None));
        assert!(outside.path().join("file").exists());
    }

    #[test]
    fn no_two_trees_have_one_index() {
        let dir = Path::new("/d");
        assert_ne!(index_of(&dir.join("gate")), index_of(&dir.join("gate.tree")));
        assert_eq!(unescaped(br"/a\040b\134c\xy"), br"/a b\c\xy");
    }

    #[test]
    fn a_tree_that_a_process_works_in_stays() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().canonicalize().unwrap().join("tree");
        fs::create_dir(&tree).unwrap();
        let mut child =
            std::process::Command::new("sleep").arg("600").current_dir(&tree).spawn().unwrap();
        let stays = remove_tree(&tree, TreeMark::of(&tree)).unwrap();
        assert_eq!(stays, Some(TreeStays::InUse(child.id() as i32)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(remove_tree(&tree, TreeMark::of(&tree)).unwrap(), None);
    }
}
