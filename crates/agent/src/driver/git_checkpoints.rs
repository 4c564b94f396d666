//! Keeps the tree's state in git after an iteration, and brings it back. Only git's plumbing, on an
//! index of our own: branch, index, stash and hooks of the user stay as they are.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_engine::{Launch, Stdin};
use retake_runner::git_index;
use retake_runner::safe_git::{self, RedirectedRepository};
use retake_runner::worker::Worker;
use retake_types::RefusalReason;

use crate::checkpoint::{self, Change, Checkpoint, Commands, Git, RollbackError};
use crate::workspace::Name;

use super::task::input;

/// Long enough for a large tree.
const GIT_TIMEOUT: Duration = Duration::from_secs(600);

/// Why git could not keep or restore a state.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("git: {0}")]
    Git(String),
    #[error(transparent)]
    Redirected(#[from] RedirectedRepository),
    #[error(transparent)]
    Rollback(#[from] RollbackError),
    /// A file that no checkpoint has would be overwritten.
    #[error("{} is in the way, and git ignores it; move it first", .0.display())]
    InTheWay(PathBuf),
}

/// Runs git for one project.
pub struct GitCheckpoints<'a> {
    worker: &'a mut Worker,
    project: &'a Path,
    index: PathBuf,
    /// What replaces the programs that the repository configures, once it was asked.
    replaced: Option<Vec<(String, String)>>,
}

/// More gitlinks than this are not kept.
const MOST_GITLINKS: usize = 1000;

impl<'a> GitCheckpoints<'a> {
    pub fn new(worker: &'a mut Worker, project: &'a Path, store: &Path) -> Self {
        let index = store.join(format!("checkpoint-{}.index", std::process::id()));
        Self { worker, project, index, replaced: None }
    }

    fn git(&mut self, make: impl Fn(&Commands<'_>) -> Git) -> Result<String, CheckpointError> {
        let replaced = match self.replaced.take() {
            Some(replaced) => replaced,
            None => {
                safe_git::check(self.project)?;
                let commands =
                    Commands { project: self.project, index: &self.index, replaced: &[] };
                let listed = self.run(commands.configuration())?;
                safe_git::without_own_programs(&listed)
            }
        };
        let commands = Commands { project: self.project, index: &self.index, replaced: &replaced };
        let git = make(&commands);
        self.replaced = Some(replaced);
        self.run(git)
    }

    fn run(&mut self, git: Git) -> Result<String, CheckpointError> {
        let mut request = Launch::new(git.argv.iter().map(std::ffi::OsString::from));
        request.timeout = Some(GIT_TIMEOUT);
        let input = git.stdin.as_deref().map(input).transpose();
        if let Some(input) = input.map_err(|error| CheckpointError::Git(error.to_string()))? {
            request.stdin = Stdin::Given(input);
        }
        request.environment = safe_git::clean_environment(request.environment);
        for (name, value) in git.env {
            request.environment.retain(|(known, _)| *known != *name);
            request.environment.push((name.into(), value.into()));
        }
        let (outcome, output) = self
            .worker
            .run_helper(request)
            .map_err(|reasons| CheckpointError::Git(RefusalReason::listed(&reasons)))?;
        let [stdout, stderr] = output.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        if outcome.success() {
            return Ok(stdout);
        }
        let why = stderr.lines().next().unwrap_or("it failed").to_owned();
        Err(CheckpointError::Git(why))
    }

    /// The tree of what is in the project now.
    fn tree(&mut self) -> Result<String, CheckpointError> {
        _ = std::fs::remove_file(&self.index);
        // A repository without a commit starts from nothing.
        if let Ok(head) = self.git(|git| git.head()) {
            self.git(|git| git.read_tree(head.trim()))?;
        }
        let links = git_index::gitlinks(&self.index, MOST_GITLINKS).unwrap_or_default();
        self.git(|git| git.add_all(&links))?;
        if !links.is_empty() {
            let top = PathBuf::from(self.git(|git| git.top())?.trim_end_matches('\n'));
            self.git(|git| git.add_gitlinks(&top, &links))?;
        }
        Ok(self.git(|git| git.write_tree())?.trim().to_owned())
    }

    pub fn list(&mut self, name: &Name) -> Result<Vec<Checkpoint>, CheckpointError> {
        Ok(checkpoint::parse_list(name, &self.git(|git| git.list(name))?))
    }

    /// Changes every reference below a prefix, or none; says how many there were.
    pub fn change(&mut self, prefix: &str, change: Change<'_>) -> Result<usize, CheckpointError> {
        let listed = self.git(|git| git.list_below(prefix))?;
        let (lines, count) = checkpoint::changes(&listed, prefix, change);
        if count > 0 {
            self.git(|git| git.change_refs(lines.clone()))?;
        }
        Ok(count)
    }

    pub fn keep(&mut self, name: &Name, iteration: u32) -> Result<String, CheckpointError> {
        let tree = self.tree()?;
        let parent = match self.list(name)?.last() {
            Some(last) => Some(last.commit.clone()),
            None => self.git(|git| git.head()).ok().map(|head| head.trim().to_owned()),
        };
        let commit = self.git(|git| git.commit_tree(&tree, parent.as_deref(), name, iteration))?;
        let commit = commit.trim().to_owned();
        self.git(|git| git.update_ref(name, iteration, &commit))?;
        Ok(commit)
    }

    /// Makes the project what it was after an iteration.
    pub fn restore(&mut self, name: &Name, to: u32) -> Result<Checkpoint, CheckpointError> {
        let checkpoints = self.list(name)?;
        let now = self.tree()?;
        let target = checkpoint::rollback(name, &checkpoints, to, &now)?;
        self.check_ignored(&now, &target.tree)?;
        self.git(|git| git.read_tree(&now))?;
        self.git(|git| git.refresh())?;
        self.git(|git| git.switch_tree(&now, &target.tree))?;
        Ok(target.clone())
    }

    /// Refuses where a file that git ignores, and that no checkpoint has, is in the way of one that
    /// would come back: git itself would overwrite it.
    fn check_ignored(&mut self, now: &str, target: &str) -> Result<(), CheckpointError> {
        let top = PathBuf::from(self.git(|git| git.top())?.trim_end_matches('\n'));
        let listed = self.git(|git| git.differences(now, target))?;
        let words: Vec<&str> = listed.split('\0').collect();
        let gone: BTreeSet<&Path> = words
            .chunks_exact(2)
            .filter(|pair| pair[0] != "A")
            .map(|pair| Path::new(pair[1]))
            .collect();
        for pair in words.chunks_exact(2).filter(|pair| pair[0] == "A") {
            let path = Path::new(pair[1]);
            for part in path.ancestors().filter(|part| part.parent().is_some()) {
                let whole = top.join(part);
                let Ok(there) = whole.symlink_metadata() else { continue };
                let directory = there.is_dir() && part != path;
                if !directory && !gone.contains(part) {
                    return Err(CheckpointError::InTheWay(whole));
                }
            }
        }
        Ok(())
    }
}

impl Drop for GitCheckpoints<'_> {
    fn drop(&mut self) {
        // Made anew each time.
        _ = std::fs::remove_file(&self.index);
    }
}
