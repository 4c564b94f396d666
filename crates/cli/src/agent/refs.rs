//! The checkpoints of a workspace follow it when it is archived, restored or removed, so that a later
//! workspace of the same name does not find them.
//!
//! An error of git is reported and stops nothing: the workspace itself is what was asked about.

use retake_agent::checkpoint::{Change, archive_prefix, prefix};
use retake_agent::driver::git_checkpoints::GitCheckpoints;
use retake_agent::workspace::Name;
use retake_runner::worker::Worker;

use super::project::AgentProject;
use crate::{Failure, term};

/// The checkpoints of one project.
pub(super) struct Refs<'a> {
    project: &'a AgentProject,
    /// `None` where there is no repository, and so nothing to do.
    worker: Option<Worker>,
}

impl<'a> Refs<'a> {
    /// To be called while nothing is locked: a process is forked.
    pub(super) fn of(project: &'a AgentProject) -> Result<Self, Failure> {
        if !project.root.ancestors().any(|dir| dir.join(".git").exists()) {
            return Ok(Self { project, worker: None });
        }
        Ok(Self { project, worker: Some(project.worker()?) })
    }

    /// A workspace was archived; with `keep` it is still there as well.
    pub(super) fn archived(&mut self, name: &Name, archive: &Name, keep: bool) {
        let to = &archive_prefix(archive);
        let change = if keep { Change::Copy { to } } else { Change::Move { to } };
        self.change(&prefix(name), change);
    }

    /// A workspace was restored from an archive, which stays.
    pub(super) fn restored(&mut self, archive: &Name, name: &Name) {
        self.change(&archive_prefix(archive), Change::Copy { to: &prefix(name) });
    }

    /// A workspace was removed. Gives how many checkpoints went with it.
    pub(super) fn removed(&mut self, name: &Name) -> usize {
        self.change(&prefix(name), Change::Remove)
    }

    /// An archive was removed.
    pub(super) fn archive_removed(&mut self, archive: &Name) -> usize {
        self.change(&archive_prefix(archive), Change::Remove)
    }

    fn change(&mut self, prefix: &str, change: Change<'_>) -> usize {
        let Some(worker) = &mut self.worker else { return 0 };
        let root = &self.project.root;
        let Ok(store) = self.project.project.store() else { return 0 };
        GitCheckpoints::new(worker, root, store).change(prefix, change).unwrap_or_else(|error| {
            term::say(&format!("checkpoints below {prefix} stay as they are: {error}"));
            0
        })
    }
}

impl Drop for Refs<'_> {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take() {
            drop(worker.end());
        }
    }
}
