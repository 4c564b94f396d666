//! The resources of cells: commits, worktrees with their setup, browsers. Unavailable ones are
//! listed, and the other cells run without them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;

use retake_runner::prepare::PreparedRun;
use retake_runner::signals;
use retake_runner::worker::{Unrecorded, Worker};
use retake_types::{LoopId, RefusalReason, Run, RunId};

use super::checkout::CheckedOutCode;
use super::event::{MatrixEvent, MatrixObserver};
use super::program_identity;
use super::project::MatrixProject;
use crate::browsers::{BrowserError, BrowserRequest};
use crate::config::{CHROME, CODE};
use crate::git::{Git, GitError, Resolved, WorktreeName};
use crate::iteration::BrowserOf;
use crate::plan::{Identity, Matrix};
use crate::tree::TreeError;

/// The resolved values of a matrix, and which of them are provided.
pub struct Resources {
    pub identity: Identity,
    /// By configured ref.
    pub commits: BTreeMap<String, String>,
    pub(super) code: BTreeMap<String, CheckedOutCode>,
    /// By configured version.
    pub(super) browsers: BTreeMap<String, BrowserOf>,
    pub pins: BTreeMap<String, String>,
    pub checksums: BTreeMap<String, String>,
    /// The newly created worktrees.
    pub(super) created: Vec<WorktreeName>,
    pub unavailable: Vec<Unavailable>,
}

/// Why a value of a matrix is unavailable.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    #[error("{reference}: {why}")]
    Ref { reference: String, why: String },
    #[error("{name}: {error}")]
    Code { name: String, error: GitError },
    /// Files of this ref are Git LFS pointers whose content was not fetched.
    #[error("{name}: {} {} a Git LFS pointer and not the file itself", .files[0], others(.files))]
    LfsPointers { name: String, files: Vec<String> },
    /// The tree of a ref could not be saved or reset.
    #[error("{name}: {error}")]
    Tree { name: String, error: TreeError },
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
    /// This value is unavailable; others may be available.
    Unavailable(Unavailable),
    /// A signal asked for the end.
    Interrupted,
}

impl From<Unavailable> for ProvisionError {
    fn from(unavailable: Unavailable) -> Self {
        Self::Unavailable(unavailable)
    }
}

/// `is`, and how many more there are.
fn others(files: &[String]) -> String {
    match files.len() {
        0 | 1 => "is".to_owned(),
        count => format!("(of {count} such files) is"),
    }
}

impl Resources {
    /// Resolves every value as far as possible without the network. Missing refs are removed from
    /// the matrix.
    pub fn resolve(
        worker: &mut Worker,
        project: &MatrixProject,
        matrix: &mut Matrix,
        pins: BTreeMap<String, String>,
    ) -> Result<Self, GitError> {
        let mut resources = Self {
            identity: Identity::of(&project.config),
            commits: BTreeMap::new(),
            code: BTreeMap::new(),
            browsers: BTreeMap::new(),
            pins,
            checksums: BTreeMap::new(),
            created: Vec::new(),
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

    /// Identifies browsers given by path by their current content.
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

    /// Refs of the same commit, each group in the order of the configuration.
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

/// Provides values of a matrix: downloads browsers, checks out code and sets it up.
pub(super) struct Provisioner<'a> {
    pub(super) project: &'a MatrixProject,
    pub(super) observer: &'a dyn MatrixObserver,
    /// How many run at once, each in a separate worktree.
    pub(super) workers: usize,
    /// Runs a setup on another machine.
    pub(super) remote_setup: Option<RefCell<RemoteSetup<'a>>>,
}

/// Runs a setup on another machine; `None` if it was interrupted or could not run there, which its
/// creator records.
pub(super) type RemoteSetup<'a> = &'a mut dyn FnMut(&mut Worker, PreparedRun) -> Option<Run>;

impl Provisioner<'_> {
    /// Provides a browser.
    pub(super) fn browser(
        &self,
        resources: &mut Resources,
        worker: &mut Worker,
        value: &str,
    ) -> Result<(), ProvisionError> {
        self.install_browser(resources, worker, value).map_err(|error| match error {
            BrowserError::Interrupted { .. } => ProvisionError::Interrupted,
            error => Unavailable::Browser { version: value.to_owned(), error }.into(),
        })
    }

    fn install_browser(
        &self,
        resources: &mut Resources,
        worker: &mut Worker,
        value: &str,
    ) -> Result<(), BrowserError> {
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
        let reported = match request {
            BrowserRequest::Program { .. } => {
                program_identity::reported_version(worker, &browser.program)
            }
            _ => None,
        };
        let version = reported.unwrap_or(browser.version);
        let of = BrowserOf { program: browser.program, version };
        resources.browsers.insert(value.to_owned(), of);
        Ok(())
    }

    /// Provides the code of all cells; an unavailable ref is removed from the matrix.
    pub(super) fn all_code(
        &self,
        resources: &mut Resources,
        worker: &mut Worker,
        matrix: &mut Matrix,
        loop_id: LoopId,
    ) -> Result<(), ProvisionError> {
        if self.project.config.code.is_none() {
            return match self.set_up_directory(worker, matrix, loop_id) {
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

    /// Provides the browsers of all cells; an unavailable version is removed from the matrix.
    pub(super) fn all_browsers(
        &self,
        resources: &mut Resources,
        worker: &mut Worker,
        matrix: &mut Matrix,
    ) -> Result<(), ProvisionError> {
        let versions: Vec<String> = matrix.used(CHROME).into_iter().map(str::to_owned).collect();
        for version in versions {
            match self.browser(resources, worker, &version) {
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
        error: io::Error::other(
            "neither it nor $HOME is set, so there is no directory for browsers",
        ),
    }
}

/// The exact version of a request, if known without the index.
fn known_version(request: &BrowserRequest, pins: &BTreeMap<String, String>) -> Option<String> {
    match request {
        BrowserRequest::Exact(version) => Some(version.to_string()),
        BrowserRequest::Program { name, .. } => Some(name.clone()),
        BrowserRequest::Milestone(_) | BrowserRequest::Channel(_) => {
            pins.get(&request.to_string()).cloned()
        }
    }
}

/// An abbreviated commit hash.
pub fn short_sha(sha: &str) -> &str {
    &sha[..sha.len().min(7)]
}
