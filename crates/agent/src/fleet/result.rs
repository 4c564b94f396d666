//! The work of one agent for users: shows its changes, and merges it into the current branch.

use std::path::Path;
use std::sync::Arc;

use retake_runner::context::RunContext;
use retake_runner::worker::Worker;
use retake_types::LoopId;

use super::git::{FleetGit, GitCall, MainRepository, at, gone};
use super::mounts::MountNamespace;
use super::record::RecordedFleet;
use super::setup::FleetError;
use super::tree::TreeMark;
use super::trees::{Trees, home_of};

impl RecordedFleet {
    /// Whether the tree of an agent has more than the collected work.
    pub(super) fn is_live(&self, agent: usize) -> bool {
        let recorded = &self.agents[agent];
        let there = |tree: &Path| TreeMark::of(&home_of(&self.plan, tree)) == recorded.mark;
        recorded.outcome.is_none()
            && !recorded.tree_removed
            && recorded.mark.is_some()
            && recorded.tree.as_deref().is_some_and(there)
    }

    /// Whether the tree of an agent is needed and accessible only in a mount namespace: that of the
    /// process running the fleet, or a new one without such a process.
    pub fn needs_namespace(&self, agent: usize) -> bool {
        self.plan.layered && self.is_live(agent)
    }
}

/// The changes of an agent since its start, in git's format: the collected work, or its current
/// tree. `None` if there is neither. `namespace` is a new one, in which no tree is mounted yet.
pub fn diff(
    fleet: &RecordedFleet,
    agent: usize,
    (root, scratch): (&Path, &Path),
    colour: bool,
    (context, namespace): (&Arc<RunContext>, Option<MountNamespace>),
) -> Result<Option<Vec<u8>>, FleetError> {
    let mut worker = Worker::independent(context).map_err(FleetError::NoProcess)?;
    let main = MainRepository::open(&mut worker, root)?;
    let mut git = FleetGit::new(&mut worker, &main);
    let base = &fleet.plan.base;
    let recorded = &fleet.agents[agent];
    if let (true, Some(tree)) = (fleet.is_live(agent), recorded.tree.as_deref()) {
        if let Some(namespace) = namespace {
            Trees::of(&fleet.plan, Some(namespace))?.show(tree, &main)?;
        }
        std::fs::create_dir_all(scratch).map_err(at(scratch))?;
        let index = scratch.join(format!("diff-{}.index", std::process::id()));
        let nested = crate::checkpoint::nested_repositories(tree).map_err(at(tree))?;
        let common = main.common.clone();
        let snapshot = git.snapshot(&common, tree, base, (&index, &nested, &[]));
        std::fs::remove_file(&index).or_else(gone).map_err(at(&index))?;
        return Ok(Some(git.diff(base, &snapshot?, colour)?));
    }
    let Some(work) = &recorded.work else { return Ok(None) };
    let start = git.start_of(base, &work.commit)?;
    Ok(Some(git.diff(&start, &work.commit, colour)?))
}

/// The reference to the result of an agent in the main repository.
pub fn result_reference(fleet: LoopId, agent: &str) -> String {
    format!("{}result", prefix(fleet, agent))
}

/// The prefix of an agent's references in the main repository.
pub(super) fn prefix(fleet: LoopId, agent: &str) -> String {
    format!("refs/retake/fleet/{fleet}/{agent}/")
}

/// The result of applying work.
#[derive(Debug, PartialEq, Eq)]
pub enum Applied {
    Done {
        branch: String,
    },
    AlreadyThere {
        branch: String,
    },
    Conflict {
        paths: Vec<String>,
    },
    /// git refused, and changed nothing.
    Refused {
        why: String,
    },
    NothingCollected,
}

/// Merges the work of an agent into the checked-out branch, at the user's request. A conflict
/// changes nothing.
pub fn apply(
    fleet: &RecordedFleet,
    agent: usize,
    root: &Path,
    context: &Arc<RunContext>,
) -> Result<Applied, FleetError> {
    let Some(work) = &fleet.agents[agent].work else { return Ok(Applied::NothingCollected) };
    let mut worker = Worker::independent(context).map_err(FleetError::NoProcess)?;
    let main = MainRepository::open(&mut worker, root)?;
    if let Some(what) = main.unfinished() {
        return Err(FleetError::Unfinished(what));
    }
    let mut git = FleetGit::new(&mut worker, &main);
    let branch = git.head_branch()?.ok_or(FleetError::Detached)?;
    if git.is_ancestor(&work.commit, "HEAD")? {
        return Ok(Applied::AlreadyThere { branch });
    }
    // Checked without a checkout, so that nothing has to be reverted.
    if let super::git::TreeMerge::Conflict { paths, .. } = git.merge("HEAD", &work.commit)? {
        let paths = paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        return Ok(Applied::Conflict { paths });
    }
    let message = format!("Merge the work of agent {}", fleet.plan.agents[agent].name);
    let words = ["merge", "--quiet", "--no-overwrite-ignore", "-m", &message, &work.commit];
    let said = git.run(GitCall::new(&main.top, &words))?;
    Ok(match said.code {
        0 => Applied::Done { branch },
        _ => Applied::Refused { why: said.stderr.trim().to_owned() },
    })
}
