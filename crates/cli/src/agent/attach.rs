//! `retake agent attach`: follows a loop that another process runs, and leaves it as it is.

use std::sync::atomic::Ordering;
use std::time::Duration;

use retake_agent::display::Level;
use retake_agent::driver::recorded_loop;
use retake_agent::driver::{AgentDisplay, Followed, LoopFollower};
use retake_agent::workspace::{Workspace, WorkspaceLock};
use retake_runner::signals;
use retake_types::loop_record::agent::AgentLoopPlan;

use super::project::AgentProject;
use super::screen::AgentScreen;
use super::{messages, refused};
use crate::{Exit, Failure, term};

const LOOK: Duration = Duration::from_millis(250);

/// Follow a loop that runs in the background or in another terminal; Ctrl-C leaves it running
#[derive(clap::Args)]
pub(super) struct Args {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
    /// Show everything the agent says and does
    #[arg(short, long)]
    verbose: bool,
}

pub(super) fn attach(args: &Args, project: &AgentProject) -> Result<Exit, Failure> {
    follow(&project.workspace(&args.name)?, args.verbose, project)
}

/// Follows the loop of a workspace until it ends.
pub(super) fn follow(
    workspace: &Workspace,
    verbose: bool,
    project: &AgentProject,
) -> Result<Exit, Failure> {
    let name = workspace.name().as_str();
    if WorkspaceLock::holder(workspace).is_none() {
        return Err(refused(messages::not_running(name)));
    }
    let metadata = workspace.metadata().map_err(refused)?;
    let store = project.project.read_store()?;
    let last = recorded_loop::last_loops(&store, [(workspace, &metadata)])?.pop().flatten();
    let Some(open) = last.filter(|last| last.stop_reason.is_none()) else {
        return Err(refused(format!("{name} has no loop on the record")));
    };
    let plan = AgentLoopPlan::parse(&open.plan);
    let asked = signals::asked();
    // Its signals are looked at between two looks at the loop.
    let _end = signals::end_descriptor()?;
    let level = if verbose { Level::Verbose } else { Level::Progress };
    let screen = AgentScreen::new(level, None);
    let with_output = verbose || screen.has_live_line();
    let mut follower = LoopFollower::open(&store, open, workspace, with_output)?;
    loop {
        match follower.poll(&store, &screen)? {
            Followed::Running => {}
            Followed::Stopped(reason) => {
                return Ok(reason.exit_code(false).map_or(Exit::FAILED, Exit::Code));
            }
            Followed::Died => {
                let options = plan.map_or_else(Vec::new, |plan| plan.options);
                term::say(&messages::runner_died(name, &options));
                return Ok(Exit::FAILED);
            }
        }
        if asked.load(Ordering::Relaxed) {
            screen.clear();
            term::data(messages::left_running(name).as_bytes())?;
            return Ok(Exit::Signal(signals::received().unwrap_or(libc::SIGINT)));
        }
        std::thread::sleep(LOOK);
    }
}
