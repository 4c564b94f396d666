//! `retake agent config`: the keys under `agent:`, read and changed.

use std::path::{Path, PathBuf};

use retake_runner::config::{self, Config, edit};
use retake_runner::regular_file;
use retake_types::config::{Key, KeyKind, agent_key, agent_keys};
use serde_json::{Map, Value};

use super::project::{self, AgentProject};
use super::refused;
use crate::{Exit, Failure, term};

/// Show or change the settings of agents
///
/// Without a value, prints the current value of the key. Values are written to the project's
/// .agent/config.yml, with -g to the user's own configuration, with -w to a workspace.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The key, such as claude.args or verification.command
    #[arg(value_name = "KEY")]
    key: Option<String>,
    /// Its new value
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    value: Option<String>,
    /// The user's own configuration
    #[arg(short, long, conflicts_with = "workspace")]
    global: bool,
    /// A workspace's configuration
    #[arg(short, long, value_name = "WORKSPACE")]
    workspace: Option<String>,
    /// List all keys and what they are for
    #[arg(short, long)]
    keys: bool,
    /// List all values
    #[arg(short, long)]
    list: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Add a word to a list
    #[arg(long, value_name = "WORD", conflicts_with = "value", allow_hyphen_values = true)]
    add: Option<String>,
    /// Remove a word from a list
    #[arg(long, value_name = "WORD", conflicts_with = "value", allow_hyphen_values = true)]
    remove: Option<String>,
    /// Restore the default
    #[arg(long, conflicts_with_all = ["value", "add", "remove"])]
    unset: bool,
}

pub(super) fn config(args: &Args, project: &AgentProject) -> Result<Exit, Failure> {
    if args.keys {
        return keys(args.json);
    }
    let Some(path) = &args.key else { return list(args, project) };
    let path = path.strip_prefix("agent.").unwrap_or(path);
    let key = agent_key(path)
        .map(|key| NamedKey { path, key })
        .ok_or_else(|| refused(format!("there is no key {path}; --keys lists them")))?;
    let change = match (&args.value, &args.add, &args.remove, args.unset) {
        (None, None, None, false) => return print(path, args, project),
        (Some(value), ..) => Change::Set(value.clone()),
        (_, Some(word), ..) => Change::Add(word.clone()),
        (_, _, Some(word), _) => Change::Remove(word.clone()),
        _ => Change::Unset,
    };
    match &args.workspace {
        Some(name) => in_workspace(&key, &change, name, project)?,
        None => in_file(&key, &change, args.global, project)?,
    }
    if let Change::Set(program) = &change
        && matches!(path, "command" | "fallback.command" | "claude.command")
    {
        warn_of_program(program, project);
    }
    Ok(Exit::OK)
}

/// Says that no agent could be started with this program; it may be installed later.
fn warn_of_program(program: &str, project: &AgentProject) {
    let path = std::env::var_os("PATH");
    if retake_engine::which(program.as_ref(), path.as_deref(), &project.root).is_some() {
        return;
    }
    let file = project.root.join(program);
    term::say(&match program.contains('/') && file.is_file() {
        true => format!("warning: {program} is not executable; run `chmod +x {program}`"),
        false if program.contains('/') => {
            format!("warning: there is no program {}", file.display())
        }
        false => format!("warning: there is no program {program} in PATH"),
    });
}

/// A key of agents, by its path below `agent`.
struct NamedKey<'a> {
    path: &'a str,
    key: &'static Key,
}

enum Change {
    Set(String),
    Add(String),
    Remove(String),
    Unset,
}

fn keys(json: bool) -> Result<Exit, Failure> {
    if json {
        let all: Vec<Value> = agent_keys()
            .map(|(path, key)| {
                serde_json::json!({
                    "key": path, "default": key.default, "about": key.about,
                    "workspace": key.workspace,
                })
            })
            .collect();
        term::document(&all)?;
        return Ok(Exit::OK);
    }
    let mut table = term::Table::new([
        term::Column::new("KEY"),
        term::Column::new("DEFAULT"),
        term::Column::new("FOR"),
    ]);
    for (path, key) in agent_keys() {
        let default = if key.default.is_empty() { "-" } else { key.default };
        table.row([path.to_owned().into(), default.to_owned().into(), key.about.to_owned().into()]);
    }
    term::page(&table.render(term::width(), term::Palette::of_stdout()))?;
    Ok(Exit::OK)
}

/// The value of every key, with all layers applied.
fn values(args: &Args, project: &AgentProject) -> Result<Map<String, Value>, Failure> {
    let mut values = Map::new();
    for (path, value, _) in project.config.entries() {
        if let Some(path) = path.strip_prefix("agent.") {
            values.insert(path.to_owned(), value.to_json());
        }
    }
    if let Some(name) = &args.workspace {
        let metadata = project.workspace(name)?.metadata().map_err(refused)?;
        project::settings(&project.config, Some(&metadata), Default::default())?;
        for (path, _) in agent_keys() {
            if let Some(own) = find(metadata.config.as_ref(), path) {
                values.insert(path.to_owned(), own.clone());
            }
        }
    }
    Ok(values)
}

fn list(args: &Args, project: &AgentProject) -> Result<Exit, Failure> {
    let values = values(args, project)?;
    if args.json {
        term::document(&values)?;
    } else {
        let lines: String =
            values.iter().map(|(key, value)| format!("{key} = {}\n", shown(value))).collect();
        term::page(&lines)?;
    }
    Ok(Exit::OK)
}

fn print(path: &str, args: &Args, project: &AgentProject) -> Result<Exit, Failure> {
    let values = values(args, project)?;
    let value = values.get(path).cloned().unwrap_or_default();
    if args.json {
        term::document(&value)?;
    } else {
        term::data(format!("{}\n", shown(&value)).as_bytes())?;
    }
    Ok(Exit::OK)
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// The key's new value; `None` to unset it.
fn changed(key: &NamedKey<'_>, change: &Change, now: &Value) -> Result<Option<Value>, Failure> {
    let words = || -> Vec<String> {
        now.as_array()
            .map(|all| all.iter().filter_map(|w| w.as_str().map(str::to_owned)).collect())
            .unwrap_or_default()
    };
    let of_words = |words: Vec<String>| Value::from(words);
    if !matches!(change, Change::Set(_) | Change::Unset) && !matches!(key.key.kind, KeyKind::Words)
    {
        return Err(refused(format!("{} is not a list", key.path)));
    }
    Ok(match change {
        Change::Unset => None,
        Change::Add(word) => {
            let mut all = words();
            all.push(word.clone());
            Some(of_words(all))
        }
        Change::Remove(word) => {
            let mut all = words();
            let before = all.len();
            all.retain(|known| known != word);
            if all.len() == before {
                return Err(refused(format!("{} does not contain {word}", key.path)));
            }
            Some(of_words(all))
        }
        Change::Set(text) => Some(match key.key.kind {
            KeyKind::Words => of_words(
                text.split(',').map(|w| w.trim().to_owned()).filter(|w| !w.is_empty()).collect(),
            ),
            KeyKind::Pairs => Value::Object(
                text.split(',')
                    .map(|pair| match pair.split_once('=') {
                        Some((name, value)) => Ok((name.trim().to_owned(), Value::from(value))),
                        None => Err(refused("write NAME=VALUE, separated by commas")),
                    })
                    .collect::<Result<_, _>>()?,
            ),
            KeyKind::Truth => match text.as_str() {
                "true" => Value::Bool(true),
                "false" => Value::Bool(false),
                _ => return Err(refused(format!("{} takes true or false", key.path))),
            },
            KeyKind::Number { .. } => text
                .parse::<u64>()
                .map(Value::from)
                .map_err(|_| refused(format!("{} takes a whole number, not {text:?}", key.path)))?,
            KeyKind::Word(words) if !words.contains(&text.as_str()) => {
                let words = words.join(", ");
                return Err(refused(format!(
                    "{} takes one of {words}, not {text:?}; nothing was changed",
                    key.path
                )));
            }
            _ => Value::from(text.as_str()),
        }),
    })
}

fn in_workspace(
    key: &NamedKey<'_>,
    change: &Change,
    name: &str,
    project: &AgentProject,
) -> Result<(), Failure> {
    if !key.key.workspace {
        return Err(refused(format!("{} is not for a single workspace", key.path)));
    }
    let workspace = project.workspace(name)?;
    let mut metadata = workspace.metadata().map_err(refused)?;
    let mut own = metadata.config.take().unwrap_or_default();
    let now = find(Some(&own), key.path).cloned().unwrap_or_default();
    put(&mut own, key.path, changed(key, change, &now)?);
    metadata.config = Some(own.clone()).filter(|own| !own.is_empty());
    // Never write a value that cannot be read back.
    project::settings(&project.config, Some(&metadata), Default::default())?;
    let kept = metadata.config;
    workspace.update(|metadata| metadata.config = kept).map_err(refused)?;
    Ok(())
}

fn in_file(
    key: &NamedKey<'_>,
    change: &Change,
    global: bool,
    project: &AgentProject,
) -> Result<(), Failure> {
    let file: PathBuf = match (global, &project.project.root) {
        (true, _) => config::user_file().ok_or_else(|| {
            refused("no directory for the user's configuration: set HOME or XDG_CONFIG_HOME")
        })?,
        (false, Some(root)) => root.join(".agent/config.yml"),
        (false, None) => {
            return Err(refused("this is not a project; create one with `retake init`, or use -g"));
        }
    };
    let full = format!("agent.{}", key.path);
    let text = match regular_file::read_text(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(source) => return Err(Failure::File { action: "read", path: file, source }),
    };
    let now = Config::in_text(&file, &text, &full)?.unwrap_or_default();
    let value = changed(key, change, &now)?;
    let new = edit::set(&text, &full, value.as_ref())
        .map_err(|why| refused(format!("{}: {why}; edit it by hand", file.display())))?;
    // Never write a value that cannot be read back.
    Config::in_text(&file, &new, &full)?;
    write(&file, &new)
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    let failed = |source| Failure::File { action: "write", path: file.to_owned(), source };
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir).map_err(failed)?;
    }
    retake_agent::files::replace(file, text.as_bytes()).map_err(failed)
}

fn find<'a>(own: Option<&'a Map<String, Value>>, path: &str) -> Option<&'a Value> {
    let own = own?;
    match path.split_once('.') {
        None => own.get(path),
        Some((group, rest)) => find(own.get(group)?.as_object(), rest),
    }
}

fn put(own: &mut Map<String, Value>, path: &str, value: Option<Value>) {
    match path.split_once('.') {
        None => match value {
            Some(value) => {
                own.insert(path.to_owned(), value);
            }
            None => {
                own.remove(path);
            }
        },
        Some((group, rest)) => {
            let inner = own.entry(group.to_owned()).or_insert_with(|| Value::Object(Map::new()));
            if let Some(inner) = inner.as_object_mut() {
                put(inner, rest, value);
                if inner.is_empty() {
                    own.remove(group);
                }
            }
        }
    }
}
