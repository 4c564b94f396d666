//! A matrix: its cells with their measurements, compared as in `retake matrix compare`.
//!
//! Only runs of this loop count; runs of earlier loops of the same matrix are on the pages of those.

use std::collections::BTreeMap;

use retake_matrix::driver::{CommitLines, MetricDefaults, RecordedResults, ResultRow};
use retake_matrix::history::CommitHistory;
use retake_matrix::stats::{Comparison, Criteria, Reason, Side, compare, summarise};
use retake_matrix::table::{Axis, Measured, Table};
use retake_runner::file_lock::FileLock;
use retake_runner::machine;
use retake_runner::metrics::BUILT_IN;
use retake_store::RunFilter;
use retake_types::loop_record::matrix::{BisectAnswer, CellLabels, MatrixEntry, MatrixLoopPlan};
use retake_types::{Better, RunId};
use serde::Serialize;

use super::{LoopQuery, LoopSummary, RecordedPlan};
use crate::error::RequestError;
use crate::store_pool::Store;

/// Maximum number of runs that are read, the newest ones.
const MAX_RUNS: usize = 20_000;
const PAGE: usize = 1000;
const MAX_COMPARISONS: usize = 200;
/// Smaller differences count as none, as in `retake matrix compare`.
const MARGIN: f64 = 0.02;

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MatrixDetail {
    pub(crate) metric: String,
    pub(crate) unit: String,
    pub(crate) metrics: Vec<String>,
    pub(crate) axes: Vec<Axis>,
    pub(crate) cells: Vec<Cell>,
    pub(crate) comparisons: Vec<Comparison>,
    /// The axis that a bisection searches; `None` for other loops.
    pub(crate) searched: Option<String>,
    /// The runs of a bisection, in order; empty for other loops.
    pub(crate) steps: Vec<BisectStep>,
    /// The answer of a bisection.
    pub(crate) answer: Option<BisectAnswer>,
    /// The metric over the commits measured by then, with everything recorded since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) history: Option<CommitHistory>,
    pub(crate) runs: usize,
    pub(crate) running: usize,
    /// There are older runs that were not read.
    pub(crate) cut: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cell {
    pub(crate) name: String,
    /// The index of its value in each axis.
    #[serde(rename = "place")]
    pub(crate) indices: Vec<usize>,
    pub(crate) values: Vec<f64>,
    pub(crate) median: Option<f64>,
    pub(crate) mad: Option<f64>,
    pub(crate) failed: usize,
    /// Its last run.
    pub(crate) run: Option<RunId>,
}

/// One run of a bisection.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BisectStep {
    pub(crate) run: RunId,
    /// The value of the searched axis, and its index among all.
    pub(crate) point: String,
    #[serde(rename = "place")]
    pub(crate) index: Option<usize>,
    pub(crate) ok: bool,
    pub(crate) exit_code: i32,
    pub(crate) value: Option<f64>,
}

/// The last entry of a completed bisection.
fn read_answer(store: &Store, summary: &LoopSummary) -> Result<Option<BisectAnswer>, RequestError> {
    let last = store.last_loop_entry(summary.id)?;
    let entries = store.loop_entries(summary.id, last.saturating_sub(1), 1)?;
    // Skip an entry that only a later release knows.
    let entry = entries.first().and_then(|entry| serde_json::from_str(&entry.body).ok());
    Ok(entry.and_then(|entry| match entry {
        MatrixEntry::Answer { answer } => Some(answer),
        MatrixEntry::Disturbed { .. } | MatrixEntry::Commits { .. } => None,
    }))
}

/// At most one entry precedes the one with the commits.
const FIRST_ENTRIES: usize = 4;

/// The metric over commits, if a run recorded the list of commits.
fn read_history(
    store: &Store,
    summary: &LoopSummary,
    metric: &str,
) -> Result<Option<CommitHistory>, RequestError> {
    let entries = store.loop_entries(summary.id, 0, FIRST_ENTRIES)?;
    let measured = entries.iter().find_map(|entry| {
        match serde_json::from_str::<MatrixEntry>(&entry.body).ok()? {
            MatrixEntry::Commits { measured } => Some(measured),
            MatrixEntry::Answer { .. } | MatrixEntry::Disturbed { .. } => None,
        }
    });
    let Some(lines) = measured.map(CommitLines::recorded) else { return Ok(None) };
    let recorded = RecordedResults::read_all(store, &lines.keys())?;
    Ok(Some(lines.history(&recorded, metric, MetricDefaults::default(), MARGIN)))
}

/// A run that is the result of a cell, with the values of its axes.
struct CellResult {
    row: ResultRow,
    values: BTreeMap<String, String>,
}

/// Whether a loop of a release without live files runs on this machine.
pub(super) fn is_locked(plan: &MatrixLoopPlan) -> bool {
    plan.host() == Some(&machine::host()) && FileLock::is_held(&plan.lock)
}

/// The runs of a loop that are results of cells, oldest first.
struct Results {
    all: Vec<CellResult>,
    runs: usize,
    running: usize,
    cut: bool,
}

impl Results {
    fn read(store: &Store, summary: &LoopSummary) -> Result<Self, RequestError> {
        let filter = RunFilter { loop_id: Some(summary.id), ..RunFilter::default() };
        let mut results = Self { all: Vec::new(), runs: 0, running: 0, cut: false };
        let mut cursor = None;
        loop {
            let page = store.list(&filter, cursor, PAGE)?;
            for run in &page.runs {
                results.runs += 1;
                results.running += usize::from(run.outcome.is_none());
                let values = CellLabels::axes(&run.intent.request.labels)
                    .map(|(axis, value)| (axis.to_owned(), value.to_owned()))
                    .collect();
                results.all.extend(ResultRow::of(run).map(|(_, row)| CellResult { row, values }));
            }
            cursor = page.next;
            results.cut = cursor.is_some();
            if cursor.is_none() || results.runs >= MAX_RUNS {
                results.all.reverse();
                return Ok(results);
            }
        }
    }
}

impl MatrixDetail {
    pub(super) fn read(
        store: &Store,
        summary: &LoopSummary,
        query: &LoopQuery,
    ) -> Result<Self, RequestError> {
        let results = Results::read(store, summary)?;
        let unknown = MatrixLoopPlan::default();
        let plan = match &summary.plan {
            RecordedPlan::Matrix(plan) => plan,
            _ => &unknown,
        };
        let axes = axes_of(plan, &results.all);
        let mut metrics: Vec<String> = vec!["wall".into(), "cpu".into(), "rss".into()];
        for name in results.all.iter().flat_map(|result| result.row.metrics.keys()) {
            if !metrics.iter().any(|known| known == name) {
                metrics.push(name.clone().into());
            }
        }
        let metric = match &query.metric {
            Some(name) if metrics.contains(name) => name.clone(),
            Some(name) => {
                return Err(RequestError::bad_request(format!(
                    "no run of this loop has the metric {name}; choose from {}",
                    metrics.join(", ")
                )));
            }
            // A metric that the command reports is likely the one of interest.
            None => {
                let mut reported = metrics.iter().filter(|name| !BUILT_IN.contains(&name.as_str()));
                reported.next().unwrap_or(&metrics[0]).clone()
            }
        };
        let found = |result: &CellResult| result.row.metrics.get(metric.as_str()).cloned();
        let newest = results.all.iter().rev().find_map(found);
        let unit = newest.as_ref().and_then(|metric| metric.unit.clone());
        let unit = unit.map(String::from).unwrap_or_default();
        let better = newest.and_then(|metric| metric.better).unwrap_or_default();
        let cells = Cells::gather(&axes, &results.all, &metric);
        let searched = plan.purpose.searched_axis().map(str::to_owned);
        let searching = searched.as_ref().and_then(|name| axes.iter().find(|a| a.name == *name));
        let steps =
            searching.map(|axis| bisect_steps(axis, &results.all, &metric)).unwrap_or_default();
        let (comparisons, answer) = match &searched {
            Some(_) => (Vec::new(), read_answer(store, summary)?),
            None => (cells.compare(&metric, &unit, better), None),
        };
        let history = read_history(store, summary, &metric)?;
        Ok(Self {
            metric,
            unit,
            metrics,
            cells: cells.into_shown(),
            axes,
            comparisons,
            searched,
            steps,
            answer,
            history,
            runs: results.runs,
            running: results.running,
            cut: results.cut,
        })
    }
}

/// Axes in the order of the plan. Planned values come first, then those that only runs have.
fn axes_of(plan: &MatrixLoopPlan, results: &[CellResult]) -> Vec<Axis> {
    let mut axes: Vec<Axis> = plan
        .axes
        .iter()
        .map(|(name, values)| Axis { name: name.clone(), values: values.clone() })
        .collect();
    for (name, value) in results.iter().flat_map(|result| &result.values) {
        let at = axes.iter().position(|axis| axis.name == *name).unwrap_or_else(|| {
            axes.push(Axis { name: name.clone(), values: Vec::new() });
            axes.len() - 1
        });
        if !axes[at].values.contains(value) {
            axes[at].values.push(value.clone());
        }
    }
    axes
}

fn indices(axes: &[Axis], values: &BTreeMap<String, String>) -> Option<Vec<usize>> {
    axes.iter()
        .map(|axis| {
            let value = values.get(&axis.name)?;
            axis.values.iter().position(|known| known == value)
        })
        .collect()
}

struct Cells {
    table: Table,
    runs: Vec<Option<RunId>>,
    adaptive: bool,
    blocked: bool,
}

impl Cells {
    fn gather(axes: &[Axis], results: &[CellResult], metric: &str) -> Self {
        let mut by_indices: BTreeMap<Vec<usize>, (Measured, Option<RunId>)> = BTreeMap::new();
        let (mut adaptive, mut blocked) = (false, false);
        for CellResult { row, values } in results {
            let Some(place) = indices(axes, values) else { continue };
            let (cell, run) = by_indices.entry(place.clone()).or_default();
            cell.place = place;
            *run = Some(row.id);
            adaptive |= row.adaptive;
            blocked |= row.blocked;
            match row.metrics.get(metric) {
                Some(found) if row.ok => {
                    cell.values.push(found.value);
                    cell.blocks.push(row.block);
                }
                _ => cell.failed += usize::from(!row.ok),
            }
        }
        let (cells, runs) = by_indices.into_values().unzip();
        let table =
            Table { metric: metric.to_owned(), axes: axes.to_vec(), cells, looked_at: adaptive };
        Self { table, runs, adaptive, blocked }
    }

    /// Every value against the first one of its axis, all else equal.
    fn pairs(&self) -> Vec<(usize, usize)> {
        let cells = &self.table.cells;
        let mut pairs = Vec::new();
        for axis in 0..self.table.axes.len() {
            for (at, cell) in cells.iter().enumerate().filter(|(_, cell)| cell.place[axis] > 0) {
                let mut first = cell.place.clone();
                first[axis] = 0;
                let base = cells.iter().position(|cell| cell.place == first);
                pairs.extend(base.map(|base| (base, at)));
            }
        }
        pairs.truncate(MAX_COMPARISONS);
        pairs
    }

    fn compare(&self, metric: &str, unit: &str, better: Better) -> Vec<Comparison> {
        let pairs = self.pairs();
        let name = |cell: usize| self.table.name(&self.table.cells[cell].place);
        let criteria = Criteria {
            margin: MARGIN,
            comparisons: pairs.len(),
            better,
            counts: unit.is_empty(),
            ..Criteria::default()
        };
        let of = |&(a, b): &(usize, usize)| {
            let (a_name, b_name) = (name(a), name(b));
            let side = |cell: usize, name| {
                let Measured { values, blocks, failed, .. } = &self.table.cells[cell];
                Side { name, values, blocks, failed: *failed }
            };
            let (a, b) = (side(a, &a_name), side(b, &b_name));
            let mut comparison = match (self.blocked, self.adaptive) {
                (true, _) => Comparison::incomparable(a, b, metric, Reason::NotInterleaved),
                // The number of samples depended on their values, which widens the interval.
                (false, true) => Comparison::in_sequence(a, b, metric, &criteria),
                (false, false) => compare(a, b, metric, &criteria),
            };
            comparison.unit = Some(unit.to_owned()).filter(|unit| !unit.is_empty());
            comparison
        };
        pairs.iter().map(of).collect()
    }

    fn into_shown(self) -> Vec<Cell> {
        let Self { table, runs, .. } = self;
        let names: Vec<String> = table.cells.iter().map(|cell| table.name(&cell.place)).collect();
        let cells = table.cells.into_iter().zip(names).zip(runs);
        cells
            .map(|((cell, name), run)| {
                let summary = summarise(&cell.values);
                Cell {
                    name,
                    indices: cell.place,
                    median: summary.as_ref().map(|summary| summary.median),
                    mad: summary.as_ref().map(|summary| summary.mad),
                    values: cell.values,
                    failed: cell.failed,
                    run,
                }
            })
            .collect()
    }
}

impl MatrixDetail {
    /// The points of a bisection, in order.
    pub(crate) fn points(&self) -> &[String] {
        let axis = self.axes.iter().find(|axis| Some(&axis.name) == self.searched.as_ref());
        axis.map_or(&[], |axis| &axis.values)
    }
}

fn bisect_steps(axis: &Axis, results: &[CellResult], metric: &str) -> Vec<BisectStep> {
    let of = |result: &CellResult| {
        let point = result.values.get(&axis.name).cloned().unwrap_or_default();
        BisectStep {
            run: result.row.id,
            index: axis.values.iter().position(|value| *value == point),
            point,
            ok: result.row.ok,
            exit_code: result.row.exit_code,
            value: result.row.metrics.get(metric).map(|metric| metric.value),
        }
    };
    results.iter().map(of).collect()
}
