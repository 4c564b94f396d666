//! Remaining trees of fleets: listed first, and removed only after their work is collected.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use retake_runner::context::RunContext;
use retake_runner::worker::Worker;
use retake_store::Store;
use retake_types::loop_record::fleet::FleetLoopPlan;
use retake_types::{Kind, LoopId};

use super::git::{FleetGit, FleetGitError, MainRepository};
use super::mounts::MountNamespace;
use super::record::RecordedFleet;
use super::result::prefix;
use super::setup::FleetError;
use super::tree::{TreeMark, removal_of, remove_tree};
use super::trees::{Trees, home_of};
use crate::driver::recorded_loop;
use crate::plan::AgentStopReason;

/// More loops than any project has.
const MOST_LOOPS: usize = 100_000;

/// A tree that exists although no process works in it.
#[derive(Clone, Debug)]
pub struct LeftTree {
    pub fleet: LoopId,
    pub agent: String,
    pub tree: PathBuf,
    /// The place of the changes in it.
    pub home: PathBuf,
    plan: FleetLoopPlan,
    mark: Option<TreeMark>,
    /// Whether its removal had begun, so its work is collected.
    removing: bool,
    /// Whether its fleet is unfinished: the next run continues it.
    pub unfinished: bool,
}

/// The remaining trees of this record's fleets, except those of a running fleet.
pub fn left_trees(store: &Store) -> retake_store::Result<Vec<LeftTree>> {
    let mut found = Vec::new();
    for record in store.list_loops(Some(Kind::Agent), MOST_LOOPS)? {
        if record.stop_reason.is_none() && store.loop_is_alive(record.id) {
            continue;
        }
        let Some(fleet) = RecordedFleet::read(store, record)? else { continue };
        for (agent, recorded) in fleet.plan.agents.iter().zip(&fleet.agents) {
            let Some(tree) = &recorded.tree else { continue };
            let home = home_of(&fleet.plan, tree);
            let there = home.symlink_metadata().is_ok();
            let moved = if fleet.plan.layered { home.parent() } else { Some(home.as_path()) };
            let removing = moved.is_some_and(|moved| removal_of(moved).symlink_metadata().is_ok());
            if there || removing {
                found.push(LeftTree {
                    fleet: fleet.record.id,
                    agent: agent.name.clone(),
                    tree: tree.clone(),
                    home,
                    plan: fleet.plan.clone(),
                    mark: recorded.mark,
                    removing: !there,
                    unfinished: fleet.is_open(),
                });
            }
        }
    }
    Ok(found)
}

/// The unfinished fleets of this record whose process died, including those without trees.
pub fn unfinished(store: &Store) -> retake_store::Result<Vec<RecordedFleet>> {
    let mut found = Vec::new();
    for record in store.list_loops(Some(Kind::Agent), MOST_LOOPS)? {
        if record.stop_reason.is_none() && !store.loop_is_alive(record.id) {
            found.extend(RecordedFleet::read(store, record)?);
        }
    }
    Ok(found)
}

/// Ends a fleet that will not continue, and the loops of its agents, which would otherwise continue
/// in the project itself.
pub fn give_up(fleet: &RecordedFleet, store: &mut Store) -> retake_store::Result<()> {
    let id = fleet.record.id;
    for agent in &fleet.plan.agents {
        recorded_loop::end_open_in_queue(store, &id.to_string(), &agent.name)?;
    }
    store.finish_loop(id, &AgentStopReason::Interrupted.as_str().into())
}

impl LeftTree {
    /// Whether it is accessible only in a mount namespace.
    pub fn needs_namespace(&self) -> bool {
        self.plan.layered
    }
}

/// Collects the work in a tree below `refs/retake/fleet/`, and removes the tree. Returns why it
/// stays, if it does.
pub fn prune(
    left: &LeftTree,
    root: &Path,
    (context, namespace): (&Arc<RunContext>, Option<MountNamespace>),
) -> Result<Option<String>, FleetError> {
    let mut worker = Worker::independent(context).map_err(FleetError::NoProcess)?;
    let main = MainRepository::open(&mut worker, root)?;
    let trees = Trees::of(&left.plan, namespace)?;
    let mut git = FleetGit::new(&mut worker, &main);
    // An incomplete tree contains no work, and the rest of a partly removed one would replace its
    // collected work.
    if left.mark.is_some() && !left.removing {
        if TreeMark::of(&left.home) != left.mark {
            return Ok(Some(super::tree::TreeStays::Another.to_string()));
        }
        trees.show(&left.tree, &main)?;
        let prefix = prefix(left.fleet, &left.agent);
        let work = match git.collect(&left.tree, &left.plan, (&prefix, &left.agent)) {
            Ok(work) => work,
            Err(error @ FleetGitError::Cancelled(_)) => return Err(error.into()),
            Err(error) => return Ok(Some(error.to_string())),
        };
        if !work.not_covered.is_empty() {
            let nested = work.not_covered.join(", ");
            return Ok(Some(format!(
                "{nested}: git cannot take over what is in it, and it is kept nowhere else"
            )));
        }
    }
    let mark = left.mark.filter(|_| !left.removing);
    if let Some(stays) = trees.remove(&left.tree, mark)? {
        return Ok(Some(stays.to_string()));
    }
    Ok(None)
}

/// Removes the directory of a fleet once it has no trees. Everything else in it can be recreated.
pub fn remove_directory(left: &LeftTree, namespace: Option<MountNamespace>) {
    let directory = left.plan.directory.as_path();
    let there = |name: &str| home_of(&left.plan, &directory.join(name)).symlink_metadata().is_ok();
    if left.plan.agents.iter().any(|agent| there(&agent.name)) {
        return;
    }
    let Ok(trees) = Trees::of(&left.plan, namespace) else { return };
    // If it stays, the next call finds it.
    if trees.unmount().is_ok() {
        drop(remove_tree(directory, None));
    }
}
