//! Cells on other machines. A cell without a result (cancelled by another user, lost with its
//! machine, refused there or by the scheduler) is not reported to the plan: it is neither a success
//! nor a failure of the command.

use std::path::Path;
use std::time::Instant;

use retake_runner::loop_driver::Driven;
use retake_runner::loop_driver::remote::{self, RemoteExecutor, RemoteStatus, RemoteSteps};
use retake_runner::prepare::PreparedRun;
use retake_runner::worker::Worker;
use retake_types::loop_record::matrix::CellLabels;
use retake_types::{Effects, Measurements, OutcomeKind, Run};

use super::cell_runner::CellRunner;
use super::error::{CellWithoutResult, MatrixError, MatrixRunError};
use super::event::MatrixEvent;
use super::recorded_results::is_result;
use crate::plan::{CellResult, CellStep, MatrixPlan};

/// A placeholder for the command's directories, which the executing machine creates.
const MADE_THERE: &str = "(made where it runs)";

struct RemoteCells<'a> {
    runner: &'a CellRunner<'a>,
    started: Instant,
    /// Maximum submitted cells while their results decide the number of iterations.
    undecided_limit: usize,
    without_result: Vec<CellWithoutResult>,
}

/// Collects failures for the loop driver, which converts the executor's by `From`.
struct DriveFailure<E>(MatrixRunError<E>);

impl<E> From<E> for DriveFailure<E> {
    fn from(error: E) -> Self {
        Self(MatrixRunError::Executor(error))
    }
}

impl<E> RemoteSteps<MatrixPlan, DriveFailure<E>> for RemoteCells<'_> {
    fn prepare(
        &mut self,
        _plan: &MatrixPlan,
        step: &CellStep,
    ) -> Result<PreparedRun, DriveFailure<E>> {
        let there = Path::new(MADE_THERE);
        let prepared = self.runner.prepare(0, there, there, step);
        prepared.map_err(|error| DriveFailure(error.into()))
    }

    fn report(&mut self, _worker: &mut Worker, step: &CellStep, run: &Run) -> Option<CellResult> {
        let result = cell_result(run);
        self.runner.add_result(run);
        if result.is_none()
            && let Some(outcome) = &run.outcome
        {
            let name = self.runner.name(step.cell);
            self.without_result.push(CellWithoutResult::new(name, step.iteration, outcome));
        }
        result
    }

    fn limit(&self, plan: &MatrixPlan, capacity: usize) -> usize {
        match plan.sampling() {
            Some(_) => capacity.min(self.undecided_limit),
            None => capacity,
        }
    }

    fn reported(&mut self, worker: &mut Worker, plan: &mut MatrixPlan, _step: &CellStep) {
        self.runner.finish_step(worker, plan);
    }

    fn tick(&mut self, plan: &MatrixPlan, status: &RemoteStatus) {
        let (progress, started) = (plan.progress(), self.started);
        let remote = Some(status);
        self.runner.observer.event(MatrixEvent::Progress { progress, started, remote });
    }
}

/// The result of a run on another machine; `None` for a run without one.
fn cell_result(run: &Run) -> Option<CellResult> {
    let outcome = run.outcome.as_ref()?;
    if matches!(
        outcome.kind,
        OutcomeKind::Cancelled | OutcomeKind::Interrupted | OutcomeKind::NotStarted
    ) {
        return None;
    }
    // Effects in an unknown form of another release have no measurements.
    let measured = outcome.effects.as_ref().and_then(Effects::measurements);
    let Measurements { metrics, notes, .. } = measured.cloned().unwrap_or_default();
    let labels = CellLabels::from_labels(&run.intent.request.labels);
    Some(CellResult {
        id: run.intent.id(),
        ok: labels.map_or_else(|| run.success(), |labels| is_result(&(&**outcome).into(), &labels)),
        timed_out: outcome.kind == OutcomeKind::TimedOut,
        exit_code: outcome.exit_code.unwrap_or(1),
        duration_ms: outcome.duration_ms,
        metrics,
        notes,
        failed_hook: None,
        node: outcome.ran_on.as_ref().and_then(|ran_on| ran_on.node.clone()),
        disturbances: outcome.ran_on.as_ref().map_or_else(Vec::new, |on| on.disturbances.clone()),
    })
}

/// Runs the plan to its end on other machines.
pub(super) fn drive<X>(
    plan: MatrixPlan,
    worker: &mut Worker,
    executor: &mut X,
    runner: &CellRunner<'_>,
    undecided_limit: usize,
) -> Driven<MatrixPlan, MatrixRunError<X::Error>>
where
    X: RemoteExecutor,
{
    let started = Instant::now();
    let mut cells = RemoteCells { runner, started, undecided_limit, without_result: Vec::new() };
    let Driven { plan, failure, cancelled } =
        remote::drive(plan, worker, executor, &mut cells, &());
    let failure = failure.map(|DriveFailure(failure)| failure);
    let without = cells.without_result;
    let without = (!without.is_empty() && !cancelled).then_some(without);
    let without = without.map(|cells| MatrixError::WithoutResult(cells).into());
    Driven { plan, failure: failure.or(without), cancelled }
}
