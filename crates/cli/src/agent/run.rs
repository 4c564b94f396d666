//! `retake agent run`: the loop.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use retake_agent::adapters::{self, Kind};
use retake_agent::clock::Clock;
use retake_agent::control::Mailbox;
use retake_agent::display::Level;
use retake_agent::iteration::History;
use retake_agent::lock::Lock;
use retake_agent::log::Log;
use retake_agent::messages;
use retake_agent::notify::Sender;
use retake_agent::plan::{Past, Plan, Spent};
use retake_agent::prompt::Templates;
use retake_agent::settings::{Settings, Value};
use retake_agent::status::Marks;
use retake_agent::workspace::{Metadata, Workspace, WorkspaceStatus};
use retake_engine::{KeeperSession, Launch};
use retake_types::RunId;

use super::project::{self, Project};
use super::refused;
use crate::Exit;
use crate::Failure;
use crate::term;
use retake_agent::driver::Options;
use retake_agent::driver::Runner;
use retake_agent::driver::chronicle;
use retake_agent::driver::chronicle::Chapter;
use retake_agent::driver::chronicle::Chronicle;
use retake_agent::driver::chronicle::Planned;
use retake_agent::driver::screen::Screen;
use retake_runner::prepare::Spec;
use retake_runner::project;
use retake_runner::request::Problems;
use retake_runner::signals;
use retake_runner::worker::Audit;
use retake_runner::worker::Slot;

/// How long an agent may take to say its version.
const VERSION: Duration = Duration::from_secs(60);
/// Between two tries of a notification.
const NOTIFY_PAUSE: Duration = Duration::from_secs(1);

/// Run the agent again and again until the task is complete, or something says stop
#[derive(clap::Args, Default)]
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
    /// Exit with a code of its own when it stops without completion: 3 iterations, 4 stagnation or
    /// no progress, 5 budget, 6 stopped, 7 limit
    #[arg(long)]
    fail_incomplete: bool,
}

pub(super) fn run(args: Args, project: Project) -> Result<Exit, Failure> {
    let workspace = project.workspace(&args.name)?;
    let metadata = workspace.metadata().map_err(refused)?;
    let settings = project::settings(&project.config, Some(&metadata), flags(&args)?)
        .map_err(|failure| by_flag(&args, failure))?;
    let instructions = workspace
        .instructions()
        .map_err(refused)?
        .ok_or_else(|| refused(messages::instructions_not_found(workspace.name())))?;
    let refusals = settings.refusals();
    if !refusals.is_empty() {
        return Err(refused(refusals.join("\n")));
    }
    let options =
        Options { skip_permissions: args.dangerously_skip_permissions, dry_run: args.dry_run };
    let (most, delay, threshold) = limits(&args)?;
    let rules = settings.rules(&metadata, most, delay, threshold, seed());
    let fail_incomplete = settings.fail_incomplete;
    let most = rules.max_iterations;
    let opened = Opened { project, workspace, metadata, settings, options, instructions, most };
    let mut runner = opened.start("run", |runner, last, past| match past {
        Some(broken) => {
            runner
                .screen
                .message(&format!("Going on with the loop that broke off after iteration {last}"));
            let mut plan = Plan::resume(rules, last, &broken.past, broken.refusals)
                .having_used(broken.used)
                .having_tried(broken.attempts);
            plan.charge(broken.besides);
            if broken.at_gate { plan.at_gate() } else { plan }
        }
        None => Plan::new(rules, last),
    })?;
    if runner.options.skip_permissions {
        runner.screen.trouble(&messages::permissions_skipped(runner.settings.kind));
    }
    runner.marks = Marks::take(&runner.workspace);
    let going_on = runner.workspace.update(|m| m.status = WorkspaceStatus::InProgress);
    going_on.map_err(refused)?;
    let reason = runner.run();
    match reason.exit_code(fail_incomplete) {
        // A signal that came when the work was done is a signal all the same.
        Some(code) if !signals::asked().load(Ordering::Relaxed) => Ok(Exit::Code(code)),
        _ => Ok(Exit::Signal(signals::received().unwrap_or(libc::SIGINT))),
    }
}

/// Everything that is known before anything is started.
pub(super) struct Opened {
    pub(super) project: Project,
    pub(super) workspace: Workspace,
    pub(super) metadata: Metadata,
    pub(super) settings: Settings,
    pub(super) options: Options,
    pub(super) instructions: String,
    /// How many iterations there may be.
    pub(super) most: u32,
}

/// What is known of a loop whose runner died.
pub(super) struct Broken {
    past: Vec<Past>,
    refusals: u32,
    besides: Spent,
    /// Attempts at the iteration that has no number yet.
    attempts: u32,
    at_gate: bool,
    used: Duration,
}

impl Opened {
    /// Takes the workspace, starts a keeper, opens the record, and sees that the agent is there.
    pub(super) fn start(
        self,
        command: &str,
        plan: impl FnOnce(&Runner, u32, Option<Broken>) -> Plan,
    ) -> Result<Runner, Failure> {
        let Self { project, workspace, metadata, settings, options, instructions, most } = self;
        let Project { root, place, config, .. } = project;
        let own_failure = |error: std::io::Error| {
            refused(format!("no process could be made: {}", term::plain(&error)))
        };
        // The keeper first, while nothing is locked and no thread runs.
        let mut slot = Slot::start(1, KeeperSession::Own, &place, Audit::of(&config))
            .map_err(own_failure)?
            .remove(0);
        drop(signals::asked());
        let lock =
            Lock::acquire(&workspace, &project::host(), &format!("{command} {}", workspace.name()))
                .map_err(refused)?;
        check_agent(&mut slot, &settings, &options)?;
        let screen = Arc::new(Screen::new(settings.output_level));
        let redactor = Arc::new(redactor(&config, &place, &root, &settings)?);
        let mailbox = Mailbox::of(&workspace).map_err(refused)?;
        mailbox.begin().map_err(refused)?;

        let mut chapters = match slot.store() {
            Ok(store) => chronicle::read(store, &workspace, &metadata)?,
            Err(error) => {
                screen.trouble(&format!("the history of this loop is not recorded: {error}"));
                Vec::new()
            }
        };
        let planned = Planned {
            workspace: workspace.name().to_string(),
            created: metadata.created,
            mode: metadata.mode.to_string(),
            agent: settings.kind.to_string(),
            max_iterations: most,
            counted: metadata.execution_iterations,
        };
        // A loop that nobody ended, while we hold the workspace: its runner died.
        let broken = chapters.last_mut().filter(|last| last.record.stop_reason.is_none());
        let (chronicle, past) = match (broken, slot.store()) {
            (Some(chapter), Ok(store)) if command == "run" => {
                let chronicle = Chronicle::resume(store, chapter)?;
                // A death between the record and the counter must not leave them apart.
                let counted = chapter.planned().map_or(0, |planned| planned.counted);
                let iterations = u32::try_from(chapter.iterations.len()).unwrap_or(u32::MAX);
                let counted = counted.saturating_add(iterations);
                let updated = workspace.update(|metadata| {
                    metadata.execution_iterations = counted;
                    metadata.total_iterations = metadata.setup_iterations.saturating_add(counted);
                });
                updated.map_err(refused)?;
                let past = chapter.iterations.iter().map(|iteration| iteration.past()).collect();
                let id = chapter.record.id.to_string();
                let used = Clock::used(&mailbox, &id).unwrap_or_default();
                let Chapter { refusals, besides, attempts, .. } = *chapter;
                let at_gate = chapter.asking.is_some();
                let broken = Broken { past, refusals, besides, attempts, at_gate, used };
                (chronicle, Some(broken))
            }
            (_, Ok(store)) if command == "run" => (Chronicle::begin(store, &planned)?, None),
            _ => (Chronicle::unrecorded(), None),
        };
        let history = chronicle::iterations(&chapters);
        let refusal = chapters.last_mut().and_then(|last| last.refusal.take());
        let last = History::new(&history).next_number().saturating_sub(1);
        let log_redactor = redactor.clone();
        // Only a loop has a log.
        let log_path = match command {
            "run" => workspace.log_path(Timestamp::now()),
            _ => PathBuf::from("/dev/null"),
        };
        let log = Log::create(
            &log_path,
            settings.kind,
            Box::new(move |text| log_redactor.redact_str(text).0.into_owned()),
        );
        let sender = match &settings.notify_url {
            None => None,
            Some(url) => {
                let started = Sender::start(
                    url,
                    settings.notify_events.clone(),
                    settings.notify_timeout,
                    NOTIFY_PAUSE,
                );
                match started {
                    Ok(sender) => Some(Arc::new(Mutex::new(sender))),
                    Err(error) => {
                        screen.trouble(&format!("nobody is notified: {error}"));
                        None
                    }
                }
            }
        };
        let status_instructions = workspace.status_instructions().map_err(refused)?;
        let mut runner = Runner {
            slot,
            config,
            templates: Templates::new(Some(&root.join(&settings.prompts_dir))),
            project: root,
            place,
            marks: Marks::take(&workspace),
            workspace,
            plan: Plan::new(retake_agent::plan::Rules::new(metadata.mode), last),
            metadata,
            settings,
            options,
            instructions,
            status_instructions,
            chronicle,
            history,
            screen,
            redactor,
            log,
            sender,
            mailbox,
            refusal,
            command_passed: None,
            owed: None,
            begun: Instant::now(),
            numbers: Arc::new(AtomicU32::new(last)),
            lock,
        };
        runner.plan = plan(&runner, last, past);
        Ok(runner)
    }
}

/// Sees that the agent can be started at all.
fn check_agent(slot: &mut Slot, settings: &Settings, options: &Options) -> Result<(), Failure> {
    if options.dry_run {
        return Ok(());
    }
    let kind = settings.kind;
    // SAFETY: no arguments, no failure.
    let user = unsafe { libc::geteuid() };
    let asked = options.skip_permissions
        || settings.args.iter().any(|arg| arg == "--dangerously-skip-permissions");
    let sandboxed = settings
        .iteration
        .env_vars
        .get("IS_SANDBOX")
        .map(std::ffi::OsString::from)
        .or_else(|| std::env::var_os("IS_SANDBOX"));
    if let Some(why) = adapters::refused_as_root(kind, asked, user, sandboxed.as_deref()) {
        return Err(refused(why));
    }
    let Some(words) = adapters::version(kind, settings.command.as_deref()) else { return Ok(()) };
    let mut request = Launch::new(words.iter().map(std::ffi::OsString::from));
    request.timeout = Some(VERSION);
    for (name, value) in &settings.iteration.env_vars {
        request.environment.retain(|(known, _)| known != name.as_str());
        request.environment.push((name.into(), value.into()));
    }
    match slot.quietly(request) {
        Ok((outcome, _)) if outcome.success() => Ok(()),
        _ => Err(refused(messages::not_found(kind, &words[0]))),
    }
}

/// Knows the secrets that must not get into logs, prompts that are kept, and notifications.
fn redactor(
    config: &retake_runner::config::Config,
    place: &project::Place,
    root: &std::path::Path,
    settings: &Settings,
) -> Result<retake_store::redact::Redactor, Failure> {
    let mut spec = Spec::new(retake_types::Kind::Agent, String::new(), root.to_owned());
    spec.set = settings.iteration.env_vars.iter().map(|(n, v)| (n.into(), v.into())).collect();
    let environment = spec.environment(config, &place.store);
    let mut problems = Problems::default();
    let redactor = spec.redactor(config, &environment, &mut problems);
    match problems.0.first() {
        None => Ok(redactor),
        Some(problem) => Err(refused(problem)),
    }
}

/// Settings that have a flag: their keys, the flags, and what was given.
fn texts(args: &Args) -> [(&'static str, &'static str, Option<String>); 11] {
    let level = match (args.verbose, args.quiet) {
        (true, _) => Some(Level::Verbose.as_str().to_owned()),
        (_, true) => Some(Level::Quiet.as_str().to_owned()),
        _ => args.output.clone(),
    };
    [
        ("outputLevel", "--output", level),
        ("kind", "--agent", args.agent.clone()),
        ("verification.command", "--verify", args.verify.clone()),
        ("maxCost", "--max-cost", args.max_cost.clone()),
        ("maxTokens", "--max-tokens", args.max_tokens.clone()),
        ("maxTime", "--max-time", args.max_time.clone()),
        ("maxIterationCost", "--max-iteration-cost", args.max_iteration_cost.clone()),
        ("maxIterationTokens", "--max-iteration-tokens", args.max_iteration_tokens.clone()),
        ("maxFailures", "--max-failures", args.max_failures.clone()),
        ("maxNoProgress", "--max-no-progress", args.max_no_progress.clone()),
        ("onLimit", "--on-limit", args.on_limit.clone()),
    ]
}

/// What is wrong with a value is said of the flag that gave it.
fn by_flag(args: &Args, failure: Failure) -> Failure {
    let mut text = failure.to_string();
    for (path, flag, given) in texts(args) {
        if given.is_some() {
            text = text.replace(&format!("agent.{path}: "), &format!("{flag}: "));
        }
    }
    refused(text)
}

/// What flags say, as settings take it.
fn flags(args: &Args) -> Result<BTreeMap<String, Value>, Failure> {
    if usize::from(args.verbose) + usize::from(args.quiet) + usize::from(args.output.is_some()) > 1
    {
        return Err(refused(messages::conflicting_output()));
    }
    let mut flags = BTreeMap::new();
    for (path, _, text) in texts(args) {
        if let Some(text) = text {
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
        flags.insert("kind".to_owned(), Value::Text(Kind::Claude.to_string()));
    }
    Ok(flags)
}

type Limits = (Option<u32>, Option<Duration>, Option<u32>);

fn limits(args: &Args) -> Result<Limits, Failure> {
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
    Ok((
        number("--max-iterations", &args.max_iterations, 1)?,
        delay,
        number("--stagnation-threshold", &args.stagnation_threshold, 0)?,
    ))
}

/// For the jitter of waits: differs from loop to loop.
pub(super) fn seed() -> u64 {
    let bytes = *RunId::new().as_bytes();
    u64::from_le_bytes([
        bytes[8], bytes[9], bytes[10], bytes[11], bytes[12], bytes[13], bytes[14], bytes[15],
    ])
}
