//! Detached worktrees, kept from run to run: one for each commit, each build of it and each worker.
//!
//! A worktree is named by everything that made it: `<sha>-<build>-<number>`. So two refs on one
//! commit share theirs, two setups never do, and no two names collide. Beside it lie
//! `<name>.complete`, which says that it is checked out and set up, and `<name>.snapshot/`, which keeps
//! it as the setup left it.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Git, GitError};
use crate::tree::remove_tree;

/// What a worktree is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorktreeName {
    pub sha: String,
    /// What set it up.
    pub build: String,
    /// The worker that it belongs to.
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

/// What had to be done to have a worktree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorktreeChange {
    /// It is new, and has to be set up.
    Created,
    /// It was there, set up.
    Reused,
    /// It was gone, half made, or not what it should be, and is new; why.
    Recreated(String),
}

/// The directory of all worktrees of a matrix.
#[derive(Clone, Debug)]
pub struct Worktrees {
    directory: PathBuf,
}

impl Worktrees {
    /// `directory` is made when the first worktree is.
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    fn complete(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.complete"))
    }

    /// Where a worktree is kept as its setup left it.
    pub fn snapshot(&self, worktree: &Worktree) -> PathBuf {
        self.directory.join(format!("{}.snapshot", worktree.name))
    }

    /// The worktree of this name: the one that is there if it was completed, or a new one.
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
            (true, false) => Some("it was not completed".to_owned()),
            (true, true) => return Ok((worktree, WorktreeChange::Reused)),
        };
        self.recreate(git, &worktree)?;
        let change = broken.map_or(WorktreeChange::Created, WorktreeChange::Recreated);
        Ok((worktree, change))
    }

    /// Why a worktree that is there cannot be used, if that is so.
    pub fn defect(
        &self,
        git: &mut Git<'_>,
        worktree: &Worktree,
    ) -> Result<Option<&'static str>, GitError> {
        let path = &worktree.path;
        // Without a .git of its own git would go on to whatever repository lies above.
        if !path.join(".git").is_file() {
            return Ok(Some("it was no worktree any more"));
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

    /// Makes a worktree anew: as committed, with nothing else in it.
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

    /// The directory in which git keeps what it knows of this worktree: HEAD, the index.
    pub fn git_directory(
        &self,
        git: &mut Git<'_>,
        worktree: &Worktree,
    ) -> Result<PathBuf, GitError> {
        let asked = ["rev-parse", "--path-format=absolute", "--git-dir"];
        let said = git.tell_in(&worktree.path, &asked)?;
        Ok(PathBuf::from(said.trim_end_matches('\n')))
    }

    /// To be called once the worktree is checked out, set up and kept, not before.
    pub fn mark_complete(&self, worktree: &Worktree) -> Result<(), GitError> {
        let mark = self.complete(&worktree.name.to_string());
        fs::write(&mark, "").map_err(|e| GitError::io(&mark, e))
    }

    /// The names of all worktrees, or of what is left of one.
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
            // Anything else in there is not ours to remove.
            if hex && matches!(sha.len(), 40 | 64) && !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Removes every worktree with what lies beside it; returns their names.
    pub fn clean(&self, git: &mut Git<'_>) -> Result<Vec<String>, GitError> {
        let names = self.list()?;
        for name in &names {
            self.remove(git, name)?;
        }
        // Only if nothing else is in it.
        drop(fs::remove_dir(&self.directory));
        Ok(names)
    }

    /// Removes one worktree. The mark of completeness goes first: what is half removed is not to be
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
        // git forgets a worktree whose directory is gone. One whose making was cut short is locked.
        let absolute = self.directory.canonicalize().unwrap_or_else(|_| self.directory.clone());
        let unlock = [OsString::from("worktree"), "unlock".into(), absolute.join(name).into()];
        git.ask(&unlock)?;
        git.ask(&["worktree", "prune"])?;
        Ok(())
    }
}
