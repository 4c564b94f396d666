//! What the record knows of the cells of a matrix.
//!
//! A run belongs to a cell by its label `matrix.key`. Warmups and setups have no such label, and
//! runs that were cut short are no results.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;
use retake_matrix::config::{CHROME as CHROME_AXIS, CODE as CODE_AXIS};
use retake_matrix::metrics::built_in;
use retake_matrix::plan::{CellKey, PastRun};
use retake_matrix::report::RunRow;
use retake_store::{Filter, Store};
use retake_types::{Effects, Kind, Metrics, Run, RunId, Word};
use retake_store::{RunFilter, Store};
use retake_types::{Kind, Run, RunId, Word};

pub const KEY: &str = "matrix.key";
pub const WARMUP: &str = "matrix.warmup";
pub const SETUP: &str = "matrix.setup";
pub const AXIS: &str = "matrix.axis.";
pub const SHA: &str = "matrix.sha";
pub const CHROME: &str = "matrix.chrome";
/// Of runs whose number was chosen by looking at them.
pub const ADAPTIVE: &str = "matrix.adaptive";
/// How many iterations of its cell were planned when a run was: among its effects, for a label would
/// be indexed.
/// Of runs that were not interleaved with those of other cells.
pub const BLOCKED: &str = "matrix.blocked";

/// More cells than this are looked for in all runs at once instead of one by one.
const ONE_BY_ONE: usize = 100;
const PAGE: usize = 2000;

/// One result.
#[derive(Clone, Debug)]
pub struct Row {
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

impl Row {
    pub fn of(run: &Run) -> Option<(CellKey, Self)> {
        let labels = &run.intent.request.labels;
        let key = CellKey::parse(labels.get(KEY)?)?;
        let ending = run.ending.as_ref()?;
        // Elsewhere it is the machine or the scheduler that refuses, not the command that fails.
        let refused = ending.outcome == Word::NotStarted && ending.ran_on.is_some();
        if refused || matches!(ending.outcome, Word::Cancelled | Word::Interrupted) {
            return None;
        }
        let measured = ending.effects.as_ref().and_then(Effects::measurements);
        let row = Self {
            id: run.intent.id(),
            iteration: run.intent.iteration(),
            ok: run.success(),
            timed_out: ending.outcome == Word::TimedOut,
            exit_code: ending.exit_code.unwrap_or(1),
            started: run.intent.start_time,
            duration_ms: ending.duration_ms,
            chrome: labels.get(CHROME).cloned(),
            reference: labels.get(&format!("{AXIS}code")).cloned(),
            sha: labels.get(SHA).cloned(),
            axes: labels
                .iter()
                .filter_map(|(name, value)| Some((name.strip_prefix(AXIS)?, value)))
                .filter(|(name, _)| *name != CHROME_AXIS && *name != CODE_AXIS)
                .map(|(name, value)| (name.to_owned(), value.clone()))
                .collect(),
            metrics: measured.map(|measured| measured.metrics.clone()).unwrap_or_else(|| {
                let wall = std::time::Duration::from_millis(ending.duration_ms);
                built_in(wall, &ending.usage)
            }),
            adaptive: labels.contains_key(ADAPTIVE),
            planned: measured.and_then(|measured| measured.planned),
            blocked: labels.contains_key(BLOCKED),
        };
        Some((key, row))
    }

    pub fn shown(&self) -> RunRow {
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
    rows: HashMap<CellKey, Vec<Row>>,
}

impl History {
    pub fn read(store: &Store, keys: &[CellKey]) -> retake_store::Result<Self> {
        let wanted: HashSet<CellKey> = keys.iter().copied().collect();
        let mut rows: HashMap<CellKey, Vec<Row>> = HashMap::new();
        if wanted.len() <= ONE_BY_ONE {
            for key in &wanted {
                let labels = vec![(KEY.to_owned(), key.to_string())];
                collect(store, &RunFilter { labels, ..RunFilter::default() }, &wanted, &mut rows)?;
            }
        } else {
            let filter = RunFilter { kind: Some(Kind::Matrix), ..RunFilter::default() };
            collect(store, &filter, &wanted, &mut rows)?;
        }
        rows.values_mut().for_each(|rows| rows.reverse());
        Ok(Self { rows })
    }

    pub fn of(&self, key: CellKey) -> &[Row] {
        self.rows.get(&key).map_or(&[], Vec::as_slice)
    }

    /// For a plan.
    pub fn past(&self) -> Vec<PastRun> {
        let row = |key: &CellKey, row: &Row| PastRun {
            key: *key,
            iteration: row.iteration,
            id: row.id,
            ok: row.ok,
        };
        self.rows.iter().flat_map(|(key, rows)| rows.iter().map(move |r| row(key, r))).collect()
    }

    /// By iteration the newest successful run, or `None` where all have failed. A replaced run that
    /// could not be erased any more is not counted beside its successor.
    pub fn results(&self, key: CellKey) -> BTreeMap<u64, Option<&Row>> {
        let mut results: BTreeMap<u64, Option<&Row>> = BTreeMap::new();
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

    /// Every metric that some run has.
    pub fn metrics(&self) -> Vec<String> {
        let mut names: Vec<String> = ["wall", "cpu", "rss"].map(str::to_owned).to_vec();
        let mut more: HashSet<&String> = HashSet::new();
        more.extend(self.rows.values().flatten().flat_map(|row| row.metrics.keys()));
        let mut more: Vec<String> =
            more.into_iter().filter(|name| !names.contains(name)).cloned().collect();
        more.sort_unstable();
        names.extend(more);
        names
    }
}

/// Newest first, as the record lists them.
fn collect(
    store: &Store,
    filter: &RunFilter,
    wanted: &HashSet<CellKey>,
    rows: &mut HashMap<CellKey, Vec<Row>>,
) -> retake_store::Result<()> {
    let mut cursor = None;
    loop {
        let page = store.list(filter, cursor, PAGE)?;
        let found = page.runs.iter().filter_map(Row::of);
        for (key, row) in found.filter(|(key, _)| wanted.contains(key)) {
            rows.entry(key).or_default().push(row);
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(());
        }
    }
}
