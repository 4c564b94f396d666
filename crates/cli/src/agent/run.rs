//! `retake agent run`: the loop.

use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use retake_agent::adapters::AgentKind;
use retake_agent::display::Level;
use retake_agent::driver::{self, AgentSession, AgentTask, RunOptions};
use retake_agent::settings::{RuleOverrides, Value};
use retake_runner::signals;
use retake_types::RunId;

use super::messages;
use super::project::{self, AgentProject};
use super::refused;
use super::screen::AgentScreen;
use crate::exec::SandboxArgs;
use crate::{Exit, Failure, context, term};

/// Run the agent again and again until the task is complete, or something says stop
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The workspace
    #[arg(value_name = "NAME")]
    pub(super) name: String,
    /// Override max iterations
    #[arg(short, long, value_name = "NUMBER", allow_hyphen_values = true)]
    max_iterations: Option<String>,
    /// Override delay between iterations, in seconds or as 3s, 20m
    #[arg(short, long, value_name = "SECONDS", allow_hyphen_values = true)]
    delay: Option<String>,
    /// Skip delay between iterations
    #[arg(long, conflicts_with = "delay")]
    no_delay: bool,
    /// Stop after N consecutive no-work iterations (iterative mode only, 0=never)
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    stagnation_threshold: Option<String>,
    /// Show full agent output (equivalent to --output verbose)
    #[arg(short, long)]
    verbose: bool,
    /// Silent execution, errors only (equivalent to --output quiet)
    #[arg(short, long)]
    quiet: bool,
    /// Output level: quiet, progress, verbose
    #[arg(long, value_name = "LEVEL")]
    output: Option<String>,
    /// Skip permission prompts (runtime only, not saved to config)
    #[arg(long)]
    dangerously_skip_permissions: bool,
    /// Use a mock agent for testing (logs to /tmp/mock-claude.log)
    #[arg(long)]
    dry_run: bool,

    /// Which agent: claude, codex, gemini, opencode or custom [default: claude]
    #[arg(long, value_name = "KIND")]
    agent: Option<String>,
    /// A command that must pass before completion is accepted
    #[arg(long, value_name = "COMMAND")]
    verify: Option<String>,

    /// Stop when the loop has cost this much, in US dollars
    #[arg(long, value_name = "USD", allow_hyphen_values = true, help_heading = "Budgets")]
    max_cost: Option<String>,
    /// Stop when the loop has used this many tokens
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, help_heading = "Budgets")]
    max_tokens: Option<String>,
    /// Stop when the loop has taken this long
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Budgets")]
    max_time: Option<String>,
    /// Stop when one iteration has cost this much
    #[arg(long, value_name = "USD", allow_hyphen_values = true, help_heading = "Budgets")]
    max_iteration_cost: Option<String>,
    /// Stop when one iteration has used this many tokens
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, help_heading = "Budgets")]
    max_iteration_tokens: Option<String>,
    /// Stop after this many failures in a row; 0 is never [default: 1]
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, help_heading = "Budgets")]
    max_failures: Option<String>,
    /// Stop after this many iterations in a row without progress; 0 is never [default: 0]
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, help_heading = "Budgets")]
    max_no_progress: Option<String>,
    /// What to do when the account's limit is reached: wait or stop [default: wait]
    #[arg(long, value_name = "WHAT", help_heading = "Budgets")]
    on_limit: Option<String>,

    /// Keep the tree's state in git after each iteration, under refs/retake/
    #[arg(long)]
    checkpoint: bool,
    /// Run a task that is complete already once more
    #[arg(long)]
    again: bool,
    /// Keep secrets in what is recorded
    #[arg(long)]
    no_redact: bool,
    /// Exit with a code of its own when it stops without completion: 3 iterations, 4 stagnation or
    /// no progress, 5 budget, 6 stopped, 7 limit
    #[arg(long)]
    fail_incomplete: bool,
    #[command(flatten)]
    sandbox: SandboxArgs,
}

pub(super) fn run(args: &Args, project: &AgentProject) -> Result<Exit, Failure> {
    let workspace = project.workspace(&args.name)?;
    let name = workspace.name().clone();
    let metadata = workspace.metadata().map_err(refused)?;
    let settings = project::settings(&project.config, Some(&metadata), flags(args)?)?;
    let unsupported = settings.unsupported();
    let rules = settings.rules(&metadata, overrides(args)?);
    let (fail_incomplete, level) = (settings.fail_incomplete, settings.output_level);
    let options = RunOptions {
        skip_permissions: args.dangerously_skip_permissions,
        dry_run: args.dry_run,
        no_redact: args.no_redact,
    };
    let dry_run_dir = args.dry_run.then(DryRunDir::new).transpose()?;
    let workspace = match &dry_run_dir {
        Some(dir) => workspace.copy_to(&dir.0).map_err(refused)?,
        None => workspace,
    };
    let metadata_then = metadata.clone();
    let mut task = AgentTask::open(project.root.clone(), workspace, metadata, settings, options)
        .map_err(|error| refused(messages::task_error(&error, &name)))?;
    if !unsupported.is_empty() {
        let lines: Vec<_> = unsupported.iter().map(messages::unsupported).collect();
        return Err(refused(lines.join("\n")));
    }
    if !args.again && !args.dry_run && metadata_then.is_complete(task.instructions()) {
        if level != Level::Quiet {
            term::data(messages::already_complete(&name).as_bytes())?;
        }
        return Ok(Exit::OK);
    }
    task.sandbox = project.sandbox(&args.sandbox, &task.settings, &task.workspace)?;
    task.offer = project.server_offer(task.sandbox.is_on());
    let screen = Arc::new(AgentScreen::new(level));
    let finished = AgentSession::start(task, "run", &project.run_context(), screen)
        .and_then(|session| driver::run(session, rules))
        .map_err(|error| refused(messages::start_error(&error)))?;
    context::finish(finished.worker, &project.config);
    match finished.reason.exit_code(fail_incomplete) {
        // A signal that came when the work was done is a signal all the same.
        Some(code) if !signals::asked().load(Ordering::Relaxed) => Ok(Exit::Code(code)),
        _ => Ok(Exit::Signal(signals::received().unwrap_or(libc::SIGINT))),
    }
}

/// Where the copy of a workspace is that a dry run works on; removed when dropped.
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
        // It is nobody's, and in a directory that the system cleans up.
        drop(std::fs::remove_dir_all(&self.0));
    }
}

impl Args {
    /// What a flag gives for a setting.
    fn given(&self, path: &str) -> Option<String> {
        let given = match path {
            "outputLevel" => match (self.verbose, self.quiet) {
                (true, _) => return Some(Level::Verbose.as_str().to_owned()),
                (_, true) => return Some(Level::Quiet.as_str().to_owned()),
                _ => &self.output,
            },
            "kind" => &self.agent,
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
}

/// What flags say, as settings take it.
fn flags(args: &Args) -> Result<BTreeMap<String, Value>, Failure> {
    if usize::from(args.verbose) + usize::from(args.quiet) + usize::from(args.output.is_some()) > 1
    {
        return Err(refused(messages::conflicting_output()));
    }
    let mut flags = BTreeMap::new();
    for (path, _) in messages::FLAGS {
        if let Some(text) = args.given(path) {
            flags.insert(path.to_owned(), Value::Text(text));
        }
    }
    for (path, given) in [("checkpoint", args.checkpoint), ("failIncomplete", args.fail_incomplete)]
    {
        if given {
            flags.insert(path.to_owned(), Value::Text("true".to_owned()));
        }
    }
    // A dry run speaks Claude's words whatever the agent would be.
    if args.dry_run {
        flags.insert("kind".to_owned(), Value::Text(AgentKind::Claude.to_string()));
    }
    Ok(flags)
}

fn overrides(args: &Args) -> Result<RuleOverrides, Failure> {
    let number = |option: &str, text: &Option<String>, least: u32| match text {
        None => Ok(None),
        Some(text) => match text.parse::<u32>() {
            Ok(number) if number >= least => Ok(Some(number)),
            _ => Err(refused(format!("{option} takes a whole number from {least}, not {text:?}"))),
        },
    };
    let delay = match (&args.delay, args.no_delay) {
        (_, true) => Some(Duration::ZERO),
        (None, _) => None,
        (Some(text), _) => Some(
            retake_types::parse_duration(text).map_err(|why| refused(format!("--delay: {why}")))?,
        ),
    };
    Ok(RuleOverrides {
        max_iterations: number("--max-iterations", &args.max_iterations, 1)?,
        delay,
        stagnation_threshold: number("--stagnation-threshold", &args.stagnation_threshold, 0)?,
        seed: seed(),
    })
}

/// For the jitter of waits: differs from loop to loop.
fn seed() -> u64 {
    let [.., a, b, c, d, e, f, g, h] = *RunId::new().as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}
