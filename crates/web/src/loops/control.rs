//! Stop, pause, resume and tell: what `retake agent` does with a loop, asked for from a page.
//!
//! Nothing is written but the request in the loop's own mailbox.

use jiff::Timestamp;
use retake_agent::control::Mailbox;
use retake_agent::lock::Lock;
use retake_agent::workspace::{Name, Places, Workspace};
use retake_store::{Liveness, Store, StoredLoop};
use retake_types::Kind;
use serde::{Deserialize, Serialize};

use crate::error::RequestError;
use retake_agent::driver::chronicle::Planned;

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Action {
    Stop,
    Pause,
    Resume,
    Tell { message: String },
}

/// What was done, in words.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Done {
    pub(crate) done: String,
}

/// What is asked of a loop at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PendingRequests {
    pub(crate) stop: bool,
    pub(crate) pause: bool,
}

fn workspace(workspaces: Option<&Places>, record: &StoredLoop) -> Result<Workspace, RequestError> {
    let none = || RequestError::conflict("only loops of agents can be steered");
    if record.kind != Kind::Agent {
        return Err(none());
    }
    let planned: Planned = serde_json::from_str(&record.plan).map_err(|_| none())?;
    let workspaces = workspaces.ok_or_else(|| {
        RequestError::conflict(
            "the workspaces of this record are not known; start `retake ui` in the project",
        )
    })?;
    let gone = |_| RequestError::conflict(format!("the workspace {} is gone", planned.workspace));
    let name =
        Name::new(&planned.workspace).map_err(|error| RequestError::conflict(error.to_string()))?;
    let workspace = workspaces.open(&name).map_err(gone)?;
    let metadata = workspace.metadata().map_err(gone)?;
    if metadata.created != planned.created {
        return Err(RequestError::conflict(format!(
            "the workspace {} is another one by now",
            planned.workspace
        )));
    }
    Ok(workspace)
}

/// Whether the runner of a loop lives.
pub(super) fn held(store: &Store, workspaces: Option<&Places>, record: &StoredLoop) -> bool {
    match store.loop_liveness(record.id) {
        Liveness::Alive => true,
        Liveness::Dead => false,
        // Recorded by a release whose loops had no live file.
        Liveness::Unknown => {
            workspace(workspaces, record).is_ok_and(|workspace| Lock::holder(&workspace).is_some())
        }
    }
}

/// What the loop was asked for and has not done yet.
pub(crate) fn pending(workspaces: Option<&Places>, record: &StoredLoop) -> PendingRequests {
    let requests = workspace(workspaces, record).ok().and_then(|workspace| {
        // Only looks: a mailbox that is not there yet has nothing in it.
        workspace.dir().join(".control").is_dir().then(|| Mailbox::of(&workspace).ok())?
    });
    requests.map_or_else(PendingRequests::default, |mailbox| {
        let requests = mailbox.requests();
        PendingRequests { stop: requests.stop, pause: requests.pause }
    })
}

pub(crate) fn act(
    workspaces: Option<&Places>,
    record: &StoredLoop,
    action: &Action,
) -> Result<Done, RequestError> {
    if record.stop_reason.is_some() {
        return Err(RequestError::conflict("this loop has ended"));
    }
    let workspace = workspace(workspaces, record)?;
    if Lock::holder(&workspace).is_none() {
        return Err(RequestError::conflict(format!("{} is not running", workspace.name())));
    }
    let refused = |error: retake_agent::control::ControlError| RequestError::conflict(error.to_string());
    let mailbox = Mailbox::of(&workspace).map_err(refused)?;
    let done = match action {
        Action::Stop => mailbox.stop().map(|()| "it stops after this iteration"),
        Action::Pause => mailbox.pause().map(|()| "it pauses after this iteration"),
        Action::Resume => mailbox.resume().map(|()| "it goes on"),
        Action::Tell { message } => {
            let now = Timestamp::now().as_nanosecond();
            mailbox.tell(message, now).map(|()| "it goes into the next prompt")
        }
    };
    done.map(|done| Done { done: done.to_owned() }).map_err(refused)
}
