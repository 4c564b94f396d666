//! `retake matrix`: a command over versions, refs and iterations, and comparisons of the results.

mod bisect;
mod browsers;
mod clean;
mod compare;
mod events;
mod exchange;
mod explain;
mod export_files;
mod history;
mod init;
mod measure;
mod open;
mod redacted_output;
mod remote;
mod report;
mod run;
mod shard;
mod status;
mod table;
mod try_commands;
mod words;

use std::path::Path;

use clap::Subcommand;
use retake_runner::signals;

use crate::{Exit, Failure};

/// Run a command over git refs, browser versions and any other axes, and compare the results
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Init(init::Args),
    Run(Box<run::Args>),
    Try(Box<try_commands::Args>),
    Status(status::Args),
    Compare(compare::Args),
    Explain(explain::Args),
    History(history::Args),
    Bisect(Box<bisect::Args>),
    Report(report::Args),
    ListChrome(browsers::List),
    /// Remove all downloaded browsers: `cache clean`
    #[command(subcommand)]
    Cache(browsers::Cache),
    Clean(clean::Args),
    Export(exchange::Export),
    Import(exchange::Import),
}

pub(super) fn matrix(args: Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let answered = match args.command {
        Command::Init(args) => init::init(&args),
        Command::Run(args) => run::run(&args, store),
        Command::Try(args) => try_commands::try_commands(&args, store),
        Command::Status(args) => status::status(&args, store),
        Command::Compare(args) => compare::compare(&args, store),
        Command::Explain(args) => explain::explain(&args, store),
        Command::History(args) => history::history(&args, store),
        Command::Bisect(args) => bisect::bisect(&args, store),
        Command::Report(args) => report::report(&args, store),
        Command::ListChrome(args) => browsers::list(&args),
        Command::Cache(command) => browsers::cache(&command),
        Command::Clean(args) => clean::clean(&args, store),
        Command::Export(args) => exchange::export(&args, store),
        Command::Import(args) => exchange::import(&args, store),
    };
    // A command that a signal interrupted failed because of it.
    match (answered, signals::received()) {
        (Err(_), Some(signal)) => Ok(Exit::Signal(signal)),
        (answered, _) => answered,
    }
}
