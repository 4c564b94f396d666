//! One detached worktree for each commit, kept from run to run.
//!
//! A worktree is named by its commit, so two refs on one commit share it and no two names ever
//! collide. Beside `<sha>/` lie marks: `<sha>.ready` says that it was made completely,
//! `<sha>.setup-<hash>` that a setup of this text has succeeded in it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Git, GitError};

/// A checked-out commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worktree {
    pub sha: String,
    /// Absolute.
    pub path: PathBuf,
}

/// What had to be done to a worktree that was there already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorktreeChange {
    Created,
    Reused,
    /// It was gone, half made, or not what it should be; why.
    Recreated(String),
    /// Files under version control had been changed, and are as committed again.
    Reset(Vec<String>),
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

    fn path(&self, sha: &str) -> PathBuf {
        self.directory.join(sha)
    }

    fn ready(&self, sha: &str) -> PathBuf {
        self.directory.join(format!("{sha}.ready"))
    }

    fn setup_mark(&self, sha: &str, setup: &str) -> PathBuf {
        let hash = blake3::hash(setup.as_bytes()).to_hex();
        self.directory.join(format!("{sha}.setup-{}", &hash[..16]))
    }

    /// The worktree of a commit, with every tracked file as committed. Untracked files stay: they
    /// are what the setup made.
    pub fn ensure(
        &self,
        git: &mut Git<'_>,
        sha: &str,
    ) -> Result<(Worktree, WorktreeChange), GitError> {
        fs::create_dir_all(&self.directory).map_err(|e| GitError::io(&self.directory, e))?;
        let directory =
            self.directory.canonicalize().map_err(|e| GitError::io(&self.directory, e))?;
        let path = directory.join(sha);
        let worktree = Worktree { sha: sha.to_owned(), path: path.clone() };
        let broken = match (fs::symlink_metadata(&path), self.ready(sha).exists()) {
            (Err(_), false) => None,
            (Err(_), true) => Some("it was gone".to_owned()),
            (Ok(_), false) => Some("it was not made completely".to_owned()),
            (Ok(_), true) => match self.mend(git, &worktree)? {
                Ok(notice) => return Ok((worktree, notice)),
                Err(why) => Some(why),
            },
        };
        self.remove_one(git, sha)?;
        self.create(git, &worktree)?;
        let notice = broken.map_or(WorktreeChange::Created, WorktreeChange::Recreated);
        Ok((worktree, notice))
    }

    /// Makes a worktree what it should be; an inner error says why it must be made anew.
    fn mend(
        &self,
        git: &mut Git<'_>,
        worktree: &Worktree,
    ) -> Result<Result<WorktreeChange, String>, GitError> {
        let path = &worktree.path;
        // Without a .git of its own git would go on to whatever repository lies above.
        if !path.join(".git").is_file() {
            return Ok(Err("it was no worktree any more".into()));
        }
        let ours = git.ask(&["rev-parse", "--path-format=absolute", "--git-common-dir"])?;
        let theirs =
            git.ask_in(path, &["rev-parse", "--path-format=absolute", "--git-common-dir"])?;
        if !theirs.ok || ours.stdout != theirs.stdout {
            return Ok(Err("it did not belong to this repository".into()));
        }
        let changed = git.ask_in(path, &["status", "--porcelain", "-z", "--untracked-files=no"])?;
        if !changed.ok {
            return Ok(Err("git cannot read it".into()));
        }
        let head = git.ask_in(path, &["rev-parse", "--verify", "--quiet", "HEAD"])?;
        let at_home = head.stdout.trim() == worktree.sha;
        if at_home && changed.stdout.is_empty() {
            return Ok(Ok(WorktreeChange::Reused));
        }
        let mut files = changed_files(&changed.stdout);
        if !at_home {
            files.push("HEAD".to_owned());
            // A branch made by the command is left alone.
            let detach = ["checkout", "--quiet", "--force", "--detach", &worktree.sha];
            if !git.ask_in(path, &detach)?.ok {
                return Ok(Err("its commit could not be checked out".into()));
            }
        }
        if !git.ask_in(path, &["reset", "--quiet", "--hard", &worktree.sha])?.ok {
            return Ok(Err("it could not be reset".into()));
        }
        self.submodules(git, path)?;
        Ok(Ok(WorktreeChange::Reset(files)))
    }

    fn create(&self, git: &mut Git<'_>, worktree: &Worktree) -> Result<(), GitError> {
        let add: [OsString; 7] = [
            "worktree".into(),
            "add".into(),
            "--quiet".into(),
            "--detach".into(),
            "--force".into(),
            worktree.path.clone().into(),
            worktree.sha.clone().into(),
        ];
        let repo = git.repo().to_owned();
        git.tell_in(&repo, &add)?;
        self.submodules(git, &worktree.path)?;
        let ready = self.ready(&worktree.sha);
        fs::write(&ready, "").map_err(|e| GitError::io(&ready, e))
    }

    fn submodules(&self, git: &mut Git<'_>, path: &Path) -> Result<(), GitError> {
        if path.join(".gitmodules").is_file() {
            let update = ["submodule", "update", "--quiet", "--init", "--recursive", "--force"];
            git.tell_in(path, &update)?;
        }
        Ok(())
    }

    pub fn setup_done(&self, worktree: &Worktree, setup: &str) -> bool {
        self.setup_mark(&worktree.sha, setup).exists()
    }

    /// To be called after the setup has succeeded, not before.
    pub fn mark_setup(&self, worktree: &Worktree, setup: &str) -> Result<(), GitError> {
        let mark = self.setup_mark(&worktree.sha, setup);
        fs::write(&mark, "").map_err(|e| GitError::io(&mark, e))
    }

    /// The commits that have a worktree, or what is left of one.
    pub fn list(&self) -> Result<Vec<String>, GitError> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(GitError::io(&self.directory, error)),
        };
        let mut shas = Vec::new();
        for entry in entries {
            let name = entry.map_err(|e| GitError::io(&self.directory, e))?.file_name();
            let name = name.to_string_lossy();
            let sha = name.split('.').next().unwrap_or_default();
            let hex = sha.bytes().all(|b| b.is_ascii_hexdigit());
            // Anything else in there is not ours to remove.
            if hex && matches!(sha.len(), 40 | 64) && !shas.iter().any(|known| known == sha) {
                shas.push(sha.to_owned());
            }
        }
        shas.sort_unstable();
        Ok(shas)
    }

    /// Removes every worktree with its marks; returns their commits.
    pub fn clean(&self, git: &mut Git<'_>) -> Result<Vec<String>, GitError> {
        let shas = self.list()?;
        for sha in &shas {
            self.remove_one(git, sha)?;
        }
        // Only if nothing else is in it.
        drop(fs::remove_dir(&self.directory));
        Ok(shas)
    }

    /// The mark of completeness goes first: what is half removed is not to be used.
    fn remove_one(&self, git: &mut Git<'_>, sha: &str) -> Result<(), GitError> {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name.to_string_lossy().strip_prefix(sha).is_some_and(|rest| rest.starts_with('.')) {
                fs::remove_file(entry.path()).map_err(|e| GitError::io(&entry.path(), e))?;
            }
        }
        let path = self.path(sha);
        let removed = match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => fs::remove_dir_all(&path),
            Ok(_) => fs::remove_file(&path),
            Err(_) => Ok(()),
        };
        removed.map_err(|e| GitError::io(&path, e))?;
        // git forgets a worktree whose directory is gone. One whose making was cut short is locked.
        let absolute = self.directory.canonicalize().unwrap_or_else(|_| self.directory.clone());
        let unlock = [OsString::from("worktree"), "unlock".into(), absolute.join(sha).into()];
        git.ask(&unlock)?;
        git.ask(&["worktree", "prune"])?;
        Ok(())
    }
}

/// The paths of `status --porcelain -z`; a renamed file has a second one.
fn changed_files(text: &str) -> Vec<String> {
    let mut files = Vec::new();
    let mut entries = text.split('\0').filter(|entry| !entry.is_empty());
    while let Some(entry) = entries.next() {
        if entry.starts_with(['R', 'C']) {
            entries.next();
        }
        files.push(entry.get(3..).unwrap_or(entry).to_owned());
    }
    files
}
