//! The configuration as typed sections, and the table of all keys.
//!
//! The table feeds reading, checking, `config --explain`, the file that `init` writes and the
//! documentation. A section is filled once, when the configuration is read; nothing looks a value
//! up by its path afterwards.

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
    /// How much of each stream a result carries.
    pub max_output_bytes: u64,
    /// How much of each stream is kept at most.
    pub max_capture_bytes: u64,
    pub use_shell: ShellMode,
    /// Programs that may outlive a run.
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
    /// 0 keeps runs for ever.
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
    /// 0 leaves it to Slurm.
    pub max_in_flight: u64,
    pub pack: u64,
    /// How long a result may take to become visible.
    pub visible_after: Duration,
    /// The setup of a matrix runs on a node, not on the machine that submits.
    pub setup_on_node: bool,
}

/// `mcp.policy.preset`: rules that hold besides those of the project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyPreset {
    None,
    /// Nothing that is hard to undo: history that others have, whole trees, downloaded scripts.
    Careful,
}

/// `mcp.policy`: what clients of the MCP server may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyConfig {
    /// Rules that are ready to start from.
    pub preset: PolicyPreset,
    pub allow: Vec<String>,
    pub deny: Vec<String>,
    pub directories: Vec<String>,
    /// `None`: while the sandbox keeps its promises about files and network.
    pub shell: Option<bool>,
    /// Whether lines may change to `/tmp`, which confined commands have for themselves. Not a key: the
    /// sandbox decides it.
    pub private_temp: bool,
    pub environment: EnvMode,
    pub max_timeout: Duration,
    pub max_running_time: Duration,
    /// `None` is no limit.
    pub max_memory_bytes: Option<u64>,
    pub max_processes: Option<u64>,
    pub max_parallel: usize,
    pub max_running: usize,
}

/// `agent`: whether agents are offered the MCP server, and what is set for their loops. A
/// workspace and flags override those values before they are checked together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentConfig {
    pub mcp: bool,
    /// By path below `agent`; what is not set has its default.
    pub values: BTreeMap<String, AgentValue>,
}

/// A value that is set for agents.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentValue {
    pub value: GivenValue,
    /// A variable of the environment overrides what a workspace sets.
    pub by_variable: bool,
}

/// A value as configuration gives it.
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
