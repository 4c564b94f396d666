//! `retake agent run`: the loop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use retake_agent::adapters::AgentKind;
use retake_agent::display::Level;
use retake_agent::driver::{self, AgentSession, RunOptions};
use retake_agent::queue::TaskAllowance;
use retake_agent::settings::{RuleOverrides, Value};
use retake_runner::signals;

use super::background::{self, Continuation};
use super::fleet_run::FleetArgs;
use super::project::AgentProject;
use super::screen::AgentScreen;
use super::task::{self, OpenTask, Opened, OutputArgs, TaskArgs, TaskCall};
use super::{fleet_run, messages, refused, run_command};
use crate::exec::SandboxArgs;
use crate::{Exit, Failure, context, term};

/// Run the agent in a loop until the task is complete or a limit is reached
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The workspace; several run at once, each in its own clone
    #[arg(value_name = "NAME", required = true)]
    pub(super) names: Vec<String>,
    #[command(flatten)]
    pub(super) fleet: FleetArgs,
    /// Override delay between iterations, in seconds or as 3s, 20m
    #[arg(short, long, value_name = "SECONDS", allow_hyphen_values = true)]
    delay: Option<String>,
    /// Skip delay between iterations
    #[arg(long, conflicts_with = "delay")]
    no_delay: bool,
    /// Stop after N consecutive no-work iterations (iterative mode only, 0=never)
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    stagnation_threshold: Option<String>,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    /// Skip permission prompts (runtime only, not saved to config)
    #[arg(long)]
    pub(super) dangerously_skip_permissions: bool,
    /// Use a mock agent for testing (logs to /tmp/mock-claude.log)
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Run in the background, even after the terminal is closed; `agent attach` follows it
    #[arg(long, conflicts_with = "dry_run")]
    pub(super) detach: bool,
    #[command(flatten)]
    pub(super) task: TaskArgs,
    /// Record secrets instead of replacing them
    #[arg(long)]
    pub(super) no_redact: bool,
    /// Exit with a distinct code when it stops without completion: 3 iterations, 4 stagnation or
    /// no progress, 5 budget, 6 stopped, 7 limit
    #[arg(long)]
    pub(super) fail_incomplete: bool,
    #[command(flatten)]
    pub(super) sandbox: SandboxArgs,
}

pub(super) fn run(args: &Args, project: &AgentProject) -> Result<Exit, Failure> {
    if args.names.len() > 1 || args.fleet.is_given() {
        return fleet_run::run(args, project);
    }
    let name = args.names[0].as_str();
    if !args.dry_run {
        fleet_run::not_in_unfinished(name, project)?;
    }
    let options = args.task.options()?;
    let call = TaskCall {
        options: &options,
        flags: flags(args)?,
        overrides: overrides(args)?,
        run: RunOptions {
            skip_permissions: args.dangerously_skip_permissions,
            dry_run: args.dry_run,
            no_redact: args.no_redact,
        },
        sandbox: &args.sandbox,
        allowance: TaskAllowance::default(),
        queue: None,
        place: None,
    };
    let open = match task::open(name, call, project)? {
        Opened::Task(open) => *open,
        Opened::Complete { level } => {
            let repeated = run_command::repeated(&options, &args.sandbox);
            task::tell_complete(name, &repeated, level)?;
            return Ok(Exit::OK);
        }
    };
    let mut process = None;
    if args.detach {
        match background::continue_in_background(open.level, &messages::detached(name))? {
            Continuation::Here(continued) => process = Some(continued),
            Continuation::Caller(exit) => return Ok(exit),
        }
    }
    let OpenTask { task, rules, fail_incomplete, level, .. } = open;
    if args.dry_run && level != Level::Quiet {
        term::data(format!("{}\n", messages::DRY_RUN).as_bytes())?;
    }
    let screen = Arc::new(AgentScreen::of_run(level, process));
    let finished = AgentSession::start(task, "run", &project.run_context(), screen)
        .and_then(|session| driver::run(session, rules))
        .map_err(|error| refused(messages::start_error(&error)))?;
    context::finish(finished.worker, &project.config);
    match finished.reason.exit_code(fail_incomplete) {
        // A signal that arrived after the work was done still decides the exit code.
        Some(code) if !signals::asked().load(Ordering::Relaxed) => Ok(Exit::Code(code)),
        _ => Ok(Exit::Signal(finished.signal.unwrap_or(libc::SIGINT))),
    }
}

/// Settings that are given for this call only.
pub(super) fn flags(args: &Args) -> Result<BTreeMap<String, Value>, Failure> {
    let mut flags = args.output.flags()?;
    if args.fail_incomplete {
        flags.insert("failIncomplete".to_owned(), Value::Text("true".to_owned()));
    }
    // The mock agent of a dry run prints Claude's format, whatever agent is configured.
    if args.dry_run {
        flags.insert("kind".to_owned(), Value::Text(AgentKind::Claude.to_string()));
    }
    Ok(flags)
}

pub(super) fn overrides(args: &Args) -> Result<RuleOverrides, Failure> {
    let delay = match (&args.delay, args.no_delay) {
        (_, true) => Some(Duration::ZERO),
        (None, _) => None,
        (Some(text), _) => Some(
            retake_types::parse_duration(text).map_err(|why| refused(format!("--delay: {why}")))?,
        ),
    };
    let threshold = args.stagnation_threshold.as_deref();
    Ok(RuleOverrides {
        delay,
        stagnation_threshold: task::number("--stagnation-threshold", threshold, 0)?,
        ..RuleOverrides::default()
    })
}
