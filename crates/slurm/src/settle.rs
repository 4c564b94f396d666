//! The result of a cell that no machine will give one: made by the submitter, and published in the
//! same way, so that a machine that comes first after all still counts.

use std::time::Duration;

use retake_store::ResultFile;
use retake_types::{Ending, ErrorCode, LimitKind, Outcome, RanOn, RunError, StartFailure, Word};

use super::Error;
use super::collect::Batch;
use super::fold::Settled;
use super::node::empty;
use super::publish::{self, claim};
use super::slurm::Row;
use super::stop::By;
use retake_runner::run;

/// Publishes what was settled. The next look for results finds it.
pub(super) fn publish(
    batch: &Batch,
    cell: usize,
    settled: &Settled,
    row: Option<&Row>,
) -> Result<(), Error> {
    if matches!(settled, Settled::Cancelled | Settled::CancelledOutside) {
        // What the attempt had when it was told to stop is more than we could say.
        let stopped = batch.layout.attempts("stopped")?;
        if let Some((_, path)) = stopped.iter().find(|(its, _)| *its == cell) {
            claim(path, &batch.layout.result(cell))?;
            return Ok(());
        }
    }
    let error = |code, message: String, hint: &str| RunError {
        code,
        message,
        hint: Some(hint.to_owned()).filter(|hint| !hint.is_empty()),
        problems: Vec::new(),
    };
    let (outcome, error) = match settled {
        Settled::Again { .. } => return Ok(()),
        Settled::Cancelled => {
            let by = batch.layout.unwanted_by().unwrap_or(By::Submitter(None));
            (Outcome::Cancelled(by.signal()), by.error())
        }
        Settled::CancelledOutside => {
            (Outcome::Cancelled(By::SomeoneElse.signal()), By::SomeoneElse.error())
        }
        Settled::TimedOut => (
            Outcome::TimedOut,
            error(
                ErrorCode::Timeout,
                "Slurm ended it at its time limit".to_owned(),
                "give it longer with --timeout",
            ),
        ),
        Settled::OutOfMemory => (
            Outcome::LimitExceeded(LimitKind::Memory, libc::SIGKILL),
            error(
                ErrorCode::LimitExceeded,
                "Slurm ended it because it used too much memory".to_owned(),
                "ask for more with slurm.options, such as --mem=4G",
            ),
        ),
        Settled::Lost { why, tries } => {
            let times = if *tries == 1 { "once" } else { &format!("{tries} times") };
            let message = format!("the run was lost: {why}; tried {times}");
            (
                Outcome::Interrupted,
                error(
                    ErrorCode::NoResources,
                    message,
                    "nothing is known of the command; run it again",
                ),
            )
        }
    };
    leave(batch, cell, &outcome, error, row)
}

/// Publishes that it was never started, and why.
pub(super) fn refused(batch: &Batch, cell: usize, why: &str) -> Result<(), Error> {
    let failure = StartFailure::Refused(vec![why.to_owned()]);
    let error = run::refusal(&failure);
    leave(batch, cell, &Outcome::NotStarted(failure), error, None)
}

fn leave(
    batch: &Batch,
    cell: usize,
    outcome: &Outcome,
    error: RunError,
    row: Option<&Row>,
) -> Result<(), Error> {
    let task = batch.cells[cell].task;
    let attempt = format!("submitter-{}", std::process::id());
    let ran_on = RanOn {
        executor: "slurm".to_owned(),
        node: row.and_then(|row| row.node.clone()),
        job: row.zip(task).map(|(row, (_, task))| format!("{}_{task}", row.job)),
        attempt: attempt.clone(),
        start_time: None,
    };
    let order = batch.layout.read_order(cell)?;
    let mut ending = empty(outcome, ran_on);
    ending.error = Some(error);
    // Time in the queue is no time of the command's.
    let lived = batch.layout.began(cell)?.and_then(|began| began.elapsed().ok());
    let lived = lived.unwrap_or(Duration::ZERO);
    ending.duration_ms = u64::try_from(lived.as_millis()).unwrap_or(u64::MAX);
    let temporary = batch.layout.temporary(cell, &attempt);
    // Left by an earlier try of ours that failed half way.
    _ = std::fs::remove_file(&temporary);
    let result = ResultFile::new(&temporary);
    publish::write(&batch.layout, cell, &attempt, result, &order.intent, ending)?;
    publish::publish(&batch.layout, cell, &attempt)?;
    Ok(())
}

/// How a recorded run ended, as far as its ending tells.
pub fn outcome(ending: &Ending) -> Outcome {
    let code = ending.exit_code.unwrap_or(125);
    match ending.outcome {
        Word::Exited => Outcome::Exited(code),
        Word::Signaled => Outcome::Signaled(code - 128),
        Word::TimedOut => Outcome::TimedOut,
        Word::Cancelled => Outcome::Cancelled(code - 128),
        Word::LimitExceeded | Word::NotStarted | Word::Interrupted => Outcome::Interrupted,
    }
}
