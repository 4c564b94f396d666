//! Stop, pause, resume and tell: the same requests as those of `retake agent`, from a page.
//!
//! Only writes the request to the loop's own mailbox.

use jiff::Timestamp;
use retake_agent::control::{ControlError, Mailbox};
use retake_agent::workspace::{Name, Workspace, WorkspaceDirectories, WorkspaceLock};
use retake_store::StoredLoop;
use retake_types::loop_record::agent::AgentLoopPlan;
use serde::{Deserialize, Serialize};

use super::{RecordedPlan, fleet};
use crate::error::RequestError;

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum LoopAction {
    /// One agent of a fleet, or all of them.
    Stop {
        #[serde(default)]
        agent: Option<String>,
    },
    Pause,
    Resume,
    Tell {
        message: String,
        #[serde(default)]
        agent: Option<String>,
    },
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct ActionResult {
    /// A sentence about what happens now.
    pub(crate) done: &'static str,
}

/// Requests to a loop that are not carried out yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PendingRequests {
    pub(crate) stop: bool,
    pub(crate) pause: bool,
}

/// The workspace of a loop, unless another one of the same name replaced it.
fn workspace(
    workspaces: Option<&WorkspaceDirectories>,
    plan: &AgentLoopPlan,
) -> Result<Workspace, RequestError> {
    let workspaces = workspaces.ok_or_else(|| {
        RequestError::conflict(
            "the workspaces of this record are not known; start `retake ui` in the project",
        )
    })?;
    let gone = |_| RequestError::conflict(format!("the workspace {} is gone", plan.workspace));
    let name =
        Name::new(&plan.workspace).map_err(|error| RequestError::conflict(error.to_string()))?;
    let workspace = workspaces.open(&name).map_err(gone)?;
    let metadata = workspace.metadata().map_err(gone)?;
    if metadata.created != plan.created {
        return Err(RequestError::conflict(format!(
            "the workspace {} is a different one now",
            plan.workspace
        )));
    }
    Ok(workspace)
}

/// Whether a loop runs in the workspace.
pub(super) fn is_workspace_locked(
    workspaces: Option<&WorkspaceDirectories>,
    plan: &AgentLoopPlan,
) -> bool {
    workspace(workspaces, plan).is_ok_and(|workspace| WorkspaceLock::holder(&workspace).is_some())
}

pub(crate) fn pending(
    workspaces: Option<&WorkspaceDirectories>,
    plan: &RecordedPlan,
) -> PendingRequests {
    let RecordedPlan::Agent(plan) = plan else { return PendingRequests::default() };
    let workspace = workspace(workspaces, plan);
    let mailbox = workspace.ok().and_then(|workspace| Mailbox::existing(&workspace));
    mailbox.map_or_else(PendingRequests::default, |mailbox| {
        let requests = mailbox.requests();
        PendingRequests { stop: requests.stop, pause: requests.pause }
    })
}

pub(crate) fn act(
    workspaces: Option<&WorkspaceDirectories>,
    record: &StoredLoop,
    action: &LoopAction,
) -> Result<ActionResult, RequestError> {
    if record.stop_reason.is_some() {
        return Err(RequestError::conflict("this loop has ended"));
    }
    let plan = match RecordedPlan::parse(record.kind, &record.plan) {
        RecordedPlan::Agent(plan) => plan,
        RecordedPlan::Fleet(plan) => return fleet::act(workspaces, record, &plan, action),
        _ => return Err(RequestError::conflict("only loops of agents can be controlled")),
    };
    let workspace = workspace(workspaces, &plan)?;
    if WorkspaceLock::holder(&workspace).is_none() {
        return Err(RequestError::conflict(format!("{} is not running", workspace.name())));
    }
    let refused = |error: ControlError| RequestError::conflict(error.to_string());
    let mailbox = Mailbox::of(&workspace).map_err(refused)?;
    let done = match action {
        LoopAction::Stop { .. } => mailbox.stop().map(|()| "it stops after this iteration"),
        LoopAction::Pause => mailbox.pause().map(|()| "it pauses after this iteration"),
        LoopAction::Resume => mailbox.resume().map(|()| "it continues"),
        LoopAction::Tell { message, .. } => {
            let now = Timestamp::now().as_nanosecond();
            mailbox.tell(message, now).map(|()| "added to the next prompt")
        }
    };
    done.map(|done| ActionResult { done }).map_err(refused)
}
