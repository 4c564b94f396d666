//! The git operations of the matrix: the commit of a ref, the commits between two, and worktrees.
//!
//! git runs through the given keeper; nothing here starts a process itself.

mod lfs;
mod refs;
mod worktrees;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use retake_engine::{Cancel, Command, Keeper, Launch, LiveOutput, ProcessEvent, Variable};
use retake_runner::safe_git::{self, RedirectedRepository};
use retake_types::{Outcome, StartFailure, Stream};

pub use refs::{Commit, Commits, Resolved};
pub use worktrees::{Worktree, WorktreeChange, WorktreeName, Worktrees};

/// Maximum output of git to keep; no expected output is as long.
const MOST_OUTPUT: usize = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error("git is not installed, or not on PATH; refs and worktrees need it")]
    NotInstalled,
    #[error("{}: there is no such directory; correct code.repo", .0.display())]
    NoDirectory(PathBuf),
    #[error("{} is not in a git repository; correct code.repo, or remove `code`", .0.display())]
    NotARepository(PathBuf),
    #[error(transparent)]
    Redirected(#[from] RedirectedRepository),
    #[error("{reference}: {why}")]
    BadRef { reference: String, why: String },
    #[error("git {what} failed: {message}")]
    Failed { what: String, message: String },
    #[error("interrupted while git {0} was running")]
    Cancelled(String),
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: std::io::Error },
}

impl GitError {
    fn io(path: &Path, error: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }
}

/// One repository, and the means to run git in it.
pub struct Git<'k> {
    keeper: &'k mut Keeper,
    cancel: &'k Cancel,
    repo: PathBuf,
    environment: Vec<Variable>,
}

struct Said {
    ok: bool,
    stdout: String,
    stderr: String,
}

impl<'k> Git<'k> {
    /// Checks that there is a repository.
    pub fn open(
        keeper: &'k mut Keeper,
        cancel: &'k Cancel,
        repo: &Path,
        inherited: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, GitError> {
        if !repo.is_dir() {
            return Err(GitError::NoDirectory(repo.to_owned()));
        }
        let repo = repo.canonicalize().map_err(|error| GitError::io(repo, error))?;
        safe_git::check(&repo)?;
        let mut environment = safe_git::clean_environment(inherited);
        for (name, value) in safe_git::VARIABLES {
            environment.retain(|(known, _)| known != name);
            environment.push((name.into(), value.into()));
        }
        let environment = environment.into_iter().map(Variable::from).collect();
        let mut git = Self { keeper, cancel, repo, environment };
        let said = git.ask(&["rev-parse", "--git-common-dir"])?;
        if said.ok { Ok(git) } else { Err(GitError::NotARepository(git.repo)) }
    }

    pub fn repo(&self) -> &Path {
        &self.repo
    }

    fn ask<S: AsRef<OsStr>>(&mut self, arguments: &[S]) -> Result<Said, GitError> {
        let repo = self.repo.clone();
        self.ask_in(&repo, arguments)
    }

    /// The output of git, whether it succeeds or not.
    fn ask_in<S: AsRef<OsStr>>(
        &mut self,
        directory: &Path,
        arguments: &[S],
    ) -> Result<Said, GitError> {
        let what = arguments.first().map(|a| a.as_ref().to_string_lossy().into_owned());
        let what = what.unwrap_or_default();
        let failed = |message: String| GitError::Failed { what: what.clone(), message };
        let mut all = vec![OsString::from("git")];
        all.extend(safe_git::OPTIONS.map(OsString::from));
        all.extend(arguments.iter().map(|a| a.as_ref().to_owned()));
        let mut request = Launch::new(all);
        request.cwd = directory.to_owned();
        request.environment = self.environment.clone();
        let command = Command::new(request).map_err(|problems| {
            failed(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
        })?;
        let mut output = [Vec::new(), Vec::new()];
        let finished =
            self.keeper.run(&command, self.cancel, LiveOutput::default(), &mut |event| {
                if let ProcessEvent::Output { stream, bytes } = event {
                    let kept = &mut output[stream.index()];
                    let room = MOST_OUTPUT.saturating_sub(kept.len()).min(bytes.len());
                    kept.extend_from_slice(&bytes[..room]);
                }
            });
        let text = |stream: Stream| String::from_utf8_lossy(&output[stream.index()]).into_owned();
        let (stdout, stderr) = (text(Stream::Stdout), text(Stream::Stderr));
        match finished.outcome {
            Outcome::Exited(code) => Ok(Said { ok: code == 0, stdout, stderr }),
            Outcome::NotStarted(StartFailure::NotFound(_)) => Err(GitError::NotInstalled),
            Outcome::NotStarted(failure) => Err(failed(failure.to_string())),
            Outcome::Cancelled(_) => Err(GitError::Cancelled(what)),
            other => Err(failed(format!("it ended as {}", other.kind()))),
        }
    }

    /// The output of git; its failure is an error.
    fn tell_in<S: AsRef<OsStr>>(
        &mut self,
        directory: &Path,
        arguments: &[S],
    ) -> Result<String, GitError> {
        let said = self.ask_in(directory, arguments)?;
        if said.ok {
            return Ok(said.stdout);
        }
        let what = arguments.iter().take(2).map(|a| a.as_ref().to_string_lossy().into_owned());
        Err(GitError::Failed {
            what: what.collect::<Vec<_>>().join(" "),
            message: said.stderr.trim().to_owned(),
        })
    }
}
