//! `matrix run` from the lock to the verdict: provides what the cells need, runs the plan on
//! workers of this machine or on other machines, and compares.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use retake_engine::interpret;
use retake_runner::disturbance::MachineWatch;
use retake_runner::loop_driver::remote::{self, RemoteExecutor};
use retake_runner::loop_driver::{Driven, drive_steps};
use retake_runner::prepare::PreparedRun;
use retake_runner::worker::Worker;
use retake_runner::{machine, metrics, signals};
use retake_types::loop_record::matrix::{
    CellKey, MatrixEntry, MatrixLoopPlan, MatrixPurpose, MeasuredCommits, PlannedShard,
};
use retake_types::{Kind, LoopId, SeenDisturbance, ShellMode, StopReason};

use super::cell_runner::{CellRunner, CellWorker, ProgressEvents, remove_scratch_parent};
use super::commit_history::CommitChain;
use super::error::{MatrixError, MatrixRunError};
use super::event::{MatrixEvent, MatrixObserver};
use super::project::MatrixProject;
use super::record;
use super::recorded_results::RecordedResults;
use super::remote_cells;
use super::resources::{Provisioner, RemoteSetup, Resources, Unavailable};
use super::samples::{CellRow, Samples};
use crate::config::Order;
use crate::export::MetricResults;
use crate::plan::{
    Cell, CellSchedule, ComparedPairs, Matrix, MatrixPlan, SamplingPlan, ScheduleMode,
    ScheduleOptions,
};
use crate::stats::{Comparison, Gate, GateRule};

/// How many iterations of each cell to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Iterations {
    /// A fixed number.
    Fixed(ScheduleMode),
    /// Until every comparison is decided at this margin. Nothing starts after the budget is spent.
    UntilSure { margin: f64, budget: Option<Duration> },
}

/// Options of a matrix run.
#[derive(Clone, Debug)]
pub struct MatrixRunOptions {
    pub iterations: Iterations,
    /// The metric to compare.
    pub metric: String,
    /// Conditions on comparisons that make the run incomplete.
    pub gates: Vec<Gate>,
    /// Whether the comparisons are shown or judged. If not, a large matrix with nothing left to run
    /// is not compared each time.
    pub compared: bool,
    /// Whether baselines run again beside new runs, unless they did before.
    pub baseline_again: bool,
    /// The seed of the random order; `None` draws one.
    pub seed: Option<u64>,
    /// The number of workers, for the record.
    pub workers: usize,
    /// Maximum submitted cells on other machines while their results decide the number of
    /// iterations.
    pub undecided_limit: usize,
    /// The shard that the matrix is, for the record.
    pub shard: Option<PlannedShard>,
}

/// A matrix run that is ready to start.
pub struct MatrixRun<'a> {
    pub project: &'a MatrixProject,
    pub options: &'a MatrixRunOptions,
    pub observer: &'a dyn MatrixObserver,
}

/// A completed matrix run.
#[derive(Debug)]
pub struct MatrixRunResult {
    pub loop_id: LoopId,
    pub seed: u64,
    pub order: Order,
    /// The runnable cells.
    pub matrix: Matrix,
    /// The key of each cell.
    pub keys: Vec<CellKey>,
    /// Planned iterations, if known in advance.
    pub total: Option<usize>,
    /// Runs of this loop.
    pub ok: usize,
    pub failed: usize,
    /// The state of all cells, from all recorded runs.
    pub state: CellCounts,
    /// Cells skipped because a warmup or hook failed.
    pub skipped: Vec<usize>,
    /// Whether there are hooks around iterations.
    pub hooks: bool,
    pub unavailable: Vec<Unavailable>,
    pub comparisons: Vec<Comparison>,
    /// Every cell with its statistics.
    pub rows: Vec<CellRow>,
    /// Whether the cells were measured in different sessions, none of which measured all.
    pub mixed_sessions: bool,
    /// All measurements of the cells, with the compared metric and its unit.
    pub results: MetricResults,
    /// What disturbed the measurement, as far as the machine reports it.
    pub disturbances: Vec<SeenDisturbance>,
    /// Set if the budget is spent: decided comparisons, and their total.
    pub spent: Option<(usize, usize)>,
    /// Comparisons given up because they would take too many iterations.
    pub given_up: usize,
    /// Whether some compared cell was not tried.
    pub untried: bool,
    /// The comparisons that trip a gate, by index.
    pub tripped: Vec<usize>,
}

impl MatrixRunResult {
    /// Whether no result has the compared metric.
    pub fn lacks_metric(&self) -> bool {
        self.results.lacks_metric()
    }

    /// Whether anything ran.
    pub fn ran(&self) -> bool {
        self.ok + self.failed > 0
    }

    /// Whether every iteration of the cells failed. Judged by all recorded runs: those of this loop
    /// alone are only what was pending, unless it appended or replaced.
    pub fn all_failed(&self) -> bool {
        let none = self.state.ok == 0 && self.state.failed > 0;
        none || self.state.all_asked && self.ok == 0 && self.failed > 0
    }

    /// The comparisons that trip a gate.
    pub fn tripped_comparisons(&self) -> impl Iterator<Item = &Comparison> {
        self.tripped.iter().filter_map(|place| self.comparisons.get(*place))
    }

    /// Whether failed iterations fail the build.
    pub fn trips_failed(&self) -> bool {
        self.state.gated && self.state.failed > 0
    }

    /// Whether everything requested ran, and no gate trips.
    fn is_complete(&self) -> bool {
        !self.all_failed()
            && self.unavailable.is_empty()
            && self.skipped.is_empty()
            && !self.untried
            && !self.lacks_metric()
            && self.tripped.is_empty()
            && !self.trips_failed()
    }
}

/// Iterations of all cells; cells with the same key count once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellCounts {
    /// Iterations with a successful run.
    pub ok: usize,
    /// Iterations of which every run failed.
    pub failed: usize,
    /// Whether a gate forbids failures.
    gated: bool,
    /// Whether the loop runs what is asked for, not what is pending.
    all_asked: bool,
}

/// A shorter budget does not limit single runs.
const SHORT: Duration = Duration::from_secs(2);

/// With fewer commits a history adds nothing to their comparison.
const FEWEST_COMMITS: usize = 3;

/// The margin of gates if the run has none.
const MARGIN: f64 = 0.02;

/// The results after everything has run.
struct Numbers {
    comparisons: Vec<Comparison>,
    tripped: Vec<usize>,
    rows: Vec<CellRow>,
    results: MetricResults,
    mixed_sessions: bool,
    state: CellCounts,
}

/// The state at the start of the loop.
struct Begun {
    loop_id: LoopId,
    seed: u64,
    order: Order,
    /// Cells added only for comparison.
    added: HashSet<Cell>,
    plan: MatrixLoopPlan,
    /// Whether an earlier loop of this configuration was interrupted.
    interrupted: bool,
}

impl MatrixRun<'_> {
    /// Checks in advance whether this can run at all.
    pub fn check(&self, matrix: &Matrix) -> Result<(), MatrixError> {
        let compares = matches!(self.options.iterations, Iterations::UntilSure { .. });
        let mut matrix = matrix.clone();
        let added = self.add_refs(&mut matrix)?;
        if compares && ComparedPairs::of(&matrix, &self.options.gates, &added).pairs.is_empty() {
            return Err(MatrixError::NothingToCompare);
        }
        let config = &self.project.config;
        for cell in matrix.cells.iter().filter(|_| config.shell == ShellMode::Never) {
            let command = matrix.command_text(cell, config);
            // Running it shows whether its program exists.
            if let Err(why) = interpret(&command, ShellMode::Never, |_| true) {
                return Err(MatrixError::ShellNeeded { command, why });
            }
        }
        Ok(())
    }

    /// Adds the refs that gates compare with, so that they are measured in turn with the rest.
    fn add_refs(&self, matrix: &mut Matrix) -> Result<HashSet<Cell>, MatrixError> {
        let mut added = HashSet::new();
        for reference in self.options.gates.iter().filter_map(|gate| gate.against.as_ref()) {
            added.extend(matrix.add_ref(reference).ok_or(MatrixError::NoCode)?);
        }
        Ok(added)
    }

    /// Runs the cells on these workers, or on other machines through the executor.
    pub fn run<X>(
        &self,
        workers: &mut [Worker],
        mut matrix: Matrix,
        mut executor: Option<&mut X>,
    ) -> Result<MatrixRunResult, MatrixRunError<X::Error>>
    where
        X: RemoteExecutor,
    {
        let Self { project, observer, .. } = self;
        let added = self.add_refs(&mut matrix)?;
        let _lock = project.lock("retake matrix run")?;
        // Other machines share the tree of a ref.
        let worker_count = if executor.is_some() { 1 } else { workers.len() };
        let worker = &mut workers[0];
        X::collect_earlier(worker, Kind::Matrix, &mut |earlier| {
            observer.event(MatrixEvent::EarlierRuns(earlier));
        })
        .map_err(MatrixRunError::Executor)?;
        let lock = project.lock_path();
        let mut interrupted = record::mark_dead_loops(worker.store()?, Some(&lock))?;
        // Opening the record may have marked some already.
        interrupted.extend(record::configurations(worker.recovered_loops()));
        let loops = record::read_loops(worker.store()?, &project.file)?;
        let interrupted = interrupted.iter().any(|config| Path::new(config) == project.file);
        let pins = record::pins(&loops);
        let known = record::commits(&loops);
        let mut resources = Resources::resolve(worker, project, &mut matrix, pins)?;
        for (sha, refs) in resources.same_commits() {
            observer.event(MatrixEvent::SameCommit { sha: &sha, refs: &refs });
        }
        let observer = *observer;
        let provisioner =
            Provisioner { project, observer, workers: worker_count, remote_setup: None };
        {
            let _shared = lock_shared(executor.as_deref())?;
            provisioner.all_browsers(&mut resources, worker, &mut matrix)?;
        }
        let order = match self.options.iterations {
            Iterations::UntilSure { .. } => Order::Interleaved,
            Iterations::Fixed(_) => project.config.order,
        };
        let seed = self.options.seed.unwrap_or_else(random_seed);
        let plan = self.loop_plan(&matrix, &resources, seed, order);
        let mut redactor = self.project.redactor();
        let mut recording = record::begin(worker.store()?, &plan, &redactor)?;
        let loop_id = recording.id();
        let begun = Begun { loop_id, seed, order, added, plan, interrupted };
        let measured = self.measured_commits(&mut workers[0], &matrix, &resources, known);
        if let Some(measured) = measured {
            let entry = MatrixEntry::Commits { measured };
            recording.append(workers[0].store()?, &[entry], &mut redactor)?;
        }
        let worker = &mut workers[0];
        let provided = lock_shared(executor.as_deref()).and_then(|_shared| {
            let Some(executor) = executor.as_deref_mut().filter(|there| there.runs_setup()) else {
                return Ok(provisioner.all_code(&mut resources, worker, &mut matrix, loop_id)?);
            };
            let mut failure = None;
            let mut run_there = |worker: &mut Worker, prepared: PreparedRun| {
                remote::run_alone(worker, executor, prepared).unwrap_or_else(|error| {
                    failure = Some(error);
                    None
                })
            };
            let remote_setup = Some(RefCell::new(&mut run_there as RemoteSetup<'_>));
            let there = Provisioner { project, observer, workers: worker_count, remote_setup };
            let provided = there.all_code(&mut resources, worker, &mut matrix, loop_id);
            match failure {
                Some(error) => Err(MatrixRunError::Executor(error)),
                None => Ok(provided?),
            }
        });
        // Disturbances here do not affect other machines, which watch themselves.
        let watch = executor.is_none().then(|| MachineWatch::start(&keepers(workers)));
        let looked = watch.as_ref();
        let mut ended = provided
            .and_then(|()| self.run_cells(workers, (matrix, resources), &begun, executor, looked));
        if let Some(result) = ended.as_mut().ok().filter(|result| result.ran()) {
            if let Some(watch) = &watch {
                let seen = watch.so_far(&keepers(workers), self.options.workers);
                result.disturbances = seen.into_iter().map(Into::into).collect();
            }
            let disturbances = result.disturbances.clone();
            if !disturbances.is_empty() {
                let entry = MatrixEntry::Disturbed { disturbances };
                recording.append(workers[0].store()?, &[entry], &mut redactor)?;
            }
        }
        let reason = match (&ended, signals::received()) {
            (_, Some(_)) => StopReason::Interrupted,
            (Ok(result), None) if result.is_complete() => StopReason::Completed,
            (Ok(_), None) => StopReason::Incomplete,
            (Err(_), None) => StopReason::Failed,
        };
        recording.finish(workers[0].store()?, &reason)?;
        ended
    }

    /// The commits on the way to HEAD with measurements of this or an earlier run, if enough for a
    /// history. A git error yields none, because no result depends on it.
    fn measured_commits(
        &self,
        worker: &mut Worker,
        matrix: &Matrix,
        resources: &Resources,
        mut known: HashSet<String>,
    ) -> Option<MeasuredCommits> {
        known.extend(resources.commits.values().cloned());
        if known.len() < FEWEST_COMMITS {
            return None;
        }
        let chain = CommitChain::read(worker, self.project, "HEAD").ok()?;
        let lines = chain.lines(matrix, resources, |sha| known.contains(sha));
        let measured = lines.into_measured();
        (measured.commits.len() >= FEWEST_COMMITS).then_some(measured)
    }

    /// Whether it completes what an interrupted loop of its configuration left.
    fn takes_up_the_rest(&self) -> bool {
        match self.options.iterations {
            Iterations::Fixed(ScheduleMode::Append(_) | ScheduleMode::Replace) => false,
            Iterations::Fixed(ScheduleMode::Pending) | Iterations::UntilSure { .. } => {
                self.project.config.fresh.is_none()
            }
        }
    }

    /// Warns about a requested metric that this machine cannot measure.
    fn check_counters(&self, worker: &mut Worker) {
        let configured = self.project.config.metrics.iter().map(|metric| metric.name.as_str());
        let mut asked = configured.chain([self.options.metric.as_str()]);
        if let Some(metric) = asked.find(|name| metrics::COUNTED.contains(name))
            && let Err(error) = worker.counters()
        {
            let error = &error;
            self.observer.event(MatrixEvent::CountersUnavailable { metric, error });
        }
    }

    fn loop_plan(
        &self,
        matrix: &Matrix,
        resources: &Resources,
        seed: u64,
        order: Order,
    ) -> MatrixLoopPlan {
        let config = &self.project.config;
        MatrixLoopPlan {
            purpose: match self.options.iterations {
                Iterations::UntilSure { margin, .. } => MatrixPurpose::RunUntilSure { margin },
                Iterations::Fixed(_) => MatrixPurpose::Run,
            },
            config: self.project.file.to_string_lossy().into_owned(),
            lock: self.project.lock_path(),
            seed,
            order: order.as_str().to_owned(),
            command: config.command.text(),
            setup: config.setup.clone(),
            iterations: config.iterations,
            replaces: self.options.iterations == Iterations::Fixed(ScheduleMode::Replace),
            workers: self.options.workers,
            axes: record::axes_of(&matrix.axes),
            pins: resources.pins.clone(),
            commits: resources.commits.clone(),
            checksums: resources.checksums.clone(),
            unavailable: resources.unavailable.iter().map(ToString::to_string).collect(),
            environment: machine::environment(),
            shard: self.options.shard.clone(),
        }
    }

    fn run_cells<X>(
        &self,
        workers: &mut [Worker],
        (matrix, resources): (Matrix, Resources),
        begun: &Begun,
        executor: Option<&mut X>,
        watch: Option<&MachineWatch>,
    ) -> Result<MatrixRunResult, MatrixRunError<X::Error>>
    where
        X: RemoteExecutor,
    {
        self.check_counters(&mut workers[0]);
        let keys = resources.identity.keys(&matrix);
        let mut recorded = RecordedResults::read(workers[0].store()?, &keys)?;
        let plan = self.plan(&matrix, &keys, &recorded, begun);
        // Appending and replacing do not complete an earlier run, and there may be nothing left.
        if begun.interrupted && self.takes_up_the_rest() && !plan.is_done() {
            self.observer.event(MatrixEvent::Continued);
        }
        self.observer.event(MatrixEvent::Planned { sizes: &plan.sizes() });
        if let Some(watch) = watch.filter(|_| !plan.is_done()) {
            let disturbances = watch.at_start(self.options.workers);
            self.observer.event(MatrixEvent::Disturbed(&disturbances));
        }
        let runner = CellRunner {
            project: self.project,
            resources: &resources,
            matrix: &matrix,
            keys: &keys,
            loop_id: begun.loop_id,
            observer: self.observer,
            adaptive: plan.sampling().is_some(),
            sizes: plan.sizes(),
            blocked: begun.order == Order::Blocked,
            longest: match self.options.iterations {
                Iterations::UntilSure { budget, .. } => budget.map(|time| time.max(SHORT)),
                Iterations::Fixed(_) => None,
            },
            ran: Mutex::default(),
            new: Mutex::default(),
        };
        let driven = match executor {
            Some(executor) => {
                let limit = self.options.undecided_limit;
                remote_cells::drive(plan, &mut workers[0], executor, &runner, limit)
            }
            None => {
                let Driven { plan, failure, cancelled } = drive_here(plan, workers, &runner)?;
                Driven { plan, failure: failure.map(MatrixRunError::Matrix), cancelled }
            }
        };
        self.observer.event(MatrixEvent::Idle);
        let Driven { plan, failure, cancelled } = driven;
        if let Some(failure) = failure {
            return Err(failure);
        }
        if cancelled {
            return Err(MatrixError::Interrupted.into());
        }
        let compared = ComparedPairs::of(&matrix, &self.options.gates, &begun.added);
        let new = runner.new.into_inner().unwrap_or_else(PoisonError::into_inner);
        recorded.add((begun.loop_id, &begun.plan), new);
        let numbers = self.numbers((&matrix, &keys), &recorded, &resources, &compared);
        Ok(self.result(begun, (matrix, keys), resources, &plan, numbers))
    }

    fn plan(
        &self,
        matrix: &Matrix,
        keys: &[CellKey],
        recorded: &RecordedResults,
        begun: &Begun,
    ) -> MatrixPlan {
        let config = &self.project.config;
        let Begun { seed, order, .. } = *begun;
        let compared = ComparedPairs::of(matrix, &self.options.gates, &begun.added);
        let pairs = distinct(&compared.pairs, keys);
        let (margin, budget) = match self.options.iterations {
            Iterations::Fixed(mode) => {
                let (iterations, warmup) = (config.iterations, config.warmup);
                let options = ScheduleOptions { iterations, warmup, mode, order, seed };
                let again = self.options.baseline_again && order == Order::Interleaved;
                let together = if again { pairs } else { Vec::new() };
                let schedule = CellSchedule::new(keys, &recorded.past(), &together, &options);
                return MatrixPlan::fixed(schedule);
            }
            Iterations::UntilSure { margin, budget } => (margin, budget),
        };
        let samples = Samples::of(matrix, keys, recorded, config, &self.options.metric);
        let criteria = samples.criteria(margin, pairs.len());
        let sampler = samples.sampler(&pairs, criteria, seed);
        let mut cells: Vec<usize> = pairs.iter().flat_map(|&(a, b)| [a, b]).collect();
        cells.sort_unstable();
        cells.dedup();
        let warm = if sampler.finished() { 0 } else { config.warmup };
        let warmups = (0..warm).flat_map(|_| cells.iter().copied()).collect();
        let deadline = budget.map(|budget| Instant::now() + budget);
        let metric = self.options.metric.clone();
        MatrixPlan::until_sure(SamplingPlan::new(sampler, metric, deadline, warmups))
    }

    /// The recorded results of these cells, as `compare` would show them.
    fn numbers(
        &self,
        (matrix, keys): (&Matrix, &[CellKey]),
        recorded: &RecordedResults,
        resources: &Resources,
        compared: &ComparedPairs,
    ) -> Numbers {
        let margin = match self.options.iterations {
            Iterations::UntilSure { margin, .. } => margin,
            Iterations::Fixed(_) => MARGIN,
        };
        let samples =
            Samples::of(matrix, keys, recorded, &self.project.config, &self.options.metric);
        let comparisons = match self.options.compared {
            true => samples.compare(&compared.pairs, margin, resources),
            false => Vec::new(),
        };
        let rows = samples.rows(&compared.pairs, &comparisons);
        let tripped = compared.tripped(&self.options.gates, &comparisons);
        let results = samples.results(&rows);
        let mixed_sessions = samples.is_mixed();
        let gated = self.options.gates.iter().any(|gate| gate.rule == GateRule::Failed);
        let all_asked = matches!(
            self.options.iterations,
            Iterations::Fixed(ScheduleMode::Append(_) | ScheduleMode::Replace)
        );
        let mut state = CellCounts { gated, all_asked, ..CellCounts::default() };
        for key in keys.iter().collect::<HashSet<_>>() {
            let (ok, failed) = recorded.counts(*key);
            (state.ok, state.failed) = (state.ok + ok, state.failed + failed);
        }
        Numbers { comparisons, tripped, rows, results, mixed_sessions, state }
    }

    fn result(
        &self,
        begun: &Begun,
        (matrix, keys): (Matrix, Vec<CellKey>),
        resources: Resources,
        plan: &MatrixPlan,
        Numbers { comparisons, tripped, rows, results, mixed_sessions, state }: Numbers,
    ) -> MatrixRunResult {
        let progress = plan.progress();
        let untried = |row: &CellRow| row.summary.is_none() && row.failed == 0;
        let sampling = plan.sampling();
        let spent = sampling.filter(|sampling| sampling.is_over(Instant::now()));
        MatrixRunResult {
            loop_id: begun.loop_id,
            seed: begun.seed,
            order: begun.order,
            total: plan.total(),
            ok: progress.ok,
            failed: progress.failed,
            state,
            skipped: plan.skipped(),
            hooks: self.project.config.hooks().next().is_some(),
            unavailable: resources.unavailable,
            untried: sampling.is_some() && rows.iter().any(untried),
            spent: spent.map(|sampling| sampling.sampler().progress()),
            given_up: sampling.map_or(0, |sampling| sampling.sampler().given_up()),
            comparisons,
            tripped,
            rows,
            results,
            mixed_sessions,
            disturbances: plan.disturbances(),
            matrix,
            keys,
        }
    }
}

/// The processes whose load does not count as a disturbance.
fn keepers(workers: &[Worker]) -> Vec<i32> {
    workers.iter().flat_map(Worker::keeper_pids).collect()
}

/// Runs the plan on all workers of this machine at once.
fn drive_here(
    plan: MatrixPlan,
    workers: &mut [Worker],
    runner: &CellRunner<'_>,
) -> Result<Driven<MatrixPlan, MatrixError>, MatrixError> {
    let workers = workers.iter_mut().enumerate();
    let mut workers: Vec<CellWorker<'_>> = workers
        .map(|(number, worker)| CellWorker::new(worker, number, runner.project))
        .collect::<Result<_, _>>()?;
    workers.iter_mut().for_each(|worker| worker.holds = true);
    let progress = ProgressEvents { observer: runner.observer, started: Instant::now() };
    let driven = drive_steps(plan, &mut workers, &progress, runner);
    workers.iter_mut().for_each(|worker| worker.holds = false);
    if !driven.cancelled && driven.failure.is_none() {
        runner.clean_up(&mut workers[0])?;
    }
    drop(workers);
    remove_scratch_parent(runner.project);
    Ok(driven)
}

/// Locks the shared directory against changes by other processes.
fn lock_shared<X: RemoteExecutor>(
    executor: Option<&X>,
) -> Result<Option<File>, MatrixRunError<X::Error>> {
    executor.map_or(Ok(None), |executor| executor.lock_shared().map_err(MatrixRunError::Executor))
}

/// Pairs of truly different cells: cells with the same key run once, as the first of them.
fn distinct(pairs: &[(usize, usize)], keys: &[CellKey]) -> Vec<(usize, usize)> {
    let mut firsts: HashMap<CellKey, usize> = HashMap::with_capacity(keys.len());
    for (cell, key) in keys.iter().enumerate() {
        firsts.entry(*key).or_insert(cell);
    }
    let first = |cell: usize| firsts[&keys[cell]];
    let mut known: HashSet<(usize, usize)> = HashSet::with_capacity(pairs.len());
    let pairs = pairs.iter().map(|&(a, b)| (first(a), first(b)));
    pairs.filter(|pair| pair.0 != pair.1 && known.insert(*pair)).collect()
}

/// Small enough for every JSON parser.
fn random_seed() -> u64 {
    let bytes = *LoopId::new().as_bytes();
    let low = u128::from_be_bytes(bytes);
    u64::try_from(low & ((1 << 53) - 1)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_one_key_are_compared_as_the_first_of_them() {
        let key = |number: u32| {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&number.to_le_bytes());
            CellKey::from_bytes(bytes)
        };
        let keys = [0, 1, 1, 2].map(key);
        let pairs = [(0, 1), (0, 2), (1, 2), (3, 2), (0, 3), (0, 1)];
        assert_eq!(distinct(&pairs, &keys), [(0, 1), (3, 1), (0, 3)]);
        // A linear search for each cell would not finish.
        let keys: Vec<CellKey> = (0..100_000).map(key).collect();
        let pairs: Vec<(usize, usize)> = (1..keys.len()).map(|cell| (0, cell)).collect();
        assert_eq!(distinct(&pairs, &keys), pairs);
    }
}
