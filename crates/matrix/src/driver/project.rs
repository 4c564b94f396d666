//! A matrix in its project: the configuration, the record, and its directories.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use retake_engine::Variable;
use retake_runner::context::RunContext;
use retake_runner::file_lock::{FileLock, LockError};
use retake_runner::{prepare, run_environment, safe_git, signals};
use retake_store::redact::Redactor;
use retake_types::request::{CommandRequest, LoopPosition};
use retake_types::{Kind, LoopId, OsText, PathGrant, PathRule, RunRequest, SandboxRequest};

use crate::browsers::{Addresses, Browsers};
use crate::config::Config;
use crate::git::Worktrees;
use crate::plan::{FilterError, Matrix};

/// Directories visible to other machines, for cells that run there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedDirectories {
    /// The worktrees of this project.
    pub worktrees: PathBuf,
    /// The cache of browsers.
    pub browsers: PathBuf,
}

/// One matrix and its environment.
pub struct MatrixProject {
    pub config: Config,
    /// The state shared by all runs.
    pub context: Arc<RunContext>,
    /// The configuration's file, absolute.
    pub file: PathBuf,
    /// The project's `.agent/`.
    pub agent_directory: PathBuf,
    pub shared: Option<SharedDirectories>,
    /// Variables that no command gets.
    pub unset: Vec<OsString>,
    /// Whether secrets are redacted in the record.
    pub redact: bool,
    /// How its commands are confined.
    pub sandbox: SandboxRequest,
}

impl MatrixProject {
    /// The cells that match the filters.
    pub fn cells(&self, filters: &[(String, String)]) -> Result<Matrix, FilterError> {
        let mut cells = Matrix::of(&self.config);
        cells.filter(filters)?;
        Ok(cells)
    }

    /// The working directory without code: that of the configuration.
    pub fn directory(&self) -> PathBuf {
        self.file.parent().map_or_else(|| PathBuf::from("/"), Path::to_owned)
    }

    pub fn worktrees(&self) -> Worktrees {
        match &self.shared {
            Some(shared) => Worktrees::new(&shared.worktrees),
            None => Worktrees::new(&self.agent_directory.join("worktrees")),
        }
    }

    /// Marks of successful setups outside of worktrees.
    pub fn setup_marks(&self) -> PathBuf {
        self.agent_directory.join("matrix-setup")
    }

    pub fn scratch(&self) -> PathBuf {
        self.agent_directory.join("tmp")
    }

    pub fn repo(&self) -> Option<&Path> {
        self.config.code.as_ref().map(|code| code.repo.as_path())
    }

    pub fn browsers(&self) -> Option<Browsers> {
        let shared = self.shared.as_ref().map(|shared| shared.browsers.clone());
        available_browsers(Some(&self.config), shared)
    }

    /// The lock file of a running matrix of this project: worktrees are shared, and a second loop
    /// would reset them under the first one's command.
    pub fn lock_path(&self) -> PathBuf {
        self.agent_directory.join("matrix.lock")
    }

    /// `purpose` names the holder to others. Fork keepers before.
    pub fn lock(&self, purpose: &str) -> Result<FileLock, LockError> {
        FileLock::acquire(&self.lock_path(), purpose)
    }

    /// The base request for a run of this matrix.
    pub fn request(&self, command: &str, directory: &Path, position: LoopPosition) -> RunRequest {
        self.request_of(CommandRequest::shell(command), directory, position)
    }

    pub(super) fn request_of(
        &self,
        command: CommandRequest,
        directory: &Path,
        position: LoopPosition,
    ) -> RunRequest {
        let mut request = RunRequest::new(position, command, directory);
        request.redaction.enabled = self.redact;
        request.sandbox = self.sandbox_in(directory);
        request.environment.unset =
            self.unset.iter().map(|name| OsText::from(name.as_os_str())).collect();
        request
    }

    /// The confinement of a command in this directory: its worktree is writable although it is
    /// inside a protected directory of the project, and so is its scratch directory.
    fn sandbox_in(&self, directory: &Path) -> SandboxRequest {
        if !self.sandbox.is_on() {
            return self.sandbox.clone();
        }
        let tree = directory.ancestors().find(|dir| dir.join(".git").exists());
        let inside = |dir: &&Path| dir.starts_with(&self.agent_directory) || self.shared.is_some();
        let tree = tree.filter(inside).map(Path::to_owned);
        let scratch = Some(self.scratch()).filter(|scratch| scratch.exists());
        let writable = tree.into_iter().chain(scratch);
        let paths = writable.map(|path| PathRule::new(PathGrant::AllowWrite, path)).collect();
        self.sandbox.clone().with_rules(&SandboxRequest { paths, ..SandboxRequest::default() })
    }

    /// Knows the secrets to redact in the recorded plan.
    pub fn redactor(&self) -> Redactor {
        let position = LoopPosition { kind: Kind::Matrix, id: LoopId::new(), iteration: 0 };
        let mut request = self.request(&self.config.command.text(), &self.directory(), position);
        for (name, value) in &self.config.env {
            request.environment.set(name, value);
        }
        // An invalid pattern refuses the first run.
        let mut reasons = Vec::new();
        let mut environment = run_environment::environment(&request, &self.context, &mut reasons);
        // The values of an axis with a secret name are secrets.
        for axis in &self.config.axes {
            environment.extend(axis.values.iter().map(|value| Variable::new(&axis.name, value)));
        }
        prepare::redactor(&request, &self.context.redaction, &environment, &mut reasons)
    }
}

/// Variables of git's hooks: they would lead a command to another repository than its worktree.
pub fn git_variables() -> Vec<OsString> {
    let kept = safe_git::clean_environment(std::env::vars_os());
    std::env::vars_os().map(|(name, _)| name).filter(|n| kept.iter().all(|(k, _)| k != n)).collect()
}

/// The browsers of a configuration, or the default ones; `None` if there is no directory for them.
pub fn available_browsers(config: Option<&Config>, shared: Option<PathBuf>) -> Option<Browsers> {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let chrome = config.and_then(|config| config.chrome.as_ref());
    let cache = chrome
        .and_then(|chrome| chrome.cache_dir.clone())
        .or(shared)
        .or_else(|| Browsers::default_cache(path))?;
    let others: Vec<PathBuf> = Browsers::puppeteer_cache(path).into_iter().collect();
    let addresses = Addresses::new(
        chrome.and_then(|chrome| chrome.index_url.as_deref()),
        chrome.and_then(|chrome| chrome.download_url.as_deref()),
        |name| std::env::var(name).ok(),
    );
    let interrupted = || signals::received().is_some();
    Some(Browsers::new(&cache, &others, addresses).interruptible(interrupted))
}
