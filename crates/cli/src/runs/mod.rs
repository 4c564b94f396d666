//! `retake runs`: finds, shows, compares and erases recorded runs.

mod bundles;
#[cfg(feature = "postgres")]
mod database;
mod delete;
mod diff;
mod effects;
mod export;
mod filter;
mod import;
mod junit;
mod list;
mod logs;
mod prune;
#[cfg(feature = "postgres")]
mod push;
mod search;
mod show;
mod stats;
mod summary;

#[cfg(all(feature = "postgres", feature = "web"))]
pub(crate) use push::shared_address;

use std::ffi::OsString;
use std::path::Path;

use super::{Exit, Failure};
use crate::record::Record;

/// List, show, search, compare, export and erase recorded runs
#[derive(clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
#[command(defer = true)]
enum Command {
    List(Box<list::Args>),
    Show(show::Args),
    Logs(logs::Args),
    Search(search::Args),
    Diff(diff::Args),
    Stats(Box<stats::Args>),
    Export(Box<export::Args>),
    Import(import::Args),
    Summary(Box<summary::Args>),
    #[cfg(feature = "postgres")]
    Push(push::Args),
    #[cfg(feature = "postgres")]
    Database(database::Args),
    Prune(prune::Args),
    Delete(delete::Args),
}

impl Args {
    /// A plain `list` is a short query that is often called, for example by a shell prompt.
    pub(crate) fn read_directly(words: &[OsString]) -> Option<Self> {
        match words {
            [list, words @ ..] if list == "list" => {
                let command = Command::List(Box::new(list::Args::read_directly(words)?));
                Some(Self { command })
            }
            _ => None,
        }
    }

    #[cfg(test)]
    pub(crate) fn into_list(self) -> Option<list::Args> {
        match self.command {
            Command::List(args) => Some(*args),
            _ => None,
        }
    }
}

pub(super) fn runs(args: Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let record = Record::find(store)?;
    match args.command {
        Command::List(args) => list::list(&args, &record),
        Command::Show(args) => show::show(&args, &record),
        Command::Logs(args) => logs::logs(&args, &record),
        Command::Search(args) => search::search(&args, &record),
        Command::Diff(args) => diff::diff(&args, &record),
        Command::Stats(args) => stats::stats(&args, &record),
        Command::Export(args) => export::export(&args, &record),
        Command::Import(args) => import::import(&args, &record),
        Command::Summary(args) => summary::summary(&args, &record),
        #[cfg(feature = "postgres")]
        Command::Push(args) => push::push(&args, &record),
        #[cfg(feature = "postgres")]
        Command::Database(args) => database::database(&args, &record),
        Command::Prune(args) => prune::prune(&args, &record),
        Command::Delete(args) => delete::delete(&args, &record),
    }
}
