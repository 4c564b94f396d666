//! `retake matrix status`: how far every cell is.

use std::collections::BTreeMap;
use std::path::Path;

use retake_matrix::config::CODE;
use retake_matrix::report::{Status, StatusCell, grid};

use super::open::{Common, Filters, View};
use crate::cli::{Exit, Failure};
use crate::term;

/// Show how far every cell is: successful iterations of those wanted
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    filters: Filters,
    /// Show what failed, and how to see its output
    #[arg(long)]
    failures: bool,
}

pub(super) fn cells(view: &View) -> Vec<StatusCell> {
    let View { matrix, supply, keys, history, setting, .. } = view;
    let one = |(cell, key): (&retake_matrix::plan::Cell, &_)| {
        let axes: BTreeMap<String, String> = (0..matrix.axes.len())
            .map(|axis| (matrix.axes[axis].name.clone(), matrix.value(cell, axis).to_owned()))
            .collect();
        let sha = axes.get(CODE).and_then(|reference| supply.commits.get(reference)).cloned();
        let runs = history.of(*key).iter().map(|row| row.shown()).collect();
        StatusCell::new(axes, sha, setting.matrix.iterations, runs)
    };
    matrix.cells.iter().zip(keys).map(one).collect()
}

pub(super) fn status(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let view = View::open(&args.common, &args.filters, store)?;
    let cells = cells(&view);
    let last = view.last_run();
    if args.common.json {
        let order = last.map_or_else(
            || view.setting.matrix.order.as_str().to_owned(),
            |planned| planned.order.clone(),
        );
        term::document(&Status {
            cells,
            seed: last.map(|planned| planned.seed),
            order,
            unavailable: view.supply.unavailable.clone(),
        })?;
        return Ok(Exit::OK);
    }
    term::data(term::visible_lines(&grid(&view.matrix.axes, &cells)).as_bytes())?;
    for (sha, refs) in view.supply.same_commits() {
        let sha = crate::matrix::supply::short(&sha).to_owned();
        term::say(&format!("{} are one commit, {sha}, and share their runs", refs.join(" and ")));
    }
    if args.failures {
        failures(&view, &cells)?;
    }
    Ok(Exit::OK)
}

fn failures(view: &View, cells: &[StatusCell]) -> Result<(), Failure> {
    let mut text = String::new();
    for (place, cell) in cells.iter().enumerate() {
        let failed: Vec<_> = cell.runs.iter().filter(|run| run.exit_code != 0).collect();
        if failed.is_empty() {
            continue;
        }
        text += &format!("\n{}\n", view.name(place));
        for run in failed {
            text += &format!(
                "  #{}  exit:{}  retake runs logs {}\n",
                run.iteration, run.exit_code, run.id
            );
        }
    }
    term::data(term::visible_lines(&text).as_bytes())?;
    Ok(())
}
