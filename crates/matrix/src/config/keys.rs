//! Parses each key of a configuration.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use retake_engine::check_variable;
use retake_types::parse_duration;
use saphyr::LoadableYamlNode;

use super::metrics;
use super::nodes::{Node, Nodes};
use super::{
    CHROME, CODE, COMMAND, ChromeConfig, CodeConfig, CommandConfig, Config, NamedCommand, Order,
    ResetMode, uses,
};
use crate::browsers::BrowserRequest;
use crate::iteration::axis_variable;
use crate::table::Axis;
use retake_types::ShellMode;
use retake_types::loop_record::matrix::IgnoreFailure;

const KEYS: [&str; 21] = [
    "command",
    "commands",
    "shell",
    "ignore_failure",
    "setup",
    "prepare",
    "conclude",
    "cleanup",
    "reset",
    "iterations",
    "warmup",
    "workers",
    "chrome",
    "code",
    "axes",
    "exclude",
    "include",
    "timeout",
    "order",
    "metrics",
    "env",
];

pub(super) fn read(file: &Path, text: &str) -> Result<Config, Vec<String>> {
    let lenient = file.file_stem() == Some(OsStr::new("chrome-ranger"));
    let mut nodes = Nodes::new(file, text, lenient);
    let documents = Node::load_from_str(text).map_err(|error| {
        let at = error.marker();
        vec![format!("{}:{}:{}: {}", file.display(), at.line(), at.col() + 1, error.info())]
    })?;
    let mut config = Config::new(file, CommandConfig::One(String::new()));
    config.fills_values = !lenient;
    let mut seen = Vec::new();
    let entries = match documents.first() {
        Some(root) => nodes.entries(root, "", Some(&KEYS)),
        None => Vec::new(),
    };
    // Exclusions refer to axes, which may come later in the file.
    for (key, _, value) in entries.iter().filter(|(key, ..)| key != "exclude" && key != "include") {
        seen.push(key.clone());
        one_key(&mut nodes, &mut config, key, value);
    }
    for (key, _, value) in &entries {
        match key.as_str() {
            "exclude" => config.exclude = exclusions(&mut nodes, &config, value),
            "include" => inclusions(&mut nodes, &mut config, value),
            _ => {}
        }
    }
    let has = |name: &str| seen.iter().any(|key| key == name);
    if has("command") && has("commands") {
        let what = "has command and commands; write one of them";
        nodes.problems.push(format!("{}: {what}", file.display()));
    }
    if has("commands") && config.axes.iter().any(|axis| axis.name == COMMAND) {
        let what = "axes.command: commands are an axis of that name; choose another name";
        nodes.problems.push(format!("{}: {what}", file.display()));
    }
    let in_setup = |axis: &&Axis| {
        config.code.is_some()
            && !config.command.several().is_empty()
            && config.setup.as_deref().is_some_and(|setup| uses(setup, &axis.name))
    };
    if let Some(axis) = config.axes.iter().find(in_setup) {
        let what = format!("setup: runs once in each worktree, so it has no {{{}}}", axis.name);
        nodes.problems.push(format!("{}: {what}", file.display()));
    }
    let missing =
        [("command", has("command") || has("commands")), ("iterations", has("iterations"))];
    for (required, _) in missing.into_iter().filter(|(_, there)| !there) {
        nodes.problems.push(format!("{}: {required} is missing", file.display()));
    }
    config.warnings = nodes.warnings;
    if nodes.problems.is_empty() { Ok(config) } else { Err(nodes.problems) }
}

fn one_key<'t>(nodes: &mut Nodes<'t>, config: &mut Config, key: &str, value: &Node<'t>) {
    match key {
        "command" => {
            config.command = CommandConfig::One(nodes.text(value, key).unwrap_or_default());
        }
        "commands" => config.command = CommandConfig::Several(commands(nodes, value)),
        "shell" => match nodes.text(value, key).as_deref() {
            Some("auto") => config.shell = ShellMode::Auto,
            Some("default") => config.shell = ShellMode::Always,
            Some("none") => config.shell = ShellMode::Never,
            Some(other) => {
                nodes.problem(value, key, format!("takes auto, none or default, not {other}"));
            }
            None => {}
        },
        "ignore_failure" => config.ignore_failure = ignore_failure(nodes, value),
        "setup" => config.setup = nodes.text(value, key),
        "prepare" => config.prepare = nodes.text(value, key),
        "conclude" => config.conclude = nodes.text(value, key),
        "cleanup" => config.cleanup = nodes.text(value, key),
        "reset" => match nodes.text(value, key).as_deref() {
            Some("iteration") => config.reset = ResetMode::Iteration,
            Some("run") => config.reset = ResetMode::Run,
            Some("never") => config.reset = ResetMode::Never,
            Some(other) => {
                nodes.problem(value, key, format!("takes iteration, run or never, not {other}"));
            }
            None => {}
        },
        "iterations" => config.iterations = nodes.number(value, key, 1).unwrap_or(1),
        "warmup" => config.warmup = nodes.number(value, key, 0).unwrap_or(0),
        "workers" => {
            let workers = nodes.number(value, key, 1).unwrap_or(1);
            config.workers = usize::try_from(workers).unwrap_or(usize::MAX);
        }
        "chrome" => config.chrome = Some(chrome(nodes, value)),
        "code" => config.code = Some(code(nodes, value)),
        "axes" => config.axes = axes(nodes, value),
        "timeout" => config.timeout = timeout(nodes, value),
        "order" => match nodes.text(value, key).as_deref() {
            Some("interleaved") => config.order = Order::Interleaved,
            Some("blocked") => config.order = Order::Blocked,
            Some(other) => {
                nodes.problem(value, key, format!("takes interleaved or blocked, not {other}"));
            }
            None => {}
        },
        "metrics" => config.metrics = metrics::read(nodes, value),
        "env" => config.env = env(nodes, value),
        _ => {}
    }
}

/// Commands, optionally with names.
fn commands<'t>(nodes: &mut Nodes<'t>, node: &Node<'t>) -> Vec<NamedCommand> {
    let mut commands: Vec<NamedCommand> = Vec::new();
    for item in nodes.items(node, "commands") {
        let (mut name, mut text) = (None, nodes.scalar(item));
        if text.is_some() {
            text = nodes.text(item, "commands");
        } else {
            for (key, _, value) in nodes.entries(item, "commands", Some(&["name", "command"])) {
                let written = nodes.text(value, "commands");
                *(if key == "name" { &mut name } else { &mut text }) = written;
            }
            if text.is_none() {
                nodes.problem(item, "commands", "names no command");
            }
        }
        let Some(text) = text else { continue };
        let name = name.unwrap_or_else(|| text.clone());
        if commands.iter().any(|known| known.name == name) {
            nodes.problem(item, "commands", format!("{name} is listed twice; give each a name"));
        }
        commands.push(NamedCommand { name, text });
    }
    commands
}

fn ignore_failure<'t>(nodes: &mut Nodes<'t>, node: &Node<'t>) -> IgnoreFailure {
    let listed = match nodes.scalar(node) {
        Some(text) if text == "true" => return IgnoreFailure::All,
        Some(text) if text == "false" => return IgnoreFailure::None,
        Some(text) => vec![text],
        None => nodes.texts(node, "ignore_failure").into_iter().map(|(text, _)| text).collect(),
    };
    let parsed = IgnoreFailure::parse(&listed.join(","));
    if parsed.is_none() {
        nodes.problem(node, "ignore_failure", "takes true, false, or exit codes from 1 to 255");
    }
    parsed.unwrap_or_default()
}

fn chrome<'t>(nodes: &mut Nodes<'t>, node: &Node<'t>) -> ChromeConfig {
    let known = ["versions", "cache_dir", "index_url", "download_url"];
    let mut chrome = ChromeConfig::default();
    let mut listed = false;
    for (key, _, value) in nodes.entries(node, CHROME, Some(&known)) {
        let path = format!("{CHROME}.{key}");
        match key.as_str() {
            "versions" => {
                listed = true;
                for (text, item) in nodes.texts(value, &path) {
                    add_version(nodes, &mut chrome, &text, item, &path);
                }
            }
            "cache_dir" => {
                chrome.cache_dir = nodes.text(value, &path).map(|dir| beside(nodes, &dir))
            }
            "index_url" => chrome.index_url = address(nodes, value, &path),
            _ => chrome.download_url = address(nodes, value, &path),
        }
    }
    if !listed {
        nodes.problem(node, CHROME, "versions is missing");
    }
    chrome
}

fn add_version(
    nodes: &mut Nodes<'_>,
    chrome: &mut ChromeConfig,
    text: &str,
    node: &Node<'_>,
    path: &str,
) {
    match text.parse::<BrowserRequest>() {
        Ok(BrowserRequest::Program { path, name }) => {
            let path = nodes.file.parent().unwrap_or(Path::new("")).join(path);
            chrome.versions.push(text.to_owned());
            chrome.requests.insert(text.to_owned(), BrowserRequest::Program { path, name });
        }
        Ok(request) => {
            chrome.versions.push(text.to_owned());
            chrome.requests.insert(text.to_owned(), request);
        }
        Err(error) => nodes.problem(node, path, error.to_string()),
    }
}

fn address(nodes: &mut Nodes<'_>, node: &Node<'_>, path: &str) -> Option<String> {
    let text = nodes.text(node, path)?;
    if text.starts_with("https://") || text.starts_with("http://") {
        return Some(text.trim_end_matches('/').to_owned());
    }
    nodes.problem(node, path, "takes an address that begins with https:// or http://");
    None
}

fn code<'t>(nodes: &mut Nodes<'t>, node: &Node<'t>) -> CodeConfig {
    let mut code = CodeConfig { repo: beside(nodes, "."), refs: Vec::new() };
    let mut listed = false;
    for (key, _, value) in nodes.entries(node, CODE, Some(&["repo", "refs"])) {
        let path = format!("{CODE}.{key}");
        if key == "repo" {
            if let Some(repo) = nodes.text(value, &path) {
                code.repo = beside(nodes, &repo);
            }
        } else {
            listed = true;
            code.refs = nodes.texts(value, &path).into_iter().map(|(text, _)| text).collect();
        }
    }
    if !listed {
        nodes.problem(node, CODE, "refs is missing");
    }
    code
}

/// A relative path in the file starts at the file's directory.
fn beside(nodes: &Nodes<'_>, path: &str) -> std::path::PathBuf {
    let directory = nodes.file.parent().filter(|dir| !dir.as_os_str().is_empty());
    directory.map_or_else(|| path.into(), |directory| directory.join(path))
}

fn axes<'t>(nodes: &mut Nodes<'t>, node: &Node<'t>) -> Vec<Axis> {
    let mut axes: Vec<Axis> = Vec::new();
    for (name, at, value) in nodes.entries(node, "axes", None) {
        let path = format!("axes.{name}");
        if let Err(why) = check_axis_name(&name) {
            nodes.problem(at, &path, why);
            continue;
        }
        let same = axes.iter().find(|axis| axis_variable(&axis.name) == axis_variable(&name));
        if let Some(same) = same {
            let what = format!("sets {} as axes.{} does", axis_variable(&name), same.name);
            nodes.problem(at, &path, what);
        }
        let values = nodes.texts(value, &path).into_iter().map(|(text, _)| text).collect();
        axes.push(Axis { name, values });
    }
    axes
}

/// Whether an additional axis may have this name.
pub fn check_axis_name(name: &str) -> Result<(), String> {
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match name {
        CHROME | CODE => Err(format!("{name} has a section of its own")),
        _ if !name.chars().all(letters) || !name.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            Err("is not a name for an axis; use letters, digits, _ and -".to_owned())
        }
        _ => Ok(()),
    }
}

/// One entry of `exclude` or `include`; checks the axes it names.
fn values<'t>(
    nodes: &mut Nodes<'t>,
    axes: &[Axis],
    node: &Node<'t>,
    path: &str,
    any_value: bool,
) -> Option<BTreeMap<String, String>> {
    let mut values = BTreeMap::new();
    let before = nodes.problems.len();
    for (name, at, value) in nodes.entries(node, path, None) {
        let Some(axis) = axes.iter().find(|axis| axis.name == name) else {
            nodes.problem(node, path, format!("there is no axis {name}"));
            continue;
        };
        let Some(text) = nodes.text(value, path) else { continue };
        // A list with an error is incomplete, and its error is reported already.
        if !any_value && !axis.values.is_empty() && !axis.values.contains(&text) {
            nodes.problem(at, path, format!("{name} has no value {text}"));
        }
        values.insert(name, text);
    }
    (nodes.problems.len() == before).then_some(values)
}

fn exclusions<'t>(
    nodes: &mut Nodes<'t>,
    config: &Config,
    node: &Node<'t>,
) -> Vec<BTreeMap<String, String>> {
    let axes = config.all_axes();
    let items = nodes.items(node, "exclude");
    items
        .iter()
        .filter_map(|item| {
            let values = values(nodes, &axes, item, "exclude", false)?;
            if values.is_empty() {
                nodes.problem(item, "exclude", "names no value");
            }
            Some(values)
        })
        .collect()
}

/// Additional cells; their new values join the axes.
fn inclusions<'t>(nodes: &mut Nodes<'t>, config: &mut Config, node: &Node<'t>) {
    let axes = config.all_axes();
    for item in nodes.items(node, "include") {
        let Some(values) = values(nodes, &axes, item, "include", true) else { continue };
        let missing: Vec<&str> = axes
            .iter()
            .map(|axis| axis.name.as_str())
            .filter(|name| !values.contains_key(*name))
            .collect();
        if !missing.is_empty() {
            nodes.problem(item, "include", format!("names no value for {}", missing.join(", ")));
            continue;
        }
        if let (Some(chrome), Some(text)) = (&mut config.chrome, values.get(CHROME))
            && !chrome.requests.contains_key(text)
        {
            add_version(nodes, chrome, text, item, "include");
            // It belongs to this cell only.
            chrome.versions.retain(|version| version != text);
        }
        config.include.push(values);
    }
}

fn timeout(nodes: &mut Nodes<'_>, node: &Node<'_>) -> Option<Duration> {
    let text = nodes.text(node, "timeout")?;
    match parse_duration(&text) {
        Ok(Duration::ZERO) => nodes.problem(node, "timeout", "is 0; omit it for no limit"),
        Ok(duration) => return Some(duration),
        Err(why) => nodes.problem(node, "timeout", why.to_string()),
    }
    None
}

fn env<'t>(nodes: &mut Nodes<'t>, node: &Node<'t>) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    for (name, at, value) in nodes.entries(node, "env", None) {
        // A variable may be empty.
        let Some(text) = nodes.scalar(value) else {
            nodes.problem(value, "env", format!("{name} takes a single value"));
            continue;
        };
        let problems = check_variable(OsStr::new(&name), OsStr::new(&text));
        for problem in &problems {
            nodes.problem(at, "env", problem.to_string());
        }
        variables.insert(name, text);
    }
    variables
}
