//! The configuration as typed sections, and the table of all keys.
//!
//! The table feeds reading, checking, `config --explain`, the file that `init` writes and the
//! documentation. A section is filled once, when the configuration is read; later code reads the
//! section's fields and never looks up a path.

mod agent_keys;
mod keys;
mod sandbox_keys;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{EnvMode, ShellMode};

pub use agent_keys::{agent_key, agent_keys};
pub use keys::{
    Key, KeyKind, UnknownKey, commented_defaults, find, is_group, keys, misspelled_section,
};
pub use sandbox_keys::{SandboxConfig, SandboxedCommand};

/// `execution`: how commands run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionConfig {
    pub default_timeout: Duration,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Maximum size of each stream in a result.
    pub max_output_bytes: u64,
    /// Maximum recorded size of each stream.
    pub max_capture_bytes: u64,
    pub use_shell: ShellMode,
    /// Programs that may keep running after a run.
    pub detach_ok: Vec<String>,
    pub environment_mode: EnvMode,
    /// Variables that mode merge keeps although they look secret or dangerous.
    pub environment_allow: Vec<String>,
    pub audit: AuditConfig,
}

/// `execution.audit`: what is recorded and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditConfig {
    pub enabled: bool,
    pub required: bool,
    /// 0 keeps runs forever.
    pub retention_days: u64,
}

/// `redaction`: what counts as a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedactionConfig {
    /// Variables to treat as secrets although their names do not look secret.
    pub secrets: Vec<String>,
    /// Variables not to treat as secrets although their names look secret.
    pub allow: Vec<String>,
    /// Further secrets, as NAME=REGEX.
    pub patterns: Vec<String>,
}

/// `slurm`: where and how runs on other machines are submitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlurmConfig {
    pub partition: Option<String>,
    pub account: Option<String>,
    pub qos: Option<String>,
    pub options: Vec<String>,
    pub shared_dir: Option<String>,
    /// 0 leaves the number to Slurm.
    pub max_in_flight: u64,
    pub pack: u64,
    /// Time to wait for a result to appear on this machine.
    pub visible_after: Duration,
    /// Whether the setup of a matrix runs on a node, not on the submitting machine.
    pub setup_on_node: bool,
}

/// `mcp.policy.preset`: rules that apply besides those of the project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyPreset {
    None,
    /// Denies what is hard to undo: rewriting shared history, deleting trees, running downloaded
    /// scripts.
    Careful,
}

/// `mcp.policy`: what clients of the MCP server may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyConfig {
    /// Built-in rules.
    pub preset: PolicyPreset,
    pub allow: Vec<String>,
    pub deny: Vec<String>,
    pub directories: Vec<String>,
    /// `None` allows a shell while the sandbox enforces its rules for files and network.
    pub shell: Option<bool>,
    /// Whether command lines may `cd /tmp`, because confined commands have a private one. Set from
    /// the sandbox, not by a key.
    pub private_temp: bool,
    pub environment: EnvMode,
    pub max_timeout: Duration,
    pub max_running_time: Duration,
    /// `None` is unlimited.
    pub max_memory_bytes: Option<u64>,
    pub max_processes: Option<u64>,
    pub max_parallel: usize,
    pub max_running: usize,
}

/// `agent`: whether agents are offered the MCP server, and the values set for their loops. A
/// workspace and flags override those values before they are checked together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentConfig {
    pub mcp: bool,
    /// By path below `agent`; a missing path has its default.
    pub values: BTreeMap<String, AgentValue>,
}

/// A value set for agents.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentValue {
    pub value: GivenValue,
    /// Set by an environment variable, which overrides the workspace.
    pub by_variable: bool,
}

/// A value as the configuration file has it.
#[derive(Clone, Debug, PartialEq)]
pub enum GivenValue {
    Text(String),
    Words(Vec<String>),
    Pairs(BTreeMap<String, String>),
}

impl From<&str> for GivenValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}
