//! What was handed to the scheduler: lists of cells, each sent once, and sent again only when it is
//! known that the scheduler never got it.

use std::fs;
use std::time::Instant;

use super::inquiry::ASK_EVERY;
use super::{Batch, Cell, State};
use crate::Error;
use crate::batch;
use crate::settle;
use crate::slurm;
use crate::slurm::Rows;
use crate::tools::Tools;

/// One submission.
pub(super) struct Round {
    tasks: usize,
    sent: Sent,
}

/// What is known of a submission.
#[derive(PartialEq, Eq)]
enum Sent {
    Not,
    /// Perhaps: whoever sent it did not live to hear the answer, or the answer was lost.
    Perhaps {
        asked: u32,
    },
    Yes,
}

impl Round {
    /// Whether the scheduler has it, as far as is known.
    pub(super) fn arrived(&self) -> bool {
        self.sent == Sent::Yes
    }
}

impl Batch {
    /// Whether the scheduler has, as far as is known, everything that it is to have.
    pub(crate) fn submitted(&self) -> bool {
        self.unwanted || self.rounds.iter().all(Round::arrived)
    }

    /// What was listed and sent before us.
    pub(super) fn read_rounds(&mut self) -> Result<(), Error> {
        for round in self.layout.rounds()? {
            let path = self.layout.list(round);
            let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
            let listed = text.lines().filter_map(|line| {
                line.strip_prefix("order/")?.strip_suffix(".json")?.parse::<usize>().ok()
            });
            let mut count = 0;
            for (place, cell) in listed.enumerate() {
                count = place + 1;
                if let Some(cell) = self.cells.get_mut(cell) {
                    cell.losses += u32::from(cell.task.is_some());
                    cell.task = Some((round, place / self.manifest.pack));
                }
            }
            let sent = match self.layout.job(round).exists() {
                true => Sent::Yes,
                false => Sent::Perhaps { asked: 0 },
            };
            self.rounds.resize_with(round, || Round { tasks: 0, sent: Sent::Yes });
            self.rounds.push(Round { tasks: count.div_ceil(self.manifest.pack), sent });
        }
        let missing = |(at, cell): (usize, &Cell)| {
            (cell.task.is_none() && cell.state != State::Done).then_some(at)
        };
        let missing: Vec<usize> = self.cells.iter().enumerate().filter_map(missing).collect();
        self.enlist(missing)
    }

    /// Lists cells for submission, as many in one as the site allows.
    pub(super) fn enlist(&mut self, cells: Vec<usize>) -> Result<(), Error> {
        let pack = self.manifest.pack;
        for part in cells.chunks(self.site.array.saturating_mul(pack)) {
            let round = self.rounds.len();
            let list: String = part.iter().map(|cell| format!("order/{cell}.json\n")).collect();
            batch::write(&self.layout.list(round), list.as_bytes())?;
            for (place, cell) in part.iter().enumerate() {
                self.cells[*cell].task = Some((round, place / pack));
                self.cells[*cell].since = None;
                self.cells[*cell].seen_queued = false;
            }
            self.rounds.push(Round { tasks: part.len().div_ceil(pack), sent: Sent::Not });
        }
        Ok(())
    }

    /// Sends what was listed and is not sent yet.
    pub(super) fn send(&mut self, tools: &mut Tools<'_>) -> Result<(), Error> {
        for round in 0..self.rounds.len() {
            if self.rounds[round].sent != Sent::Not {
                continue;
            }
            let tasks = self.rounds[round].tasks;
            match slurm::submit(tools, &self.layout, &self.manifest, round, tasks) {
                Ok(job) => {
                    self.rounds[round].sent = Sent::Yes;
                    batch::write(&self.layout.job(round), job.as_bytes())?;
                    self.ask_at = Instant::now() + self.ask_pause;
                }
                Err(error) if error.passes() => {
                    // It may have arrived although we did not hear so.
                    self.rounds[round].sent = Sent::Perhaps { asked: 0 };
                    self.ask_at = Instant::now() + ASK_EVERY;
                    self.troubled(&error.to_string());
                }
                Err(error) => {
                    let why = error.to_string();
                    let of_round = |cell: &&usize| {
                        self.cells[**cell].task.is_some_and(|(its, _)| its == round)
                    };
                    let all: Vec<usize> = (0..self.cells.len()).collect();
                    let refused: Vec<usize> = all.iter().filter(of_round).copied().collect();
                    self.rounds[round].sent = Sent::Yes;
                    for cell in refused {
                        settle::refused(self, cell, &why)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Submissions of which it is not known whether they arrived.
    pub(super) fn find_unheard(&mut self, rows: &Rows) -> Result<(), Error> {
        for round in 0..self.rounds.len() {
            let Sent::Perhaps { asked } = self.rounds[round].sent else { continue };
            let found = rows.iter().find(|((its, _), _)| *its == round);
            self.rounds[round].sent = match found {
                Some((_, row)) => {
                    batch::write(&self.layout.job(round), row.job.as_bytes())?;
                    Sent::Yes
                }
                // What was under way when we first looked has arrived by the second time.
                None if asked > 0 => Sent::Not,
                None => Sent::Perhaps { asked: asked + 1 },
            };
            if self.rounds[round].sent != Sent::Yes {
                self.ask_at = Instant::now() + ASK_EVERY;
            }
        }
        Ok(())
    }
}
