//! `retake runs import`: runs that another record exported.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use retake_types::RunId;
use serde::Serialize;

use crate::record::Record;
use crate::{Exit, Failure, term};

/// Take in runs that `runs export` wrote; those already here are left as they are
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file, or - for stdin
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// Print what was taken in as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    imported: &'a [RunId],
    known: u64,
}

pub(super) fn import(args: &Args, record: &Record) -> Result<Exit, Failure> {
    // Before the record is made: a wrong name must not leave an empty one behind.
    let mut from: Box<dyn BufRead> = if args.file == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        let opened = File::open(&args.file);
        Box::new(BufReader::new(opened.map_err(|source| Failure::File {
            action: "open",
            path: args.file.clone(),
            source,
        })?))
    };
    let result = record.add()?.import(&mut from)?;
    if args.json {
        term::document(&Document { imported: &result.imported, known: result.known })?;
    } else {
        let imported = term::count(result.imported.len() as u64, "run");
        term::say(&format!("{imported} imported, {} already here", result.known));
    }
    Ok(Exit::OK)
}
