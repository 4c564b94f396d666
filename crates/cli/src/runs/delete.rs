//! `retake runs delete`: erases one run.

use super::prune;
use super::prune::Document;
use crate::record::Record;
use crate::{Exit, Failure, record, term};

/// Erase one run for good, with its output and its entries in the search index
///
/// The chain keeps the hash of what is erased, so what remains still verifies.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run: its id, a unique beginning or end of it, or `last`
    #[arg(value_name = "ID")]
    id: String,
    /// Print what was erased as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn delete(args: &Args, record: &Record) -> Result<Exit, Failure> {
    let mut store = record.change().map_err(Failure::erasing)?;
    let run = record::find(&store, &args.id)?;
    let erased = store.delete(run.intent.id()).map_err(Failure::erasing)?;
    if args.json {
        term::document(&Document::of(&erased, false))?;
    } else {
        term::say(&format!("run {} erased: {}", run.intent.id(), run.intent.command()));
    }
    prune::warn(&erased);
    Ok(Exit::OK)
}
