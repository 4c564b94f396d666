//! Executes and records one run of a cell: its variables, directory, labels and measurements.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use retake_engine::Counters;
use retake_runner::loop_driver::{LoopObserver, StepError, StepRunner};
use retake_runner::metrics::MetricsObserver;
use retake_runner::prepare::PreparedRun;
use retake_runner::run::{FinishedRun, Observer, OutputUse};
use retake_runner::scratch_dir::ScratchDir;
use retake_runner::worker::Worker;
use retake_types::loop_record::matrix::{CellHook, CellKey, CellLabels, CellRole};
use retake_types::request::{CommandRequest, LoopPosition, MetricsRequest};
use retake_types::{Kind, LoopId, Metrics, Outcome, Run, RunRequest};

use super::checkout::{CheckedOutCode, CodeTree};
use super::error::MatrixError;
use super::event::{MatrixEvent, MatrixObserver};
use super::project::MatrixProject;
use super::recorded_results::{NewResults, ResultRow};
use super::resources::{Resources, short_sha};
use super::shell_start::ShellStart;
use crate::config::{CHROME, CODE, COMMAND, MetricConfig, ResetMode};
use crate::iteration::Iteration;
use crate::plan::{
    CellResult, CellStep, CellStepKind, FailedHook, FinishedStep, Matrix, MatrixPlan,
};
use crate::shell_free;

/// Runs the cells of a loop: the state that all of its runs share.
pub(super) struct CellRunner<'a> {
    pub(super) project: &'a MatrixProject,
    pub(super) resources: &'a Resources,
    pub(super) matrix: &'a Matrix,
    pub(super) keys: &'a [CellKey],
    pub(super) loop_id: LoopId,
    pub(super) observer: &'a dyn MatrixObserver,
    /// Whether the number of iterations depends on their results.
    pub(super) adaptive: bool,
    /// Planned iterations of each cell; empty if the results decide.
    pub(super) sizes: Vec<u64>,
    /// Whether the cells are not interleaved.
    pub(super) blocked: bool,
    /// The maximum duration of a run, so that a hanging command does not exceed the budget.
    pub(super) longest: Option<Duration>,
    /// Cells with new runs.
    pub(super) ran: Mutex<BTreeSet<usize>>,
    /// Their recorded results.
    pub(super) new: Mutex<NewResults>,
}

/// A worker with a scratch directory for its commands.
pub(super) struct CellWorker<'a> {
    pub(super) worker: &'a mut Worker,
    pub(super) scratch: ScratchDir,
    /// The worker's number, which selects its trees.
    pub(super) number: usize,
    /// Whether outcomes are committed together with the next intent. For callers that settle the
    /// worker when there is no next step.
    pub(super) holds: bool,
    /// The step with a held outcome: it is reported only after the commit.
    unsettled: Option<FinishedStep>,
    shell: ShellStart,
    /// Whether the processor's counters proved unreadable; they are not requested again.
    uncounted: bool,
}

impl CellWorker<'_> {
    /// The counters, if readable; otherwise the start of the loop has shown a warning.
    fn counters(&mut self) -> Option<Arc<Counters>> {
        let counters = (!self.uncounted).then(|| self.worker.counters().ok()).flatten();
        self.uncounted = counters.is_none();
        counters
    }
}

impl<'a> CellWorker<'a> {
    pub(super) fn new(
        worker: &'a mut Worker,
        number: usize,
        project: &MatrixProject,
    ) -> Result<Self, MatrixError> {
        let parent = project.scratch();
        let scratch = ScratchDir::new(&parent, &format!("w{number}"))
            .map_err(|error| MatrixError::Scratch { path: parent, error })?;
        Ok(Self {
            worker,
            scratch,
            number,
            holds: false,
            unsettled: None,
            shell: ShellStart::default(),
            uncounted: false,
        })
    }
}

impl CellRunner<'_> {
    /// Runs one step. An error means that nothing more can be run or recorded, or that the loop was
    /// cancelled.
    pub(super) fn execute(
        &self,
        cell_worker: &mut CellWorker<'_>,
        step: &CellStep,
    ) -> Result<CellResult, StepError<MatrixError>> {
        let failed = StepError::Failed;
        let (tmp, metrics) = (cell_worker.scratch.tmp(), cell_worker.scratch.metrics());
        cell_worker
            .scratch
            .renew()
            .map_err(|error| failed(MatrixError::Scratch { path: tmp.clone(), error }))?;
        lock(&self.ran).insert(step.cell);
        if let Some(tree) = self.tree_to_reset(cell_worker.number, step) {
            // That takes longer than an outcome should be held.
            self.settle_worker(cell_worker).map_err(failed)?;
            tree.reset().map_err(|error| failed(error.into()))?;
        }
        if let Some(hook) = self.run_hook(cell_worker, step, CellHook::Prepare)? {
            return Ok(not_run(hook));
        }
        let prepared = self.prepare(cell_worker.number, &tmp, &metrics, step).map_err(failed)?;
        let counters = cell_worker.counters();
        let directory = self.directory(cell_worker.number, step);
        let needs_shell = prepared.request.command.is_shell();
        if needs_shell {
            cell_worker.shell.measure(cell_worker.worker);
        }
        let cost = cell_worker.shell.cost().filter(|_| needs_shell);
        let mut observer = MetricsObserver::new(&metrics, &self.metrics_request(step), &directory)
            .without_shell(cost)
            .counting(counters);
        let finished = self.run_recorded(cell_worker, prepared, &mut observer)?;
        self.add_result(&finished.run);
        let failed_hook = self.run_hook(cell_worker, step, CellHook::Conclude)?;
        let outcome = finished.run.outcome.as_ref();
        Ok(CellResult {
            failed_hook,
            id: finished.run.intent.id(),
            ok: observer.missing.is_empty()
                && match finished.outcome {
                    Outcome::Exited(code) => self.project.config.ignore_failure.accepts(code),
                    _ => false,
                },
            timed_out: matches!(finished.outcome, Outcome::TimedOut),
            exit_code: outcome.and_then(|outcome| outcome.exit_code).unwrap_or(1),
            duration_ms: outcome.map_or(0, |outcome| outcome.duration_ms),
            metrics: observer.metrics,
            notes: observer.notes,
            node: None,
            disturbances: Vec::new(),
        })
    }

    /// The tree of a step, if it must be reset before every iteration.
    fn tree_to_reset(&self, number: usize, step: &CellStep) -> Option<&CodeTree> {
        let code = self.code(step.cell)?;
        (self.project.config.reset == ResetMode::Iteration).then(|| &code.trees[number])
    }

    /// Runs a hook around an iteration, if configured; returns its failure.
    fn run_hook(
        &self,
        cell_worker: &mut CellWorker<'_>,
        step: &CellStep,
        hook: CellHook,
    ) -> Result<Option<FailedHook>, StepError<MatrixError>> {
        let config = &self.project.config;
        let text = match hook {
            CellHook::Prepare => &config.prepare,
            CellHook::Conclude => &config.conclude,
            CellHook::Cleanup => &config.cleanup,
        };
        let Some(text) = text else { return Ok(None) };
        let (tmp, metrics) = (cell_worker.scratch.tmp(), cell_worker.scratch.metrics());
        let role = CellRole::Hook(hook, self.keys[step.cell]);
        let command = CommandRequest::shell(self.matrix.fill(&self.matrix.cells[step.cell], text));
        let request = self.request(cell_worker.number, (&tmp, &metrics), step, command, role);
        let prepared = PreparedRun::new(request, &self.project.context)
            .map_err(|refused| StepError::Failed(refused.into()))?;
        let finished = self.run_recorded(cell_worker, prepared, &mut ())?;
        let exit_code = finished.outcome.exit_code().unwrap_or(1);
        let run = finished.run.intent.id();
        Ok((!finished.outcome.success()).then_some(FailedHook { hook, exit_code, run }))
    }

    /// Runs the cleanup of every cell with new runs; an error means that nothing more can be run.
    pub(super) fn clean_up(&self, worker: &mut CellWorker<'_>) -> Result<(), MatrixError> {
        if self.project.config.cleanup.is_none() {
            return Ok(());
        }
        let ran = std::mem::take(&mut *lock(&self.ran));
        for cell in ran {
            let kind = CellStepKind::Iteration;
            let step = CellStep { cell, kind, iteration: 0, block: 0, number: 0 };
            match self.run_hook(worker, &step, CellHook::Cleanup) {
                Ok(None) => {}
                Ok(Some(failed)) => {
                    let name = &self.name(cell);
                    self.observer.event(MatrixEvent::CleanupFailed { name, failed });
                }
                Err(StepError::Cancelled) => return Err(MatrixError::Interrupted),
                Err(StepError::Failed(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// The code of a cell.
    fn code(&self, cell: usize) -> Option<&CheckedOutCode> {
        let axis = self.matrix.axis(CODE)?;
        self.resources.code.get(self.matrix.value(&self.matrix.cells[cell], axis))
    }

    /// The metrics to measure; a warmup need not report any.
    fn metrics_request(&self, step: &CellStep) -> MetricsRequest {
        let configured = self.project.config.metrics.iter();
        MetricsRequest {
            planned: self.sizes.get(step.cell).copied(),
            wanted: match step.kind {
                CellStepKind::Warmup => Vec::new(),
                CellStepKind::Iteration => configured.filter_map(MetricConfig::wanted).collect(),
            },
        }
    }

    /// The run of one step. The command gets a scratch directory and a file for its metrics.
    pub(super) fn prepare(
        &self,
        number: usize,
        tmp: &Path,
        metrics: &Path,
        step: &CellStep,
    ) -> Result<PreparedRun, MatrixError> {
        let config = &self.project.config;
        let key = self.keys[step.cell];
        let role = match step.kind {
            CellStepKind::Warmup => CellRole::Warmup(key),
            CellStepKind::Iteration => CellRole::Iteration(key),
        };
        let text = self.matrix.command_text(&self.matrix.cells[step.cell], config);
        let command = shell_free::command(config, &text, &self.directory(number, step));
        let mut request = self.request(number, (tmp, metrics), step, command, role);
        request.set_timeout(config.timeout.into_iter().chain(self.longest).min());
        request.effects.metrics = Some(self.metrics_request(step));
        Ok(PreparedRun::new(request, &self.project.context)?)
    }

    /// The working directory of a step: the worker's tree, or the configuration's directory.
    fn directory(&self, number: usize, step: &CellStep) -> PathBuf {
        match self.code(step.cell) {
            Some(code) => code.trees[number].directory.clone(),
            None => self.project.directory(),
        }
    }

    /// A command with the same environment as a step.
    fn request(
        &self,
        number: usize,
        (tmp, metrics): (&Path, &Path),
        step: &CellStep,
        command: CommandRequest,
        role: CellRole,
    ) -> RunRequest {
        let project = self.project;
        let cell = &self.matrix.cells[step.cell];
        let value = |name: &str| self.matrix.axis(name).map(|axis| self.matrix.value(cell, axis));
        let browser = value(CHROME).and_then(|value| self.resources.browsers.get(value));
        let code = self.code(step.cell);
        let directory = self.directory(number, step);
        let others = self.matrix.axes.iter().zip(cell.0.iter());
        let iteration = Iteration {
            browser,
            code: code.map(|code| &code.of),
            directory: &directory,
            iteration: step.iteration,
            axes: others
                .filter(|(axis, _)| axis.name != CHROME && axis.name != CODE)
                .map(|(axis, at)| (axis, *at as usize))
                .collect(),
            env: &project.config.env,
            scratch: tmp,
            metrics,
        };
        let position =
            LoopPosition { kind: Kind::Matrix, id: self.loop_id, iteration: step.iteration };
        let mut request = project.request_of(command, &directory, position);
        for (name, value) in iteration.variables() {
            request.environment.set(name, value);
        }
        let axes = self.matrix.axes.iter().zip(cell.0.iter());
        let labels = CellLabels {
            axes: axes
                .map(|(axis, at)| (axis.name.clone(), axis.values[*at as usize].clone()))
                .collect(),
            chrome: browser.map(|browser| browser.version.clone()),
            sha: code.map(|code| code.of.sha.clone()),
            adaptive: self.adaptive,
            blocked: self.blocked,
            block: (step.block != step.iteration).then_some(step.block),
            ignore_failure: project.config.ignore_failure.clone(),
            ..CellLabels::new(role)
        };
        labels.write_to(&mut request.labels);
        request.correlation_ids.repo_sha = labels.sha;
        request
    }

    /// The display name of a cell: `chrome@120 × main (0123456)`.
    pub(super) fn name(&self, cell: usize) -> String {
        let cell = &self.matrix.cells[cell];
        let command = self.matrix.command_name(cell);
        let shown = |at: &usize| command.is_none() || !self.matrix.in_command_name(cell, *at);
        let parts = (0..self.matrix.axes.len()).filter(shown).map(|at| {
            let (axis, value) = (&self.matrix.axes[at], self.matrix.value(cell, at));
            match axis.name.as_str() {
                COMMAND => command.clone().unwrap_or_else(|| format!("{COMMAND}={value}")),
                CHROME => {
                    // Several programs may report the same version.
                    let version = self.resources.browsers.get(value).map(|b| b.version.as_str());
                    let version = version.filter(|_| !value.contains('/'));
                    format!("chrome@{}", major(version.unwrap_or(value)))
                }
                CODE => match self.resources.commits.get(value) {
                    Some(sha) if sha != value => format!("{value} ({})", short_sha(sha)),
                    Some(sha) => short_sha(sha).to_owned(),
                    None => value.to_owned(),
                },
                name => format!("{name}={value}"),
            }
        });
        let parts: Vec<String> = parts.collect();
        if parts.is_empty() { "the command".to_owned() } else { parts.join(" × ") }
    }

    /// Executes and records a run. An unrecorded run does not count, and neither does one that the
    /// loop's signal ended.
    fn run_recorded(
        &self,
        cell_worker: &mut CellWorker<'_>,
        prepared: PreparedRun,
        observer: &mut dyn Observer,
    ) -> Result<FinishedRun, StepError<MatrixError>> {
        let failed = StepError::Failed;
        let begun = cell_worker.worker.begin_run(prepared);
        let begun = begun.map_err(|unrecorded| failed(unrecorded.into()))?;
        // The held outcome is committed now.
        self.settle_worker(cell_worker).map_err(failed)?;
        let finished = cell_worker.worker.run_held(begun, OutputUse::NONE, observer);
        if !finished.run.recorded {
            return Err(failed(MatrixError::NotRecorded));
        }
        if matches!(finished.outcome, Outcome::Cancelled(_)) {
            return Err(StepError::Cancelled);
        }
        if !cell_worker.holds {
            self.settle_worker(cell_worker).map_err(failed)?;
        }
        Ok(finished)
    }

    /// Commits the held outcome, and reports its step.
    fn settle_worker(&self, cell_worker: &mut CellWorker<'_>) -> Result<(), MatrixError> {
        let settled = cell_worker.worker.settle();
        let finished = cell_worker.unsettled.take();
        if !settled {
            return Err(MatrixError::NotRecorded);
        }
        if let Some(finished) = finished {
            self.finish(cell_worker.worker, &finished);
        }
        Ok(())
    }

    /// Adds a run's result to its cell, if it is an iteration.
    pub(super) fn add_result(&self, run: &Run) {
        lock(&self.new).rows.extend(ResultRow::of(run));
    }

    /// Reports the step that the plan has just processed, and erases the runs that it replaces.
    pub(super) fn finish_step(&self, worker: &mut Worker, plan: &mut MatrixPlan) {
        if let Some(finished) = plan.take_finished() {
            self.finish(worker, &finished);
        }
    }

    fn finish(&self, worker: &mut Worker, finished: &FinishedStep) {
        self.observer.event(MatrixEvent::StepFinished {
            name: &self.name(finished.step.cell),
            step: &finished.step,
            total: finished.total,
            result: &finished.result,
        });
        for &run in &finished.replaced {
            // The new run is recorded; readers ignore an old one that cannot be erased.
            match worker.store().and_then(|store| store.delete(run)) {
                Ok(_) => _ = lock(&self.new).erased.insert(run),
                Err(error) => {
                    self.observer.event(MatrixEvent::NotErased { run, error: &error });
                }
            }
        }
    }
}

impl<'w> StepRunner<MatrixPlan, CellWorker<'w>> for CellRunner<'_> {
    type Error = MatrixError;

    fn run(
        &self,
        worker: &mut CellWorker<'w>,
        _number: usize,
        step: &CellStep,
    ) -> Result<CellResult, StepError<MatrixError>> {
        self.execute(worker, step)
    }

    fn reported(&self, worker: &mut CellWorker<'w>, plan: &mut MatrixPlan, _step: &CellStep) {
        let Some(finished) = plan.take_finished() else { return };
        match worker.worker.holds() {
            true => worker.unsettled = Some(finished),
            false => self.finish(worker.worker, &finished),
        }
    }

    fn holds(&self, worker: &CellWorker<'w>) -> bool {
        worker.unsettled.is_some()
    }

    fn settle(&self, worker: &mut CellWorker<'w>) -> Result<(), MatrixError> {
        self.settle_worker(worker)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of a step whose command did not run.
fn not_run(hook: FailedHook) -> CellResult {
    CellResult {
        id: hook.run,
        ok: false,
        timed_out: false,
        exit_code: hook.exit_code,
        duration_ms: 0,
        metrics: Metrics::new(),
        notes: Vec::new(),
        node: None,
        disturbances: Vec::new(),
        failed_hook: Some(hook),
    }
}

/// Forwards the progress of a plan.
pub(super) struct ProgressEvents<'a> {
    pub(super) observer: &'a dyn MatrixObserver,
    pub(super) started: std::time::Instant,
}

impl LoopObserver<MatrixPlan> for ProgressEvents<'_> {
    fn tick(&self, plan: &MatrixPlan) {
        let (progress, started) = (plan.progress(), self.started);
        self.observer.event(MatrixEvent::Progress { progress, started, remote: None });
    }
}

/// The major part of an exact version; anything else unchanged.
fn major(version: &str) -> &str {
    let exact = version.split('.').count() == 4;
    version.split('.').next().filter(|_| exact && !version.contains('/')).unwrap_or(version)
}

/// Removes the parent of all scratch directories if it is empty.
pub(super) fn remove_scratch_parent(project: &MatrixProject) {
    // Unremovable files stay until the next run clears them.
    _ = std::fs::remove_dir(project.scratch());
}
