//! An agent's loop: its iterations and what was noted between them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use retake_agent::iteration::{Iteration, IterationStatus, key};
use retake_store::Store;
use retake_types::LoopId;
use serde::Serialize;

use crate::error::RequestError;
use super::LoopSummary;
use super::agent_activity::{self, Line};
use retake_agent::driver::chronicle::Entry;

/// Entries carry whole prompts and outputs, so few are in memory at once.
const PAGE: usize = 32;
/// The newest notes that are shown.
const MOST_NOTES: usize = 200;

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Agent {
    pub(crate) iterations: Vec<Step>,
    pub(crate) notes: Vec<Note>,
    /// What the agent did last, oldest first.
    pub(crate) feed: Vec<Line>,
}

/// Whether the last thing told of a loop is that it waits; it tells when it goes on.
pub(super) fn is_paused(store: &Store, id: LoopId) -> Result<bool, RequestError> {
    let last = store.last_loop_entry(id)?;
    let events = store.loop_entries(id, last.saturating_sub(1), 1)?;
    let entry = events.last().and_then(|event| serde_json::from_str(&event.body).ok());
    Ok(matches!(entry, Some(Entry::Note { text }) if text == "Paused"))
}

/// An iteration without its prompt and its output.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Step {
    pub(crate) number: u32,
    pub(crate) status: IterationStatus,
    pub(crate) started_at: Timestamp,
    pub(crate) duration_ms: Option<u64>,
    pub(crate) run_id: Option<String>,
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

/// Something that happened beside the iterations.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Note {
    pub(crate) at: Timestamp,
    pub(crate) text: String,
}

impl Step {
    fn of(iteration: &Iteration) -> Self {
        let result = iteration.result.as_ref();
        let tests = result.and_then(|result| result.test_results.as_ref());
        Self {
            number: iteration.number,
            status: iteration.status,
            started_at: iteration.started_at,
            duration_ms: iteration.duration_ms(),
            run_id: iteration.metadata.get(key::RUN_ID).cloned(),
            tests_passed: tests.map(|tests| tests.passed),
            tests_total: tests.map(|tests| tests.total),
            files_created: result.map_or(0, |result| result.files_created.len()),
            files_modified: result.map_or(0, |result| result.files_modified.len()),
            files_deleted: result.map_or(0, |result| result.files_deleted.len()),
            cost_usd: iteration.cost_usd(),
            tokens: iteration.tokens(),
            context_percent: result.and_then(|result| result.context_usage_percent),
            progress: result.and_then(|result| result.progress_detected),
            summary: result.and_then(|result| result.summary.clone()),
        }
    }
}

impl Agent {
    pub(super) fn read(store: &Store, summary: &LoopSummary) -> Result<Self, RequestError> {
        let mut steps: BTreeMap<u32, Step> = BTreeMap::new();
        let mut notes = Vec::new();
        let mut after = 0;
        loop {
            let events = store.loop_entries(summary.id, after, PAGE)?;
            let Some(last) = events.last() else { break };
            after = last.seq;
            for event in &events {
                let mut note = |text: String| notes.push(Note { at: event.at, text });
                match serde_json::from_str::<Entry>(&event.body) {
                    Ok(Entry::Iteration { iteration }) => {
                        steps.insert(iteration.number, Step::of(&iteration));
                    }
                    Ok(Entry::Attempt { number, why, .. }) => {
                        // Its number is still to be given.
                        if steps.get(&number).is_some_and(|step| !step.status.is_final()) {
                            steps.remove(&number);
                        }
                        note(format!("iteration {number} is tried again: {why}"));
                    }
                    Ok(Entry::Verified { number, passed, .. }) => {
                        let word = if passed { "passed" } else { "failed" };
                        note(format!("verification after iteration {number} {word}"));
                    }
                    Ok(Entry::Unverified { number, why, .. }) => {
                        note(format!(
                            "verification after iteration {number} is asked again: {why}"
                        ));
                    }
                    Ok(Entry::Note { text }) => note(text),
                    Ok(Entry::Verifying { .. }) => {}
                    // What a later retake tells in other words is not for this one.
                    Err(_) => {}
                }
            }
        }
        let excess = notes.len().saturating_sub(MOST_NOTES);
        notes.drain(..excess);
        let iterations: Vec<Step> = steps.into_values().collect();
        let current = iterations.last().and_then(|step| step.run_id.as_deref());
        let feed = match current.and_then(|id| id.parse().ok()) {
            Some(id) => agent_activity::recent(store, id, &summary.plan),
            None => Vec::new(),
        };
        Ok(Self { iterations, notes, feed })
    }
}
