//! All git operations of a fleet, in the user's repository or on a fleet's trees.
//!
//! The configuration of an agent's clone is never used here: its files are read with the git
//! directory of the main repository and a separate index, and its commits are fetched, which
//! executes nothing that the clone names.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_engine::{Launch, Stdin, Variable};
use retake_runner::git_dir::Repository;
use retake_runner::safe_git::{self, RedirectedRepository};
use retake_runner::worker::Worker;
use retake_types::{Outcome, RefusalReason};

use super::submodules::Gitlink;
use crate::driver::input;
use crate::files;

const WITHOUT_LFS: [&str; 4] =
    ["filter.lfs.process=", "filter.lfs.smudge=", "filter.lfs.clean=", "filter.lfs.required=false"];

/// Long enough for a large repository.
const GIT_TIMEOUT: Duration = Duration::from_secs(1800);

#[derive(Debug, thiserror::Error)]
pub enum FleetGitError {
    #[error("{} is not in a git repository with a work tree", .0.display())]
    NoRepository(PathBuf),
    #[error(transparent)]
    Redirected(#[from] RedirectedRepository),
    #[error("git {command}: {message}")]
    Failed { command: String, message: String },
    #[error("interrupted in git {0}")]
    Cancelled(String),
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: std::io::Error },
}

pub(super) fn at(path: &Path) -> impl Fn(std::io::Error) -> FleetGitError {
    let path = path.to_owned();
    move |error| FleetGitError::Io { path: path.clone(), error }
}

/// The user's repository.
#[derive(Clone, Debug)]
pub struct MainRepository {
    /// The top of the user's work tree.
    pub top: PathBuf,
    pub git_dir: PathBuf,
    /// The directory that all work trees share.
    pub common: PathBuf,
    /// Replaces programs from the repository's configuration.
    replaced: Vec<(String, String)>,
    /// Default variables of every call.
    pub(super) variables: Vec<(&'static str, String)>,
    /// The user's identity, or retake's if there is none.
    identity: Vec<(&'static str, &'static str)>,
    /// Configuration keys and values that give an agent's commits the user's name.
    pub(super) committer: [(&'static str, String); 2],
    /// Whether the program of Git LFS is installed.
    has_lfs: bool,
}

/// The output of git, whether it succeeded or not.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) code: i32,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: String,
}

impl Said {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }
}

/// One call of git.
pub(super) struct GitCall<'a> {
    directory: &'a Path,
    words: Vec<OsString>,
    variables: Vec<(&'static str, OsString)>,
    stdin: Option<Vec<u8>>,
}

impl<'a> GitCall<'a> {
    pub(super) fn new<W: AsRef<OsStr>>(directory: &'a Path, words: &[W]) -> Self {
        let words = words.iter().map(|word| word.as_ref().to_owned()).collect();
        Self { directory, words, variables: Vec::new(), stdin: None }
    }

    pub(super) fn and(mut self, word: impl AsRef<OsStr>) -> Self {
        self.words.push(word.as_ref().to_owned());
        self
    }

    /// Uses a tree with another git directory and a separate index.
    pub(super) fn on_tree(mut self, git_dir: &Path, tree: &Path, index: &Path) -> Self {
        self.variables.extend([
            ("GIT_DIR", git_dir.into()),
            ("GIT_WORK_TREE", tree.into()),
            ("GIT_INDEX_FILE", index.into()),
        ]);
        self
    }
}

/// The result of merging two commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TreeMerge {
    Clean { tree: String },
    Conflict { tree: String, paths: Vec<PathBuf> },
}

/// The result of fetching from a clone.
#[derive(Debug)]
pub(super) struct FetchedClone {
    /// The checked-out commit; `None` if the clone's repository is gone or broken.
    pub(super) head: Option<String>,
    /// Whether everything was fetched. Git rejects damaged and malformed objects.
    pub(super) whole: bool,
}

/// Git for one repository, run by one worker.
pub(super) struct FleetGit<'a> {
    worker: &'a mut Worker,
    pub(super) main: &'a MainRepository,
}

impl MainRepository {
    /// Opens the repository of a directory.
    pub fn open(worker: &mut Worker, root: &Path) -> Result<Self, FleetGitError> {
        safe_git::check(root)?;
        let found = Repository::find(root);
        let no_repository = || FleetGitError::NoRepository(root.to_owned());
        let Repository { top, git_dir, common } = found.ok_or_else(no_repository)?;
        let top = top.ok_or_else(no_repository)?;
        let (replaced, identity) = (Vec::new(), Vec::new());
        let committer = [("user.name", "retake agent"), ("user.email", "retake@localhost")];
        let committer = committer.map(|(key, value)| (key, value.to_owned()));
        let path = std::env::var_os("PATH");
        let has_lfs = retake_engine::which("git-lfs".as_ref(), path.as_deref(), &top).is_some();
        let variables = Vec::new();
        let mut main =
            Self { top, git_dir, common, replaced, variables, identity, committer, has_lfs };
        let mut git = FleetGit { worker, main: &main };
        let listed = git.text(GitCall::new(&main.top, &safe_git::LIST_CONFIGURATION))?;
        let known = git.run(GitCall::new(&main.top, &["var", "GIT_COMMITTER_IDENT"]))?;
        let mut committer = main.committer.clone();
        for (key, value) in &mut committer {
            let said = git.run(GitCall::new(&main.top, &["config", "--get", key]))?;
            if said.code == 0 {
                *value = said.text();
            }
        }
        main.replaced = safe_git::without_own_programs(&listed);
        main.committer = committer;
        if known.code != 0 {
            main.identity = vec![
                ("GIT_AUTHOR_NAME", "retake"),
                ("GIT_AUTHOR_EMAIL", "retake@localhost"),
                ("GIT_COMMITTER_NAME", "retake"),
                ("GIT_COMMITTER_EMAIL", "retake@localhost"),
            ];
        }
        Ok(main)
    }

    /// An unfinished operation of the user, such as a merge.
    pub fn unfinished(&self) -> Option<&'static str> {
        let marks = [
            ("MERGE_HEAD", "merge"),
            ("rebase-merge", "rebase"),
            ("rebase-apply", "rebase"),
            ("CHERRY_PICK_HEAD", "cherry-pick"),
            ("REVERT_HEAD", "revert"),
        ];
        let there = |name: &str| self.git_dir.join(name).symlink_metadata().is_ok();
        marks.into_iter().find(|(name, _)| there(name)).map(|(_, what)| what)
    }
}

impl<'a> FleetGit<'a> {
    pub(super) fn new(worker: &'a mut Worker, main: &'a MainRepository) -> Self {
        Self { worker, main }
    }

    pub(super) fn worker(&mut self) -> &mut Worker {
        self.worker
    }

    pub(super) fn run(&mut self, call: GitCall<'_>) -> Result<Said, FleetGitError> {
        let command = call.words.first().map(|word| word.to_string_lossy().into_owned());
        let command = command.unwrap_or_default();
        let failed = |message: String| FleetGitError::Failed { command: command.clone(), message };
        let mut words = vec![OsString::from("git")];
        words.extend(safe_git::OPTIONS.map(OsString::from));
        let own = ["gc.auto=0", "maintenance.auto=false", "merge.conflictStyle=zdiff3"];
        words.extend(own.iter().flat_map(|option| ["-c", option]).map(OsString::from));
        if !self.main.has_lfs {
            // Without it, its files stay pointers.
            words.extend(WITHOUT_LFS.iter().flat_map(|option| ["-c", option]).map(OsString::from));
        }
        words.extend(call.words);
        let mut launch = Launch::new(words);
        launch.cwd = call.directory.to_owned();
        launch.timeout = Some(GIT_TIMEOUT);
        if let Some(bytes) = &call.stdin {
            launch.stdin = Stdin::Given(input(bytes).map_err(|error| failed(error.to_string()))?);
        }
        // Variables of a git hook would lead to another repository.
        launch.environment.retain(|known| !known.name().as_bytes().starts_with(b"GIT_"));
        let ours = [
            ("GIT_NO_LAZY_FETCH", "1"),
            ("GIT_ALLOW_PROTOCOL", "file"),
            ("GIT_EDITOR", "true"),
            // Branches of clones are files, which can be written without git.
            ("GIT_DEFAULT_REF_FORMAT", "files"),
            // Objects on an LFS server are not fetched for every tree.
            ("GIT_LFS_SKIP_SMUDGE", "1"),
        ];
        let set = safe_git::VARIABLES.into_iter().chain(ours);
        let set = set.chain(self.main.identity.iter().copied());
        let replaced = self.main.replaced.iter();
        let always = self.main.variables.iter();
        set.map(Variable::from)
            .chain(replaced.map(|(name, value)| (name, value).into()))
            .chain(always.map(|(name, value)| (name, value).into()))
            .chain(call.variables.into_iter().map(Variable::from))
            .for_each(|variable| launch.set(variable));
        let ran = self.worker.run_helper(launch);
        let (outcome, [stdout, stderr]) =
            ran.map_err(|reasons| failed(RefusalReason::listed(&reasons)))?;
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        match outcome {
            Outcome::Exited(code) => Ok(Said { code, stdout, stderr }),
            Outcome::Cancelled(_) => Err(FleetGitError::Cancelled(command)),
            Outcome::NotStarted(failure) => Err(failed(failure.to_string())),
            other => Err(failed(format!("it ended as {}", other.kind()))),
        }
    }

    /// The output of git; its failure is an error.
    pub(super) fn text(&mut self, call: GitCall<'_>) -> Result<String, FleetGitError> {
        let command = call.words.first().map(|word| word.to_string_lossy().into_owned());
        let said = self.run(call)?;
        if said.code == 0 {
            return Ok(said.text());
        }
        let lines = || said.stderr.lines().filter(|line| !line.trim().is_empty());
        let line = lines().find(|line| line.starts_with("fatal") || line.starts_with("error"));
        let message = line.or_else(|| lines().next()).unwrap_or("it failed").to_owned();
        Err(FleetGitError::Failed { command: command.unwrap_or_default(), message })
    }

    fn ask<W: AsRef<OsStr>>(&mut self, words: &[W]) -> Result<Said, FleetGitError> {
        let top = self.main.top.clone();
        self.run(GitCall::new(&top, words))
    }

    fn tell<W: AsRef<OsStr>>(&mut self, words: &[W]) -> Result<String, FleetGitError> {
        let top = self.main.top.clone();
        self.text(GitCall::new(&top, words))
    }

    /// The commit of a name; `None` if it names none.
    pub(super) fn commit(&mut self, name: &str) -> Result<Option<String>, FleetGitError> {
        let said = self.ask(&[
            "rev-parse",
            "--verify",
            "--quiet",
            "--end-of-options",
            &format!("{name}^{{commit}}"),
        ])?;
        Ok((said.code == 0).then(|| said.text()))
    }

    pub(super) fn tree_of(&mut self, commit: &str) -> Result<String, FleetGitError> {
        self.tell(&["rev-parse", "--verify", &format!("{commit}^{{tree}}")])
    }

    /// The branch that the user has checked out; `None` on a detached HEAD.
    pub(super) fn head_branch(&mut self) -> Result<Option<String>, FleetGitError> {
        let said = self.ask(&["symbolic-ref", "--quiet", "--short", "HEAD"])?;
        Ok((said.code == 0).then(|| said.text()))
    }

    /// Whether the user's checkout differs from its commit.
    pub(super) fn is_dirty(&mut self, worktree: &Path) -> Result<bool, FleetGitError> {
        let words = [
            "status",
            "--porcelain",
            "--untracked-files=normal",
            "--",
            ".",
            ":(exclude,glob,top)**/.agent/**",
            ":(exclude,glob,top).agent/**",
        ];
        Ok(!self.text(GitCall::new(worktree, &words))?.is_empty())
    }

    pub(super) fn is_ancestor(&mut self, old: &str, new: &str) -> Result<bool, FleetGitError> {
        let said = self.ask(&["merge-base", "--is-ancestor", old, new])?;
        Ok(said.code == 0)
    }

    /// Moves a reference if its value is still `old`; `None` is a missing reference. Returns
    /// whether it was moved.
    pub(super) fn move_ref(
        &mut self,
        reference: &str,
        new: &str,
        old: Option<&str>,
        message: &str,
    ) -> Result<bool, FleetGitError> {
        let words =
            ["update-ref", "-m", message, "--create-reflog", reference, new, old.unwrap_or("")];
        let said = self.ask(&words)?;
        if said.code == 0 {
            return Ok(true);
        }
        // It failed because another process moved it, or for another reason.
        match self.commit(reference)?.as_deref() == old {
            false => Ok(false),
            true => Err(FleetGitError::Failed {
                command: "update-ref".to_owned(),
                message: said.stderr.trim().to_owned(),
            }),
        }
    }

    /// Sets a reference of the fleet.
    pub(super) fn set_ref(&mut self, reference: &str, commit: &str) -> Result<(), FleetGitError> {
        self.tell(&["update-ref", reference, commit]).map(drop)
    }

    /// Whether git accepts this branch name.
    pub(super) fn is_branch_name(&mut self, name: &str) -> Result<bool, FleetGitError> {
        Ok(self.ask(&["check-ref-format", "--branch", name])?.code == 0)
    }

    /// The work trees that have a branch checked out.
    pub(super) fn checkouts_of(&mut self, branch: &str) -> Result<Vec<PathBuf>, FleetGitError> {
        let said = self.ask(&["worktree", "list", "--porcelain", "-z"])?;
        let wanted = format!("branch refs/heads/{branch}");
        let mut found = Vec::new();
        let mut path = PathBuf::new();
        for line in said.stdout.split(|byte| *byte == 0) {
            if let Some(named) = line.strip_prefix(b"worktree ") {
                path = PathBuf::from(OsStr::from_bytes(named));
            } else if line == wanted.as_bytes() {
                found.push(path.clone());
            }
        }
        Ok(found)
    }

    /// Merges without a checkout.
    pub(super) fn merge(&mut self, ours: &str, theirs: &str) -> Result<TreeMerge, FleetGitError> {
        let words =
            ["merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", ours, theirs];
        let said = self.ask(&words)?;
        let mut parts = said.stdout.split(|byte| *byte == 0);
        let tree = parts.next().map(|tree| String::from_utf8_lossy(tree).trim().to_owned());
        match (said.code, tree) {
            (0, Some(tree)) => Ok(TreeMerge::Clean { tree }),
            (1, Some(tree)) if !tree.is_empty() => {
                let paths = parts.take_while(|path| !path.is_empty());
                let paths = paths.map(|path| PathBuf::from(OsStr::from_bytes(path))).collect();
                Ok(TreeMerge::Conflict { tree, paths })
            }
            _ => Err(FleetGitError::Failed {
                command: "merge-tree".to_owned(),
                message: said.stderr.trim().to_owned(),
            }),
        }
    }

    pub(super) fn commit_tree(
        &mut self,
        tree: &str,
        parents: &[&str],
        message: &str,
    ) -> Result<String, FleetGitError> {
        let mut words = vec!["commit-tree", tree];
        words.extend(parents.iter().flat_map(|parent| ["-p", parent]));
        words.extend(["-m", message]);
        self.tell(&words)
    }

    /// The start of a file in a tree, for people.
    pub(super) fn file_start(&mut self, tree: &str, path: &Path, most: usize) -> Option<String> {
        let mut name = OsString::from(format!("{tree}:"));
        name.push(path);
        let words = [OsStr::new("cat-file"), OsStr::new("blob"), &name];
        let said = self.ask(&words).ok().filter(|said| said.code == 0)?;
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        Some(text.chars().take(most).collect())
    }

    /// The numbers of files, added lines and removed lines between two commits.
    pub(super) fn counts(&mut self, old: &str, new: &str) -> Result<[u64; 3], FleetGitError> {
        let said = self.ask(&["diff-tree", "-r", "-z", "--no-renames", "--numstat", old, new])?;
        let mut sum = [0, 0, 0];
        for line in said.stdout.split(|byte| *byte == 0).filter(|line| !line.is_empty()) {
            let text = String::from_utf8_lossy(line);
            let mut words = text.split('\t');
            // `-` for a binary file.
            let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0u64);
            let (added, removed) = (number(), number());
            sum = [sum[0] + 1, sum[1] + added, sum[2] + removed];
        }
        Ok(sum)
    }

    /// The paths that differ between two commits.
    pub(super) fn changed_paths(
        &mut self,
        old: &str,
        new: &str,
    ) -> Result<Vec<PathBuf>, FleetGitError> {
        let said = self.ask(&["diff-tree", "-r", "-z", "--no-renames", "--name-only", old, new])?;
        Ok(paths(&said.stdout))
    }

    /// The differences between two commits, in git's format.
    pub(super) fn diff(
        &mut self,
        old: &str,
        new: &str,
        colour: bool,
    ) -> Result<Vec<u8>, FleetGitError> {
        let colour = if colour { "--color=always" } else { "--color=never" };
        let words = ["diff", "--no-ext-diff", "--no-textconv", colour, old, new, "--"];
        Ok(self.ask(&words)?.stdout)
    }

    /// The tree of a directory's files, without ignored ones. `start` is the commit to compare with
    /// first, and `index` is a separate index that may know the files already. Repositories inside
    /// are left out, except those in `links`, which have these commits.
    pub(super) fn snapshot(
        &mut self,
        git_dir: &Path,
        tree: &Path,
        start: &str,
        (index, without, links): (&Path, &[PathBuf], &[Gitlink]),
    ) -> Result<String, FleetGitError> {
        let call = |words: &[&str]| GitCall::new(tree, words).on_tree(git_dir, tree, index);
        let known = self.run(call(&["read-tree", "-m", start]))?;
        if known.code != 0 {
            // A damaged index, such as after a crash, is discarded.
            std::fs::remove_file(index).or_else(gone).map_err(at(index))?;
            self.text(call(&["read-tree", start]))?;
        }
        // Git rejects an exclusion by plain name if an ignore file excludes it already.
        let mut specs = b".\0:(exclude,glob)[.]agent/**\0:(exclude,glob)**/[.]agent/**\0".to_vec();
        for path in without {
            specs.extend_from_slice(b":(exclude,literal)");
            specs.extend_from_slice(path.as_os_str().as_bytes());
            specs.push(0);
        }
        let mut add = call(&["add", "--all", "--pathspec-from-file=-", "--pathspec-file-nul"]);
        add.stdin = Some(specs);
        self.text(add)?;
        for (path, commit) in links {
            let link = call(&["update-index", "--add", "--cacheinfo", "160000", commit]);
            self.text(link.and(path))?;
        }
        self.text(call(&["write-tree"]))
    }

    /// Changes a fleet's tree to a commit; ignored files stay.
    pub(super) fn switch_tree(
        &mut self,
        tree: &Path,
        commit: &str,
        index: &Path,
    ) -> Result<(), FleetGitError> {
        let git_dir = self.main.common.clone();
        let call = |words: &[&str]| GitCall::new(tree, words).on_tree(&git_dir, tree, index);
        self.text(call(&["read-tree", "--reset", "-u", commit]))?;
        self.text(call(&["clean", "-ffdq"])).map(drop)
    }

    /// Fetches everything from a clone: HEAD, branches, stashes, checkpoints.
    pub(super) fn fetch_all(
        &mut self,
        clone: &Path,
        prefix: &str,
    ) -> Result<FetchedClone, FleetGitError> {
        if clone.join(".git").symlink_metadata().is_err() {
            return Ok(FetchedClone { head: None, whole: true });
        }
        let rest = [
            format!("+refs/heads/*:{prefix}heads/*"),
            format!("+refs/stash*:{prefix}stash*"),
            "+refs/retake/checkpoints/*:refs/retake/checkpoints/*".to_owned(),
        ];
        let head = format!("+HEAD:{prefix}head");
        let whole = self.fetch(clone, &[&[head.clone()][..], &rest].concat(), false)?;
        if !whole {
            // A clone without a commit on its branch may have other references.
            let others = self.fetch(clone, &rest, false)?;
            if !self.fetch(clone, &[head], false)? {
                let on_branch = files::read(&clone.join(".git/HEAD"), 4096)
                    .is_ok_and(|head| head.starts_with(b"ref: "));
                return Ok(FetchedClone { head: None, whole: others && on_branch });
            }
            if !others {
                let head = self.commit(&format!("{prefix}head"))?;
                return Ok(FetchedClone { head, whole: false });
            }
        }
        let head = self.commit(&format!("{prefix}head"))?;
        self.fetch_logged(clone, prefix)?;
        Ok(FetchedClone { head, whole: true })
    }

    fn fetch(
        &mut self,
        clone: &Path,
        refspecs: &[String],
        any: bool,
    ) -> Result<bool, FleetGitError> {
        let mut words: Vec<OsString> = [
            "-c",
            "fetch.fsckObjects=true",
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-recurse-submodules",
            "--no-auto-maintenance",
        ]
        .map(OsString::from)
        .into();
        if any {
            words
                .push("--upload-pack=git -c uploadpack.allowAnySHA1InWant=true upload-pack".into());
        }
        words.push("--".into());
        words.push(clone.into());
        words.extend(refspecs.iter().map(OsString::from));
        Ok(self.ask(&words)?.code == 0)
    }

    /// Fetches commits that only the reflogs of a clone name: older stashes, and detached
    /// checkouts.
    fn fetch_logged(&mut self, clone: &Path, prefix: &str) -> Result<(), FleetGitError> {
        const MOST: usize = 500;
        let mut named: Vec<String> = Vec::new();
        for log in ["logs/refs/stash", "logs/HEAD"] {
            let path = clone.join(".git").join(log);
            let text = files::read(&path, 8 << 20).unwrap_or_default();
            for line in String::from_utf8_lossy(&text).lines().rev() {
                let id = line.split(' ').nth(1).unwrap_or_default();
                let hex = id.bytes().all(|byte| byte.is_ascii_hexdigit());
                if hex && matches!(id.len(), 40 | 64) && !named.iter().any(|known| known == id) {
                    named.push(id.to_owned());
                }
            }
        }
        named.truncate(MOST);
        let mut unknown = Vec::new();
        for id in named {
            let reached = format!("--contains={id}");
            let said = self.ask(&["for-each-ref", "--count=1", &reached, prefix])?;
            // Fails for a commit that the main repository lacks.
            if said.code != 0 || said.stdout.is_empty() {
                unknown.push(id);
            }
        }
        let spec = |id: &String| format!("+{id}:{prefix}log/{id}");
        let specs: Vec<String> = unknown.iter().map(spec).collect();
        if !specs.is_empty() && !self.fetch(clone, &specs, true)? {
            // A missing commit would fail the whole fetch.
            for spec in &specs {
                self.fetch(clone, std::slice::from_ref(spec), true)?;
            }
        }
        Ok(())
    }
}

pub(super) fn gone(error: std::io::Error) -> std::io::Result<()> {
    match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

pub(super) fn paths(listed: &[u8]) -> Vec<PathBuf> {
    let parts = listed.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    parts.map(|path| PathBuf::from(OsString::from_vec(path.to_vec()))).collect()
}
