//! Several agents at once: the state of each, requests to them, and what they changed.

use std::sync::Arc;

use jiff::Timestamp;
use retake_agent::control::{ControlError, Mailbox};
use retake_agent::fleet::{self, AgentOverview, Applied, FleetError, FleetState, RecordedFleet};
use retake_agent::workspace::{Workspace, WorkspaceDirectories, WorkspaceLock};
use retake_engine::Launch;
use retake_runner::config::Config;
use retake_runner::context::RunContext;
use retake_runner::worker::Worker;
use retake_store::StoredLoop;
use retake_types::loop_record::fleet::FleetLoopPlan;
use retake_types::{LoopId, Outcome, RefusalReason};
use serde::Serialize;

use super::control::{ActionResult, LoopAction};
use crate::app::App;
use crate::checkpoint_diffs::{CheckpointAccess, TreeDiff};
use crate::error::RequestError;
use crate::store_pool::Store;

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FleetDetail {
    pub(crate) base: String,
    pub(crate) target: Option<String>,
    pub(crate) agents: Vec<AgentOverview>,
}

impl FleetDetail {
    pub(super) fn read(store: &Store, id: LoopId, running: bool) -> Result<Self, RequestError> {
        let fleet = recorded(store, id)?;
        let agents = fleet.overview(running, store);
        Ok(Self { base: fleet.plan.base, target: fleet.plan.target, agents })
    }
}

/// The failed results of the agents, counted: `1 conflict, 2 agent_failed`.
pub(super) fn failures(store: &Store, record: StoredLoop) -> Result<Option<String>, RequestError> {
    let Some(fleet) = RecordedFleet::read(store, record)? else { return Ok(None) };
    let counted = fleet.failures().into_iter();
    let words: Vec<String> =
        counted.map(|(outcome, count)| format!("{count} {}", outcome.as_str())).collect();
    Ok((!words.is_empty()).then(|| words.join(", ")))
}

fn recorded(store: &Store, id: LoopId) -> Result<RecordedFleet, RequestError> {
    let fleet = RecordedFleet::read(store, store.get_loop(id)?)?;
    fleet.ok_or_else(|| RequestError::not_found("this loop is not one of several agents"))
}

/// The title of its page.
pub(super) fn title(plan: &FleetLoopPlan) -> String {
    let names: Vec<&str> = plan.agents.iter().map(|agent| agent.name.as_str()).collect();
    names.join(", ")
}

/// Sends a request to one agent or to all.
pub(super) fn act(
    workspaces: Option<&WorkspaceDirectories>,
    record: &StoredLoop,
    plan: &FleetLoopPlan,
    action: &LoopAction,
) -> Result<ActionResult, RequestError> {
    let workspaces = workspaces.ok_or_else(|| {
        RequestError::conflict(
            "the workspaces of this record are not known; start `retake ui` in the project",
        )
    })?;
    let state = FleetState::of(workspaces);
    if record.stop_reason.is_some() || state.holder().is_none() {
        return Err(RequestError::conflict("these agents are not running"));
    }
    let refused = |error: ControlError| RequestError::conflict(error.to_string());
    let running = |name: &str| -> Result<Workspace, RequestError> {
        let agent = plan.agents.iter().find(|agent| agent.name == name);
        let agent = agent.ok_or_else(|| RequestError::not_found(format!("no agent {name}")))?;
        let workspace = fleet::existing_workspace_of(agent, plan.directory.as_path(), workspaces);
        let workspace = workspace.map_err(|error| RequestError::conflict(error.to_string()))?;
        match WorkspaceLock::holder(&workspace) {
            Some(_) => Ok(workspace),
            None => Err(RequestError::conflict(format!("{name} is not running"))),
        }
    };
    let done = match action {
        LoopAction::Stop { agent: Some(name) } => {
            Mailbox::of(&running(name)?).and_then(|mailbox| mailbox.stop()).map_err(refused)?;
            "it stops after this iteration"
        }
        LoopAction::Stop { agent: None } => {
            let asked = state.request_stop();
            asked.map_err(|error| RequestError::conflict(error.to_string()))?;
            "all agents stop after their iterations"
        }
        LoopAction::Tell { agent: Some(name), message } => {
            let mailbox = Mailbox::of(&running(name)?).map_err(refused)?;
            mailbox.tell(message, Timestamp::now().as_nanosecond()).map_err(refused)?;
            "added to its next prompt"
        }
        LoopAction::Tell { agent: None, .. } => {
            return Err(RequestError::bad_request("name the agent the message is for"));
        }
        LoopAction::Pause | LoopAction::Resume => {
            return Err(RequestError::conflict("one agent of several cannot be paused"));
        }
    };
    Ok(ActionResult { done })
}

/// The fleet, and the position of an agent in it.
struct FleetAgentPlace {
    fleet: RecordedFleet,
    agent: usize,
}

impl App {
    async fn fleet_agent(&self, id: LoopId, name: String) -> Result<FleetAgentPlace, RequestError> {
        let look = move |store: &Store| {
            let fleet = recorded(store, id)?;
            let agent = fleet.plan.agents.iter().position(|agent| agent.name == name);
            let agent = agent.ok_or_else(|| RequestError::not_found(format!("no agent {name}")))?;
            Ok(FleetAgentPlace { fleet, agent })
        };
        self.store.read(look).await
    }

    fn project_access(&self) -> Result<Arc<CheckpointAccess>, RequestError> {
        let diffs = self.checkpoint_diffs.as_ref();
        let missing = || RequestError::conflict("there is no project here");
        diffs.map(|diffs| diffs.access()).ok_or_else(missing)
    }

    /// What an agent of a fleet has changed; the inner error is shown on the page.
    pub(crate) async fn fleet_diff(
        &self,
        id: LoopId,
        name: String,
    ) -> Result<Result<Arc<TreeDiff>, String>, RequestError> {
        let (place, access) = (self.fleet_agent(id, name).await?, self.project_access()?);
        let asked = tokio::task::spawn_blocking(move || diff(&access, &place)).await;
        Ok(asked.map_err(|_| RequestError::internal("git could not be run"))?.map(Arc::new))
    }

    /// Merges the work of an agent into the branch that is checked out. Only if the page may run commands.
    pub(crate) async fn fleet_apply(
        &self,
        id: LoopId,
        name: String,
    ) -> Result<ActionResult, RequestError> {
        if self.rerun.is_none() {
            return Err(RequestError::forbidden(
                "this page is read-only; start it with `retake ui --allow-run`, or run \
                 `retake agent fleet apply`",
            ));
        }
        let (place, access) = (self.fleet_agent(id, name).await?, self.project_access()?);
        let asked = tokio::task::spawn_blocking(move || apply(&access, &place)).await;
        let applied = asked.map_err(|_| RequestError::internal("git could not be run"))?;
        let done = match applied.map_err(RequestError::conflict)? {
            Applied::Done { .. } => "merged into the branch that is checked out",
            Applied::AlreadyThere { .. } => "it is already in the branch",
            Applied::Conflict { paths } => {
                let paths = paths.join(", ");
                return Err(RequestError::conflict(format!(
                    "it conflicts in {paths}; nothing was changed"
                )));
            }
            Applied::Refused { why } => {
                return Err(RequestError::conflict(format!("{why}; nothing was changed")));
            }
            Applied::NothingCollected => {
                return Err(RequestError::conflict("it has no result yet"));
            }
        };
        Ok(ActionResult { done })
    }
}

fn context(access: &CheckpointAccess) -> Result<(Arc<RunContext>, &std::path::Path), String> {
    let root = access.project.root.as_deref().ok_or("there is no project here")?;
    let config = Config::load(Some(root)).map_err(|error| error.to_string())?;
    let context = RunContext::new(&access.project, &config, access.notify.clone(), access.on_open);
    Ok((context, root))
}

fn diff(access: &CheckpointAccess, place: &FleetAgentPlace) -> Result<TreeDiff, String> {
    let (context, root) = context(access)?;
    let FleetAgentPlace { fleet, agent } = place;
    let bytes = match fleet.needs_namespace(*agent) {
        // A process with several threads cannot enter the mount namespace with the clone.
        true => diff_by_command(&fleet.plan.agents[*agent].name, root, &context)?,
        false => {
            let places = (root, access.scratch.as_path());
            let diff = fleet::diff(fleet, *agent, places, false, (&context, None));
            diff.map_err(|error: FleetError| error.to_string())?.ok_or("it has not started")?
        }
    };
    Ok(TreeDiff::of(bytes))
}

/// The output of `retake agent fleet diff`.
fn diff_by_command(
    name: &str,
    root: &std::path::Path,
    context: &Arc<RunContext>,
) -> Result<Vec<u8>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let words = ["agent", "fleet", "diff", name].map(Into::into);
    let mut launch = Launch::new([vec![program.into_os_string()], words.into()].concat());
    launch.cwd = root.to_owned();
    let mut worker = Worker::independent(context)
        .map_err(|error| format!("could not start a process: {error}"))?;
    let ran = worker.run_helper(launch);
    drop(worker.end());
    match ran.map_err(|reasons| RefusalReason::listed(&reasons))? {
        (Outcome::Exited(0), [stdout, _]) => Ok(stdout),
        (_, [_, stderr]) => Err(String::from_utf8_lossy(&stderr).trim().to_owned()),
    }
}

fn apply(access: &CheckpointAccess, place: &FleetAgentPlace) -> Result<Applied, String> {
    let (context, root) = context(access)?;
    let FleetAgentPlace { fleet, agent } = place;
    fleet::apply(fleet, *agent, root, &context).map_err(|error| error.to_string())
}
