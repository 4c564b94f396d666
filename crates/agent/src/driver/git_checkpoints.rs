//! Saves the project's files in git, and restores them. Uses only git's plumbing with a separate
//! index: the user's branch, index, stash and hooks stay unchanged.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_engine::{Launch, Stdin};
use retake_runner::git_dir::Repository;
use retake_runner::safe_git::{self, RedirectedRepository};
use retake_runner::scratch_dir::ScratchDir;
use retake_runner::worker::{HELPER_OUTPUT, Worker};
use retake_types::RefusalReason;
use retake_types::loop_record::agent::{Checkpoint, CheckpointTime};

use crate::checkpoint::{self, CheckpointOwner, Commands, Git};

use super::task::input;

/// Long enough for a large tree.
const GIT_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum paths named in an error.
const NAMED_PATHS: usize = 5;

/// Why git could not save or restore the files.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("git: {0}")]
    Git(String),
    #[error(transparent)]
    Redirected(#[from] RedirectedRepository),
    /// The project is outside of any repository.
    #[error("{} is not in a git repository", .0.display())]
    NoRepository(PathBuf),
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: std::io::Error },
    /// The commit is no longer in the repository, or differs from the recorded one.
    #[error("the repository no longer has checkpoint {commit}")]
    Gone { commit: String },
    /// A repository is where the checkpoint has files, which would be lost.
    #[error("{} has become a separate repository; move it away first", .0.display())]
    RepositoryInTheWay(PathBuf),
    /// The restored files differ from the checkpoint.
    #[error("the files are not as in the checkpoint: {}", .0.join(", "))]
    NotRestored(Vec<String>),
}

/// Runs git for one project.
pub struct GitCheckpoints<'a> {
    worker: &'a mut Worker,
    project: &'a Path,
    /// Contains the index, and possibly a lock of a killed git.
    scratch: ScratchDir,
    empty_tree: &'static str,
    /// Replaces programs from the repository's configuration.
    replaced: Vec<(String, String)>,
}

/// A snapshot of the files, and its index.
struct Tree {
    id: String,
    not_covered: Vec<PathBuf>,
}

impl<'a> GitCheckpoints<'a> {
    /// `scratch` is a directory for this workspace only, which is locked. Refused outside a
    /// repository.
    pub fn new(
        worker: &'a mut Worker,
        project: &'a Path,
        scratch: &Path,
    ) -> Result<Self, CheckpointError> {
        let scratch = ScratchDir::new(scratch, "checkpoint")
            .map_err(|error| CheckpointError::Io { path: scratch.to_owned(), error })?;
        safe_git::check(project)?;
        let mut checkpoints = Self {
            worker,
            project,
            scratch,
            empty_tree: checkpoint::empty_tree("sha1"),
            replaced: Vec::new(),
        };
        let format = checkpoints
            .git(|git| git.object_format())
            .map_err(|_| CheckpointError::NoRepository(project.to_owned()))?;
        checkpoints.empty_tree = checkpoint::empty_tree(text(&format).as_str());
        let top = checkpoints.git(|git| git.top());
        top.map_err(|_| CheckpointError::NoRepository(project.to_owned()))?;
        let listed = checkpoints.git(|git| git.configuration())?;
        let listed = String::from_utf8_lossy(&listed);
        checkpoints.replaced = safe_git::without_own_programs(&listed);
        Ok(checkpoints)
    }

    fn index(&self) -> PathBuf {
        self.scratch.tmp().join("index")
    }

    fn git(&mut self, make: impl FnOnce(&Commands<'_>) -> Git) -> Result<Vec<u8>, CheckpointError> {
        let index = self.index();
        let commands = Commands {
            project: self.project,
            index: &index,
            empty_tree: self.empty_tree,
            replaced: &self.replaced,
        };
        let git = make(&commands);
        let mut request = Launch::new(git.argv);
        request.timeout = Some(GIT_TIMEOUT);
        let input = git.stdin.as_deref().map(input).transpose();
        if let Some(input) = input.map_err(|error| CheckpointError::Git(error.to_string()))? {
            request.stdin = Stdin::Given(input);
        }
        // Variables of a git hook would lead to another repository.
        request.environment.retain(|known| !known.name().as_bytes().starts_with(b"GIT_"));
        for variable in git.env {
            request.set(variable.into());
        }
        let (outcome, [stdout, stderr]) = self
            .worker
            .run_helper(request)
            .map_err(|reasons| CheckpointError::Git(RefusalReason::listed(&reasons)))?;
        if outcome.success() && stdout.len() >= HELPER_OUTPUT {
            // Truncated output must not be taken for complete.
            return Err(CheckpointError::Git("there are too many files".to_owned()));
        }
        if outcome.success() {
            return Ok(stdout);
        }
        let stderr = String::from_utf8_lossy(&stderr);
        let why = stderr.lines().next().unwrap_or("it failed").to_owned();
        Err(CheckpointError::Git(why))
    }

    fn git_text(
        &mut self,
        make: impl FnOnce(&Commands<'_>) -> Git,
    ) -> Result<String, CheckpointError> {
        self.git(make).map(|output| text(&output))
    }

    /// Repositories inside the project whose files are in no checkpoint; without those that git
    /// ignores like other files.
    pub fn not_covered(&mut self) -> Result<Vec<PathBuf>, CheckpointError> {
        let found = checkpoint::nested_repositories(self.project);
        let found =
            found.map_err(|error| CheckpointError::Io { path: self.project.to_owned(), error })?;
        if found.is_empty() {
            return Ok(found);
        }
        // It fails if none is ignored.
        let ignored = self.git(|git| git.ignored(&found)).unwrap_or_default();
        let ignored: BTreeSet<PathBuf> = paths(&ignored).into_iter().collect();
        Ok(found.into_iter().filter(|path| !ignored.contains(path)).collect())
    }

    /// A tree of the project's files except those in `without`, in a new index. Adds `ignored`
    /// although git ignores them.
    fn tree(&mut self, without: &[PathBuf], ignored: &[PathBuf]) -> Result<Tree, CheckpointError> {
        _ = std::fs::remove_file(self.index());
        let not_covered = self.not_covered()?;
        let mut left_out = not_covered.clone();
        left_out.extend(without.iter().cloned());
        self.git(|git| git.add_all(&left_out))?;
        let kept = |path: &PathBuf| !left_out.iter().any(|left| path.starts_with(left));
        let mut forced = paths(&self.git(|git| git.tracked_though_ignored())?);
        forced.extend(ignored.iter().cloned());
        let project = self.project;
        forced.retain(|path| kept(path) && project.join(path).symlink_metadata().is_ok());
        if !forced.is_empty() {
            self.git(|git| git.add_ignored(&forced))?;
        }
        let id = self.git_text(|git| git.write_tree())?;
        Ok(Tree { id, not_covered })
    }

    /// Saves the project's current files. `maker` is the loop or the rollback.
    pub fn keep(
        &mut self,
        owner: &CheckpointOwner,
        maker: &str,
        number: u32,
        time: CheckpointTime,
    ) -> Result<Checkpoint, CheckpointError> {
        let tree = self.tree(&[], &[])?;
        self.keep_tree(owner, maker, number, time, tree)
    }

    fn keep_tree(
        &mut self,
        owner: &CheckpointOwner,
        maker: &str,
        number: u32,
        time: CheckpointTime,
        tree: Tree,
    ) -> Result<Checkpoint, CheckpointError> {
        // A repository may have no commit yet.
        let parent = self.git_text(|git| git.head()).ok();
        let what = match time {
            CheckpointTime::Start => format!("before iteration {}", number + 1),
            CheckpointTime::Iteration => format!("iteration {number}"),
            CheckpointTime::Rollback => format!("before a rollback to {number}"),
        };
        let message = format!("retake: {}, {what}", owner.workspace);
        let commit = self.git_text(|git| git.commit_tree(&tree.id, parent.as_deref(), &message))?;
        let not_covered = tree.not_covered.iter().map(|p| p.display().to_string()).collect();
        let checkpoint = Checkpoint { number, time, commit, tree: tree.id, not_covered };
        let reference = owner.reference(maker, &checkpoint);
        self.git(|git| git.update_ref(&reference, &checkpoint.commit))?;
        // The record will name it, and a rollback will depend on it.
        self.sync()?;
        Ok(checkpoint)
    }

    /// Makes everything that git wrote, objects and files, survive a power loss. One call for all
    /// of it: git would sync each object separately, and checked-out files not at all.
    fn sync(&self) -> Result<(), CheckpointError> {
        let repository = Repository::find(self.project).map(|found| found.common);
        let mut synced = None;
        for path in [Some(self.project.to_owned()), repository].into_iter().flatten() {
            let failed = |error| CheckpointError::Io { path: path.clone(), error };
            let directory = File::open(&path).map_err(failed)?;
            let device = directory.metadata().map_err(failed)?.dev();
            if synced.replace(device) != Some(device) {
                rustix::fs::syncfs(&directory).map_err(|error| failed(error.into()))?;
            }
        }
        Ok(())
    }

    /// Saves the current files, so that restoring `target` loses nothing.
    pub fn keep_before(
        &mut self,
        owner: &CheckpointOwner,
        maker: &str,
        target: &Checkpoint,
    ) -> Result<Checkpoint, CheckpointError> {
        self.check_present(target)?;
        let tree = self.tree(&[], &[])?;
        let in_the_way = self.in_the_way(&tree, target)?;
        let tree = if in_the_way.is_empty() { tree } else { self.tree(&[], &in_the_way)? };
        self.keep_tree(owner, maker, target.number, CheckpointTime::Rollback, tree)
    }

    /// Restores the project's files to the target, and verifies them.
    pub fn restore(&mut self, target: &Checkpoint) -> Result<(), CheckpointError> {
        self.check_present(target)?;
        // The checkpoint must not delete files that it did not cover.
        let without: Vec<PathBuf> = target.not_covered.iter().map(PathBuf::from).collect();
        let now = self.tree(&without, &[])?;
        let in_the_way = self.in_the_way(&now, target)?;
        let now = if in_the_way.is_empty() { now } else { self.tree(&without, &in_the_way)? };
        self.git(|git| git.switch_tree(&now.id, &target.tree))?;
        let mut after = self.tree(&without, &[])?;
        if after.id != target.tree {
            // Its files may be ignored by now.
            let ignored = self.ignored_of(target)?;
            after = self.tree(&without, &ignored)?;
        }
        if after.id == target.tree {
            return self.sync();
        }
        let differences = self.differences(&after.id, &target.tree)?;
        let mut named: Vec<String> = differences
            .iter()
            .take(NAMED_PATHS)
            .map(|(_, path)| path.display().to_string())
            .collect();
        if differences.len() > NAMED_PATHS {
            named.push(format!("and {} more", differences.len() - NAMED_PATHS));
        }
        Err(CheckpointError::NotRestored(named))
    }

    /// The files of the target that git ignores now.
    fn ignored_of(&mut self, target: &Checkpoint) -> Result<Vec<PathBuf>, CheckpointError> {
        let empty = self.empty_tree.to_owned();
        let files = self.differences(&empty, &target.tree)?;
        let files: Vec<PathBuf> = files.into_iter().map(|(_, path)| path).collect();
        // It fails if none is ignored.
        Ok(paths(&self.git(|git| git.ignored(&files)).unwrap_or_default()))
    }

    fn check_present(&mut self, target: &Checkpoint) -> Result<(), CheckpointError> {
        let tree = self.git_text(|git| git.tree_of(&target.commit)).unwrap_or_default();
        if tree == target.tree {
            return Ok(());
        }
        Err(CheckpointError::Gone { commit: target.commit.chars().take(12).collect() })
    }

    /// Ignored files at paths of the target, which must be saved, too. Refused if a repository is
    /// there.
    fn in_the_way(
        &mut self,
        now: &Tree,
        target: &Checkpoint,
    ) -> Result<Vec<PathBuf>, CheckpointError> {
        let differences = self.differences(&now.id, &target.tree)?;
        let (added, gone): (Vec<_>, Vec<_>) =
            differences.into_iter().partition(|(status, _)| *status == b'A');
        let gone: BTreeSet<PathBuf> = gone.into_iter().map(|(_, path)| path).collect();
        let mut found = BTreeSet::new();
        for (_, path) in &added {
            for part in path.ancestors().filter(|part| !part.as_os_str().is_empty()) {
                if now.not_covered.iter().any(|nested| nested == part) {
                    return Err(CheckpointError::RepositoryInTheWay(self.project.join(part)));
                }
                let Ok(there) = self.project.join(part).symlink_metadata() else { continue };
                let directory = there.is_dir() && part != path;
                if !directory && !gone.contains(part) {
                    found.insert(part.to_owned());
                }
            }
        }
        Ok(found.into_iter().collect())
    }

    /// Status and path of every difference, relative to the project.
    fn differences(&mut self, from: &str, to: &str) -> Result<Vec<(u8, PathBuf)>, CheckpointError> {
        let listed = self.git(|git| git.differences(from, to))?;
        let words: Vec<&[u8]> = listed.split(|byte| *byte == 0).collect();
        Ok(words
            .chunks_exact(2)
            .filter_map(|pair| Some((*pair[0].first()?, path(pair[1]))))
            .collect())
    }

    /// The numbers of files, added lines and removed lines between two trees.
    pub fn counts(&mut self, from: &str, to: &str) -> Result<(u64, u64, u64), CheckpointError> {
        let listed = self.git(|git| git.line_counts(from, to))?;
        let mut sum = (0, 0, 0);
        for line in listed.split(|byte| *byte == 0).filter(|line| !line.is_empty()) {
            let mut words = line.split(|byte| *byte == b'\t');
            // `-` for a binary file.
            let mut number = || -> u64 {
                words
                    .next()
                    .and_then(|word| std::str::from_utf8(word).ok()?.parse().ok())
                    .unwrap_or(0)
            };
            let (added, removed) = (number(), number());
            sum = (sum.0 + 1, sum.1 + added, sum.2 + removed);
        }
        Ok(sum)
    }

    /// The changes between two trees, in git's format.
    pub fn diff(&mut self, from: &str, to: &str, colour: bool) -> Result<Vec<u8>, CheckpointError> {
        self.git(|git| git.diff(from, to, colour))
    }

    /// Removes every reference of an owner; returns how many there were.
    pub fn remove(&mut self, owner: &CheckpointOwner) -> Result<usize, CheckpointError> {
        let prefix = owner.prefix();
        let listed = self.git_text(|git| git.list_below(&prefix))?;
        let (lines, count) = checkpoint::removals(&listed);
        if count > 0 {
            self.git(|git| git.change_refs(lines))?;
        }
        Ok(count)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

fn paths(listed: &[u8]) -> Vec<PathBuf> {
    listed.split(|byte| *byte == 0).filter(|bytes| !bytes.is_empty()).map(path).collect()
}
