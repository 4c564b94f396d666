//! What users see of a running loop. The driver reports; a front end writes the text.

use std::path::Path;
use std::time::Duration;

use retake_types::loop_record::agent::{
    DeniedTools, HookTime, Iteration, IterationStatus, WaitCause,
};
use retake_types::{RefusalReason, Run, RunId};

use crate::adapters::AgentKind;
use crate::control::ControlError;
use crate::display::Live;
use crate::plan::{AgentRole, AgentStopReason};
use crate::status::Completion;
use crate::workspace::{Name, WorkspaceError};

/// Something that happened in a loop.
#[derive(Debug)]
pub enum AgentEvent<'a> {
    /// The loop continues one whose runner died.
    Continued {
        last_iteration: u32,
    },
    /// Every fallible part of the start is done, and the first iteration follows.
    Started {
        log: &'a Path,
    },
    PermissionsSkipped(AgentKind),
    IterationStarted {
        number: u32,
    },
    /// An iteration is over and recorded.
    IterationEnded(&'a Iteration),
    /// The last run of this task was confined or verified, and this one is not.
    ProtectionsDropped {
        sandbox: bool,
        verification: bool,
        workspace: &'a Name,
        /// The options of the last run that are to be repeated.
        options: &'a [String],
    },
    /// An iteration counts as failed.
    IterationFailed {
        number: u32,
        why: &'a str,
        /// The agent's run, if it was started.
        run: Option<RunId>,
    },
    /// The first iteration changed no file and wrote no status, and nothing but the maximum number of
    /// iterations ends such a loop.
    NothingDone {
        number: u32,
    },
    PermissionsDenied {
        count: u64,
        /// The tools, as far as the agent named them.
        tools: Option<&'a DeniedTools>,
    },
    /// The agent was offered retake's MCP server and did not ask for its tools.
    ServerNotListed {
        number: u32,
    },
    /// The agent gave its result but did not exit.
    LingeringEnded {
        number: u32,
        waited: Duration,
    },
    /// The agent reports that it needs a person.
    Blocked {
        blockers: &'a [String],
        pauses: bool,
    },
    /// The content of the status files after an iteration.
    Status(&'a Completion),
    Waiting {
        cause: WaitCause,
        remaining: Duration,
    },
    /// The fallback takes over, or the first agent works again.
    AgentChanged {
        kind: AgentKind,
        role: AgentRole,
    },
    Paused {
        workspace: &'a Name,
    },
    VerificationStarted,
    VerificationPassed,
    VerificationFailed {
        refusal: Option<&'a GateRefusal>,
    },
    /// Verification gave no result and is repeated.
    VerificationPostponed {
        why: &'a str,
    },
    HookFailed {
        when: HookTime,
        command: &'a str,
    },
    HookNotRun(&'a AgentRunError),
    Stopped(&'a StoppedLoop<'a>),
    /// Further errors that do not stop the loop.
    NotRecorded(&'a retake_store::Error),
    NotLogged(&'a str),
    /// The loop could not be paused, and continues.
    NotPaused(&'a ControlError),
    NotNotified(&'a str),
    NotificationsLost {
        count: u64,
        last_error: Option<&'a str>,
    },
    StatusNotWatched(&'a std::io::Error),
    /// An immediate stop request will not be noticed.
    StopNotWatched(&'a std::io::Error),
    /// A restart will not know how much of the time budget is used.
    TimeNotKept(&'a std::io::Error),
    NoCheckpoint {
        number: u32,
        error: &'a str,
    },
    /// Repositories inside the project, whose files are in no checkpoint.
    NotCovered {
        paths: &'a [String],
    },
    MetadataNotWritten(&'a WorkspaceError),
    /// A confined run is over, with the report of its sandbox.
    Confined(&'a Run),
}

/// The gate's command that did not pass.
#[derive(Clone, Debug)]
pub struct GateRefusal {
    /// The command, how it ended, and its last line, in one line.
    pub why: String,
    pub run: RunId,
    /// It names a program that does not exist, which the agent cannot correct.
    pub cannot_run: bool,
}

/// A finished loop.
#[derive(Debug)]
pub struct StoppedLoop<'a> {
    pub workspace: &'a Name,
    pub reason: AgentStopReason,
    /// Iterations of this invocation.
    pub iterations: u32,
    pub max_iterations: u32,
    /// Consecutive iterations without work.
    pub idle: u32,
    /// Consecutive failed iterations.
    pub failures: u32,
    /// Whether the command of verification cannot be run.
    pub gate_cannot_run: bool,
    /// The options to repeat when the task is run again.
    pub options: &'a [String],
}

/// The data of the live line.
#[derive(Clone, Copy, Debug)]
pub enum LiveLine {
    Iteration(Live),
    Waiting { cause: WaitCause, remaining: Duration },
}

/// Displays a loop, from any thread.
pub trait AgentDisplay: Send + Sync {
    fn event(&self, event: AgentEvent<'_>);

    /// An iteration is over; shows everything about it.
    fn iteration_ended(&self, iteration: &Iteration) {
        let facts = &iteration.facts;
        if let Some(count) = facts.denials {
            let tools = facts.denied_tools.as_ref();
            self.event(AgentEvent::PermissionsDenied { count, tools });
        }
        if matches!(iteration.status, IterationStatus::Failed | IterationStatus::TimedOut) {
            let (number, why) = (iteration.number, facts.error.as_deref().unwrap_or_default());
            self.event(AgentEvent::IterationFailed { number, why, run: facts.run_id });
        }
        self.event(AgentEvent::IterationEnded(iteration));
    }

    /// The agent's messages and actions, as they happen.
    fn detail(&self, text: &str);

    /// Whether that is shown.
    fn shows_detail(&self) -> bool;

    /// Whether a live line is drawn.
    fn has_live_line(&self) -> bool;

    fn live(&self, line: LiveLine);

    /// Removes the live line.
    fn clear(&self);
}

/// Why part of a loop could not run.
#[derive(Debug, thiserror::Error)]
pub enum AgentRunError {
    #[error("a custom agent needs agent.command")]
    NoCommand,
    #[error(transparent)]
    Prompt(#[from] crate::prompt::PromptError),
    #[error(transparent)]
    Messages(#[from] ControlError),
    #[error("could not start a thread: {0}")]
    NoThread(std::io::Error),
    /// The prompt could not be passed to the agent.
    #[error("{0}")]
    Input(std::io::Error),
    /// The MCP server could not be offered.
    #[error("agent.mcp: {0}")]
    Server(std::io::Error),
    #[error("retake cannot find its own program: {0}")]
    OwnProgram(std::io::Error),
    #[error("{}", RefusalReason::listed(.0))]
    Refused(Vec<RefusalReason>),
    #[error(transparent)]
    Unrecorded(#[from] Unrecorded),
    #[error("cannot replace {}: {error}", .path.display())]
    ReportNotReplaced { path: std::path::PathBuf, error: std::io::Error },
    #[error("the agent wrote no report to {} ({error}); its run: {run}", .path.display())]
    NoReport { path: std::path::PathBuf, error: std::io::Error, run: String },
}

/// A run that must not start because it could not be recorded.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unrecorded(pub retake_runner::worker::Unrecorded);
