//! A fleet in the record: written while it runs, and read to continue or show it.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use retake_runner::context::RunContext;
use retake_store::redact::Redactor;
use retake_store::{LoopRecording, RecordReader, Store, StoredLoop};
use retake_types::loop_record::agent::Spent;
use retake_types::loop_record::fleet::{
    CollectedWork, FleetAgentEnd, FleetEntry, FleetLoopPlan, FleetOutcome,
};
use retake_types::{Kind, LoopId, Redacted};

use super::plan::{AgentPhase, FleetPlan, RestoredAgent, TreePhase};
use super::tree::TreeMark;
use super::trees::home_of;

const MOST_LOOPS: usize = 100_000;
const PAGE: usize = 1000;

/// The recorded state of one agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedAgent {
    pub attempt: u32,
    pub tree: Option<PathBuf>,
    pub mark: Option<TreeMark>,
    pub tree_removed: bool,
    /// Why its tree stays.
    pub tree_kept: Option<String>,
    /// Whether its loop has started in this attempt.
    pub running: bool,
    /// How its loop ended in this attempt.
    pub end: Option<FleetAgentEnd>,
    pub loops: Vec<LoopId>,
    /// The work collected in this attempt.
    pub collected: Option<CollectedWork>,
    /// The work collected last.
    pub work: Option<CollectedWork>,
    pub merging: bool,
    /// The branch that was about to be moved.
    pub moving: Option<String>,
    /// The gate's result for the merged tree.
    pub gate: Option<bool>,
    pub outcome: Option<FleetOutcome>,
    pub branch: Option<String>,
    pub why: Option<String>,
    pub spent: Spent,
    /// The position in the order of collected work.
    pub order: u32,
}

/// A fleet with its agents.
#[derive(Clone, Debug)]
pub struct RecordedFleet {
    pub record: StoredLoop,
    pub plan: FleetLoopPlan,
    pub agents: Vec<RecordedAgent>,
    /// Pairs of agents that changed the same files.
    pub overlaps: Vec<([u32; 2], Vec<String>)>,
    /// Whether a signal ended its last process in an orderly way; otherwise that died.
    pub interrupted: bool,
    collected: u32,
}

impl RecordedFleet {
    /// The results that make the run a failure, and how many agents have each. With several attempts at one
    /// task a single success is enough.
    pub fn failures(&self) -> Vec<(FleetOutcome, usize)> {
        let outcomes = || self.agents.iter().filter_map(|agent| agent.outcome);
        let good = |outcome| matches!(outcome, FleetOutcome::Merged | FleetOutcome::Kept);
        if self.plan.best_of && outcomes().any(good) {
            return Vec::new();
        }
        let counted = FleetOutcome::ALL.into_iter().filter(|outcome| outcome.failed());
        let counted = counted.map(|failed| (failed, outcomes().filter(|o| *o == failed).count()));
        counted.filter(|(_, count)| *count > 0).collect()
    }

    pub fn read(
        store: &dyn RecordReader,
        record: StoredLoop,
    ) -> retake_store::Result<Option<Self>> {
        let Some(plan) = FleetLoopPlan::parse(&record.plan) else { return Ok(None) };
        let agent = RecordedAgent { attempt: 1, ..RecordedAgent::default() };
        let agents = vec![agent; plan.agents.len()];
        let mut fleet =
            Self { record, plan, agents, overlaps: Vec::new(), interrupted: false, collected: 0 };
        let mut after = 0;
        loop {
            let entries = store.loop_entries(fleet.record.id, after, PAGE)?;
            let Some(last) = entries.last() else { return Ok(Some(fleet)) };
            after = last.seq;
            // Skips entries of later versions.
            entries.iter().filter_map(|e| FleetEntry::parse(&e.body)).for_each(|e| fleet.take(e));
        }
    }

    /// The directory with an agent's changes, until it is removed.
    pub fn kept_in(&self, agent: usize) -> Option<PathBuf> {
        let tree = self.agents.get(agent)?.tree.as_deref()?;
        Some(home_of(&self.plan, tree))
    }

    pub fn is_open(&self) -> bool {
        self.record.stop_reason.is_none()
    }

    pub fn spent(&self) -> Spent {
        let mut total = Spent::default();
        self.agents.iter().for_each(|agent| total.add(agent.spent));
        total
    }

    fn take(&mut self, entry: FleetEntry) {
        let number = match &entry {
            FleetEntry::MakingTree { agent, .. }
            | FleetEntry::TreeMade { agent, .. }
            | FleetEntry::Running { agent, .. }
            | FleetEntry::Ran { agent, .. }
            | FleetEntry::Collected { agent, .. }
            | FleetEntry::Merging { agent, .. }
            | FleetEntry::Verified { agent, .. }
            | FleetEntry::MovingBranch { agent, .. }
            | FleetEntry::HandedBack { agent, .. }
            | FleetEntry::Settled { agent, .. }
            | FleetEntry::RemovingTree { agent }
            | FleetEntry::TreeRemoved { agent }
            | FleetEntry::TreeKept { agent, .. } => *agent as usize,
            FleetEntry::Overlap { .. } | FleetEntry::Resumed | FleetEntry::Interrupted => 0,
        };
        self.interrupted = entry == FleetEntry::Interrupted;
        if let FleetEntry::Overlap { agents, paths } = entry {
            match self.overlaps.iter_mut().find(|(known, _)| *known == agents) {
                Some((_, known)) => *known = paths,
                None => self.overlaps.push((agents, paths)),
            }
            return;
        }
        let Some(agent) = self.agents.get_mut(number) else { return };
        match entry {
            FleetEntry::MakingTree { path, .. } => {
                agent.tree = Some(path.as_path().to_owned());
                (agent.mark, agent.tree_removed) = (None, false);
            }
            FleetEntry::TreeMade { device, inode, .. } => {
                agent.mark = Some(TreeMark { device, inode });
            }
            FleetEntry::Running { attempt, .. } => {
                (agent.attempt, agent.running) = (attempt, true);
                (agent.end, agent.collected, agent.merging) = (None, None, false);
            }
            FleetEntry::Ran { end, loop_id, spent, .. } => {
                agent.running = false;
                agent.end = Some(end);
                agent.loops.extend(loop_id);
                agent.spent.add(spent);
            }
            FleetEntry::Collected { work, .. } => {
                agent.order = self.collected;
                self.collected += 1;
                agent.collected = Some(work.clone());
                agent.work = Some(work);
            }
            FleetEntry::Merging { .. } => agent.merging = true,
            FleetEntry::Verified { passed, .. } => agent.gate = Some(passed),
            FleetEntry::HandedBack { .. } => {
                agent.attempt += 1;
                (agent.end, agent.collected, agent.merging) = (None, None, false);
            }
            FleetEntry::Settled { outcome, branch, why, .. } => {
                agent.outcome = Some(outcome);
                (agent.branch, agent.why, agent.merging) = (branch, why, false);
                agent.moving = None;
            }
            FleetEntry::TreeRemoved { .. } => agent.tree_removed = true,
            FleetEntry::TreeKept { why, .. } => agent.tree_kept = Some(why),
            FleetEntry::MovingBranch { branch, .. } => agent.moving = Some(branch),
            FleetEntry::RemovingTree { .. }
            | FleetEntry::Overlap { .. }
            | FleetEntry::Resumed
            | FleetEntry::Interrupted => {}
        }
    }

    /// The plan in the state of a dead runner. An agent whose loop had ended is collected or
    /// merged; a running one continues.
    pub(super) fn resume(&self, spent: Spent) -> FleetPlan {
        let FleetLoopPlan { rules, best_of, .. } = &self.plan;
        let mut plan = FleetPlan::new(*rules, *best_of, self.agents.len(), spent);
        plan.restore(self.agents.iter().map(|agent| {
            let phase = match (agent.outcome, &agent.collected) {
                (Some(outcome), _) => {
                    let gone = agent.tree_removed || agent.tree.is_none();
                    let tree = if gone { TreePhase::Done } else { TreePhase::There };
                    AgentPhase::Settled { outcome, tree }
                }
                (None, Some(work)) if work.changed && agent.completed() => {
                    AgentPhase::Finished(agent.order)
                }
                _ => AgentPhase::Waiting,
            };
            // Of the kept attempts only the chosen one has a branch.
            let chosen = *best_of
                && match agent.outcome {
                    Some(FleetOutcome::Merged) => true,
                    Some(FleetOutcome::Kept) => agent.branch.is_some(),
                    _ => false,
                };
            RestoredAgent { attempt: agent.attempt, phase, left: agent.has_tree(), chosen }
        }));
        plan
    }
}

impl RecordedAgent {
    /// Whether its tree was created and not removed.
    pub(super) fn has_tree(&self) -> bool {
        self.mark.is_some() && !self.tree_removed
    }

    /// Whether its task is complete.
    pub fn completed(&self) -> bool {
        match &self.end {
            Some(FleetAgentEnd::Stopped { reason }) => reason == "completed",
            Some(FleetAgentEnd::AlreadyComplete) => true,
            Some(FleetAgentEnd::NotStarted { .. }) | None => false,
        }
    }
}

/// All fleets of a worktree, newest first, without their entries.
pub fn fleets(store: &Store, worktree: &str) -> retake_store::Result<Vec<StoredLoop>> {
    let mut all = store.list_loops(Some(Kind::Agent), MOST_LOOPS)?;
    all.retain(|record| {
        FleetLoopPlan::parse(&record.plan).is_some_and(|plan| plan.worktree == worktree)
    });
    Ok(all)
}

/// Writes the record of the running fleet, from any of its threads.
pub(super) struct FleetRecorder {
    id: LoopId,
    inner: Mutex<(Store, LoopRecording, Redactor)>,
}

impl FleetRecorder {
    pub(super) fn begin(
        context: &RunContext,
        id: LoopId,
        plan: &FleetLoopPlan,
    ) -> retake_store::Result<Self> {
        let mut store = context.project.open_store(&context.notify)?;
        let redactor = Redactor::shapes();
        let plan = Redacted::json(plan, &mut redactor.clone()).expect("plain data");
        let recording = store.begin_loop_as(id, Kind::Agent, &plan)?;
        Ok(Self { id, inner: Mutex::new((store, recording, redactor)) })
    }

    /// Continues the record of a dead runner.
    pub(super) fn resume(context: &RunContext, id: LoopId) -> retake_store::Result<Self> {
        let mut store = context.project.open_store(&context.notify)?;
        let recording = store.adopt_loop(id)?;
        let recorder = Self { id, inner: Mutex::new((store, recording, Redactor::shapes())) };
        recorder.add(&FleetEntry::Resumed)?;
        Ok(recorder)
    }

    pub(super) fn id(&self) -> LoopId {
        self.id
    }

    pub(super) fn add(&self, entry: &FleetEntry) -> retake_store::Result<()> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (store, recording, redactor) = &mut *inner;
        recording.append(store, &[entry], redactor).map(drop)
    }

    /// Makes another change to the record.
    pub(super) fn write<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut inner.0)
    }

    /// Reads the record.
    pub(super) fn read<T>(&self, look: impl FnOnce(&Store) -> T) -> T {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        look(&inner.0)
    }

    pub(super) fn finish(self, reason: &str) -> retake_store::Result<()> {
        let (mut store, recording, _) =
            self.inner.into_inner().unwrap_or_else(PoisonError::into_inner);
        recording.finish(&mut store, &reason.into())
    }
}
