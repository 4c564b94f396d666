//! Controls a running loop from another terminal.

use jiff::Timestamp;
use retake_agent::control::Mailbox;
use retake_agent::workspace::{Workspace, WorkspaceLock};

use super::project::AgentProject;
use super::{messages, refused};
use crate::{Exit, Failure, term};

/// Stop a loop after its current iteration
#[derive(clap::Args)]
pub(super) struct Stop {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
    /// Stop at once, in the middle of the iteration
    #[arg(long)]
    now: bool,
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

pub(super) fn running(name: &str, project: &AgentProject) -> Result<(Workspace, Mailbox), Failure> {
    let workspace = project.workspace(name)?;
    if WorkspaceLock::holder(&workspace).is_none() {
        return Err(refused(messages::not_running(name)));
    }
    let mailbox = Mailbox::of(&workspace).map_err(refused)?;
    Ok((workspace, mailbox))
}

pub(super) fn stop(args: &Stop, project: &AgentProject) -> Result<Exit, Failure> {
    let (_, mailbox) = running(&args.name, project)?;
    let name = &args.name;
    let said = if args.now {
        mailbox.stop_now().map_err(refused)?;
        format!("✓ {name} stops now\n")
    } else {
        mailbox.stop().map_err(refused)?;
        format!("✓ {name} stops after this iteration (at once with --now)\n")
    };
    term::data(said.as_bytes())?;
    Ok(Exit::OK)
}

pub(super) fn pause(args: &Paused, project: &AgentProject) -> Result<Exit, Failure> {
    running(&args.name, project)?.1.pause().map_err(refused)?;
    term::data(format!("✓ {} pauses after this iteration\n", args.name).as_bytes())?;
    Ok(Exit::OK)
}

pub(super) fn resume(args: &Resumed, project: &AgentProject) -> Result<Exit, Failure> {
    running(&args.name, project)?.1.resume().map_err(refused)?;
    term::data(format!("✓ {} continues\n", args.name).as_bytes())?;
    Ok(Exit::OK)
}

/// Add a message to the agent's next prompt
#[derive(clap::Args)]
pub(super) struct Tell {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
    /// The message
    #[arg(value_name = "MESSAGE")]
    message: String,
}

pub(super) fn tell(args: &Tell, project: &AgentProject) -> Result<Exit, Failure> {
    let workspace = project.workspace(&args.name)?;
    let mailbox = Mailbox::of(&workspace).map_err(refused)?;
    mailbox.tell(&args.message, Timestamp::now().as_nanosecond()).map_err(refused)?;
    term::data("✓ Added to the next prompt\n".as_bytes())?;
    Ok(Exit::OK)
}
