//! The sandbox of a server's commands, and its consequences for the policy: shell lines are
//! allowed by default if the sandbox completely confines what they write and which hosts they reach.

use std::path::Path;

use retake_runner::confined;
use retake_runner::context::RunContext;
use retake_types::config::PolicyConfig;
use retake_types::{
    DroppedPromise, PathGrant, PathRule, SandboxLevel, SandboxReport, SandboxRequest, StartFailure,
};

/// How the sandbox was requested.
#[derive(Clone, Debug)]
pub enum SandboxChoice {
    /// By an option or the configuration: without this sandbox nothing is run.
    Asked(SandboxRequest),
    /// By default: this sandbox if the machine supports it.
    ByDefault(SandboxRequest),
}

/// The sandbox of every command, determined when the server starts.
#[derive(Debug)]
pub struct ServerSandbox {
    /// The sandbox of every run.
    pub request: SandboxRequest,
    pub state: SandboxState,
}

#[derive(Debug)]
pub enum SandboxState {
    Off,
    /// The server itself runs in a sandbox of retake, which also confines everything it starts.
    Enclosed(SandboxLevel),
    Confined(SandboxReport),
    /// The requested sandbox is not available, so nothing can be run.
    Impossible(StartFailure),
    /// The default sandbox is not available on this machine: commands run unconfined.
    Unavailable(StartFailure),
}

impl ServerSandbox {
    /// Determines what is available by starting a sandbox once.
    pub fn new(
        choice: SandboxChoice,
        policy: &PolicyConfig,
        context: &RunContext,
        directory: &Path,
    ) -> Self {
        let (SandboxChoice::Asked(mut request) | SandboxChoice::ByDefault(mut request)) =
            choice.clone();
        // Commands of this server cannot leave the enclosing sandbox, whatever was requested.
        if let Some(level) = confined::enclosing() {
            return Self {
                request: SandboxRequest::default(),
                state: SandboxState::Enclosed(level),
            };
        }
        if !request.is_on() {
            return Self { request, state: SandboxState::Off };
        }
        let project = context.project.root.as_deref().unwrap_or(directory);
        for further in policy.directories.iter().map(|further| project.join(further)) {
            // Directories in which commands may run are writable, unless a rule says otherwise.
            let is_known = request.paths.iter().any(|rule| rule.path.as_path() == further);
            if further.is_dir() && !is_known {
                request.paths.push(PathRule::new(PathGrant::AllowWrite, further));
            }
        }
        // An agent that works through the server writes its status to its workspace.
        let workspaces = project.join(".agent/workspaces");
        if workspaces.is_dir() {
            request.paths.push(PathRule::new(PathGrant::AllowWrite, workspaces));
        }
        match (confined::try_confinement(&request, directory, context), choice) {
            (Ok(report), _) => Self { request, state: SandboxState::Confined(report) },
            (Err(why), SandboxChoice::Asked(_)) => {
                Self { request, state: SandboxState::Impossible(why) }
            }
            (Err(why), SandboxChoice::ByDefault(_)) => {
                Self { request: SandboxRequest::default(), state: SandboxState::Unavailable(why) }
            }
        }
    }

    /// The promises about files and network that are not kept.
    pub fn broken(&self) -> Vec<DroppedPromise> {
        let matters = |promise: &DroppedPromise| {
            matches!(
                promise,
                DroppedPromise::ProtectedFiles
                    | DroppedPromise::Record
                    | DroppedPromise::HiddenFiles
                    | DroppedPromise::Truncate
                    | DroppedPromise::NetworkPorts
            )
        };
        match &self.state {
            SandboxState::Confined(report) => {
                report.dropped.iter().copied().filter(matters).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Whether the sandbox confines everything that a command writes or reaches.
    fn is_wall(&self) -> bool {
        match &self.state {
            SandboxState::Enclosed(level) => *level == SandboxLevel::Full,
            SandboxState::Confined(_) => self.broken().is_empty(),
            SandboxState::Off | SandboxState::Impossible(_) | SandboxState::Unavailable(_) => false,
        }
    }

    /// The policy, with the decisions that depend on the sandbox.
    #[must_use]
    pub fn complete(&self, policy: PolicyConfig) -> PolicyConfig {
        let is_wall = self.is_wall();
        let shell = Some(policy.shell.unwrap_or(is_wall));
        PolicyConfig { shell, private_temp: is_wall, ..policy }
    }

    /// What a user should know when the server starts: that the default sandbox is not available, and the
    /// consequences. `policy` is the configured one.
    pub fn notice(&self, policy: &PolicyConfig) -> Option<String> {
        let shell = match policy.shell {
            None => "shell lines stay off (mcp.policy.shell: true allows them)",
            Some(true) => "shell lines are still allowed, as mcp.policy says",
            Some(false) => "shell lines are off, as mcp.policy says",
        };
        match &self.state {
            SandboxState::Unavailable(why) => Some(format!(
                "commands of clients are not confined, because this machine cannot do it: {why}; {shell}; `retake doctor` shows more, and sandbox.mcp: off in the configuration accepts it"
            )),
            SandboxState::Impossible(why) => Some(format!(
                "no command can run: the sandbox that was asked for is not available here: {why}"
            )),
            SandboxState::Confined(_) => {
                let broken = self.broken();
                let broken: Vec<String> = broken.iter().map(ToString::to_string).collect();
                (!broken.is_empty()).then(|| {
                    format!(
                        "the sandbox cannot keep everything here: {}; {shell}",
                        broken.join("; ")
                    )
                })
            }
            SandboxState::Off | SandboxState::Enclosed(_) => None,
        }
    }

    /// What a model should know.
    pub(super) fn instructions(&self) -> String {
        match &self.state {
            SandboxState::Off | SandboxState::Unavailable(_) => String::new(),
            SandboxState::Impossible(_) => {
                " No command can be run: the requested sandbox is not possible here; tell the user."
                    .to_owned()
            }
            SandboxState::Enclosed(_) => " Commands run in a sandbox.".to_owned(),
            SandboxState::Confined(_) => {
                let hosts = &self.request.network.allow;
                let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
                let network = match hosts.is_empty() {
                    true => "reach no network".to_owned(),
                    false => format!("reach only {}", hosts.join(", ")),
                };
                format!(
                    " Commands run in a sandbox: they write only in the project and in a temporary directory, and {network}; an answer says what was denied."
                )
            }
        }
    }
}
