//! The `agent:` configuration as typed values.
//!
//! The front end reads files, layers and flags, and passes texts per key. An invalid value is an
//! error, never a default, and all errors are reported at once.

mod error;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub use retake_types::config::GivenValue as Value;
use retake_types::config::{Key, KeyKind, agent_key};
use retake_types::loop_record::agent::Mode;

use crate::adapters::AgentKind;
use crate::display::Level;
use crate::hooks::{Hook, OnFailure};
use crate::notify::{Events, NotifyFormat};
use crate::plan::{Backoff, Budgets, Gate, OnLimit, Rules};
use crate::watch;
use crate::workspace::Metadata;

pub use error::{InvalidSetting, SettingError, SettingsErrors, UnsupportedSetting};

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub directories: DirectorySettings,
    /// Patterns of ignored files to copy for each of several agents.
    pub worktree_include: Vec<String>,
    pub colors: bool,
    pub default_max_iterations: Option<u32>,
    pub default_delay: Duration,
    pub default_stagnation_threshold: u32,
    pub output_level: Level,
    pub notifications: NotificationSettings,
    pub agent: AgentProgram,
    /// Takes over while the first agent waits for a limit.
    pub fallback: Option<AgentProgram>,
    pub iteration: IterationConfig,
    pub result_grace: Duration,
    pub hooks: LoopHooks,
    pub verification: Verification,
    pub todo_fallback: bool,
    pub budgets: Budgets,
    pub max_failures: u32,
    pub max_no_progress: u32,
    pub on_limit: OnLimit,
    /// Whether the loop pauses when the agent reports blockers.
    pub pause_if_blocked: bool,
    pub backoff: Backoff,
    pub checkpoint: bool,
    pub fail_incomplete: bool,
}

/// The user's hooks around an iteration and a loop.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopHooks {
    /// Before each iteration.
    pub pre: Option<Hook>,
    /// After each iteration.
    pub post: Option<Hook>,
    /// After the loop.
    pub end: Option<Hook>,
}

/// An agent and its command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentProgram {
    pub kind: AgentKind,
    /// `None` only for a custom agent without a command.
    pub command: Option<String>,
    pub args: Vec<String>,
}

/// Directories, relative to the project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectorySettings {
    pub workspaces: PathBuf,
    pub templates: PathBuf,
    pub archive: PathBuf,
    pub prompts: PathBuf,
    /// Templates for all projects.
    pub global_templates: Option<PathBuf>,
}

/// The settings of notifications.
#[derive(Clone, Debug, PartialEq)]
pub struct NotificationSettings {
    pub url: Option<String>,
    pub format: NotifyFormat,
    pub events: Events,
    pub timeout: Duration,
    /// `None` without notifications of status changes.
    pub status_watch: Option<watch::Options>,
}

/// Values of one invocation that override the workspace's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleOverrides {
    pub max_iterations: Option<u32>,
    pub delay: Option<Duration>,
    pub stagnation_threshold: Option<u32>,
    /// The seed of the jitter of retries.
    pub seed: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verification {
    pub auto_verify: bool,
    pub command: Option<String>,
    pub timeout: Duration,
    pub resume_on_fail: bool,
    pub max_attempts: u32,
    pub report_filename: String,
    pub depth: &'static str,
    pub notify: bool,
}

/// The settings of an iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IterationConfig {
    /// Timeout for the entire iteration.
    pub timeout: Duration,
    pub working_dir: PathBuf,
    pub env_vars: BTreeMap<String, String>,
    pub track_file_changes: bool,
    pub parse_tests: bool,
}

impl Default for IterationConfig {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(1800),
            working_dir: PathBuf::from("."),
            env_vars: BTreeMap::new(),
            track_file_changes: true,
            parse_tests: true,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::read(&BTreeMap::new()).unwrap_or_else(|error| unreachable!("defaults: {error}"))
    }
}

impl Settings {
    /// Checks and parses all values. `given` has the configured ones, by path without the prefix
    /// `agent.`; missing ones have their default.
    pub fn read(given: &BTreeMap<String, Value>) -> Result<Self, SettingsErrors> {
        let mut reader = Reader { given, errors: Vec::new() };
        for path in given.keys() {
            if agent_key(path).is_none() {
                reader.errors.push(SettingError::UnknownKey { path: path.clone() });
            }
        }
        let settings = reader.settings();
        if reader.errors.is_empty() { Ok(settings) } else { Err(SettingsErrors(reader.errors)) }
    }

    /// The loop's rules for a workspace.
    pub fn rules(&self, metadata: &Metadata, overrides: RuleOverrides) -> Rules {
        let RuleOverrides { max_iterations, delay, stagnation_threshold, seed } = overrides;
        let mode = metadata.mode;
        let of_workspace = metadata.delay.and_then(|delay| Duration::try_from_secs_f64(delay).ok());
        let gated = self.verification.command.is_some() || self.verification.auto_verify;
        Rules {
            mode,
            max_iterations: max_iterations
                .or(metadata.max_iterations)
                .unwrap_or_else(|| self.max_iterations(mode)),
            delay: delay.or(of_workspace).unwrap_or(self.default_delay),
            stagnation_threshold: stagnation_threshold
                .or(metadata.stagnation_threshold)
                .unwrap_or(self.default_stagnation_threshold),
            max_failures: self.max_failures,
            max_no_progress: self.max_no_progress,
            iteration_timeout: self.iteration.timeout,
            on_limit: self.on_limit,
            fallback: self.fallback.is_some(),
            budgets: self.budgets,
            backoff: Backoff { seed, ..self.backoff },
            verify: gated.then_some(Gate {
                max_attempts: self.verification.max_attempts,
                resume_on_fail: self.verification.resume_on_fail,
            }),
        }
    }

    /// The initial limit of a new workspace with this mode.
    pub fn max_iterations(&self, mode: Mode) -> u32 {
        self.default_max_iterations.unwrap_or_else(|| mode.default_max_iterations())
    }

    /// The agent and its fallback.
    pub fn programs(&self) -> impl Iterator<Item = &AgentProgram> {
        std::iter::once(&self.agent).chain(&self.fallback)
    }

    /// Settings that cannot work with these agents: a budget that an agent does not report, or a
    /// limit that needs disabled tracking.
    pub fn unsupported(&self) -> Vec<UnsupportedSetting> {
        let mut found = Vec::new();
        for program in self.programs() {
            self.unmeasured(program.kind, &mut found);
        }
        if self.max_no_progress > 0 && !self.iteration.track_file_changes {
            found.push(UnsupportedSetting::ProgressNotTracked);
        }
        if self.agent.command.is_none() {
            found.push(UnsupportedSetting::NoCommand { path: "command" });
        }
        if let Some(fallback) = &self.fallback {
            if fallback.command.is_none() {
                found.push(UnsupportedSetting::NoCommand { path: "fallback.command" });
            }
            if *fallback == self.agent {
                found.push(UnsupportedSetting::FallbackIsSame { kind: fallback.kind });
            }
        }
        found
    }

    fn unmeasured(&self, kind: AgentKind, found: &mut Vec<UnsupportedSetting>) {
        let able = kind.capabilities();
        let budgets = &self.budgets;
        for (set, path) in [
            (budgets.cost_usd.is_some(), "maxCost"),
            (budgets.iteration_cost_usd.is_some(), "maxIterationCost"),
        ] {
            if set && !able.cost {
                found.push(UnsupportedSetting::CostNotReported { path, kind });
            }
        }
        for (set, path) in [
            (budgets.tokens.is_some(), "maxTokens"),
            (budgets.iteration_tokens.is_some(), "maxIterationTokens"),
        ] {
            if set && !able.tokens {
                found.push(UnsupportedSetting::TokensNotReported { path, kind });
            }
        }
    }
}

struct Reader<'a> {
    given: &'a BTreeMap<String, Value>,
    errors: Vec<SettingError>,
}

impl Reader<'_> {
    fn settings(&mut self) -> Settings {
        let kind: AgentKind = self.word("kind").parse().unwrap_or_default();
        let fallback: Option<AgentKind> = self.word("fallback.kind").parse().ok();
        Settings {
            directories: DirectorySettings {
                workspaces: self.path("workspacesDir"),
                templates: self.path("templatesDir"),
                archive: self.path("archiveDir"),
                prompts: self.path("promptsDir"),
                global_templates: self.optional_text("globalTemplatesDir").map(PathBuf::from),
            },
            worktree_include: self.words("worktreeInclude"),
            colors: self.truth("colors"),
            default_max_iterations: self.optional_number("defaultMaxIterations").map(|n| n as u32),
            default_delay: self.duration("defaultDelay").unwrap_or_default(),
            default_stagnation_threshold: self.number("defaultStagnationThreshold") as u32,
            output_level: self.word("outputLevel").parse().unwrap_or_default(),
            notifications: self.notifications(),
            agent: self.program(kind, "command", "args"),
            // Parsed in any case, so that errors in it are found.
            fallback: Some(self.program(
                fallback.unwrap_or(AgentKind::Codex),
                "fallback.command",
                "fallback.args",
            ))
            .filter(|_| fallback.is_some()),
            iteration: IterationConfig {
                timeout: self.positive_duration("timeout").unwrap_or_default(),
                env_vars: self.pairs("env"),
                track_file_changes: self.truth("track_file_changes"),
                parse_tests: self.truth("parse_tests"),
                ..IterationConfig::default()
            },
            result_grace: self.duration("resultGrace").unwrap_or_default(),
            hooks: LoopHooks {
                pre: self.hook("pre"),
                post: self.hook("post"),
                end: self.end_hook(),
            },
            verification: Verification {
                auto_verify: self.truth("verification.autoVerify"),
                command: self.optional_text("verification.command"),
                timeout: self.positive_duration("verification.timeout").unwrap_or_default(),
                resume_on_fail: self.truth("verification.resumeOnFail"),
                max_attempts: self.number("verification.maxAttempts") as u32,
                report_filename: self.file_name("verification.reportFilename"),
                depth: self.word("verification.depth"),
                notify: self.truth("verification.notifyOnVerification"),
            },
            todo_fallback: self.truth("todoFallback"),
            budgets: Budgets {
                cost_usd: self.money("maxCost"),
                tokens: self.optional_number("maxTokens"),
                time: self.positive_duration("maxTime"),
                invocation_time: None,
                iteration_cost_usd: self.money("maxIterationCost"),
                iteration_tokens: self.optional_number("maxIterationTokens"),
            },
            max_failures: self.number("maxFailures") as u32,
            max_no_progress: self.number("maxNoProgress") as u32,
            pause_if_blocked: self.word("on_blocked") == "pause",
            on_limit: match self.word("onLimit") {
                "stop" => OnLimit::Stop,
                _ => OnLimit::Wait,
            },
            backoff: Backoff {
                first: self.duration("retry.first").unwrap_or_default(),
                longest: self.duration("retry.longest").unwrap_or_default(),
                tries: self.number("retry.tries") as u32,
                seed: 0,
            },
            checkpoint: self.truth("checkpoint"),
            fail_incomplete: self.truth("failIncomplete"),
        }
    }

    /// The keys for Claude apply to Claude; the general ones to the chosen agent.
    fn program(&mut self, kind: AgentKind, command: &str, args: &str) -> AgentProgram {
        let own = |reader: &Self, general: &str, claude: &str| {
            let claudes = kind == AgentKind::Claude && !reader.given.contains_key(general);
            if claudes { claude.to_owned() } else { general.to_owned() }
        };
        let command = own(self, command, "claude.command");
        let args = own(self, args, "claude.args");
        AgentProgram {
            kind,
            command: self.optional_text(&command).or_else(|| kind.program().map(str::to_owned)),
            args: self.words(&args),
        }
    }

    fn notifications(&mut self) -> NotificationSettings {
        let options = watch::Options {
            debounce: Duration::from_millis(self.number("notification.statusWatch.debounceMs")),
            only_meaningful: self.truth("notification.statusWatch.notifyOnlyMeaningful"),
        };
        NotificationSettings {
            url: self.url("notifyUrl"),
            format: match self.word("notifyFormat") {
                "json" => NotifyFormat::Json,
                _ => NotifyFormat::Ntfy,
            },
            events: self.events("notifyEvents"),
            timeout: self.duration("notifyTimeout").unwrap_or_default(),
            status_watch: self.truth("notification.statusWatch.enabled").then_some(options),
        }
    }

    fn wrong(&mut self, path: &str, reason: impl Into<InvalidSetting>) {
        let (path, reason) = (path.to_owned(), reason.into());
        self.errors.push(SettingError::Invalid { path, reason });
    }

    /// The text of a value; empty if unset.
    fn text(&mut self, path: &str) -> String {
        let default = || agent_key(path).map_or("", |key| key.default);
        match self.given.get(path) {
            Some(Value::Text(text)) => text.clone(),
            Some(_) => {
                self.wrong(path, InvalidSetting::NotOneValue);
                default().to_owned()
            }
            None => default().to_owned(),
        }
    }

    fn optional_text(&mut self, path: &str) -> Option<String> {
        Some(self.text(path)).filter(|text| !text.is_empty())
    }

    fn path(&mut self, path: &str) -> PathBuf {
        let text = self.text(path);
        if text.is_empty() {
            self.wrong(path, InvalidSetting::Empty);
        }
        PathBuf::from(text)
    }

    /// A file name without directories.
    fn file_name(&mut self, path: &str) -> String {
        let text = self.text(path);
        let plain = !text.is_empty() && !text.starts_with('.') && !text.contains(['/', '\0']);
        if !plain {
            self.wrong(path, InvalidSetting::NotFileName(text.clone()));
        }
        text
    }

    fn url(&mut self, path: &str) -> Option<String> {
        let text = self.optional_text(path)?;
        if !text.starts_with("http://") && !text.starts_with("https://") {
            self.wrong(path, InvalidSetting::NotAddress(text.clone()));
        }
        Some(text)
    }

    fn truth(&mut self, path: &str) -> bool {
        match self.text(path).as_str() {
            "true" => true,
            "false" => false,
            other => {
                self.wrong(path, InvalidSetting::NotTruth(other.to_owned()));
                false
            }
        }
    }

    fn word(&mut self, path: &str) -> &'static str {
        let text = self.text(path);
        let Some(Key { kind: KeyKind::Word(words), default, .. }) = agent_key(path) else {
            return "";
        };
        match words.iter().find(|word| **word == text) {
            Some(word) => word,
            None => {
                self.wrong(path, InvalidSetting::NotAmong { given: text, words });
                default
            }
        }
    }

    fn optional_number(&mut self, path: &str) -> Option<u64> {
        let text = self.optional_text(path)?;
        let Some(Key { kind: KeyKind::Number { min, max }, .. }) = agent_key(path) else {
            return None;
        };
        match text.parse::<u64>() {
            Ok(number) if (*min..=*max).contains(&number) => Some(number),
            _ => {
                let (min, max) = (*min, *max);
                self.wrong(path, InvalidSetting::NotNumber { given: text, min, max });
                None
            }
        }
    }

    fn number(&mut self, path: &str) -> u64 {
        let before = self.errors.len();
        let number = self.optional_number(path);
        if number.is_none() && self.errors.len() == before {
            self.wrong(path, InvalidSetting::Empty);
        }
        number.unwrap_or_default()
    }

    fn money(&mut self, path: &str) -> Option<f64> {
        let text = self.optional_text(path)?;
        match text.trim_start_matches('$').parse::<f64>() {
            Ok(amount) if amount.is_finite() && amount > 0.0 => Some(amount),
            _ => {
                self.wrong(path, InvalidSetting::NotMoney(text));
                None
            }
        }
    }

    fn duration(&mut self, path: &str) -> Option<Duration> {
        let text = self.optional_text(path)?;
        retake_types::parse_duration(&text).map_err(|why| self.wrong(path, why)).ok()
    }

    fn positive_duration(&mut self, path: &str) -> Option<Duration> {
        let duration = self.duration(path)?;
        if duration.is_zero() {
            self.wrong(path, InvalidSetting::ZeroDuration);
        }
        Some(duration)
    }

    fn words(&mut self, path: &str) -> Vec<String> {
        match self.given.get(path) {
            Some(Value::Words(words)) => words.clone(),
            Some(Value::Text(text)) if text.is_empty() => Vec::new(),
            Some(_) => {
                self.wrong(path, InvalidSetting::NotAList);
                Vec::new()
            }
            None => Vec::new(),
        }
    }

    fn pairs(&mut self, path: &str) -> BTreeMap<String, String> {
        match self.given.get(path) {
            Some(Value::Pairs(pairs)) => pairs.clone(),
            Some(_) => {
                self.wrong(path, InvalidSetting::NotPairs);
                BTreeMap::new()
            }
            None => BTreeMap::new(),
        }
    }

    fn events(&mut self, path: &str) -> Events {
        let words = match self.given.get(path) {
            None => vec!["all".to_owned()],
            Some(_) => self.words(path),
        };
        Events::parse(words.iter().map(String::as_str)).unwrap_or_else(|why| {
            self.wrong(path, why);
            Events::default()
        })
    }

    fn hook(&mut self, when: &str) -> Option<Hook> {
        let on_failure = self.word(&format!("hooks.{when}.on_failure")).parse();
        let hook = self.command_with_timeout(when)?;
        Some(Hook { on_failure: on_failure.unwrap_or_default(), ..hook })
    }

    /// Its failure has no effect, because the loop has ended.
    fn end_hook(&mut self) -> Option<Hook> {
        let hook = self.command_with_timeout("end")?;
        Some(Hook { on_failure: OnFailure::Skip, ..hook })
    }

    fn command_with_timeout(&mut self, when: &str) -> Option<Hook> {
        let timeout = self.positive_duration(&format!("hooks.{when}.timeout"));
        let run = self.optional_text(&format!("hooks.{when}.run"))?;
        Some(Hook { timeout: timeout.unwrap_or(crate::hooks::TIMEOUT), ..Hook::new(run) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_config_is_the_specified_one() {
        let config = IterationConfig::default();
        assert_eq!(config.timeout, Duration::from_secs(1800));
        assert!(config.track_file_changes && config.parse_tests);
    }
}
