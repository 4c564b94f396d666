//! Loops for display: each kind's plan, entries and runs.

pub(crate) mod agent;
pub(crate) mod agent_activity;
pub(crate) mod control;
pub(crate) mod crash;
pub(crate) mod fleet;
pub(crate) mod iteration;
pub(crate) mod matrix;
pub(crate) mod transcript;

use jiff::Timestamp;
use retake_agent::workspace::WorkspaceDirectories;
use retake_store::{Liveness, RunFilter, RunStatus, StoredLoop};
use retake_types::loop_record::agent::AgentLoopPlan;
use retake_types::loop_record::crash::CrashPlan;
use retake_types::loop_record::fleet::FleetLoopPlan;
use retake_types::loop_record::matrix::{MatrixLoopPlan, MatrixPurpose};
use retake_types::{Kind, LoopId, LoopState, StopReason};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::app::App;
use crate::error::RequestError;
use crate::store_pool::Store;

/// More simultaneous runs than any machine has.
const MAX_RUNNING: usize = 1000;

/// The plan of a loop, by its kind.
#[derive(Clone, Debug)]
pub(crate) enum RecordedPlan {
    Agent(AgentLoopPlan),
    /// Several agents at once.
    Fleet(Box<FleetLoopPlan>),
    Matrix(Box<MatrixLoopPlan>),
    Crash(Box<CrashPlan>),
    /// A kind without a plan, or a plan written by a later release.
    Unknown,
}

impl RecordedPlan {
    pub(crate) fn parse(kind: Kind, plan: &str) -> Self {
        let parsed = match kind {
            Kind::Agent => serde_json::from_str(plan)
                .map(Self::Agent)
                .or_else(|_| serde_json::from_str(plan).map(Self::Fleet)),
            Kind::Matrix => serde_json::from_str(plan).map(Self::Matrix),
            Kind::Crash => serde_json::from_str(plan).map(Self::Crash),
            Kind::Exec => return Self::Unknown,
        };
        parsed.unwrap_or(Self::Unknown)
    }

    /// What the loop covers: the values of the axes of a matrix.
    pub(crate) fn extent(&self) -> String {
        let Self::Matrix(plan) = self else { return String::new() };
        let axes = plan.axes.values().map(|values| match values.len() {
            0..=4 => values.join(", "),
            many => format!("{}, …, {} ({many})", values[0], values[many - 1]),
        });
        axes.collect::<Vec<_>>().join(" × ")
    }

    /// A short title of the loop.
    pub(crate) fn title(&self) -> String {
        let words = match self {
            Self::Agent(plan) => [plan.workspace.clone(), plan.agent.clone()],
            Self::Fleet(plan) => [fleet::title(plan), String::new()],
            Self::Matrix(plan) => {
                let purpose = match &plan.purpose {
                    MatrixPurpose::Run => String::new(),
                    MatrixPurpose::RunUntilSure { margin } => {
                        format!("run --until-sure {}%", (margin * 1e6).round() / 1e4)
                    }
                    MatrixPurpose::Bisect { axis } => format!("bisect {axis}"),
                };
                [purpose, plan.command.trim_end().to_owned()]
            }
            Self::Crash(plan) => {
                [plan.command.clone().unwrap_or_default(), plan.log.clone().unwrap_or_default()]
            }
            Self::Unknown => Default::default(),
        };
        let words: Vec<String> = words.into_iter().filter(|word| !word.is_empty()).collect();
        words.join(": ")
    }
}

/// The current state of a loop. The record says `running` for a paused loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CurrentState {
    Recorded(LoopState),
    Paused,
}

impl Serialize for CurrentState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Recorded(state) => state.serialize(serializer),
            Self::Paused => serializer.serialize_str("paused"),
        }
    }
}

/// The status of a loop, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LoopStatus {
    Running,
    Paused,
    Ended(StopReason),
    /// Agents whose work failed, counted: `1 conflict`.
    AgentsFailed(String),
    RunnerDied,
}

/// A loop in a list.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LoopSummary {
    pub(crate) id: LoopId,
    pub(crate) kind: Kind,
    /// As it was recorded.
    #[serde(rename = "plan")]
    recorded_plan: Value,
    #[serde(skip)]
    pub(crate) plan: RecordedPlan,
    pub(crate) state: CurrentState,
    pub(crate) stop_reason: Option<StopReason>,
    /// The failures of several agents that ran at once.
    #[serde(skip)]
    pub(crate) failures: Option<String>,
    /// Its runner is alive.
    pub(crate) running: bool,
    pub(crate) start_time: Timestamp,
    pub(crate) end_time: Option<Timestamp>,
}

impl LoopSummary {
    pub(crate) fn title(&self) -> String {
        self.plan.title()
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.state == CurrentState::Paused
    }

    pub(crate) fn status(&self) -> LoopStatus {
        match &self.stop_reason {
            Some(reason) => match &self.failures {
                Some(failures) => LoopStatus::AgentsFailed(failures.clone()),
                None => LoopStatus::Ended(reason.clone()),
            },
            None if !self.running => LoopStatus::RunnerDied,
            None if self.is_paused() => LoopStatus::Paused,
            None => LoopStatus::Running,
        }
    }
}

/// The loops that have a run in progress.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunningLoops(Vec<LoopId>);

impl RunningLoops {
    pub(crate) fn read(store: &Store) -> Result<Self, RequestError> {
        let filter = RunFilter { status: Some(RunStatus::Running), ..RunFilter::default() };
        let runs = store.newest_summaries(&filter, MAX_RUNNING)?;
        Ok(Self(runs.iter().map(|run| run.intent.loop_id()).collect()))
    }

    pub(crate) fn summary(
        &self,
        store: &Store,
        record: StoredLoop,
        workspaces: Option<&WorkspaceDirectories>,
    ) -> Result<LoopSummary, RequestError> {
        let plan = RecordedPlan::parse(record.kind, &record.plan);
        let has_run = self.0.contains(&record.id);
        // Between two runs only its runner shows that a loop is running.
        let running = record.stop_reason.is_none()
            && (has_run || is_alive(store, &record, &plan, workspaces));
        let paused = running
            && !has_run
            && record.kind == Kind::Agent
            && agent::is_paused(store, record.id)?;
        let failures = match plan {
            RecordedPlan::Fleet(_) if record.stop_reason.is_some() => {
                fleet::failures(store, record.clone())?
            }
            _ => None,
        };
        Ok(LoopSummary {
            failures,
            id: record.id,
            kind: record.kind,
            recorded_plan: serde_json::from_str(&record.plan).unwrap_or(Value::Null),
            plan,
            state: match paused {
                true => CurrentState::Paused,
                false => CurrentState::Recorded(record.state),
            },
            stop_reason: record.stop_reason,
            running,
            start_time: record.start_time,
            end_time: record.end_time,
        })
    }
}

/// Whether the runner of a loop is alive.
fn is_alive(
    store: &Store,
    record: &StoredLoop,
    plan: &RecordedPlan,
    workspaces: Option<&WorkspaceDirectories>,
) -> bool {
    match store.loop_liveness(record.id) {
        Liveness::Alive => true,
        Liveness::Dead => false,
        // Recorded by a release whose loops had no live file.
        Liveness::Unknown => match plan {
            RecordedPlan::Agent(plan) => control::is_workspace_locked(workspaces, plan),
            RecordedPlan::Matrix(plan) => matrix::is_locked(plan),
            // Its checks are not runs, so there is no other indication.
            RecordedPlan::Crash(_) => true,
            // Every release that records fleets gives them a live file.
            RecordedPlan::Fleet(_) => false,
            RecordedPlan::Unknown => record.kind == Kind::Crash,
        },
    }
}

/// A loop with the details of its kind.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LoopView {
    #[serde(flatten)]
    pub(crate) summary: LoopSummary,
    /// The number of its last entry.
    pub(crate) last_event: u64,
    #[serde(flatten)]
    pub(crate) detail: LoopDetail,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum LoopDetail {
    Agent(agent::AgentDetail),
    Fleet(fleet::FleetDetail),
    Matrix(Box<matrix::MatrixDetail>),
    Crash(crash::CrashDetail),
    Exec {},
}

/// Which part of a loop is requested.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoopQuery {
    pub(crate) metric: Option<String>,
    /// The timeline begins after this entry.
    pub(crate) after: u64,
    /// Of an agent's loop.
    pub(crate) iterations: agent::IterationWindow,
}

impl LoopView {
    fn read(
        store: &Store,
        id: LoopId,
        workspaces: Option<&WorkspaceDirectories>,
        query: &LoopQuery,
    ) -> Result<Self, RequestError> {
        let record = store.get_loop(id)?;
        let last_event = store.last_loop_entry(id)?;
        let summary = RunningLoops::read(store)?.summary(store, record, workspaces)?;
        let detail = match summary.kind {
            Kind::Agent if matches!(summary.plan, RecordedPlan::Fleet(_)) => {
                let running = summary.running;
                LoopDetail::Fleet(fleet::FleetDetail::read(store, id, running)?)
            }
            Kind::Agent => {
                LoopDetail::Agent(agent::AgentDetail::read(store, &summary, query.iterations)?)
            }
            Kind::Matrix => {
                LoopDetail::Matrix(Box::new(matrix::MatrixDetail::read(store, &summary, query)?))
            }
            Kind::Crash => LoopDetail::Crash(crash::CrashDetail::read(store, &summary, query)?),
            Kind::Exec => LoopDetail::Exec {},
        };
        Ok(Self { summary, last_event, detail })
    }
}

impl App {
    pub(crate) async fn loop_view(
        &self,
        id: LoopId,
        query: LoopQuery,
    ) -> Result<LoopView, RequestError> {
        let workspaces = self.workspaces.clone();
        self.store.read(move |store| LoopView::read(store, id, workspaces.as_ref(), &query)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn title(kind: Kind, plan: &Value) -> String {
        RecordedPlan::parse(kind, &plan.to_string()).title()
    }

    #[test]
    fn a_title_says_what_a_loop_is_about_whichever_release_recorded_it() {
        let matrix = |purpose: Value| {
            title(Kind::Matrix, &serde_json::json!({"purpose": purpose, "command": "make bench\n"}))
        };
        assert_eq!(matrix("run".into()), "make bench");
        assert_eq!(matrix("run --until-sure 7%".into()), "run --until-sure 7%: make bench");
        assert_eq!(matrix("bisect code".into()), "bisect code: make bench");
        let typed = serde_json::to_value(MatrixPurpose::Bisect { axis: "code".into() }).unwrap();
        assert_eq!(matrix(typed), "bisect code: make bench");
        let agent = serde_json::json!({"workspace": "w", "created": "2026-01-01T00:00:00Z",
            "mode": "loop", "agent": "claude", "maxIterations": 5});
        assert_eq!(title(Kind::Agent, &agent), "w: claude");
        let fleet = serde_json::json!({"agents": [{"name": "a", "task": "a"}, {"name": "b", "task": "b"}],
            "base": "0", "rules": {}, "directory": "/d"});
        assert_eq!(title(Kind::Agent, &fleet), "a, b");
        assert_eq!(title(Kind::Crash, &serde_json::json!({"later": 1})), "");
        assert_eq!(title(Kind::Exec, &Value::Null), "");
    }

    #[test]
    fn a_paused_loop_is_named_so_in_the_api() {
        let json = |state: CurrentState| serde_json::to_string(&state).unwrap();
        assert_eq!(json(CurrentState::Paused), "\"paused\"");
        assert_eq!(json(CurrentState::Recorded(LoopState::Running)), "\"running\"");
    }
}
