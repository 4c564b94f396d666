//! The results of finished fleets: which one is the newest of a name, and which is not merged.
//!
//! The next fleet does not run a task that is complete, so that it takes up the result with which
//! the task was completed, unless that is merged.

use std::path::Path;
use std::sync::Arc;

use retake_runner::context::RunContext;
use retake_runner::worker::Worker;
use retake_store::Store;
use retake_types::LoopId;
use retake_types::loop_record::agent::AgentLoopPlan;
use retake_types::loop_record::fleet::{CollectedWork, FleetLoopPlan, FleetOutcome};

use super::event::FleetEvent;
use super::git::{FleetGit, FleetGitError, GitCall, MainRepository};
use super::record::{RecordedFleet, fleets};
use super::run::Fleet;
use super::setup::FleetError;
use crate::driver::recorded_loop;

/// An agent of a recorded fleet.
#[derive(Debug)]
pub struct FleetResult {
    pub fleet: RecordedFleet,
    pub agent: usize,
}

/// A result that its fleet did not merge.
pub(super) struct Unmerged {
    pub(super) commit: String,
    /// `None` if its fleet was abandoned.
    pub(super) outcome: Option<FleetOutcome>,
}

impl FleetResult {
    pub fn id(&self) -> LoopId {
        self.fleet.record.id
    }

    /// `None` if its fleet was abandoned.
    pub fn outcome(&self) -> Option<FleetOutcome> {
        self.fleet.agents[self.agent].outcome
    }

    /// Its work, if that changes anything.
    fn changes(&self) -> Option<&CollectedWork> {
        self.fleet.agents[self.agent].work.as_ref().filter(|work| work.changed)
    }

    fn unmerged(&self) -> Option<Unmerged> {
        let work = self.changes()?;
        let outcome = self.outcome();
        (outcome != Some(FleetOutcome::Merged))
            .then(|| Unmerged { commit: work.commit.clone(), outcome })
    }
}

/// The results of a name, newest first.
fn results<'a>(
    store: &'a Store,
    worktree: &str,
    name: &'a str,
) -> retake_store::Result<impl Iterator<Item = retake_store::Result<FleetResult>> + 'a> {
    let agent_in = move |plan: &FleetLoopPlan| plan.agents.iter().position(|a| a.name == name);
    let of_name = fleets(store, worktree)?.into_iter().filter_map(move |record| {
        let agent = agent_in(&FleetLoopPlan::parse(&record.plan)?)?;
        Some((record, agent))
    });
    Ok(of_name.filter_map(|(record, agent)| {
        let fleet = RecordedFleet::read(store, record).transpose()?;
        Some(fleet.map(|fleet| FleetResult { fleet, agent }))
    }))
}

/// What the agent of this name has done last: its changes while it works, or the newest result that
/// changes anything. `None` if no fleet had such an agent.
pub fn newest_result(
    store: &Store,
    root: &Path,
    name: &str,
) -> retake_store::Result<Option<FleetResult>> {
    let worktree = recorded_loop::worktree_at(root);
    let mut newest = None;
    for result in results(store, &worktree, name)? {
        let result = result?;
        if result.changes().is_some() || result.fleet.is_live(result.agent) {
            return Ok(Some(result));
        }
        newest.get_or_insert(result);
    }
    Ok(newest)
}

/// The newest result of a name that is neither merged nor in the branch that is checked out.
pub fn unmerged_result(
    store: &Store,
    root: &Path,
    name: &str,
    context: &Arc<RunContext>,
) -> Result<Option<FleetResult>, FleetError> {
    let mut worker = Worker::independent(context).map_err(FleetError::NoProcess)?;
    let main = MainRepository::open(&mut worker, root)?;
    let mut git = FleetGit::new(&mut worker, &main);
    let worktree = recorded_loop::worktree_at(root);
    for result in results(store, &worktree, name)? {
        let result = result?;
        if let Some(unmerged) = result.unmerged()
            && git.lacks("HEAD", &unmerged.commit)?
        {
            return Ok(Some(result));
        }
    }
    Ok(None)
}

impl FleetGit<'_> {
    /// The commit from which a result differs by its own changes only: the base of its fleet, or for a
    /// result of an earlier fleet what both have.
    pub(super) fn start_of(&mut self, base: &str, commit: &str) -> Result<String, FleetGitError> {
        let top = self.main.top.clone();
        let said = self.run(GitCall::new(&top, &["merge-base", base, commit]))?;
        // An agent may have made a history of its own.
        Ok(if said.code == 0 { said.text() } else { base.to_owned() })
    }

    /// Whether a branch does not contain a commit that exists.
    fn lacks(&mut self, branch: &str, commit: &str) -> Result<bool, FleetGitError> {
        Ok(self.commit(commit)?.is_some() && !self.is_ancestor(commit, branch)?)
    }
}

impl Fleet<'_> {
    /// Changes the new tree of an agent whose task is complete to the result with which it was
    /// completed, if no branch has that: it is collected and merged like a result of this fleet.
    pub(super) fn take_up_earlier(
        &self,
        worker: &mut Worker,
        agent: usize,
        tree: &Path,
    ) -> Result<(), FleetError> {
        let Some(Unmerged { commit, outcome }) = self.unmerged(agent)? else { return Ok(()) };
        let mut git = FleetGit::new(worker, self.main);
        let target = self.prepared.plan.target.as_ref();
        let target = target.map_or("HEAD".to_owned(), |branch| format!("refs/heads/{branch}"));
        if !git.lacks(&target, &commit)? {
            return Ok(());
        }
        git.check_out_commit(tree, &commit)?;
        (self.front.event)(FleetEvent::EarlierResult { name: self.name(agent), outcome });
        Ok(())
    }

    /// The result with which the task of an agent was completed, if its fleet did not merge it.
    fn unmerged(&self, agent: usize) -> Result<Option<Unmerged>, FleetError> {
        let planned = &self.prepared.plan.agents[agent];
        // Every one of several attempts has a new workspace.
        if planned.name != planned.task {
            return Ok(None);
        }
        let workspace = &self.workspaces[agent];
        let metadata = workspace.metadata()?;
        let found = self.recorder.read(|store| {
            let last = recorded_loop::last_loops(store, [(workspace, &metadata)])?.pop().flatten();
            let plan = last.and_then(|last| AgentLoopPlan::parse(&last.plan));
            // A task that was completed elsewhere has no result of a fleet.
            let Some(completed_in) = plan.and_then(|plan| plan.queue) else { return Ok(None) };
            for result in results(store, &self.prepared.plan.worktree, &planned.name)? {
                let result = result?;
                if result.id() == self.id {
                    continue;
                }
                if result.changes().is_some() {
                    return Ok(result.unmerged());
                }
                if result.id().to_string() == completed_in {
                    break;
                }
            }
            Ok::<_, retake_store::Error>(None)
        });
        Ok(found?)
    }
}
