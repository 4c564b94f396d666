//! One merge of a fleet: onto the target branch, or onto a separate branch without a target.

use std::sync::Mutex;

use retake_runner::worker::Worker;
use retake_types::loop_record::fleet::FleetEntry;

use super::event::FleetEvent;
use super::git::FleetGit;
use super::merge::{GateVerdict, MergeJob, MergeTarget, Merged};
use super::plan::MergeEnd;
use super::run::{Conflict, Fleet, lock, stand_in};
use super::setup::FleetError;
use crate::driver;
use crate::queue::TaskAllowance;

impl Fleet<'_> {
    pub(super) fn merge(&self, worker: &mut Worker, agent: usize) -> Result<MergeEnd, FleetError> {
        let Some(work) = lock(&self.agents)[agent].work.clone() else {
            return Ok(MergeEnd::VerifyFailed);
        };
        (self.front.event)(FleetEvent::Merging { name: self.name(agent) });
        let Some(target) = &self.prepared.plan.target else {
            return self.keep(worker, agent, &work.commit);
        };
        let job = MergeJob {
            agent: agent as u32,
            name: self.name(agent),
            commit: &work.commit,
            target: MergeTarget {
                branch: target,
                stand_in: stand_in(self.id),
                update_checkout: self.prepared.plan.update_checkout,
            },
        };
        let journal =
            |entry: &FleetEntry| self.recorder.add(entry).map_err(|error| error.to_string());
        let gate_worker = Mutex::new(self.gate_worker()?);
        let mut gate = |git: &mut FleetGit<'_>, commit: &str| {
            self.gate(git, &mut lock(&gate_worker), agent, commit)
        };
        let mut git = FleetGit::new(worker, self.main);
        let merged = git.merge_into(&job, &journal, &mut gate)?;
        let mut agents = lock(&self.agents);
        let state = &mut agents[agent];
        Ok(match merged {
            Merged::Moved { branch, .. } => {
                state.branch = Some(branch);
                MergeEnd::Merged
            }
            Merged::Conflict { onto, paths, text } => {
                drop(agents);
                let paths = paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
                self.conflict(&mut git, agent, Conflict { onto, paths, text })?;
                MergeEnd::Conflict
            }
            Merged::Refused { output } => {
                state.why = Some(last_lines(&output));
                MergeEnd::VerifyFailed
            }
            Merged::Interrupted => MergeEnd::Interrupted,
            Merged::Failed { why } => {
                state.why = Some(why);
                MergeEnd::Failed
            }
        })
    }

    /// Without a target, the work gets its own branch. Of several attempts it must pass the gate in
    /// a clean tree.
    pub(super) fn keep(
        &self,
        worker: &mut Worker,
        agent: usize,
        commit: &str,
    ) -> Result<MergeEnd, FleetError> {
        let mut git = FleetGit::new(worker, self.main);
        if self.prepared.plan.best_of {
            let mut gate_worker = self.gate_worker()?;
            match self.gate(&mut git, &mut gate_worker, agent, commit) {
                Ok(GateVerdict::Passed) => {}
                Ok(GateVerdict::Interrupted) => return Ok(MergeEnd::Interrupted),
                Ok(GateVerdict::Refused(why)) | Err(why) => {
                    lock(&self.agents)[agent].why = Some(last_lines(&why));
                    return Ok(MergeEnd::VerifyFailed);
                }
            }
        }
        self.make_branch(&mut git, agent, commit)?;
        Ok(MergeEnd::Kept)
    }

    /// A branch for the work of an agent, where users find it.
    pub(super) fn make_branch(
        &self,
        git: &mut FleetGit<'_>,
        agent: usize,
        commit: &str,
    ) -> Result<(), FleetError> {
        let branch = format!("retake/{}/{}", self.name(agent), self.id.short());
        let reference = format!("refs/heads/{branch}");
        let old = git.commit(&reference)?;
        if old.as_deref() != Some(commit) {
            self.record(&FleetEntry::MovingBranch {
                agent: agent as u32,
                branch: branch.clone(),
                from: old.clone(),
                to: commit.to_owned(),
            })?;
            git.move_ref(&reference, commit, old.as_deref(), "retake: work of an agent")?;
        }
        lock(&self.agents)[agent].branch = Some(branch);
        Ok(())
    }

    pub(super) fn gate_worker(&self) -> Result<Worker, FleetError> {
        let worker = Worker::independent(self.context).map_err(FleetError::NoProcess)?;
        lock(&self.cancels).push((worker.cancel().clone(), false));
        Ok(worker)
    }

    /// Runs the gate on a commit, in a fleet's tree, confined like its agent.
    pub(super) fn gate(
        &self,
        git: &mut FleetGit<'_>,
        worker: &mut Worker,
        agent: usize,
        commit: &str,
    ) -> Result<GateVerdict, String> {
        let Some(command) = &self.prepared.plan.verify else { return Ok(GateVerdict::Passed) };
        // No agent has this name: names contain no dots.
        let tree = self.prepared.plan.directory.as_path().join("gate.tree");
        let plan = &self.prepared.plan;
        let made = {
            let _making = lock(&self.making);
            git.prepare_gate_tree((self.trees(), plan), &tree, commit)
        };
        made.map_err(|error| error.to_string())?;
        let merged = plan.target.is_some();
        (self.front.event)(FleetEvent::Verifying { name: self.name(agent), merged });
        let place = self.place(agent, &tree, true, TaskAllowance::default());
        let opened = (self.front.open)(&place)?;
        let Some((mut task, _)) = opened else { return Ok(GateVerdict::Passed) };
        let slot = self.slots.take();
        task.variables = slot.variables(self.name(agent));
        let ran = driver::run_gate(&task, command, self.id, worker);
        let ran = ran.map_err(|error| error.to_string())?;
        if ran.cancelled {
            return Ok(GateVerdict::Interrupted);
        }
        let entry = FleetEntry::Verified {
            agent: agent as u32,
            commit: commit.to_owned(),
            passed: ran.refusal.is_none(),
            run_id: Some(ran.run_id),
        };
        self.recorder.add(&entry).map_err(|error| error.to_string())?;
        Ok(ran.refusal.map_or(GateVerdict::Passed, GateVerdict::Refused))
    }

    /// Keeps a conflict until the plan has decided who resolves it.
    pub(super) fn conflict(
        &self,
        git: &mut FleetGit<'_>,
        agent: usize,
        conflict: Conflict,
    ) -> Result<(), FleetError> {
        // Keeps the other side for the agent, even if the branch changes.
        let onto = &conflict.onto;
        git.set_ref(&format!("refs/retake/fleet/{}/onto/{onto}", self.id), onto)?;
        let mut agents = lock(&self.agents);
        agents[agent].why = Some(conflict.paths.join(", "));
        agents[agent].conflict = Some(conflict);
        Ok(())
    }
}

/// The end of a gate's output.
fn last_lines(text: &str) -> String {
    const LINES: usize = 20;
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
