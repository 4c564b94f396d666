//! What becomes of a workspace's checkpoints when it is put away, taken out again or removed: they
//! go with it, so that a later workspace of the same name does not find them.
//!
//! Trouble with git is told and stops nothing: the workspace itself is what was asked about.

use retake_agent::checkpoint::{Change, archive_prefix, prefix};
use retake_agent::workspace::Name;
use retake_engine::KeeperSession;

use super::project::Project;
use super::refused;
use crate::Failure;
use crate::term;
use retake_agent::driver::checkpoint::Keeping;
use retake_runner::worker::Audit;
use retake_runner::worker::Slot;

/// The checkpoints of one project.
pub(super) struct Refs<'a> {
    project: &'a Project,
    /// None where there is no repository, and so nothing to do.
    slot: Option<Slot>,
}

impl<'a> Refs<'a> {
    /// To be called while nothing is locked: a process is forked.
    pub(super) fn of(project: &'a Project) -> Result<Self, Failure> {
        if !project.root.ancestors().any(|dir| dir.join(".git").exists()) {
            return Ok(Self { project, slot: None });
        }
        let started =
            Slot::start(1, KeeperSession::Own, &project.place, Audit::of(&project.config));
        let mut slots = started.map_err(|error| {
            refused(format!("no process could be made: {}", term::plain(&error)))
        })?;
        Ok(Self { project, slot: slots.pop() })
    }

    /// A workspace was put away; with `keep` it is still there as well.
    pub(super) fn put_away(&mut self, name: &Name, archive: &Name, keep: bool) {
        let to = &archive_prefix(archive);
        let change = if keep { Change::Copy { to } } else { Change::Move { to } };
        self.change(&prefix(name), change);
    }

    /// A workspace was made of an archive, which stays.
    pub(super) fn bring_back(&mut self, archive: &Name, name: &Name) {
        self.change(&archive_prefix(archive), Change::Copy { to: &prefix(name) });
    }

    /// A workspace is gone for good. Says how many checkpoints went with it.
    pub(super) fn forget(&mut self, name: &Name) -> usize {
        self.change(&prefix(name), Change::Remove)
    }

    /// An archive is gone for good.
    pub(super) fn forget_archive(&mut self, archive: &Name) -> usize {
        self.change(&archive_prefix(archive), Change::Remove)
    }

    fn change(&mut self, prefix: &str, change: Change<'_>) -> usize {
        let Some(slot) = &mut self.slot else { return 0 };
        let (root, store) = (&self.project.root, &self.project.place.store);
        Keeping::new(slot, root, store).change(prefix, change).unwrap_or_else(|error| {
            term::say(&format!("checkpoints below {prefix} stay as they are: {error}"));
            0
        })
    }
}

impl Drop for Refs<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            drop(slot.end());
        }
    }
}
