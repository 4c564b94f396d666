//! Every configuration key: its name, its kind of value, its default.
//!
//! One table feeds reading, checking, `config --explain` and the file that `init` writes.

use super::{agent_keys, sandbox_keys};

/// The kind of value that a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// A whole number within these bounds.
    Number {
        min: u64,
        max: u64,
    },
    Truth,
    /// One of these words.
    Word(&'static [&'static str]),
    Words,
    Text,
    /// An amount of money above zero.
    Money,
    /// `3s`, `20m`, `2h` or seconds.
    Duration,
    /// NAME: VALUE pairs.
    Pairs,
}

#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub path: &'static str,
    pub kind: KeyKind,
    /// For kinds without an empty value, empty means unset.
    pub default: &'static str,
    pub about: &'static str,
    /// Whether a workspace may set it in the `config` object of its metadata.
    pub workspace: bool,
}

impl Key {
    /// The last part of the path.
    pub fn name(&self) -> &'static str {
        self.path.rsplit('.').next().unwrap_or(self.path)
    }

    /// The path without its last part.
    pub fn section(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(section, _)| section)
    }
}

pub(super) const fn key(
    path: &'static str,
    kind: KeyKind,
    default: &'static str,
    about: &'static str,
) -> Key {
    Key { path, kind, default, about, workspace: false }
}

const fn number(min: u64, max: u64) -> KeyKind {
    KeyKind::Number { min, max }
}

const OWN: [Key; 26] = [
    key(
        "execution.default_timeout_seconds",
        number(1, 31_536_000),
        "300",
        "Timeout of a run without --timeout, in seconds",
    ),
    key("execution.grace_seconds", number(0, 86_400), "5", "Time between SIGTERM and SIGKILL"),
    key(
        "execution.max_output_kb",
        number(0, 1_048_576),
        "1024",
        "Maximum size of each stream in a result, in KiB; the record has the rest",
    ),
    key(
        "execution.max_capture_mb",
        number(1, 1 << 40),
        "4096",
        "Maximum size of each recorded stream; protects the disk",
    ),
    key(
        "execution.use_shell",
        KeyKind::Word(&["auto", "true", "false"]),
        "auto",
        "Whether a command given as one string may go through /bin/sh",
    ),
    key(
        "execution.detach_ok",
        KeyKind::Words,
        "",
        "Programs that may keep running after a run, such as a compiler cache daemon",
    ),
    key(
        "execution.environment.mode",
        KeyKind::Word(&["inherit", "replace", "merge"]),
        "inherit",
        "Variables that a command starts with",
    ),
    key(
        "execution.environment.allow",
        KeyKind::Words,
        "",
        "Variables that mode merge keeps although they look secret or dangerous",
    ),
    key("execution.audit.enabled", KeyKind::Truth, "true", "Whether runs are recorded"),
    key(
        "execution.audit.required",
        KeyKind::Truth,
        "false",
        "Whether a run that cannot be recorded is refused",
    ),
    key(
        "execution.audit.retention_days",
        number(0, 36_500),
        "30",
        "Recorded exec runs are deleted after this many days; 0 keeps them forever",
    ),
    key(
        "redaction.secrets",
        KeyKind::Words,
        "",
        "Variables to treat as secrets although their names do not look secret",
    ),
    key(
        "redaction.allow",
        KeyKind::Words,
        "",
        "Variables not to treat as secrets although their names look secret",
    ),
    key(
        "redaction.patterns",
        KeyKind::Words,
        "",
        "Further secrets to replace in output and arguments, as NAME=REGEX",
    ),
    key(
        "tracking.ignore",
        KeyKind::Words,
        "",
        "Files that --track leaves out, as in .gitignore, beyond what ignore files say",
    ),
    key(
        "tests.reports",
        KeyKind::Words,
        "",
        "Where --tests looks for report files besides the usual places, as globs",
    ),
    key(
        "record.push",
        KeyKind::Text,
        "",
        "A PostgreSQL database to copy runs to after each loop, as postgres://USER@HOST/DATABASE",
    ),
    key(
        "slurm.partition",
        KeyKind::Text,
        "",
        "Partition for --on slurm; --on slurm:NAME overrides it",
    ),
    key("slurm.account", KeyKind::Text, "", "Account to charge"),
    key("slurm.qos", KeyKind::Text, "", "Quality of service to request"),
    key("slurm.options", KeyKind::Words, "", "More options for sbatch, such as --mem=2G"),
    key(
        "slurm.shared_dir",
        KeyKind::Text,
        "",
        "A directory that this machine and every node see under the same name",
    ),
    key(
        "slurm.max_in_flight",
        number(0, 1_000_000),
        "0",
        "Maximum cells at once on Slurm; 0 leaves the number to Slurm",
    ),
    key(
        "slurm.pack",
        number(1, 10_000),
        "1",
        "Cells per Slurm task, run one after the other; raise it for short cells",
    ),
    key(
        "slurm.visible_after",
        KeyKind::Duration,
        "60s",
        "Time to wait for a result to appear on this machine before its cell runs again",
    ),
    key(
        "slurm.setup_on",
        KeyKind::Word(&["submitter", "node"]),
        "submitter",
        "Where the setup of a matrix runs: on this machine, or on a node like its cells",
    ),
];

const MCP: [Key; 12] = [
    key(
        "mcp.policy.preset",
        KeyKind::Word(&["none", "careful"]),
        "none",
        "Rules to start from: careful denies commands that are hard to undo, and allows shell lines; `mcp.policy: careful` is the same",
    ),
    key(
        "mcp.policy.allow",
        KeyKind::Words,
        "",
        "Rules (PROGRAM ARGUMENT... @ DIRECTORY) for what MCP clients may run; empty allows everything that is not denied",
    ),
    key("mcp.policy.deny", KeyKind::Words, "", "Rules for what MCP clients may not run"),
    key(
        "mcp.policy.directories",
        KeyKind::Words,
        "",
        "Directories besides the project in which MCP clients may run commands",
    ),
    key(
        "mcp.policy.shell",
        KeyKind::Word(&["auto", "true", "false"]),
        "auto",
        "Whether MCP clients may use a shell; auto: while the sandbox keeps its promises about files and network",
    ),
    key(
        "mcp.policy.environment",
        KeyKind::Word(&["inherit", "replace", "merge"]),
        "merge",
        "Variables that commands of MCP clients start with",
    ),
    key(
        "mcp.policy.max_timeout_seconds",
        number(1, 31_536_000),
        "3600",
        "Longest timeout that an MCP client can set",
    ),
    key(
        "mcp.policy.max_running_seconds",
        number(1, 31_536_000),
        "86400",
        "Timeout of a background command of an MCP client",
    ),
    key(
        "mcp.policy.max_memory_mb",
        number(0, 1 << 40),
        "0",
        "Memory limit of a command of an MCP client; 0 for no limit",
    ),
    key(
        "mcp.policy.max_processes",
        number(0, 1 << 22),
        "0",
        "Limit on processes and threads of a command of an MCP client; 0 for no limit",
    ),
    key(
        "mcp.policy.max_parallel",
        number(1, 256),
        "16",
        "Maximum commands of one MCP client at once; more are queued",
    ),
    key(
        "mcp.policy.max_running",
        number(0, 64),
        "16",
        "Maximum background commands of one MCP client",
    ),
];

/// Every key: retake's own, those of the sandbox, of the MCP server, of agents.
pub fn keys() -> impl Iterator<Item = &'static Key> {
    OWN.iter().chain(&sandbox_keys::KEYS).chain(&MCP).chain(&agent_keys::KEYS)
}

/// Why a key is unknown, as far as its name tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnknownKey {
    /// The key that was probably meant.
    Misspelled {
        meant: &'static str,
    },
    /// The key exists, but in another section.
    WrongLevel {
        belongs_in: &'static str,
    },
    Unknown,
}

/// Finds a key by its full path.
pub fn find(path: &str) -> Result<&'static Key, UnknownKey> {
    if let Some(key) = keys().find(|key| key.path == path) {
        return Ok(key);
    }
    let name = path.rsplit('.').next().unwrap_or(path);
    let mut same_name = keys().filter(|key| key.name() == name);
    if let (Some(key), None) = (same_name.next(), same_name.next()) {
        return Err(UnknownKey::WrongLevel { belongs_in: key.section() });
    }
    let nearest = keys().map(|key| (strsim::levenshtein(path, key.path), key.path)).min();
    match nearest.filter(|(distance, _)| *distance <= 2 + path.len() / 4) {
        Some((_, meant)) => Err(UnknownKey::Misspelled { meant }),
        None => Err(UnknownKey::Unknown),
    }
}

/// Whether other keys lie below this path.
pub fn is_group(path: &str) -> bool {
    keys().any(|key| key.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

/// The section that a misspelled top-level name probably means: one that has at least one of the
/// keys found below the name. Any other name belongs to another tool that shares the file.
pub fn misspelled_section<'a>(
    name: &str,
    inside: impl Iterator<Item = &'a str> + Clone,
) -> Option<&'static str> {
    let near = keys().map(|key| key.path.split('.').next().unwrap_or(key.path));
    let near = near.filter(|section| strsim::levenshtein(name, section) <= 2);
    near.into_iter().find(|section| {
        inside.clone().any(|key| {
            let path = format!("{section}.{key}");
            is_group(&path) || keys().any(|known| known.path == path)
        })
    })
}

/// A configuration file with every default, commented out.
pub fn commented_defaults() -> String {
    let mut text = String::from(
        "# retake's configuration for this project. Every key is optional; what is commented out\n\
         # shows the default. `retake config --explain` shows where each value comes from.\n",
    );
    let mut open: Vec<&str> = Vec::new();
    for key in keys() {
        let parts: Vec<_> = key.path.split('.').collect();
        let (name, groups) = parts.split_last().expect("a path has a name");
        let common = open.iter().zip(groups).take_while(|(a, b)| a == b).count();
        for (depth, group) in groups.iter().enumerate().skip(common) {
            text.push_str(&format!("\n# {}{group}:\n", "  ".repeat(depth)));
        }
        open = groups.to_vec();
        let indent = "  ".repeat(groups.len());
        let value = match key.kind {
            KeyKind::Words => format!("[{}]", key.default),
            KeyKind::Pairs => "{}".to_owned(),
            _ => key.default.to_owned(),
        };
        text.push_str(&format!("# {indent}# {}\n# {indent}{name}: {value}\n", key.about));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_or_misplaced_key_is_recognised() {
        assert!(find("execution.max_output_kb").is_ok());
        let meant = |path: &str| find(path).err();
        assert_eq!(
            meant("execution.max_output_kbs"),
            Some(UnknownKey::Misspelled { meant: "execution.max_output_kb" })
        );
        assert_eq!(
            meant("execution.retention_days"),
            Some(UnknownKey::WrongLevel { belongs_in: "execution.audit" })
        );
        assert_eq!(
            meant("max_capture_mb"),
            Some(UnknownKey::WrongLevel { belongs_in: "execution" })
        );
        assert_eq!(meant("zzz"), Some(UnknownKey::Unknown));
        assert!(is_group("execution") && is_group("execution.audit") && !is_group("execution.aud"));
    }

    #[test]
    fn a_section_of_another_tool_is_not_a_misspelled_one() {
        assert_eq!(misspelled_section("excution", ["use_shell"].into_iter()), Some("execution"));
        assert_eq!(misspelled_section("test", ["runner", "paths"].into_iter()), None);
        assert_eq!(misspelled_section("deploy", ["use_shell"].into_iter()), None);
    }
}
