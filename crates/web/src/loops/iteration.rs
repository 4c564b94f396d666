//! One iteration of an agent's loop: its prompt, its result, and the neighbouring iterations.

use retake_agent::adapters::AgentKind;
use retake_types::loop_record::agent::{
    AgentEntry, AgentLoopPlan, Checkpoint, CheckpointTime, Iteration,
};
use retake_types::{Kind, Run, RunId};

use crate::checkpoint_diffs::TreePair;
use crate::error::RequestError;
use crate::store_pool::Store;

/// Entries contain whole prompts and outputs, so only a few are in memory at once.
const PAGE: usize = 32;

/// An iteration, as the page of its run shows it.
pub(crate) struct IterationView {
    pub(crate) plan: AgentLoopPlan,
    /// The agent that ran.
    pub(crate) agent: AgentKind,
    /// `None` for a run that is not an iteration: a verification, or an attempt that does not
    /// count.
    pub(crate) iteration: Option<Box<Iteration>>,
    /// Passed tests, and all tests, in the previous iteration.
    pub(crate) tests_before: Option<(u64, u64)>,
    pub(crate) previous: Option<(u32, RunId)>,
    pub(crate) next: Option<(u32, RunId)>,
    /// The checkpoints that the loop made, in order.
    checkpoints: Vec<Checkpoint>,
}

impl IterationView {
    /// `None` for a run that is not of an agent with events.
    pub(crate) fn read(store: &Store, run: &Run) -> Result<Option<Self>, RequestError> {
        if run.intent.kind() != Kind::Agent {
            return Ok(None);
        }
        let record = match store.get_loop(run.intent.loop_id()) {
            Ok(record) => record,
            Err(retake_store::Error::NoLoop { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(plan) = AgentLoopPlan::parse(&record.plan) else { return Ok(None) };
        let agent = plan.agent.parse().unwrap_or_default();
        let mut view = Self {
            plan,
            agent,
            iteration: None,
            tests_before: None,
            previous: None,
            next: None,
            checkpoints: Vec::new(),
        };
        view.read_entries(store, run)?;
        Ok(view.agent.capabilities().events.then_some(view))
    }

    fn read_entries(&mut self, store: &Store, run: &Run) -> Result<(), RequestError> {
        let (loop_id, id) = (run.intent.loop_id(), run.intent.id());
        let mut after = 0;
        loop {
            let entries = store.loop_entries(loop_id, after, PAGE)?;
            let Some(last) = entries.last() else { return Ok(()) };
            after = last.seq;
            for stored in &entries {
                match AgentEntry::parse(&stored.body) {
                    Some(AgentEntry::Iteration { iteration }) => self.take(iteration, id),
                    Some(AgentEntry::Checkpoint { checkpoint }) => {
                        self.checkpoints.push(checkpoint);
                    }
                    Some(AgentEntry::Verifying {
                        run_id: Some(run), agent: Some(agent), ..
                    }) if run == id => {
                        self.agent = agent.parse().unwrap_or(self.agent);
                    }
                    _ => {}
                }
            }
        }
    }

    /// The trees of the checkpoints around the iteration, if both exist.
    pub(crate) fn trees(&self) -> Option<TreePair> {
        let number = self.iteration.as_ref()?.number;
        // The last one: an iteration that was run again has a later one.
        let after = self
            .checkpoints
            .iter()
            .rposition(|one| one.number == number && one.time == CheckpointTime::Iteration)?;
        let before = self.checkpoints[..after].last()?;
        Some(TreePair { before: before.tree.clone(), after: self.checkpoints[after].tree.clone() })
    }

    fn take(&mut self, iteration: Box<Iteration>, id: RunId) {
        let own = iteration.facts.run_id;
        if own == Some(id) {
            if let Some(agent) = &iteration.facts.agent {
                self.agent = agent.parse().unwrap_or(self.agent);
            }
            self.iteration = Some(iteration);
            return;
        }
        let known = self.iteration.as_ref().map(|known| known.number);
        match (known, own) {
            // Entries with the same number follow each other; all before the iteration's own are earlier.
            (None, own) => {
                self.previous = own.map(|own| (iteration.number, own)).or(self.previous);
                let results = iteration.result.as_ref().and_then(|r| r.test_results.as_ref());
                if let Some(tests) = results {
                    self.tests_before = Some((tests.passed, tests.total));
                }
            }
            (Some(number), Some(own)) if iteration.number > number && self.next.is_none() => {
                self.next = Some((iteration.number, own));
            }
            _ => {}
        }
    }
}
