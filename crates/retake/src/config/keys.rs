//! Every configuration key: its name, what it takes, what it is without configuration.
//!
//! One table feeds reading, checking, `config --explain` and the file that `init` writes.

use std::sync::OnceLock;

use retake_agent::settings::{self, Takes};

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
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
    /// An amount of money, more than nothing.
    Money,
    /// `3s`, `20m`, `2h` or seconds.
    Duration,
    /// Names with values.
    Pairs,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) path: &'static str,
    pub(crate) kind: Kind,
    /// Empty means unset where a kind has no empty value.
    pub(crate) default: &'static str,
    pub(crate) about: &'static str,
}

const fn key(path: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Key {
    Key { path, kind, default, about }
}

const fn number(min: u64, max: u64) -> Kind {
    Kind::Number { min, max }
}

const OWN: [Key; 24] = [
    key(
        "execution.default_timeout_seconds",
        number(1, 31_536_000),
        "300",
        "A run without --timeout is ended after this many seconds",
    ),
    key(
        "execution.grace_seconds",
        number(0, 86_400),
        "5",
        "Between asking a run to end (TERM) and killing it",
    ),
    key(
        "execution.max_output_kb",
        number(0, 1_048_576),
        "1024",
        "How much of each stream a result carries; the rest is in the record",
    ),
    key(
        "execution.max_capture_mb",
        number(1, 1 << 40),
        "4096",
        "How much of each stream is kept at most; protects the disk",
    ),
    key(
        "execution.use_shell",
        Kind::Word(&["auto", "true", "false"]),
        "auto",
        "Whether a command given as one string may go through /bin/sh",
    ),
    key(
        "execution.detach_ok",
        Kind::Words,
        "",
        "Programs that may outlive a run, such as a compiler cache daemon",
    ),
    key(
        "execution.environment.mode",
        Kind::Word(&["inherit", "replace", "merge"]),
        "inherit",
        "What a child's variables start from",
    ),
    key(
        "execution.environment.allow",
        Kind::Words,
        "",
        "Variables that mode merge passes on although they look secret or dangerous",
    ),
    key("execution.audit.enabled", Kind::Truth, "true", "Whether runs are recorded"),
    key(
        "execution.audit.required",
        Kind::Truth,
        "false",
        "Whether a run that cannot be recorded is refused",
    ),
    key(
        "execution.audit.retention_days",
        number(0, 36_500),
        "30",
        "Recorded exec runs are deleted after this many days; 0 keeps them for ever",
    ),
    key(
        "redaction.secrets",
        Kind::Words,
        "",
        "Variables whose values are secret although their names do not look so",
    ),
    key(
        "redaction.allow",
        Kind::Words,
        "",
        "Variables whose values are not secret although their names look so",
    ),
    key(
        "redaction.patterns",
        Kind::Words,
        "",
        "Further secrets to replace in output and arguments, as NAME=REGEX",
    ),
    key(
        "tracking.ignore",
        Kind::Words,
        "",
        "Files that --track leaves out, as in .gitignore, beyond what ignore files say",
    ),
    key(
        "tests.reports",
        Kind::Words,
        "",
        "Where --tests looks for report files besides the usual places, as globs",
    ),
    key(
        "record.push",
        Kind::Text,
        "",
        "A PostgreSQL that gets every run after each loop, as postgres://USER@HOST/DATABASE",
    ),
    key("slurm.partition", Kind::Text, "", "Where --on slurm runs; --on slurm:NAME goes before"),
    key("slurm.account", Kind::Text, "", "The account that Slurm charges"),
    key("slurm.qos", Kind::Text, "", "The quality of service that is asked for"),
    key("slurm.options", Kind::Words, "", "Further options of sbatch, such as --mem=2G"),
    key(
        "slurm.shared_dir",
        Kind::Text,
        "",
        "A directory that this machine and every node see under the same name",
    ),
    key(
        "slurm.max_in_flight",
        number(0, 1_000_000),
        "0",
        "How many cells run at once on Slurm; 0 leaves that to Slurm",
    ),
    key(
        "slurm.pack",
        number(1, 10_000),
        "1",
        "How many cells one Slurm task runs, one after the other; more for short ones",
    ),
];

const MCP: [Key; 11] = [
    key(
        "mcp.policy.allow",
        Kind::Words,
        "",
        "Rules (PROGRAM ARGUMENT... @ DIRECTORY) for what MCP clients may run; without any, all that is not denied",
    ),
    key("mcp.policy.deny", Kind::Words, "", "Rules for what MCP clients may not run"),
    key(
        "mcp.policy.directories",
        Kind::Words,
        "",
        "Directories besides the project in which MCP clients may run commands",
    ),
    key("mcp.policy.shell", Kind::Truth, "false", "Whether MCP clients may use a shell"),
    key(
        "mcp.policy.environment",
        Kind::Word(&["inherit", "replace", "merge"]),
        "merge",
        "What the variables of commands that MCP clients run start from",
    ),
    key(
        "mcp.policy.max_timeout_seconds",
        number(1, 31_536_000),
        "3600",
        "The longest time limit that an MCP client can give a command",
    ),
    key(
        "mcp.policy.max_running_seconds",
        number(1, 31_536_000),
        "86400",
        "How long a command that an MCP client leaves running may go on",
    ),
    key(
        "mcp.policy.max_memory_mb",
        number(0, 1 << 40),
        "0",
        "The most memory that a command of an MCP client may use; 0 for no limit",
    ),
    key(
        "mcp.policy.max_processes",
        number(0, 1 << 22),
        "0",
        "The most processes and threads that a command of an MCP client may have; 0 for no limit",
    ),
    key(
        "mcp.policy.max_parallel",
        number(1, 256),
        "16",
        "How many commands of one MCP client run at once; further ones wait",
    ),
    key(
        "mcp.policy.max_running",
        number(0, 64),
        "16",
        "How many commands one MCP client may leave running",
    ),
];

/// Of agents, but for us to read.
const OFFER: Key = key(
    "agent.mcp",
    Kind::Truth,
    "false",
    "Whether agents are offered retake's MCP server to run their commands with",
);

/// All keys: retake's own, and those of agents under `agent`.
pub(crate) fn keys() -> &'static [Key] {
    static ALL: OnceLock<Vec<Key>> = OnceLock::new();
    ALL.get_or_init(|| {
        let of_agents = settings::KEYS.iter().map(of_agents);
        OWN.into_iter().chain(MCP).chain(of_agents).chain([OFFER]).collect()
    })
}

fn of_agents(key: &settings::Key) -> Key {
    Key {
        // Once for each key in a program's life.
        path: Box::leak(format!("agent.{}", key.path).into_boxed_str()),
        kind: match key.takes {
            Takes::Text => Kind::Text,
            Takes::Number { min, max } => Kind::Number { min, max },
            Takes::Money => Kind::Money,
            Takes::Truth => Kind::Truth,
            Takes::Duration => Kind::Duration,
            Takes::Word(words) => Kind::Word(words),
            Takes::Words => Kind::Words,
            Takes::Pairs => Kind::Pairs,
        },
        default: key.default,
        about: key.about,
    }
}

/// Finds a key, or the one that was probably meant.
pub(crate) fn find(path: &str) -> Result<&'static Key, Option<&'static str>> {
    if let Some(key) = keys().iter().find(|key| key.path == path) {
        return Ok(key);
    }
    let nearest = keys().iter().map(|key| (strsim::levenshtein(path, key.path), key.path)).min();
    Err(nearest.filter(|(distance, _)| *distance <= 2 + path.len() / 4).map(|(_, path)| path))
}

/// Whether other keys lie below this path.
pub(crate) fn is_group(path: &str) -> bool {
    keys().iter().any(|key| key.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

/// The text of a configuration file with every default, commented out.
pub(crate) fn commented_defaults() -> String {
    let mut text = String::from(
        "# retake's configuration for this project. Every key is optional; what is commented out\n\
         # shows the default. `retake config --explain` tells where each value comes from.\n",
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
            Kind::Words => format!("[{}]", key.default),
            Kind::Pairs => "{}".to_owned(),
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
    fn a_slip_of_the_pen_is_recognised() {
        assert!(find("execution.max_output_kb").is_ok());
        assert_eq!(find("execution.max_output_kbs").err(), Some(Some("execution.max_output_kb")));
        assert_eq!(find("execution.timeout").err(), Some(None));
        assert_eq!(find("zzz").err(), Some(None));
        assert!(is_group("execution") && is_group("execution.audit") && !is_group("execution.aud"));
    }
}
