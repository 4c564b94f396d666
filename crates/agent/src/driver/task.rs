//! The fixed part of all runs of a loop: the workspace, its settings and its prompts.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use retake_engine::Input;
use retake_types::request::{CommandRequest, LoopPosition};
use retake_types::{Kind as LoopKind, LoopId, RunRequest};

use crate::adapters::{AgentKind, AgentLaunch, Invocation};
use crate::group::GroupMember;
use crate::plan::AgentRole;
use crate::prompt::{Facts, PromptError, Purpose, Templates};
use crate::settings::{AgentProgram, Settings};
use crate::workspace::{Metadata, Workspace, WorkspaceError};

use super::event::AgentRunError;
use super::task_sandbox::TaskSandbox;

/// Time between SIGTERM and SIGKILL for an agent.
const GRACE: Duration = Duration::from_secs(5);

/// Options of one invocation, in addition to settings.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunOptions {
    pub skip_permissions: bool,
    /// Run a program that only reports progress instead of the agent.
    pub dry_run: bool,
    /// Do not redact secrets in the record.
    pub no_redact: bool,
}

/// Additions to an agent's invocation for using a server: arguments and variables.
#[derive(Default)]
pub struct ServerOffer {
    pub arguments: Vec<String>,
    pub variables: Vec<(OsString, OsString)>,
    /// Temporary files, removed when this is dropped.
    pub files: Option<Box<dyn std::any::Any>>,
    /// The server creates this file when the agent asks for its tools.
    pub listed: Option<PathBuf>,
}

impl ServerOffer {
    /// Whether no server is offered.
    pub fn is_nothing(&self) -> bool {
        self.arguments.is_empty() && self.variables.is_empty()
    }
}

/// Offers a server to an agent; the variables tell the server which iteration it serves.
pub type OfferServer = dyn Fn(AgentKind, &[(&str, String)]) -> std::io::Result<ServerOffer>;

/// A task for an agent.
pub struct AgentTask {
    /// The project's directory, in which the agent works.
    pub root: PathBuf,
    /// The path of that directory inside, if the sandbox shows it elsewhere.
    pub shown_root: Option<PathBuf>,
    pub workspace: Workspace,
    pub metadata: Metadata,
    pub settings: Settings,
    pub options: RunOptions,
    /// Offers retake's MCP server, if configured.
    pub offer: Option<Box<OfferServer>>,
    pub sandbox: TaskSandbox,
    /// The id of the queue's run that this task belongs to.
    pub queue: Option<String>,
    /// The options to repeat when the task is run again: sandbox, verification, budgets.
    pub repeated_options: Vec<String>,
    /// Additional variables of all its runs.
    pub variables: Vec<(&'static str, OsString)>,
    /// The group with which it shares limits and budgets.
    pub group: Option<GroupMember>,
    prompts: Prompts,
}

/// The inputs of prompts.
struct Prompts {
    templates: Templates,
    instructions: String,
    status_instructions: Option<String>,
}

/// Why a task cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error("there are no instructions")]
    NoInstructions,
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
}

impl AgentTask {
    /// Reads the inputs of prompts.
    pub fn open(
        root: PathBuf,
        workspace: Workspace,
        metadata: Metadata,
        settings: Settings,
        options: RunOptions,
    ) -> Result<Self, TaskError> {
        let prompts = Prompts {
            instructions: workspace.instructions()?.ok_or(TaskError::NoInstructions)?,
            status_instructions: workspace.status_instructions()?,
            templates: Templates::new(Some(&root.join(&settings.directories.prompts))),
        };
        let sandbox = TaskSandbox::default();
        Ok(Self {
            root,
            shown_root: None,
            workspace,
            metadata,
            settings,
            options,
            offer: None,
            sandbox,
            queue: None,
            repeated_options: Vec::new(),
            variables: Vec::new(),
            group: None,
            prompts,
        })
    }

    /// Whether completion must pass a verification.
    pub(super) fn is_verified(&self) -> bool {
        let verification = &self.settings.verification;
        verification.command.is_some() || verification.auto_verify
    }

    pub fn instructions(&self) -> &str {
        &self.prompts.instructions
    }

    pub(super) fn status_instructions(&self) -> Option<&str> {
        self.prompts.status_instructions.as_deref()
    }

    /// The facts that every prompt of this task can use.
    pub(super) fn facts(&self) -> Facts<'_> {
        Facts {
            instructions: &self.prompts.instructions,
            status_instructions: self.prompts.status_instructions.as_deref(),
            ..Facts::new(
                self.shown_root.as_deref().unwrap_or(&self.root),
                self.workspace.dir(),
                self.metadata.mode,
            )
        }
    }

    pub(super) fn prompt(
        &self,
        purpose: Purpose,
        facts: &Facts<'_>,
    ) -> Result<String, PromptError> {
        self.prompts.templates.render(purpose, facts)
    }

    /// The agent with this role. Without a configured fallback, the first one.
    pub(super) fn program(&self, role: AgentRole) -> &AgentProgram {
        let settings = &self.settings;
        match role {
            AgentRole::First => &settings.agent,
            AgentRole::Fallback => settings.fallback.as_ref().unwrap_or(&settings.agent),
        }
    }

    /// The invocation of an agent with a prompt.
    pub(super) fn invocation(
        &self,
        role: AgentRole,
        prompt: &AgentPrompt<'_>,
    ) -> Result<Invocation, AgentRunError> {
        let program = self.program(role);
        let arguments = [&program.args[..], prompt.extra_arguments].concat();
        let launch = AgentLaunch {
            kind: program.kind,
            command: program.command.as_deref(),
            args: &arguments,
            system_prompt: prompt.system,
            prompt: prompt.user,
            skip_permissions: self.options.skip_permissions,
            confined: self.sandbox.is_on(),
            max_cost_usd: prompt.max_cost_usd,
        };
        launch.invocation().ok_or(AgentRunError::NoCommand)
    }

    /// The base request for a run of this task.
    pub(super) fn request(&self, loop_id: LoopId, command: CommandRequest) -> RunRequest {
        let position = LoopPosition { kind: LoopKind::Agent, id: loop_id, iteration: 0 };
        let mut request = RunRequest::new(position, command, self.root.clone());
        request.label("workspace", self.workspace.name().to_string());
        request.set_grace(Some(GRACE));
        request.redaction.enabled = !self.options.no_redact;
        for (name, value) in &self.settings.iteration.env_vars {
            request.environment.set(name.as_str(), value.as_str());
        }
        for (name, value) in &self.variables {
            request.environment.set(*name, value.clone());
        }
        request.environment.set("RETAKE_WORKSPACE", self.workspace.name().as_str());
        request.environment.set("RETAKE_WORKSPACE_PATH", self.workspace.dir().to_owned());
        self.sandbox.confine(&mut request);
        request
    }
}

/// The prompt of one run of the agent.
#[derive(Clone, Copy, Default)]
pub(super) struct AgentPrompt<'a> {
    pub(super) user: &'a str,
    pub(super) system: &'a str,
    pub(super) extra_arguments: &'a [String],
    pub(super) max_cost_usd: Option<f64>,
}

/// Passes bytes to a child's standard input without a file that others could read.
pub(crate) fn input(bytes: impl AsRef<[u8]>) -> std::io::Result<Input> {
    let fd = rustix::fs::memfd_create("prompt", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes.as_ref())?;
    // Reopened: it is read from the beginning and cannot be written.
    let read_only = std::fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(Input::new(read_only.into()))
}
