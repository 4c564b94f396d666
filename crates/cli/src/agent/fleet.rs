//! `retake agent fleet`: several agents at a glance, and their results. `retake agent prune`: removes the
//! clones that they left behind.

use clap::Subcommand;
use jiff::Timestamp;
use retake_agent::control::Mailbox;
use retake_agent::fleet::{
    self, AgentOverview, Applied, FleetError, FleetResult, FleetState, LeftTree, RecordedFleet,
};
use retake_agent::plan::AgentStopReason;
use retake_agent::workspace::{Workspace, WorkspaceLock};
use retake_store::Store;
use retake_types::LoopId;
use retake_types::loop_record::fleet::FleetOutcome;
use serde::Serialize;

use super::project::AgentProject;
use super::{attach, fleet_messages, messages, refused};
use crate::term::{Cell, Column, Palette, Shade, Table};
use crate::{Exit, Failure, term};

/// Show several agents that run at once: their state and their results
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    Attach(Attach),
    Stop(Stop),
    Tell(Tell),
    Diff(Diff),
    Apply(Apply),
}

/// Follow one of the agents live; Ctrl-C leaves it running
#[derive(clap::Args)]
struct Attach {
    /// The agent
    #[arg(value_name = "NAME")]
    name: String,
    /// Show everything the agent says and does
    #[arg(short, long)]
    verbose: bool,
}

/// Stop one agent or all of them, after the current iteration
#[derive(clap::Args)]
struct Stop {
    /// The agent [default: all]
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Stop at once, in the middle of the iteration
    #[arg(long)]
    now: bool,
}

/// Add a message to an agent's next prompt
#[derive(clap::Args)]
struct Tell {
    /// The agent
    #[arg(value_name = "NAME")]
    name: String,
    /// What to say
    #[arg(value_name = "MESSAGE")]
    message: String,
}

/// Show what an agent has changed, also while it works
#[derive(clap::Args)]
struct Diff {
    /// The agent
    #[arg(value_name = "NAME")]
    name: String,
}

/// Merge the work of an agent into the branch that is checked out
#[derive(clap::Args)]
struct Apply {
    /// The agent
    #[arg(value_name = "NAME")]
    name: String,
}

/// List clones that agents left behind; --yes saves their work and removes the clones
#[derive(clap::Args)]
pub(crate) struct Prune {
    /// Remove them
    #[arg(long)]
    yes: bool,
    /// Include the clones of an unfinished run; it can no longer be continued
    #[arg(long)]
    unfinished: bool,
}

pub(super) fn fleet(args: Args, project: &AgentProject) -> Result<Exit, Failure> {
    let store = project.project.read_store()?;
    let last = fleet::last_fleet(&store, &project.root)?;
    let Some(last) = last else {
        if args.json && args.command.is_none() {
            term::document(&serde_json::Value::Null)?;
            return Ok(Exit::OK);
        }
        return Err(refused(
            "no agents have run side by side here yet; start them with `retake agent run NAME NAME`",
        ));
    };
    match args.command {
        None => list(args.json, &last, &store),
        Some(Command::Attach(args)) => {
            let workspace = workspace(&last, named(&last, &args.name)?, project)?;
            attach::follow(&workspace, args.verbose, project)
        }
        Some(Command::Stop(args)) => stop(&args, &last, project),
        Some(Command::Tell(args)) => tell(&args, &last, project),
        Some(Command::Diff(args)) => {
            diff(&args, &result(&last, &args.name, &store, project)?, project)
        }
        Some(Command::Apply(args)) => {
            apply(&args, &result(&last, &args.name, &store, project)?, &store, project)
        }
    }
}

/// The newest result of a name, which may be of a run before the last one.
fn result(
    last: &RecordedFleet,
    name: &str,
    store: &Store,
    project: &AgentProject,
) -> Result<FleetResult, Failure> {
    match fleet::newest_result(store, &project.root, name)? {
        Some(result) => Ok(result),
        None => Err(not_named(last, name)),
    }
}

fn not_named(last: &RecordedFleet, name: &str) -> Failure {
    let names = names(last);
    refused(format!("{name} is not one of the agents; choose from {names}"))
}

fn named(last: &RecordedFleet, name: &str) -> Result<usize, Failure> {
    let found = last.plan.agents.iter().position(|agent| agent.name == name);
    found.ok_or_else(|| not_named(last, name))
}

fn workspace(
    last: &RecordedFleet,
    agent: usize,
    project: &AgentProject,
) -> Result<Workspace, Failure> {
    let directory = last.plan.directory.as_path();
    let agent = &last.plan.agents[agent];
    fleet::existing_workspace_of(agent, directory, &project.directories).map_err(refused)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    id: LoopId,
    running: bool,
    stop_reason: Option<String>,
    /// `ok` or `failed`, as the exit code of the run; none while it is not finished.
    outcome: Option<&'static str>,
    started_at: Timestamp,
    ended_at: Option<Timestamp>,
    base: &'a str,
    target: Option<&'a str>,
    agents: &'a [AgentOverview],
}

fn list(json: bool, last: &RecordedFleet, store: &Store) -> Result<Exit, Failure> {
    let running = last.is_open() && store.loop_is_alive(last.record.id);
    let rows = last.overview(running, store);
    if json {
        let record = &last.record;
        term::document(&Document {
            id: record.id,
            running,
            stop_reason: record.stop_reason.as_ref().map(|reason| reason.as_str().to_owned()),
            outcome: record.stop_reason.as_ref().map(|_| match last.failures().is_empty() {
                true => "ok",
                false => "failed",
            }),
            started_at: record.start_time,
            ended_at: record.end_time,
            base: &last.plan.base,
            target: last.plan.target.as_deref(),
            agents: &rows,
        })?;
        return Ok(Exit::OK);
    }
    let mut text = table(&rows).render(term::width(), Palette::of_stdout());
    if last.is_open() && !running {
        text += &format!("\n{}\n", fleet_messages::ended_early(last));
    }
    term::page(&text)?;
    Ok(Exit::OK)
}

fn table(rows: &[AgentOverview]) -> Table<'static> {
    let mut table = Table::new([
        Column::new("NAME"),
        Column::new("STATE"),
        Column::new("ITERATIONS").right().spare(2),
        Column::new("COST").right().spare(1),
        Column::new("CHANGES").spare(3),
        Column::new("OVERLAP").spare(4),
        Column::new("BRANCH OR REASON"),
    ]);
    for row in rows {
        let shade = match row.state {
            "merged" | "running" | "merging" => Shade::Good,
            "conflict" | "verify_failed" | "agent_failed" => Shade::Bad,
            _ => Shade::Open,
        };
        let overlaps: Vec<&str> = row.overlaps.iter().map(|other| other.agent.as_str()).collect();
        let why = row.why.as_deref().and_then(|why| why.lines().last());
        let failed = [FleetOutcome::AgentFailed, FleetOutcome::VerifyFailed]
            .iter()
            .any(|outcome| row.state == outcome.as_str());
        let reason = row.stop_reason.as_deref().filter(|_| failed);
        let reason = reason.and_then(|reason| reason.parse::<AgentStopReason>().ok());
        let why = why.or(reason.map(messages::stop_reason));
        let last = row.branch.as_deref().or(why).unwrap_or_default();
        table.row([
            row.name.clone().into(),
            Cell::shaded(row.state, shade),
            row.iterations.to_string().into(),
            row.cost_usd
                .filter(|cost| *cost > 0.0)
                .map_or_else(String::new, |cost| format!("${cost:.2}"))
                .into(),
            changes(row).into(),
            overlaps.join(", ").into(),
            last.to_owned().into(),
        ]);
    }
    table
}

fn changes(row: &AgentOverview) -> String {
    match (&row.work, row.changed_files) {
        (Some(work), _) => fleet_messages::changes(work),
        (None, 0) => String::new(),
        (None, files) => term::count(files as u64, "file"),
    }
}

fn stop(args: &Stop, last: &RecordedFleet, project: &AgentProject) -> Result<Exit, Failure> {
    let state = FleetState::of(&project.directories);
    if state.holder().is_none() {
        return Err(refused("no agents are running; `retake agent fleet` shows the last ones"));
    }
    let agents = match &args.name {
        Some(name) => vec![named(last, name)?],
        None => {
            state.request_stop().map_err(refused)?;
            (0..last.agents.len()).collect()
        }
    };
    for agent in agents {
        let workspace = workspace(last, agent, project)?;
        if WorkspaceLock::holder(&workspace).is_none() {
            if let Some(name) = &args.name {
                return Err(refused(format!("{name} is not running")));
            }
            continue;
        }
        let mailbox = Mailbox::of(&workspace).map_err(refused)?;
        let asked = if args.now { mailbox.stop_now() } else { mailbox.stop() };
        asked.map_err(refused)?;
    }
    let when = if args.now { "now" } else { "after this iteration (at once with --now)" };
    let who = args.name.as_deref().unwrap_or("All agents");
    let verb = if args.name.is_some() { "stops" } else { "stop" };
    term::data(format!("✓ {who} {verb} {when}\n").as_bytes())?;
    Ok(Exit::OK)
}

fn tell(args: &Tell, last: &RecordedFleet, project: &AgentProject) -> Result<Exit, Failure> {
    let workspace = workspace(last, named(last, &args.name)?, project)?;
    let mailbox = Mailbox::of(&workspace).map_err(refused)?;
    mailbox.tell(&args.message, Timestamp::now().as_nanosecond()).map_err(refused)?;
    term::data("✓ Added to the next prompt\n".as_bytes())?;
    Ok(Exit::OK)
}

fn diff(args: &Diff, result: &FleetResult, project: &AgentProject) -> Result<Exit, Failure> {
    let FleetResult { fleet: last, agent } = result;
    let agent = *agent;
    let scratch = project.directories.loop_state.clone().unwrap_or_else(std::env::temp_dir);
    let colour = Palette::of_stdout().is_on();
    let mut namespace = None;
    if last.needs_namespace(agent) {
        let shown = match FleetState::of(&project.directories).process() {
            Some(process) => fleet::join_mount_namespace(process),
            None => fleet::enter_mount_namespace(true).map(|entered| namespace = Some(entered)),
        };
        shown.map_err(|error| refused(format!("its clone cannot be accessed: {error}")))?;
    }
    let context = (&project.run_context(), namespace);
    let text = fleet::diff(last, agent, (&project.root, &scratch), colour, context)
        .map_err(|error| refused(fleet_messages::error(&error)))?;
    let Some(text) = text else {
        return Err(refused(format!("{} has not started", args.name)));
    };
    term::page(&String::from_utf8_lossy(&text))?;
    Ok(Exit::OK)
}

fn apply(
    args: &Apply,
    result: &FleetResult,
    store: &Store,
    project: &AgentProject,
) -> Result<Exit, Failure> {
    let name = &args.name;
    let context = project.run_context();
    let failed = |error: FleetError| refused(fleet_messages::error(&error));
    let (last, agent) = (&result.fleet, result.agent);
    if last.agents[agent].work.as_ref().is_some_and(|work| !work.changed) {
        term::data(format!("✓ {name} changed nothing\n").as_bytes())?;
        return Ok(Exit::OK);
    }
    let said = match fleet::apply(last, agent, &project.root, &context).map_err(failed)? {
        Applied::Done { branch } => {
            if result.outcome() == Some(FleetOutcome::VerifyFailed) {
                term::say(&fleet_messages::refused_by_gate(name));
            }
            format!("✓ The work of {name} is in {branch}\n")
        }
        Applied::AlreadyThere { branch } => {
            let earlier = fleet::unmerged_result(store, &project.root, name, &context);
            fleet_messages::already_there(name, &branch, earlier.map_err(failed)?.as_ref())
        }
        Applied::Conflict { paths } => {
            let paths = paths.join(", ");
            let resolve = fleet_messages::resolve(result.id(), name);
            return Err(refused(format!(
                "it conflicts in {paths}; nothing was changed\n{resolve}"
            )));
        }
        Applied::Refused { why } => return Err(refused(format!("{why}\nnothing was changed"))),
        Applied::NothingCollected => {
            return Err(refused(format!("{name} has no result yet")));
        }
    };
    term::data(said.as_bytes())?;
    Ok(Exit::OK)
}

fn names(fleet: &RecordedFleet) -> String {
    let names: Vec<&str> = fleet.plan.agents.iter().map(|agent| agent.name.as_str()).collect();
    names.join(", ")
}

pub(super) fn prune(args: &Prune, project: &AgentProject) -> Result<Exit, Failure> {
    let store = project.project.read_store()?;
    let left = fleet::left_trees(&store)?;
    // Also the runs that died before their first clone was made.
    let unfinished = fleet::unfinished(&store)?;
    if left.is_empty() && unfinished.is_empty() {
        term::data("Nothing to remove\n".as_bytes())?;
        return Ok(Exit::OK);
    }
    let mut namespace = None;
    if args.yes && left.iter().any(LeftTree::needs_namespace) {
        let entered = fleet::enter_mount_namespace(true);
        let entered =
            entered.map_err(|error| refused(format!("the clones cannot be accessed: {error}")))?;
        namespace = Some(entered);
    }
    let context = project.run_context();
    let mut exit = Exit::OK;
    for tree in &left {
        let (agent, path) = (&tree.agent, tree.home.display());
        if !args.yes {
            let note = if tree.unfinished { "  (unfinished)" } else { "" };
            term::data(format!("{agent}  {path}{note}\n").as_bytes())?;
            continue;
        }
        if tree.unfinished && !args.unfinished {
            term::say(&format!("{agent}: its run is unfinished; --unfinished abandons it"));
            continue;
        }
        let stays = fleet::prune(tree, &project.root, (&context, namespace))
            .map_err(|error| refused(fleet_messages::error(&error)))?;
        match stays {
            None => term::data(format!("✓ {agent}: work saved, clone removed\n").as_bytes())?,
            Some(why) => {
                term::say(&format!("{agent}: its clone was left at {path}: {why}"));
                exit = Exit::FAILED;
            }
        }
    }
    for tree in left.iter().filter(|_| args.yes) {
        fleet::remove_directory(tree, namespace);
    }
    let has_tree = |fleet: &RecordedFleet| left.iter().any(|tree| tree.fleet == fleet.record.id);
    let without_tree = unfinished.iter().filter(|fleet| !has_tree(fleet));
    match (args.yes, args.unfinished) {
        (true, true) => {
            let mut store = project.project.open_store(&context.notify)?;
            for fleet in &unfinished {
                fleet::give_up(fleet, &mut store)?;
            }
            for fleet in without_tree {
                term::data(format!("✓ {}: abandoned\n", names(fleet)).as_bytes())?;
            }
        }
        (true, false) => {
            for fleet in without_tree {
                let names = names(fleet);
                term::say(&format!("{names}: their run is unfinished; --unfinished abandons it"));
            }
        }
        (false, _) => {
            for fleet in without_tree {
                term::data(format!("{}  (no clone, unfinished)\n", names(fleet)).as_bytes())?;
            }
        }
    }
    if !args.yes && !left.is_empty() {
        let count = term::count(left.len() as u64, "tree");
        term::data(
            format!("→ Keep the work of {count} and remove them: retake agent prune --yes\n")
                .as_bytes(),
        )?;
    }
    Ok(exit)
}
