//! Results that are complete but not published yet.
//!
//! Cells of one task that end soon after each other share a file: on a network file system a file
//! costs more than its content. It is published under the name of its first cell when the task
//! ends, or a second after the last publication. Results lost with their machine before that run again.
//!
//! A published result of a cell that may be repeated is not synced, and if it is lost, the cell runs
//! again. A sync would take longer than a short cell, and would delay other users of the disk.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use retake_store::ResultFile;
use retake_types::{Intent, Redacted, RunId, RunOutcome};
use serde::Deserialize;

use crate::batch_dir::BatchDir;
use crate::error::Error;
use crate::result_file::{self, Published};

/// How long a result may wait for others.
const WAIT_AT_MOST: Duration = Duration::from_secs(1);
/// A file of this size is published immediately.
const LARGEST: u64 = 1 << 20;

/// The pending results of an attempt.
pub(crate) struct PendingResults {
    batch_dir: BatchDir,
    attempt: String,
    open: Option<OpenFile>,
    published_at: Instant,
}

struct OpenFile {
    path: PathBuf,
    file: File,
    length: u64,
    cells: Vec<usize>,
    /// A run in it must not be repeated, so the file is synced.
    must_last: bool,
}

impl PendingResults {
    pub(crate) fn new(batch_dir: &BatchDir, attempt: &str) -> Self {
        let (batch_dir, attempt) = (batch_dir.clone(), attempt.to_owned());
        Self { batch_dir, attempt, open: None, published_at: Instant::now() }
    }

    /// Adds the result of a cell. If it cannot be written, the others stay intact.
    pub(crate) fn add(
        &mut self,
        cell: usize,
        result: ResultFile,
        (intent, repeatable): (&Redacted<Intent>, bool),
        outcome: Redacted<RunOutcome>,
    ) -> Result<(), Error> {
        let open = match &mut self.open {
            Some(open) => open,
            None => {
                let path = self.batch_dir.temporary(cell, &self.attempt);
                let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
                let file = made.map_err(Error::io("write", &path))?;
                self.open.insert(OpenFile {
                    path,
                    file,
                    length: 0,
                    cells: Vec::new(),
                    must_last: false,
                })
            }
        };
        match open.write(result, intent, outcome) {
            Ok(()) => {
                open.cells.push(cell);
                open.must_last |= !repeatable;
                Ok(())
            }
            Err(error) => {
                if open.cells.is_empty() {
                    // The file is empty.
                    _ = fs::remove_file(&open.path);
                    self.open = None;
                }
                Err(error)
            }
        }
    }

    /// Publishes pending results if they have waited long enough or are large.
    pub(crate) fn publish_if_due(&mut self) -> Result<(), Error> {
        let large = self.open.as_ref().is_some_and(|open| open.length >= LARGEST);
        match large || self.published_at.elapsed() >= WAIT_AT_MOST {
            true => self.publish(),
            false => Ok(()),
        }
    }

    /// Publishes pending results.
    pub(crate) fn publish(&mut self) -> Result<(), Error> {
        self.published_at = Instant::now();
        let Some(open) = self.open.take() else { return Ok(()) };
        let written = match open.must_last {
            true => open.file.sync_data(),
            false => hand_over(&open.file),
        };
        if let Err(error) = written.map_err(Error::io("write", &open.path)) {
            // Kept for the next attempt.
            self.open = Some(open);
            return Err(error);
        }
        // Another attempt may have published a result under the first name, without all of these
        // cells. The collector takes each cell once.
        for cell in &open.cells {
            match result_file::link_first(&open.path, &self.batch_dir.result(*cell))? {
                Published::First => {
                    // The result has its final name now.
                    _ = fs::remove_file(&open.path);
                    return Ok(());
                }
                Published::Late => {}
            }
        }
        let late = self.batch_dir.late(open.cells[0], &self.attempt);
        fs::rename(&open.path, &late).map_err(Error::io("keep", &late))
    }
}

/// Makes a network file system send written data and report errors, by closing a duplicate of the
/// descriptor. A local file system has reported them already.
fn hand_over(file: &File) -> std::io::Result<()> {
    let copy = file.try_clone()?.into_raw_fd();
    // SAFETY: only this function has the descriptor.
    match unsafe { libc::close(copy) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

impl OpenFile {
    fn write(
        &mut self,
        result: ResultFile,
        intent: &Redacted<Intent>,
        outcome: Redacted<RunOutcome>,
    ) -> Result<(), Error> {
        let failed = |error| Error::io("write", &self.path)(error);
        let mut to = BufWriter::new(&self.file);
        let written = result
            .finish(intent, outcome, &mut to)
            .map_err(Error::from)
            .and_then(|()| to.flush().map_err(failed));
        // Dropping a failed writer would write the rest.
        drop(to.into_parts());
        let ended = match written {
            Ok(()) => (&self.file).stream_position(),
            // Discard the incomplete result.
            Err(_) => self
                .file
                .set_len(self.length)
                .and_then(|()| (&self.file).seek(SeekFrom::Start(self.length))),
        };
        self.length = ended.map_err(failed)?;
        written
    }
}

/// The runs whose results are published under the names of these cells.
pub(crate) fn published_runs(batch_dir: &BatchDir, cells: &[usize]) -> HashSet<RunId> {
    let files = cells.iter().map(|cell| batch_dir.result(*cell));
    files.filter_map(|path| runs_in(&path)).flatten().collect()
}

/// The runs in a result file; `None` if it cannot be read, which the collector will report.
fn runs_in(path: &Path) -> Option<Vec<RunId>> {
    #[derive(Deserialize)]
    struct Line {
        run: Option<RunPart>,
    }
    #[derive(Deserialize)]
    struct RunPart {
        intent: Redacted<Intent>,
    }
    let lines = BufReader::new(File::open(path).ok()?).lines();
    let run = |line: std::io::Result<String>| {
        Some(serde_json::from_str::<Line>(&line.ok()?).ok()?.run?.intent.id())
    };
    Some(lines.filter_map(run).collect())
}

#[cfg(test)]
mod tests {
    use retake_store::redact::Redactor;
    use retake_types::{Outcome, RanOn};

    use super::*;
    use crate::request_file::RequestFile;
    use crate::result_file::bare_ending;

    fn add(pending: &mut PendingResults, cell: usize, file: &RequestFile) {
        let outcome = bare_ending(&Outcome::Exited(0), RanOn::default());
        let outcome = Redacted::new(outcome, &mut Redactor::off());
        let result = ResultFile::new(&pending.batch_dir.temporary(cell, "x"));
        pending.add(cell, result, (&file.intent, true), outcome).unwrap();
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn results_of_short_cells_share_a_file() {
        let (_dir, batch_dir) = BatchDir::for_test();
        let files: Vec<RequestFile> = ["a", "b", "c"].map(RequestFile::for_test).into();
        let ids: HashSet<RunId> = files.iter().map(|file| file.intent.id()).collect();
        let mut pending = PendingResults::new(&batch_dir, "x");
        for (cell, file) in files.iter().enumerate() {
            add(&mut pending, cell + 4, file);
            pending.publish_if_due().unwrap();
        }
        assert_eq!(names(&batch_dir.results()), [""; 0]);
        pending.publish().unwrap();
        assert_eq!(names(&batch_dir.results()), ["4"]);
        assert_eq!(published_runs(&batch_dir, &[4, 5, 6]), ids);
        assert_eq!(names(&batch_dir.path().join("tmp")), [""; 0]);
        pending.publish().unwrap();
        assert_eq!(names(&batch_dir.results()), ["4"]);
    }

    #[test]
    fn a_result_that_waited_long_enough_is_published() {
        let (_dir, batch_dir) = BatchDir::for_test();
        let mut pending = PendingResults::new(&batch_dir, "x");
        add(&mut pending, 0, &RequestFile::for_test("a"));
        pending.published_at = Instant::now() - WAIT_AT_MOST;
        pending.publish_if_due().unwrap();
        assert_eq!(names(&batch_dir.results()), ["0"]);
    }

    #[test]
    fn no_cell_is_lost_when_two_attempts_publish_different_parts() {
        let (_dir, batch_dir) = BatchDir::for_test();
        let files: Vec<RequestFile> = ["a", "b", "c"].map(RequestFile::for_test).into();
        let [mut first, mut second] = ["x", "y"].map(|name| PendingResults::new(&batch_dir, name));
        for (cell, file) in files.iter().enumerate() {
            if cell < 2 {
                add(&mut first, cell, file);
            }
            add(&mut second, cell, file);
        }
        first.publish().unwrap();
        second.publish().unwrap();
        assert_eq!(names(&batch_dir.results()), ["0", "1"]);
        let ids = files.iter().map(|file| file.intent.id());
        assert!(published_runs(&batch_dir, &[0, 1, 2]).is_superset(&ids.collect()));
        let mut third = PendingResults::new(&batch_dir, "z");
        add(&mut third, 0, &files[0]);
        third.publish().unwrap();
        assert_eq!(names(&batch_dir.path().join("late")), ["0.z"]);
    }
}
