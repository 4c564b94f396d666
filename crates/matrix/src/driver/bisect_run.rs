//! `matrix bisect` from the lock to the answer: finds the points, asks the plan for the next one,
//! provides what it needs, and runs one iteration. Recorded results count from the start.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Mutex;

use retake_engine::Cancel;
use retake_runner::disturbance::MachineWatch;
use retake_runner::loop_driver::{Driven, StepError, drive_here};
use retake_runner::worker::Worker;
use retake_runner::{machine, metrics, signals};
use retake_types::loop_record::matrix::{
    BisectAnswer, CellHook, CellKey, MatrixEntry, MatrixLoopPlan, MatrixPurpose,
};
use retake_types::{Better, LoopId, Redact as _, StopReason};

use super::browser_range::{self, SearchPoints};
use super::cell_runner::{CellRunner, CellWorker, remove_scratch_parent};
use super::error::MatrixError;
use super::event::{MatrixEvent, MatrixObserver};
use super::project::MatrixProject;
use super::record;
use super::recorded_results::{RecordedResults, ResultRow};
use super::resources::{ProvisionError, Provisioner, Resources};
use super::samples::Samples;
use crate::bisect::{
    Bisect, BisectPlan, BisectSettings, BisectStep, Judge, Observation, PointResult,
};
use crate::browsers::BrowserRequest;
use crate::config::{CHROME, CODE};
use crate::export::MetricResults;
use crate::git::{Git, WorktreeName};
use crate::plan::{Cell, CellResult, CellStep, CellStepKind, FilterError, Matrix};

/// The seed of the order within probes, which has no effect on the result.
const SEED: u64 = 1;

/// Options of a bisection.
#[derive(Clone, Debug)]
pub struct BisectOptions {
    /// The axis to search.
    pub axis: String,
    /// A value known to be good.
    pub good: String,
    /// A value known to be bad; it may come before the good one.
    pub bad: String,
    /// The metric that decides; `None` decides by exit code.
    pub metric: Option<String>,
    /// A point is bad if it differs from the good end by more than this fraction, in the direction
    /// of the bad end.
    pub threshold: Option<f64>,
    /// Trust every answer, and halve the interval.
    pub quick: bool,
    /// How often a point is measured at most.
    pub most_samples: usize,
    /// The values of the other axes, which default to their first one.
    pub filters: Vec<(String, String)>,
}

/// The result of a search.
pub struct BisectResult {
    pub answer: BisectAnswer,
    /// All measurements of its points, including earlier ones.
    pub results: MetricResults,
}

/// A bisection that is ready to run.
pub struct BisectRun<'a> {
    project: MatrixProject,
    options: BisectOptions,
    observer: &'a dyn MatrixObserver,
    /// All axes; cells are created for each stage of the search.
    matrix: Matrix,
    /// The index of the searched axis.
    axis: usize,
    /// The value of each axis for the cell of a point.
    values: Vec<u32>,
    /// The axes whose value a filter names.
    chosen: BTreeSet<usize>,
}

/// One stage of the search: its points, with their resources and results.
struct Stage<'a> {
    run: &'a BisectRun<'a>,
    resources: Resources,
    matrix: Matrix,
    keys: Vec<CellKey>,
    loop_id: LoopId,
    /// Points whose resources are available.
    provided: HashSet<usize>,
    /// Points with new runs.
    ran: BTreeSet<usize>,
}

/// The cell along whose axis a search goes.
struct SearchedCell {
    name: String,
    /// Which of its values were not chosen, and what chooses them.
    how: String,
}

impl<'a> BisectRun<'a> {
    /// Checks everything that can be checked in advance.
    pub fn new(
        mut project: MatrixProject,
        options: BisectOptions,
        observer: &'a dyn MatrixObserver,
    ) -> Result<Self, MatrixError> {
        let axes = project.config.all_axes();
        let known: Vec<String> = axes.iter().map(|axis| axis.name.clone()).collect();
        let position = |name: &String| {
            known
                .iter()
                .position(|known| known == name)
                .ok_or_else(|| FilterError::Axis { name: name.clone(), known: known.clone() })
        };
        let axis = position(&options.axis)?;
        let mut values = vec![0u32; axes.len()];
        let mut named: BTreeMap<&str, &str> = BTreeMap::new();
        let mut chosen = BTreeSet::new();
        for (name, value) in &options.filters {
            let at = position(name)?;
            let found = axes[at].values.iter().position(|known| known == value);
            let found = found.ok_or_else(|| FilterError::Value {
                axis: name.clone(),
                value: value.clone(),
                known: axes[at].values.clone(),
            })?;
            let again = named.insert(name, value).is_some_and(|other| other != value);
            if *name == options.axis || again {
                return Err(MatrixError::SeveralValues { axis: name.clone() });
            }
            values[at] = u32::try_from(found).unwrap_or(u32::MAX);
            chosen.insert(at);
        }
        if options.axis == CHROME {
            for value in [&options.good, &options.bad] {
                add_browser(&mut project, value)?;
            }
        }
        let commands = project.config.command.several().to_vec();
        let fills_values = project.config.fills_values;
        let matrix = Matrix { axes, cells: Vec::new(), commands, fills_values };
        Ok(Self { project, options, observer, matrix, axis, values, chosen })
    }

    pub fn project(&self) -> &MatrixProject {
        &self.project
    }

    /// Runs the search to its end.
    pub fn run(mut self, worker: &mut Worker) -> Result<BisectResult, MatrixError> {
        let _lock = self.project.lock("retake matrix bisect")?;
        let lock = self.project.lock_path();
        record::mark_dead_loops(worker.store()?, Some(&lock))?;
        let loops = record::read_loops(worker.store()?, &self.project.file)?;
        let mut pins = record::pins(&loops);
        let points = self.points(worker, &mut pins)?;
        let first = points.milestones.as_ref().unwrap_or(&points.points);
        let staged = points.milestones.is_some();
        let bisect = self.bisect(first, &points.good, &points.bad, staged)?;
        let bisect = bisect.with_given_names(&self.options.good, &self.options.bad);
        self.matrix.axes[self.axis].values.clone_from(&points.points);
        let plan = self.loop_plan(&pins);
        let mut redactor = self.project.redactor();
        let mut recording = record::begin(worker.store()?, &plan, &redactor)?;
        let watch = MachineWatch::start(&worker.keeper_pids());
        // A verdict by exit code does not depend on time.
        let measures = self.options.metric.is_some();
        if measures {
            self.observer.event(MatrixEvent::Disturbed(&watch.at_start(1)));
        }
        let at = self.searched_cell();
        let mut found = self.search(worker, recording.id(), &pins, &points, bisect);
        if let Ok(BisectResult { answer, results }) = &mut found {
            let (lacks_metric, known) =
                (results.lacks_metric(), results.known_metrics().join(", "));
            // If everything was known, nothing ran and the time is too short.
            if measures && watch.is_long_enough() {
                answer.disturbances = watch.so_far(&worker.keeper_pids(), 1);
            }
            answer.subject = self.subject(worker, answer);
            if let (Some(metric), true) = (&self.options.metric, lacks_metric) {
                answer.sentence = format!(
                    "no run has reported {metric}, so nothing can be judged; choose from {known}"
                );
            }
            if let Some(SearchedCell { name, how }) = at {
                answer.sentence = format!("with {name}{how}: {}", answer.sentence);
                answer.at = Some(name);
            }
            answer.subject.redact(&mut redactor);
        }
        self.observer.event(MatrixEvent::Idle);
        let reason = match &found {
            Ok(_) => StopReason::Completed,
            Err(MatrixError::Interrupted) => StopReason::Interrupted,
            Err(_) => StopReason::Failed,
        };
        if let Ok(BisectResult { answer, .. }) = &found {
            let answer = answer.clone();
            recording.append(worker.store()?, &[MatrixEntry::Answer { answer }], &mut redactor)?;
        }
        recording.finish(worker.store()?, &reason)?;
        found
    }

    /// The values of the other axes with several; `None` if there are none.
    fn searched_cell(&self) -> Option<SearchedCell> {
        let axes = &self.matrix.axes;
        let several = |axis: &usize| *axis != self.axis && axes[*axis].values.len() > 1;
        let fixed: Vec<usize> = (0..axes.len()).filter(several).collect();
        let value = |axis: usize| axes[axis].values.get(self.values[axis] as usize);
        let name = |axis: &usize| value(*axis).map(|value| format!("{}={value}", axes[*axis].name));
        let first: Vec<usize> =
            fixed.iter().copied().filter(|axis| !self.chosen.contains(axis)).collect();
        let mut options: Vec<&str> = first
            .iter()
            .map(|&axis| match axes[axis].name.as_str() {
                CODE => "--refs",
                CHROME => "--chrome",
                _ => "--axis",
            })
            .collect();
        options.dedup();
        let which = match &first[..] {
            [] => None,
            [_] if fixed.len() == 1 => Some("the first value".to_owned()),
            all if all.len() == fixed.len() => Some("the first values".to_owned()),
            some => {
                let names: Vec<&str> = some.iter().map(|&axis| axes[axis].name.as_str()).collect();
                Some(format!("the first of {}", names.join(" and ")))
            }
        };
        let how = which.map(|which| {
            let plural = if options.len() == 1 { "s" } else { "" };
            format!(" ({which}; {} select{plural} others)", options.join(" and "))
        });
        let names: Vec<String> = fixed.iter().filter_map(name).collect();
        (!names.is_empty())
            .then(|| SearchedCell { name: names.join(" "), how: how.unwrap_or_default() })
    }

    fn loop_plan(&self, pins: &BTreeMap<String, String>) -> MatrixLoopPlan {
        let config = &self.project.config;
        MatrixLoopPlan {
            purpose: MatrixPurpose::Bisect { axis: self.options.axis.clone() },
            config: self.project.file.to_string_lossy().into_owned(),
            lock: self.project.lock_path(),
            order: config.order.as_str().to_owned(),
            command: config.command.text(),
            workers: 1,
            axes: record::axes_of(&self.matrix.axes),
            pins: pins.clone(),
            environment: machine::environment(),
            ..MatrixLoopPlan::default()
        }
    }

    fn points(
        &mut self,
        worker: &mut Worker,
        pins: &mut BTreeMap<String, String>,
    ) -> Result<SearchPoints, MatrixError> {
        let BisectOptions { good, bad, .. } = &self.options;
        match self.options.axis.as_str() {
            CODE => self.commits(worker),
            CHROME => {
                let ends = (good.as_str(), bad.as_str());
                Ok(browser_range::between(&mut self.project, pins, ends, self.observer)?)
            }
            _ => {
                let points = self.matrix.axes[self.axis].values.clone();
                Ok(SearchPoints::all(points, good, bad))
            }
        }
    }

    /// The commits between the two ends, oldest first, and the indexes of the ends.
    fn commits(&self, worker: &mut Worker) -> Result<SearchPoints, MatrixError> {
        let repo = self.project.repo().ok_or(MatrixError::NoCode)?;
        let (keeper, cancel) = worker.parts();
        let mut git = Git::open(keeper, cancel, repo, std::env::vars_os())?;
        let (good, bad) = (git.resolve(&self.options.good)?, git.resolve(&self.options.bad)?);
        let between = git.between(&good, &bad)?;
        Ok(SearchPoints::all(between.shas, &good.sha, &bad.sha))
    }

    /// The probabilities of two stages multiply, so each of them must be higher.
    fn bisect(
        &self,
        points: &[String],
        good: &str,
        bad: &str,
        staged: bool,
    ) -> Result<Bisect, MatrixError> {
        let judge = match &self.options.metric {
            Some(_) => Judge::Metric { threshold: self.options.threshold },
            None => Judge::ExitCode,
        };
        let usual = BisectSettings::new(judge);
        let settings = BisectSettings {
            confidence: if staged { usual.confidence.sqrt() } else { usual.confidence },
            quick: self.options.quick,
            most_samples: self.options.most_samples,
            better: self.better(),
            ..usual
        };
        Ok(Bisect::new(points.to_vec(), good, bad, settings)?)
    }

    /// The better direction of the metric: of a reported one only if the configuration says so.
    fn better(&self) -> Option<Better> {
        let metric = self.options.metric.as_deref()?;
        let configured = self.project.config.metrics.iter().find(|known| known.name == metric);
        let built_in = metrics::BUILT_IN.contains(&metric);
        configured.and_then(|known| known.better).or(built_in.then_some(Better::Lower))
    }

    /// Searches all points, or first a few of them and then those in the remaining gap.
    fn search(
        &self,
        worker: &mut Worker,
        loop_id: LoopId,
        pins: &BTreeMap<String, String>,
        points: &SearchPoints,
        bisect: Bisect,
    ) -> Result<BisectResult, MatrixError> {
        let first = self.search_stage(worker, loop_id, pins, bisect)?;
        match (&first.answer.last_good, &first.answer.first_bad) {
            (Some(good), Some(bad)) if points.milestones.is_some() => {
                let bisect = self.bisect(&points.points, good, bad, true)?;
                Ok(self.search_stage(worker, loop_id, pins, bisect)?.after(first))
            }
            _ => Ok(first),
        }
    }

    fn search_stage(
        &self,
        worker: &mut Worker,
        loop_id: LoopId,
        pins: &BTreeMap<String, String>,
        mut bisect: Bisect,
    ) -> Result<BisectResult, MatrixError> {
        let mut matrix = self.matrix.clone();
        matrix.axes[self.axis].values = bisect.points().to_vec();
        matrix.cells = (0..bisect.points().len())
            .map(|point| {
                let mut values = self.values.clone();
                values[self.axis] = u32::try_from(point).unwrap_or(u32::MAX);
                Cell(values.into())
            })
            .collect();
        let resources = self.resolve(worker, &mut matrix, pins.clone())?;
        let keys = resources.identity.keys(&matrix);
        let recorded = RecordedResults::read_all(worker.store()?, &keys)?;
        let next_iterations = keys.iter().map(|key| recorded.next_iteration(*key)).collect();
        self.observe_stored(&mut bisect, &keys, &recorded);
        let mut stage = Stage {
            run: self,
            resources,
            matrix,
            keys,
            loop_id,
            provided: HashSet::new(),
            ran: BTreeSet::new(),
        };
        let mut worker = CellWorker::new(worker, 0, &self.project)?;
        let Driven { plan, failure, cancelled } = drive_here(
            BisectPlan::new(bisect, next_iterations, SEED),
            &mut worker,
            |worker, plan, step| stage.run_step(worker, plan, step),
            |_, _, _| {},
        );
        let cleaned = match cancelled || failure.is_some() {
            true => Ok(()),
            false => stage.runner(stage.ran.clone()).clean_up(&mut worker),
        };
        let CellWorker { worker, scratch, .. } = worker;
        drop(scratch);
        let results = stage.results(worker);
        let created = std::mem::take(&mut stage.resources.created);
        drop(stage);
        let removed = self.remove_worktrees(worker, &created);
        if let Some(failure) = failure {
            return Err(failure);
        }
        cleaned.and(removed)?;
        if cancelled {
            return Err(MatrixError::Interrupted);
        }
        remove_scratch_parent(&self.project);
        let answer = plan.bisect().answer(&self.options.axis);
        Ok(BisectResult { answer, results: results? })
    }

    /// Removes the worktrees of the search: there may be many, and their runs are recorded.
    fn remove_worktrees(
        &self,
        worker: &mut Worker,
        created: &[WorktreeName],
    ) -> Result<(), MatrixError> {
        let Some(repo) = self.project.repo().filter(|_| !created.is_empty()) else {
            return Ok(());
        };
        // The signal that ended the search must not end this.
        let path = |error| MatrixError::Scratch { path: repo.to_owned(), error };
        let cancel = Cancel::new().map_err(path)?;
        let (keeper, _) = worker.parts();
        let mut git = Git::open(keeper, &cancel, repo, std::env::vars_os())?;
        let worktrees = self.project.worktrees();
        for name in created {
            worktrees.remove(&mut git, &name.to_string())?;
        }
        Ok(())
    }

    /// Resolves values. The points of a search over code are commits already.
    fn resolve(
        &self,
        worker: &mut Worker,
        matrix: &mut Matrix,
        pins: BTreeMap<String, String>,
    ) -> Result<Resources, MatrixError> {
        if self.options.axis != CODE {
            let mut resources = Resources::resolve(worker, &self.project, matrix, pins)?;
            // The single fixed ref.
            return match resources.unavailable.pop() {
                Some(unavailable) => Err(MatrixError::Unavailable(unavailable)),
                None => Ok(resources),
            };
        }
        // Nothing to look up, and nothing can be missing.
        let cells = std::mem::take(&mut matrix.cells);
        let mut resources = Resources::resolve(worker, &self.project, matrix, pins)?;
        matrix.cells = cells;
        for sha in matrix.used(CODE) {
            resources.add_commit(sha, sha);
        }
        Ok(resources)
    }

    /// Feeds results of earlier loops to the search. Values of a metric count only if paired with
    /// the good end.
    fn observe_stored(&self, bisect: &mut Bisect, keys: &[CellKey], recorded: &RecordedResults) {
        let points = bisect.points().to_vec();
        let Some(metric) = &self.options.metric else {
            for (point, key) in points.iter().zip(keys) {
                for row in recorded.of(*key) {
                    let timed_out = Observation::TimedOut;
                    let exit = Observation::Exit(row.exit_code);
                    bisect.observe(point, if row.timed_out { timed_out } else { exit });
                }
            }
            return;
        };
        let value = |row: &ResultRow| row.metrics.get(metric.as_str()).map(|metric| metric.value);
        let rows = || keys.iter().flat_map(|key| recorded.of(*key));
        if let Some(better) = rows().find_map(|row| row.metrics.get(metric.as_str())?.better) {
            bisect.set_better(better);
        }
        let Some(&good_end) = keys.first() else { return };
        let (ends, _) = recorded.results(good_end);
        for (point, key) in points.iter().zip(keys).skip(1) {
            for (block, row) in recorded.results(*key).0 {
                let beside = ends.get(&block).filter(|_| !row.blocked).and_then(|row| value(row));
                if let (Some(value), Some(beside)) = (value(row), beside) {
                    bisect.observe(point, Observation::Value { value, beside });
                }
            }
            for _ in recorded.of(*key).iter().filter(|row| row.timed_out) {
                bisect.observe(point, Observation::TimedOut);
            }
        }
    }

    fn result(&self, result: &CellResult) -> PointResult {
        if result.failed_hook.is_some_and(|failed| failed.hook == CellHook::Prepare) {
            return PointResult::Unavailable;
        }
        if result.timed_out {
            return PointResult::TimedOut;
        }
        let value =
            self.options.metric.as_ref().and_then(|metric| result.metrics.get(metric.as_str()));
        match value.filter(|_| result.ok) {
            Some(metric) => PointResult::Value(metric.value),
            None => PointResult::Exit(result.exit_code),
        }
    }

    /// The subject line of the found commit.
    fn subject(&self, worker: &mut Worker, answer: &BisectAnswer) -> Option<String> {
        let sha = answer.changed_at().filter(|_| self.options.axis == CODE)?;
        let repo = self.project.repo()?;
        let (keeper, cancel) = worker.parts();
        // The answer is valid without it.
        let mut git = Git::open(keeper, cancel, repo, std::env::vars_os()).ok()?;
        git.subject(sha).ok()
    }
}

impl BisectResult {
    /// This result within the gap that an earlier search over fewer points left.
    fn after(mut self, earlier: Self) -> Self {
        let known: BTreeSet<String> =
            self.results.cells.iter().map(|cell| cell.name.clone()).collect();
        let before = earlier.results.cells.into_iter();
        self.results.cells.extend(before.filter(|cell| !known.contains(&cell.name)));
        Self { answer: self.answer.after(earlier.answer), results: self.results }
    }
}

impl Stage<'_> {
    /// The current results of the points.
    fn results(&self, worker: &mut Worker) -> Result<MetricResults, MatrixError> {
        let recorded = RecordedResults::read_all(worker.store()?, &self.keys)?;
        let metric = self.run.options.metric.as_deref().unwrap_or("wall");
        let config = &self.run.project.config;
        let samples = Samples::of(&self.matrix, &self.keys, &recorded, config, metric);
        let mut results = samples.results(&samples.rows(&[], &[]));
        let runner = self.runner(BTreeSet::new());
        for (point, cell) in results.cells.iter_mut().enumerate() {
            cell.name = runner.name(point);
        }
        results.cells.retain(|cell| !cell.runs.is_empty() || cell.failed > 0);
        Ok(results)
    }

    fn run_step(
        &mut self,
        worker: &mut CellWorker<'_>,
        plan: &mut BisectPlan,
        step: &BisectStep,
    ) -> Result<PointResult, StepError<MatrixError>> {
        if signals::received().is_some() {
            return Err(StepError::Cancelled);
        }
        let observer = self.run.observer;
        if self.provided.insert(step.point) {
            match self.provide(worker.worker, step.point) {
                Ok(()) => self.keys = self.resources.identity.keys(&self.matrix),
                Err(ProvisionError::Interrupted) => return Err(StepError::Cancelled),
                Err(ProvisionError::Unavailable(unavailable)) => {
                    observer.event(MatrixEvent::PointUnavailable(&unavailable));
                    return Ok(PointResult::Unavailable);
                }
            }
        }
        self.ran.insert(step.point);
        let runner = self.runner(BTreeSet::new());
        let name = runner.name(step.point);
        observer.event(MatrixEvent::PointStarted { name: &name, step });
        let BisectStep { point, iteration, block, number } = *step;
        let kind = CellStepKind::Iteration;
        let cell = CellStep { cell: point, kind, iteration, block, number };
        let result = runner.execute(worker, &cell)?;
        let point_result = self.run.result(&result);
        let metric = self.run.options.metric.as_ref();
        let reported = metric.and_then(|metric| result.metrics.get(metric.as_str())?.better);
        if let Some(better) = reported {
            plan.bisect_mut().set_better(better);
        }
        observer.event(MatrixEvent::PointFinished {
            name: &name,
            step,
            result: &result,
            point_result,
            metric: self.run.options.metric.as_deref(),
        });
        Ok(point_result)
    }

    /// The runner for cells of this stage.
    fn runner(&self, ran: BTreeSet<usize>) -> CellRunner<'_> {
        CellRunner {
            project: &self.run.project,
            resources: &self.resources,
            matrix: &self.matrix,
            keys: &self.keys,
            loop_id: self.loop_id,
            observer: self.run.observer,
            adaptive: self.run.options.metric.is_some(),
            sizes: Vec::new(),
            blocked: false,
            longest: None,
            ran: Mutex::new(ran),
            new: Mutex::default(),
        }
    }

    /// Provides the resources of the iterations at a point.
    fn provide(&mut self, worker: &mut Worker, point: usize) -> Result<(), ProvisionError> {
        let provisioner = Provisioner {
            project: &self.run.project,
            observer: self.run.observer,
            workers: 1,
            remote_setup: None,
        };
        let cell = &self.matrix.cells[point];
        let value = |name: &str| {
            self.matrix.axis(name).map(|axis| self.matrix.value(cell, axis).to_owned())
        };
        match value(CODE) {
            Some(reference) if self.resources.has_code(&reference) => {}
            Some(reference) => {
                provisioner.code(&mut self.resources, worker, &reference, self.loop_id)?;
            }
            None => provisioner.set_up_directory(worker, &self.matrix, self.loop_id)?,
        }
        match value(CHROME) {
            Some(version) if !self.resources.has_browser(&version) => {
                provisioner.browser(&mut self.resources, worker, &version)
            }
            _ => Ok(()),
        }
    }
}

/// Adds a browser that is an end of the search but not in the configuration.
fn add_browser(project: &mut MatrixProject, value: &str) -> Result<(), MatrixError> {
    let Some(chrome) = &mut project.config.chrome else { return Ok(()) };
    if !chrome.requests.contains_key(value) {
        chrome.requests.insert(value.to_owned(), value.parse::<BrowserRequest>()?);
        chrome.versions.push(value.to_owned());
    }
    Ok(())
}
