//! Detached worktrees, kept between runs: one for each commit, build and worker.
//!
//! A worktree's name contains everything that determines it: `<sha>-<build>-<number>`. So refs of
//! one commit share worktrees, different setups never do, and names cannot collide. Next to it are
//! `<name>.complete`, which marks it as checked out and set up, and `<name>.snapshot/`, with its
//! state after setup.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Git, GitError};
use crate::tree::remove_tree;

/// What determines a worktree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorktreeName {
    pub sha: String,
    /// Its setup.
    pub build: String,
    /// Its worker.
    pub number: usize,
}

impl fmt::Display for WorktreeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.sha, self.build, self.number)
    }
}

/// A checked-out commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worktree {
    pub name: WorktreeName,
    /// Absolute.
    pub path: PathBuf,
}

/// How a worktree was obtained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorktreeChange {
    /// Created, and not set up yet.
    Created,
    /// It existed, set up.
    Reused,
    /// It was missing, incomplete or wrong, and was recreated; with the reason.
    Recreated(String),
}

/// The directory of all worktrees of a matrix.
#[derive(Clone, Debug)]
pub struct Worktrees {
    directory: PathBuf,
}

impl Worktrees {
    /// `directory` is created with the first worktree.
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    fn complete(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.complete"))
    }

    /// The place of a worktree's snapshot.
    pub fn snapshot(&self, worktree: &Worktree) -> PathBuf {
        self.directory.join(format!("{}.snapshot", worktree.name))
    }

    /// The worktree with this name: an existing complete one, or a new one.
    pub fn ensure(
        &self,
        git: &mut Git<'_>,
        name: &WorktreeName,
    ) -> Result<(Worktree, WorktreeChange), GitError> {
        fs::create_dir_all(&self.directory).map_err(|e| GitError::io(&self.directory, e))?;
        let directory =
            self.directory.canonicalize().map_err(|e| GitError::io(&self.directory, e))?;
        let text = name.to_string();
        let worktree = Worktree { name: name.clone(), path: directory.join(&text) };
        let there = fs::symlink_metadata(&worktree.path).is_ok();
        let broken = match (there, self.complete(&text).exists()) {
            (false, false) => None,
            (false, true) => Some("it was gone".to_owned()),
            (true, false) => Some("it was incomplete".to_owned()),
            (true, true) => return Ok((worktree, WorktreeChange::Reused)),
        };
        self.recreate(git, &worktree)?;
        let change = broken.map_or(WorktreeChange::Created, WorktreeChange::Recreated);
        Ok((worktree, change))
    }

    /// Why an existing worktree cannot be used, if so.
    pub fn defect(
        &self,
        git: &mut Git<'_>,
        worktree: &Worktree,
    ) -> Result<Option<&'static str>, GitError> {
        let path = &worktree.path;
        // Without its own .git, git would use a repository of a parent directory.
        if !path.join(".git").is_file() {
            return Ok(Some("it was no longer a worktree"));
        }
        let ours = git.ask(&["rev-parse", "--path-format=absolute", "--git-common-dir"])?;
        let theirs =
            git.ask_in(path, &["rev-parse", "--path-format=absolute", "--git-common-dir"])?;
        if !theirs.ok || ours.stdout != theirs.stdout {
            return Ok(Some("it did not belong to this repository"));
        }
        let head = git.ask_in(path, &["rev-parse", "--verify", "--quiet", "HEAD"])?;
        if head.stdout.trim() != worktree.name.sha {
            return Ok(Some("another commit was checked out in it"));
        }
        Ok(None)
    }

    /// Recreates a worktree: exactly as committed.
    pub fn recreate(&self, git: &mut Git<'_>, worktree: &Worktree) -> Result<(), GitError> {
        self.remove(git, &worktree.name.to_string())?;
        let add: [OsString; 7] = [
            "worktree".into(),
            "add".into(),
            "--quiet".into(),
            "--detach".into(),
            "--force".into(),
            worktree.path.clone().into(),
            worktree.name.sha.clone().into(),
        ];
        let repo = git.repo().to_owned();
        git.tell_in(&repo, &add)?;
        if worktree.path.join(".gitmodules").is_file() {
            let update = ["submodule", "update", "--quiet", "--init", "--recursive", "--force"];
            git.tell_in(&worktree.path, &update)?;
        }
        Ok(())
    }

    /// git's directory for this worktree: HEAD, the index.
    pub fn git_directory(
        &self,
        git: &mut Git<'_>,
        worktree: &Worktree,
    ) -> Result<PathBuf, GitError> {
        let asked = ["rev-parse", "--path-format=absolute", "--git-dir"];
        let said = git.tell_in(&worktree.path, &asked)?;
        Ok(PathBuf::from(said.trim_end_matches('\n')))
    }

    /// Call it after the worktree is checked out, set up and saved.
    pub fn mark_complete(&self, worktree: &Worktree) -> Result<(), GitError> {
        let mark = self.complete(&worktree.name.to_string());
        fs::write(&mark, "").map_err(|e| GitError::io(&mark, e))
    }

    /// The names of all worktrees, including incomplete ones.
    pub fn list(&self) -> Result<Vec<String>, GitError> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(GitError::io(&self.directory, error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.map_err(|e| GitError::io(&self.directory, e))?.file_name();
            let name = name.to_string_lossy();
            let name = name.split('.').next().unwrap_or_default();
            // Earlier releases named them by the commit alone.
            let sha = name.split('-').next().unwrap_or_default();
            let hex = sha.bytes().all(|b| b.is_ascii_hexdigit());
            // Other files are not retake's to remove.
            if hex && matches!(sha.len(), 40 | 64) && !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Removes every worktree and the files next to it; returns their names.
    pub fn clean(&self, git: &mut Git<'_>) -> Result<Vec<String>, GitError> {
        let names = self.list()?;
        for name in &names {
            self.remove(git, name)?;
        }
        // Only if it is empty.
        drop(fs::remove_dir(&self.directory));
        Ok(names)
    }

    /// Removes one worktree. Its completion mark goes first, so that a partly removed one is not
    /// used.
    pub fn remove(&self, git: &mut Git<'_>, name: &str) -> Result<(), GitError> {
        let removed =
            |path: &Path| remove_tree(path).map_err(|error| GitError::io(&error.path, error.error));
        removed(&self.complete(name))?;
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let other = entry.file_name();
            if other.to_string_lossy().strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
            {
                removed(&entry.path())?;
            }
        }
        removed(&self.directory.join(name))?;
        // git forgets a worktree with a missing directory. An interrupted creation leaves it
        // locked.
        let absolute = self.directory.canonicalize().unwrap_or_else(|_| self.directory.clone());
        let unlock = [OsString::from("worktree"), "unlock".into(), absolute.join(name).into()];
        git.ask(&unlock)?;
        git.ask(&["worktree", "prune"])?;
        Ok(())
    }
}
