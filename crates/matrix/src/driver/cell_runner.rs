//! One run of a cell on the record: its variables, its directory, its labels, what it measured.

use std::path::Path;
use std::time::Duration;

use retake_runner::loop_driver::{LoopObserver, StepError, StepRunner};
use retake_runner::metrics::MetricsObserver;
use retake_runner::prepare::PreparedRun;
use retake_runner::run::OutputUse;
use retake_runner::scratch_dir::ScratchDir;
use retake_runner::worker::Worker;
use retake_types::loop_record::matrix::{CellKey, CellLabels, CellRole};
use retake_types::request::{LoopPosition, MetricsRequest};
use retake_types::{Kind, LoopId, Outcome};

use super::error::MatrixError;
use super::event::{MatrixEvent, MatrixObserver};
use super::project::MatrixProject;
use super::resources::{Resources, short_sha};
use crate::config::{CHROME, CODE};
use crate::iteration::Iteration;
use crate::plan::{CellResult, CellStep, CellStepKind, Matrix, MatrixPlan};

/// Runs the cells of a loop: everything that all of its runs share.
pub(super) struct CellRunner<'a> {
    pub(super) project: &'a MatrixProject,
    pub(super) resources: &'a Resources,
    pub(super) matrix: &'a Matrix,
    pub(super) keys: &'a [CellKey],
    pub(super) loop_id: LoopId,
    pub(super) observer: &'a dyn MatrixObserver,
    /// How many iterations of each cell there are is decided by looking at them.
    pub(super) adaptive: bool,
    /// How many iterations of each cell are planned; empty where that is not decided beforehand.
    pub(super) sizes: Vec<u64>,
    /// The cells are not interleaved.
    pub(super) blocked: bool,
    /// No run takes longer: a command that hangs does not outlast the budget.
    pub(super) longest: Option<Duration>,
}

/// A worker with a directory for what its commands leave.
pub(super) struct CellWorker<'a> {
    pub(super) worker: &'a mut Worker,
    pub(super) scratch: ScratchDir,
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
        Ok(Self { worker, scratch })
    }
}

impl CellRunner<'_> {
    /// Runs one step. An error means that nothing can be run or recorded any more, or that the
    /// loop's end was asked for.
    pub(super) fn execute(
        &self,
        CellWorker { worker, scratch }: &mut CellWorker<'_>,
        step: &CellStep,
    ) -> Result<CellResult, StepError<MatrixError>> {
        let failed = StepError::Failed;
        let (tmp, metrics) = (scratch.tmp(), scratch.metrics());
        scratch
            .renew()
            .map_err(|error| failed(MatrixError::Scratch { path: tmp.clone(), error }))?;
        let prepared = self.prepare(&tmp, &metrics, step).map_err(failed)?;
        let mut observer = MetricsObserver::new(&metrics, self.planned(step));
        let finished = worker
            .run(prepared, OutputUse::NONE, &mut observer)
            .map_err(|unrecorded| failed(unrecorded.into()))?;
        if !finished.run.recorded {
            return Err(failed(MatrixError::NotRecorded));
        }
        if matches!(finished.outcome, Outcome::Cancelled(_)) {
            // Ended by the signal that ends the loop: no result.
            return Err(StepError::Cancelled);
        }
        let outcome = finished.run.outcome.as_ref();
        Ok(CellResult {
            id: finished.run.intent.id(),
            ok: finished.outcome.success(),
            timed_out: matches!(finished.outcome, Outcome::TimedOut),
            exit_code: outcome.and_then(|outcome| outcome.exit_code).unwrap_or(1),
            duration_ms: outcome.map_or(0, |outcome| outcome.duration_ms),
            metrics: observer.metrics,
            notes: observer.notes,
            node: None,
        })
    }

    fn planned(&self, step: &CellStep) -> Option<u64> {
        self.sizes.get(step.cell).copied()
    }

    /// The run of one step. The command gets a directory of its own and a file for its metrics.
    pub(super) fn prepare(
        &self,
        tmp: &Path,
        metrics: &Path,
        step: &CellStep,
    ) -> Result<PreparedRun, MatrixError> {
        let project = self.project;
        let cell = &self.matrix.cells[step.cell];
        let value = |name: &str| self.matrix.axis(name).map(|axis| self.matrix.value(cell, axis));
        let browser = value(CHROME).and_then(|value| self.resources.browsers.get(value));
        let code = value(CODE).and_then(|value| self.resources.code.get(value));
        let directory = code.map_or_else(|| project.directory(), |code| code.directory.clone());
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
        let mut request = project.request(&project.config.command, &directory, position);
        for (name, value) in iteration.variables() {
            request.environment.set(name, value);
        }
        let limits = project.config.timeout.into_iter().chain(self.longest);
        request.set_timeout(limits.min());
        request.effects.metrics = Some(MetricsRequest { planned: self.planned(step) });
        let key = self.keys[step.cell];
        let role = match step.kind {
            CellStepKind::Warmup => CellRole::Warmup(key),
            CellStepKind::Iteration => CellRole::Iteration(key),
        };
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
            ..CellLabels::new(role)
        };
        labels.write_to(&mut request.labels);
        request.correlation_ids.repo_sha = labels.sha;
        Ok(PreparedRun::new(request, &project.context)?)
    }

    /// A cell as people name it: `chrome@120 × main (0123456)`.
    pub(super) fn name(&self, cell: usize) -> String {
        let cell = &self.matrix.cells[cell];
        let parts = self.matrix.axes.iter().enumerate().map(|(at, axis)| {
            let value = self.matrix.value(cell, at);
            match axis.name.as_str() {
                CHROME => {
                    let version = self.resources.browsers.get(value).map(|b| b.version.as_str());
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

    /// Reports the step that the plan has just taken, and erases the runs that it replaces.
    pub(super) fn finish_step(&self, worker: &mut Worker, plan: &mut MatrixPlan) {
        let Some(finished) = plan.take_finished() else { return };
        self.observer.event(MatrixEvent::StepFinished {
            name: &self.name(finished.step.cell),
            step: &finished.step,
            total: finished.total,
            result: &finished.result,
        });
        for run in finished.replaced {
            // The new run is there; readers ignore an old one that cannot be erased.
            let erased = worker.store().and_then(|store| store.delete(run));
            if let Err(error) = erased {
                self.observer.event(MatrixEvent::NotErased { run, error: &error });
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
        self.finish_step(worker.worker, plan);
    }
}

/// Passes the progress of a plan on.
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

/// The first part of an exact version; anything else as it is.
fn major(version: &str) -> &str {
    let exact = version.split('.').count() == 4;
    version.split('.').next().filter(|_| exact && !version.contains('/')).unwrap_or(version)
}

/// Removes the parent of all scratch directories once it is empty.
pub(super) fn remove_scratch_parent(project: &MatrixProject) {
    // What a command made unreadable stays until the next run clears it.
    _ = std::fs::remove_dir(project.scratch());
}
