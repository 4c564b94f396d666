//! Loops as they are shown: what each kind makes of its plan, its events and its runs.

pub(super) mod agent;
pub(super) mod crash;
pub(super) mod agent_activity;
pub(super) mod matrix;
pub(super) mod control;

use jiff::Timestamp;
use retake_store::{Liveness, RunFilter, RunStatus, Store, StoredLoop};
use retake_types::{Kind, LoopId, StopReason};
use serde::Serialize;
use serde_json::Value;

use super::App;
use super::error::RequestError;
use retake_agent::workspace::Places;

/// More runs at once than any machine has.
const MOST_RUNNING: usize = 1000;
/// The state of a loop that waits to be told to go on.
const PAUSED: &str = "paused";

/// A loop in a list.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LoopSummary {
    pub(super) id: LoopId,
    pub(super) kind: Kind,
    pub(super) plan: Value,
    pub(super) state: String,
    pub(super) stop_reason: Option<StopReason>,
    /// Someone works on it at this moment.
    pub(super) running: bool,
    pub(super) start_time: Timestamp,
    pub(super) end_time: Option<Timestamp>,
}

impl LoopSummary {
    /// What it is about, in a few words.
    pub(super) fn title(&self) -> String {
        let text = |name: &str| self.plan.get(name).and_then(Value::as_str).unwrap_or_default();
        let purpose = Some(text("purpose")).filter(|purpose| *purpose != "run").unwrap_or_default();
        let words = match self.kind {
            Kind::Agent => [text("workspace"), text("agent")],
            Kind::Matrix | Kind::Exec => [purpose, text("command").trim_end()],
            Kind::Crash => [text("command"), text("log")],
        };
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(": ")
    }

    /// Someone holds it, and waits to be told to go on.
    pub(super) fn is_paused(&self) -> bool {
        self.state == PAUSED
    }

    /// How it stands, and the class that goes with it.
    pub(super) fn status(&self) -> (&str, &'static str) {
        match (&self.stop_reason, self.running) {
            (Some(reason), _) => match reason {
                StopReason::Completed | StopReason::Clean => (reason.as_str(), "good"),
                StopReason::Failed
                | StopReason::VerifyFailed
                | StopReason::Findings
                | StopReason::CouldNotTest => (reason.as_str(), "bad"),
                _ => (reason.as_str(), "open"),
            },
            (None, true) if self.is_paused() => (PAUSED, "open"),
            (None, true) => ("running", "live"),
            (None, false) => ("its runner is gone", "bad"),
        }
    }
}

/// The loops of which a run is under way.
#[derive(Clone, Debug, Default)]
pub(super) struct RunningLoops(Vec<LoopId>);

impl RunningLoops {
    pub(super) fn read(store: &Store) -> Result<Self, RequestError> {
        let filter = RunFilter { status: Some(RunStatus::Running), ..RunFilter::default() };
        let runs = store.list(&filter, None, MOST_RUNNING)?.runs;
        Ok(Self(runs.iter().map(|run| run.intent.loop_id()).collect()))
    }

    pub(super) fn summary(
        &self,
        store: &Store,
        record: StoredLoop,
        workspaces: Option<&Places>,
    ) -> Result<LoopSummary, RequestError> {
        let plan = serde_json::from_str(&record.plan).unwrap_or(Value::Null);
        // Between two runs a loop has none, but whoever works on it holds something.
        let held = || match record.kind {
            Kind::Agent => control::held(store, workspaces, &record),
            Kind::Matrix => matrix::held(store, &record),
            // Its checks are no runs.
            Kind::Crash => store.loop_liveness(record.id) != Liveness::Dead,
            Kind::Exec => false,
        };
        let running_loops = self.0.contains(&record.id);
        let running = record.stop_reason.is_none() && (running_loops || held());
        let paused = running
            && !running_loops
            && record.kind == Kind::Agent
            && agent::is_paused(store, record.id)?;
        Ok(LoopSummary {
            id: record.id,
            kind: record.kind,
            plan,
            state: if paused { PAUSED.to_owned() } else { record.state.to_string() },
            stop_reason: record.stop_reason,
            running,
            start_time: record.start_time,
            end_time: record.end_time,
        })
    }
}

/// A loop with what its kind knows of it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LoopView {
    #[serde(flatten)]
    pub(super) summary: LoopSummary,
    /// The number of its last event.
    pub(super) last_event: u64,
    #[serde(flatten)]
    pub(super) detail: LoopDetail,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum LoopDetail {
    Agent(agent::Agent),
    Matrix(Box<matrix::Matrix>),
    Crash(crash::Crash),
    Exec {},
}

/// What part of a loop is asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct LoopQuery {
    pub(super) metric: Option<String>,
    pub(super) after: u64,
}

impl LoopView {
    pub(super) fn read(
        store: &Store,
        id: LoopId,
        workspaces: Option<&Places>,
        query: &LoopQuery,
    ) -> Result<Self, RequestError> {
        let record = store.get_loop(id)?;
        let last_event = store.last_loop_entry(id)?;
        let summary = RunningLoops::look(store)?.summary(store, record, workspaces)?;
        let detail = match summary.kind {
            Kind::Agent => LoopDetail::Agent(agent::Agent::look(store, &summary)?),
            Kind::Matrix => LoopDetail::Matrix(Box::new(matrix::Matrix::look(store, &summary, asked)?)),
            Kind::Crash => LoopDetail::Crash(crash::Crash::look(store, &summary, asked)?),
            Kind::Exec => LoopDetail::Exec {},
        };
        Ok(Self { summary, last_event, detail })
    }
}

impl App {
    pub(super) async fn loop_view(&self, id: LoopId, query: LoopQuery) -> Result<LoopView, RequestError> {
        let workspaces = self.workspaces.clone();
        self.store.read(move |store| LoopView::look(store, id, workspaces.as_ref(), &query)).await
    }
}
