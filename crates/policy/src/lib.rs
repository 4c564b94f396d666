//! What a client may run: rules on program, arguments and directory, and caps it cannot raise.
//!
//! Looks at what is asked for, not at what a program then does: an interpreter, a build tool or a
//! script that is allowed can start anything. Against a hostile agent this is no sandbox; the guide
//! says so too.

mod glob;
mod layers;
mod rule;
mod shell;
mod word;
mod wrappers;

use retake_types::text;
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use retake_engine::HIJACKING_VARIABLES;
use retake_types::{EnvMode, Limits};

use retake_runner::config::Config;
use retake_runner::request::ENV_MODES;

use layers::Layers;
use rule::{Denial, Rule};
use word::Word;

pub struct Policy {
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
pub struct Asked<'a> {
    pub arguments: &'a [OsString],
    /// The line that a shell would read.
    pub line: Option<&'a str>,
    pub cwd: &'a Path,
    pub set: &'a [(OsString, OsString)],
    /// The child's PATH.
    pub path: Option<&'a OsStr>,
}

/// Why a command may not run, and what may be done instead.
#[derive(Debug)]
pub struct Denied {
    pub reasons: Vec<String>,
    pub advice: String,
}

impl Policy {
    /// The policy of a project; every rule that cannot be read is a problem.
    pub fn of(config: &Config, project: &Path) -> Result<Self, Vec<String>> {
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
                format!("{} of memory", text::size(memory.unwrap_or(0))),
            ),
            procs: within(
                asked.procs,
                processes,
                match processes {
                    Some(1) => "1 process or thread".to_owned(),
                    most => format!("{} processes and threads", most.unwrap_or(0)),
                },
            ),
            ..asked
        }
    }

    /// Whether a command may run.
    pub fn judge(&self, asked: &Asked<'_>) -> Result<(), Denied> {
        let mut denied = Denied { reasons: Vec::new(), advice: String::new() };
        let layers = Layers::of(asked);
        for directory in layers.directories.iter().map(PathBuf::as_path).chain([asked.cwd]) {
            if self.is_inside(directory) {
                continue;
            }
            denied.say(
                format!(
                    "the working directory {} is outside the project {}",
                    directory.display(),
                    self.directories[0].display()
                ),
                "Use a cwd inside the project, or add the directory to mcp.policy.directories.",
            );
        }
        let set = asked.set.iter().filter_map(|(name, _)| name.to_str());
        for name in set.chain(layers.variables.iter().map(String::as_str)) {
            let loads = HIJACKING_VARIABLES.contains(&name) || name.starts_with("BASH_FUNC_");
            if loads && !self.variables.iter().any(|allowed| allowed == name) {
                denied.say(
                    format!("{name} makes programs load other code"),
                    "Leave it out, or have it added to execution.environment.allow.",
                );
            }
        }
        self.apply_shell(&layers, &mut denied);
        self.apply_rules(&layers, &mut denied);
        if denied.reasons.is_empty() { Ok(()) } else { Err(denied) }
    }

    /// A shell must be allowed, and while it is not, so must be what could turn out to be one.
    fn apply_shell(&self, layers: &Layers, denied: &mut Denied) {
        let has_rules = !(self.allow.is_empty() && self.deny.is_empty());
        if self.shell && !has_rules {
            return;
        }
        if let Some(why) = layers.broken.as_ref().filter(|_| !self.shell) {
            return denied.say(
                why.clone(),
                "Close it, or give the program and its arguments in argv, where quotes mean nothing.",
            );
        }
        if let Some(why) = layers.shell.as_ref().filter(|_| !self.shell) {
            return denied.say(
                format!("{why}, and mcp.policy.shell is off"),
                "Run the program itself with argv; use cwd and env instead of cd and assignments, \
                 several calls instead of && and ;. Both output streams are captured and can be searched with runs_logs.",
            );
        }
        for untold in &layers.untold {
            let why = if has_rules {
                "no rule can be applied to it"
            } else {
                "it could be a shell or leave the project, and mcp.policy.shell is off"
            };
            denied.say(format!("{}, so {why}", untold.what), untold.advice);
        }
    }

    fn apply_rules(&self, layers: &Layers, denied: &mut Denied) {
        const ADVICE: &str = "Use an allowed command, or ask for the rules in .agent/config.yml (mcp.policy) to be changed.";
        for command in &layers.commands {
            let line = || shown(&command.words);
            let lost = layers.is_lost(command);
            let verdicts = self.deny.iter().map(|rule| (rule.denies(command, lost), rule));
            // Of those that weigh the same the first.
            let worst = verdicts.rev().max_by_key(|(denial, _)| *denial);
            match worst {
                Some((Denial::Yes, rule)) => {
                    denied.say(format!("the rule `{rule}` denies {}", line()), ADVICE);
                }
                Some((Denial::Maybe, rule)) => denied.say(
                    format!("whether the rule `{rule}` denies {} cannot be told", line()),
                    "Write the words out that a shell or another program would fill in.",
                ),
                Some((Denial::No, _)) | None => {}
            }
            let has_rules = !(self.allow.is_empty() && self.deny.is_empty());
            if has_rules && lost && command.programs.iter().any(rule::Program::is_relative) {
                denied.say(
                    format!("which file {} would run cannot be told", line()),
                    "Use cwd instead of going to another directory on the way.",
                );
            }
        }
        if self.allow.is_empty() {
            return;
        }
        for command in layers.innermost() {
            let lost = layers.is_lost(command);
            if !self.allow.iter().any(|rule| rule.allows(command, lost)) {
                let unsure = lost && self.allow.iter().any(Rule::is_local);
                let where_it_runs = if unsure { " where it may run" } else { "" };
                let line = shown(&command.words);
                denied.say(format!("no rule allows {line}{where_it_runs}"), ADVICE);
            }
        }
        for file in &layers.writes {
            denied.say(
                format!("the line writes {file:?}, which no rule can allow"),
                "Leave the redirection out: both output streams are captured.",
            );
        }
    }

    /// Whether a directory is in the project, or in one that is allowed, whatever links lead there.
    fn is_inside(&self, directory: &Path) -> bool {
        // What does not exist cannot be run in; its name must still not lead out.
        let found = directory.canonicalize().unwrap_or_else(|_| plain(directory));
        self.directories.iter().any(|allowed| found.starts_with(allowed))
    }
}

impl Denied {
    fn say(&mut self, reason: String, advice: &str) {
        if !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
        if !self.advice.contains(advice) {
            let gap = if self.advice.is_empty() { "" } else { " " };
            self.advice = format!("{}{gap}{advice}", self.advice);
        }
    }
}

/// A command for people; words that are not known yet stand as they were written.
fn shown(words: &[Word]) -> String {
    let one = |word: &Word| match word.text() {
        Some(text) => retake_engine::quote([text.as_str()]),
        None => word.shown(),
    };
    let line = words.iter().map(one).collect::<Vec<_>>().join(" ");
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
