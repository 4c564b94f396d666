//! One process that works on a task: it holds the workspace, has a worker for the task's runs, and
//! knows the secrets to redact.
//!
//! `run`, `verify` and `validate` are sessions; only `run` adds a loop.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use retake_engine::{Input, KeeperSession, Launch};
use retake_runner::context::RunContext;
use retake_runner::prepare::{self, PreparedRun, Provided};
use retake_runner::run::{FinishedRun, Observer, OutputUse};
use retake_runner::run_environment;
use retake_runner::signals;
use retake_runner::worker::{EndedWorker, Worker};
use retake_store::redact::Redactor;
use retake_types::loop_record::agent::{Checkpoint, CheckpointTime};
use retake_types::request::{CommandRequest, StdinSource};
use retake_types::{LoopId, Outcome, RefusalReason, RunRequest, StartFailure};

use crate::adapters::{self, AgentKind};
use crate::control::{ControlError, Mailbox};
use crate::settings::AgentProgram;
use crate::ticker::Ticker;
use crate::workspace::{WorkspaceError, WorkspaceLock, WorkspaceLockError};

use super::event::{AgentDisplay, AgentEvent, AgentRunError, Unrecorded};
use super::git_checkpoints::{CheckpointError, GitCheckpoints};
use super::recorded_loop::{self, RecordedLoop};
use super::rollback::{RollbackError, RollbackJournal};
use super::task::AgentTask;

/// How long an agent may take to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a loop checks for an immediate stop.
const STOP_LOOK: Duration = Duration::from_millis(200);

/// Why a session cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("could not start a process: {0}")]
    NoProcess(io::Error),
    #[error(transparent)]
    Lock(#[from] WorkspaceLockError),
    /// For root Claude does not skip permissions.
    #[error("the agent refuses to skip permissions for root")]
    RootRefused,
    #[error("the agent's program {command} cannot be run")]
    AgentNotFound { kind: AgentKind, command: String },
    #[error("{command} is not executable; run `chmod +x {command}`")]
    AgentNotExecutable { command: String },
    /// The requested confinement is invalid.
    #[error("{}", RefusalReason::listed(.0))]
    Refused(Vec<RefusalReason>),
    #[error("{0}")]
    NotConfined(StartFailure),
    /// The search for secrets cannot be built.
    #[error(transparent)]
    Redaction(#[from] RefusalReason),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Store(#[from] retake_store::Error),
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// Checkpoints were requested.
    #[error("checkpoints: {0}")]
    Checkpoint(#[from] CheckpointError),
    /// Only the record knows which checkpoint is which.
    #[error("checkpoints need a record")]
    CheckpointsUnrecorded,
    /// The files are partly of one state and partly of another.
    #[error("a rollback was interrupted")]
    RollbackInterrupted { target: Checkpoint },
    #[error(transparent)]
    Rollback(#[from] RollbackError),
}

/// A session on a task.
pub struct AgentSession {
    pub(super) task: AgentTask,
    pub(super) worker: Worker,
    pub(super) display: Arc<dyn AgentDisplay>,
    pub(super) redactor: Arc<Redactor>,
    pub(super) mailbox: Mailbox,
    /// Whether an immediate stop was requested.
    pub(super) stopped_now: Arc<AtomicBool>,
    /// The loop of this session's runs.
    pub(super) loop_id: LoopId,
    /// Held for the whole session.
    pub(super) _lock: WorkspaceLock,
}

impl AgentSession {
    /// Starts a keeper, locks the workspace, and checks that the agent can be started. `command` is
    /// shown to others who want the workspace, such as `run`.
    pub fn start(
        task: AgentTask,
        command: &str,
        context: &Arc<RunContext>,
        display: Arc<dyn AgentDisplay>,
    ) -> Result<Self, StartError> {
        let unrecorded = task.options.dry_run.then(|| unrecorded(context));
        let context = unrecorded.as_ref().unwrap_or(context);
        // Starts the keeper before any lock is taken and any thread runs.
        let worker = Worker::single(KeeperSession::Own, context).map_err(StartError::NoProcess)?;
        Self::start_on(worker, task, command, display)
    }

    /// The same on an existing worker.
    pub(crate) fn start_on(
        mut worker: Worker,
        task: AgentTask,
        command: &str,
        display: Arc<dyn AgentDisplay>,
    ) -> Result<Self, StartError> {
        drop(signals::asked());
        let context = worker.context().clone();
        let lock = WorkspaceLock::acquire(&task.workspace, command)?;
        // Created immediately: from here on others see that it runs, and their requests are meant
        // for it.
        let mailbox = Mailbox::of(&task.workspace)?;
        mailbox.begin()?;
        if let Some(interrupted) = RollbackJournal::of(&task.workspace)?.interrupted() {
            let target = interrupted.target.clone();
            return Err(StartError::RollbackInterrupted { target });
        }
        check_agents(&mut worker, &task)?;
        let redactor = Arc::new(redactor(&task, &context)?);
        task.workspace.begin_loop(&task.metadata)?;
        let loop_id = LoopId::new();
        let stopped_now = Arc::default();
        Ok(Self { task, worker, display, redactor, mailbox, stopped_now, loop_id, _lock: lock })
    }

    /// All recorded loops of the workspace, oldest first. A record that cannot be opened is
    /// reported and counts as empty.
    pub(super) fn recorded_loops(&mut self) -> retake_store::Result<Vec<RecordedLoop>> {
        // Opening the record would create it.
        if self.task.options.dry_run {
            return Ok(Vec::new());
        }
        match self.worker.store() {
            Ok(store) => recorded_loop::read(store, &self.task.workspace, &self.task.metadata),
            Err(error) => {
                self.display.event(AgentEvent::NotRecorded(&error));
                Ok(Vec::new())
            }
        }
    }

    /// A dry run changes no files.
    pub(super) fn keeps_checkpoints(&self) -> bool {
        self.task.settings.checkpoint && !self.task.options.dry_run
    }

    /// Saves the project's current files.
    pub(super) fn keep_checkpoint(
        &mut self,
        number: u32,
        time: CheckpointTime,
    ) -> Result<Checkpoint, CheckpointError> {
        let AgentSession { task, worker, loop_id, .. } = self;
        let owner = recorded_loop::checkpoint_owner(&task.workspace, &task.metadata);
        let scratch = task.workspace.loop_state_dir();
        GitCheckpoints::new(worker, &task.root, scratch)?.keep(
            &owner,
            &loop_id.to_string(),
            number,
            time,
        )
    }

    /// Whether the running command is cancelled: by a signal, or by an immediate stop.
    pub(super) fn is_interrupted(&self) -> bool {
        signals::asked().load(Ordering::Relaxed) || self.stopped_now.load(Ordering::Relaxed)
    }

    /// Cancels the running command on an immediate stop request.
    pub(super) fn watch_stop(&self) -> io::Result<Ticker> {
        let (mailbox, cancel) = (self.mailbox.clone(), self.worker.cancel().clone());
        let stopped = self.stopped_now.clone();
        Ticker::start("stop", STOP_LOOK, move |_| {
            if mailbox.requests().stop_now && !stopped.swap(true, Ordering::Relaxed) {
                cancel.cancel(libc::SIGTERM);
            }
        })
    }

    /// Redacts a text.
    pub(super) fn clean(&self, text: &str) -> String {
        self.redactor.redact_str(text).0.into_owned()
    }

    pub(super) fn request(&self, command: CommandRequest) -> RunRequest {
        self.task.request(self.loop_id, command)
    }

    /// Validates a request; `input` is the command's stdin.
    pub(super) fn prepare(
        &self,
        mut request: RunRequest,
        input: Option<Input>,
    ) -> Result<PreparedRun, AgentRunError> {
        if input.is_some() {
            request.stdin = StdinSource::Provided;
        }
        let provided = Provided { input, ..Provided::default() };
        PreparedRun::with(request, self.worker.context(), provided)
            .map_err(|refused| AgentRunError::Refused(refused.reasons))
    }

    /// Executes and records a run of this task; returns `carried` bytes of each stream.
    pub(super) fn execute(
        &mut self,
        request: RunRequest,
        input: Option<Input>,
        carried: u64,
        observer: &mut dyn Observer,
    ) -> Result<FinishedRun, AgentRunError> {
        let prepared = self.prepare(request, input)?;
        let finished = self.worker.run(prepared, OutputUse::excerpt(carried), observer);
        let finished = finished.map_err(Unrecorded)?;
        self.tell_of_sandbox(&finished);
        Ok(finished)
    }

    /// Shows what the sandbox of a run denied, if it had one.
    pub(super) fn tell_of_sandbox(&self, finished: &FinishedRun) {
        let outcome = finished.run.outcome.as_ref();
        if outcome.is_some_and(|outcome| outcome.sandbox.is_some()) {
            self.display.event(AgentEvent::Confined(&finished.run));
        }
    }

    /// Ends the keeper. The caller pushes and prunes what was recorded.
    pub fn end(self) -> EndedWorker {
        self.worker.end()
    }
}

/// The context of a dry run, which records nothing.
fn unrecorded(context: &Arc<RunContext>) -> Arc<RunContext> {
    let mut context = RunContext::clone(context);
    context.execution.audit.enabled = false;
    Arc::new(context)
}

/// Checks that the agents can be started.
fn check_agents(worker: &mut Worker, task: &AgentTask) -> Result<(), StartError> {
    if task.options.dry_run {
        return Ok(());
    }
    task.settings.programs().try_for_each(|program| check_agent(worker, task, program))
}

fn check_agent(
    worker: &mut Worker,
    task: &AgentTask,
    program: &AgentProgram,
) -> Result<(), StartError> {
    let settings = &task.settings;
    let kind = program.kind;
    let variables = &settings.iteration.env_vars;
    let skips = task.options.skip_permissions
        || program.args.iter().any(|arg| arg == "--dangerously-skip-permissions");
    let sandboxed = variables
        .get("IS_SANDBOX")
        .map(std::ffi::OsString::from)
        .or_else(|| std::env::var_os("IS_SANDBOX"));
    let user = rustix::process::geteuid().as_raw();
    let confined = task.sandbox.is_on();
    if !confined && adapters::refuses_root(kind, skips, user, sandboxed.as_deref()) {
        return Err(StartError::RootRefused);
    }
    let Some(words) = adapters::version(kind, program.command.as_deref()) else {
        return check_file(task, kind, program.command.as_deref());
    };
    if confined {
        return check_confined(worker, task, kind, words);
    }
    let mut launch = Launch::new(words.iter().map(std::ffi::OsString::from));
    launch.timeout = Some(VERSION_TIMEOUT);
    for (name, value) in variables {
        launch.set((name, value).into());
    }
    match worker.run_helper(launch) {
        Ok((outcome, _)) if outcome.success() => Ok(()),
        _ => Err(not_runnable(task, kind, words[0].clone())),
    }
}

/// Checks that the program exists, for agents without a version option.
fn check_file(task: &AgentTask, kind: AgentKind, command: Option<&str>) -> Result<(), StartError> {
    let Some(command) = command else { return Ok(()) };
    let own = task.settings.iteration.env_vars.get("PATH").map(std::ffi::OsString::from);
    let path = own.or_else(|| std::env::var_os("PATH"));
    match retake_engine::which(command.as_ref(), path.as_deref(), &task.root) {
        Some(_) => Ok(()),
        None => Err(not_runnable(task, kind, command.to_owned())),
    }
}

/// Why a program cannot be run: a file that is there lacks only the permission.
fn not_runnable(task: &AgentTask, kind: AgentKind, command: String) -> StartError {
    let file = task.root.join(&command);
    let may_run = || rustix::fs::access(&file, rustix::fs::Access::EXEC_OK).is_ok();
    match command.contains('/') && file.is_file() && !may_run() {
        true => StartError::AgentNotExecutable { command },
        false => StartError::AgentNotFound { kind, command },
    }
}

/// The same inside its sandbox, where the program may be elsewhere; confinement errors show here,
/// before the loop begins.
fn check_confined(
    worker: &mut Worker,
    task: &AgentTask,
    kind: AgentKind,
    words: Vec<String>,
) -> Result<(), StartError> {
    let command = words[0].clone();
    let mut request = task.request(LoopId::new(), CommandRequest::arguments("", words));
    request.set_timeout(Some(VERSION_TIMEOUT));
    task.sandbox.equip_agent(kind, &mut request);
    let context = worker.context().clone();
    let prepared = PreparedRun::new(request, &context)
        .map_err(|refused| StartError::Refused(refused.reasons))?;
    match worker.run_unrecorded(prepared).outcome {
        outcome if outcome.success() => Ok(()),
        Outcome::NotStarted(failure @ StartFailure::Sandbox(_)) => {
            Err(StartError::NotConfined(failure))
        }
        _ => Err(not_runnable(task, kind, command)),
    }
}

/// Knows the secrets to redact in logs, recorded prompts and notifications.
fn redactor(task: &AgentTask, context: &RunContext) -> Result<Redactor, StartError> {
    let command = CommandRequest::arguments::<&str>("", []);
    let request = task.request(LoopId::new(), command);
    let mut reasons = Vec::new();
    // Only errors of redaction matter here.
    let environment = run_environment::environment(&request, context, &mut Vec::new());
    let redactor = prepare::redactor(&request, &context.redaction, &environment, &mut reasons);
    match reasons.into_iter().next() {
        None => Ok(redactor),
        Some(reason) => Err(reason.into()),
    }
}
