//! What a client may run: rules on program, arguments and directory, and caps it cannot raise.
//!
//! Looks at what is asked for, not at what a program then does: an interpreter, a build tool or a
//! script that is allowed can start anything. Against a hostile agent this is no sandbox; the guide
//! says so too.

mod glob;
mod layers;
mod rule;

use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use retake_engine::HIJACKERS;
use retake_event::{EnvMode, Limits};

use crate::config::Config;
use crate::request::ENV_MODES;
use crate::term;
use layers::Layers;
use rule::{Program, Rule};

pub(crate) struct Policy {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
    /// The project and what else is allowed, without symbolic links.
    directories: Vec<PathBuf>,
    shell: bool,
    mode: EnvMode,
    /// Variables that may be given although they make programs load code.
    variables: Vec<String>,
    max_timeout: Duration,
    max_running: Duration,
    max_memory: Option<u64>,
    max_processes: Option<u64>,
}

/// A command, as far as the policy is concerned.
pub(crate) struct Asked<'a> {
    pub(crate) arguments: &'a [OsString],
    /// The line that a shell would read.
    pub(crate) line: Option<&'a str>,
    pub(crate) cwd: &'a Path,
    pub(crate) set: &'a [(OsString, OsString)],
    /// The child's PATH.
    pub(crate) path: Option<&'a OsStr>,
}

/// Why a command may not run, and what may be done instead.
#[derive(Debug)]
pub(crate) struct Denied {
    pub(crate) reasons: Vec<String>,
    pub(crate) advice: String,
}

impl Policy {
    /// The policy of a project; every rule that cannot be read is a problem.
    pub(crate) fn of(config: &Config, project: &Path) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let mut rules = |key: &str| -> Vec<Rule> {
            let words = config.words(key).iter();
            words
                .filter_map(|text| {
                    Rule::parse(text, project)
                        .map_err(|why| problems.push(format!("{key}: {text:?}: {why}")))
                        .ok()
                })
                .collect()
        };
        let (allow, deny) = (rules("mcp.policy.allow"), rules("mcp.policy.deny"));
        let mut directories = vec![real(project)];
        for given in config.words("mcp.policy.directories") {
            directories.push(real(&project.join(given)));
        }
        let cap = |key| Some(config.number(key)).filter(|number| *number > 0);
        let seconds = |key| Duration::from_secs(config.number(key));
        let mode = config.word("mcp.policy.environment");
        let policy = Self {
            allow,
            deny,
            directories,
            shell: config.truth("mcp.policy.shell"),
            mode: ENV_MODES
                .iter()
                .find(|(word, _)| *word == mode)
                .map_or(EnvMode::Merge, |(_, mode)| *mode),
            variables: config.words("execution.environment.allow").to_vec(),
            max_timeout: seconds("mcp.policy.max_timeout_seconds"),
            max_running: seconds("mcp.policy.max_running_seconds"),
            max_memory: cap("mcp.policy.max_memory_mb").map(|mb| mb << 20),
            max_processes: cap("mcp.policy.max_processes"),
        };
        if problems.is_empty() { Ok(policy) } else { Err(problems) }
    }

    pub(super) fn mode(&self) -> EnvMode {
        self.mode
    }

    /// The time limit in force, and whether it is less than was asked for.
    pub(super) fn timeout(
        &self,
        asked: Option<Duration>,
        background: bool,
        config: &Config,
    ) -> (Duration, bool) {
        let most = if background { self.max_running } else { self.max_timeout };
        let usual = Duration::from_secs(config.number("execution.default_timeout_seconds"));
        let wanted = asked.unwrap_or(if background { most } else { usual });
        (wanted.min(most), asked.is_some() && wanted > most)
    }

    /// The limits in force; says where they are less than was asked for.
    pub(super) fn limits(&self, asked: Limits, notes: &mut Vec<String>) -> Limits {
        let mut within = |asked: Option<u64>, most: Option<u64>, what: String| match (asked, most) {
            (Some(asked), Some(most)) if asked > most => {
                notes.push(format!("The policy allows at most {what}, so that is the limit."));
                Some(most)
            }
            (asked, most) => asked.or(most),
        };
        let (memory, processes) = (self.max_memory, self.max_processes);
        Limits {
            memory_bytes: within(
                asked.memory_bytes,
                memory,
                format!("{} of memory", term::size(memory.unwrap_or(0))),
            ),
            procs: within(
                asked.procs,
                processes,
                term::count(processes.unwrap_or(0), "process and thread"),
            ),
            ..asked
        }
    }

    /// Whether a command may run.
    pub(crate) fn judge(&self, asked: &Asked<'_>) -> Result<(), Denied> {
        let mut reasons = Vec::new();
        let mut advice = Vec::new();
        let layers = Layers::of(asked.arguments, asked.line);
        let gone_to = layers.directories.iter().map(|directory| asked.cwd.join(directory));
        for directory in gone_to.chain([asked.cwd.to_owned()]) {
            if self.is_inside(&directory) {
                continue;
            }
            reasons.push(format!(
                "the working directory {} is outside the project {}",
                directory.display(),
                self.directories[0].display()
            ));
            advice.push(
                "Use a cwd inside the project, or add the directory to mcp.policy.directories.",
            );
        }
        let set = asked.set.iter().filter_map(|(name, _)| name.to_str());
        for name in set.chain(layers.variables.iter().map(String::as_str)) {
            if HIJACKERS.contains(&name) && !self.variables.iter().any(|allowed| allowed == name) {
                reasons.push(format!("{name} makes programs load other code"));
                advice.push("Leave it out, or have it added to execution.environment.allow.");
            }
        }
        if let Some(why) = layers.shell.as_ref().filter(|_| !self.shell) {
            reasons.push(format!("{why}, and mcp.policy.shell is off"));
            advice.push(
                "Run the program itself with argv; use cwd and env instead of cd and assignments, \
                 several calls instead of && and ;. Both output streams are captured and can be searched with runs_logs.",
            );
        }
        let before = reasons.len();
        self.apply_rules(asked, &layers, &mut reasons);
        if reasons.len() > before {
            advice.push("Use an allowed command, or ask for the rules in .agent/config.yml (mcp.policy) to be changed.");
        }
        if reasons.is_empty() {
            return Ok(());
        }
        Err(Denied { reasons, advice: advice.join(" ") })
    }

    fn apply_rules(&self, asked: &Asked<'_>, layers: &Layers, reasons: &mut Vec<String>) {
        if self.allow.is_empty() && self.deny.is_empty() {
            return;
        }
        if let Some(what) = &layers.hidden {
            reasons.push(format!("what {what} would run cannot be told, so no rule can allow it"));
        }
        let cwd = real(asked.cwd);
        let known = |arguments: &[OsString]| {
            Program::find(arguments.first().map_or(OsStr::new(""), |p| p), asked.path, asked.cwd)
        };
        for layer in layers.all() {
            let program = known(layer);
            if let Some(rule) = self.deny.iter().find(|rule| rule.denies(&program, layer, &cwd)) {
                reasons.push(format!("the rule `{rule}` denies {}", shown(layer)));
            }
        }
        if self.allow.is_empty() {
            return;
        }
        for layer in layers.innermost() {
            let program = known(layer);
            if !self.allow.iter().any(|rule| rule.allows(&program, layer, &cwd)) {
                reasons.push(format!("no rule allows {}", shown(layer)));
            }
        }
        for line in &layers.unreadable {
            reasons.push(format!(
                "{line:?} has parts that only a shell can read, so no rule can allow it"
            ));
        }
    }

    /// Whether a directory is in the project, or in one that is allowed, whatever links lead there.
    fn is_inside(&self, directory: &Path) -> bool {
        // What does not exist cannot be run in; its name must still not lead out.
        let found = directory.canonicalize().unwrap_or_else(|_| plain(directory));
        self.directories.iter().any(|allowed| found.starts_with(allowed))
    }
}

fn shown(arguments: &[OsString]) -> String {
    let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
    let line = retake_engine::quote(words.iter().map(AsRef::as_ref));
    format!("`{}`", super::view::cut(&line, 200))
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| plain(path))
}

/// A path without `..`, as far as its text tells.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = plain.pop(),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests;
