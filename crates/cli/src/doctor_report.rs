//! `retake doctor --report FILE`: one file for a bug report, without secrets and without the user's
//! commands.

use std::fmt::Write;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use retake_engine::Variable;
use retake_runner::config::{Config, Value, ValueSource};
use retake_runner::prepare;
use retake_store::redact::Redactor;
use retake_store::{RunFilter, Store};
use retake_types::request::{CommandRequest, LoopPosition};
use retake_types::{Kind, LoopId, OsText, Run, RunRequest};

use crate::record::Record;
use crate::{Failure, build, context, term};

/// How many of the newest runs are listed.
const RUNS: usize = 20;

/// Writes the report to a new file. `findings` is the output of `doctor`.
pub(crate) fn write(path: &Path, findings: &str, record: &Record) -> Result<(), Failure> {
    let failed =
        |source| Failure::File { action: "write the report to", path: path.into(), source };
    let report = report(findings, record)?;
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    file.write_all(report.as_bytes()).map_err(failed)
}

fn report(findings: &str, record: &Record) -> Result<String, Failure> {
    let mut text = String::from(
        "# retake: report of a problem\n\nWhat did you do, what did you expect, and what happened instead?\n\n\n",
    );
    section(&mut text, "This build", &this_build());
    section(&mut text, "This machine", &machine());
    section(&mut text, "retake doctor", findings);
    let config = Config::load(record.project.root.as_deref());
    match &config {
        Ok(config) => {
            section(&mut text, "Configuration that is not the default", &settings(config))
        }
        Err(error) => section(&mut text, "Configuration", &format!("{error}\n")),
    }
    section(&mut text, "Variables of retake that are set (names only)", &variables());
    if let Ok(Some(store)) = record.read_if_any() {
        section(&mut text, "The newest runs, without their commands", &newest(&store));
    }
    Ok(clean(&text, config.as_ref().ok()))
}

fn section(text: &mut String, title: &str, content: &str) {
    let content = if content.is_empty() { "none\n" } else { content };
    _ = write!(text, "## {title}\n\n```\n{}```\n\n", content.replace("```", "'''"));
}

fn this_build() -> String {
    format!("retake {}\nfeatures: {}\n", build::LONG_VERSION, features().join(", "))
}

fn features() -> Vec<&'static str> {
    let all = [
        ("mcp", cfg!(feature = "mcp")),
        ("postgres", cfg!(feature = "postgres")),
        ("slurm", cfg!(feature = "slurm")),
        ("web", cfg!(feature = "web")),
    ];
    all.into_iter().filter_map(|(name, built_in)| built_in.then_some(name)).collect()
}

fn machine() -> String {
    let name = rustix::system::uname();
    let words = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let mut text =
        format!("{} {} {}\n", words(name.sysname()), words(name.release()), words(name.machine()));
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let pretty = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    _ = writeln!(text, "{}", pretty.unwrap_or("no /etc/os-release").trim_matches('"'));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    _ = writeln!(text, "{}", term::count(cores as u64, "core"));
    _ = writeln!(text, "root: {}", rustix::process::geteuid().is_root());
    text
}

/// Numbers and choices are printed; of a text only that it is set, because it may be private.
fn settings(config: &Config) -> String {
    let mut text = String::new();
    let set = config.entries().filter(|(_, _, source)| **source != ValueSource::Default);
    for (key, value, source) in set {
        let value = match value {
            Value::Number(number) => number.to_string(),
            Value::Truth(truth) => truth.to_string(),
            Value::Word(word) => (*word).to_owned(),
            Value::Words(words) => term::count(words.len() as u64, "value"),
            Value::Pairs(pairs) => term::count(pairs.len() as u64, "value"),
            Value::Text(_) => "a text".to_owned(),
            Value::Unset => "unset".to_owned(),
        };
        let by = match source {
            ValueSource::Variable(_) => "variable",
            _ => "file",
        };
        _ = writeln!(text, "{key}: {value} (by {by})");
    }
    text
}

fn variables() -> String {
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let mut names: Vec<_> = names.filter(|name| name.starts_with("RETAKE_")).collect();
    names.sort();
    names.into_iter().map(|name| name + "\n").collect()
}

fn newest(store: &Store) -> String {
    let runs = store.list(&RunFilter::default(), None, RUNS).map(|page| page.runs);
    match runs {
        Ok(runs) => runs.iter().map(line).collect(),
        Err(error) => format!("{error}\n"),
    }
}

fn line(run: &Run) -> String {
    let mut text = format!("{} {}", run.intent.id().short(), run.intent.start_time);
    match &run.outcome {
        None => _ = write!(text, " {:?}", run.state),
        Some(outcome) => {
            _ = write!(text, " {} in {} ms", outcome.kind, outcome.duration_ms);
            if let Some(code) = outcome.exit_code {
                _ = write!(text, ", exit code {code}");
            }
            if let Some(error) = &outcome.error {
                _ = write!(text, ", {}", error.code);
            }
            if outcome.truncated {
                text.push_str(", output cut");
            }
        }
    }
    text.push('\n');
    text
}

/// Removes secrets, and replaces the home directory by `~`.
fn clean(text: &str, config: Option<&Config>) -> String {
    let redactor = match config {
        None => Redactor::shapes(),
        Some(config) => {
            let position = LoopPosition { kind: Kind::Exec, id: LoopId::new(), iteration: 0 };
            let nothing = CommandRequest::arguments("", Vec::<OsText>::new());
            let request = RunRequest::new(position, nothing, context::here());
            prepare::redactor(&request, &config.redaction, &Variable::all_own(), &mut Vec::new())
        }
    };
    let (clean, _) = redactor.redact_str(text);
    match std::env::home_dir().filter(|home| home.components().count() > 1) {
        Some(home) => clean.replace(&*home.to_string_lossy(), "~"),
        None => clean.into_owned(),
    }
}
