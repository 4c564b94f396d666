//! The code of a ref, checked out and set up in a separate tree per worker, with a snapshot of its
//! state after setup.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use retake_runner::prepare::PreparedRun;
use retake_runner::run::OutputUse;
use retake_runner::signals;
use retake_runner::worker::Worker;
use retake_types::loop_record::matrix::{CellLabels, CellRole};
use retake_types::request::LoopPosition;
use retake_types::{Kind, LoopId};

use super::event::MatrixEvent;
use super::resources::{ProvisionError, Provisioner, Resources, Unavailable, short_sha};
use crate::build::Build;
use crate::config::ResetMode;
use crate::git::{Git, GitError, Worktree, WorktreeChange, WorktreeName, Worktrees};
use crate::iteration::CodeOf;
use crate::plan::Matrix;
use crate::tree::{TreeError, TreeSnapshot};

/// Code that is ready to run.
#[derive(Clone, Debug)]
pub(super) struct CheckedOutCode {
    pub(super) of: CodeOf,
    /// One per worker. Refs of the same commit share them.
    pub(super) trees: Arc<Vec<CodeTree>>,
}

/// The tree of one worker.
#[derive(Debug)]
pub(super) struct CodeTree {
    pub(super) directory: PathBuf,
    /// Snapshots of the tree and of git's data about it, after setup; empty if nothing is reset.
    snapshots: Mutex<Vec<TreeSnapshot>>,
}

impl CodeTree {
    /// Resets it to its state after setup.
    pub(super) fn reset(&self) -> Result<(), TreeError> {
        let mut snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        snapshots.iter_mut().try_for_each(|snapshot| snapshot.reset().map(drop))
    }
}

impl Drop for CodeTree {
    fn drop(&mut self) {
        let snapshots = self.snapshots.get_mut().unwrap_or_else(PoisonError::into_inner);
        for snapshot in snapshots {
            // The next reset computes unsaved data again.
            drop(snapshot.save());
        }
    }
}

/// One ref that is being provided.
struct Checkout<'a> {
    sha: &'a str,
    /// For display.
    name: String,
    build: String,
    worktrees: Worktrees,
    repo: &'a Path,
    loop_id: LoopId,
}

impl Checkout<'_> {
    fn failed(&self, error: GitError) -> ProvisionError {
        match error {
            GitError::Cancelled(_) => ProvisionError::Interrupted,
            error => Unavailable::Code { name: self.name.clone(), error }.into(),
        }
    }

    fn tree_failed(&self, error: TreeError) -> ProvisionError {
        Unavailable::Tree { name: self.name.clone(), error }.into()
    }

    fn with_git<T>(
        &self,
        worker: &mut Worker,
        ask: impl FnOnce(&mut Git<'_>) -> Result<T, GitError>,
    ) -> Result<T, ProvisionError> {
        let (keeper, cancel) = worker.parts();
        Git::open(keeper, cancel, self.repo, std::env::vars_os())
            .and_then(|mut git| ask(&mut git))
            .map_err(|error| self.failed(error))
    }
}

impl Provisioner<'_> {
    /// Checks out and sets up a commit, once for each worker.
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
        let of = CodeOf { reference: reference.to_owned(), sha: sha.clone() };
        let known = resources.code.values().find(|code| code.of.sha == sha);
        if let Some(trees) = known.map(|code| code.trees.clone()) {
            resources.code.insert(reference.to_owned(), CheckedOutCode { of, trees });
            return Ok(());
        }
        let name = match short_sha(&sha) {
            short if reference == sha => short.to_owned(),
            short => format!("{reference} ({short})"),
        };
        let config = &self.project.config;
        let whole = repo.canonicalize().unwrap_or_else(|_| repo.to_owned());
        let checkout = Checkout {
            sha: &sha,
            name,
            build: Build::of(config).tree_key(whole.as_os_str(), config.reset),
            worktrees: self.project.worktrees(),
            repo,
            loop_id,
        };
        let trees = (0..self.workers.max(1))
            .map(|number| self.tree(resources, worker, &checkout, number))
            .collect::<Result<Vec<CodeTree>, _>>()?;
        let code = CheckedOutCode { of, trees: Arc::new(trees) };
        resources.code.insert(reference.to_owned(), code);
        Ok(())
    }

    /// The tree of one worker: an existing one, or a new one that is set up.
    fn tree(
        &self,
        resources: &mut Resources,
        worker: &mut Worker,
        checkout: &Checkout<'_>,
        number: usize,
    ) -> Result<CodeTree, ProvisionError> {
        let Checkout { sha, build, worktrees, name, .. } = checkout;
        let tree = WorktreeName { sha: (*sha).to_owned(), build: build.clone(), number };
        let (worktree, mut change) =
            checkout.with_git(worker, |git| worktrees.ensure(git, &tree))?;
        if change == WorktreeChange::Reused {
            match self.reuse(worker, checkout, &worktree)? {
                Ok(tree) => return Ok(tree),
                Err(why) => {
                    checkout.with_git(worker, |git| worktrees.recreate(git, &worktree))?;
                    change = WorktreeChange::Recreated(why.to_owned());
                }
            }
        }
        if let WorktreeChange::Recreated(why) = &change {
            self.observer.event(MatrixEvent::WorktreeRecreated { name, why });
        }
        resources.created.push(tree);
        if let Some(setup) = self.project.config.setup.as_deref() {
            let place = SetupPlace { directory: &worktree.path, sha: Some(sha), name, number };
            self.set_up(worker, setup, &place, checkout.loop_id)?;
        }
        let pointers = checkout.with_git(worker, |git| git.lfs_pointers(&worktree.path))?;
        if !pointers.is_empty() {
            // The next run must not reuse it, because the files may have been fetched by then.
            checkout.with_git(worker, |git| worktrees.remove(git, &worktree.name.to_string()))?;
            return Err(Unavailable::LfsPointers { name: name.clone(), files: pointers }.into());
        }
        let snapshots = self.keep(worker, checkout, &worktree)?;
        worktrees.mark_complete(&worktree).map_err(|error| checkout.failed(error))?;
        Ok(CodeTree { directory: worktree.path, snapshots: Mutex::new(snapshots) })
    }

    /// Reuses a tree of an earlier run, reset to its state after setup; an inner error says why it
    /// must be recreated.
    fn reuse(
        &self,
        worker: &mut Worker,
        checkout: &Checkout<'_>,
        worktree: &Worktree,
    ) -> Result<Result<CodeTree, &'static str>, ProvisionError> {
        let worktrees = &checkout.worktrees;
        let mut snapshots = Vec::new();
        if self.project.config.reset != ResetMode::Never {
            let store = worktrees.snapshot(worktree);
            // The tree comes first: it leads to git's directory for it.
            let Some(mut tree) = TreeSnapshot::load(&worktree.path, &store.join(TREE)) else {
                return Ok(Err("its state after setup is unknown"));
            };
            tree.reset().map_err(|error| checkout.tree_failed(error))?;
            snapshots.push(tree);
            let git = checkout.with_git(worker, |git| worktrees.git_directory(git, worktree));
            let git = match git {
                Ok(git) => git,
                Err(ProvisionError::Interrupted) => return Err(ProvisionError::Interrupted),
                Err(ProvisionError::Unavailable(_)) => return Ok(Err("git no longer knows it")),
            };
            if let Some(mut git) = TreeSnapshot::load(&git, &store.join(GIT)) {
                git.reset().map_err(|error| checkout.tree_failed(error))?;
                snapshots.push(git);
            }
        }
        let defect = checkout.with_git(worker, |git| worktrees.defect(git, worktree))?;
        Ok(match defect {
            Some(why) => Err(why),
            None => {
                let directory = worktree.path.clone();
                Ok(CodeTree { directory, snapshots: Mutex::new(snapshots) })
            }
        })
    }

    /// Saves the current state of a tree.
    fn keep(
        &self,
        worker: &mut Worker,
        checkout: &Checkout<'_>,
        worktree: &Worktree,
    ) -> Result<Vec<TreeSnapshot>, ProvisionError> {
        if self.project.config.reset == ResetMode::Never {
            return Ok(Vec::new());
        }
        let worktrees = &checkout.worktrees;
        let git = checkout.with_git(worker, |git| worktrees.git_directory(git, worktree))?;
        let store = worktrees.snapshot(worktree);
        [(&worktree.path, TREE), (&git, GIT)]
            .into_iter()
            .map(|(root, name)| TreeSnapshot::take(root, &store.join(name)))
            .collect::<Result<_, _>>()
            .map_err(|error| checkout.tree_failed(error))
    }

    /// The setup without code: repeated if another setup ran last. With values of cells in it there
    /// are several.
    pub(super) fn set_up_directory(
        &self,
        worker: &mut Worker,
        matrix: &Matrix,
        loop_id: LoopId,
    ) -> Result<(), ProvisionError> {
        let config = &self.project.config;
        let Some(setup) = config.setup.as_deref() else { return Ok(()) };
        let here = self.project.directory();
        let hash = blake3::hash(here.as_os_str().as_encoded_bytes()).to_hex();
        let marks = self.project.setup_marks();
        let mark = marks.join(&hash[..16]);
        let mut setups: Vec<String> = Vec::new();
        for text in matrix.cells.iter().map(|cell| matrix.fill(cell, setup)) {
            if !setups.contains(&text) {
                setups.push(text);
            }
        }
        let mut build = Build::of(config).hash();
        if setups != [setup] {
            build += &setups.join("\n");
        }
        if std::fs::read_to_string(&mark).is_ok_and(|last| last == build) {
            return Ok(());
        }
        let failed = |error| Unavailable::SetupMark { path: mark.clone(), error };
        // From here on the directory no longer has the state of the last setup.
        match std::fs::remove_file(&mark) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(error).into());
            }
            _ => {}
        }
        for setup in &setups {
            let name = if setups.len() == 1 { "here" } else { setup };
            let place = SetupPlace { directory: &here, sha: None, name, number: 0 };
            self.set_up(worker, setup, &place, loop_id)?;
        }
        let written = std::fs::create_dir_all(&marks).and_then(|()| std::fs::write(&mark, build));
        Ok(written.map_err(failed)?)
    }

    fn set_up(
        &self,
        worker: &mut Worker,
        setup: &str,
        place: &SetupPlace<'_>,
        loop_id: LoopId,
    ) -> Result<(), ProvisionError> {
        let position = LoopPosition { kind: Kind::Matrix, id: loop_id, iteration: 0 };
        let mut request = self.project.request(setup, place.directory, position);
        for (name, value) in &self.project.config.env {
            request.environment.set(name, value);
        }
        let name = match place.number {
            0 => place.name.to_owned(),
            number => format!("{}, worker {}", place.name, number + 1),
        };
        CellLabels::new(CellRole::Setup(name.clone())).write_to(&mut request.labels);
        request.correlation_ids.repo_sha = place.sha.map(str::to_owned);
        let prepared = PreparedRun::new(request, &self.project.context)
            .map_err(|refused| Unavailable::SetupRefused(refused.reasons))?;
        self.observer.event(MatrixEvent::SetupStarted { name: &name });
        let (success, exit_code, run) = match &self.remote_setup {
            Some(there) => {
                let run = (there.borrow_mut())(worker, prepared);
                let run = run.ok_or(ProvisionError::Interrupted)?;
                let exit_code = run.outcome.as_ref().and_then(|outcome| outcome.exit_code);
                (run.success(), exit_code, run.intent.id())
            }
            None => {
                let finished = worker.run(prepared, OutputUse::NONE, &mut ());
                let finished = finished.map_err(Unavailable::SetupUnrecorded)?;
                let outcome = &finished.outcome;
                (outcome.success(), outcome.exit_code(), finished.run.intent.id())
            }
        };
        if success {
            self.observer.event(MatrixEvent::SetupEnded { name: &name, exit_code: None });
            return Ok(());
        }
        if signals::received().is_some() {
            self.observer.event(MatrixEvent::SetupCancelled);
            return Err(ProvisionError::Interrupted);
        }
        let exit_code = exit_code.unwrap_or(1);
        self.observer.event(MatrixEvent::SetupEnded { name: &name, exit_code: Some(exit_code) });
        Err(Unavailable::Setup { name, exit_code, run }.into())
    }
}

/// The names of a snapshot's parts.
const TREE: &str = "tree";
const GIT: &str = "git";

/// The place of a setup.
struct SetupPlace<'a> {
    directory: &'a Path,
    sha: Option<&'a str>,
    /// For display.
    name: &'a str,
    /// The worker that it is for.
    number: usize,
}
