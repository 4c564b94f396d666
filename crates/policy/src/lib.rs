//! Decides what a client may run: rules on program, arguments and directory, and caps that it cannot raise.
//!
//! Judges the request, not what a program does later: an allowed interpreter, build tool or script
//! can start anything. This is not a sandbox against a hostile agent, and the guide says so
//! too. This crate runs nothing and writes no sentences: refusals are variants, and the front end that
//! shows them words them.

mod glob;
mod inline_code;
mod meaning;
mod path;
mod refusal;
mod rule;
mod sed_script;
mod shell;
mod started_commands;
mod word;
mod wrappers;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_engine::{interpret, which};
use retake_types::config::{PolicyConfig, PolicyPreset};
use retake_types::request::millis;
use retake_types::{EnvMode, RunRequest, ShellMode};

pub use refusal::{
    AmbiguousSyntax, AppliedCap, Doubt, HiddenBecause, InvalidRule, LineSource, PolicyRefusal,
    RuleError, RuleList, ShellUse, Unpredictable, UnreadableLine,
};

use meaning::Matched;
use path::resolved;
use rule::{Program, Rule};
use started_commands::{StartedCommand, StartedCommands, WrittenFile, loads_code, may_run_others};
use word::{Word, command_line};

/// What the preset `careful` denies: actions that others see, or that are hard to undo.
const CAREFUL: [&str; 26] = [
    "git push",
    "git reset --hard",
    "git clean -f",
    "git checkout --force",
    "git branch -D",
    "git filter-branch",
    "git reflog expire",
    "rm -rf",
    "chmod -R",
    "chown -R",
    "curl | sh",
    "sudo",
    "doas",
    "su",
    "mkfs*",
    "dd of=/dev/*",
    "shred",
    "shutdown",
    "reboot",
    "npm publish",
    "cargo publish",
    "twine upload",
    "docker push",
    "gh pr merge",
    "kubectl delete",
    "terraform apply",
];

/// The rules and caps of a project.
pub struct Policy {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
    /// The project and the other allowed directories, without symbolic links.
    directories: Vec<PathBuf>,
    shell: bool,
    /// A further directory that lines may change to.
    private_temp: Option<PathBuf>,
    environment_mode: EnvMode,
    /// Variables that may be set although they make programs load code.
    allowed_variables: Vec<String>,
    max_timeout: Duration,
    max_background_time: Duration,
    max_memory_bytes: Option<u64>,
    max_processes: Option<u64>,
}

/// A command that a client wants to run.
#[derive(Clone, Copy)]
pub struct ProposedCommand<'a> {
    pub arguments: &'a [OsString],
    /// The line that a shell would read.
    pub line: Option<&'a str>,
    pub cwd: &'a Path,
    /// Variables that are set for it.
    pub set: &'a [(OsString, OsString)],
    /// The PATH that it gets.
    pub path: Option<&'a OsStr>,
    /// The executable that was found for the first argument and that will be run; if absent, it is
    /// searched for.
    pub file: Option<&'a Path>,
}

/// Whether the caller waits for the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunMode {
    Foreground,
    Background,
}

impl Policy {
    /// The policy of a project; the error lists every invalid rule.
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
        let careful: &[&str] = match config.preset {
            PolicyPreset::None => &[],
            PolicyPreset::Careful => &CAREFUL,
        };
        let careful = careful.iter().map(|&rule| rule.to_owned());
        let denied: Vec<String> = config.deny.iter().cloned().chain(careful).collect();
        let deny = rules(RuleList::Deny, &denied);
        if !invalid.is_empty() {
            return Err(invalid);
        }
        let mut directories = vec![resolved(project)];
        directories.extend(config.directories.iter().map(|given| resolved(&project.join(given))));
        Ok(Self {
            allow,
            deny,
            directories,
            shell: config.shell.unwrap_or(false),
            private_temp: config.private_temp.then(|| resolved(Path::new("/tmp"))),
            environment_mode: config.environment,
            allowed_variables: environment_allow.to_vec(),
            max_timeout: config.max_timeout,
            max_background_time: config.max_running_time,
            max_memory_bytes: config.max_memory_bytes,
            max_processes: config.max_processes,
        })
    }

    /// The environment mode of a command whose caller cannot choose it.
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

    /// Limits a request to the caps; returns the limits that were lowered.
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

    /// Judges a command line as clients give it: through a shell only if it needs one. Accepts any
    /// text, so that a fuzzer can call it.
    pub fn judge_line(
        &self,
        line: &str,
        cwd: &Path,
        path: Option<&OsStr>,
    ) -> Result<(), Vec<PolicyRefusal>> {
        let found = |name: &str| which(OsStr::new(name), path, cwd).is_some();
        // Only a mode that forbids a shell cannot run such a line.
        let (arguments, shell) = interpret(line, ShellMode::Auto, found)
            .map_or((Vec::new(), true), |read| (read.arguments, read.shell));
        let arguments: Vec<OsString> = arguments.into_iter().map(OsString::from).collect();
        let line = Some(line).filter(|_| shell);
        self.judge(&ProposedCommand {
            arguments: &arguments,
            line,
            cwd,
            set: &[],
            path,
            file: None,
        })
    }

    /// Whether a command may run; the error lists every reason against it once.
    pub fn judge(&self, proposed: &ProposedCommand<'_>) -> Result<(), Vec<PolicyRefusal>> {
        let started = StartedCommands::of(proposed);
        let mut refusals = self.check_directories(proposed, &started);
        refusals.extend(self.check_variables(&started));
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
        let is_private = |directory: &&PathBuf| {
            self.private_temp.as_ref().is_some_and(|temp| resolved(directory).starts_with(temp))
        };
        let entered = started.directories.iter().filter(|directory| !is_private(directory));
        let directories = entered.map(PathBuf::as_path).chain([proposed.cwd]);
        let outside = directories.filter(|directory| !self.is_inside(directory));
        let refuse = |directory: &Path| PolicyRefusal::DirectoryOutside {
            directory: directory.to_owned(),
            project: self.directories[0].clone(),
        };
        outside.map(refuse).collect()
    }

    fn check_variables(&self, started: &StartedCommands) -> Vec<PolicyRefusal> {
        let is_allowed = |name: &str| self.allowed_variables.iter().any(|allowed| allowed == name);
        let refused = started.variables.iter().filter(|set| loads_code(set));
        let refused = refused.filter(|set| !is_allowed(&set.name));
        refused.map(|set| PolicyRefusal::CodeLoadingVariable { name: set.name.clone() }).collect()
    }

    fn has_rules(&self) -> bool {
        !(self.allow.is_empty() && self.deny.is_empty())
    }

    /// A shell must be allowed; if none is, neither is a program that could turn out to be one.
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
        let is_set = |name: &str| started.variables.iter().any(|set| set.name == name);
        let could_be_denied = |words: &&Vec<Word>| {
            let is_inherited = words[0].is_of_variables()
                && !words[0].variables().any(is_set)
                && words[0].name_after_variables().is_some_and(|name| !may_run_others(&name));
            // It may be a program that adds arguments, such as `xargs`.
            let names = |rule: &Rule| (1..words.len()).any(|at| rule.is_about(&words[at..]));
            let could_deny = |rule: &Rule| match is_inherited {
                true => rule.could_deny_inherited(words),
                false => rule.could_deny(words),
            };
            // A shell without a script runs its input.
            let may_read =
                !is_inherited && words[1..].iter().all(|word| word.lead().starts_with('-'));
            !self.has_rules()
                || may_read
                || !self.allow.is_empty()
                || self.deny.iter().any(could_deny)
                || (!is_inherited && self.deny.iter().any(names))
                // It may be a shell, or any other program that runs its arguments.
                || words[1..].iter().any(|word| word.get().is_none())
                || self.denied_among(words).is_some()
        };
        let unnamed = started.unnamed.iter().filter(could_be_denied);
        let unnamed =
            unnamed.map(|words| Unpredictable::ProgramName { command: command_line(words) });
        unnamed.chain(started.unpredictable.iter().cloned()).map(refuse).collect()
    }

    fn check_rules(&self, started: &StartedCommands) -> Vec<PolicyRefusal> {
        let mut refusals = Vec::new();
        for command in &started.commands {
            let line = || command_line(&command.words);
            let unknown = started.is_directory_unknown(command);
            if let Some((denial, rule)) = self.denial(command, unknown, started) {
                let (rule, command) = (rule.to_string(), line());
                refusals.push(match denial {
                    Matched::Maybe(word, because) => {
                        PolicyRefusal::MayBeDenied { rule, command, word, because }
                    }
                    _ => PolicyRefusal::DeniedByRule { rule, command },
                });
            } else {
                refusals.extend(self.check_arguments(command, started));
                refusals.extend(self.check_code(command, started));
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

    /// The first rule that denies a command; if there is none, the first that may deny it.
    fn denial(
        &self,
        command: &StartedCommand,
        directory_unknown: bool,
        started: &StartedCommands,
    ) -> Option<(Matched, &Rule)> {
        let mut doubtful = None;
        for rule in &self.deny {
            match rule.denies(command, directory_unknown, &started.commands) {
                Matched::No => {}
                Matched::Yes => return Some((Matched::Yes, rule)),
                maybe @ Matched::Maybe(..) => {
                    doubtful.get_or_insert((maybe, rule));
                }
            }
        }
        doubtful
    }

    /// An unknown program may run its arguments as a command.
    fn check_arguments(
        &self,
        command: &StartedCommand,
        started: &StartedCommands,
    ) -> Option<PolicyRefusal> {
        let possible = command.possible.as_ref()?;
        // A program that starts a shell may pass its input to it.
        let read = || {
            let reads = matches!(possible.shell, Some(ShellUse::ReadsInput { .. }));
            let texts = reads.then(|| read_texts(command, started)).into_iter().flatten();
            self.denied_in(&texts.collect::<Vec<_>>())
        };
        let (rule, inner) = self
            .denied_among(&command.words)
            .or_else(|| self.denied_possibly(possible))
            .or_else(read)?;
        Some(PolicyRefusal::MayRunDenied {
            rule: rule.to_string(),
            command: command_line(&command.words),
            inner: command_line(&inner),
        })
    }

    /// A possible command that a rule denies, or that could turn out to be a denied one.
    fn denied_possibly(&self, possible: &StartedCommands) -> Option<(&Rule, Vec<Word>)> {
        for command in &possible.commands {
            let denies =
                |rule: &&Rule| rule.denies(command, false, &possible.commands) != Matched::No;
            if let Some(rule) = self.deny.iter().find(denies) {
                return Some((rule, command.words.clone()));
            }
            if let Some(inner) = &command.possible
                && let Some(found) =
                    self.denied_among(&command.words).or_else(|| self.denied_possibly(inner))
            {
                return Some(found);
            }
        }
        let of = |words: &&Vec<Word>, could: fn(&Rule, &[Word]) -> bool| {
            let rule = self.deny.iter().find(|rule| could(rule, words))?;
            Some((rule, (*words).clone()))
        };
        let unnamed = possible.unnamed.iter().find_map(|words| of(&words, Rule::could_deny));
        let could_hide = |rule: &Rule, words: &[Word]| {
            rule.is_about(words) || words[1..].iter().any(|word| word.get().is_none())
        };
        unnamed.or_else(|| possible.hidden.iter().find_map(|words| of(&words, could_hide)))
    }

    /// A command among the arguments of another one that a rule denies, as words or as a line.
    fn denied_among(&self, words: &[Word]) -> Option<(&Rule, Vec<Word>)> {
        let denies = |words: &[Word]| self.deny.iter().find(|rule| rule.denies_words(words));
        for at in 1..words.len() {
            let rest = &words[at..];
            if let Some(rule) = denies(rest) {
                return Some((rule, rest.to_vec()));
            }
            let line = rest[0].text().filter(|text| text.contains(char::is_whitespace));
            for words in line.map(|line| shell::commands(&line)).unwrap_or_default() {
                if let Some(rule) = denies(&words) {
                    return Some((rule, words));
                }
            }
        }
        None
    }

    /// Code that a program is given may name a denied command.
    fn check_code(
        &self,
        command: &StartedCommand,
        started: &StartedCommands,
    ) -> Option<PolicyRefusal> {
        let name = command.words.first()?.text()?;
        let name = name.rsplit('/').next().unwrap_or_default();
        if self.deny.is_empty() {
            return None;
        }
        let mut texts = inline_code::texts(name, &command.words);
        if inline_code::reads_code(name, &command.words) {
            let read = read_texts(command, started).into_iter();
            texts.extend(read.filter(|text| inline_code::may_start(name, text)));
        }
        if inline_code::reads_substitution(name, &command.words) {
            let others = started.commands.iter().flat_map(|other| other.words.iter().skip(1));
            let printed = started.documents.iter().cloned().chain(others.filter_map(Word::text));
            texts.extend(printed.filter(|text| inline_code::may_start(name, text)));
        }
        let (rule, inner) = self.denied_in(&texts)?;
        Some(PolicyRefusal::MayRunDenied {
            rule: rule.to_string(),
            command: command_line(&command.words),
            inner: command_line(&inner),
        })
    }

    /// The first denied command that occurs word for word in these texts.
    fn denied_in(&self, texts: &[String]) -> Option<(&Rule, Vec<Word>)> {
        let mut possible = texts.iter().flat_map(|text| inline_code::possible_commands(text));
        possible.find_map(|words| {
            let rule = self.deny.iter().find(|rule| rule.denies_words(&words))?;
            Some((rule, words))
        })
    }

    fn check_allowed(&self, started: &StartedCommands) -> Vec<PolicyRefusal> {
        let mut refusals = Vec::new();
        // Commands that a rule on their runner allows.
        let mut covered = 0..0;
        let mut runs_packages = 0..0;
        for (at, command) in started.commands.iter().enumerate() {
            let is_tool = runs_packages.contains(&at) && !command.is_found();
            if command.is_wrapper || command.is_unlikely || covered.contains(&at) || is_tool {
                continue;
            }
            let unknown = started.is_directory_unknown(command);
            let is_allowed = command.is_harmless() || command.is_function;
            let rule = self.allow.iter().find(|rule| rule.allows(command, unknown));
            if let (Some(rule), Some(start)) = (rule, command.runs_from) {
                let inner = at + 1..at + 1 + command.inner;
                if rule.argument_count() >= start {
                    covered = inner;
                } else {
                    runs_packages = inner;
                }
            }
            if rule.is_none() && !is_allowed {
                refusals.push(PolicyRefusal::NotAllowed {
                    command: command_line(&command.words),
                    directory_unknown: unknown && self.allow.iter().any(Rule::is_local),
                });
            }
        }
        let refused = started.written_files.iter().filter(|file| !self.may_write(file));
        refusals.extend(refused.map(|file| PolicyRefusal::WritesFile(file.file.written())));
        refusals
    }

    /// Whether a line may write a file while only some commands are allowed: the file must be in the
    /// project, and neither git, nor retake, nor a rule may run it.
    fn may_write(&self, written: &WrittenFile) -> bool {
        let Some(file) = written.file.get() else { return false };
        let is_kept = |path: &Path| {
            path.components()
                .any(|part| matches!(part.as_os_str().to_str(), Some(".git" | ".agent")))
        };
        !(written.directory_unknown && Path::new(file).is_relative())
            && written.directories.iter().all(|directory| {
                let path = resolved(&directory.join(file));
                self.directories.iter().chain(&self.private_temp).any(|dir| path.starts_with(dir))
                    && !is_kept(&path)
                    && !self.allow.iter().any(|rule| rule.names_file(&path))
            })
    }

    /// Whether a directory is in the project, or in another allowed one, after following links.
    fn is_inside(&self, directory: &Path) -> bool {
        // A missing directory cannot be used; its name must still be inside.
        let found = resolved(directory);
        self.directories.iter().any(|allowed| found.starts_with(allowed))
    }
}

/// Text that a command could read: the here-documents of the line, and arguments of commands that write to it.
fn read_texts(command: &StartedCommand, started: &StartedCommands) -> Vec<String> {
    let writers = started.commands.iter().filter(|other| command.reads_from(other));
    let written = writers.flat_map(|writer| writer.words.iter().skip(1));
    started.documents.iter().cloned().chain(written.filter_map(Word::text)).collect()
}

/// Lowers a limit to a cap; returns whether a higher one was requested.
fn lower(limit: &mut Option<u64>, cap: Option<u64>) -> bool {
    let exceeds = cap.is_some_and(|cap| limit.is_some_and(|asked| asked > cap));
    if exceeds || limit.is_none() {
        *limit = cap;
    }
    exceeds
}

#[cfg(test)]
mod tests;
