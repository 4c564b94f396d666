//! `retake agent`: a coding agent in a loop, its workspaces, and how to steer it.

mod archive;
mod attach;
mod background;
mod changed_lines;
mod checkpoints;
mod fleet;
mod fleet_messages;
mod fleet_run;
mod messages;
mod one_iteration;
mod project;
mod queue;
mod queue_messages;
mod run;
mod run_command;
mod screen;
mod sessions;
mod settings;
mod show;
mod steer;
mod task;
mod template;
mod workspaces;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use clap::Subcommand;

use retake_agent::driver::dry_run;
use retake_runner::signals;

use crate::{Exit, Failure, term};
use project::AgentProject;

/// Run a coding agent in a loop, each time with fresh context, until the task is done, stuck or out
/// of budget
#[derive(clap::Args)]
#[command(version, propagate_version = true)]
pub(crate) struct Args {
    /// Directory of the workspaces [default: .agent/workspaces]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Directories")]
    workspaces_dir: Option<PathBuf>,
    /// Directory of the project's templates [default: .agent/templates]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Directories")]
    templates_dir: Option<PathBuf>,
    /// Directory of the archived workspaces [default: .agent/archive]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Directories")]
    archive_dir: Option<PathBuf>,
    /// Use no colours
    #[arg(long, global = true, help_heading = "Output")]
    no_colors: bool,
    /// Print more: what the agent does, or which directories are used
    #[arg(long, global = true, help_heading = "Output")]
    verbose: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Init(workspaces::Init),
    Setup(sessions::Setup),
    Edit(sessions::Edit),
    Validate(sessions::Validate),
    Run(Box<run::Args>),
    Verify(sessions::Verify),
    #[command(alias = "ls")]
    List(workspaces::List),
    Show(show::Args),
    Reset(workspaces::Reset),
    Clean(workspaces::Clean),
    #[command(subcommand)]
    Archive(archive::Command),
    #[command(subcommand, alias = "tpl")]
    Template(template::Command),
    Config(settings::Args),
    #[command(alias = "watch")]
    Attach(attach::Args),
    #[command(subcommand)]
    Queue(queue::Command),
    Fleet(fleet::Args),
    Prune(fleet::Prune),
    Stop(steer::Stop),
    Pause(steer::Paused),
    Resume(steer::Resumed),
    Tell(steer::Tell),
    Checkpoints(checkpoints::List),
    Diff(checkpoints::Diff),
    Rollback(checkpoints::Rollback),
}

pub(super) fn agent(args: Args, store: Option<&Path>) -> Result<Exit, Failure> {
    match asked(args, store) {
        // A command that a signal interrupted has not failed.
        Err(_) if signals::asked().load(Ordering::Relaxed) => {
            Ok(Exit::Signal(signals::received().unwrap_or(libc::SIGINT)))
        }
        // An invalid request exits with 1 here, and with 2 in other commands.
        Err(failure @ (Failure::Usage(_) | Failure::Config(_) | Failure::Project(_))) => {
            Err(refused(failure))
        }
        answered => answered,
    }
}

/// The agent of a dry run.
pub(super) fn mock(words: &[String]) -> Exit {
    match dry_run::play(words, &mut term::writer()) {
        Ok(log_error) => {
            if let Some(error) = log_error {
                term::say(&error.to_string());
            }
            Exit::OK
        }
        Err(error) => {
            term::say(&format!("the mock agent failed: {error}"));
            Exit::FAILED
        }
    }
}

/// The directory of the project's workspaces.
#[cfg(feature = "web")]
pub(super) fn workspace_directories(
    store: Option<&Path>,
) -> Result<retake_agent::workspace::WorkspaceDirectories, Failure> {
    let given =
        project::Given { workspaces: None, templates: None, archive: None, no_colors: false };
    Ok(AgentProject::open(store, &given)?.directories)
}

fn asked(args: Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let given = project::Given {
        workspaces: args.workspaces_dir,
        templates: args.templates_dir,
        archive: args.archive_dir,
        no_colors: args.no_colors,
    };
    if let Command::Init(init) = &args.command {
        project::make_at_git_root()?;
        let project = AgentProject::open(store, &given)?;
        if args.verbose {
            project.tell_directories();
        }
        return workspaces::init(init, &project);
    }
    let project = AgentProject::open(store, &given)?;
    // With --verbose these print more than directories.
    let says_more = matches!(
        args.command,
        Command::Run(_) | Command::Verify(_) | Command::Attach(_) | Command::Queue(_)
    );
    if args.verbose && !says_more {
        project.tell_directories();
    }
    match args.command {
        Command::Init(_) => unreachable!("done above"),
        Command::Setup(args) => sessions::setup(&args, &project),
        Command::Edit(args) => sessions::edit(&args, &project),
        Command::Validate(args) => sessions::validate(&args, &project),
        Command::Run(args) => run::run(&args, &project),
        Command::Verify(args) => sessions::verify(&args, &project),
        Command::List(args) => workspaces::list(&args, &project),
        Command::Show(args) => show::show(&args, &project),
        Command::Reset(args) => workspaces::reset(&args, &project),
        Command::Clean(args) => workspaces::clean(&args, &project),
        Command::Archive(command) => archive::archive(command, &project),
        Command::Template(command) => template::template(command, &project),
        Command::Config(args) => settings::config(&args, &project),
        Command::Attach(args) => attach::attach(&args, &project),
        Command::Queue(command) => queue::queue(command, &project),
        Command::Fleet(args) => fleet::fleet(args, &project),
        Command::Prune(args) => fleet::prune(&args, &project),
        Command::Stop(args) => steer::stop(&args, &project),
        Command::Pause(args) => steer::pause(&args, &project),
        Command::Resume(args) => steer::resume(&args, &project),
        Command::Tell(args) => steer::tell(&args, &project),
        Command::Checkpoints(args) => checkpoints::list(&args, &project),
        Command::Diff(args) => checkpoints::diff(&args, &project),
        Command::Rollback(args) => checkpoints::rollback(&args, &project),
    }
}

/// What is wrong, for exit code 1.
fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::Refused(error.to_string())
}
