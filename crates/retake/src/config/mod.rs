//! Configuration in layers: defaults, the user's file, the project's file, `RETAKE_*` variables.
//! Flags come last and are the commands' own.
//!
//! A value that cannot be read is an error, never a default; all errors are reported at once.

pub(crate) mod edit;
mod keys;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use retake_agent::settings;
use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};

pub(crate) use keys::commented_defaults;
use keys::{Kind, keys};

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    File { path: PathBuf, line: usize },
    Variable(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => write!(f, "${name}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Number(u64),
    Truth(bool),
    Word(&'static str),
    Words(Vec<String>),
    /// A text, or an amount or a duration as it was written.
    Text(String),
    Pairs(BTreeMap<String, String>),
    Unset,
}

impl Value {
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Number(number) => (*number).into(),
            Self::Truth(truth) => (*truth).into(),
            Self::Word(word) => (*word).into(),
            Self::Words(words) => words.clone().into(),
            Self::Text(text) => text.as_str().into(),
            Self::Pairs(pairs) => {
                pairs.iter().map(|(k, v)| (k.clone(), serde_json::Value::from(v.clone()))).collect()
            }
            Self::Unset => serde_json::Value::Null,
        }
    }
}

/// All values, each with its source.
#[derive(Debug)]
pub(crate) struct Config {
    values: BTreeMap<&'static str, (Value, Source)>,
}

/// Everything that is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub(crate) struct ConfigErrors(pub(crate) Vec<String>);

impl Config {
    /// Reads all layers. `project` is the directory that holds `.agent/`.
    pub(crate) fn load(project: Option<&Path>) -> Result<Self, ConfigErrors> {
        let mut errors = Vec::new();
        let mut values = BTreeMap::new();
        for key in keys() {
            values.insert(key.path, (default(key), Source::Default));
        }
        let mut config = Self { values };
        let files = [user_file(), project.map(|dir| dir.join(".agent/config.yml"))];
        for file in files.into_iter().flatten() {
            match std::fs::read_to_string(&file) {
                Ok(text) => config.read(&file, &text, &mut errors),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    errors.push(format!("{}: {}", file.display(), crate::term::plain(&error)))
                }
            }
        }
        for key in keys() {
            let name = variable(key.path);
            let Some(text) = std::env::var_os(&name) else { continue };
            match text
                .to_str()
                .ok_or_else(|| "is not UTF-8".to_owned())
                .and_then(|t| from_text(key.kind, t))
            {
                Ok(value) => {
                    config.values.insert(key.path, (value, Source::Variable(name)));
                }
                Err(why) => errors.push(format!("${name}: {why}")),
            }
        }
        if errors.is_empty() { Ok(config) } else { Err(ConfigErrors(errors)) }
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
                errors.push(format!(
                    "{}:{}:{}: {}",
                    file.display(),
                    at.line(),
                    at.col() + 1,
                    error.info()
                ));
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
            // An empty file, or a group with everything in it commented out.
            YamlData::Value(Scalar::Null) => return,
            _ => {
                let what =
                    if prefix.is_empty() { "the file".to_owned() } else { prefix.to_owned() };
                errors.push(format!(
                    "{}: {what} takes keys and values, not a single value",
                    place(node)
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
            if keys::is_group(&path) {
                self.visit(file, &path, value, errors);
                continue;
            }
            match keys::find(&path) {
                Ok(key) => match from_node(key.kind, key.default.is_empty(), value) {
                    Ok(value) => {
                        let line = name.span.start.line();
                        let source = Source::File { path: file.to_owned(), line };
                        self.values.insert(key.path, (value, source));
                    }
                    Err(why) => errors.push(format!("{}: {path}: {why}", place(value))),
                },
                Err(meant) => {
                    let hint =
                        meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
                    errors.push(format!("{}: there is no key {path}{hint}", place(name)));
                }
            }
        }
    }

    /// Every key with its value and where that comes from.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'static str, &Value, &Source)> {
        self.values.iter().map(|(path, (value, source))| (*path, value, source))
    }

    /// What a file's text alone says of a key; every error of the text is one.
    pub(crate) fn in_text(
        file: &Path,
        text: &str,
        path: &str,
    ) -> Result<Option<serde_json::Value>, ConfigErrors> {
        let mut config = Self { values: BTreeMap::new() };
        let mut errors = Vec::new();
        config.read(file, text, &mut errors);
        if !errors.is_empty() {
            return Err(ConfigErrors(errors));
        }
        Ok(config.values.get(path).map(|(value, _)| value.to_json()))
    }

    /// What is set for agents, as their settings take it, and whether a variable set it; what is not
    /// set has its default there.
    pub(crate) fn of_agents(&self) -> BTreeMap<String, (settings::Value, bool)> {
        let set = self.values.iter().filter(|(_, (_, source))| *source != Source::Default);
        // Whether agents are offered our server is no affair of theirs.
        let set = set.filter(|(path, _)| **path != "agent.mcp");
        set.filter_map(|(path, (value, source))| {
            let by_variable = matches!(source, Source::Variable(_));
            let value = match value {
                Value::Number(number) => settings::Value::Text(number.to_string()),
                Value::Truth(truth) => settings::Value::Text(truth.to_string()),
                Value::Word(word) => settings::Value::Text((*word).to_owned()),
                Value::Text(text) => settings::Value::Text(text.clone()),
                Value::Words(words) => settings::Value::Words(words.clone()),
                Value::Pairs(pairs) => settings::Value::Pairs(pairs.clone()),
                Value::Unset => return None,
            };
            Some((path.strip_prefix("agent.")?.to_owned(), (value, by_variable)))
        })
        .collect()
    }

    pub(crate) fn number(&self, path: &str) -> u64 {
        match self.values[path].0 {
            Value::Number(number) => number,
            ref other => unreachable!("{path} is {other:?}"),
        }
    }

    pub(crate) fn truth(&self, path: &str) -> bool {
        match self.values[path].0 {
            Value::Truth(truth) => truth,
            ref other => unreachable!("{path} is {other:?}"),
        }
    }

    pub(crate) fn word(&self, path: &str) -> &'static str {
        match self.values[path].0 {
            Value::Word(word) => word,
            ref other => unreachable!("{path} is {other:?}"),
        }
    }

    /// `None` where it is not set, or set to nothing.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        match &self.values[path].0 {
            Value::Text(text) if text.is_empty() => None,
            Value::Text(text) => Some(text),
            Value::Unset => None,
            other => unreachable!("{path} is {other:?}"),
        }
    }

    pub(crate) fn words(&self, path: &str) -> &[String] {
        match &self.values[path].0 {
            Value::Words(words) => words,
            other => unreachable!("{path} is {other:?}"),
        }
    }
}

fn default(key: &keys::Key) -> Value {
    match key.kind {
        Kind::Words => {}
        Kind::Pairs => return Value::Pairs(BTreeMap::new()),
        _ if key.default.is_empty() => return Value::Unset,
        _ => {}
    }
    from_text(key.kind, key.default).expect("defaults are valid")
}

/// The variable that sets a key: `RETAKE_EXECUTION__MAX_OUTPUT_KB`.
pub(crate) fn variable(path: &str) -> String {
    format!("RETAKE_{}", path.to_uppercase().replace('.', "__"))
}

/// The user's own configuration.
pub(crate) fn user_file() -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
    Some(base.join("retake/config.yml"))
}

fn from_text(kind: Kind, text: &str) -> Result<Value, String> {
    let text = text.trim();
    match kind {
        Kind::Number { min, max } => {
            let number = text.parse::<u64>().map_err(|_| expected(kind, text))?;
            if (min..=max).contains(&number) {
                Ok(Value::Number(number))
            } else {
                Err(expected(kind, text))
            }
        }
        Kind::Truth => text.parse().map(Value::Truth).map_err(|_| expected(kind, text)),
        Kind::Word(words) => words
            .iter()
            .find(|word| **word == text)
            .map(|word| Value::Word(word))
            .ok_or_else(|| expected(kind, text)),
        Kind::Words if text.starts_with('[') => match MarkedYaml::load_from_str(text).as_deref() {
            Ok([list]) => from_node(kind, false, list),
            _ => Err(expected(kind, text)),
        },
        Kind::Words => Ok(Value::Words(
            text.split(',').map(str::trim).filter(|w| !w.is_empty()).map(str::to_owned).collect(),
        )),
        Kind::Text => Ok(Value::Text(text.to_owned())),
        Kind::Money => match text.parse::<f64>() {
            Ok(amount) if amount.is_finite() && amount > 0.0 => Ok(Value::Text(text.to_owned())),
            _ => Err(expected(kind, text)),
        },
        Kind::Duration => match retake_types::parse_duration(text) {
            Ok(_) => Ok(Value::Text(text.to_owned())),
            Err(why) => Err(why.to_string()),
        },
        Kind::Pairs => text
            .split(',')
            .filter(|pair| !pair.trim().is_empty())
            .map(|pair| match pair.split_once('=') {
                Some((name, value)) => Ok((name.trim().to_owned(), value.to_owned())),
                None => Err(expected(kind, pair)),
            })
            .collect::<Result<_, _>>()
            .map(Value::Pairs),
    }
}

fn from_node(kind: Kind, optional: bool, node: &MarkedYaml<'_>) -> Result<Value, String> {
    match (&node.data, kind) {
        (YamlData::Sequence(items), Kind::Words) => items
            .iter()
            .map(|item| match &item.data {
                YamlData::Value(Scalar::String(text)) => Ok(text.to_string()),
                _ => Err("takes a list of words; quote what looks like a number".to_owned()),
            })
            .collect::<Result<_, _>>()
            .map(Value::Words),
        (YamlData::Mapping(pairs), Kind::Pairs) => pairs
            .iter()
            .map(|(name, value)| match (scalar(name), scalar(value)) {
                (Some(name), Some(value)) => Ok((name, value)),
                _ => Err(expected(kind, "a group or list")),
            })
            .collect::<Result<_, _>>()
            .map(Value::Pairs),
        (YamlData::Value(Scalar::String(_)), Kind::Number { .. } | Kind::Truth) => {
            Err(expected(kind, "text"))
        }
        (_, Kind::Words) => Err("takes a list, such as [a, b]".into()),
        (_, Kind::Pairs) => Err(expected(kind, "a single value")),
        // A key without a value leaves what has no default unset.
        (
            YamlData::Value(Scalar::Null),
            Kind::Text | Kind::Money | Kind::Duration | Kind::Number { .. },
        ) if optional => Ok(Value::Unset),
        (YamlData::Value(Scalar::Null), _) => Err(expected(kind, "nothing")),
        (YamlData::Value(_), _) => {
            from_text(kind, &scalar(node).expect("a value that is not null"))
        }
        _ => Err(expected(kind, "a group or list")),
    }
}

/// The text of a single value.
fn scalar(node: &MarkedYaml<'_>) -> Option<String> {
    match &node.data {
        YamlData::Value(Scalar::Integer(number)) => Some(number.to_string()),
        YamlData::Value(Scalar::Boolean(truth)) => Some(truth.to_string()),
        YamlData::Value(Scalar::String(text)) => Some(text.to_string()),
        YamlData::Value(Scalar::FloatingPoint(number)) => Some(number.to_string()),
        _ => None,
    }
}

fn expected(kind: Kind, got: &str) -> String {
    match kind {
        Kind::Number { min, max } => format!("takes a whole number from {min} to {max}, not {got}"),
        Kind::Truth => format!("takes true or false, not {got}"),
        Kind::Word(words) => format!("takes one of {}, not {got}", words.join(", ")),
        Kind::Words => format!("takes a list of words, not {got}"),
        Kind::Text => format!("takes a text, not {got}"),
        Kind::Money => format!("takes an amount such as 2.50, not {got}"),
        Kind::Duration => format!("takes a time such as 90s, 20m or 2h, not {got}"),
        Kind::Pairs => format!("takes names with values, such as {{A: b}}, not {got}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Config, Vec<String>) {
        let mut config = Config { values: BTreeMap::new() };
        for key in keys() {
            config.values.insert(key.path, (default(key), Source::Default));
        }
        let mut errors = Vec::new();
        config.read(Path::new("c.yml"), text, &mut errors);
        (config, errors)
    }

    #[test]
    fn the_example_of_the_specification_is_read() {
        let (config, errors) = read(
            "# .agent/config.yml\nexecution:\n  default_timeout_seconds: 60\n  max_output_kb: 10\n  use_shell: false\n  environment:\n    mode: merge\n    allow: [CI_TOKEN, X]\n  audit:\n    enabled: true\n    retention_days: 7\n",
        );
        assert_eq!(errors, [""; 0]);
        assert_eq!(config.number("execution.default_timeout_seconds"), 60);
        assert_eq!(config.word("execution.use_shell"), "false");
        assert_eq!(config.words("execution.environment.allow"), ["CI_TOKEN", "X"]);
        let source = &config.values["execution.audit.retention_days"].1;
        assert_eq!(source.to_string(), "c.yml:11");
    }

    #[test]
    fn all_errors_come_at_once_with_their_place() {
        let (_, errors) = read(
            "execution:\n  max_output_kbs: 1\n  use_shell: perhaps\n  default_timeout_seconds: 0\n  audit: 3\n  detach_ok: sccache\nwhat: 1\n",
        );
        assert_eq!(
            errors,
            [
                "c.yml:2:3: there is no key execution.max_output_kbs; did you mean execution.max_output_kb?",
                "c.yml:3:14: execution.use_shell: takes one of auto, true, false, not perhaps",
                "c.yml:4:28: execution.default_timeout_seconds: takes a whole number from 1 to 31536000, not 0",
                "c.yml:5:10: execution.audit takes keys and values, not a single value",
                "c.yml:6:14: execution.detach_ok: takes a list, such as [a, b]",
                "c.yml:7:1: there is no key what",
            ]
        );
    }

    #[test]
    fn broken_yaml_is_an_error_with_its_place() {
        let (_, errors) = read("execution: [\n");
        assert_eq!(errors.len(), 1);
        assert!(errors[0].starts_with("c.yml:2:"), "{errors:?}");
    }

    #[test]
    fn what_init_writes_is_valid_and_changes_nothing() {
        let text = commented_defaults();
        let (_, errors) = read(&text);
        assert!(errors.is_empty(), "{errors:?}");
        let uncommented: String = text
            .lines()
            .filter_map(|l| l.strip_prefix("# "))
            .filter(|l| l.contains(':') && !l.trim_start().starts_with('#'))
            .map(|l| format!("{l}\n"))
            .collect();
        let (config, errors) = read(&uncommented);
        assert!(errors.is_empty(), "{uncommented}\n{errors:?}");
        let (defaults, _) = read("");
        for (path, value, _) in config.entries() {
            assert_eq!(value, &defaults.values[path].0, "{path}");
        }
    }

    #[test]
    fn a_list_in_a_variable_is_words_with_commas_or_a_list_as_in_a_file() {
        let words = |text: &str| from_text(Kind::Words, text);
        let two = Value::Words(vec!["--mem=9G".into(), "--qos=a,b".into()]);
        assert_eq!(words(r#"["--mem=9G", "--qos=a,b"]"#), Ok(two));
        assert_eq!(words("a, b"), Ok(Value::Words(vec!["a".into(), "b".into()])));
        assert_eq!(words("[]"), Ok(Value::Words(Vec::new())));
        for wrong in ["[a", "[[a]]", "[1]"] {
            assert!(words(wrong).is_err(), "{wrong}");
        }
    }
}
