//! What cells need before they can run: commits, worktrees with their setup, browsers. What cannot
//! be had is listed, and the rest goes on without it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use retake_matrix::browsers::{BrowserError, BrowserRequest, Progress};
use retake_matrix::config::{CHROME, CODE};
use retake_matrix::git::{Git, GitError, Notice, Resolved, Worktree};
use retake_matrix::iteration::{BrowserOf, CodeOf, arguments};
use retake_matrix::plan::{Identity, Matrix};
use retake_types::LoopId;

use super::history::SETUP;
use super::program;
use super::screen::Screen;
use super::setting::Setting;
use retake_runner::signals;
use retake_runner::worker::Slot;

/// Code that can be run.
#[derive(Clone, Debug)]
pub struct Code {
    pub of: CodeOf,
    pub directory: PathBuf,
}

/// What is known of the values of a matrix, and what of them is there.
pub struct Supply {
    pub identity: Identity,
    /// By ref as configured.
    pub commits: BTreeMap<String, String>,
    pub code: BTreeMap<String, Code>,
    /// By version as configured.
    pub browsers: BTreeMap<String, BrowserOf>,
    pub pins: BTreeMap<String, String>,
    pub checksums: BTreeMap<String, String>,
    /// What could not be had, and why.
    pub unavailable: Vec<String>,
}

impl Supply {
    /// Finds out what every value stands for, as far as that can be told without the network.
    /// Refs that there are not leave the matrix.
    pub fn resolve(
        slot: &mut Slot,
        setting: &Setting,
        matrix: &mut Matrix,
        pins: BTreeMap<String, String>,
    ) -> Result<Self, GitError> {
        let mut supply = Self {
            identity: Identity::new(&setting.matrix.command, &setting.matrix.env),
            commits: BTreeMap::new(),
            code: BTreeMap::new(),
            browsers: BTreeMap::new(),
            pins,
            checksums: BTreeMap::new(),
            unavailable: Vec::new(),
        };
        if let Some(repo) = setting.repo() {
            let (keeper, cancel) = slot.parts();
            let mut git = Git::open(keeper, cancel, repo, std::env::vars_os())?;
            let refs: Vec<String> = matrix.used(CODE).into_iter().map(str::to_owned).collect();
            for reference in refs {
                match git.resolve(&reference) {
                    Ok(Resolved { sha, .. }) => supply.know_commit(&reference, &sha),
                    Err(GitError::BadRef { reference, why }) => {
                        supply.unavailable.push(format!("{reference}: {why}"));
                        matrix.remove(CODE, &reference);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        if let Some(chrome) = &setting.matrix.chrome {
            for (value, request) in &chrome.requests {
                if let Some(version) = known_version(request, &supply.pins) {
                    supply.identity.resolve_browser(value, &version);
                }
            }
        }
        let used: Vec<String> = matrix.used(CHROME).into_iter().map(str::to_owned).collect();
        supply.know_programs(slot, setting, &used);
        Ok(supply)
    }

    /// Tells browsers given by their paths from others that were there at other times.
    pub fn know_programs(&mut self, slot: &mut Slot, setting: &Setting, values: &[String]) {
        let Some(chrome) = &setting.matrix.chrome else { return };
        for value in values {
            let Some(BrowserRequest::Program { path, name }) = chrome.requests.get(value) else {
                continue;
            };
            if let Some(identity) = program::identity(slot, path) {
                self.identity.resolve_browser(value, &format!("{name} {identity}"));
                self.checksums.insert(name.clone(), identity);
            }
        }
    }

    pub fn know_commit(&mut self, reference: &str, sha: &str) {
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

    /// Makes a browser available. An error that is not the browser's own ends everything.
    pub fn browser(
        &mut self,
        setting: &Setting,
        value: &str,
        screen: &Screen,
    ) -> Result<(), BrowserError> {
        let known = setting.matrix.chrome.as_ref().and_then(|chrome| chrome.requests.get(value));
        let Some(request) = known else { return Ok(()) };
        let browsers = setting.browsers().ok_or_else(no_cache)?;
        let mut report = |progress| {
            tell_progress(screen, value, progress);
            match signals::received() {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        };
        let had = browsers.ensure(request, &self.pins, &mut report);
        screen.clear();
        let browser = had?;
        if matches!(request, BrowserRequest::Milestone(_) | BrowserRequest::Channel(_)) {
            self.pins.insert(request.to_string(), browser.version.clone());
        }
        if let Some(receipt) = browsers.cache().receipt(&browser.version) {
            self.checksums.insert(browser.version.clone(), receipt.blake3);
        }
        if !matches!(request, BrowserRequest::Program { .. }) {
            self.identity.resolve_browser(value, &browser.version);
        }
        let of = BrowserOf { program: browser.program, version: browser.version };
        self.browsers.insert(value.to_owned(), of);
        Ok(())
    }

    /// Checks a commit out and sets it up.
    pub fn code(
        &mut self,
        slot: &mut Slot,
        setting: &Setting,
        reference: &str,
        loop_id: LoopId,
        screen: &Screen,
    ) -> Result<(), Trouble> {
        let (Some(repo), Some(sha)) = (setting.repo(), self.commits.get(reference)) else {
            return Ok(());
        };
        let sha = sha.clone();
        let worktrees = setting.worktrees();
        let (keeper, cancel) = slot.parts();
        let mut git = Git::open(keeper, cancel, repo, std::env::vars_os())?;
        let (worktree, notice) = worktrees.ensure(&mut git, &sha)?;
        let name = match short(&sha) {
            short if reference == sha => short.to_owned(),
            short => format!("{reference} ({short})"),
        };
        match notice {
            Notice::Created | Notice::Reused => {}
            Notice::Recreated(why) => {
                screen.notice(&format!("the worktree of {name} is made anew: {why}"));
            }
            Notice::Reset(files) => screen.notice(&format!(
                "the worktree of {name} had changes, which are gone: {}",
                files.join(", ")
            )),
        }
        if let Some(setup) = setting.matrix.setup.as_deref()
            && !worktrees.setup_done(&worktree, setup)
        {
            self.set_up(slot, setting, setup, &worktree, &name, loop_id, screen)?;
            worktrees.mark_setup(&worktree, setup)?;
        }
        let code =
            Code { of: CodeOf { reference: reference.to_owned(), sha }, directory: worktree.path };
        self.code.insert(reference.to_owned(), code);
        Ok(())
    }

    /// The setup where there is no code: once for each text and directory.
    pub fn here(
        &mut self,
        slot: &mut Slot,
        setting: &Setting,
        loop_id: LoopId,
        screen: &Screen,
    ) -> Result<(), Trouble> {
        let Some(setup) = setting.matrix.setup.as_deref() else { return Ok(()) };
        let here = Worktree { sha: String::new(), path: setting.home() };
        let directory = here.path.as_os_str().as_encoded_bytes();
        let hash = blake3::hash(&[setup.as_bytes(), directory].join(&0)).to_hex();
        let mark = setting.setups().join(&hash[..16]);
        if mark.exists() {
            return Ok(());
        }
        self.set_up(slot, setting, setup, &here, "here", loop_id, screen)?;
        let written =
            std::fs::create_dir_all(setting.setups()).and_then(|()| std::fs::write(&mark, ""));
        written.map_err(|error| Trouble::Failed(format!("{}: {error}", mark.display())))
    }

    #[expect(clippy::too_many_arguments, reason = "each is a different thing, used once")]
    fn set_up(
        &mut self,
        slot: &mut Slot,
        setting: &Setting,
        setup: &str,
        worktree: &Worktree,
        name: &str,
        loop_id: LoopId,
        screen: &Screen,
    ) -> Result<(), Trouble> {
        let path = worktree.path.clone();
        let mut spec = setting.spec(setup, arguments(setup).to_vec(), path);
        spec.loop_id = loop_id;
        spec.set = setting.matrix.env.iter().map(|(n, v)| (n.into(), v.into())).collect();
        spec.labels.insert(SETUP.to_owned(), name.to_owned());
        if !worktree.sha.is_empty() {
            spec.correlation_ids.repo_sha = Some(worktree.sha.clone());
        }
        let job = spec.ready(&setting.config, &setting.place.store).map_err(Trouble::Failed)?;
        screen.live(&format!("  [setup] {name}"));
        let done = slot.run(job, false, &mut ()).map_err(|u| Trouble::Failed(u.problem))?;
        screen.clear();
        if done.outcome.success() {
            screen.line(&format!("  [setup] {name}  ✓"));
            return Ok(());
        }
        if signals::received().is_some() {
            return Err(Trouble::Interrupted);
        }
        let code = done.outcome.exit_code().unwrap_or(1);
        screen.line(&format!("  [setup] {name}  ✗  exit:{code}"));
        let id = done.run.intent.id().short();
        Err(Trouble::Failed(format!(
            "{name}: its setup failed with exit code {code}; see `retake runs logs {id}`"
        )))
    }

    /// The code of all cells; what cannot be had leaves the matrix.
    pub fn provide_code(
        &mut self,
        slot: &mut Slot,
        setting: &Setting,
        matrix: &mut Matrix,
        loop_id: LoopId,
        screen: &Screen,
    ) -> Result<(), Trouble> {
        if setting.matrix.code.is_none() {
            return match self.here(slot, setting, loop_id, screen) {
                Err(Trouble::Failed(why)) => {
                    self.unavailable.push(why);
                    matrix.cells.clear();
                    Ok(())
                }
                other => other,
            };
        }
        let refs: Vec<String> = matrix.used(CODE).into_iter().map(str::to_owned).collect();
        for reference in refs {
            match self.code(slot, setting, &reference, loop_id, screen) {
                Ok(()) => {}
                Err(Trouble::Failed(why)) => {
                    self.unavailable.push(why);
                    matrix.remove(CODE, &reference);
                }
                Err(Trouble::Interrupted) => return Err(Trouble::Interrupted),
            }
        }
        Ok(())
    }

    /// The browsers of all cells; what cannot be had leaves the matrix.
    pub fn provide_browsers(
        &mut self,
        setting: &Setting,
        matrix: &mut Matrix,
        screen: &Screen,
    ) -> Result<(), Trouble> {
        let versions: Vec<String> = matrix.used(CHROME).into_iter().map(str::to_owned).collect();
        for value in versions {
            match self.browser(setting, &value, screen) {
                Ok(()) => {}
                Err(BrowserError::Interrupted { .. }) => return Err(Trouble::Interrupted),
                Err(error) => {
                    self.unavailable.push(format!("chrome {value}: {error}"));
                    matrix.remove(CHROME, &value);
                }
            }
        }
        Ok(())
    }
}

/// Why a value cannot be had.
#[derive(Debug)]
pub enum Trouble {
    /// This one cannot; others may.
    Failed(String),
    /// A signal asked for the end.
    Interrupted,
}

impl From<GitError> for Trouble {
    fn from(error: GitError) -> Self {
        match error {
            GitError::Cancelled(_) => Self::Interrupted,
            error => Self::Failed(error.to_string()),
        }
    }
}

fn no_cache() -> BrowserError {
    BrowserError::Io {
        path: PathBuf::from("chrome.cache_dir"),
        error: std::io::Error::other("neither it nor $HOME is set, so browsers have no place"),
    }
}

/// The exact version of a request, if it can be told without asking the index.
pub fn known_version(
    request: &BrowserRequest,
    pins: &BTreeMap<String, String>,
) -> Option<String> {
    match request {
        BrowserRequest::Exact(version) => Some(version.to_string()),
        BrowserRequest::Program { name, .. } => Some(name.clone()),
        BrowserRequest::Milestone(_) | BrowserRequest::Channel(_) => {
            pins.get(&request.to_string()).cloned()
        }
    }
}

fn tell_progress(screen: &Screen, value: &str, progress: Progress) {
    let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    match progress {
        Progress::Waiting => screen.live(&format!("chrome {value}: someone else is at it")),
        Progress::Downloading { done, total: Some(total) } => {
            let said = format!("{} of {}", megabytes(done), megabytes(total));
            screen.progress(&format!("chrome {value}: "), done, total, &said);
        }
        Progress::Downloading { done, total: None } => {
            screen.live(&format!("chrome {value}: {}", megabytes(done)));
        }
        Progress::Unpacking { done, total } => {
            screen.progress(&format!("chrome {value}: "), done, total, "unpacking");
        }
    }
}

/// A commit as people write it.
pub fn short(sha: &str) -> &str {
    &sha[..sha.len().min(7)]
}
