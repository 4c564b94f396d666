//! Configuration in layers: defaults, the user's file, the project's file, `RETAKE_*` variables.
//! Flags come last and belong to the commands.
//!
//! A value that cannot be read is an error, never a default; all errors are reported at once.

pub mod edit;
mod sandbox;
mod value;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_types::config::{
    AgentConfig, AgentValue, AuditConfig, ExecutionConfig, GivenValue, PolicyConfig, PolicyPreset,
    RedactionConfig, SandboxConfig, SlurmConfig, UnknownKey, find, is_group, keys,
    misspelled_section,
};
use retake_types::{EnvMode, ShellMode, parse_duration, text};
use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};

use crate::{machine, regular_file};

pub use value::Value;
use value::{default, from_node, from_text};

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueSource {
    Default,
    File { path: PathBuf, line: usize },
    Variable(String),
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => write!(f, "${name}"),
        }
    }
}

/// The configuration in force, as typed sections.
#[derive(Debug)]
pub struct Config {
    pub execution: ExecutionConfig,
    pub redaction: RedactionConfig,
    /// `tracking.ignore`: files that file tracking leaves out, as in .gitignore.
    pub tracking_ignore: Vec<String>,
    /// `tests.reports`: where to look for test reports, as globs.
    pub test_reports: Vec<String>,
    /// `record.push`: a PostgreSQL database to copy every run to.
    pub push: Option<String>,
    pub slurm: SlurmConfig,
    pub sandbox: SandboxConfig,
    pub policy: PolicyConfig,
    pub agent: AgentConfig,
    layers: Layers,
}

/// Every value with its source, while the layers are read and for `config --explain`.
#[derive(Debug, Default)]
struct Layers {
    values: BTreeMap<&'static str, (Value, ValueSource)>,
}

/// Every error in the configuration.
#[derive(Debug, thiserror::Error)]
#[error("{}", texts.join("\n"))]
pub struct ConfigErrors {
    pub texts: Vec<String>,
    /// The files with errors; the other errors are in variables.
    pub files: Vec<PathBuf>,
}

impl Config {
    /// Reads all layers. `project` is the directory that holds `.agent/`.
    pub fn load(project: Option<&Path>) -> Result<Self, ConfigErrors> {
        let (mut errors, mut wrong_files) = (Vec::new(), Vec::new());
        let mut layers = Layers::defaults();
        let files = [user_file(), project.map(|dir| dir.join(".agent/config.yml"))];
        for file in files.into_iter().flatten() {
            let before = errors.len();
            match regular_file::read_text(&file) {
                Ok(text) => layers.read(&file, &text, &mut errors),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    errors.push(format!("{}: {}", file.display(), text::plain(&error)));
                }
            }
            if errors.len() > before {
                wrong_files.push(file);
            }
        }
        let given = given_variables();
        for key in keys() {
            let Some((name, text)) = given.iter().find(|(name, _)| sets(name, key.path)) else {
                continue;
            };
            match text
                .to_str()
                .ok_or_else(|| "is not UTF-8".to_owned())
                .and_then(|t| from_text(key.kind, t))
            {
                Ok(value) => {
                    let source = ValueSource::Variable(name.clone());
                    layers.values.insert(key.path, (value, source));
                }
                Err(why) => errors.push(format!("${name}: {why}")),
            }
        }
        errors.extend(unknown_variables(&given));
        let sandbox = layers.sandbox(project, &mut errors);
        match errors.is_empty() {
            true => Ok(layers.typed(sandbox)),
            false => Err(ConfigErrors { texts: errors, files: wrong_files }),
        }
    }

    /// Every key with its value and where that comes from.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, &Value, &ValueSource)> {
        self.layers.values.iter().map(|(path, (value, source))| (*path, value, source))
    }

    /// The value of a key in a file's text alone; any error in the text is an error.
    pub fn in_text(
        file: &Path,
        text: &str,
        path: &str,
    ) -> Result<Option<serde_json::Value>, ConfigErrors> {
        let mut layers = Layers::default();
        let mut errors = Vec::new();
        layers.read(file, text, &mut errors);
        if !errors.is_empty() {
            return Err(ConfigErrors { texts: errors, files: vec![file.to_owned()] });
        }
        Ok(layers.values.get(path).map(|(value, _)| value.to_json()))
    }
}

/// The key of a group that a single value for the whole group probably means, with the value.
fn key_for(group: &str, node: &MarkedYaml<'_>) -> Option<String> {
    let YamlData::Value(Scalar::String(word)) = &node.data else { return None };
    let key = find(&format!("{group}.mode")).ok()?;
    from_node(key.kind, false, node).ok()?;
    Some(format!("{}: {word}", key.path))
}

/// A top-level name of another tool, or a misspelled one of retake's.
struct Theirs {
    misspelled: Option<&'static str>,
}

/// The first key that a file has twice at the margin, with its two lines.
fn repeated_key(text: &str) -> Option<String> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let key = match line.split_once(':') {
            Some((key, _)) if key.starts_with(|c: char| c.is_alphanumeric() || c == '_') => key,
            _ => continue,
        };
        if let Some(first) = seen.insert(key.trim_end(), number) {
            return Some(format!(
                "the key {key} is in line {first} and again in line {number}; move the keys below the second \
                 one to the first, and remove the second"
            ));
        }
    }
    None
}

impl Layers {
    fn defaults() -> Self {
        Self {
            values: keys().map(|key| (key.path, (default(key), ValueSource::Default))).collect(),
        }
    }

    fn read(&mut self, file: &Path, text: &str, errors: &mut Vec<String>) {
        match MarkedYaml::load_from_str(text) {
            Ok(documents) => {
                if let Some(root) = documents.first() {
                    self.visit(file, "", root, errors);
                }
            }
            Err(error) => {
                let at = error.marker();
                let why = repeated_key(text).unwrap_or_else(|| error.info().to_owned());
                errors.push(format!("{}:{}:{}: {why}", file.display(), at.line(), at.col() + 1));
            }
        }
    }

    fn visit(
        &mut self,
        file: &Path,
        prefix: &str,
        node: &MarkedYaml<'_>,
        errors: &mut Vec<String>,
    ) {
        let place = |node: &MarkedYaml<'_>| {
            let start = node.span.start;
            format!("{}:{}:{}", file.display(), start.line(), start.col() + 1)
        };
        let mapping = match &node.data {
            YamlData::Mapping(mapping) => mapping,
            // An empty file, or a group whose content is commented out.
            YamlData::Value(Scalar::Null) => return,
            _ => {
                let what =
                    if prefix.is_empty() { "the file".to_owned() } else { prefix.to_owned() };
                let given = match node.data {
                    YamlData::Sequence(_) => "a list",
                    _ => "a single value",
                };
                errors.push(format!(
                    "{}: {what} takes keys and values, not {given}{}",
                    place(node),
                    key_for(prefix, node)
                        .map_or_else(String::new, |meant| format!("; did you mean {meant}?"))
                ));
                return;
            }
        };
        for (name, value) in mapping {
            let YamlData::Value(Scalar::String(text)) = &name.data else {
                errors.push(format!("{}: a key must be a word", place(name)));
                continue;
            };
            let path =
                if prefix.is_empty() { text.to_string() } else { format!("{prefix}.{text}") };
            // A section given as one word names a preset.
            let preset = format!("{path}.preset");
            let is_preset =
                matches!(value.data, YamlData::Value(Scalar::String(_))) && find(&preset).is_ok();
            if is_group(&path) && !is_preset {
                self.visit(file, &path, value, errors);
                continue;
            }
            let path = if is_preset { preset } else { path };
            // Other tools share the file: skip their sections.
            if prefix.is_empty()
                && let Some(theirs) = self.not_ours(text, value)
            {
                if let Some(meant) = theirs.misspelled {
                    errors.push(format!(
                        "{}: there is no section {text}; did you mean {meant}?",
                        place(name)
                    ));
                }
                continue;
            }
            match find(&path) {
                Ok(key) => match from_node(key.kind, key.default.is_empty(), value) {
                    Ok(value) => {
                        let line = name.span.start.line();
                        let source = ValueSource::File { path: file.to_owned(), line };
                        self.values.insert(key.path, (value, source));
                    }
                    Err(why) => errors.push(format!("{}: {path}: {why}", place(value))),
                },
                Err(unknown) => {
                    let hint = match unknown {
                        UnknownKey::Misspelled { meant } => format!("; did you mean {meant}?"),
                        UnknownKey::WrongLevel { belongs_in } => {
                            format!("; {text} belongs in {belongs_in}")
                        }
                        UnknownKey::Unknown => String::new(),
                    };
                    errors.push(format!("{}: there is no key {path}{hint}", place(name)));
                }
            }
        }
    }

    /// Whether a top-level name belongs to another tool: any section that is not retake's, and any
    /// single value whose name is not one of retake's keys.
    fn not_ours(&self, name: &str, value: &MarkedYaml<'_>) -> Option<Theirs> {
        let YamlData::Mapping(inside) = &value.data else {
            let known = matches!(find(name), Err(UnknownKey::WrongLevel { .. }));
            return (!known).then_some(Theirs { misspelled: None });
        };
        let inside = inside.iter().filter_map(|(key, _)| match &key.data {
            YamlData::Value(Scalar::String(text)) => Some(text.as_ref()),
            _ => None,
        });
        Some(Theirs { misspelled: misspelled_section(name, inside) })
    }

    fn typed(self, sandbox: SandboxConfig) -> Config {
        let execution = ExecutionConfig {
            default_timeout: self.seconds("execution.default_timeout_seconds"),
            grace: self.seconds("execution.grace_seconds"),
            max_output_bytes: self.number("execution.max_output_kb") << 10,
            max_capture_bytes: self.number("execution.max_capture_mb") << 20,
            use_shell: match self.word("execution.use_shell") {
                "true" => ShellMode::Always,
                "false" => ShellMode::Never,
                _ => ShellMode::Auto,
            },
            detach_ok: self.words("execution.detach_ok"),
            environment_mode: self.env_mode("execution.environment.mode"),
            environment_allow: self.words("execution.environment.allow"),
            audit: AuditConfig {
                enabled: self.truth("execution.audit.enabled"),
                required: self.truth("execution.audit.required"),
                retention_days: self.number("execution.audit.retention_days"),
            },
        };
        let preset = match self.word("mcp.policy.preset") {
            "careful" => PolicyPreset::Careful,
            _ => PolicyPreset::None,
        };
        let policy = PolicyConfig {
            preset,
            allow: self.words("mcp.policy.allow"),
            deny: self.words("mcp.policy.deny"),
            directories: self.words("mcp.policy.directories"),
            // Its rules parse shell lines, so lines can stay allowed.
            shell: match (self.word("mcp.policy.shell"), preset) {
                ("true", _) | ("auto", PolicyPreset::Careful) => Some(true),
                ("false", _) => Some(false),
                _ => None,
            },
            private_temp: false,
            environment: self.env_mode("mcp.policy.environment"),
            max_timeout: self.seconds("mcp.policy.max_timeout_seconds"),
            max_running_time: self.seconds("mcp.policy.max_running_seconds"),
            max_memory_bytes: self.limit("mcp.policy.max_memory_mb").map(|mb| mb << 20),
            max_processes: self.limit("mcp.policy.max_processes"),
            max_parallel: self.count("mcp.policy.max_parallel"),
            max_running: self.count("mcp.policy.max_running"),
        };
        Config {
            execution,
            redaction: RedactionConfig {
                secrets: self.words("redaction.secrets"),
                allow: self.words("redaction.allow"),
                patterns: self.words("redaction.patterns"),
            },
            tracking_ignore: self.words("tracking.ignore"),
            test_reports: self.words("tests.reports"),
            push: self.text("record.push"),
            slurm: SlurmConfig {
                partition: self.text("slurm.partition"),
                account: self.text("slurm.account"),
                qos: self.text("slurm.qos"),
                options: self.words("slurm.options"),
                shared_dir: self.text("slurm.shared_dir"),
                max_in_flight: self.number("slurm.max_in_flight"),
                pack: self.number("slurm.pack"),
                visible_after: self.duration("slurm.visible_after"),
                setup_on_node: self.word("slurm.setup_on") == "node",
            },
            sandbox,
            policy,
            agent: self.agent(),
            layers: self,
        }
    }

    fn agent(&self) -> AgentConfig {
        let set = self.values.iter().filter(|(_, (_, source))| *source != ValueSource::Default);
        let values = set.filter_map(|(path, (value, source))| {
            let path = path.strip_prefix("agent.").filter(|path| *path != "mcp")?;
            let value = match value {
                Value::Number(number) => GivenValue::Text(number.to_string()),
                Value::Truth(truth) => GivenValue::Text(truth.to_string()),
                Value::Word(word) => GivenValue::Text((*word).to_owned()),
                Value::Text(text) => GivenValue::Text(text.clone()),
                Value::Words(words) => GivenValue::Words(words.clone()),
                Value::Pairs(pairs) => GivenValue::Pairs(pairs.clone()),
                Value::Unset => return None,
            };
            let by_variable = matches!(source, ValueSource::Variable(_));
            Some((path.to_owned(), AgentValue { value, by_variable }))
        });
        AgentConfig { mcp: self.truth("agent.mcp"), values: values.collect() }
    }

    fn number(&self, path: &str) -> u64 {
        match self.values[path].0 {
            Value::Number(number) => number,
            ref other => unreachable!("{path} is {other:?}"),
        }
    }

    fn seconds(&self, path: &str) -> Duration {
        Duration::from_secs(self.number(path))
    }

    /// Defaults are valid, and given values were checked.
    fn duration(&self, path: &str) -> Duration {
        let text = self.text(path).unwrap_or_default();
        parse_duration(&text).unwrap_or_default()
    }

    fn count(&self, path: &str) -> usize {
        usize::try_from(self.number(path)).unwrap_or(usize::MAX)
    }

    /// `None` for 0.
    fn limit(&self, path: &str) -> Option<u64> {
        Some(self.number(path)).filter(|number| *number > 0)
    }

    fn truth(&self, path: &str) -> bool {
        match self.values[path].0 {
            Value::Truth(truth) => truth,
            ref other => unreachable!("{path} is {other:?}"),
        }
    }

    fn word(&self, path: &str) -> &'static str {
        match self.values[path].0 {
            Value::Word(word) => word,
            ref other => unreachable!("{path} is {other:?}"),
        }
    }

    fn env_mode(&self, path: &str) -> EnvMode {
        match self.word(path) {
            "replace" => EnvMode::Replace,
            "merge" => EnvMode::Merge,
            _ => EnvMode::Inherit,
        }
    }

    /// `None` if unset or empty.
    fn text(&self, path: &str) -> Option<String> {
        match &self.values[path].0 {
            Value::Text(text) if text.is_empty() => None,
            Value::Text(text) => Some(text.clone()),
            Value::Unset => None,
            other => unreachable!("{path} is {other:?}"),
        }
    }

    fn words(&self, path: &str) -> Vec<String> {
        match &self.values[path].0 {
            Value::Words(words) => words.clone(),
            other => unreachable!("{path} is {other:?}"),
        }
    }
}

/// The prefix of variables that set keys.
const PREFIX: &str = "RETAKE_";

/// The variable that sets a key: `RETAKE_EXECUTION__MAX_OUTPUT_KB`.
pub fn variable(path: &str) -> String {
    format!("{PREFIX}{}", path.to_uppercase().replace('.', "__"))
}

/// Whether this is the [`variable`] that sets a key. Fast, because every command checks every key.
fn sets(name: &str, path: &str) -> bool {
    let Some(name) = name.strip_prefix(PREFIX) else { return false };
    let mut rest = name.bytes();
    let is_next = |byte: u8| match byte {
        b'.' => rest.next() == Some(b'_') && rest.next() == Some(b'_'),
        letter => rest.next() == Some(letter.to_ascii_uppercase()),
    };
    path.bytes().all(is_next) && rest.next().is_none()
}

/// The variables that may set a key.
fn given_variables() -> Vec<(String, OsString)> {
    let own = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value));
    std::env::vars_os()
        .filter(|(name, _)| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
        .filter_map(own)
        .collect()
}

/// Errors for variables that look like keys but are not. Only keys have two underscores; any other
/// `RETAKE_` name may belong to the user.
fn unknown_variables(given: &[(String, OsString)]) -> Vec<String> {
    let mut unknown: Vec<String> = given
        .iter()
        .map(|(name, _)| name)
        .filter(|name| name[PREFIX.len()..].contains("__"))
        .filter(|name| !keys().any(|key| sets(name, key.path)))
        .cloned()
        .collect();
    unknown.sort();
    let described = |name: String| {
        let known = keys().map(|key| variable(key.path));
        let nearest = known.min_by_key(|known| strsim::levenshtein(&name, known));
        let close = |known: &String| strsim::levenshtein(&name, known) <= 2 + name.len() / 6;
        match nearest.filter(close) {
            Some(meant) => format!("${name}: there is no such key; did you mean ${meant}?"),
            None => format!("${name}: there is no such key; `retake config` lists them"),
        }
    };
    unknown.into_iter().map(described).collect()
}

/// The user's own configuration.
pub fn user_file() -> Option<PathBuf> {
    let base = machine::user_directory("XDG_CONFIG_HOME", ".config")?;
    Some(base.join("retake/config.yml"))
}

#[cfg(test)]
mod tests;
