//! `retake matrix explain`: is it the browser, the code, or the two together?

use std::path::Path;

use retake_matrix::driver::Samples;
use retake_matrix::explain::{Explanation, explain as find_cause};
use retake_matrix::stats::summarise;
use retake_matrix::table::Table;

use super::open::{Common, Filters, View, percent};
use crate::{Exit, Failure, term};

/// Say which axis a difference comes from, or that it takes several together
#[derive(clap::Args)]
pub(super) struct Args {
    /// What to explain: wall, cpu, rss, or what the command reports
    #[arg(long, value_name = "NAME", default_value = "wall")]
    metric: String,
    /// Differences up to this are none worth naming
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = percent)]
    margin: f64,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    filters: Filters,
}

/// Of the resampling; the same numbers give the same answer.
const SEED: u64 = 1;

pub(super) fn explain(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let view = View::open(&args.common, &args.filters, store)?;
    let samples = view.samples(&args.metric)?;
    let table = samples.table();
    let explanation = explained(&table, args.margin, &samples);
    if args.common.json {
        term::document(&explanation)?;
        return Ok(Exit::OK);
    }
    let text = format!("{}\n\n{}", explanation.sentence, heat_map(&table));
    term::data(term::visible_lines(&text).as_bytes())?;
    Ok(Exit::OK)
}

pub(super) fn explained(table: &Table, margin: f64, samples: &Samples<'_>) -> Explanation {
    find_cause(table, margin, samples.confidence(), SEED)
}

/// Medians and how they compare with the first cell: the darker, the larger.
fn heat_map(table: &Table) -> String {
    let medians: Vec<Option<f64>> =
        table.cells.iter().map(|cell| Some(summarise(&cell.values)?.median)).collect();
    let known = || medians.iter().flatten().copied();
    let (low, high) = known().fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
    let first = known().next();
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
        let change = first
            .filter(|first| *first > 0.0)
            .map_or_else(String::new, |first| format!("{:+.1} %", (median / first - 1.0) * 100.0));
        format!(
            "{} {name}{pad}  {median:>12.3}  {change:>9}  n={}\n",
            shade(*median),
            cell.values.len()
        )
    };
    table.cells.iter().zip(&names).zip(&medians).map(line).collect()
}
