//! The result of a cell that no machine will give one: written by the submitter, and published in the
//! same way, so that a machine's result that is published first still counts.

use std::time::Duration;

use retake_runner::run;
use retake_store::ResultFile;
use retake_store::redact::Redactor;
use retake_types::{
    ErrorCode, ErrorDetail, LimitKind, Outcome, RanOn, Redacted, RunError, StartFailure,
};

use super::Batch;
use crate::cancelled_by::CancelledBy;
use crate::error::Error;
use crate::job_state::Resolution;
use crate::result_file::{self, bare_ending};
use crate::slurm_commands::TaskRow;

/// Publishes the decision as a result. The next search for results finds it.
pub(super) fn publish(
    batch: &mut Batch,
    cell: usize,
    resolution: &Resolution,
    row: Option<&TaskRow>,
) -> Result<(), Error> {
    if matches!(resolution, Resolution::Cancelled | Resolution::CancelledOutside) {
        // An attempt that was told to stop has left details that are unknown here.
        let stopped = batch.batch_dir.attempts("stopped")?;
        if let Some((_, path)) = stopped.iter().find(|(its, _)| *its == cell) {
            result_file::link_first(path, &batch.batch_dir.result(cell))?;
            return Ok(());
        }
    }
    let error = |code, detail, message: String| RunError {
        code,
        detail: Some(detail),
        message,
        hint: None,
        problems: Vec::new(),
    };
    let (outcome, error) = match resolution {
        Resolution::SubmitAgain { .. } => return Ok(()),
        Resolution::Cancelled => {
            let by = batch.batch_dir.cancelled_by().unwrap_or(CancelledBy::Submitter(None));
            (Outcome::Cancelled(by.signal()), by.error())
        }
        Resolution::CancelledOutside => (
            Outcome::Cancelled(CancelledBy::SomeoneElse.signal()),
            CancelledBy::SomeoneElse.error(),
        ),
        Resolution::TimedOut => (
            Outcome::TimedOut,
            error(
                ErrorCode::Timeout,
                ErrorDetail::SchedulerTimeLimit,
                "Slurm terminated it at its time limit".to_owned(),
            ),
        ),
        Resolution::OutOfMemory => (
            Outcome::LimitExceeded(LimitKind::Memory, libc::SIGKILL),
            error(
                ErrorCode::LimitExceeded,
                ErrorDetail::SchedulerMemoryLimit,
                "Slurm terminated it because it used too much memory".to_owned(),
            ),
        ),
        Resolution::Lost { why, tries } => {
            let times = if *tries == 1 { "once" } else { &format!("{tries} times") };
            let message = format!("the run was lost: {why}; tried {times}");
            let error = error(ErrorCode::NoResources, ErrorDetail::RunLost, message);
            (Outcome::Interrupted, error)
        }
    };
    leave(batch, cell, &outcome, error, row)
}

/// Publishes that it was never started, and the reason.
pub(super) fn publish_refused(batch: &mut Batch, cell: usize, why: &str) -> Result<(), Error> {
    let failure = StartFailure::Refused(vec![why.to_owned()]);
    let error = run::start_error(&failure);
    leave(batch, cell, &Outcome::NotStarted(failure), error, None)
}

fn leave(
    batch: &mut Batch,
    cell: usize,
    outcome: &Outcome,
    error: RunError,
    row: Option<&TaskRow>,
) -> Result<(), Error> {
    let task = batch.cells[cell].task;
    let attempt = format!("submitter-{}", std::process::id());
    let ran_on = RanOn {
        executor: "slurm".to_owned(),
        node: row.and_then(|row| row.node.clone()),
        job: row.zip(task).map(|(row, (_, task))| format!("{}_{task}", row.job)),
        attempt: attempt.clone(),
        ..RanOn::default()
    };
    let intent = batch.batch_dir.read_intent(cell)?;
    let mut outcome = bare_ending(outcome, ran_on);
    outcome.error = Some(error);
    // Time in the queue does not count.
    let elapsed = batch.batch_dir.first_start(cell)?.and_then(|start| start.elapsed().ok());
    let elapsed = elapsed.unwrap_or(Duration::ZERO);
    outcome.duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    // The text comes from the scheduler and from retake: it can contain only secrets that are recognisable by shape.
    let mut shapes = Redactor::shapes();
    let outcome = Redacted::new(outcome, &mut shapes);
    let temporary = batch.batch_dir.temporary(cell, &attempt);
    // Left by an earlier attempt that failed halfway.
    _ = std::fs::remove_file(&temporary);
    let result = ResultFile::new(&temporary);
    let published =
        result_file::write(&batch.batch_dir, cell, &attempt, result, &intent, outcome.clone())
            .and_then(|()| result_file::publish(&batch.batch_dir, cell, &attempt));
    match published {
        Ok(_) => Ok(()),
        // If the directory is full, the result goes directly into the record.
        Err(error) if error.is_full() => {
            batch.own_results.push((cell, result_file::bytes(&intent, outcome)?));
            Ok(())
        }
        Err(error) => Err(error),
    }
}
