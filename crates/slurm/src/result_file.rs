//! The result file of a cell.
//!
//! A result is written under a temporary name and synced, then linked to its final name. Only one
//! process succeeds in creating that link, on every file system; a later result is kept beside it.

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use jiff::Timestamp;
use retake_store::ResultFile;
use retake_types::{Intent, Outcome, RanOn, Redacted, RunOutcome};

use crate::batch_dir::{BatchDir, sync};
use crate::error::Error;

/// Whether it became the result of its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    First,
    Late,
}

/// Writes the result of an attempt under its temporary name, complete and synced.
pub(crate) fn write(
    batch_dir: &BatchDir,
    cell: usize,
    attempt: &str,
    result: ResultFile,
    intent: &Redacted<Intent>,
    outcome: Redacted<RunOutcome>,
) -> Result<(), Error> {
    let path = batch_dir.temporary(cell, attempt);
    let failed = |error| Error::io("write", &path)(error);
    let file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
    let mut to = BufWriter::new(file);
    result.finish(intent, outcome, &mut to)?;
    to.flush().map_err(failed)?;
    to.get_ref().sync_all().map_err(failed)
}

/// A result without output, as it would be written.
pub(crate) fn bytes(
    intent: &Redacted<Intent>,
    outcome: Redacted<RunOutcome>,
) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    // Without output there is no file beside it.
    ResultFile::new(Path::new("")).finish(intent, outcome, &mut bytes)?;
    Ok(bytes)
}

/// Makes the written result that of its cell, unless there is one already.
pub(crate) fn publish(
    batch_dir: &BatchDir,
    cell: usize,
    attempt: &str,
) -> Result<Published, Error> {
    let from = batch_dir.temporary(cell, attempt);
    let published = link_first(&from, &batch_dir.result(cell))?;
    if published == Published::First {
        sync(&batch_dir.results()).map_err(Error::io("sync", &batch_dir.results()))?;
        // The result has its final name now.
        _ = fs::remove_file(&from);
    } else {
        let late = batch_dir.late(cell, attempt);
        fs::rename(&from, &late).map_err(Error::io("keep", &late))?;
    }
    Ok(published)
}

/// Links a file to a name that only one process gets. Over a network the answer to a successful link
/// can be lost so that the repeated call fails; after an error the file itself is examined.
pub(crate) fn link_first(from: &Path, to: &Path) -> Result<Published, Error> {
    match fs::hard_link(from, to) {
        Ok(()) => Ok(Published::First),
        Err(error) => examine_link(from, to, error),
    }
}

fn examine_link(from: &Path, to: &Path, error: io::Error) -> Result<Published, Error> {
    let look = |path: &Path| File::open(path).and_then(|file| file.metadata());
    match (look(from), look(to)) {
        (Ok(ours), Ok(there)) if (ours.dev(), ours.ino()) == (there.dev(), there.ino()) => {
            Ok(Published::First)
        }
        (Ok(ours), _) if ours.nlink() > 1 => Ok(Published::First),
        (Ok(_), Ok(_)) => Ok(Published::Late),
        _ => Err(Error::io("publish", to)(error)),
    }
}

/// Reads a result, and remembers why it could not be read.
pub(crate) struct ResultReader {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) failed: Rc<RefCell<Option<Error>>>,
}

impl Read for ResultReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer).inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                let same = error.raw_os_error().map(io::Error::from_raw_os_error);
                let same = same.unwrap_or_else(|| io::Error::other(error.to_string()));
                self.failed.replace(Some(Error::io("read", &self.path)(same)));
            }
        })
    }
}

/// The ending of a run of which only the outcome is known.
pub(crate) fn bare_ending(outcome: &Outcome, ran_on: RanOn) -> RunOutcome {
    RunOutcome { ran_on: Some(ran_on), ..RunOutcome::bare(outcome, Timestamp::now()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_published_result_counts_and_later_ones_are_kept() {
        let (_dir, batch_dir) = BatchDir::for_test();
        for attempt in ["a", "b", "c"] {
            fs::write(batch_dir.temporary(0, attempt), attempt).unwrap();
        }
        assert_eq!(publish(&batch_dir, 0, "b").unwrap(), Published::First);
        assert_eq!(publish(&batch_dir, 0, "a").unwrap(), Published::Late);
        assert_eq!(publish(&batch_dir, 0, "c").unwrap(), Published::Late);
        assert_eq!(fs::read(batch_dir.result(0)).unwrap(), b"b");
        assert_eq!(fs::read(batch_dir.late(0, "a")).unwrap(), b"a");
        assert!(fs::read_dir(batch_dir.path().join("tmp")).unwrap().next().is_none());
    }

    #[test]
    fn of_many_at_once_one_is_first() {
        let (_dir, batch_dir) = BatchDir::for_test();
        let attempts: Vec<String> = (0..16).map(|n| format!("a{n}")).collect();
        attempts.iter().for_each(|a| fs::write(batch_dir.temporary(7, a), a).unwrap());
        let firsts: usize = std::thread::scope(|scope| {
            let racers: Vec<_> = attempts
                .iter()
                .map(|a| scope.spawn(|| publish(&batch_dir, 7, a).unwrap() == Published::First))
                .collect();
            racers.into_iter().map(|racer| usize::from(racer.join().unwrap())).sum()
        });
        assert_eq!(firsts, 1);
        assert_eq!(fs::read_dir(batch_dir.path().join("late")).unwrap().count(), 15);
    }

    #[test]
    fn a_lost_answer_to_a_link_that_was_made_is_no_failure() {
        let (_dir, batch_dir) = BatchDir::for_test();
        let from = batch_dir.temporary(0, "a");
        fs::write(&from, "a").unwrap();
        fs::hard_link(&from, batch_dir.result(0)).unwrap();
        let lost = || io::Error::from(io::ErrorKind::AlreadyExists);
        assert_eq!(examine_link(&from, &batch_dir.result(0), lost()).unwrap(), Published::First);
        let other = batch_dir.temporary(0, "b");
        fs::write(&other, "b").unwrap();
        assert_eq!(examine_link(&other, &batch_dir.result(0), lost()).unwrap(), Published::Late);
        assert!(examine_link(&batch_dir.temporary(0, "c"), &batch_dir.result(1), lost()).is_err());
    }
}
