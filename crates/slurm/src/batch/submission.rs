//! Submissions to the scheduler: lists of cells, each submitted once, and submitted again only if it is
//! known that the scheduler never received it.

use std::time::Instant;

use retake_runner::notice::RemoteNotice;

use super::scheduler_poll::ASK_EVERY;
use super::{Batch, Cell, CellState, missing_result};
use crate::batch_dir;
use crate::error::Error;
use crate::slurm_commands::{self, SiteLimits, TaskRows};
use crate::slurm_programs::{ProgramError, SlurmPrograms};

/// One submission.
pub(super) struct Submission {
    tasks: usize,
    sent: Sent,
}

/// The state of a submission.
#[derive(PartialEq, Eq)]
enum Sent {
    Not,
    /// The process that sent it died before the answer, or the answer was lost.
    Perhaps {
        asked: u32,
    },
    Yes,
}

impl Submission {
    /// Whether the scheduler has it, as far as known.
    pub(super) fn is_received(&self) -> bool {
        self.sent == Sent::Yes
    }
}

impl Batch {
    /// Whether the scheduler has all submissions, as far as known.
    pub(crate) fn submitted(&self) -> bool {
        self.cancelled || self.submissions.iter().all(Submission::is_received)
    }

    /// Reads what an earlier process listed and submitted.
    pub(super) fn read_submissions(&mut self) -> Result<(), Error> {
        for submission in self.batch_dir.begun_submissions()? {
            let listed = self.batch_dir.read_list(submission)?;
            let count = listed.len();
            for (position, cell) in listed.into_iter().enumerate() {
                if let Some(cell) = self.cells.get_mut(cell) {
                    cell.losses += u32::from(cell.task.is_some());
                    cell.task = Some((submission, position / self.manifest.pack));
                }
            }
            let sent = match self.batch_dir.job(submission).exists() {
                true => Sent::Yes,
                false => Sent::Perhaps { asked: 0 },
            };
            self.submissions.resize_with(submission, || Submission { tasks: 0, sent: Sent::Yes });
            self.submissions.push(Submission { tasks: count.div_ceil(self.manifest.pack), sent });
        }
        let missing = |(at, cell): (usize, &Cell)| {
            (cell.task.is_none() && cell.state != CellState::Done).then_some(at)
        };
        self.unlisted = self.cells.iter().enumerate().filter_map(missing).collect();
        Ok(())
    }

    /// Lists these cells for submission again.
    pub(super) fn submit_again(&mut self, cells: Vec<usize>) {
        for cell in &cells {
            self.cells[*cell].task = None;
        }
        self.unlisted.extend(cells);
    }

    /// The limits of the site; `None` while it cannot be queried.
    fn site(&mut self, programs: &mut SlurmPrograms<'_>) -> Result<Option<SiteLimits>, Error> {
        if self.site.is_none() {
            match slurm_commands::site_limits(programs) {
                Ok(site) => self.site = Some(site),
                Err(error) if error.is_temporary() => self.note_scheduler_error(&error),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.site)
    }

    /// Lists cells for submission, as many in one as the site allows.
    fn list_for_submission(&mut self, site: SiteLimits) -> Result<(), Error> {
        let pack = self.manifest.pack;
        while !self.unlisted.is_empty() {
            let count = self.unlisted.len().min(site.array.saturating_mul(pack));
            let part: Vec<usize> = self.unlisted[..count].to_vec();
            let submission = self.submissions.len();
            let list: String = part.iter().map(|cell| format!("{cell}\n")).collect();
            batch_dir::write(&self.batch_dir.list(submission), list.as_bytes())?;
            for (position, cell) in part.iter().enumerate() {
                self.cells[*cell].task = Some((submission, position / pack));
                self.cells[*cell].since = None;
                self.cells[*cell].seen_queued = false;
            }
            self.submissions.push(Submission { tasks: part.len().div_ceil(pack), sent: Sent::Not });
            self.unlisted.drain(..count);
        }
        Ok(())
    }

    /// Submits everything that is not submitted yet.
    pub(super) fn submit_listed(&mut self, programs: &mut SlurmPrograms<'_>) -> Result<(), Error> {
        let unsent = |submission: &Submission| submission.sent == Sent::Not;
        if Instant::now() < self.submit_at
            || (self.unlisted.is_empty() && !self.submissions.iter().any(unsent))
        {
            return Ok(());
        }
        let Some(site) = self.site(programs)? else {
            self.submit_at = Instant::now() + ASK_EVERY;
            return Ok(());
        };
        self.list_for_submission(site)?;
        for submission in 0..self.submissions.len() {
            if self.submissions[submission].sent != Sent::Not {
                continue;
            }
            let tasks = self.submissions[submission].tasks;
            match slurm_commands::submit(
                programs,
                &self.batch_dir,
                &self.manifest,
                submission,
                tasks,
            ) {
                Ok(job) => {
                    self.submissions[submission].sent = Sent::Yes;
                    self.ask_at = Instant::now() + self.ask_pause;
                    if std::mem::take(&mut self.queue_full) {
                        self.notices.push(RemoteNotice::QueueAccepts);
                    }
                    batch_dir::write(&self.batch_dir.job(submission), job.as_bytes())?;
                }
                Err(ProgramError::QueueFull { said, .. }) => {
                    // Terminated while it waited; its last request may have been received.
                    self.submissions[submission].sent = Sent::Perhaps { asked: 0 };
                    self.ask_at = Instant::now() + ASK_EVERY;
                    if !std::mem::replace(&mut self.queue_full, true) {
                        let waiting = self.waiting_for_submission() as u64;
                        let limit = site.jobs.map(|jobs| jobs as u64);
                        self.notices.push(RemoteNotice::QueueFull { waiting, limit, said });
                    }
                    // The others would not be accepted either.
                    return Ok(());
                }
                Err(error) if error.is_temporary() => {
                    // It may have been received although the answer was lost.
                    self.submissions[submission].sent = Sent::Perhaps { asked: 0 };
                    self.ask_at = Instant::now() + ASK_EVERY;
                    self.note_scheduler_error(&error);
                }
                Err(error) => {
                    let why = error.to_string();
                    let of_submission = |cell: &&usize| {
                        self.cells[**cell].task.is_some_and(|(its, _)| its == submission)
                    };
                    let all: Vec<usize> = (0..self.cells.len()).collect();
                    let refused: Vec<usize> = all.iter().filter(of_submission).copied().collect();
                    self.submissions[submission].sent = Sent::Yes;
                    for cell in refused {
                        missing_result::publish_refused(self, cell, &why)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The cells that the scheduler has not accepted.
    fn waiting_for_submission(&self) -> usize {
        let waits = |cell: &&Cell| {
            let submission = cell.task.and_then(|(submission, _)| self.submissions.get(submission));
            cell.state != CellState::Done && submission.is_none_or(|its| !its.is_received())
        };
        self.cells.iter().filter(waits).count()
    }

    /// Checks submissions that the scheduler may or may not have received.
    pub(super) fn look_for_unconfirmed(&mut self, rows: &TaskRows) -> Result<(), Error> {
        for submission in 0..self.submissions.len() {
            let Sent::Perhaps { asked } = self.submissions[submission].sent else { continue };
            let found = rows.iter().find(|((its, _), _)| *its == submission);
            self.submissions[submission].sent = match found {
                Some((_, row)) => {
                    batch_dir::write(&self.batch_dir.job(submission), row.job.as_bytes())?;
                    Sent::Yes
                }
                // A submission in transit at the first check has arrived by the second.
                None if asked > 0 => Sent::Not,
                None => Sent::Perhaps { asked: asked + 1 },
            };
            if self.submissions[submission].sent != Sent::Yes {
                self.ask_at = Instant::now() + ASK_EVERY;
            }
        }
        Ok(())
    }
}
