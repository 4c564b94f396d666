//! `retake runs import`: runs that another record exported.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use jiff::{Timestamp, ToSpan};
use retake_runner::config::Config;
use retake_runner::regular_file;
use retake_store::is_bundle;
use retake_types::{RunId, parse_size};
use serde::Serialize;

use super::bundles;
use crate::record::Record;
use crate::{Exit, Failure, term};

/// Import runs written by `runs export`; runs already recorded stay unchanged
///
/// Also imports bundles of `matrix run --shard`: give all of one plan at once. Their runs are marked as
/// reported. Missing and duplicate shards, cells with missing results and bundles of another plan
/// are reported, and the exit code is 1.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file, or - for stdin; several, if they are bundles
    #[arg(value_name = "FILE", default_value = "-")]
    files: Vec<PathBuf>,
    /// Maximum size of a bundle
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    max_size: u64,
    /// Print what was imported as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    imported: &'a [RunId],
    known: u64,
    /// Runs older than the retention, and until when they are kept nevertheless.
    #[serde(skip_serializing_if = "Option::is_none")]
    older_than_retention: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_until: Option<Timestamp>,
}

pub(super) fn import(args: &Args, record: &Record) -> Result<Exit, Failure> {
    let [file] = args.files.as_slice() else {
        return bundles::import(&args.files, args.max_size, args.json, record);
    };
    // Before the record is created: a wrong name must not leave an empty one behind.
    let mut from: Box<dyn BufRead> = if file == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        let opened = regular_file::open(file);
        Box::new(BufReader::new(opened.map_err(|source| Failure::File {
            action: "open",
            path: file.clone(),
            source,
        })?))
    };
    if is_bundle(from.fill_buf().unwrap_or_default()) {
        if file == Path::new("-") {
            let why = "a bundle is read twice: give its file instead of stdin";
            return Err(Failure::Usage(why.to_owned()));
        }
        return bundles::import(&args.files, args.max_size, args.json, record);
    }
    let config = Config::load(record.project.root.as_deref())?;
    let result = record.add()?.import(&mut from)?;
    let now = Timestamp::now();
    let days = config.execution.audit.retention_days;
    let retention =
        i64::try_from(days).ok().filter(|days| *days > 0).map(|days| (days * 24).hours());
    let since = retention.and_then(|retention| now.checked_sub(retention).ok());
    let old = result.exec_starts.iter().filter(|start| since.is_some_and(|since| **start < since));
    let old = old.count() as u64;
    let kept_until = retention.filter(|_| old > 0).and_then(|days| now.checked_add(days).ok());
    if args.json {
        term::document(&Document {
            imported: &result.imported,
            known: result.known,
            older_than_retention: kept_until.map(|_| old),
            kept_until,
        })?;
    } else {
        let imported = term::count(result.imported.len() as u64, "run");
        term::say(&format!("{imported} imported, {} already recorded", result.known));
        if let Some(until) = kept_until {
            term::say(&format!(
                "{old} of them older than {} (execution.audit.retention_days), kept until {}",
                term::count(days, "day"),
                term::moment(until)
            ));
        }
    }
    Ok(Exit::OK)
}
