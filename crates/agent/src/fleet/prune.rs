//! Trees that fleets left behind: listed first, and removed only once their work is kept.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use retake_runner::context::RunContext;
use retake_runner::worker::Worker;
use retake_store::Store;
use retake_types::{Kind, LoopId};

use super::git::{FleetGit, FleetGitError, MainRepository};
use super::record::RecordedFleet;
use super::setup::FleetError;
use super::tree::{TreeMark, remove_tree};

/// Far more loops than any project has.
const MOST_LOOPS: usize = 100_000;

/// A tree that is still there although nobody works in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftTree {
    pub fleet: LoopId,
    pub agent: String,
    pub tree: PathBuf,
    mark: Option<TreeMark>,
    base: String,
    /// Its fleet was not finished: the next run continues it.
    pub unfinished: bool,
}

/// The trees that fleets of this record left. Those of a fleet that runs are not among them.
pub fn left_trees(store: &Store) -> retake_store::Result<Vec<LeftTree>> {
    let mut found = Vec::new();
    for record in store.list_loops(Some(Kind::Agent), MOST_LOOPS)? {
        if record.stop_reason.is_none() && store.loop_is_alive(record.id) {
            continue;
        }
        let Some(fleet) = RecordedFleet::read(store, record)? else { continue };
        for (agent, recorded) in fleet.plan.agents.iter().zip(&fleet.agents) {
            let Some(tree) = &recorded.tree else { continue };
            if tree.symlink_metadata().is_ok() {
                found.push(LeftTree {
                    fleet: fleet.record.id,
                    agent: agent.name.clone(),
                    tree: tree.clone(),
                    mark: recorded.mark,
                    base: fleet.plan.base.clone(),
                    unfinished: fleet.is_open(),
                });
            }
        }
    }
    Ok(found)
}

/// Keeps the work in a tree below `refs/retake/fleet/`, and removes the tree. Gives why it stays, if it
/// does.
pub fn prune(
    left: &LeftTree,
    root: &Path,
    context: &Arc<RunContext>,
) -> Result<Option<String>, FleetError> {
    let mut worker = Worker::independent(context).map_err(FleetError::NoProcess)?;
    let main = MainRepository::open(&mut worker, root)?;
    let mut git = FleetGit::new(&mut worker, &main);
    // One that was not made to its end holds nothing of an agent's.
    if left.mark.is_some() {
        if TreeMark::of(&left.tree) != left.mark {
            return Ok(Some(super::tree::TreeStays::Another.to_string()));
        }
        let prefix = format!("refs/retake/fleet/{}/{}/", left.fleet, left.agent);
        let message = format!("Uncommitted work of agent {}", left.agent);
        let work = match git.collect(&left.tree, &left.base, (&prefix, &message)) {
            Ok(work) => work,
            Err(error @ FleetGitError::Cancelled(_)) => return Err(error.into()),
            Err(error) => return Ok(Some(error.to_string())),
        };
        if !work.not_covered.is_empty() {
            let nested = work.not_covered.join(", ");
            return Ok(Some(format!(
                "{nested}: a repository of its own, which is kept nowhere else"
            )));
        }
    }
    if let Some(stays) = remove_tree(&left.tree, left.mark)? {
        return Ok(Some(stays.to_string()));
    }
    // Only once nothing else is in it.
    if let Some(directory) = left.tree.parent() {
        drop(remove_tree(&directory.join("gate.tree"), None));
        drop(std::fs::remove_dir(directory));
    }
    Ok(None)
}
