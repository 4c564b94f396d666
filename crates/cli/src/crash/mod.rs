//! `retake crash`: every state a crash could leave a program's files in, each of them checked.

mod explore;
mod options;
mod record;
mod repro;
mod run;
mod session;
mod share;
mod show;
mod tell;

use std::path::Path;

use clap::Subcommand;

use super::{Exit, Failure};
use crate::term;
use retake_crash_driver::untested::Untested;
use retake_runner::signals;

/// Every crash state of a program, power loss included, until one loses data
///
/// The program runs once, watched; from what it did to the directory every state is built that a
/// crash could have left, and the check runs on each. Lines that the program prints are promises:
/// what it said before the crash must have survived. The check finds the state at the directory's
/// own path and in FIRST_WORK_DIR, the lines in the file named by FIRST_ACKS, and answers with its
/// exit code. Exits with 0 if every state recovers, 1 with findings, 125 if nothing could be tested
/// or a part of what --on sent elsewhere was not.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: run::Testing,
}

#[derive(Subcommand)]
enum Command {
    Record(record::Args),
    Explore(explore::Args),
    Repro(repro::Args),
    Show(show::Args),
    #[command(hide = true)]
    Share(share::Args),
}

pub(super) fn crash(args: Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let answered = match args.command {
        Some(Command::Record(args)) => record::record(&args, store),
        Some(Command::Explore(args)) => explore::explore(&args, store),
        Some(Command::Repro(args)) => repro::repro(&args, store),
        Some(Command::Show(args)) => show::show(&args),
        Some(Command::Share(args)) => share::share(&args),
        None => run::run(&args.run, store),
    };
    // What was cut short by a signal has failed because of it.
    if let Some(signal) = signals::received() {
        return Ok(Exit::Signal(signal));
    }
    answered.or_else(|trouble| match trouble {
        Trouble::Failure(failure) => Err(failure),
        Trouble::Untested(untested) => {
            term::say(&untested.to_string());
            Ok(Exit::REFUSED)
        }
    })
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error(transparent)]
    Failure(#[from] Failure),
    #[error(transparent)]
    Untested(#[from] Untested),
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self::Failure(Failure::Output(error))
    }
}
