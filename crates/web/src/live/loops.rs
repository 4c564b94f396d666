//! What happens to a loop, as it happens: its events, its runs, and what its agent does.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use retake_store::{LoopEntry, RunFilter, Store};
use retake_types::{Kind, LoopId, RunId, State};
use serde::Serialize;
use serde_json::Value;

use crate::App;
use crate::loops::agent_activity::{self, Line, Teller};
use crate::loops::{RunningLoops, LoopSummary};
use crate::error::RequestError;
use super::{ListenerGone, Listener, Heartbeat};

const LOOK: Duration = Duration::from_millis(200);
/// Events told at once; each may carry the output of an iteration.
const MOST: usize = 20;

/// What a listener has heard: events up to a number, and an agent's output up to a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoopPosition {
    seq: u64,
    run: Option<(RunId, u64)>,
}

impl LoopPosition {
    /// `SEQ`, or `SEQ.RUN.OFFSET`.
    pub(crate) fn of(text: Option<&str>) -> Result<Self, RequestError> {
        let Some(text) = text else { return Ok(Self::default()) };
        let bad =
            || RequestError::bad_request(format!("{text} is no place; write the number of an event"));
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
struct EventDocument {
    seq: u64,
    at: Timestamp,
    body: Value,
}

#[derive(Serialize)]
struct ActivityEvent {
    run: RunId,
    lines: Vec<Line>,
}

/// What one look found.
struct LoopChanges {
    summary: LoopSummary,
    events: Vec<LoopEntry>,
    /// The newest run of the loop.
    newest: Option<(RunId, State)>,
    fed: Option<(RunId, Vec<Line>, u64)>,
    teller: Option<Teller>,
}

fn read(
    store: &Store,
    app: &App,
    id: LoopId,
    heard: LoopPosition,
    mut teller: Option<Teller>,
) -> Result<LoopChanges, RequestError> {
    let events = store.loop_entries(id, heard.seq, MOST)?;
    let summary = RunningLoops::look(store)?;
    let summary = summary.summary(store, store.get_loop(id)?, app.workspaces.as_ref())?;
    let filter = RunFilter { loop_id: Some(id), ..RunFilter::default() };
    let runs = store.list(&filter, None, 1)?.runs;
    let newest = runs.first().map(|run| (run.intent.id(), run.state));
    let mut fed = None;
    if summary.kind == Kind::Agent
        && let Some((run, state)) = newest
    {
        let from = match heard.run {
            Some((known, offset)) if known == run => Some(offset),
            // A page shows what was there before; a run that begins is told from its beginning.
            Some(_) => Some(0),
            None if state == State::Running => Some(agent_activity::end_of(store, run)?),
            None => None,
        };
        if let Some(from) = from {
            let telling = teller.get_or_insert_with(|| Teller::new(&summary.plan));
            let (lines, offset) = agent_activity::more(store, run, telling, from)?;
            fed = Some((run, lines, offset));
        }
    }
    Ok(LoopChanges { summary, events, newest, fed, teller })
}

/// Tells what happens to a loop until it ends.
pub(crate) async fn follow_loop(
    app: Arc<App>,
    id: LoopId,
    mut heard: LoopPosition,
    to: Listener,
) -> Result<(), ListenerGone> {
    let mut heartbeat = Heartbeat::default();
    let mut teller = None;
    let mut told = None;
    loop {
        let (here, telling) = (app.clone(), teller.take());
        let looked = app.store.read(move |store| look(store, &here, id, heard, telling)).await;
        let seen = match looked {
            Ok(seen) => seen,
            Err(error) => {
                heartbeat.error(&to, &error).await?;
                continue;
            }
        };
        teller = seen.teller;
        let more = seen.events.len() == MOST;
        for event in seen.events {
            heartbeat.reset();
            heard.seq = event.seq;
            let body = serde_json::from_str(&event.body).unwrap_or(Value::String(event.body));
            let document = EventDocument { seq: event.seq, at: event.at, body };
            to.tell("event", Some(&heard.id()), &document).await?;
        }
        if let Some((run, lines, offset)) = seen.fed {
            heard.run = Some((run, offset));
            if !lines.is_empty() {
                heartbeat.reset();
                to.tell("feed", Some(&heard.id()), &ActivityEvent { run, lines }).await?;
            }
        }
        let now = (seen.summary.state.clone(), seen.summary.running, seen.newest);
        if told.as_ref() != Some(&now) {
            told = Some(now);
            to.tell("change", Some(&heard.id()), &seen.summary).await?;
        }
        if seen.summary.stop_reason.is_some() && !more {
            to.tell("end", None, &seen.summary).await?;
            return Ok(());
        }
        if !more {
            heartbeat.wait(&to, LOOK).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_back() {
        let run = RunId::new();
        let heard = LoopPosition { seq: 7, run: Some((run, 99)) };
        assert_eq!(LoopPosition::of(Some(&heard.id())).ok(), Some(heard));
        assert_eq!(LoopPosition::of(Some("12")).ok(), Some(LoopPosition { seq: 12, run: None }));
        for bad in ["", "x", "1.2", "1.x.3", "1..", "-1"] {
            assert!(LoopPosition::of(Some(bad)).is_err(), "{bad}");
        }
    }
}
