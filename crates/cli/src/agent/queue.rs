//! `retake agent queue`: several tasks one after another, under one budget.

use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;
use jiff::Timestamp;
use retake_agent::display;
use retake_agent::driver::recorded_loop::{self, RecordedLoop};
use retake_agent::driver::{self, AgentSession, QueueEvent, QueueTask, RunOptions};
use retake_agent::queue::{
    Queue, QueueRules, QueueRun, QueueStopReason, QueuedTask, TaskAllowance, TaskEnd, TaskOptions,
    TaskReport, TaskState,
};
use retake_agent::settings::{RuleOverrides, Settings, Value};
use retake_runner::signals;
use retake_store::Store;
use retake_types::LoopId;
use serde::Serialize;

use super::background::{self, Continuation};
use super::project::{AgentProject, named};
use super::screen::AgentScreen;
use super::task::{self, OpenTask, Opened, OutputArgs, TaskArgs, TaskCall};
use super::{fleet_run, messages, project, queue_messages, refused, run_command, steer};
use crate::exec::SandboxArgs;
use crate::term::{Cell, Column, Palette, Shade, Table};
use crate::{Exit, Failure, context, term};

/// Run several tasks one after another
#[derive(Subcommand)]
pub(super) enum Command {
    Add(Box<Add>),
    #[command(alias = "ls")]
    List(List),
    #[command(alias = "rm")]
    Remove(Remove),
    Run(Box<Run>),
    Stop(Stop),
}

/// Add tasks to the queue, with the options to run them with
#[derive(clap::Args)]
pub(super) struct Add {
    /// The workspaces, in the order to run them
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Put them at the front of the queue
    #[arg(long)]
    first: bool,
    #[command(flatten)]
    task: TaskArgs,
}

/// List the tasks of the queue: waiting, running and ended
#[derive(clap::Args)]
pub(super) struct List {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

/// Remove tasks from the queue; their workspaces are kept
#[derive(clap::Args)]
pub(super) struct Remove {
    /// The workspaces
    #[arg(value_name = "NAME", required_unless_present = "ended")]
    names: Vec<String>,
    /// Remove all tasks that have ended
    #[arg(long)]
    ended: bool,
}

/// Stop the queue after the current iteration of the current task
#[derive(clap::Args)]
pub(super) struct Stop {
    /// Stop at once, in the middle of the iteration
    #[arg(long)]
    now: bool,
}

/// Run the tasks of the queue one after another; tasks can be added and removed while it runs
#[derive(clap::Args)]
pub(super) struct Run {
    /// Stop once all tasks together have cost this much, in US dollars
    #[arg(long, value_name = "USD", allow_hyphen_values = true, help_heading = "Budgets")]
    max_cost: Option<String>,
    /// Stop once all tasks together have used this many tokens
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, help_heading = "Budgets")]
    max_tokens: Option<String>,
    /// Stop once the queue has taken this long
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Budgets")]
    max_time: Option<String>,
    /// Start no further task after a failure
    #[arg(long)]
    stop_on_failure: bool,
    /// Run in the background, even after the terminal is closed
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    output: OutputArgs,
    /// Skip permission prompts in all tasks (runtime only, not saved)
    #[arg(long)]
    dangerously_skip_permissions: bool,
    /// Record secrets instead of replacing them
    #[arg(long)]
    no_redact: bool,
    #[command(flatten)]
    sandbox: SandboxArgs,
}

pub(super) fn queue(command: Command, project: &AgentProject) -> Result<Exit, Failure> {
    let queue = Queue::of(&project.directories);
    match command {
        Command::Add(args) => add(&args, &queue, project),
        Command::List(args) => list(&args, &queue, project),
        Command::Remove(args) => remove(&args, &queue),
        Command::Run(args) => run(&args, &queue, project),
        Command::Stop(args) => stop(&args, &queue, project),
    }
}

fn add(args: &Add, queue: &Queue, project: &AgentProject) -> Result<Exit, Failure> {
    let options = args.task.options()?;
    let mut tasks: Vec<QueuedTask> = Vec::new();
    for name in &args.names {
        let workspace = project.workspace(name)?;
        let name = workspace.name();
        if tasks.iter().any(|task| task.name == name.as_str()) {
            return Err(refused(format!("{name} is named twice")));
        }
        // Refuse what could not be run later.
        let unsupported = settings(name.as_str(), &options, project)?.unsupported();
        if !unsupported.is_empty() {
            let lines: Vec<_> = unsupported.iter().map(messages::unsupported).collect();
            return Err(refused(format!("{name}: {}", lines.join("\n"))));
        }
        if workspace.instructions().map_err(refused)?.is_none() {
            return Err(refused(messages::no_instructions(name)));
        }
        let instructions = workspace.instructions().map_err(refused)?.unwrap_or_default();
        let metadata = workspace.metadata().map_err(refused)?;
        if !options.again && metadata.is_complete(&instructions) {
            term::say(&format!("{name} is already complete; it will not run without --again"));
        }
        tasks.push(QueuedTask {
            name: name.to_string(),
            added: Timestamp::now(),
            options: options.clone(),
            state: TaskState::Waiting,
        });
    }
    let count = tasks.len();
    let runs =
        queue.add(tasks, args.first).map_err(|error| refused(queue_messages::error(&error)))?;
    term::data(format!("✓ {} added\n", term::count(count as u64, "task")).as_bytes())?;
    if !runs {
        term::data("→ Run the queue: retake agent queue run\n".as_bytes())?;
    }
    Ok(Exit::OK)
}

/// The settings that a task will run with.
fn settings(
    name: &str,
    options: &TaskOptions,
    project: &AgentProject,
) -> Result<Settings, Failure> {
    let metadata = project.workspace(name)?.metadata().map_err(refused)?;
    let given = options.settings.iter();
    let flags = given.map(|(path, text)| (path.clone(), Value::Text(text.clone()))).collect();
    project::settings(&project.config, Some(&metadata), flags)
}

fn remove(args: &Remove, queue: &Queue) -> Result<Exit, Failure> {
    let failed = |error| refused(queue_messages::error(&error));
    let mut count = 0;
    if args.ended {
        count += queue.remove_ended().map_err(failed)?;
    }
    let names = args.names.iter().map(|name| named(name)).collect::<Result<Vec<_>, _>>()?;
    queue.remove(&names).map_err(failed)?;
    count += names.len();
    term::data(format!("✓ {} removed\n", term::count(count as u64, "task")).as_bytes())?;
    Ok(Exit::OK)
}

fn stop(args: &Stop, queue: &Queue, project: &AgentProject) -> Result<Exit, Failure> {
    if queue.holder().is_none() {
        return Err(refused("the queue is not running"));
    }
    let failed = |error| refused(queue_messages::error(&error));
    queue.request_stop().map_err(failed)?;
    let content = queue.read().map_err(failed)?;
    let runs = content.tasks.iter().find(|task| matches!(task.state, TaskState::Running { .. }));
    // Between two tasks there is no loop to stop.
    if let Some(mailbox) = runs.and_then(|task| steer::running(&task.name, project).ok()) {
        let asked = if args.now { mailbox.1.stop_now() } else { mailbox.1.stop() };
        asked.map_err(refused)?;
    }
    let when = if args.now { "now" } else { "after this iteration (at once with --now)" };
    term::data(format!("✓ The queue stops {when}\n").as_bytes())?;
    Ok(Exit::OK)
}

fn rules(args: &Run) -> Result<QueueRules, Failure> {
    // Read in the same way as the options of a single task.
    let given =
        [("maxCost", &args.max_cost), ("maxTokens", &args.max_tokens), ("maxTime", &args.max_time)];
    let given = given.into_iter();
    let given = given.filter_map(|(path, text)| Some((path.to_owned(), text.clone()?)));
    let given = given.map(|(path, text)| (path, Value::Text(text))).collect();
    let budgets = Settings::read(&given)
        .map_err(|errors| refused(messages::settings_errors(&errors, &|_| true)))?
        .budgets;
    Ok(QueueRules {
        max_cost_usd: budgets.cost_usd,
        max_tokens: budgets.tokens,
        max_time: budgets.time,
        stop_on_failure: args.stop_on_failure,
    })
}

fn run(args: &Run, queue: &Queue, project: &AgentProject) -> Result<Exit, Failure> {
    let failed = |error| refused(queue_messages::error(&error));
    let rules = rules(args)?;
    let flags = args.output.flags()?;
    let level = project::settings(&project.config, None, flags.clone())?.output_level;
    if let Some(holder) = queue.holder() {
        return Err(refused(queue_messages::held(&holder)));
    }
    let content = queue.read().map_err(failed)?;
    let waiting: Vec<&QueuedTask> = content
        .tasks
        .iter()
        .filter(|task| !matches!(task.state, TaskState::Ended { .. }))
        .collect();
    // A queue whose process died after its last task must still be ended.
    if waiting.is_empty() && content.run.is_none() {
        return Err(refused(
            "the queue has no waiting task; add one with `retake agent queue add NAME`",
        ));
    }
    // Reported while a person is likely to read it; the other tasks run anyway.
    for task in &waiting {
        if let Some(why) = obstacle(task, rules, project) {
            term::say(&format!("{} cannot be run: {why}", task.name));
        }
    }
    let mut process = None;
    if args.detach {
        match background::continue_in_background(level, &queue_messages::detached(waiting.len()))? {
            Continuation::Here(continued) => process = Some(continued),
            Continuation::Caller(exit) => return Ok(exit),
        }
    }
    let screen = Arc::new(AgentScreen::of_queue(level, process));
    let store = project.project.read_store().ok();
    let display = |event: QueueEvent<'_>| screen.queue(&event);
    let mut signal = None;
    let finished = driver::run_queue(queue, rules, store.as_ref(), &display, |queued| {
        run_task(queued, args, &screen, project, &mut signal)
    })
    .map_err(failed)?;
    screen.queue_finished(&finished, &repeated(args));
    match finished.reason {
        QueueStopReason::Interrupted => Ok(Exit::Signal(signal.unwrap_or(libc::SIGINT))),
        _ if finished.failures > 0 => Ok(Exit::FAILED),
        _ => Ok(Exit::OK),
    }
}

/// Why a task cannot be run under these rules, as far as that is known before its turn.
fn obstacle(task: &QueuedTask, rules: QueueRules, project: &AgentProject) -> Option<String> {
    let mut settings = match settings(&task.name, &task.options, project) {
        Ok(settings) => settings,
        Err(failure) => return Some(failure.to_string()),
    };
    settings.budgets = TaskAllowance::from(rules).limit(settings.budgets);
    let unsupported: Vec<_> = settings.unsupported().iter().map(messages::unsupported).collect();
    (!unsupported.is_empty()).then(|| unsupported.join("\n"))
}

/// Runs one task to its end. An error that keeps it from starting ends the task, not the queue.
fn run_task(
    queued: &QueueTask<'_>,
    args: &Run,
    screen: &Arc<AgentScreen>,
    project: &AgentProject,
    signal: &mut Option<i32>,
) -> TaskReport {
    let not_started = |failure: Failure| {
        let why = failure.to_string();
        TaskReport::without_loop(TaskEnd::NotStarted { why })
    };
    let flags = match args.output.flags() {
        Ok(flags) => flags,
        Err(failure) => return not_started(failure),
    };
    let call = TaskCall {
        options: &queued.task.options,
        flags,
        overrides: RuleOverrides::default(),
        run: RunOptions {
            skip_permissions: args.dangerously_skip_permissions,
            dry_run: false,
            no_redact: args.no_redact,
        },
        sandbox: &args.sandbox,
        allowance: queued.allowance,
        queue: Some(queued.run),
        place: None,
    };
    if let Err(failure) = fleet_run::not_in_unfinished(&queued.task.name, project) {
        return not_started(failure);
    }
    let OpenTask { task, rules, .. } = match task::open(&queued.task.name, call, project) {
        Ok(Opened::Task(open)) => *open,
        Ok(Opened::Complete { .. }) => {
            return TaskReport::without_loop(TaskEnd::AlreadyComplete);
        }
        Err(failure) => return not_started(failure),
    };
    let started = AgentSession::start(task, "queue run", &project.run_context(), screen.clone());
    match started.and_then(|session| driver::run(session, rules)) {
        Ok(finished) => {
            *signal = finished.signal.or(signals::received());
            context::finish(finished.worker, &project.config);
            let (reason, loop_id) = (finished.reason, finished.loop_id);
            TaskReport { end: TaskEnd::Stopped { reason, loop_id }, spent: finished.spent }
        }
        Err(error) => not_started(refused(messages::start_error(&error))),
    }
}

/// The options to repeat when the rest of the queue is run.
fn repeated(args: &Run) -> Vec<String> {
    let mut words = args.sandbox.words();
    for (flag, value) in [
        ("--max-cost", &args.max_cost),
        ("--max-tokens", &args.max_tokens),
        ("--max-time", &args.max_time),
    ] {
        words.extend(value.iter().flat_map(|value| run_command::option(flag, value)));
    }
    if args.stop_on_failure {
        words.push("--stop-on-failure".to_owned());
    }
    words
}

/// One task as it is printed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    name: &'a str,
    /// `waiting`, `running`, `interrupted`, `ended`.
    state: &'static str,
    stop_reason: Option<&'static str>,
    why: Option<&'a str>,
    loop_id: Option<LoopId>,
    iterations: Option<usize>,
    cost_usd: Option<f64>,
    tokens: Option<u64>,
    added_at: Timestamp,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    options: &'a TaskOptions,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    running: bool,
    holder: Option<&'a str>,
    run: Option<&'a QueueRun>,
    tasks: &'a [Row<'a>],
}

fn list(args: &List, queue: &Queue, project: &AgentProject) -> Result<Exit, Failure> {
    let holder = queue.holder();
    let content = queue.read().map_err(|error| refused(queue_messages::error(&error)))?;
    let store = project.project.read_store().ok();
    let rows: Vec<Row<'_>> = content
        .tasks
        .iter()
        .map(|task| row(task, holder.is_some(), store.as_ref(), project))
        .collect();
    if args.json {
        let run = content.run.as_ref();
        let running = holder.is_some();
        term::document(&Document { running, holder: holder.as_deref(), run, tasks: &rows })?;
        return Ok(Exit::OK);
    }
    if rows.is_empty() {
        term::say("the queue is empty; add tasks with `retake agent queue add NAME`");
        return Ok(Exit::OK);
    }
    let mut text = table(&rows).render(term::width(), Palette::of_stdout());
    if let Some(holder) = &holder {
        text += &format!("\nrun by {holder}\n");
    } else if content.run.is_some() {
        text += "\nits retake process died; `retake agent queue run` continues it\n";
    }
    term::page(&text)?;
    Ok(Exit::OK)
}

fn row<'a>(
    task: &'a QueuedTask,
    queue_runs: bool,
    store: Option<&Store>,
    project: &AgentProject,
) -> Row<'a> {
    let mut row = Row {
        name: &task.name,
        state: "waiting",
        stop_reason: None,
        why: None,
        loop_id: None,
        iterations: None,
        cost_usd: None,
        tokens: None,
        added_at: task.added,
        started_at: None,
        ended_at: None,
        options: &task.options,
    };
    match &task.state {
        TaskState::Waiting => {}
        TaskState::Running { since } => {
            row.state = if queue_runs { "running" } else { "interrupted" };
            row.started_at = Some(*since);
            row.loop_id = store.and_then(|store| open_loop(&task.name, *since, store, project));
        }
        TaskState::Ended { since, at, end } => {
            row.state = "ended";
            (row.started_at, row.ended_at) = (*since, Some(*at));
            match end {
                TaskEnd::Stopped { reason, loop_id } => {
                    (row.stop_reason, row.loop_id) = (Some(reason.as_str()), *loop_id);
                }
                TaskEnd::AlreadyComplete => row.stop_reason = Some("already_complete"),
                TaskEnd::NotStarted { why } => {
                    (row.stop_reason, row.why) = (Some("not_started"), Some(why.as_str()));
                }
            }
        }
    }
    let recorded = |id: LoopId| recorded_loop::read_loop(store?, id).ok();
    if let Some(recorded) = row.loop_id.and_then(recorded) {
        let spent = RecordedLoop::spent(&recorded);
        row.iterations = Some(recorded.iterations.len());
        (row.cost_usd, row.tokens) = (spent.known_cost(), Some(spent.tokens));
    }
    row
}

/// The loop of a running task.
fn open_loop(
    name: &str,
    since: Timestamp,
    store: &Store,
    project: &AgentProject,
) -> Option<LoopId> {
    let workspace = project.workspace(name).ok()?;
    let metadata = workspace.metadata().ok()?;
    let last = recorded_loop::last_loops(store, [(&workspace, &metadata)]).ok()?.pop()??;
    // An earlier loop belongs to another run, unless it continues.
    (last.stop_reason.is_none() || last.start_time >= since).then_some(last.id)
}

fn table(rows: &[Row<'_>]) -> Table<'static> {
    let mut table = Table::new([
        Column::new("#").right(),
        Column::new("NAME"),
        Column::new("STATE"),
        Column::new("ITERATIONS").right().spare(2),
        Column::new("COST").right().spare(1),
        Column::new("TOOK").right().spare(3),
        Column::new("WHY"),
    ]);
    for (number, row) in rows.iter().enumerate() {
        let ended = row.stop_reason.unwrap_or(row.state);
        let shade = match ended {
            "completed" | "already_complete" | "running" => Shade::Good,
            "failed" | "verify_failed" | "not_started" => Shade::Bad,
            _ => Shade::Open,
        };
        let until = row.ended_at.unwrap_or_else(Timestamp::now);
        let took = row.started_at.map(|started| until.duration_since(started));
        let took = took.and_then(|took| Duration::try_from(took).ok());
        table.row([
            (number + 1).to_string().into(),
            row.name.to_owned().into(),
            Cell::shaded(ended, shade),
            row.iterations.map_or_else(String::new, |count| count.to_string()).into(),
            row.cost_usd
                .filter(|cost| *cost > 0.0)
                .map_or_else(String::new, |cost| format!("${cost:.2}"))
                .into(),
            took.map_or_else(String::new, display::time).into(),
            row.why.unwrap_or_default().lines().next().unwrap_or_default().to_owned().into(),
        ]);
    }
    table
}
