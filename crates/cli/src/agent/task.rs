//! A task as `run` and the queue run it: its options, its settings, and what keeps it from running.

use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use retake_agent::display::Level;
use retake_agent::driver::{AgentTask, RunOptions, recorded_loop};
use retake_agent::plan::Rules;
use retake_agent::queue::{TaskAllowance, TaskOptions};
use retake_agent::settings::{RuleOverrides, Value};
use retake_agent::workspace::{Metadata, Workspace};
use retake_types::RunId;

use super::project::{self, AgentProject};
use super::{messages, refused, run_command};
use crate::exec::SandboxArgs;
use crate::{Failure, term};

/// The options of a task; the queue stores them for later.
#[derive(clap::Args)]
pub(super) struct TaskArgs {
    /// Override max iterations
    #[arg(short, long, value_name = "NUMBER", allow_hyphen_values = true)]
    max_iterations: Option<String>,
    /// Which agent: claude, codex, gemini, opencode or custom [default: claude]
    #[arg(long, value_name = "KIND")]
    agent: Option<String>,
    /// Which agent takes over while the first one waits for its usage limit
    #[arg(long, value_name = "KIND")]
    fallback_agent: Option<String>,
    /// A command that must pass before completion is accepted
    #[arg(long, value_name = "COMMAND")]
    verify: Option<String>,
    /// Save the project's files in git after each iteration, under refs/retake/
    #[arg(long)]
    checkpoint: bool,
    /// Run a completed task again
    #[arg(long)]
    again: bool,

    /// Stop once the loop has cost this much, in US dollars
    #[arg(long, value_name = "USD", allow_hyphen_values = true, help_heading = "Budgets")]
    max_cost: Option<String>,
    /// Stop once the loop has used this many tokens
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, help_heading = "Budgets")]
    max_tokens: Option<String>,
    /// Stop once the loop has taken this long
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Budgets")]
    max_time: Option<String>,
    /// Stop once one iteration has cost this much
    #[arg(long, value_name = "USD", allow_hyphen_values = true, help_heading = "Budgets")]
    max_iteration_cost: Option<String>,
    /// Stop once one iteration has used this many tokens
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, help_heading = "Budgets")]
    max_iteration_tokens: Option<String>,
    /// Stop after this many failures in a row; 0 means never [default: 1]
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, help_heading = "Budgets")]
    max_failures: Option<String>,
    /// Stop after this many iterations in a row without progress; 0 means never [default: 0]
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, help_heading = "Budgets")]
    max_no_progress: Option<String>,
    /// What to do when the account's limit is reached: wait or stop [default: wait]
    #[arg(long, value_name = "WHAT", help_heading = "Budgets")]
    on_limit: Option<String>,
}

impl TaskArgs {
    /// The value that an option gives for a setting.
    fn given(&self, path: &str) -> Option<String> {
        let given = match path {
            "kind" => &self.agent,
            "fallback.kind" => &self.fallback_agent,
            "verification.command" => &self.verify,
            "maxCost" => &self.max_cost,
            "maxTokens" => &self.max_tokens,
            "maxTime" => &self.max_time,
            "maxIterationCost" => &self.max_iteration_cost,
            "maxIterationTokens" => &self.max_iteration_tokens,
            "maxFailures" => &self.max_failures,
            "maxNoProgress" => &self.max_no_progress,
            "onLimit" => &self.on_limit,
            _ => return None,
        };
        given.clone()
    }

    pub(super) fn options(&self) -> Result<TaskOptions, Failure> {
        let given = messages::FLAGS.iter();
        let given = given.filter_map(|(path, _)| Some(((*path).to_owned(), self.given(path)?)));
        let mut settings: BTreeMap<String, String> = given.collect();
        if self.checkpoint {
            settings.insert("checkpoint".to_owned(), "true".to_owned());
        }
        let max_iterations = number("--max-iterations", self.max_iterations.as_deref(), 1)?;
        Ok(TaskOptions { settings, max_iterations, again: self.again })
    }
}

/// Parses the whole number of an option.
pub(super) fn number(option: &str, text: Option<&str>, least: u32) -> Result<Option<u32>, Failure> {
    let Some(text) = text else { return Ok(None) };
    match text.parse::<u32>() {
        Ok(number) if number >= least => Ok(Some(number)),
        _ => Err(refused(format!("{option} takes a whole number from {least}, not {text:?}"))),
    }
}

/// How a task is run this time.
pub(super) struct TaskCall<'a> {
    pub(super) options: &'a TaskOptions,
    /// Settings that only this call changes.
    pub(super) flags: BTreeMap<String, Value>,
    pub(super) overrides: RuleOverrides,
    pub(super) run: RunOptions,
    pub(super) sandbox: &'a SandboxArgs,
    /// The remaining budget for several tasks, and the run of the queue that this task is part of.
    pub(super) allowance: TaskAllowance,
    pub(super) queue: Option<&'a str>,
    /// The clone it runs in; `None` for the project itself.
    pub(super) place: Option<TaskPlace>,
}

/// An agent's own clone.
pub(super) struct TaskPlace {
    pub(super) workspace: Workspace,
    /// The working directory in the clone.
    pub(super) root: PathBuf,
    /// The repository whose objects the clone reads.
    pub(super) borrows: PathBuf,
    /// The clone, and the path at which a sandbox mounts it.
    pub(super) shown: Option<(PathBuf, PathBuf)>,
}

/// A task that is ready to run.
pub(super) struct OpenTask {
    pub(super) task: AgentTask,
    pub(super) rules: Rules,
    pub(super) fail_incomplete: bool,
    pub(super) level: Level,
    /// Removed when dropped.
    _dry_run_dir: Option<DryRunDir>,
}

/// The result of opening a task.
pub(super) enum Opened {
    Task(Box<OpenTask>),
    /// The task is complete already.
    Complete {
        level: Level,
    },
}

/// Reads a task's settings and checks everything that can be checked before it runs.
pub(super) fn open(
    name: &str,
    call: TaskCall<'_>,
    project: &AgentProject,
) -> Result<Opened, Failure> {
    let workspace = match &call.place {
        Some(place) => place.workspace.clone(),
        None => project.workspace(name)?,
    };
    let name = workspace.name().clone();
    let metadata = workspace.metadata().map_err(refused)?;
    let mut flags = call.flags;
    for (path, text) in &call.options.settings {
        flags.entry(path.clone()).or_insert_with(|| Value::Text(text.clone()));
    }
    let mut settings = project::settings(&project.config, Some(&metadata), flags)?;
    settings.budgets = call.allowance.limit(settings.budgets);
    let unsupported = settings.unsupported();
    let max_iterations = call.options.max_iterations;
    let overrides = RuleOverrides { max_iterations, seed: seed(), ..call.overrides };
    let rules = settings.rules(&metadata, overrides);
    let (fail_incomplete, level) = (settings.fail_incomplete, settings.output_level);
    let dry_run_dir = call.run.dry_run.then(DryRunDir::new).transpose()?;
    let workspace = match &dry_run_dir {
        Some(dir) => workspace.copy_to(&dir.0).map_err(refused)?,
        None => workspace,
    };
    let before = metadata.clone();
    let mut task = AgentTask::open(project.root.clone(), workspace, metadata, settings, call.run)
        .map_err(|error| refused(messages::task_error(&error, &name)))?;
    if !unsupported.is_empty() {
        let lines: Vec<_> = unsupported.iter().map(messages::unsupported).collect();
        return Err(refused(lines.join("\n")));
    }
    let is_complete = before.is_complete(task.instructions());
    if !call.options.again
        && !call.run.dry_run
        && is_complete
        && !has_open_loop(project, &task.workspace, &before)
    {
        return Ok(Opened::Complete { level });
    }
    task.offer = project.server_offer();
    let place = call.place.as_ref();
    task.sandbox = project.sandbox_in(call.sandbox, &task.settings, &task.workspace, place)?;
    if let Some(place) = call.place {
        task.shown_root = task.sandbox.inside(&place.root);
        task.root = place.root;
    }
    task.queue = call.queue.map(str::to_owned);
    task.repeated_options = run_command::repeated(call.options, call.sandbox);
    Ok(Opened::Task(Box::new(OpenTask {
        task,
        rules,
        fail_incomplete,
        level,
        _dry_run_dir: dry_run_dir,
    })))
}

/// A copy of the workspace for a dry run; removed when dropped.
struct DryRunDir(PathBuf);

impl DryRunDir {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("retake-dry-run-{}", RunId::new()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        match made {
            Ok(()) => Ok(Self(path)),
            Err(source) => Err(Failure::File { action: "create", path, source }),
        }
    }
}

impl Drop for DryRunDir {
    fn drop(&mut self) {
        // Best effort: only a temporary directory would be left.
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Seeds the jitter of waits, which must differ between loops.
fn seed() -> u64 {
    let [.., a, b, c, d, e, f, g, h] = *RunId::new().as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// Output options, for `run` and the queue.
#[derive(clap::Args)]
pub(super) struct OutputArgs {
    /// Show full agent output (equivalent to --output verbose)
    #[arg(short, long)]
    verbose: bool,
    /// Silent execution, errors only (equivalent to --output quiet)
    #[arg(short, long)]
    quiet: bool,
    /// Output level: quiet, progress, verbose
    #[arg(long, value_name = "LEVEL")]
    output: Option<String>,
}

impl OutputArgs {
    /// As a setting; the three options exclude each other.
    pub(super) fn flags(&self) -> Result<BTreeMap<String, Value>, Failure> {
        let Self { verbose, quiet, output } = self;
        if usize::from(*verbose) + usize::from(*quiet) + usize::from(output.is_some()) > 1 {
            return Err(refused(messages::conflicting_output()));
        }
        let word = match (verbose, quiet) {
            (true, _) => Some(Level::Verbose.as_str().to_owned()),
            (_, true) => Some(Level::Quiet.as_str().to_owned()),
            _ => output.clone(),
        };
        Ok(word.map(|word| ("outputLevel".to_owned(), Value::Text(word))).into_iter().collect())
    }
}

/// Whether a runner died before it recorded the end of its loop, which then must still be recorded.
/// False if the record cannot be read.
fn has_open_loop(project: &AgentProject, workspace: &Workspace, metadata: &Metadata) -> bool {
    let last = project.project.read_store().and_then(|store| {
        Ok(recorded_loop::last_loops(&store, [(workspace, metadata)])?.pop().flatten())
    });
    last.is_ok_and(|last| last.is_some_and(|last| last.stop_reason.is_none()))
}

/// Says that the task is complete already.
pub(super) fn tell_complete(name: &str, options: &[String], level: Level) -> Result<(), Failure> {
    if level != Level::Quiet {
        term::data(messages::already_complete(name, options).as_bytes())?;
    }
    Ok(())
}
