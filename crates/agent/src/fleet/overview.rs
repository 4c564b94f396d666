//! The state of each agent of a fleet, from the record: for the terminal, the page and programs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use retake_store::RecordReader;
use retake_types::LoopId;
use retake_types::loop_record::agent::Spent;
use retake_types::loop_record::fleet::{CollectedWork, FleetAgentEnd};
use serde::Serialize;

use super::record::{RecordedAgent, RecordedFleet};
use crate::driver::recorded_loop;

/// One agent of a fleet for display.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentOverview {
    pub name: String,
    pub task: String,
    /// `waiting`, `running`, `finished`, `merging`, `interrupted`, or the result of its work.
    pub state: &'static str,
    pub attempt: u32,
    pub iterations: usize,
    pub cost_usd: Option<f64>,
    pub tokens: u64,
    /// Number of files that its iterations have changed so far.
    pub changed_files: usize,
    pub commit: Option<String>,
    /// The collected work, with added and removed lines.
    pub work: Option<CollectedWork>,
    pub gate: Option<bool>,
    pub branch: Option<String>,
    pub why: Option<String>,
    /// Why its own loop ended, such as `verify_failed`.
    pub stop_reason: Option<String>,
    /// Agents that changed the same files, with these files.
    pub overlaps: Vec<AgentOverlap>,
    /// The place of its changes, while it exists.
    pub tree: Option<PathBuf>,
    /// Its own current or last loop.
    pub loop_id: Option<LoopId>,
}

#[derive(Clone, Debug, Serialize)]
pub struct AgentOverlap {
    pub agent: String,
    pub paths: Vec<String>,
}

impl RecordedFleet {
    /// The state of each agent. `running` says whether the fleet's process is alive.
    pub fn overview(&self, running: bool, store: &dyn RecordReader) -> Vec<AgentOverview> {
        // Includes interrupted loops and the running one, which no entry names.
        let id = self.record.id.to_string();
        let loops = store.as_store().and_then(|s| recorded_loop::loops_in_queue(s, &id).ok());
        let agents = 0..self.agents.len();
        agents.map(|agent| self.overview_of(agent, running, store, loops.as_deref())).collect()
    }

    fn overview_of(
        &self,
        agent: usize,
        running: bool,
        store: &dyn RecordReader,
        of_fleet: Option<&[(String, LoopId)]>,
    ) -> AgentOverview {
        let (planned, recorded) = (&self.plan.agents[agent], &self.agents[agent]);
        let own = |(name, id): &(String, LoopId)| (*name == planned.name).then_some(*id);
        let loops = match of_fleet {
            Some(of_fleet) => of_fleet.iter().filter_map(own).collect(),
            // As far as the entries name them.
            None => recorded.loops.clone(),
        };
        let mut spent = Spent::default();
        let mut iterations = 0;
        let mut changed: BTreeSet<&Path> = BTreeSet::new();
        let read: Vec<_> =
            loops.iter().filter_map(|id| recorded_loop::read_loop(store, *id).ok()).collect();
        for of_loop in &read {
            iterations += of_loop.iterations.len();
            spent.add(of_loop.spent());
            for result in of_loop.iterations.iter().filter_map(|one| one.result.as_ref()) {
                let files = [&result.files_created, &result.files_modified, &result.files_deleted];
                changed.extend(files.into_iter().flatten().map(PathBuf::as_path));
            }
        }
        let overlaps = self.overlaps.iter().filter_map(|(pair, paths)| {
            let place = pair.iter().position(|number| *number as usize == agent)?;
            let other = self.plan.agents.get(pair[1 - place] as usize)?.name.clone();
            Some(AgentOverlap { agent: other, paths: paths.clone() })
        });
        AgentOverview {
            name: planned.name.clone(),
            task: planned.task.clone(),
            state: recorded.state(running),
            attempt: recorded.attempt,
            iterations,
            cost_usd: spent.known_cost(),
            tokens: spent.tokens,
            changed_files: changed.len(),
            commit: recorded.work.as_ref().map(|work| work.commit.clone()),
            work: recorded.work.clone(),
            gate: recorded.gate,
            branch: recorded.branch.clone(),
            why: recorded.why.clone(),
            stop_reason: match &recorded.end {
                Some(FleetAgentEnd::Stopped { reason }) => Some(reason.clone()),
                _ => None,
            },
            overlaps: overlaps.collect(),
            tree: self.kept_in(agent).filter(|tree| tree.exists()),
            loop_id: loops.last().copied(),
        }
    }
}

impl RecordedAgent {
    /// The state as one word.
    pub fn state(&self, running: bool) -> &'static str {
        match self.outcome {
            Some(outcome) => outcome.as_str(),
            None if !running && (self.running || self.merging) => "interrupted",
            None if self.merging => "merging",
            None if self.collected.is_some() || self.end.is_some() => "finished",
            None if self.running => "running",
            None => "waiting",
        }
    }
}
