//! Events of a loop: its entries, its runs, and the activity of its agent.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use retake_store::{LoopEntry, RunFilter};
use retake_types::{LoopId, RunId, State};
use serde::Serialize;
use serde_json::Value;

use super::{Heartbeat, Listener, ListenerGone};
use crate::app::App;
use crate::error::RequestError;
use crate::loops::agent_activity::{self, ActivityLine, ActivityReader};
use crate::loops::{LoopSummary, RecordedPlan, RunningLoops};
use crate::store_pool::Store;

/// How often the record is queried.
const INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of entries in an event; each may contain the output of an iteration.
const MAX_ENTRIES: usize = 20;

/// What a listener has received: entries up to a number, and an agent's output up to an offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EntryPosition {
    seq: u64,
    run: Option<(RunId, u64)>,
}

impl EntryPosition {
    /// `SEQ`, or `SEQ.RUN.OFFSET`.
    pub(crate) fn parse(text: Option<&str>) -> Result<Self, RequestError> {
        let Some(text) = text else { return Ok(Self::default()) };
        let bad = || {
            RequestError::bad_request(format!(
                "{text} is not a position; write the number of an event"
            ))
        };
        let mut parts = text.split('.');
        let seq = parts.next().and_then(|seq| seq.parse().ok()).ok_or_else(bad)?;
        let run = match (parts.next(), parts.next(), parts.next()) {
            (None, ..) => None,
            (Some(run), Some(offset), None) => {
                let run = run.parse().map_err(|_| bad())?;
                Some((run, offset.parse().map_err(|_| bad())?))
            }
            _ => return Err(bad()),
        };
        Ok(Self { seq, run })
    }

    fn id(&self) -> String {
        match self.run {
            Some((run, offset)) => format!("{}.{run}.{offset}", self.seq),
            None => self.seq.to_string(),
        }
    }
}

#[derive(Serialize)]
struct EntryEvent {
    seq: u64,
    at: Timestamp,
    body: Value,
}

#[derive(Serialize)]
struct ActivityEvent {
    run: RunId,
    lines: Vec<ActivityLine>,
}

/// The results of one query.
struct LoopChanges {
    summary: LoopSummary,
    entries: Vec<LoopEntry>,
    /// The newest run of the loop.
    newest: Option<(RunId, State)>,
    /// The lines of a run, and the offset after them.
    activity: Option<(RunId, Vec<ActivityLine>, u64)>,
    reader: Option<ActivityReader>,
}

fn read_changes(
    store: &Store,
    app: &App,
    id: LoopId,
    position: EntryPosition,
    mut reader: Option<ActivityReader>,
) -> Result<LoopChanges, RequestError> {
    let entries = store.loop_entries(id, position.seq, MAX_ENTRIES)?;
    let running_loops = RunningLoops::read(store)?;
    let summary = running_loops.summary(store, store.get_loop(id)?, app.workspaces.as_ref())?;
    let filter = RunFilter { loop_id: Some(id), ..RunFilter::default() };
    let runs = store.newest_summaries(&filter, 1)?;
    let newest = runs.first().map(|run| (run.intent.id(), run.state));
    let mut activity = None;
    if let RecordedPlan::Agent(plan) = &summary.plan
        && let Some((run, state)) = newest
    {
        let from = match position.run {
            Some((known, offset)) if known == run => Some(offset),
            // The page has the earlier output; a new run is sent from its beginning.
            Some(_) => Some(0),
            None if state == State::Running => Some(agent_activity::output_length(store, run)?),
            None => None,
        };
        if let Some(from) = from {
            let reader = reader.get_or_insert_with(|| ActivityReader::new(plan));
            let (lines, offset) = agent_activity::read_from(store, run, reader, from)?;
            activity = Some((run, lines, offset));
        }
    }
    Ok(LoopChanges { summary, entries, newest, activity, reader })
}

/// Sends the events of a loop until it ends.
pub(crate) async fn follow_loop(
    app: Arc<App>,
    id: LoopId,
    mut position: EntryPosition,
    to: Listener,
) -> Result<(), ListenerGone> {
    let mut heartbeat = Heartbeat::default();
    let mut reader = None;
    let mut sent = None;
    loop {
        let (shared, previous) = (app.clone(), reader.take());
        let changes =
            app.store.read(move |store| read_changes(store, &shared, id, position, previous)).await;
        let changes = match changes {
            Ok(changes) => changes,
            Err(error) => {
                heartbeat.error(&to, &error).await?;
                continue;
            }
        };
        reader = changes.reader;
        let more = changes.entries.len() == MAX_ENTRIES;
        for entry in changes.entries {
            heartbeat.reset();
            position.seq = entry.seq;
            let body = serde_json::from_str(&entry.body).unwrap_or(Value::String(entry.body));
            let document = EntryEvent { seq: entry.seq, at: entry.at, body };
            to.send_event("event", Some(&position.id()), &document).await?;
        }
        if let Some((run, lines, offset)) = changes.activity {
            position.run = Some((run, offset));
            if !lines.is_empty() {
                heartbeat.reset();
                to.send_event("feed", Some(&position.id()), &ActivityEvent { run, lines }).await?;
            }
        }
        let now = (changes.summary.state.clone(), changes.summary.running, changes.newest);
        if sent.as_ref() != Some(&now) {
            sent = Some(now);
            to.send_event("change", Some(&position.id()), &changes.summary).await?;
        }
        if changes.summary.stop_reason.is_some() && !more {
            to.send_event("end", None, &changes.summary).await?;
            return Ok(());
        }
        if !more {
            heartbeat.wait(&to, INTERVAL.max(app.store.interval())).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_reads_back() {
        let run = RunId::new();
        let position = EntryPosition { seq: 7, run: Some((run, 99)) };
        assert_eq!(EntryPosition::parse(Some(&position.id())).ok(), Some(position));
        assert_eq!(
            EntryPosition::parse(Some("12")).ok(),
            Some(EntryPosition { seq: 12, run: None })
        );
        for bad in ["", "x", "1.2", "1.x.3", "1..", "-1"] {
            assert!(EntryPosition::parse(Some(bad)).is_err(), "{bad}");
        }
    }
}
