//! What a client may run: rules on program, arguments and directory, and caps it cannot raise.
//!
//! Judges what is asked for, not what a program then does: an interpreter, a build tool or a script
//! that is allowed can start anything. Against a hostile agent this is no sandbox; the guide says so
//! too. Nothing is run and nothing is worded in here: refusals are variants, and the front end that
//! shows them makes the sentences.

mod glob;
mod path;
mod refusal;
mod rule;
mod shell;
mod started_commands;
mod word;
mod wrappers;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_engine::{HIJACKING_VARIABLES, interpret, which};
use retake_types::config::PolicyConfig;
use retake_types::request::millis;
use retake_types::{EnvMode, RunRequest, ShellMode};

pub use refusal::{
    AmbiguousSyntax, AppliedCap, HiddenBecause, InvalidRule, LineSource, PolicyRefusal, RuleError,
    RuleList, ShellUse, Unpredictable, UnreadableLine,
};

use path::resolved;
use rule::{Denial, Program, Rule};
use started_commands::StartedCommands;
use word::command_line;

/// The rules and caps of a project.
pub struct Policy {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
    /// The project and what else is allowed, without symbolic links.
    directories: Vec<PathBuf>,
    shell: bool,
    environment_mode: EnvMode,
    /// Variables that may be given although they make programs load code.
    allowed_variables: Vec<String>,
    max_timeout: Duration,
    max_background_time: Duration,
    max_memory_bytes: Option<u64>,
    max_processes: Option<u64>,
}

/// A command that somebody wants to run.
pub struct ProposedCommand<'a> {
    pub arguments: &'a [OsString],
    /// The line that a shell would read.
    pub line: Option<&'a str>,
    pub cwd: &'a Path,
    /// Variables that are set for it.
    pub set: &'a [(OsString, OsString)],
    /// The PATH that it gets.
    pub path: Option<&'a OsStr>,
}

/// Whether a caller waits for the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunMode {
    Foreground,
    Background,
}

impl Policy {
    /// The policy of a project; every rule that cannot be read is named.
    pub fn new(
        config: &PolicyConfig,
        environment_allow: &[String],
        project: &Path,
    ) -> Result<Self, Vec<InvalidRule>> {
        let mut invalid = Vec::new();
        let mut rules = |list: RuleList, texts: &[String]| -> Vec<Rule> {
            let parse = |text: &String| {
                let refuse = |error| InvalidRule { list, text: text.clone(), error };
                Rule::parse(text, project).map_err(|error| invalid.push(refuse(error))).ok()
            };
            texts.iter().filter_map(parse).collect()
        };
        let allow = rules(RuleList::Allow, &config.allow);
        let deny = rules(RuleList::Deny, &config.deny);
        if !invalid.is_empty() {
            return Err(invalid);
        }
        let mut directories = vec![resolved(project)];
        directories.extend(config.directories.iter().map(|given| resolved(&project.join(given))));
        Ok(Self {
            allow,
            deny,
            directories,
            shell: config.shell,
            environment_mode: config.environment,
            allowed_variables: environment_allow.to_vec(),
            max_timeout: config.max_timeout,
            max_background_time: config.max_running_time,
            max_memory_bytes: config.max_memory_bytes,
            max_processes: config.max_processes,
        })
    }

    /// What the variables of a command start from when its caller has no say.
    pub fn environment_mode(&self) -> EnvMode {
        self.environment_mode
    }

    /// The mode that passes on fewer variables: the given one or the policy's.
    pub fn stricter_environment_mode(&self, given: EnvMode) -> EnvMode {
        let strictness = |mode: &EnvMode| match mode {
            EnvMode::Inherit => 0,
            EnvMode::Merge => 1,
            EnvMode::Replace => 2,
        };
        [given, self.environment_mode].into_iter().max_by_key(strictness).unwrap_or(given)
    }

    /// The time limit of a run whose caller gives none; `usual` is the configured one.
    pub fn default_timeout(&self, mode: RunMode, usual: Duration) -> Duration {
        match mode {
            RunMode::Foreground => usual.min(self.max_timeout),
            RunMode::Background => self.max_background_time,
        }
    }

    /// Brings a request within the caps, and says which of its limits were lowered.
    pub fn apply_caps(&self, request: &mut RunRequest, mode: RunMode) -> Vec<AppliedCap> {
        let mut applied = Vec::new();
        let most = match mode {
            RunMode::Foreground => self.max_timeout,
            RunMode::Background => self.max_background_time,
        };
        if request.timeout_ms.is_none_or(|timeout| timeout > millis(most)) {
            request.set_timeout(Some(most));
            applied.push(AppliedCap::Timeout(most));
        }
        let limits = &mut request.limits;
        if lower(&mut limits.memory_bytes, self.max_memory_bytes) {
            applied.extend(self.max_memory_bytes.map(AppliedCap::MemoryBytes));
        }
        if lower(&mut limits.procs, self.max_processes) {
            applied.extend(self.max_processes.map(AppliedCap::Processes));
        }
        applied
    }

    /// Judges a command line as clients give it: through a shell only where it needs one. Takes any
    /// text, so that a fuzzer can call it.
    pub fn judge_line(
        &self,
        line: &str,
        cwd: &Path,
        path: Option<&OsStr>,
    ) -> Result<(), Vec<PolicyRefusal>> {
        let found = |name: &str| which(OsStr::new(name), path, cwd).is_some();
        // Only a mode that forbids a shell has no way to run a line.
        let (arguments, shell) = interpret(line, ShellMode::Auto, found)
            .map_or((Vec::new(), true), |read| (read.arguments, read.shell));
        let arguments: Vec<OsString> = arguments.into_iter().map(OsString::from).collect();
        let line = Some(line).filter(|_| shell);
        self.judge(&ProposedCommand { arguments: &arguments, line, cwd, set: &[], path })
    }

    /// Whether a command may run; every reason against it is named once.
    pub fn judge(&self, proposed: &ProposedCommand<'_>) -> Result<(), Vec<PolicyRefusal>> {
        let started = StartedCommands::of(proposed);
        let mut refusals = self.check_directories(proposed, &started);
        refusals.extend(self.check_variables(proposed, &started));
        refusals.extend(self.check_shell(&started));
        refusals.extend(self.check_rules(&started));
        let mut distinct: Vec<PolicyRefusal> = Vec::new();
        for refusal in refusals {
            if !distinct.contains(&refusal) {
                distinct.push(refusal);
            }
        }
        if distinct.is_empty() { Ok(()) } else { Err(distinct) }
    }

    fn check_directories(
        &self,
        proposed: &ProposedCommand<'_>,
        started: &StartedCommands,
    ) -> Vec<PolicyRefusal> {
        let directories = started.directories.iter().map(PathBuf::as_path).chain([proposed.cwd]);
        let outside = directories.filter(|directory| !self.is_inside(directory));
        let refuse = |directory: &Path| PolicyRefusal::DirectoryOutside {
            directory: directory.to_owned(),
            project: self.directories[0].clone(),
        };
        outside.map(refuse).collect()
    }

    fn check_variables(
        &self,
        proposed: &ProposedCommand<'_>,
        started: &StartedCommands,
    ) -> Vec<PolicyRefusal> {
        let set = proposed.set.iter().filter_map(|(name, _)| name.to_str());
        let names = set.chain(started.variables.iter().map(String::as_str));
        let loads_code = |name: &&str| {
            (HIJACKING_VARIABLES.contains(name) || name.starts_with("BASH_FUNC_"))
                && !self.allowed_variables.iter().any(|allowed| allowed == name)
        };
        let refuse = |name: &str| PolicyRefusal::CodeLoadingVariable { name: name.to_owned() };
        names.filter(loads_code).map(refuse).collect()
    }

    fn has_rules(&self) -> bool {
        !(self.allow.is_empty() && self.deny.is_empty())
    }

    /// A shell must be allowed, and while it is not, so must be what could turn out to be one.
    fn check_shell(&self, started: &StartedCommands) -> Vec<PolicyRefusal> {
        if !self.shell {
            if let Some(quote) = started.open_quote {
                return vec![PolicyRefusal::OpenQuote(quote)];
            }
            if let Some(shell) = &started.shell {
                return vec![PolicyRefusal::ShellOff(shell.clone())];
            }
        }
        let refuse: fn(Unpredictable) -> PolicyRefusal = match (self.has_rules(), self.shell) {
            (true, _) => PolicyRefusal::NoRuleApplies,
            (false, false) => PolicyRefusal::MayBeShell,
            (false, true) => return Vec::new(),
        };
        started.unpredictable.iter().cloned().map(refuse).collect()
    }

    fn check_rules(&self, started: &StartedCommands) -> Vec<PolicyRefusal> {
        let mut refusals = Vec::new();
        for command in &started.commands {
            let line = || command_line(&command.words);
            let unknown = started.is_directory_unknown(command);
            let denials = self.deny.iter().map(|rule| (rule.denies(command, unknown), rule));
            // Of those that weigh the same the first.
            match denials.rev().max_by_key(|(denial, _)| *denial) {
                Some((Denial::Yes, rule)) => {
                    let rule = rule.to_string();
                    refusals.push(PolicyRefusal::DeniedByRule { rule, command: line() });
                }
                Some((Denial::Maybe, rule)) => {
                    let rule = rule.to_string();
                    refusals.push(PolicyRefusal::MayBeDenied { rule, command: line() });
                }
                Some((Denial::No, _)) | None => {}
            }
            let is_relative = || command.programs.iter().any(Program::is_relative);
            if self.has_rules() && unknown && is_relative() {
                refusals.push(PolicyRefusal::UnknownProgramFile { command: line() });
            }
        }
        if !self.allow.is_empty() {
            refusals.extend(self.check_allowed(started));
        }
        refusals
    }

    fn check_allowed(&self, started: &StartedCommands) -> Vec<PolicyRefusal> {
        let mut refusals = Vec::new();
        for command in started.innermost() {
            let unknown = started.is_directory_unknown(command);
            if !self.allow.iter().any(|rule| rule.allows(command, unknown)) {
                refusals.push(PolicyRefusal::NotAllowed {
                    command: command_line(&command.words),
                    directory_unknown: unknown && self.allow.iter().any(Rule::is_local),
                });
            }
        }
        refusals.extend(started.written_files.iter().cloned().map(PolicyRefusal::WritesFile));
        refusals
    }

    /// Whether a directory is in the project, or in one that is allowed, whatever links lead there.
    fn is_inside(&self, directory: &Path) -> bool {
        // What does not exist cannot be run in; its name must still not lead out.
        let found = resolved(directory);
        self.directories.iter().any(|allowed| found.starts_with(allowed))
    }
}

/// Lowers a limit to a cap; whether more was asked for.
fn lower(limit: &mut Option<u64>, cap: Option<u64>) -> bool {
    let exceeds = cap.is_some_and(|cap| limit.is_some_and(|asked| asked > cap));
    if exceeds || limit.is_none() {
        *limit = cap;
    }
    exceeds
}

#[cfg(test)]
mod tests;
