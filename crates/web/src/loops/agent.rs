//! An agent's loop: its iterations, and the events between them.

use jiff::Timestamp;
use retake_agent::display;
use retake_agent::driver::iterations_backwards::{IterationsBackwards, PastEvent};
use retake_agent::driver::recorded_loop;
use retake_agent::history::LoopTotals;
use retake_types::loop_record::agent::{AgentEntry, Iteration, IterationStatus};
use retake_types::{LoopId, RunId};
use serde::Serialize;

use super::agent_activity::{self, ActivityLine};
use super::{LoopSummary, RecordedPlan};
use crate::error::RequestError;
use crate::store_pool::Store;

/// The number of notes shown with a page of iterations, the newest ones.
const MAX_NOTES: usize = 200;

/// The requested iterations of a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IterationWindow {
    /// Iterations before this number; the last ones for `None`.
    pub(crate) before: Option<u32>,
    /// Maximum number; all for `None`.
    pub(crate) limit: Option<usize>,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgentDetail {
    /// Of the window, oldest first.
    pub(crate) iterations: Vec<IterationSummary>,
    /// The value of `before` for the previous page; `None` if these are the first iterations.
    pub(crate) next: Option<u32>,
    /// Of all iterations.
    pub(crate) totals: LoopTotals,
    /// Events between the iterations of the window.
    pub(crate) notes: Vec<Note>,
    /// The agent's last activity, oldest first.
    #[serde(rename = "feed")]
    pub(crate) activity: Vec<ActivityLine>,
}

/// Whether a loop is paused, according to its last entry.
pub(super) fn is_paused(store: &Store, id: LoopId) -> Result<bool, RequestError> {
    let last = store.last_loop_entry(id)?;
    let entries = store.loop_entries(id, last.saturating_sub(1), 1)?;
    let entry = entries.last().and_then(|entry| AgentEntry::parse(&entry.body));
    Ok(matches!(entry, Some(AgentEntry::Paused)))
}

/// An iteration without its prompt and its output.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IterationSummary {
    pub(crate) number: u32,
    pub(crate) status: IterationStatus,
    pub(crate) started_at: Timestamp,
    pub(crate) duration_ms: Option<u64>,
    pub(crate) run_id: Option<RunId>,
    pub(crate) tests_passed: Option<u64>,
    pub(crate) tests_total: Option<u64>,
    pub(crate) files_created: usize,
    pub(crate) files_modified: usize,
    pub(crate) files_deleted: usize,
    pub(crate) cost_usd: Option<f64>,
    pub(crate) tokens: Option<u64>,
    pub(crate) context_percent: Option<u8>,
    pub(crate) progress: Option<bool>,
    pub(crate) summary: Option<String>,
}

/// An event besides the iterations, as a sentence.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Note {
    pub(crate) at: Timestamp,
    pub(crate) text: String,
}

impl IterationSummary {
    fn new(iteration: &Iteration) -> Self {
        let result = iteration.result.as_ref();
        let tests = result.and_then(|result| result.test_results.as_ref());
        Self {
            number: iteration.number,
            status: iteration.status,
            started_at: iteration.started_at,
            duration_ms: iteration.duration_ms(),
            run_id: iteration.facts.run_id,
            tests_passed: tests.map(|tests| tests.passed),
            tests_total: tests.map(|tests| tests.total),
            files_created: result.map_or(0, |result| result.files_created.len()),
            files_modified: result.map_or(0, |result| result.files_modified.len()),
            files_deleted: result.map_or(0, |result| result.files_deleted.len()),
            cost_usd: iteration.facts.cost_usd,
            tokens: iteration.facts.tokens,
            context_percent: result.and_then(|result| result.context_usage_percent),
            progress: result.and_then(|result| result.progress_detected),
            summary: result.and_then(|result| result.summary.clone()),
        }
    }
}

impl AgentDetail {
    pub(super) fn read(
        store: &Store,
        summary: &LoopSummary,
        window: IterationWindow,
    ) -> Result<Self, RequestError> {
        let most = window.limit.unwrap_or(usize::MAX);
        let (mut iterations, mut notes, mut next) = (Vec::new(), Vec::new(), None);
        let mut past = match window.before {
            Some(number) => {
                IterationsBackwards::up_to(store, summary.id, number.saturating_sub(1))?
            }
            None => IterationsBackwards::new(store, summary.id)?,
        };
        while let Some(event) = past.next_event()? {
            match event {
                PastEvent::Iteration(_) if iterations.len() == most => {
                    next = iterations.last().map(|last: &IterationSummary| last.number);
                    break;
                }
                PastEvent::Iteration(iteration) => {
                    iterations.push(IterationSummary::new(&iteration));
                }
                PastEvent::Other(at, entry) if notes.len() < MAX_NOTES => {
                    notes.extend(note(&entry).map(|text| Note { at, text }));
                }
                PastEvent::Other(..) => {}
            }
        }
        iterations.reverse();
        notes.reverse();
        let totals = recorded_loop::totals(store, summary.id)?;
        let last = iterations.last().filter(|_| window.before.is_none());
        let current = last.and_then(|iteration| iteration.run_id);
        let activity = match (&summary.plan, current) {
            (RecordedPlan::Agent(plan), Some(id)) => agent_activity::recent(store, id, plan),
            _ => Vec::new(),
        };
        Ok(Self { iterations, next, totals, notes, activity })
    }
}

/// An entry other than an iteration, as a sentence.
fn note(entry: &AgentEntry) -> Option<String> {
    Some(match entry {
        AgentEntry::Attempt { number, why, .. } => {
            format!("retrying iteration {number}: {why}")
        }
        AgentEntry::Verified { number, passed, .. } => {
            let word = if *passed { "passed" } else { "failed" };
            format!("verification after iteration {number} {word}")
        }
        AgentEntry::Unverified { number, why, .. } => {
            format!("retrying verification after iteration {number}: {why}")
        }
        AgentEntry::Iteration { .. } | AgentEntry::Verifying { .. } => return None,
        other => return display::note(other),
    })
}
