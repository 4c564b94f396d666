//! Steering a loop that runs, from another terminal.

use std::io::Write;
use std::time::Duration;

use jiff::Timestamp;
use retake_agent::control::Mailbox;
use retake_agent::display;
use retake_agent::driver::recorded_loop;
use retake_agent::workspace::{Workspace, WorkspaceLock};
use retake_types::loop_record::agent::AgentEntry;

use super::project::AgentProject;
use super::refused;
use crate::{Exit, Failure, term};

const LOOK: Duration = Duration::from_millis(250);

/// Stop a loop after its current iteration
#[derive(clap::Args)]
pub(super) struct Named {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
}

/// Pause a loop after its current iteration
#[derive(clap::Args)]
pub(super) struct Paused {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
}

/// Resume a paused loop
#[derive(clap::Args)]
pub(super) struct Resumed {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
}

fn running(name: &str, project: &AgentProject) -> Result<(Workspace, Mailbox), Failure> {
    let workspace = project.workspace(name)?;
    if WorkspaceLock::holder(&workspace).is_none() {
        return Err(refused(format!("{name} is not running")));
    }
    let mailbox = Mailbox::of(&workspace).map_err(refused)?;
    Ok((workspace, mailbox))
}

pub(super) fn stop(args: &Named, project: &AgentProject) -> Result<Exit, Failure> {
    running(&args.name, project)?.1.stop().map_err(refused)?;
    term::data(format!("✓ {} stops after this iteration\n", args.name).as_bytes())?;
    Ok(Exit::OK)
}

pub(super) fn pause(args: &Paused, project: &AgentProject) -> Result<Exit, Failure> {
    running(&args.name, project)?.1.pause().map_err(refused)?;
    term::data(format!("✓ {} pauses after this iteration\n", args.name).as_bytes())?;
    Ok(Exit::OK)
}

pub(super) fn resume(args: &Resumed, project: &AgentProject) -> Result<Exit, Failure> {
    running(&args.name, project)?.1.resume().map_err(refused)?;
    term::data(format!("✓ {} goes on\n", args.name).as_bytes())?;
    Ok(Exit::OK)
}

/// Add a message to the agent's next prompt
#[derive(clap::Args)]
pub(super) struct Tell {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
    /// What to say
    #[arg(value_name = "MESSAGE")]
    message: String,
}

pub(super) fn tell(args: &Tell, project: &AgentProject) -> Result<Exit, Failure> {
    let workspace = project.workspace(&args.name)?;
    let mailbox = Mailbox::of(&workspace).map_err(refused)?;
    mailbox.tell(&args.message, Timestamp::now().as_nanosecond()).map_err(refused)?;
    term::data("✓ It goes into the next prompt\n".as_bytes())?;
    Ok(Exit::OK)
}

/// Follow a running loop
#[derive(clap::Args)]
pub(super) struct Watch {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
}

pub(super) fn watch(args: &Watch, project: &AgentProject) -> Result<Exit, Failure> {
    let (workspace, _) = running(&args.name, project)?;
    let metadata = workspace.metadata().map_err(refused)?;
    let store = project.project.read_store()?;
    let loops = recorded_loop::read(&store, &workspace, &metadata)?;
    let Some(open) = loops.last().filter(|last| last.is_open()) else {
        return Err(refused(format!("{} has no loop on the record", args.name)));
    };
    let id = open.record.id;
    let mut after = 0;
    loop {
        let alive = recorded_loop::is_alive(&store, id, &workspace);
        for event in store.loop_entries(id, after, 1000)? {
            after = event.seq;
            if let Some(entry) = AgentEntry::parse(&event.body) {
                let mut out = term::writer();
                writeln!(out, "{}  {}", term::moment(event.at), line(&entry))?;
                out.flush()?;
            }
        }
        if let Some(reason) = store.get_loop(id)?.stop_reason {
            term::data(format!("stopped: {reason}\n").as_bytes())?;
            return Ok(Exit::OK);
        }
        if !alive {
            term::say("its runner died; `retake agent run` goes on with it");
            return Ok(Exit::FAILED);
        }
        std::thread::sleep(LOOK);
    }
}

fn line(entry: &AgentEntry) -> String {
    match entry {
        AgentEntry::Iteration { iteration } => {
            let mut text = format!("iteration {}: {}", iteration.number, iteration.status);
            if let Some(result) = &iteration.result {
                let files = result.files_created.len()
                    + result.files_modified.len()
                    + result.files_deleted.len();
                text += &format!(", {}", term::count(files as u64, "file"));
                if let Some(tests) = &result.test_results {
                    text += &format!(", tests {}/{}", tests.passed, tests.total);
                }
            }
            if let Some(cost) = iteration.cost_usd() {
                text += &format!(", ${cost:.2}");
            }
            if let Some(summary) = iteration.result.as_ref().and_then(|r| r.summary.as_deref()) {
                text += &format!(": {}", term::visible(summary.lines().next().unwrap_or_default()));
            }
            text
        }
        AgentEntry::Attempt { number, why, .. } => {
            format!("iteration {number} is tried again: {}", term::visible(why))
        }
        AgentEntry::Verified { passed, .. } => {
            format!("verification {}", if *passed { "passed" } else { "failed" })
        }
        AgentEntry::Verifying { number, run_id: None } => {
            format!("iteration {number} is to be verified")
        }
        AgentEntry::Verifying { run_id: Some(_), .. } => "the agent verifies".to_owned(),
        AgentEntry::Unverified { why, .. } => {
            format!("verification could not be made: {}", term::visible(why))
        }
        entry => {
            let note = display::note(entry).unwrap_or_default();
            term::visible(&note).into_owned()
        }
    }
}
