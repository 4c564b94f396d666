//! `retake runs prune`: erases old runs.

use jiff::Timestamp;
use retake_runner::point_in_time;
use retake_store::{Erased, Prune};
use retake_types::{Kind, RunId};
use serde::Serialize;

use super::filter::kinds;
use crate::record::Record;
use crate::{Exit, Failure, term};

/// Erase old runs for good
///
/// Only exec runs, unless other kinds are named: the history of the other loops is derived from
/// their runs. The chain keeps the hashes of what is erased, so what remains still verifies.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Runs that began before this time, or longer ago than this (30d, 12h)
    #[arg(long, value_name = "TIME", value_parser = point_in_time::parse, allow_hyphen_values = true)]
    older_than: Timestamp,
    /// Keep the runs that did not succeed
    #[arg(long)]
    keep_failed: bool,
    /// Runs of this kind of loop instead of exec; repeatable
    #[arg(long, value_name = "KIND", value_parser = kinds())]
    kind: Vec<Kind>,
    /// Print what would be erased, and erase nothing
    #[arg(long)]
    dry_run: bool,
    /// Print what was erased as JSON
    #[arg(long)]
    json: bool,
}

/// What was erased, or would be.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document<'a> {
    runs: &'a [RunId],
    output_bytes: u64,
    dry_run: bool,
}

impl<'a> Document<'a> {
    pub(super) fn of(erased: &'a Erased, dry_run: bool) -> Self {
        Self { runs: &erased.runs, output_bytes: erased.output_bytes, dry_run }
    }
}

pub(super) fn prune(args: &Args, record: &Record) -> Result<Exit, Failure> {
    let prune = Prune {
        before: args.older_than,
        keep_failed: args.keep_failed,
        kinds: args.kind.clone(),
        dry_run: args.dry_run,
    };
    // A dry run must work where nothing may be written.
    let mut store =
        if args.dry_run { record.read()? } else { record.change().map_err(Failure::erasing)? };
    let erased = store.prune(&prune).map_err(Failure::erasing)?;
    if args.json {
        term::document(&Document::of(&erased, args.dry_run))?;
    } else {
        let runs = term::count(erased.runs.len() as u64, "run");
        let size = term::size(erased.output_bytes);
        let verb = if args.dry_run { "would be erased" } else { "erased" };
        term::say(&format!("{runs} with {size} of output {verb}"));
    }
    warn(&erased);
    Ok(Exit::OK)
}

/// Warns about remains that could not be erased yet.
pub(super) fn warn(erased: &Erased) {
    if erased.wal_in_use {
        term::say(
            "another program is reading the record, so remains of the erased runs are still in \
             its write-ahead log; the next change after that removes them",
        );
    }
}
