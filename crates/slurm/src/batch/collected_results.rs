//! Collects results from machines: imports each into the record once, and removes it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::rc::Rc;
use std::time::Instant;

use retake_runner::notice::RemoteNotice;
use retake_store::{Imported, Store};

use super::scheduler_poll::GRACE;
use super::{Batch, CellState};
use crate::error::Error;
use crate::result_file::ResultReader;

/// Number of files that are imported together.
const FILES_TOGETHER: usize = 200;

impl Batch {
    /// Finds cells that have started, more often than the scheduler is queried, and removes the start
    /// files of recorded cells.
    pub(super) fn look_for_starts(&mut self) -> Result<(), Error> {
        for (cell, path) in self.batch_dir.attempts("started")? {
            let Some(cell) = self.cells.get_mut(cell) else { continue };
            if cell.settled {
                // A file that stays is tried again next time, and is removed with the batch.
                _ = fs::remove_file(&path);
            } else if !cell.started {
                cell.started = true;
                if cell.state == CellState::Queued {
                    let node = fs::read_to_string(&path).ok().filter(|node| !node.is_empty());
                    cell.state = CellState::Running { node };
                }
            }
        }
        Ok(())
    }

    /// Imports new results into the record, many with one commit, and returns the cells that got
    /// their result.
    pub(crate) fn import_results(&mut self, store: &mut Store) -> Result<Vec<usize>, Error> {
        let mut names: BTreeSet<usize> = self.batch_dir.finished()?.into_iter().collect();
        names.extend(std::mem::take(&mut self.found_by_name));
        names.retain(|cell| *cell < self.cells.len());
        let names: Vec<usize> = names.into_iter().collect();
        let mut taken = Vec::with_capacity(names.len());
        let mut failed = None;
        for part in names.chunks(FILES_TOGETHER) {
            if let Ok(imported) = self.import(store, part) {
                self.settle(part, &imported, &mut taken);
                continue;
            }
            for name in part {
                match self.import(store, &[*name]) {
                    Ok(imported) => self.settle(&[*name], &imported, &mut taken),
                    Err(Error::Store(retake_store::Error::BadImport { detail, .. })) => {
                        self.note_recorded(store, &mut taken)?;
                        self.set_aside(*name, &detail)?;
                    }
                    Err(error) => failed = Some(error),
                }
            }
        }
        for (cell, result) in std::mem::take(&mut self.own_results) {
            if self.cells[cell].state != CellState::Done {
                store.import(&mut result.as_slice())?;
                self.note_done(cell, &mut taken);
            }
        }
        failed.map_or(Ok(taken), Err)
    }

    fn note_done(&mut self, cell: usize, taken: &mut Vec<usize>) {
        let known = &mut self.cells[cell];
        if known.state != CellState::Done {
            known.state = CellState::Done;
            known.done_at = Some(Instant::now());
            self.left -= 1;
            taken.push(cell);
        }
    }

    /// Everything in these files is recorded: removes them. A file without new results, of a
    /// cell whose result was removed before, came too late and is kept.
    fn settle(&mut self, names: &[usize], imported: &Imported, taken: &mut Vec<usize>) {
        let new = imported.imported.iter().filter_map(|run| self.cell_of_run.get(run).copied());
        let new: BTreeSet<usize> = new.collect();
        for name in names {
            let path = self.batch_dir.result(*name);
            // A file that stays is found again, without new results.
            _ = match self.cells[*name].settled && !new.contains(name) {
                true => fs::rename(&path, self.batch_dir.late(*name, "recorded")),
                false => fs::remove_file(&path),
            };
        }
        let cells: BTreeSet<usize> = new.iter().chain(names).copied().collect();
        let cells: Vec<usize> = cells.into_iter().collect();
        // After the removal: a marked cell with a result got it later.
        let marked = self.batch_dir.mark_done(&cells).is_ok();
        for cell in cells {
            self.note_done(cell, taken);
            self.cells[cell].settled |= marked;
        }
    }

    /// Cells whose results are recorded although their file could not be read to its
    /// end.
    fn note_recorded(&mut self, store: &mut Store, taken: &mut Vec<usize>) -> Result<(), Error> {
        let remote = store.remote_runs()?;
        for cell in 0..self.cells.len() {
            if remote.binary_search(&self.cells[cell].run).is_err() {
                self.note_done(cell, taken);
            }
        }
        Ok(())
    }

    fn import(&self, store: &mut Store, names: &[usize]) -> Result<Imported, Error> {
        let failed = Rc::new(RefCell::new(None));
        let mut all: Box<dyn Read> = Box::new(io::empty());
        for name in names {
            let path = self.batch_dir.result(*name);
            let file = File::open(&path).map_err(Error::io("read", &path))?;
            all = Box::new(all.chain(ResultReader { file, path, failed: failed.clone() }));
        }
        let imported = store.import(&mut BufReader::with_capacity(256 * 1024, all));
        // A file that could not be read is not damaged.
        match failed.take() {
            Some(error) => Err(error),
            None => Ok(imported?),
        }
    }

    /// A damaged result does not count, unless it can be read a little later: on a
    /// network file system a file may be visible before all of it is.
    fn set_aside(&mut self, name: usize, why: &str) -> Result<(), Error> {
        let seen = self.cells[name].damaged_at.get_or_insert_with(Instant::now);
        if seen.elapsed() < GRACE {
            return Ok(());
        }
        let (from, to) = (self.batch_dir.result(name), self.batch_dir.late(name, "damaged"));
        fs::rename(&from, &to).map_err(Error::io("set aside", &from))?;
        self.notices.push(RemoteNotice::ResultDamaged { path: to, why: why.to_owned() });
        Ok(())
    }
}
