//! Queries the scheduler, and decides about cells that have no result.

use std::time::{Duration, Instant};

use retake_runner::notice::RemoteNotice;

use super::submission::Submission;
use super::{Batch, Cell, CellState, missing_result};
use crate::error::Error;
use crate::job_state::{self, CellHistory, JobEnd, JobState, Resolution};
use crate::slurm_commands::{self, TaskRow, TaskRows};
use crate::slurm_programs::{ProgramError, SlurmPrograms};

/// A task ends before its results are visible to others: a network file system takes its time.
pub(super) const GRACE: Duration = Duration::from_secs(3);
/// How long the scheduler may not report a task that was submitted.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a task may wait for something that will not happen.
const NEVER_RUNS_AFTER: Duration = Duration::from_secs(20);
/// How long a task may take to end after its last result.
const ENDING_TIME: Duration = Duration::from_secs(2);
/// The interval between queries of the scheduler: at least this, and a multiple of a query's duration.
pub(crate) const ASK_EVERY: Duration = Duration::from_secs(1);
const ASK_AT_MOST: Duration = Duration::from_secs(15);
const ASK_COST: u32 = 40;

/// How long the scheduler may not know a task before that counts as an answer. A pending task that was
/// cancelled disappears at once; one that had started would still be known.
fn allowed_silence(cell: &Cell, withdrawn: bool, visible_after: Duration) -> Duration {
    match withdrawn && cell.seen_queued && !cell.started {
        true => Duration::ZERO,
        false => SILENCE.max(visible_after),
    }
}

impl Batch {
    pub(super) fn note_scheduler_error(&mut self, error: &ProgramError) {
        // After a signal, no further program is started once one did not answer. The runs left behind
        // are reported once, and nothing is retried.
        if matches!(error, ProgramError::NoAnswer { after, .. } if after.is_zero()) {
            return;
        }
        self.notices.push(RemoteNotice::SchedulerFails(error.to_string()));
    }

    /// Queries the scheduler, and decides about every cell that has no result.
    pub(super) fn ask(&mut self, programs: &mut SlurmPrograms<'_>) -> Result<(), Error> {
        let submissions: Vec<usize> = (0..self.submissions.len()).collect();
        if self.cancelled && !self.cancel_sent {
            // Afterwards the scheduler does not know cancelled pending tasks any more.
            if let Ok(rows) =
                slurm_commands::query_tasks(programs, &self.manifest.key, &submissions)
            {
                for cell in self.cells.iter_mut().filter(|cell| cell.state != CellState::Done) {
                    let row = cell.task.and_then(|task| rows.get(&task));
                    cell.seen_queued |= row.is_some_and(TaskRow::is_pending);
                }
            }
            match slurm_commands::cancel(programs, &self.manifest.key, &submissions) {
                Ok(()) => self.cancel_sent = true,
                Err(error @ ProgramError::NotStarted { .. }) => return Err(error.into()),
                Err(error) => self.note_scheduler_error(&error),
            }
        }
        let rows = match slurm_commands::query_tasks(programs, &self.manifest.key, &submissions) {
            Ok(rows) => rows,
            Err(error @ ProgramError::NotStarted { .. }) => return Err(error.into()),
            // A query changes nothing, so it is repeated after any error.
            Err(error) => {
                self.note_scheduler_error(&error);
                self.ask_at = Instant::now() + ASK_AT_MOST.min(self.ask_pause * 2);
                return Ok(());
            }
        };
        let soonest = ASK_EVERY.max(programs.last_duration * ASK_COST);
        self.ask_pause = (self.ask_pause * 5 / 4).clamp(soonest, ASK_AT_MOST.max(soonest));
        self.ask_at = Instant::now() + self.ask_pause;
        self.look_for_unconfirmed(&rows)?;
        self.look_for_starts()?;
        let mut again = Vec::new();
        for cell in 0..self.cells.len() {
            if self.cells[cell].state != CellState::Done && self.decide(cell, &rows, programs)? {
                again.push(cell);
            }
        }
        self.submit_again(again);
        Ok(())
    }

    /// Decides about a cell without a result; `true` if it must be submitted again.
    fn decide(
        &mut self,
        at: usize,
        rows: &TaskRows,
        programs: &mut SlurmPrograms<'_>,
    ) -> Result<bool, Error> {
        let task = self.cells[at].task;
        let sent = task.and_then(|(submission, _)| self.submissions.get(submission));
        let Some(task) = task.filter(|_| sent.is_some_and(Submission::is_received)) else {
            if self.cancelled {
                missing_result::publish(self, at, &Resolution::Cancelled, None)?;
            }
            return Ok(false);
        };
        let row = rows.get(&task);
        let state = JobState::of(row);
        if matches!(state, JobState::Over(_) | JobState::Unknown)
            && self.batch_dir.result(at).exists()
        {
            // On a network file system a name can be found before a listing contains it.
            self.found_by_name.insert(at);
            return Ok(false);
        }
        // A command that ran may have left a result that is not visible yet.
        let visible_after = match self.cells[at].started && !self.cancelled {
            true => GRACE.max(Duration::from_millis(self.manifest.visible_after_ms)),
            false => GRACE,
        };
        let cell = &mut self.cells[at];
        let waited = |since: &mut Option<Instant>| since.get_or_insert_with(Instant::now).elapsed();
        let end: Option<JobEnd> = match state {
            JobState::Queued => {
                (cell.state, cell.since, cell.seen_queued) = (CellState::Queued, None, true);
                return Ok(false);
            }
            JobState::Running { node } => {
                (cell.state, cell.since) = (CellState::Running { node }, None);
                return Ok(false);
            }
            JobState::Held if cell.releases + 1 < job_state::MAX_TRIES => {
                cell.releases += 1;
                if let Some(row) = row {
                    // If this fails, the task is found held again.
                    _ = slurm_commands::release(programs, &row.job, task.1);
                }
                return Ok(false);
            }
            JobState::NeverRuns { reason } => {
                if waited(&mut cell.since) < NEVER_RUNS_AFTER {
                    return Ok(false);
                }
                self.take_from_queue(row, task, programs);
                let why = format!("Slurm will never start this job as requested: {reason}");
                missing_result::publish_refused(self, at, &why)?;
                return Ok(false);
            }
            JobState::Held => {
                self.take_from_queue(row, task, programs);
                Some(JobEnd::Lost { why: "it could not be launched".to_owned() })
            }
            // The node's own report is final: it saw the shared directory.
            JobState::Over(end @ (JobEnd::Cancelled | JobEnd::DirectoryFull))
                if waited(&mut cell.since) >= GRACE =>
            {
                Some(end)
            }
            JobState::Over(end) if waited(&mut cell.since) >= visible_after => Some(end),
            JobState::Unknown
                if waited(&mut cell.since)
                    >= allowed_silence(cell, self.cancel_sent, visible_after) =>
            {
                None
            }
            JobState::Over(_) | JobState::Unknown => {
                self.ask_at = self.ask_at.min(Instant::now() + ASK_EVERY);
                return Ok(false);
            }
        };
        let siblings = rows.keys().any(|(submission, _)| *submission == task.0);
        self.resolve(at, task, (row, end), siblings)
    }

    /// Cancels a task that never runs. If that fails, it is found in the queue again.
    fn take_from_queue(
        &self,
        row: Option<&TaskRow>,
        task: (usize, usize),
        programs: &mut SlurmPrograms<'_>,
    ) {
        if let Some(row) = row {
            let name = slurm_commands::job_name(&self.manifest.key, task.0);
            _ = slurm_commands::cancel_task(programs, &row.job, task.1, &name);
        }
    }

    /// Decides about a cell whose task ended without a result: an outcome, or `true` if it must be
    /// submitted again. `siblings`: whether the scheduler still knows others of its submission.
    fn resolve(
        &mut self,
        at: usize,
        task: (usize, usize),
        (row, end): (Option<&TaskRow>, Option<JobEnd>),
        siblings: bool,
    ) -> Result<bool, Error> {
        if end == Some(JobEnd::DirectoryFull) {
            self.note_full();
        }
        let end = end.map(|end| self.with_runner_log(end, task, row));
        let cell = &mut self.cells[at];
        let history = CellHistory {
            started: cell.started,
            vanished_from_queue: cell.seen_queued && siblings,
            cancelled: self.cancelled,
            repeatable: self.manifest.repeatable,
            losses: cell.losses,
        };
        let resolution = job_state::resolve(end.as_ref(), history);
        if let Resolution::SubmitAgain { why } = &resolution {
            cell.losses += 1;
            cell.releases = 0;
            self.notices.push(RemoteNotice::SubmittedAgain { run: cell.run, why: why.clone() });
            return Ok(true);
        }
        missing_result::publish(self, at, &resolution, row)?;
        Ok(false)
    }

    /// The end of a task, with the messages of its runner.
    fn with_runner_log(&self, end: JobEnd, task: (usize, usize), row: Option<&TaskRow>) -> JobEnd {
        let failed_on = row.filter(|row| row.status != 0).and_then(|row| row.node.as_deref());
        match (end, self.batch_dir.runner_log(task, failed_on)) {
            (JobEnd::Lost { why }, Some(said)) => JobEnd::Lost { why: format!("{why}: {said}") },
            (end, _) => end,
        }
    }

    /// Whether a task still exists although all its cells have had their results for a while. A task
    /// that has just left its last result is about to end.
    pub(super) fn lingers(&self, task: (usize, usize), row: &TaskRow) -> bool {
        let its = |cell: &&Cell| cell.task == Some(task);
        let recent = |cell: &Cell| cell.done_at.is_some_and(|at| at.elapsed() < ENDING_TIME);
        match JobState::of(Some(row)) {
            JobState::Over(_) | JobState::Unknown => false,
            JobState::Running { .. } => !self.cells.iter().filter(its).any(recent),
            JobState::Queued | JobState::Held | JobState::NeverRuns { .. } => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_pending_task_is_not_waited_for() {
        let mut cell = Cell::new(retake_types::RunId::new());
        assert_eq!(allowed_silence(&cell, true, GRACE), SILENCE);
        cell.seen_queued = true;
        assert_eq!(allowed_silence(&cell, false, GRACE), SILENCE);
        assert_eq!(allowed_silence(&cell, true, GRACE), Duration::ZERO);
        cell.started = true;
        assert_eq!(allowed_silence(&cell, true, GRACE), SILENCE);
        assert_eq!(allowed_silence(&cell, true, SILENCE * 6), SILENCE * 6);
    }
}
