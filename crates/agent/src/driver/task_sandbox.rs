//! The confinement of a task: of the agent, its hooks and its verification commands.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use retake_types::{NetworkRule, PathGrant, PathRule, RunRequest, SandboxRequest};

use crate::adapters::AgentKind;
use crate::confinement::{self, AgentConfinement};
use crate::settings::Settings;
use crate::workspace::Workspace;

/// The sandbox request of every run of a task: one policy for all of them.
#[derive(Clone, Debug, Default)]
pub struct TaskSandbox {
    request: SandboxRequest,
    /// The additional needs of each agent.
    agents: Vec<(AgentKind, AgentConfinement)>,
}

impl TaskSandbox {
    /// `asked` overrides the agents' needs. Creates their state directories.
    pub fn new(
        asked: SandboxRequest,
        settings: &Settings,
        workspace: &Workspace,
    ) -> io::Result<Self> {
        if !asked.is_on() {
            return Ok(Self { request: asked, agents: Vec::new() });
        }
        let variable = |name: &str| {
            let own = settings.iteration.env_vars.get(name).map(OsString::from);
            own.or_else(|| std::env::var_os(name))
        };
        let mut needed = SandboxRequest::default();
        let mut agents = Vec::new();
        if let Some(home) = std::env::home_dir() {
            for program in settings.programs() {
                let agent = confinement::confinement(program.kind, &home, &variable)?;
                needed.paths.extend(agent.paths.iter().cloned());
                // A host that is not a valid rule stays unreachable; the agent reports that itself.
                let hosts = agent.hosts.iter().filter_map(|host| NetworkRule::parse(host).ok());
                needed.network.allow.extend(hosts);
                agents.push((program.kind, agent));
            }
        }
        let dir = workspace.dir();
        workspace.make_loop_state_dir()?;
        needed.paths.push(PathRule::new(PathGrant::AllowWrite, dir.to_owned()));
        // They name commands, and control the loop.
        for path in [workspace.metadata_path(), workspace.loop_state_dir().to_owned()] {
            needed.paths.push(PathRule::new(PathGrant::DenyWrite, path));
        }
        Ok(Self { request: asked.with_rules(&needed), agents })
    }

    pub fn is_on(&self) -> bool {
        self.request.is_on()
    }

    /// The path inside of a host path, if it is shown elsewhere.
    pub fn inside(&self, path: &Path) -> Option<PathBuf> {
        self.request.inside(path)
    }

    /// Confines a run of the task.
    pub fn confine(&self, request: &mut RunRequest) {
        request.sandbox = self.request.clone();
    }

    /// Adds what only the agent itself gets.
    pub fn equip_agent(&self, kind: AgentKind, request: &mut RunRequest) {
        let Some((_, agent)) = self.agents.iter().find(|(known, _)| *known == kind) else { return };
        for (name, value) in &agent.variables {
            if !request.environment.set.iter().any(|(known, _)| known.as_os_str() == name) {
                request.environment.set(name.clone(), value.clone());
            }
        }
        for name in &agent.keys {
            let set = &request.environment.set;
            if !set.iter().any(|(known, _)| known.as_os_str() == name.as_str()) {
                request.environment.from_host.push(name.clone());
            }
        }
    }
}
