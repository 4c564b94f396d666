//! The recorded results of the cells of a matrix.
//!
//! Warmups, setups and interrupted runs are not results.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use retake_runner::metrics::{BUILT_IN, built_in};
use retake_store::{RecordReader, RunFilter, RunStatus, Store};
use retake_types::loop_record::matrix::{CellKey, CellLabels, CellRole, MatrixLoopPlan};
use retake_types::{
    Kind, LoopId, MeasuredIntent, MeasuredOutcome, MeasuredRun, Measurements, Metrics, OutcomeKind,
    Run, RunId,
};

use crate::config::{CHROME, CODE};
use crate::export::RunResults;
use crate::plan::PastRun;
use crate::report::RunRow;

/// With more cells than this, all runs are searched at once instead of cell by cell.
const ONE_BY_ONE: usize = 100;
const PAGE: usize = 2000;

/// Metrics that are always shown, and that every run has.
const ALWAYS: [&str; 3] = ["wall", "cpu", "rss"];

/// One result of a cell.
#[derive(Clone, Debug)]
pub struct ResultRow {
    pub id: RunId,
    /// The loop that ran it.
    pub session: LoopId,
    /// The machine, if not the loop's.
    pub node: Option<String>,
    /// The recorded properties of that machine.
    pub environment: BTreeMap<String, String>,
    pub iteration: u64,
    /// The round of its loop: runs of one round can be compared.
    pub block: u64,
    pub ok: bool,
    pub timed_out: bool,
    pub exit_code: i32,
    pub started: Timestamp,
    pub duration_ms: u64,
    pub chrome: Option<String>,
    pub reference: Option<String>,
    pub sha: Option<String>,
    /// Values of the axes other than browser and code.
    pub axes: BTreeMap<String, String>,
    pub metrics: Metrics,
    /// Metrics that it should have reported but did not.
    pub missing: Vec<String>,
    pub adaptive: bool,
    pub planned: Option<u64>,
    pub blocked: bool,
}

impl ResultRow {
    pub fn of(run: &Run) -> Option<(CellKey, Self)> {
        let labels = CellLabels::from_labels(&run.intent.request.labels)?;
        Self::with_labels(run.into(), labels)
    }

    /// The same from the measured part of a run.
    fn of_measured(run: MeasuredRun) -> Option<(CellKey, Self)> {
        let labels = CellLabels::from_labels(&run.intent.request.labels)?;
        Self::with_labels(run, labels)
    }

    fn with_labels(run: MeasuredRun, labels: CellLabels) -> Option<(CellKey, Self)> {
        let key = labels.iteration_of()?;
        let MeasuredRun { intent: MeasuredIntent { request, start_time }, outcome } = run;
        let outcome = outcome?;
        // On another machine, the machine or the scheduler refuses a run; the command does not
        // fail.
        let refused = outcome.kind == OutcomeKind::NotStarted && outcome.ran_on.is_some();
        if refused || matches!(outcome.kind, OutcomeKind::Cancelled | OutcomeKind::Interrupted) {
            return None;
        }
        let ok = is_result(&outcome, &labels);
        let measured = outcome.measurements.unwrap_or_else(|| Measurements {
            metrics: built_in(Duration::from_millis(outcome.duration_ms), &outcome.usage),
            ..Measurements::default()
        });
        let (node, environment) =
            outcome.ran_on.map_or_else(Default::default, |there| (there.node, there.environment));
        let row = Self {
            id: request.id,
            session: request.position.id,
            node,
            environment,
            iteration: request.position.iteration,
            block: labels.block.unwrap_or(request.position.iteration),
            ok,
            timed_out: outcome.kind == OutcomeKind::TimedOut,
            exit_code: outcome.exit_code.unwrap_or(1),
            started: start_time,
            duration_ms: outcome.duration_ms,
            // A program given by path is identified by the path, not by its reported version.
            chrome: labels
                .axes
                .get(CHROME)
                .filter(|value| value.contains('/'))
                .cloned()
                .or(labels.chrome),
            reference: labels.axes.get(CODE).cloned(),
            sha: labels.sha,
            axes: labels
                .axes
                .into_iter()
                .filter(|(name, _)| name != CHROME && name != CODE)
                .collect(),
            metrics: measured.metrics,
            missing: measured.missing,
            adaptive: labels.adaptive,
            planned: measured.planned,
            blocked: labels.blocked,
        };
        Some((key, row))
    }

    /// Its measurements, for other programs.
    pub fn to_results(&self) -> RunResults {
        RunResults { metrics: self.metrics.clone(), exit_code: self.exit_code }
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
            timed_out: self.timed_out,
            ok: self.ok,
            missing: self.missing.clone(),
            metrics: self.metrics.clone(),
        }
    }
}

/// Whether a run of the command counts as a result.
pub(super) fn is_result(outcome: &MeasuredOutcome, labels: &CellLabels) -> bool {
    let code = outcome.exit_code.filter(|_| outcome.kind == OutcomeKind::Exited);
    outcome.measurements.as_ref().is_none_or(|measured| measured.missing.is_empty())
        && (outcome.success() || code.is_some_and(|code| labels.ignore_failure.accepts(code)))
}

/// The results of cells, oldest first.
#[derive(Clone, Debug, Default)]
pub struct RecordedResults {
    rows: HashMap<CellKey, Vec<ResultRow>>,
    /// The loops that ran them, oldest first, with their plans if known.
    sessions: Vec<(LoopId, Option<MatrixLoopPlan>)>,
    /// Their positions in that list.
    places: HashMap<LoopId, usize>,
}

/// What a loop has added to the record, and erased from it.
#[derive(Debug, Default)]
pub(super) struct NewResults {
    pub(super) rows: Vec<(CellKey, ResultRow)>,
    pub(super) erased: HashSet<RunId>,
}

/// A round of a loop: the index of the loop among all with results, and the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block {
    pub session: usize,
    pub round: u64,
}

impl RecordedResults {
    /// The measurements of matrix runs. Those of bisections are excluded: how often a bisection
    /// measures a cell depends on its results, which would bias the verdict about the cell.
    pub fn read(store: &dyn RecordReader, keys: &[CellKey]) -> retake_store::Result<Self> {
        let mut all = Self::read_all(store, keys)?;
        let searches = |plan: &Option<MatrixLoopPlan>| {
            plan.as_ref().is_some_and(|plan| !plan.purpose.is_run())
        };
        let searched = all.sessions.extract_if(.., |(_, plan)| searches(plan));
        let searched: HashSet<LoopId> = searched.map(|(id, _)| id).collect();
        if !searched.is_empty() {
            for rows in all.rows.values_mut() {
                rows.retain(|row| !searched.contains(&row.session));
            }
            all.number_sessions();
        }
        Ok(all)
    }

    /// The measurements of matrix runs and bisections.
    pub fn read_all(store: &dyn RecordReader, keys: &[CellKey]) -> retake_store::Result<Self> {
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
        let mut started: HashMap<LoopId, Timestamp> = HashMap::new();
        for row in rows.values().flatten() {
            let first = started.entry(row.session).or_insert(row.started);
            *first = row.started.min(*first);
        }
        let mut sessions: Vec<(Timestamp, LoopId)> =
            started.into_iter().map(|(id, start)| (start, id)).collect();
        sessions.sort_unstable();
        // Imported runs belong to no loop of this record.
        let plan = |id| serde_json::from_str(&store.get_loop(id).ok()?.plan).ok();
        let sessions = sessions.into_iter().map(|(_, id)| (id, plan(id))).collect();
        let mut all = Self { rows, sessions, places: HashMap::new() };
        all.number_sessions();
        Ok(all)
    }

    fn number_sessions(&mut self) {
        let ids = self.sessions.iter().enumerate();
        self.places = ids.map(|(place, (id, _))| (*id, place)).collect();
    }

    /// Adds what a loop has recorded since; gives the same as reading everything again.
    pub(super) fn add(&mut self, session: (LoopId, &MatrixLoopPlan), new: NewResults) {
        let NewResults { rows, erased } = new;
        for known in self.rows.values_mut() {
            known.retain(|row| !erased.contains(&row.id));
        }
        if !rows.is_empty() {
            self.sessions.push((session.0, Some(session.1.clone())));
        }
        let mut rows = rows;
        rows.sort_by_key(|(_, row)| row.started);
        for (key, row) in rows {
            self.rows.entry(key).or_default().push(row);
        }
        // A loop without remaining results is dropped.
        let used: HashSet<LoopId> = self.rows.values().flatten().map(|row| row.session).collect();
        self.sessions.retain(|(id, _)| used.contains(id));
        self.number_sessions();
    }

    /// The loop of a session, and the start of its first run.
    pub fn session_start(&self, index: usize) -> Option<(LoopId, Timestamp)> {
        let (id, _) = self.sessions.get(index)?;
        let rows = self.rows.values().flatten().filter(|row| row.session == *id);
        Some((*id, rows.map(|row| row.started).min()?))
    }

    /// The plan of a session.
    pub fn session(&self, index: usize) -> Option<&MatrixLoopPlan> {
        self.sessions.get(index)?.1.as_ref()
    }

    /// The recorded properties of the machines that measured these cells in these sessions: for
    /// other machines those that they reported, else the session's.
    pub fn environments(
        &self,
        keys: &[CellKey],
        sessions: &BTreeSet<usize>,
    ) -> Vec<&BTreeMap<String, String>> {
        let mut found = Vec::new();
        for (id, plan) in sessions.iter().filter_map(|&index| self.sessions.get(index)) {
            let rows = keys.iter().flat_map(|key| self.of(*key)).filter(|row| row.session == *id);
            let mut here = false;
            for row in rows {
                match row.node {
                    Some(_) => found.push(&row.environment),
                    None => here = true,
                }
            }
            found.extend(plan.as_ref().filter(|_| here).map(|plan| &plan.environment));
        }
        found
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
            session: row.session,
            ok: row.ok,
        };
        self.rows.iter().flat_map(|(key, rows)| rows.iter().map(move |r| row(key, r))).collect()
    }

    /// The successful runs by block, and the iterations of which all runs failed. A replaced run
    /// that could not be erased is not counted next to its replacement.
    pub fn results(&self, key: CellKey) -> (BTreeMap<Block, &ResultRow>, BTreeSet<u64>) {
        let mut results: BTreeMap<Block, &ResultRow> = BTreeMap::new();
        let mut tried: BTreeSet<u64> = BTreeSet::new();
        for row in self.of(key) {
            tried.insert(row.iteration);
            let session = self.places.get(&row.session).copied();
            let Some(session) = session.filter(|_| row.ok) else { continue };
            if self.session(session).is_some_and(|plan| plan.replaces) {
                results.retain(|block, old| {
                    block.session == session || old.iteration != row.iteration
                });
            }
            results.insert(Block { session, round: row.block }, row);
        }
        let done: BTreeSet<u64> = results.values().map(|row| row.iteration).collect();
        (results, tried.difference(&done).copied().collect())
    }

    /// How many iterations have a successful run, and how many only failed ones.
    pub fn counts(&self, key: CellKey) -> (usize, usize) {
        let (results, failed) = self.results(key);
        let ok: BTreeSet<u64> = results.values().map(|row| row.iteration).collect();
        (ok.len(), failed.len())
    }

    /// The number after the last iteration.
    pub fn next_iteration(&self, key: CellKey) -> u64 {
        self.of(key).iter().map(|row| row.iteration + 1).max().unwrap_or(0)
    }

    /// The metrics shown by default: the three most important ones, and those that commands report.
    pub fn usual_metrics(&self) -> Vec<String> {
        let further = &BUILT_IN[ALWAYS.len()..];
        let usual = |name: &String| !further.contains(&name.as_str());
        self.metrics().into_iter().filter(usual).collect()
    }

    /// Every metric of any run: retake's own first, then the others by name.
    pub fn metrics(&self) -> Vec<String> {
        let names = self.rows.values().flatten().flat_map(|row| row.metrics.keys());
        let more: HashSet<&str> = names.map(|name| name.as_ref()).collect();
        let order = |name: &str| {
            let place = BUILT_IN.iter().position(|known| *known == name);
            place.unwrap_or(BUILT_IN.len())
        };
        let mut names: Vec<String> = more.into_iter().map(str::to_owned).collect();
        names.sort_unstable_by_key(|name| (order(name), name.clone()));
        if names.is_empty() { ALWAYS.map(str::to_owned).to_vec() } else { names }
    }
}

/// A failure outside of iterations: of a setup, a warmup, or a hook around iterations.
#[derive(Clone, Debug)]
pub struct PhaseFailure {
    pub role: CellRole,
    pub id: RunId,
    pub exit_code: i32,
}

impl PhaseFailure {
    /// Those of a loop, oldest first.
    pub fn of_loop(store: &Store, loop_id: LoopId) -> retake_store::Result<Vec<Self>> {
        let filter = RunFilter {
            loop_id: Some(loop_id),
            status: Some(RunStatus::Failed),
            ..RunFilter::default()
        };
        let (mut failures, mut cursor) = (Vec::new(), None);
        loop {
            let page = store.list(&filter, cursor, PAGE)?;
            failures.extend(page.runs.iter().filter_map(Self::of));
            cursor = page.next;
            if cursor.is_none() {
                failures.reverse();
                return Ok(failures);
            }
        }
    }

    fn of(run: &Run) -> Option<Self> {
        let labels = CellLabels::from_labels(&run.intent.request.labels)?;
        let outcome = run.outcome.as_ref()?;
        let ended = !matches!(outcome.kind, OutcomeKind::Cancelled | OutcomeKind::Interrupted);
        let exit_code = outcome.exit_code.unwrap_or(1);
        let failed = ended && !run.success() && labels.iteration_of().is_none();
        failed.then_some(Self { role: labels.role, id: run.intent.id(), exit_code })
    }
}

/// Adds the results of wanted cells to `rows`, oldest first.
fn collect(
    store: &dyn RecordReader,
    filter: &RunFilter,
    wanted: &HashSet<CellKey>,
    rows: &mut HashMap<CellKey, Vec<ResultRow>>,
) -> retake_store::Result<()> {
    store.each_measured(filter, &mut |run| {
        let row = ResultRow::of_measured(run).filter(|(key, _)| wanted.contains(key));
        if let Some((key, row)) = row {
            rows.entry(key).or_default().push(row);
        }
    })
}
