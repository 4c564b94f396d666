//! Runs on other machines: their intent is committed here before they are sent, and their outcome
//! when the result is imported.
//!
//! A remote run has no runner on this machine, so its marker is a plain file without a lock: it
//! stays until the outcome is committed, even if the sender dies.

use std::io;
use std::path::{Path, PathBuf};

use retake_types::{Intent, Redacted, RunId};

use super::run_entries::insert_intent;
use crate::base::crash_points::crash_point;
use crate::base::dir::{StoreDir, remove};
use crate::base::projection::seq_of;
use crate::base::store::Durability;
use crate::{Error, Result, Store};

/// Whether a record may have remote runs without an outcome. Opens nothing.
pub fn has_remote_runs(store: &Path) -> bool {
    let dir = StoreDir::new(store).remote_runs_dir();
    std::fs::read_dir(dir).is_ok_and(|mut marks| marks.next().is_some())
}

impl Store {
    /// Commits the intents of runs that are about to be sent to other machines, all or none.
    /// Existing ones stay unchanged, so that another process can take over from a dead sender.
    pub fn begin_remote_runs(&mut self, intents: &[Redacted<Intent>]) -> Result<()> {
        if self.is_read_only() {
            return Err(Error::ReadOnly { path: self.path().to_owned(), action: "record a run" });
        }
        // Before the intents: without its marker a run would read as interrupted.
        mark_remote(&self.dir, intents)?;
        crash_point("marked as remote");
        self.write(Durability::Power, "record the intents", |tx, dir| {
            for intent in intents {
                match insert_intent(tx, dir, intent) {
                    Ok(_) | Err(Error::Duplicate { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
    }

    /// The remote runs without an outcome. Removes markers without a run, or of a run with an
    /// outcome.
    pub fn remote_runs(&mut self) -> Result<Vec<RunId>> {
        let path = self.dir.remote_runs_dir();
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("read", &path, error)),
        };
        let mut ids = Vec::new();
        for entry in entries {
            let name = entry.map_err(|error| Error::io("read", &path, error))?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse::<RunId>().ok()) else {
                continue; // not ours to judge
            };
            match self.seq_and_finished(id) {
                Ok((_, false)) => ids.push(id),
                Ok((_, true)) => remove(&self.dir.remote_run(id))?,
                // Its sender may be about to commit it.
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        ids.sort_unstable();
        Ok(ids)
    }
}

/// Creates the markers of remote runs, as hard links to one file if the file system supports them.
/// When ext4 creates a file, it skips every inode freed in the last minutes, and each marker is removed
/// soon: with thousands of runs, creating a file for each took most of the submitter's time.
fn mark_remote(dir: &StoreDir, intents: &[Redacted<Intent>]) -> Result<()> {
    let mut made: Option<PathBuf> = None;
    for intent in intents {
        let mark = dir.remote_run(intent.id());
        let linked = made.as_ref().is_some_and(|made| match std::fs::hard_link(made, &mark) {
            Err(error) => error.kind() == io::ErrorKind::AlreadyExists,
            Ok(()) => true,
        });
        if !linked {
            // The first marker, or the file has reached its maximum number of links.
            drop(dir.create_private(&mark)?);
            made = Some(mark);
        }
    }
    Ok(())
}

/// The number of the intent of a remote run without an outcome; `None` for any other run.
pub(crate) fn open_remote_run(
    connection: &rusqlite::Connection,
    dir: &StoreDir,
    id: RunId,
) -> rusqlite::Result<Option<i64>> {
    if !dir.is_remote_run(id) {
        return Ok(None);
    }
    let Some(seq) = seq_of(connection, id)? else { return Ok(None) };
    let open = connection
        .prepare_cached("SELECT outcome_seq IS NULL FROM runs WHERE seq = ?1")?
        .query_row([seq], |row| row.get::<_, bool>(0))?;
    Ok(open.then_some(seq))
}
