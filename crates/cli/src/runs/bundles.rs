//! `retake runs import BUNDLE…`: combines the shards of a loop that ran on other machines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use retake_matrix::driver::{self, ResultRow};
use retake_runner::regular_file;
use retake_store::{BundleHeader, BundleLimits, CheckedBundle, check_bundle};
use retake_types::loop_record::matrix::PlannedShard;
use retake_types::{Run, RunId};
use serde::Serialize;

use crate::crash::bundle::checked_states;
use crate::record::Record;
use crate::{Exit, Failure, term};

/// The output of `--json`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    imported: Vec<RunId>,
    known: u64,
    /// Runs that this record has executed itself.
    own: u64,
    /// Runs that claim to belong to a loop of this record.
    refused: u64,
    bundles: Vec<BundleDocument>,
    /// Why the shards do not make a complete loop.
    problems: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BundleDocument {
    file: String,
    id: RunId,
    plan: String,
    shard: u64,
    of: u64,
    host: String,
    runs: u64,
}

/// Imports bundles. All of them are checked to their end before anything is imported.
pub(super) fn import(
    files: &[PathBuf],
    max_size: u64,
    json: bool,
    record: &Record,
) -> Result<Exit, Failure> {
    let limits = BundleLimits { bytes: max_size, ..BundleLimits::default() };
    let mut bundles: Vec<(&Path, CheckedBundle)> = Vec::new();
    for file in files {
        let checked = check_bundle(&mut open(file)?, limits, &result_of).map_err(|fault| {
            Failure::Refused(format!("{}: {fault}; nothing was imported", file.display()))
        })?;
        bundles.push((file, checked));
    }
    let mut document = Document {
        imported: Vec::new(),
        known: 0,
        own: 0,
        refused: 0,
        bundles: Vec::new(),
        problems: Vec::new(),
    };
    let mut store = record.add()?;
    document.problems = problems(&bundles, &driver::shards(&store)?);
    for (file, checked) in &bundles {
        let (imported, own) = store.import_bundle(&checked.header, &mut open(file)?)?;
        document.imported.extend(imported.imported);
        document.known += imported.known;
        document.refused += own.refused;
        document.own += own.present;
        let header = &checked.header;
        if own.present > 0 && !json {
            let (there, file) = (term::count(own.present, "run"), file.display());
            let are = if own.present == 1 { "is" } else { "are" };
            let BundleHeader { shard, of, .. } = header;
            term::say(&format!(
                "{there} of {file} {are} already here: shard {shard}/{of} ran in this record"
            ));
        }
        document.bundles.push(BundleDocument {
            file: file.display().to_string(),
            id: header.id,
            plan: header.plan.clone(),
            shard: header.shard,
            of: header.of,
            host: header.host.clone(),
            runs: checked.runs,
        });
    }
    if document.refused > 0 {
        document.problems.push(format!(
            "{} not imported: they claim to belong to a loop of this record",
            term::count(document.refused, "run")
        ));
    }
    if json {
        term::document(&document)?;
    } else {
        term::say(&format!(
            "{} imported from {}, {} already recorded",
            term::count(document.imported.len() as u64, "run"),
            term::count(bundles.len() as u64, "bundle"),
            document.known
        ));
        for problem in &document.problems {
            term::say(problem);
        }
    }
    Ok(if document.problems.is_empty() { Exit::OK } else { Exit::FAILED })
}

/// The cell that a run is a successful result of, or the states that it has checked.
fn result_of(run: &Run) -> Option<String> {
    if let Some(states) = checked_states(run) {
        return Some(states);
    }
    let (key, row) = ResultRow::of(run)?;
    row.ok.then(|| key.to_string())
}

fn open(file: &Path) -> Result<BufReader<File>, Failure> {
    let opened = regular_file::open(file);
    let failed = |source| Failure::File { action: "open", path: file.to_owned(), source };
    Ok(BufReader::new(opened.map_err(failed)?))
}

/// Mismatched plans, missing and duplicate shards.
fn problems(bundles: &[(&Path, CheckedBundle)], own: &[PlannedShard]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut plans: BTreeMap<(&str, u64), Vec<&(&Path, CheckedBundle)>> = BTreeMap::new();
    for bundle in bundles {
        let header = &bundle.1.header;
        plans.entry((&header.plan, header.of)).or_default().push(bundle);
    }
    if plans.len() > 1 {
        let files = plans.values().filter_map(|of_plan| of_plan.first());
        let files: Vec<String> = files.map(|(file, _)| file.display().to_string()).collect();
        problems.push(format!(
            "the bundles are of {} plans, so the parts do not fit together: {} differ in the \
             configuration, the filters, the number of shards or the durations",
            plans.len(),
            files.join(" and ")
        ));
    }
    for ((plan, of), bundles) in &plans {
        let mut seen: BTreeMap<u64, Vec<(&Path, RunId)>> = BTreeMap::new();
        for (file, checked) in bundles.iter().copied() {
            seen.entry(checked.header.shard).or_default().push((file, checked.header.id));
        }
        let ran_here = |shard: u64| {
            own.iter().any(|own| (&*own.plan, own.number, own.of) == (*plan, shard, *of))
        };
        let missing: Vec<String> = (1..=*of)
            .filter(|shard| !seen.contains_key(shard) && !ran_here(*shard))
            .map(|shard| format!("{shard}/{of}"))
            .collect();
        if !missing.is_empty() {
            problems.push(format!("missing: shard {}", missing.join(", ")));
        }
        for (shard, twice) in seen.iter().filter(|(_, files)| files.len() > 1) {
            let files: Vec<String> =
                twice.iter().map(|(file, _)| file.display().to_string()).collect();
            problems.push(format!("shard {shard}/{of} is given twice: {}", files.join(", ")));
        }
        problems.extend(cell_problems(bundles, *of));
    }
    problems
}

/// Cells without all of their results, and cells that several shards ran.
fn cell_problems(bundles: &[&(&Path, CheckedBundle)], of: u64) -> Vec<String> {
    let mut problems = Vec::new();
    let mut parts: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for (_, checked) in bundles {
        let shard = checked.header.shard;
        for cell in &checked.header.cells {
            parts.entry(&cell.name).or_default().insert(shard);
            let there = checked.successful.get(&cell.key).copied().unwrap_or(0);
            if there < cell.iterations {
                problems.push(format!(
                    "{} (shard {shard}/{of}): {there} of {} successful",
                    term::visible(&cell.name),
                    term::count(cell.iterations, "iteration")
                ));
            }
        }
    }
    for (name, shards) in parts.iter().filter(|(_, shards)| shards.len() > 1) {
        let shards: Vec<String> = shards.iter().map(|shard| format!("{shard}/{of}")).collect();
        problems.push(format!("{} was run by shards {}", term::visible(name), shards.join(", ")));
    }
    problems
}
