//! `retake matrix try`: compares commands from one command line, without a file and without a project.
//! Temporary files are in the system's temporary directory; results are in the record.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_matrix::config::{
    COMMAND, CommandConfig, Config, MetricConfig, NamedCommand, check_axis_name, uses,
};
use retake_matrix::iteration::axis_variable;
use retake_matrix::plan::{Matrix, ScheduleMode};
use retake_matrix::table::Axis;
use retake_runner::scratch_dir;
use retake_types::loop_record::matrix::IgnoreFailure;
use retake_types::request::MetricSource;
use retake_types::{Better, LoopId, ShellMode, parse_duration};

use super::events::EventScreen;
use super::measure::{Measurement, Measuring, Origin};
use super::open;
use crate::{Exit, Failure, term};

/// Compare commands in one line: 'sort-a {size}' 'sort-b {size}' --axis size=1000,100000
///
/// The other commands are compared with the first one. Each iteration runs every command once, in
/// random order. Needs no file, no project and no repository, and writes nothing to the directory.
/// Every run is recorded; earlier runs do not count.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The commands; {NAME} stands for the value of an axis
    #[arg(required = true, value_name = "COMMAND")]
    commands: Vec<String>,
    /// Values for {NAME}; the command also sees AXIS_NAME
    #[arg(long, value_name = "NAME=VALUE,…")]
    axis: Vec<String>,
    /// How many times to run each command
    #[arg(short, long, visible_alias = "iterations", value_name = "N", default_value_t = RUNS,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000), conflicts_with = "until_sure")]
    runs: u64,
    /// Runs of each command before the first measured one
    #[arg(short, long, value_name = "N", default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    warmup: u64,
    /// Run before everything else, once for each distinct setup command
    #[arg(short, long, value_name = "COMMAND")]
    setup: Option<String>,
    /// Run before each iteration, not measured
    #[arg(short, long, value_name = "COMMAND")]
    prepare: Option<String>,
    /// Run after each iteration, not measured
    #[arg(short = 'C', long, value_name = "COMMAND")]
    conclude: Option<String>,
    /// Run after the last iteration of each command and axis value
    #[arg(short, long, value_name = "COMMAND")]
    cleanup: Option<String>,
    /// A name for a command, in the order of the commands
    #[arg(short, long, value_name = "NAME")]
    name: Vec<String>,
    /// What to compare: wall, cpu, rss, a metric that the command reports, or NAME=PATTERN: the number that
    /// a regular expression finds in its output: 'rate=rate: ([0-9.]+)'
    #[arg(long, value_name = "NAME[=PATTERN]", default_value = "wall")]
    metric: String,
    /// Higher values of the metric are better
    #[arg(long)]
    higher: bool,
    /// auto avoids the shell if a command is plain words; none refuses commands that need one; default
    /// always uses sh -c
    #[arg(short = 'S', long, value_enum, value_name = "WHICH", default_value = "auto")]
    shell: Shell,
    /// The same as --shell none
    #[arg(short = 'N', conflicts_with = "shell")]
    no_shell: bool,
    /// Count failures as results: all of them, or those with these exit codes
    #[arg(short, long, value_name = "CODES", num_args = 0..=1, require_equals = true,
        default_missing_value = "all", value_parser = ignore_failure)]
    ignore_failure: Option<IgnoreFailure>,
    /// Terminate a run that takes longer, such as 30s; it counts as failed
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    timeout: Option<Duration>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    measuring: Measuring,
}

const RUNS: u64 = 10;

#[derive(Clone, Copy, clap::ValueEnum)]
enum Shell {
    Auto,
    None,
    Default,
}

fn ignore_failure(text: &str) -> Result<IgnoreFailure, String> {
    let known = if text == "all-non-zero" { "all" } else { text };
    IgnoreFailure::parse(known).ok_or_else(|| "takes exit codes, such as 1,3, or all".to_owned())
}

fn timeout(text: &str) -> Result<Duration, String> {
    match parse_duration(text).map_err(|error| error.to_string())? {
        Duration::ZERO => Err("is 0; omit it for no limit".to_owned()),
        duration => Ok(duration),
    }
}

/// A directory that exists as long as the measurement.
struct Scratch(PathBuf);

impl Scratch {
    fn new(id: LoopId) -> Result<Self, Failure> {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(format!("retake-try-{id}"));
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Self(path)),
            Err(source) => Err(Failure::File { action: "create", path, source }),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Best effort: only a temporary directory would be left.
        drop(scratch_dir::remove(&self.0));
    }
}

pub(super) fn try_commands(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let id = LoopId::new();
    let matrix_config = args.config(id)?;
    for unused in args.unused_axes(&matrix_config) {
        term::say(&format!(
            "--axis {unused}: no command has {{{unused}}} or {}",
            axis_variable(&unused)
        ));
    }
    let unfilled = args.unfilled(&matrix_config);
    let hint = (!unfilled.is_empty()).then(|| unfilled_text(&unfilled, &matrix_config));
    let (before, hint) = if args.axis.is_empty() { (None, hint) } else { (hint, None) };
    if let Some(hint) = before {
        term::say(&hint);
    }
    let scratch = Scratch::new(id)?;
    let (mut project, config) = open::project_of(matrix_config, store, Some(&scratch.0))?;
    project.redact = !args.measuring.no_redact;
    let matrix = Matrix::of(&project.config);
    let measurement = Measurement {
        measuring: &args.measuring,
        origin: Origin::CommandLine,
        options: args.measuring.options(&project, ScheduleMode::Pending, args.metric_name()),
        project: &project,
        config: &config,
        screen: EventScreen::new(args.measuring.quiet, &project),
        json: args.json,
        part: None,
        hint,
    };
    measurement.make(matrix, None)
}

impl Args {
    /// The configuration that a file would contain.
    fn config(&self, id: LoopId) -> Result<Config, Failure> {
        // The command runs in this file's directory; the file itself does not exist.
        let file = open::here()?.join("retake matrix try");
        Ok(Config {
            shell: match self.shell {
                _ if self.no_shell => ShellMode::Never,
                Shell::Auto => ShellMode::Auto,
                Shell::None => ShellMode::Never,
                Shell::Default => ShellMode::Always,
            },
            ignore_failure: self.ignore_failure.clone().unwrap_or_default(),
            fresh: Some(id),
            setup: self.setup.clone(),
            prepare: self.prepare.clone(),
            conclude: self.conclude.clone(),
            cleanup: self.cleanup.clone(),
            iterations: self.runs,
            warmup: self.warmup,
            axes: axes(&self.axis)?,
            timeout: self.timeout,
            metrics: self.metrics()?,
            ..Config::new(&file, CommandConfig::Several(self.named_commands()?))
        })
    }

    fn metric_name(&self) -> &str {
        self.metric.split_once('=').map_or(self.metric.as_str(), |(name, _)| name)
    }

    /// The metric, if it needs a configuration.
    fn metrics(&self) -> Result<Vec<MetricConfig>, Failure> {
        let name = self.metric_name();
        let mut metric = match self.metric.split_once('=') {
            Some((name, pattern)) => MetricConfig::in_output(name, pattern)
                .map_err(|why| Failure::Usage(format!("--metric {name}: {why}")))?,
            None => MetricConfig {
                name: name.to_owned(),
                unit: None,
                better: None,
                source: MetricSource::Reported,
            },
        };
        metric.better = self.higher.then_some(Better::Higher);
        Ok(vec![metric])
    }

    fn named_commands(&self) -> Result<Vec<NamedCommand>, Failure> {
        if self.name.len() > self.commands.len() {
            return Err(Failure::Usage(format!(
                "--name: {} for {}",
                term::count(self.name.len() as u64, "name"),
                term::count(self.commands.len() as u64, "command")
            )));
        }
        let mut names = BTreeSet::new();
        let mut commands = Vec::new();
        for (at, text) in self.commands.iter().enumerate() {
            if text.trim().is_empty() {
                return Err(Failure::Usage("a command is empty".into()));
            }
            let given = self.name.get(at).unwrap_or(text);
            // A command may be compared with itself.
            let mut name = given.clone();
            for number in 2.. {
                if names.insert(name.clone()) {
                    break;
                }
                name = format!("{given} ({number})");
            }
            commands.push(NamedCommand { name, text: text.clone() });
        }
        Ok(commands)
    }

    /// Names in braces that look like an axis and are none. A brace after a quote begins a program,
    /// such as of awk.
    fn unfilled(&self, config: &Config) -> Vec<String> {
        let hooks = [&self.setup, &self.prepare, &self.conclude, &self.cleanup];
        let mut found = BTreeSet::new();
        for text in self.commands.iter().chain(hooks.into_iter().flatten()) {
            for (at, _) in text.match_indices('{') {
                let quoted = text[..at].ends_with(['$', '\'', '"', '{']);
                let Some((name, _)) = text[at + 1..].split_once('}') else { continue };
                let known = config.axes.iter().any(|axis| axis.name == name);
                if !quoted && !known && check_axis_name(name).is_ok() {
                    found.insert(name.to_owned());
                }
            }
        }
        found.into_iter().collect()
    }

    /// Axes that no command uses.
    fn unused_axes(&self, config: &Config) -> Vec<String> {
        let hooks = [&self.setup, &self.prepare, &self.conclude, &self.cleanup];
        let texts: Vec<&String> = self.commands.iter().chain(hooks.into_iter().flatten()).collect();
        let used = |axis: &&Axis| {
            let variable = axis_variable(&axis.name);
            texts.iter().any(|text| uses(text, &axis.name) || text.contains(&variable))
        };
        config.axes.iter().filter(|axis| !used(axis)).map(|axis| axis.name.clone()).collect()
    }
}

/// What becomes of names in braces that no axis fills.
fn unfilled_text(unfilled: &[String], config: &Config) -> String {
    let names: Vec<String> = unfilled.iter().map(|name| format!("{{{name}}}")).collect();
    let axes: Vec<&str> = config.axes.iter().map(|axis| axis.name.as_str()).collect();
    let known = match axes.is_empty() {
        true => String::new(),
        false => format!("; there is --axis {}", axes.join(", ")),
    };
    format!(
        "{} in a command stays unchanged{known}; --axis {}=VALUE,… replaces it",
        names.join(" and "),
        unfilled[0]
    )
}

/// The values of `--axis NAME=VALUE,…`; an axis may be given several times.
fn axes(texts: &[String]) -> Result<Vec<Axis>, Failure> {
    let mut axes: Vec<Axis> = Vec::new();
    for text in texts {
        let wrong = |why: &str| Failure::Usage(format!("--axis {text}: {why}"));
        let (name, values) =
            text.split_once('=').ok_or_else(|| wrong("write NAME=VALUE,…, such as n=10,100"))?;
        let name = name.trim();
        if name == COMMAND {
            return Err(wrong("the commands are the axis of that name; choose another name"));
        }
        check_axis_name(name).map_err(|why| wrong(&why))?;
        let same = axes.iter().position(|axis| axis_variable(&axis.name) == axis_variable(name));
        let at = same.unwrap_or_else(|| {
            axes.push(Axis { name: name.to_owned(), values: Vec::new() });
            axes.len() - 1
        });
        if axes[at].name != name {
            return Err(wrong(&format!("sets {} as {} does", axis_variable(name), axes[at].name)));
        }
        for value in values.split(',').map(str::trim) {
            if value.is_empty() {
                return Err(wrong("has an empty value"));
            }
            if !axes[at].values.iter().any(|known| known == value) {
                axes[at].values.push(value.to_owned());
            }
        }
    }
    Ok(axes)
}
