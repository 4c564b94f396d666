//! What cells need before they can run: commits, worktrees with their setup, browsers. What is
//! unavailable is listed, and the other cells run without it.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;

use retake_runner::prepare::PreparedRun;
use retake_runner::run::OutputUse;
use retake_runner::signals;
use retake_runner::worker::{Unrecorded, Worker};
use retake_types::loop_record::matrix::{CellLabels, CellRole};
use retake_types::request::LoopPosition;
use retake_types::{Kind, LoopId, RefusalReason, RunId};

use super::event::{MatrixEvent, MatrixObserver};
use super::program_identity;
use super::project::MatrixProject;
use crate::browsers::{BrowserError, BrowserRequest};
use crate::config::{CHROME, CODE};
use crate::git::{Git, GitError, Resolved, Worktree, WorktreeChange};
use crate::iteration::{BrowserOf, CodeOf};
use crate::plan::{Identity, Matrix};

/// Code that can be run.
#[derive(Clone, Debug)]
pub(super) struct CheckedOutCode {
    pub(super) of: CodeOf,
    pub(super) directory: PathBuf,
}

/// What the values of a matrix were resolved to, and which of them are provided.
pub struct Resources {
    pub identity: Identity,
    /// By ref as configured.
    pub commits: BTreeMap<String, String>,
    pub(super) code: BTreeMap<String, CheckedOutCode>,
    /// By version as configured.
    pub(super) browsers: BTreeMap<String, BrowserOf>,
    pub pins: BTreeMap<String, String>,
    pub checksums: BTreeMap<String, String>,
    pub unavailable: Vec<Unavailable>,
}

/// Why a value of a matrix is not available.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    #[error("{reference}: {why}")]
    Ref { reference: String, why: String },
    #[error("{0}")]
    Code(GitError),
    #[error("chrome {version}: {error}")]
    Browser { version: String, error: BrowserError },
    #[error("{name}: its setup failed with exit code {exit_code}")]
    Setup { name: String, exit_code: i32, run: RunId },
    #[error("{}", RefusalReason::listed(.0))]
    SetupRefused(Vec<RefusalReason>),
    #[error("{0}")]
    SetupUnrecorded(Unrecorded),
    #[error("{}: {error}", path.display())]
    SetupMark { path: PathBuf, error: io::Error },
}

/// Why providing a value ended.
#[derive(Debug)]
pub enum ProvisionError {
    /// This value is not available; others may be.
    Unavailable(Unavailable),
    /// A signal asked for the end.
    Interrupted,
}

impl From<Unavailable> for ProvisionError {
    fn from(unavailable: Unavailable) -> Self {
        Self::Unavailable(unavailable)
    }
}

impl From<GitError> for ProvisionError {
    fn from(error: GitError) -> Self {
        match error {
            GitError::Cancelled(_) => Self::Interrupted,
            error => Self::Unavailable(Unavailable::Code(error)),
        }
    }
}

impl Resources {
    /// Finds out what every value stands for, as far as that is possible without the network. Refs
    /// that do not exist leave the matrix.
    pub fn resolve(
        worker: &mut Worker,
        project: &MatrixProject,
        matrix: &mut Matrix,
        pins: BTreeMap<String, String>,
    ) -> Result<Self, GitError> {
        let mut resources = Self {
            identity: Identity::new(&project.config.command, &project.config.env),
            commits: BTreeMap::new(),
            code: BTreeMap::new(),
            browsers: BTreeMap::new(),
            pins,
            checksums: BTreeMap::new(),
            unavailable: Vec::new(),
        };
        if let Some(repo) = project.repo() {
            let (keeper, cancel) = worker.parts();
            let mut git = Git::open(keeper, cancel, repo, std::env::vars_os())?;
            let refs: Vec<String> = matrix.used(CODE).into_iter().map(str::to_owned).collect();
            for reference in refs {
                match git.resolve(&reference) {
                    Ok(Resolved { sha, .. }) => resources.add_commit(&reference, &sha),
                    Err(GitError::BadRef { reference, why }) => {
                        matrix.remove(CODE, &reference);
                        resources.unavailable.push(Unavailable::Ref { reference, why });
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        if let Some(chrome) = &project.config.chrome {
            for (value, request) in &chrome.requests {
                if let Some(version) = known_version(request, &resources.pins) {
                    resources.identity.resolve_browser(value, &version);
                }
            }
        }
        let used: Vec<String> = matrix.used(CHROME).into_iter().map(str::to_owned).collect();
        resources.identify_programs(worker, project, &used);
        Ok(resources)
    }

    /// Identifies browsers given by their paths by what is there now.
    pub fn identify_programs(
        &mut self,
        worker: &mut Worker,
        project: &MatrixProject,
        values: &[String],
    ) {
        let Some(chrome) = &project.config.chrome else { return };
        for value in values {
            let Some(BrowserRequest::Program { path, name }) = chrome.requests.get(value) else {
                continue;
            };
            if let Some(identity) = program_identity::identity(worker, path) {
                self.identity.resolve_browser(value, &format!("{name} {identity}"));
                self.checksums.insert(name.clone(), identity);
            }
        }
    }

    pub(super) fn add_commit(&mut self, reference: &str, sha: &str) {
        self.identity.resolve_code(reference, sha);
        self.commits.insert(reference.to_owned(), sha.to_owned());
    }

    /// Refs that are one and the same commit, each group in the order of the configuration.
    pub fn same_commits(&self) -> Vec<(String, Vec<String>)> {
        let mut by_commit: BTreeMap<&String, Vec<String>> = BTreeMap::new();
        for (reference, sha) in &self.commits {
            by_commit.entry(sha).or_default().push(reference.clone());
        }
        let shared = by_commit.into_iter().filter(|(_, refs)| refs.len() > 1);
        shared.map(|(sha, refs)| (sha.clone(), refs)).collect()
    }

    /// Whether the code of a ref is checked out and set up.
    pub(super) fn has_code(&self, reference: &str) -> bool {
        self.code.contains_key(reference)
    }

    pub(super) fn has_browser(&self, version: &str) -> bool {
        self.browsers.contains_key(version)
    }
}

/// Provides values of a matrix: downloads browsers, checks code out and sets it up.
pub(super) struct Provisioner<'a> {
    pub(super) project: &'a MatrixProject,
    pub(super) observer: &'a dyn MatrixObserver,
}

impl Provisioner<'_> {
    /// Makes a browser available.
    pub(super) fn browser(
        &self,
        resources: &mut Resources,
        value: &str,
    ) -> Result<(), ProvisionError> {
        self.install_browser(resources, value).map_err(|error| match error {
            BrowserError::Interrupted { .. } => ProvisionError::Interrupted,
            error => Unavailable::Browser { version: value.to_owned(), error }.into(),
        })
    }

    fn install_browser(&self, resources: &mut Resources, value: &str) -> Result<(), BrowserError> {
        let chrome = self.project.config.chrome.as_ref();
        let Some(request) = chrome.and_then(|chrome| chrome.requests.get(value)) else {
            return Ok(());
        };
        let browsers = self.project.browsers().ok_or_else(no_cache)?;
        let mut report = |progress| {
            self.observer.event(MatrixEvent::BrowserProgress { version: value, progress });
            match signals::received() {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        };
        let installed = browsers.ensure(request, &resources.pins, &mut report);
        self.observer.event(MatrixEvent::BrowserEnded);
        let browser = installed?;
        if matches!(request, BrowserRequest::Milestone(_) | BrowserRequest::Channel(_)) {
            resources.pins.insert(request.to_string(), browser.version.clone());
        }
        if let Some(receipt) = browsers.cache().receipt(&browser.version) {
            resources.checksums.insert(browser.version.clone(), receipt.blake3);
        }
        if !matches!(request, BrowserRequest::Program { .. }) {
            resources.identity.resolve_browser(value, &browser.version);
        }
        let of = BrowserOf { program: browser.program, version: browser.version };
        resources.browsers.insert(value.to_owned(), of);
        Ok(())
    }

    /// Checks a commit out and sets it up.
    pub(super) fn code(
        &self,
        resources: &mut Resources,
        worker: &mut Worker,
        reference: &str,
        loop_id: LoopId,
    ) -> Result<(), ProvisionError> {
        let (Some(repo), Some(sha)) = (self.project.repo(), resources.commits.get(reference))
        else {
            return Ok(());
        };
        let sha = sha.clone();
        let worktrees = self.project.worktrees();
        let (keeper, cancel) = worker.parts();
        let mut git = Git::open(keeper, cancel, repo, std::env::vars_os())?;
        let (worktree, change) = worktrees.ensure(&mut git, &sha)?;
        let name = match short_sha(&sha) {
            short if reference == sha => short.to_owned(),
            short => format!("{reference} ({short})"),
        };
        match &change {
            WorktreeChange::Created | WorktreeChange::Reused => {}
            WorktreeChange::Recreated(why) => {
                self.observer.event(MatrixEvent::WorktreeRecreated { name: &name, why });
            }
            WorktreeChange::Reset(files) => {
                self.observer.event(MatrixEvent::WorktreeReset { name: &name, files });
            }
        }
        if let Some(setup) = self.project.config.setup.as_deref()
            && !worktrees.setup_done(&worktree, setup)
        {
            self.set_up(worker, setup, &worktree, &name, loop_id)?;
            worktrees.mark_setup(&worktree, setup)?;
        }
        let of = CodeOf { reference: reference.to_owned(), sha };
        let code = CheckedOutCode { of, directory: worktree.path };
        resources.code.insert(reference.to_owned(), code);
        Ok(())
    }

    /// The setup where there is no code: once for each text and directory.
    pub(super) fn set_up_directory(
        &self,
        worker: &mut Worker,
        loop_id: LoopId,
    ) -> Result<(), ProvisionError> {
        let Some(setup) = self.project.config.setup.as_deref() else { return Ok(()) };
        let here = Worktree { sha: String::new(), path: self.project.directory() };
        let directory = here.path.as_os_str().as_encoded_bytes();
        let hash = blake3::hash(&[setup.as_bytes(), directory].join(&0)).to_hex();
        let marks = self.project.setup_marks();
        let mark = marks.join(&hash[..16]);
        if mark.exists() {
            return Ok(());
        }
        self.set_up(worker, setup, &here, "here", loop_id)?;
        let written = std::fs::create_dir_all(&marks).and_then(|()| std::fs::write(&mark, ""));
        Ok(written.map_err(|error| Unavailable::SetupMark { path: mark, error })?)
    }

    fn set_up(
        &self,
        worker: &mut Worker,
        setup: &str,
        worktree: &Worktree,
        name: &str,
        loop_id: LoopId,
    ) -> Result<(), ProvisionError> {
        let position = LoopPosition { kind: Kind::Matrix, id: loop_id, iteration: 0 };
        let mut request = self.project.request(setup, &worktree.path, position);
        for (name, value) in &self.project.config.env {
            request.environment.set(name, value);
        }
        CellLabels::new(CellRole::Setup(name.to_owned())).write_to(&mut request.labels);
        if !worktree.sha.is_empty() {
            request.correlation_ids.repo_sha = Some(worktree.sha.clone());
        }
        let prepared = PreparedRun::new(request, &self.project.context)
            .map_err(|refused| Unavailable::SetupRefused(refused.reasons))?;
        self.observer.event(MatrixEvent::SetupStarted { name });
        let finished =
            worker.run(prepared, OutputUse::NONE, &mut ()).map_err(Unavailable::SetupUnrecorded)?;
        if finished.outcome.success() {
            self.observer.event(MatrixEvent::SetupEnded { name, exit_code: None });
            return Ok(());
        }
        if signals::received().is_some() {
            self.observer.event(MatrixEvent::SetupCancelled);
            return Err(ProvisionError::Interrupted);
        }
        let exit_code = finished.outcome.exit_code().unwrap_or(1);
        self.observer.event(MatrixEvent::SetupEnded { name, exit_code: Some(exit_code) });
        let run = finished.run.intent.id();
        Err(Unavailable::Setup { name: name.to_owned(), exit_code, run }.into())
    }

    /// The code of all cells; a ref that is not available leaves the matrix.
    pub(super) fn all_code(
        &self,
        resources: &mut Resources,
        worker: &mut Worker,
        matrix: &mut Matrix,
        loop_id: LoopId,
    ) -> Result<(), ProvisionError> {
        if self.project.config.code.is_none() {
            return match self.set_up_directory(worker, loop_id) {
                Err(ProvisionError::Unavailable(unavailable)) => {
                    resources.unavailable.push(unavailable);
                    matrix.cells.clear();
                    Ok(())
                }
                other => other,
            };
        }
        let refs: Vec<String> = matrix.used(CODE).into_iter().map(str::to_owned).collect();
        for reference in refs {
            match self.code(resources, worker, &reference, loop_id) {
                Ok(()) => {}
                Err(ProvisionError::Unavailable(unavailable)) => {
                    resources.unavailable.push(unavailable);
                    matrix.remove(CODE, &reference);
                }
                Err(ProvisionError::Interrupted) => return Err(ProvisionError::Interrupted),
            }
        }
        Ok(())
    }

    /// The browsers of all cells; a version that is not available leaves the matrix.
    pub(super) fn all_browsers(
        &self,
        resources: &mut Resources,
        matrix: &mut Matrix,
    ) -> Result<(), ProvisionError> {
        let versions: Vec<String> = matrix.used(CHROME).into_iter().map(str::to_owned).collect();
        for version in versions {
            match self.browser(resources, &version) {
                Ok(()) => {}
                Err(ProvisionError::Unavailable(unavailable)) => {
                    resources.unavailable.push(unavailable);
                    matrix.remove(CHROME, &version);
                }
                Err(ProvisionError::Interrupted) => return Err(ProvisionError::Interrupted),
            }
        }
        Ok(())
    }
}

fn no_cache() -> BrowserError {
    BrowserError::Io {
        path: PathBuf::from("chrome.cache_dir"),
        error: io::Error::other("neither it nor $HOME is set, so browsers have no place"),
    }
}

/// The exact version of a request, if that is known without asking the index.
fn known_version(request: &BrowserRequest, pins: &BTreeMap<String, String>) -> Option<String> {
    match request {
        BrowserRequest::Exact(version) => Some(version.to_string()),
        BrowserRequest::Program { name, .. } => Some(name.clone()),
        BrowserRequest::Milestone(_) | BrowserRequest::Channel(_) => {
            pins.get(&request.to_string()).cloned()
        }
    }
}

/// A commit as people write it.
pub fn short_sha(sha: &str) -> &str {
    &sha[..sha.len().min(7)]
}
