//! An interactive session of a user with the agent, in which the instructions are written or
//! changed. Its task is in a file of the workspace during the session.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use retake_engine::KeeperSession;
use retake_runner::context::RunContext;
use retake_runner::prepare::PreparedRun;
use retake_runner::run::{Carry, FinishedRun, OutputUse};
use retake_runner::worker::{EndedWorker, Worker};
use retake_types::request::{CommandRequest, LoopPosition, StdinSource};
use retake_types::{Kind as LoopKind, LoopId, RefusalReason, RunRequest};

use crate::adapters;
use crate::files;
use crate::notify::{Notification, Sender};
use crate::prompt::{Facts, PromptError, Purpose, Templates};
use crate::settings::Settings;
use crate::workspace::{Metadata, Workspace, WorkspaceError, WorkspaceLock, WorkspaceLockError};

use super::event::Unrecorded;
use super::task_sandbox::TaskSandbox;

/// The task of the session.
pub struct InteractiveTask<'a> {
    pub root: &'a Path,
    pub workspace: &'a Workspace,
    pub metadata: &'a Metadata,
    pub settings: &'a Settings,
    pub purpose: Purpose,
    pub sandbox: TaskSandbox,
    /// Give the agent its own terminal, so that the user's screen is not recorded as output.
    pub pty: bool,
}

/// A finished session.
pub struct FinishedInteractive {
    pub finished: FinishedRun,
    /// The agent's program.
    pub program: String,
    pub worker: EndedWorker,
}

#[derive(Debug, thiserror::Error)]
pub enum InteractiveError {
    #[error("a custom agent needs agent.command")]
    NoCommand,
    #[error(transparent)]
    Prompt(#[from] PromptError),
    #[error("cannot write {}: {error}", .path.display())]
    PromptFile { path: PathBuf, error: io::Error },
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Refused(Vec<RefusalReason>),
    #[error("could not start a process: {0}")]
    NoProcess(io::Error),
    #[error(transparent)]
    Lock(#[from] WorkspaceLockError),
    #[error(transparent)]
    Unrecorded(#[from] Unrecorded),
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
}

/// Runs the session to its end and counts it in the workspace.
pub fn run(
    task: &InteractiveTask<'_>,
    context: &Arc<RunContext>,
) -> Result<FinishedInteractive, InteractiveError> {
    let InteractiveTask { root, workspace, metadata, settings, purpose, ref sandbox, pty } = *task;
    let templates = Templates::new(Some(&root.join(&settings.directories.prompts)));
    let facts = Facts::new(root, workspace.dir(), metadata.mode);
    let prompt = templates.render(purpose, &facts)?;
    let file = workspace.dir().join(".prompt.md");
    files::replace(&file, prompt.as_bytes())
        .map_err(|error| InteractiveError::PromptFile { path: file.clone(), error })?;
    let agent = &settings.agent;
    let argv = adapters::interactive(
        agent.kind,
        agent.command.as_deref(),
        &agent.args,
        &file.to_string_lossy(),
    )
    .ok_or(InteractiveError::NoCommand)?;
    let program = argv[0].clone();
    let text = format!("{} (session with {})", agent.kind, workspace.name());
    let position = LoopPosition { kind: LoopKind::Agent, id: LoopId::new(), iteration: 0 };
    let command = CommandRequest::arguments(text, argv);
    let mut request = RunRequest::new(position, command, root.to_owned());
    request.stdin = StdinSource::Inherit;
    request.pty = pty;
    request.label("workspace", workspace.name().to_string());
    for (name, value) in &settings.iteration.env_vars {
        request.environment.set(name.as_str(), value.as_str());
    }
    sandbox.confine(&mut request);
    sandbox.equip_agent(agent.kind, &mut request);
    let prepared = PreparedRun::new(request, context)
        .map_err(|refused| InteractiveError::Refused(refused.reasons))?;
    let mut worker =
        Worker::single(KeeperSession::Own, context).map_err(InteractiveError::NoProcess)?;
    let lock = WorkspaceLock::acquire(workspace, "setup")?;
    let output = OutputUse { carry: Carry::Nothing, forward: true };
    let finished = worker.run(prepared, output, &mut ()).map_err(Unrecorded)?;
    let worker = worker.end();
    // The task was only for this session.
    _ = std::fs::remove_file(&file);
    workspace.update(Metadata::count_setup)?;
    drop(lock);
    Ok(FinishedInteractive { finished, program, worker })
}

/// Sends the notification that the instructions exist; errors are ignored.
pub fn notify_setup_complete(settings: &Settings, workspace: &Workspace) {
    let notifications = &settings.notifications;
    let Some(url) = &notifications.url else { return };
    let (events, timeout) = (notifications.events.clone(), notifications.timeout);
    let pause = Duration::from_secs(1);
    if let Ok(mut sender) = Sender::start(url, notifications.format, events, timeout, pause) {
        sender.notify(Notification::setup_complete(workspace.name().as_str()));
        sender.finish(timeout);
    }
}
