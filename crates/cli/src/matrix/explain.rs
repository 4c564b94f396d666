//! `retake matrix explain`: finds out which axis causes a difference, or whether several do together.

use std::path::Path;

use retake_matrix::explain::{Explanation, explain as find_cause};
use retake_matrix::plan::baselines;
use retake_matrix::stats::{Comparison, Criteria, summarise, value_text};
use retake_matrix::table::Table;

use super::export_files::{Answer, Exports, Lines};
use super::open::{Common, Filters, View, percent};
use super::redacted_output::RedactedOutput;
use super::words;
use crate::{Exit, Failure, term};

/// Report which axis causes a difference, or that several do together
#[derive(clap::Args)]
pub(super) struct Args {
    /// What to explain: wall, cpu, rss, or what the command reports
    #[arg(long, value_name = "NAME", default_value = "wall")]
    metric: String,
    /// Ignore differences up to this size
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = percent)]
    margin: f64,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    exports: Exports,
}

/// Fixed seed of the resampling: the same numbers give the same answer.
const SEED: u64 = 1;

pub(super) fn explain(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let files = args.exports.files(args.common.json)?;
    let view = View::open(&args.common, &args.filters, store)?;
    let samples = view.samples(&args.metric)?;
    let table = samples.table();
    let pairs = baselines(&view.matrix);
    let comparisons = samples.compare(&pairs, args.margin, &view.resources);
    let explanation = explained(&table, &comparisons, args.margin);
    let shown = RedactedOutput::of(&view.project);
    let metrics = [samples.results(&samples.rows(&pairs, &comparisons))];
    files.write(
        &Answer { document: &explanation, metrics: &metrics, lines: Lines::Cells },
        &shown,
    )?;
    if args.common.json {
        shown.document(&explanation)?;
    }
    if args.common.json || files.has_stdout() {
        return Ok(Exit::OK);
    }
    if samples.is_mixed() {
        term::say(words::MIXED_SESSIONS);
    }
    let text = format!("{}\n\n{}", explanation.sentence, heat_map(&table, samples.unit.as_deref()));
    shown.lines(&text)?;
    Ok(Exit::OK)
}

pub(super) fn explained(table: &Table, comparisons: &[Comparison], margin: f64) -> Explanation {
    find_cause(table, comparisons, margin, Criteria::default().confidence, SEED)
}

/// Medians: the darker, the larger. Only comparisons tell how they differ.
fn heat_map(table: &Table, unit: Option<&str>) -> String {
    let medians: Vec<Option<f64>> =
        table.cells.iter().map(|cell| Some(summarise(&cell.values)?.median)).collect();
    let known = || medians.iter().flatten().copied();
    let (low, high) = known().fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
    let shade = |value: f64| {
        let part = if high > low { (value - low) / (high - low) } else { 0.0 };
        ["░", "▒", "▓", "█"][((part * 4.0) as usize).min(3)]
    };
    let names: Vec<String> = table.cells.iter().map(|cell| table.name(&cell.place)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let line = |((cell, name), median): ((_, &String), &Option<f64>)| {
        let cell: &retake_matrix::table::Measured = cell;
        let pad = " ".repeat(width - name.chars().count());
        let Some(median) = median else {
            return format!("  {name}{pad}  ✗ {} failed\n", cell.failed);
        };
        let value = value_text(*median, unit);
        format!("{} {name}{pad}  {value:>12}  n={}\n", shade(*median), cell.values.len())
    };
    table.cells.iter().zip(&names).zip(&medians).map(line).collect()
}
