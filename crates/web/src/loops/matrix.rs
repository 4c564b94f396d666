//! A matrix: its cells with what was measured in each, compared as `retake matrix compare` does.
//!
//! What is shown is what the runs of this loop say; runs of earlier loops of the same matrix are
//! in theirs.

use std::collections::BTreeMap;

use retake_matrix::plan::{Sampler, Shot};
use retake_matrix::stats::{Comparison, Criteria, Side, compare, summarise};
use retake_matrix::table::{Axis, Measured, Table};
use retake_store::{Filter, LoopRecord, Store};
use retake_store::{RunFilter, Store, StoredLoop};
use retake_types::Better;
use retake_types::{Run, RunId};
use serde::{Deserialize, Serialize};

use crate::error::RequestError;
use super::{LoopQuery, LoopSummary};
use retake_matrix::driver::chronicle::Planned;
use retake_matrix::driver::history::AXIS;
use retake_matrix::driver::history::Row;
use retake_runner::project_lock::Lock;

/// The newest runs that are looked at.
const MOST_RUNS: usize = 20_000;
const PAGE: usize = 1000;
const MOST_COMPARISONS: usize = 200;
/// Differences up to this are none worth naming, as in `retake matrix compare`.
const MARGIN: f64 = 0.02;

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Matrix {
    pub(crate) metric: String,
    pub(crate) unit: String,
    pub(crate) metrics: Vec<String>,
    pub(crate) axes: Vec<Axis>,
    pub(crate) cells: Vec<Cell>,
    pub(crate) comparisons: Vec<Comparison>,
    /// The axis along which a bisection looks; `None` for other loops.
    pub(crate) searched: Option<String>,
    /// The looks of a bisection, in order; empty for other loops.
    pub(crate) steps: Vec<Step>,
    /// What a bisection found.
    pub(crate) answer: Option<Answer>,
    pub(crate) runs: usize,
    pub(crate) running: usize,
    /// There are older runs that were not looked at.
    pub(crate) cut: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cell {
    pub(crate) name: String,
    /// One place in each axis.
    pub(crate) place: Vec<usize>,
    pub(crate) values: Vec<f64>,
    pub(crate) median: Option<f64>,
    pub(crate) mad: Option<f64>,
    pub(crate) failed: usize,
    /// Its last run.
    pub(crate) run: Option<RunId>,
}

/// One look of a bisection.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Step {
    pub(crate) run: RunId,
    /// The value of the axis that is searched, and its place among all.
    pub(crate) point: String,
    pub(crate) place: Option<usize>,
    pub(crate) ok: bool,
    pub(crate) exit_code: i32,
    pub(crate) value: Option<f64>,
}

/// The answer of a bisection, as it was recorded.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Answer {
    pub(crate) sentence: String,
    pub(crate) last_good: Option<String>,
    pub(crate) first_bad: Option<String>,
    pub(crate) confidence: f64,
    pub(crate) monotone: bool,
    /// Every point that was judged, with runs of earlier loops counted in.
    #[serde(rename = "steps")]
    pub(crate) points: Vec<Point>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) point: String,
    pub(crate) verdict: Verdict,
    pub(crate) samples: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Good,
    Bad,
    Skip,
}

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "camelCase")]
enum Told {
    Answer { answer: Answer },
}

impl Answer {
    /// The last event of a search that came to its end.
    fn read(store: &Store, summary: &LoopSummary) -> Result<Option<Self>, RequestError> {
        let last = store.last_loop_entry(summary.id)?;
        let events = store.loop_entries(summary.id, last.saturating_sub(1), 1)?;
        // What a later retake tells in other words is not for this one.
        let told = events.first().and_then(|event| serde_json::from_str(&event.body).ok());
        Ok(told.map(|Told::Answer { answer }| answer))
    }

    pub(crate) fn verdict(&self, point: &str) -> Option<Verdict> {
        self.points.iter().find(|known| known.point == point).map(|known| known.verdict)
    }
}

struct Outcome {
    row: Row,
    values: BTreeMap<String, String>,
}

/// Whether someone works on it, on this machine, though no run is under way.
pub(super) fn held(store: &Store, record: &StoredLoop) -> bool {
    crate::matrix::chronicle::is_alive(store, record)
}

/// The runs of a loop that are results of cells, oldest first.
struct Results {
    all: Vec<Outcome>,
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
                results.running += usize::from(run.ending.is_none());
                results.all.extend(Row::of(run).map(|(_, row)| Outcome { row, values: axes(run) }));
            }
            cursor = page.next;
            results.cut = cursor.is_some();
            if cursor.is_none() || results.runs >= MOST_RUNS {
                results.all.reverse();
                return Ok(results);
            }
        }
    }
}

/// The cell of a run, by its labels.
fn axes(run: &Run) -> BTreeMap<String, String> {
    let labels = run.intent.request.labels.iter();
    labels
        .filter_map(|(key, value)| Some((key.strip_prefix(AXIS)?.to_owned(), value.clone())))
        .collect()
}

impl Matrix {
    pub(super) fn read(store: &Store, summary: &LoopSummary, query: &LoopQuery) -> Result<Self, RequestError> {
        let results = Results::read(store, summary)?;
        let planned: Planned =
            serde_json::from_value(summary.plan.clone()).unwrap_or_else(|_| Planned::default());
        let axes = axes_of(&planned, &results.all);
        let mut metrics: Vec<String> = vec!["wall".into(), "cpu".into(), "rss".into()];
        for name in results.all.iter().flat_map(|result| result.row.metrics.keys()) {
            if !metrics.contains(name) {
                metrics.push(name.clone());
            }
        }
        let metric = match &query.metric {
            Some(name) if metrics.contains(name) => name.clone(),
            Some(name) => {
                return Err(RequestError::bad_request(format!(
                    "no run of this loop has the metric {name}; there is {}",
                    metrics.join(", ")
                )));
            }
            None => metrics.get(3).unwrap_or(&metrics[0]).clone(),
        };
        let found = |result: &Outcome| result.row.metrics.get(&metric).cloned();
        let newest = results.all.iter().rev().find_map(found);
        let unit = newest.as_ref().and_then(|metric| metric.unit.clone()).unwrap_or_default();
        let better = newest.and_then(|metric| metric.better).unwrap_or_default();
        let cells = Cells::gather(&axes, &results.all, &metric);
        let searched = planned.purpose.strip_prefix("bisect ").map(str::to_owned);
        let searching = searched.as_ref().and_then(|name| axes.iter().find(|a| a.name == *name));
        let steps = searching.map(|axis| steps(axis, &results.all, &metric)).unwrap_or_default();
        let (comparisons, answer) = match &searched {
            Some(_) => (Vec::new(), Answer::read(store, summary)?),
            None => (cells.compare(&metric, better), None),
        };
        Ok(Self {
            metric,
            unit,
            metrics,
            cells: cells.shown(),
            axes,
            comparisons,
            searched,
            steps,
            answer,
            runs: results.runs,
            running: results.running,
            cut: results.cut,
        })
    }
}

/// Axes in the order of the plan, with values that only runs have after those planned.
fn axes_of(planned: &Planned, results: &[Outcome]) -> Vec<Axis> {
    let mut axes: Vec<Axis> = planned
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

fn place_of(axes: &[Axis], values: &BTreeMap<String, String>) -> Option<Vec<usize>> {
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
    fn gather(axes: &[Axis], results: &[Outcome], metric: &str) -> Self {
        let mut workspaces: BTreeMap<Vec<usize>, (Measured, Option<RunId>)> = BTreeMap::new();
        let (mut adaptive, mut blocked) = (false, false);
        for Outcome { row, values } in results {
            let Some(place) = place_of(axes, values) else { continue };
            let (cell, run) = workspaces.entry(place.clone()).or_default();
            cell.place = place;
            *run = Some(row.id);
            adaptive |= row.adaptive;
            blocked |= row.blocked;
            match row.metrics.get(metric) {
                Some(found) if row.ok => {
                    cell.values.push(found.value);
                    cell.blocks.push(row.iteration);
                }
                _ => cell.failed += usize::from(!row.ok),
            }
        }
        let (cells, runs) = workspaces.into_values().unzip();
        let table = Table { metric: metric.to_owned(), axes: axes.to_vec(), cells };
        Self { table, runs, adaptive, blocked }
    }

    /// Every value against the first of its axis, all else equal.
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
        pairs.truncate(MOST_COMPARISONS);
        pairs
    }

    fn compare(&self, metric: &str, better: Better) -> Vec<Comparison> {
        let pairs = self.pairs();
        let name = |cell: usize| self.table.name(&self.table.cells[cell].place);
        let criteria =
            Criteria { margin: MARGIN, comparisons: pairs.len(), better, ..Criteria::default() };
        if self.adaptive {
            // Samples whose number depends on them need an interval that allows for it.
            let mut sampler = Sampler::new(&pairs, criteria, 0);
            for (cell, measured) in self.table.cells.iter().enumerate() {
                for (&block, &value) in measured.blocks.iter().zip(&measured.values) {
                    sampler.stored(Shot { cell, block }, Some(value).filter(|v| *v > 0.0));
                }
            }
            sampler.begin();
            return sampler.comparisons(metric, name);
        }
        let of = |&(a, b): &(usize, usize)| {
            let (a_name, b_name) = (name(a), name(b));
            let side = |cell: usize, name| {
                let measured = &self.table.cells[cell];
                let blocks = if self.blocked { &[] } else { &measured.blocks[..] };
                Side { name, values: &measured.values, blocks, failed: measured.failed }
            };
            compare(side(a, &a_name), side(b, &b_name), metric, &criteria)
        };
        pairs.iter().map(of).collect()
    }

    fn shown(self) -> Vec<Cell> {
        let Self { table, runs, .. } = self;
        let names: Vec<String> = table.cells.iter().map(|cell| table.name(&cell.place)).collect();
        let cells = table.cells.into_iter().zip(names).zip(runs);
        cells
            .map(|((cell, name), run)| {
                let summary = summarise(&cell.values);
                Cell {
                    name,
                    place: cell.place,
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

impl Matrix {
    /// The points of a bisection, in order.
    pub(crate) fn points(&self) -> &[String] {
        let axis = self.axes.iter().find(|axis| Some(&axis.name) == self.searched.as_ref());
        axis.map_or(&[], |axis| &axis.values)
    }
}

fn steps(axis: &Axis, results: &[Outcome], metric: &str) -> Vec<Step> {
    let of = |result: &Outcome| {
        let point = result.values.get(&axis.name).cloned().unwrap_or_default();
        Step {
            run: result.row.id,
            place: axis.values.iter().position(|value| *value == point),
            point,
            ok: result.row.ok,
            exit_code: result.row.exit_code,
            value: result.row.metrics.get(metric).map(|metric| metric.value),
        }
    };
    results.iter().map(of).collect()
}
