//! What the scheduler is asked, how often, and what is done about a cell that has no result.

use std::time::{Duration, Instant};

use super::submission::Round;
use super::{Batch, Cell, State};
use crate::Error;
use crate::fold;
use crate::fold::End;
use crate::fold::Known;
use crate::fold::Settled;
use crate::fold::Verdict;
use crate::settle;
use crate::slurm;
use crate::slurm::Row;
use crate::slurm::Rows;
use crate::tools::ToolError;
use crate::tools::Tools;

/// A task is over before others see what it wrote: a network file system takes its time.
const GRACE: Duration = Duration::from_secs(3);
/// How long the scheduler may say nothing of a task that it was given.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// How long a task may wait for what will not come.
const HOPE: Duration = Duration::from_secs(20);
/// How long a task may take to end once its last result is there.
const ENDING: Duration = Duration::from_secs(2);
/// Questions to the scheduler: at least so far apart, and so many times what one costs.
pub(crate) const ASK_EVERY: Duration = Duration::from_secs(1);
const ASK_AT_MOST: Duration = Duration::from_secs(15);
const ASK_COST: u32 = 40;

/// How long nothing may be heard of a task until that is an answer. What waited when we had it
/// taken from the queue is not there: what had begun by then still would be.
fn silence(cell: &Cell, withdrawn: bool) -> Duration {
    if withdrawn && cell.seen_queued && !cell.began { Duration::ZERO } else { FORGOTTEN }
}

impl Batch {
    /// Says what is wrong, once for as long as it stays so.
    pub(super) fn troubled(&mut self, what: &str) {
        if self.trouble.is_none() {
            self.notices.push(format!("{what}; trying again"));
        }
        self.trouble = Some(what.to_owned());
    }

    /// Asks, and thinks about every cell that has no result.
    pub(super) fn ask(&mut self, tools: &mut Tools<'_>) -> Result<(), Error> {
        let rounds: Vec<usize> = (0..self.rounds.len()).collect();
        if self.unwanted && !self.cancel_told {
            // Of what waits now nothing will be heard afterwards. What is not answered is waited for.
            if let Ok(rows) = slurm::query(tools, &self.manifest.key, &rounds) {
                for cell in self.cells.iter_mut().filter(|cell| cell.state != State::Done) {
                    let row = cell.task.and_then(|task| rows.get(&task));
                    cell.seen_queued |= row.is_some_and(Row::waits);
                }
            }
            match slurm::cancel(tools, &self.manifest.key, &rounds) {
                Ok(()) => self.cancel_told = true,
                Err(error @ ToolError::NotStarted { .. }) => return Err(error.into()),
                Err(error) => self.troubled(&error.to_string()),
            }
        }
        let rows = match slurm::query(tools, &self.manifest.key, &rounds) {
            Ok(rows) => rows,
            Err(error @ ToolError::NotStarted { .. }) => return Err(error.into()),
            // A question changes nothing, so it is asked again whatever went wrong.
            Err(error) => {
                self.troubled(&error.to_string());
                self.ask_at = Instant::now() + ASK_AT_MOST.min(self.ask_pause * 2);
                return Ok(());
            }
        };
        if self.trouble.take().is_some() {
            self.notices.push("Slurm answers again".to_owned());
        }
        let soonest = ASK_EVERY.max(tools.spent * ASK_COST);
        self.ask_pause = (self.ask_pause * 5 / 4).clamp(soonest, ASK_AT_MOST.max(soonest));
        self.ask_at = Instant::now() + self.ask_pause;
        self.find_unheard(&rows)?;
        self.note_starts()?;
        let mut again = Vec::new();
        for cell in 0..self.cells.len() {
            if self.cells[cell].state != State::Done && self.consider(cell, &rows, tools)? {
                again.push(cell);
            }
        }
        self.enlist(again)
    }

    /// Thinks about a cell without a result; `true` if it is to be submitted again.
    fn consider(&mut self, at: usize, rows: &Rows, tools: &mut Tools<'_>) -> Result<bool, Error> {
        let Some(task) = self.cells[at].task else { return Ok(false) };
        let sent = self.rounds.get(task.0).is_some_and(Round::arrived);
        if !sent {
            if self.unwanted {
                settle::publish(self, at, &Settled::Cancelled, None)?;
            }
            return Ok(false);
        }
        let row = rows.get(&task);
        let verdict = fold::verdict(row);
        let cell = &mut self.cells[at];
        let waited = |since: &mut Option<Instant>| since.get_or_insert_with(Instant::now).elapsed();
        let end: Option<End> = match verdict {
            Verdict::Queued => {
                (cell.state, cell.since, cell.seen_queued) = (State::Queued, None, true);
                return Ok(false);
            }
            Verdict::Running { node } => {
                (cell.state, cell.since) = (State::Running { node }, None);
                return Ok(false);
            }
            Verdict::Held if cell.releases + 1 < fold::TRIES => {
                cell.releases += 1;
                if let Some(row) = row {
                    // One that cannot be released is found held again.
                    _ = slurm::release(tools, &row.job, task.1);
                }
                return Ok(false);
            }
            Verdict::Hopeless { reason } => {
                if waited(&mut cell.since) < HOPE {
                    return Ok(false);
                }
                if let Some(row) = row {
                    let name = slurm::name(&self.manifest.key, task.0);
                    _ = slurm::cancel_task(tools, &row.job, task.1, &name);
                }
                let why = format!("Slurm will never start this as it is asked for: {reason}");
                settle::refused(self, at, &why)?;
                return Ok(false);
            }
            Verdict::Held => {
                if let Some(row) = row {
                    let name = slurm::name(&self.manifest.key, task.0);
                    _ = slurm::cancel_task(tools, &row.job, task.1, &name);
                }
                Some(End::Lost { why: "it could not be launched".to_owned() })
            }
            Verdict::Over(end) if waited(&mut cell.since) >= GRACE => Some(end),
            Verdict::Unknown if waited(&mut cell.since) >= silence(cell, self.cancel_told) => None,
            Verdict::Over(_) | Verdict::Unknown => {
                self.ask_at = self.ask_at.min(Instant::now() + ASK_EVERY);
                return Ok(false);
            }
        };
        let siblings = rows.keys().any(|(round, _)| *round == task.0);
        let known = Known {
            began: cell.began,
            vanished_from_queue: cell.seen_queued && siblings,
            unwanted: self.unwanted,
            repeatable: self.manifest.repeatable,
            losses: cell.losses,
        };
        let settled = fold::settle(end.as_ref(), known);
        if let Settled::Again { why } = &settled {
            cell.losses += 1;
            cell.releases = 0;
            self.notices.push(format!("run {} is submitted again: {why}", cell.run.short()));
            return Ok(true);
        }
        settle::publish(self, at, &settled, row)?;
        Ok(false)
    }

    /// Whether a task is still there although all its cells have had their results for a while. One
    /// that has just left its last result is about to end.
    pub(super) fn lingers(&self, task: (usize, usize), row: &Row) -> bool {
        let its = |cell: &&Cell| cell.task == Some(task);
        let recent = |cell: &Cell| cell.done_at.is_some_and(|at| at.elapsed() < ENDING);
        match fold::verdict(Some(row)) {
            Verdict::Over(_) | Verdict::Unknown => false,
            Verdict::Running { .. } => !self.cells.iter().filter(its).any(recent),
            Verdict::Queued | Verdict::Held | Verdict::Hopeless { .. } => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_took_from_the_queue_is_not_waited_for() {
        let mut cell = Cell::new(retake_types::RunId::new());
        assert_eq!(silence(&cell, true), FORGOTTEN);
        cell.seen_queued = true;
        assert_eq!(silence(&cell, false), FORGOTTEN);
        assert_eq!(silence(&cell, true), Duration::ZERO);
        cell.began = true;
        assert_eq!(silence(&cell, true), FORGOTTEN);
    }
}
