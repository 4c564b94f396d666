//! `sandbox`: how runs are confined unless the command line says otherwise.

use super::keys::{Key, KeyKind, key};
use crate::{SandboxMode, SandboxRequest};

const MODES: KeyKind = KeyKind::Word(&["strict", "best-effort", "off"]);

pub(super) const KEYS: [Key; 12] = [
    key(
        "sandbox.mode",
        MODES,
        "off",
        "How commands are confined unless --sandbox says otherwise: strict, best-effort or off",
    ),
    key("sandbox.exec", MODES, "", "sandbox.mode for exec (unset: sandbox.mode)"),
    key("sandbox.agent", MODES, "", "sandbox.mode for agents, their hooks and their verification"),
    key(
        "sandbox.mcp",
        MODES,
        "",
        "sandbox.mode for commands of MCP clients (unset: sandbox.mode if set, else on where this machine supports it)",
    ),
    key(
        "sandbox.matrix",
        MODES,
        "",
        "sandbox.mode for a matrix: setup, preparation and iterations",
    ),
    key("sandbox.crash", MODES, "", "sandbox.mode for the commands of retake crash"),
    key(
        "sandbox.allow_write",
        KeyKind::Words,
        "",
        "Additional paths that confined commands may write: absolute, ~/..., or relative to the project",
    ),
    key("sandbox.deny_write", KeyKind::Words, "", "Paths that confined commands may not write"),
    key("sandbox.allow_read", KeyKind::Words, "", "Hidden paths that confined commands may read"),
    key("sandbox.deny_read", KeyKind::Words, "", "Paths that are hidden from confined commands"),
    key(
        "sandbox.allow_net",
        KeyKind::Words,
        "",
        "Hosts that confined commands may reach: HOST, HOST:PORT, *.HOST, localhost:PORT, or all",
    ),
    key(
        "sandbox.allow_socket",
        KeyKind::Words,
        "",
        "Unix sockets that confined commands may connect to",
    ),
];

/// The commands of retake whose runs can be confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxedCommand {
    Exec,
    Agent,
    Mcp,
    Matrix,
    Crash,
}

impl SandboxedCommand {
    pub const ALL: [Self; 5] = [Self::Exec, Self::Agent, Self::Mcp, Self::Matrix, Self::Crash];

    /// The key that sets its mode.
    pub fn key(self) -> &'static str {
        match self {
            Self::Exec => "sandbox.exec",
            Self::Agent => "sandbox.agent",
            Self::Mcp => "sandbox.mcp",
            Self::Matrix => "sandbox.matrix",
            Self::Crash => "sandbox.crash",
        }
    }
}

/// The confinement of each command, and the rules that all of them share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxConfig {
    /// `None` where no mode is configured.
    modes: [Option<SandboxMode>; SandboxedCommand::ALL.len()],
    /// Their own mode is unused.
    rules: SandboxRequest,
}

impl SandboxConfig {
    pub fn new(
        mode: impl Fn(SandboxedCommand) -> Option<SandboxMode>,
        rules: SandboxRequest,
    ) -> Self {
        Self { modes: SandboxedCommand::ALL.map(mode), rules }
    }

    pub fn mode(&self, command: SandboxedCommand) -> SandboxMode {
        self.modes[command as usize].unwrap_or_default()
    }

    /// Whether a mode is configured for this command.
    pub fn is_set(&self, command: SandboxedCommand) -> bool {
        self.modes[command as usize].is_some()
    }

    /// The confinement of a run of this command. `asked` comes from the command line and overrides
    /// the configuration; without `mode`, the configured mode applies.
    pub fn request(
        &self,
        command: SandboxedCommand,
        mode: Option<SandboxMode>,
        asked: SandboxRequest,
    ) -> SandboxRequest {
        let mode = mode.unwrap_or_else(|| self.mode(command));
        match mode {
            SandboxMode::Off => SandboxRequest { mode, ..asked },
            _ => SandboxRequest { mode, ..asked }.with_rules(&self.rules),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PathGrant, PathRule};

    #[test]
    fn the_command_line_goes_before_the_configuration() {
        let rule = |grant, path: &str| PathRule::new(grant, path);
        let rules = SandboxRequest {
            paths: vec![rule(PathGrant::AllowWrite, "/a"), rule(PathGrant::DenyRead, "/b")],
            ..SandboxRequest::default()
        };
        let mode = |command| match command {
            SandboxedCommand::Exec => None,
            _ => Some(SandboxMode::Strict),
        };
        let config = SandboxConfig::new(mode, rules);
        let none = SandboxRequest::default();
        assert_eq!(config.request(SandboxedCommand::Exec, None, none.clone()), none);
        assert!(!config.is_set(SandboxedCommand::Exec) && config.is_set(SandboxedCommand::Mcp));
        assert!(config.request(SandboxedCommand::Agent, None, none.clone()).is_on());
        let asked = SandboxRequest {
            paths: vec![rule(PathGrant::AllowRead, "/b")],
            ..SandboxRequest::default()
        };
        let best = Some(SandboxMode::BestEffort);
        let request = config.request(SandboxedCommand::Exec, best, asked);
        assert_eq!(request.mode, SandboxMode::BestEffort);
        // The configured rule for the same path is overridden.
        let expected = [rule(PathGrant::AllowRead, "/b"), rule(PathGrant::AllowWrite, "/a")];
        assert_eq!(request.paths, expected);
        let off = config.request(SandboxedCommand::Mcp, Some(SandboxMode::Off), none.clone());
        assert_eq!(off, none);
    }
}
