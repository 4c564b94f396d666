//! Giving a cell its one result.
//!
//! The result is written aside and synced, then linked to its final name. A link is made by one
//! only, on every file system; whoever comes later keeps his result beside it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use retake_store::ResultFile;
use retake_types::{Ending, Intent};

use super::Error;
use super::batch::{Layout, sync};

/// Whose result it became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    First,
    Late,
}

/// Writes a run's result aside, complete and synced. Its name tells the attempt.
pub fn write(
    layout: &Layout,
    cell: usize,
    attempt: &str,
    result: ResultFile,
    intent: &Intent,
    ending: Ending,
) -> Result<(), Error> {
    let path = layout.temporary(cell, attempt);
    let failed = |error| Error::io("write", &path)(error);
    let file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
    let mut to = BufWriter::new(file);
    result.finish(intent, ending, &mut to)?;
    to.flush().map_err(failed)?;
    to.get_ref().sync_all().map_err(failed)
}

/// Gives what was written aside to the cell.
pub fn publish(layout: &Layout, cell: usize, attempt: &str) -> Result<Published, Error> {
    let from = layout.temporary(cell, attempt);
    let published = claim(&from, &layout.result(cell))?;
    if published == Published::First {
        sync(&layout.results()).map_err(Error::io("sync", &layout.results()))?;
        // The result has its own name now.
        _ = fs::remove_file(&from);
    } else {
        let late = layout.late(cell, attempt);
        fs::rename(&from, &late).map_err(Error::io("keep", &late))?;
    }
    Ok(published)
}

/// Links a file to a name that only one gets. Over a network the answer to a link that was made can
/// be lost and the repeated question fails, so after an error the file itself tells.
pub fn claim(from: &Path, to: &Path) -> Result<Published, Error> {
    match fs::hard_link(from, to) {
        Ok(()) => Ok(Published::First),
        Err(error) => settle(from, to, error),
    }
}

fn settle(from: &Path, to: &Path, error: io::Error) -> Result<Published, Error> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_counts_and_later_ones_are_kept() {
        let (_dir, layout) = Layout::in_a_test();
        for attempt in ["a", "b", "c"] {
            fs::write(layout.temporary(0, attempt), attempt).unwrap();
        }
        assert_eq!(publish(&layout, 0, "b").unwrap(), Published::First);
        assert_eq!(publish(&layout, 0, "a").unwrap(), Published::Late);
        assert_eq!(publish(&layout, 0, "c").unwrap(), Published::Late);
        assert_eq!(fs::read(layout.result(0)).unwrap(), b"b");
        assert_eq!(fs::read(layout.late(0, "a")).unwrap(), b"a");
        assert!(fs::read_dir(layout.dir().join("tmp")).unwrap().next().is_none());
    }

    #[test]
    fn of_many_at_once_one_is_first() {
        let (_dir, layout) = Layout::in_a_test();
        let attempts: Vec<String> = (0..16).map(|n| format!("a{n}")).collect();
        attempts.iter().for_each(|a| fs::write(layout.temporary(7, a), a).unwrap());
        let firsts: usize = std::thread::scope(|scope| {
            let racers: Vec<_> = attempts
                .iter()
                .map(|a| scope.spawn(|| publish(&layout, 7, a).unwrap() == Published::First))
                .collect();
            racers.into_iter().map(|racer| usize::from(racer.join().unwrap())).sum()
        });
        assert_eq!(firsts, 1);
        assert_eq!(fs::read_dir(layout.dir().join("late")).unwrap().count(), 15);
    }

    #[test]
    fn a_lost_answer_to_a_link_that_was_made_is_no_failure() {
        let (_dir, layout) = Layout::in_a_test();
        let from = layout.temporary(0, "a");
        fs::write(&from, "a").unwrap();
        fs::hard_link(&from, layout.result(0)).unwrap();
        let lost = || io::Error::from(io::ErrorKind::AlreadyExists);
        assert_eq!(settle(&from, &layout.result(0), lost()).unwrap(), Published::First);
        let other = layout.temporary(0, "b");
        fs::write(&other, "b").unwrap();
        assert_eq!(settle(&other, &layout.result(0), lost()).unwrap(), Published::Late);
        assert!(settle(&layout.temporary(0, "c"), &layout.result(1), lost()).is_err());
    }
}
