//! Where a matrix lives: its configuration, its project and the places in it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use retake_matrix::browsers::{Addresses, Browsers};
use retake_matrix::config::Config as MatrixConfig;
use retake_matrix::git::{Worktrees, clean_environment};
use retake_matrix::plan::{FilterError, Matrix};
use retake_store::redact::Redactor;
use retake_types::Kind;

use retake_runner::config::Config;
use retake_runner::prepare::Spec;
use retake_runner::project::Place;
use retake_slurm::shared::Shared;
use retake_runner::request::Problems;

pub struct Setting {
    /// What is to be run.
    pub matrix: MatrixConfig,
    /// retake's own configuration.
    pub config: Config,
    pub place: Place,
    /// The configuration's file, absolute.
    pub file: PathBuf,
    /// The project's `.agent/`.
    pub agent: PathBuf,
    /// The directory that other machines see too, if cells run there.
    pub shared: Option<Shared>,
    /// Variables that no command gets.
    pub unset: Vec<OsString>,
}

impl Setting {
    /// The cells that the filters leave.
    pub fn cells(&self, filters: &[(String, String)]) -> Result<Matrix, FilterError> {
        let mut cells = Matrix::of(&self.matrix);
        cells.filter(filters)?;
        Ok(cells)
    }

    /// Where the command runs if there is no code: beside the configuration.
    pub fn home(&self) -> PathBuf {
        self.file.parent().map_or_else(|| PathBuf::from("/"), Path::to_owned)
    }

    pub fn worktrees(&self) -> Worktrees {
        match &self.shared {
            Some(shared) => Worktrees::new(&shared.worktrees(&self.agent)),
            None => Worktrees::new(&self.agent.join("worktrees")),
        }
    }

    /// The marks of setups that went well where there is no worktree to keep them.
    pub fn setups(&self) -> PathBuf {
        self.agent.join("matrix-setup")
    }

    pub fn scratch(&self) -> PathBuf {
        self.agent.join("tmp")
    }

    pub fn repo(&self) -> Option<&Path> {
        self.matrix.code.as_ref().map(|code| code.repo.as_path())
    }

    pub fn browsers(&self) -> Option<Browsers> {
        browsers(Some(&self.matrix), self.shared.as_ref().map(Shared::browsers))
    }

    /// A run of this matrix, to be filled in.
    pub fn spec(&self, shown: &str, arguments: Vec<OsString>, cwd: PathBuf) -> Spec {
        let mut spec = Spec::new(Kind::Matrix, shown.to_owned(), cwd);
        spec.arguments = arguments;
        spec.shell = true;
        // All of it is kept, and none of it is carried along.
        spec.inline_bytes = u64::MAX;
        spec.unset = self.unset.clone();
        spec
    }

    /// Knows the secrets that must not be written down with the plan.
    pub fn redactor(&self) -> Redactor {
        let mut spec = self.spec(&self.matrix.command, Vec::new(), self.home());
        spec.set = self.matrix.env.iter().map(|(n, v)| (n.into(), v.into())).collect();
        let environment = spec.environment(&self.config, &self.place.store);
        // What is wrong with a pattern is told by the first run.
        spec.redactor(&self.config, &environment, &mut Problems::default())
    }
}

/// Variables of git's hooks: they would point a command at another repository than its worktree.
pub fn misleading() -> Vec<OsString> {
    let kept = clean_environment(std::env::vars_os());
    std::env::vars_os().map(|(name, _)| name).filter(|n| kept.iter().all(|(k, _)| k != n)).collect()
}

/// Where browsers are had from, also without a configuration; `None` where there is no place to
/// keep any.
pub fn browsers(matrix: Option<&MatrixConfig>, shared: Option<PathBuf>) -> Option<Browsers> {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let chrome = matrix.and_then(|matrix| matrix.chrome.as_ref());
    let cache = chrome
        .and_then(|chrome| chrome.cache_dir.clone())
        .or(shared)
        .or_else(|| Browsers::default_cache(path))?;
    let others: Vec<PathBuf> = Browsers::puppeteer_cache(path).into_iter().collect();
    let addresses = Addresses::new(chrome, |name| std::env::var(name).ok());
    let interrupted = || retake_runner::signals::received().is_some();
    Some(Browsers::new(&cache, &others, addresses).interruptible(interrupted))
}
