//! What the record knows of the cells of a matrix.
//!
//! Warmups, setups and runs that were cut short are no results.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use retake_runner::metrics::{BUILT_IN, built_in};
use retake_store::{RunFilter, Store};
use retake_types::loop_record::matrix::{CellKey, CellLabels};
use retake_types::{Effects, Kind, Metrics, OutcomeKind, Run, RunId};

use crate::config::{CHROME, CODE};
use crate::plan::PastRun;
use crate::report::RunRow;

/// More cells than this are looked for in all runs at once instead of one by one.
const ONE_BY_ONE: usize = 100;
const PAGE: usize = 2000;

/// What every run will have, where there is none yet.
const ALWAYS: [&str; 3] = ["wall", "cpu", "rss"];

/// One result of a cell.
#[derive(Clone, Debug)]
pub struct ResultRow {
    pub id: RunId,
    pub iteration: u64,
    pub ok: bool,
    pub timed_out: bool,
    pub exit_code: i32,
    pub started: Timestamp,
    pub duration_ms: u64,
    pub chrome: Option<String>,
    pub reference: Option<String>,
    pub sha: Option<String>,
    /// Values of the axes that are neither browser nor code.
    pub axes: BTreeMap<String, String>,
    pub metrics: Metrics,
    pub adaptive: bool,
    pub planned: Option<u64>,
    pub blocked: bool,
}

impl ResultRow {
    pub fn of(run: &Run) -> Option<(CellKey, Self)> {
        let labels = CellLabels::from_labels(&run.intent.request.labels)?;
        let key = labels.iteration_of()?;
        let outcome = run.outcome.as_ref()?;
        // On another machine it is the machine or the scheduler that refuses, not the command that
        // fails.
        let refused = outcome.kind == OutcomeKind::NotStarted && outcome.ran_on.is_some();
        if refused || matches!(outcome.kind, OutcomeKind::Cancelled | OutcomeKind::Interrupted) {
            return None;
        }
        let measured = outcome.effects.as_ref().and_then(Effects::measurements);
        let row = Self {
            id: run.intent.id(),
            iteration: run.intent.iteration(),
            ok: run.success(),
            timed_out: outcome.kind == OutcomeKind::TimedOut,
            exit_code: outcome.exit_code.unwrap_or(1),
            started: run.intent.start_time,
            duration_ms: outcome.duration_ms,
            chrome: labels.chrome,
            reference: labels.axes.get(CODE).cloned(),
            sha: labels.sha,
            axes: labels
                .axes
                .into_iter()
                .filter(|(name, _)| name != CHROME && name != CODE)
                .collect(),
            metrics: measured.map(|measured| measured.metrics.clone()).unwrap_or_else(|| {
                let wall = Duration::from_millis(outcome.duration_ms);
                built_in(wall, &outcome.usage)
            }),
            adaptive: labels.adaptive,
            planned: measured.and_then(|measured| measured.planned),
            blocked: labels.blocked,
        };
        Some((key, row))
    }

    pub fn to_run_row(&self) -> RunRow {
        RunRow {
            id: self.id.to_string(),
            chrome: self.chrome.clone(),
            reference: self.reference.clone(),
            sha: self.sha.clone(),
            iteration: self.iteration,
            timestamp: self.started,
            duration_ms: self.duration_ms,
            exit_code: self.exit_code,
            metrics: self.metrics.clone(),
        }
    }
}

/// The results of cells, oldest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    rows: HashMap<CellKey, Vec<ResultRow>>,
}

impl History {
    pub fn read(store: &Store, keys: &[CellKey]) -> retake_store::Result<Self> {
        let wanted: HashSet<CellKey> = keys.iter().copied().collect();
        let mut rows: HashMap<CellKey, Vec<ResultRow>> = HashMap::new();
        if wanted.len() <= ONE_BY_ONE {
            for key in &wanted {
                let labels = vec![CellLabels::filter(*key)];
                collect(store, &RunFilter { labels, ..RunFilter::default() }, &wanted, &mut rows)?;
            }
        } else {
            let filter = RunFilter { kind: Some(Kind::Matrix), ..RunFilter::default() };
            collect(store, &filter, &wanted, &mut rows)?;
        }
        rows.values_mut().for_each(|rows| rows.reverse());
        Ok(Self { rows })
    }

    pub fn of(&self, key: CellKey) -> &[ResultRow] {
        self.rows.get(&key).map_or(&[], Vec::as_slice)
    }

    /// All results, for a plan.
    pub fn past(&self) -> Vec<PastRun> {
        let row = |key: &CellKey, row: &ResultRow| PastRun {
            key: *key,
            iteration: row.iteration,
            id: row.id,
            ok: row.ok,
        };
        self.rows.iter().flat_map(|(key, rows)| rows.iter().map(move |r| row(key, r))).collect()
    }

    /// By iteration the newest successful run, or `None` where all have failed. A replaced run that
    /// could not be erased any more is not counted beside the run that replaced it.
    pub fn results(&self, key: CellKey) -> BTreeMap<u64, Option<&ResultRow>> {
        let mut results: BTreeMap<u64, Option<&ResultRow>> = BTreeMap::new();
        for row in self.of(key) {
            let known = results.entry(row.iteration).or_default();
            if row.ok {
                *known = Some(row);
            }
        }
        results
    }

    /// The iteration after the last there is.
    pub fn next_iteration(&self, key: CellKey) -> u64 {
        self.of(key).iter().map(|row| row.iteration + 1).max().unwrap_or(0)
    }

    /// Every metric that some run has: what retake measures first, then the others by name.
    pub fn metrics(&self) -> Vec<String> {
        let mut more: HashSet<&String> = HashSet::new();
        more.extend(self.rows.values().flatten().flat_map(|row| row.metrics.keys()));
        let order = |name: &str| {
            let place = BUILT_IN.iter().position(|known| *known == name);
            place.unwrap_or(BUILT_IN.len())
        };
        let mut names: Vec<String> = more.into_iter().cloned().collect();
        names.sort_unstable_by_key(|name| (order(name), name.clone()));
        if names.is_empty() { ALWAYS.map(str::to_owned).to_vec() } else { names }
    }
}

/// Newest first, as the record lists them.
fn collect(
    store: &Store,
    filter: &RunFilter,
    wanted: &HashSet<CellKey>,
    rows: &mut HashMap<CellKey, Vec<ResultRow>>,
) -> retake_store::Result<()> {
    let mut cursor = None;
    loop {
        let page = store.list(filter, cursor, PAGE)?;
        let found = page.runs.iter().filter_map(ResultRow::of);
        for (key, row) in found.filter(|(key, _)| wanted.contains(key)) {
            rows.entry(key).or_default().push(row);
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(());
        }
    }
}
