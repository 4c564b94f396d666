//! `retake agent run`: the loop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use retake_agent::adapters::AgentKind;
use retake_agent::driver::{self, AgentSession, RunOptions};
use retake_agent::queue::TaskAllowance;
use retake_agent::settings::{RuleOverrides, Value};
use retake_runner::signals;

use super::background::{self, Continuation};
use super::project::AgentProject;
use super::screen::AgentScreen;
use super::task::{self, OpenTask, Opened, OutputArgs, TaskArgs, TaskCall};
use super::{messages, refused};
use crate::exec::SandboxArgs;
use crate::{Exit, Failure, context};

/// Run the agent in a loop until the task is complete or a limit is reached
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
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
    output: OutputArgs,
    /// Skip permission prompts (runtime only, not saved to config)
    #[arg(long)]
    dangerously_skip_permissions: bool,
    /// Use a mock agent for testing (logs to /tmp/mock-claude.log)
    #[arg(long)]
    dry_run: bool,
    /// Run in the background, also when the terminal is closed; `agent attach` follows it
    #[arg(long, conflicts_with = "dry_run")]
    detach: bool,
    #[command(flatten)]
    task: TaskArgs,
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
    };
    let open = match task::open(&args.name, call, project)? {
        Opened::Task(open) => *open,
        Opened::Complete { level } => {
            task::tell_complete(&args.name, level)?;
            return Ok(Exit::OK);
        }
    };
    let mut process = None;
    if args.detach {
        match background::continue_in_background(open.level, &messages::detached(&args.name))? {
            Continuation::Here(continued) => process = Some(continued),
            Continuation::Caller(exit) => return Ok(exit),
        }
    }
    let OpenTask { task, rules, fail_incomplete, level, .. } = open;
    let screen = Arc::new(AgentScreen::new(level, process));
    let finished = AgentSession::start(task, "run", &project.run_context(), screen)
        .and_then(|session| driver::run(session, rules))
        .map_err(|error| refused(messages::start_error(&error)))?;
    context::finish(finished.worker, &project.config);
    match finished.reason.exit_code(fail_incomplete) {
        // A signal that came when the work was done is a signal all the same.
        Some(code) if !signals::asked().load(Ordering::Relaxed) => Ok(Exit::Code(code)),
        _ => Ok(Exit::Signal(finished.signal.unwrap_or(libc::SIGINT))),
    }
}

/// What only this call sets, as settings take it.
fn flags(args: &Args) -> Result<BTreeMap<String, Value>, Failure> {
    let mut flags = args.output.flags()?;
    if args.fail_incomplete {
        flags.insert("failIncomplete".to_owned(), Value::Text("true".to_owned()));
    }
    // A dry run speaks Claude's words whatever the agent would be.
    if args.dry_run {
        flags.insert("kind".to_owned(), Value::Text(AgentKind::Claude.to_string()));
    }
    Ok(flags)
}

fn overrides(args: &Args) -> Result<RuleOverrides, Failure> {
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
