//! Creates, lists, resets and removes workspaces.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use retake_agent::driver::recorded_loop::{self, LoopActivity};
use retake_agent::notify::Events;
use retake_agent::workspace::{Listed, Metadata, Workspace, WorkspaceLock, WorkspaceStatus};
use retake_runner::regular_file;
use retake_types::StopReason;
use retake_types::loop_record::agent::{Mode, WaitCause};
use serde::Serialize;

use super::checkpoints::Removal;
use super::project::{self, AgentProject, named};
use super::{refused, show};
use crate::term::{Cell, Column, Palette, Shade, Table};
use crate::{Exit, Failure, term};

/// Create a workspace for a task
///
/// The agent ends the task by writing `"complete": true` into .status.json in the workspace; the
/// prompt of each iteration tells it so. Instructions need to say only what is to be done.
#[derive(clap::Args)]
pub(super) struct Init {
    /// Its name: letters, digits, _ and -
    #[arg(value_name = "NAME")]
    name: String,
    /// Maximum number of iterations of a run [default: 50, in iterative mode 20]
    #[arg(short, long, value_name = "NUMBER")]
    max_iterations: Option<u32>,
    /// Delay between iterations, in seconds or as 3s, 20m [default: 2]
    #[arg(short, long, value_name = "SECONDS")]
    delay: Option<String>,
    /// Iterations without work before an iterative run stops; 0 means never [default: 2]
    #[arg(long, value_name = "NUMBER")]
    stagnation_threshold: Option<u32>,
    /// loop: one item at a time; iterative: as much as possible each time
    #[arg(long, value_name = "MODE", default_value = "loop")]
    mode: String,
    /// URL to post notifications to (ntfy)
    #[arg(long, value_name = "URL")]
    notify_url: Option<String>,
    /// Events to send notifications for, separated by commas [default: all]
    #[arg(long, value_name = "EVENTS", value_delimiter = ',')]
    notify_events: Vec<String>,
    /// Read the task's description from a file, or from standard input with -
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Print what was created as JSON
    #[arg(long)]
    json: bool,
}

/// Maximum size of a task's description.
const LONGEST_TASK: u64 = 16 << 20;

/// Reads a task's description before anything is created.
fn description(from: &Path) -> Result<String, Failure> {
    let file = |source| Failure::File { action: "read", path: from.to_owned(), source };
    let mut bytes = Vec::new();
    if from == Path::new("-") {
        std::io::stdin().lock().take(LONGEST_TASK + 1).read_to_end(&mut bytes).map_err(file)?;
    } else {
        let opened = regular_file::open(from).map_err(file)?;
        opened.take(LONGEST_TASK + 1).read_to_end(&mut bytes).map_err(file)?;
    }
    if bytes.len() as u64 > LONGEST_TASK {
        return Err(refused("--from: the description is longer than 16 MiB"));
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match text.trim().is_empty() {
        true => Err(refused(format!("--from: {} is empty", from.display()))),
        false => Ok(text),
    }
}

pub(super) fn init(args: &Init, project: &AgentProject) -> Result<Exit, Failure> {
    let name = named(&args.name)?;
    let mode: Mode = args.mode.parse().map_err(refused)?;
    let settings = &project.settings;
    let mut metadata = Metadata::new(name.as_str(), mode, Timestamp::now());
    if args.max_iterations == Some(0) {
        return Err(refused("--max-iterations takes a whole number from 1"));
    }
    metadata.max_iterations = Some(args.max_iterations.unwrap_or(settings.max_iterations(mode)));
    let delay = match &args.delay {
        Some(text) => {
            retake_types::parse_duration(text).map_err(|why| refused(format!("--delay: {why}")))?
        }
        None => settings.default_delay,
    };
    metadata.delay = Some(delay.as_secs_f64());
    metadata.stagnation_threshold =
        Some(args.stagnation_threshold.unwrap_or(settings.default_stagnation_threshold));
    metadata.notify_url = args.notify_url.clone();
    // Refuse to create a workspace that could not be run.
    project::settings(&project.config, Some(&metadata), Default::default())?;
    if !args.notify_events.is_empty() {
        Events::parse(args.notify_events.iter().map(String::as_str)).map_err(refused)?;
        metadata.notify_events = Some(args.notify_events.clone());
    }
    let task = args.from.as_deref().map(description).transpose()?;
    let workspace = project.directories.create(&name, &metadata).map_err(refused)?;
    if let Some(task) = &task {
        workspace.write_instructions(task).map_err(refused)?;
    }
    if args.json {
        term::document(&metadata)?;
    } else if task.is_some() {
        term::data(format!("✓ Workspace created: {}\n", workspace.dir().display()).as_bytes())?;
        term::data(format!("→ Run it: retake agent run {name}\n").as_bytes())?;
    } else {
        term::data(format!("✓ Workspace created: {}\n", workspace.dir().display()).as_bytes())?;
        term::data(format!("→ Describe the task: retake agent setup {name}\n").as_bytes())?;
        let file = workspace.instructions_path();
        term::data(format!("  or write {}\n", file.display()).as_bytes())?;
        term::data(format!("→ Then: retake agent run {name}\n").as_bytes())?;
    }
    Ok(Exit::OK)
}

/// List workspaces
#[derive(clap::Args)]
pub(super) struct List {
    /// Only workspaces with this status: in_progress, completed or error
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Print an array as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    mode: Option<Mode>,
    status: Option<WorkspaceStatus>,
    running: bool,
    #[serde(flatten)]
    activity: Activity,
    total_iterations: Option<u32>,
    last_run: Option<Timestamp>,
    problem: Option<String>,
    /// `stop` or `pause`, requested and not done yet.
    #[serde(skip)]
    pending: Option<&'static str>,
}

/// What the last loop of a workspace is doing, or how it ended.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Activity {
    /// `running`, `waiting`, `paused`, `stopped`, `died`; `None` if no loop was recorded.
    activity: Option<&'static str>,
    waiting_for: Option<WaitCause>,
    waiting_until: Option<Timestamp>,
    stop_reason: Option<StopReason>,
}

impl From<LoopActivity> for Activity {
    fn from(activity: LoopActivity) -> Self {
        let is = |word| Self { activity: Some(word), ..Self::default() };
        match activity {
            LoopActivity::Running => is("running"),
            LoopActivity::Paused => is("paused"),
            LoopActivity::Died => is("died"),
            LoopActivity::Waiting { cause, until } => {
                Self { waiting_for: Some(cause), waiting_until: Some(until), ..is("waiting") }
            }
            LoopActivity::Stopped(reason) => Self { stop_reason: Some(reason), ..is("stopped") },
        }
    }
}

/// The activity of these workspaces' loops; unknown without a record.
fn activities(listed: &[Listed], project: &AgentProject) -> Result<Vec<Activity>, Failure> {
    let store = match project.project.read_store() {
        Ok(store) => store,
        Err(retake_store::Error::NoStore { .. }) => {
            return Ok(listed.iter().map(|_| Activity::default()).collect());
        }
        Err(error) => return Err(error.into()),
    };
    let readable = listed.iter().filter_map(|(workspace, metadata)| {
        metadata.as_ref().ok().map(|metadata| (workspace, metadata))
    });
    let mut last = recorded_loop::last_loops(&store, readable)?.into_iter();
    let mut found = Vec::new();
    for (workspace, metadata) in listed {
        let record = if metadata.is_ok() { last.next().flatten() } else { None };
        found.push(match record {
            Some(record) => recorded_loop::activity(&store, &record, workspace)?.into(),
            None => Activity::default(),
        });
    }
    Ok(found)
}

pub(super) fn list(args: &List, project: &AgentProject) -> Result<Exit, Failure> {
    let wanted: Option<WorkspaceStatus> =
        args.status.as_deref().map(str::parse).transpose().map_err(refused)?;
    let mut rows = Vec::new();
    let listed = project.directories.list().map_err(refused)?;
    let activities = activities(&listed, project)?;
    for ((workspace, metadata), activity) in listed.into_iter().zip(activities) {
        let problem = metadata.as_ref().err().map(ToString::to_string);
        let metadata = metadata.ok();
        if wanted.is_some() && wanted != metadata.as_ref().map(|m| m.status) {
            continue;
        }
        rows.push(Row {
            pending: show::pending(&workspace),
            name: workspace.name().to_string(),
            mode: metadata.as_ref().map(|m| m.mode),
            status: metadata.as_ref().map(|m| m.status),
            running: WorkspaceLock::holder(&workspace).is_some(),
            activity,
            total_iterations: metadata.as_ref().map(|m| m.total_iterations),
            last_run: metadata.as_ref().and_then(|m| m.last_run),
            problem,
        });
    }
    if args.json {
        term::document(&rows)?;
    } else if rows.is_empty() {
        term::say("there are no workspaces; create one with `retake agent init NAME`");
    } else {
        term::page(&table(&rows).render(term::width(), Palette::of_stdout()))?;
    }
    Ok(Exit::OK)
}

fn table(rows: &[Row]) -> Table<'static> {
    let mut table = Table::new([
        Column::new("NAME"),
        Column::new("MODE").spare(2),
        Column::new("STATUS"),
        Column::new("ITERATIONS").right().spare(1),
        Column::new("LAST RUN").spare(3),
    ]);
    let now = Timestamp::now();
    for row in rows {
        table.row([
            row.name.clone().into(),
            row.mode.map_or("-", Mode::as_str).to_owned().into(),
            status(row),
            row.total_iterations.map_or("-".to_owned(), |n| n.to_string()).into(),
            row.last_run.map_or("never".to_owned(), |at| term::ago(at, now)).into(),
        ]);
    }
    table
}

/// What a workspace's loop is doing; otherwise the task's status, and why its loop ended.
fn status(row: &Row) -> Cell {
    if row.running {
        let Activity { activity, waiting_until, .. } = &row.activity;
        return match (activity, waiting_until) {
            (Some("waiting"), Some(until)) => {
                Cell::shaded(format!("waiting until {}", term::moment(*until)), Shade::Open)
            }
            (Some("paused"), _) => Cell::shaded("paused", Shade::Open),
            _ => match row.pending {
                Some(request) => {
                    Cell::shaded(format!("running ({request} requested)"), Shade::Open)
                }
                None => Cell::shaded("running", Shade::Good),
            },
        };
    }
    let (Some(status), activity) = (row.status, &row.activity) else {
        return Cell::shaded(row.problem.clone().unwrap_or_default(), Shade::Bad);
    };
    let why = match (&activity.stop_reason, activity.activity) {
        (Some(reason), _) if reason.as_str() != status.as_str() => format!(" ({reason})"),
        (_, Some("died")) => " (interrupted)".to_owned(),
        _ => String::new(),
    };
    let shade = match status {
        WorkspaceStatus::Completed => Shade::Good,
        WorkspaceStatus::Error => Shade::Bad,
        WorkspaceStatus::InProgress => return format!("{status}{why}").into(),
    };
    Cell::shaded(format!("{status}{why}"), shade)
}

/// Set a workspace's counters to zero and its status to in progress; its files are kept
#[derive(clap::Args)]
pub(super) struct Reset {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
}

pub(super) fn reset(args: &Reset, project: &AgentProject) -> Result<Exit, Failure> {
    let workspace = project.workspace(&args.name)?;
    let _lock = held(&workspace, "reset")?;
    let metadata = workspace.metadata().map_err(refused)?;
    // An interrupted loop would continue with its old counters.
    match project.project.open_store(&crate::context::notify()) {
        Ok(mut store) => recorded_loop::end_open_loop(&mut store, &workspace, &metadata)?,
        Err(retake_store::Error::NoStore { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    workspace.update(|metadata| metadata.reset(Timestamp::now())).map_err(refused)?;
    term::data(format!("✓ Workspace reset: {}\n", args.name).as_bytes())?;
    Ok(Exit::OK)
}

/// Remove a workspace, after archiving a copy
#[derive(clap::Args)]
pub(super) struct Clean {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
    /// Do not ask for confirmation
    #[arg(short, long)]
    force: bool,
    /// Do not archive a copy
    #[arg(long)]
    no_archive: bool,
}

pub(super) fn clean(args: &Clean, project: &AgentProject) -> Result<Exit, Failure> {
    let workspace = project.workspace(&args.name)?;
    if !args.force && !confirmed(&format!("Remove workspace {}?", args.name))? {
        return Ok(Exit::OK);
    }
    let mut removal = Removal::of(project)?;
    let lock = held(&workspace, "clean")?;
    if args.no_archive {
        let metadata = workspace.metadata().ok();
        project.directories.delete(&workspace).map_err(refused)?;
        if let Some(metadata) = metadata {
            let owner = recorded_loop::checkpoint_owner(&workspace, &metadata);
            gone(removal.remove(&owner))?;
        }
    } else {
        let archived =
            project.directories.archive(&workspace, Timestamp::now(), false).map_err(refused)?;
        term::data(format!("✓ Archived as {}\n", archived.archive_name).as_bytes())?;
    }
    drop(lock);
    term::data(format!("✓ Workspace removed: {}\n", args.name).as_bytes())?;
    Ok(Exit::OK)
}

/// Reports the checkpoints that were removed with a workspace or an archive.
pub(super) fn gone(checkpoints: usize) -> Result<(), Failure> {
    if checkpoints > 0 {
        let what = term::count(checkpoints as u64, "checkpoint");
        term::data(format!("✓ {what} removed from git\n").as_bytes())?;
    }
    Ok(())
}

/// Locks the workspace against other commands.
pub(super) fn held(workspace: &Workspace, command: &str) -> Result<WorkspaceLock, Failure> {
    WorkspaceLock::acquire(workspace, command).map_err(refused)
}

/// Asks at a terminal. Without one it is refused, because no one can answer.
pub(super) fn confirmed(question: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(refused(format!(
            "{question} Cannot ask: stdin is not a terminal; use --force"
        )));
    }
    answered(question)
}

/// Asks at a terminal. Without one no one can answer, so nothing is removed, and a message says so.
pub(super) fn agreed(question: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        term::say(&format!(
            "{question} Cannot ask: stdin is not a terminal, so nothing is removed; use --force"
        ));
        return Ok(false);
    }
    answered(question)
}

fn answered(question: &str) -> Result<bool, Failure> {
    term::data(format!("{question} [y/N] ").as_bytes())?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
