//! Runs that take place elsewhere: the intent is committed here before they are sent, and the
//! outcome when their result comes back, by whoever collects it.
//!
//! A run that is away has no runner on this machine, so its mark is a plain file and no lock: it
//! stays until the outcome is committed, whatever happens to the process that sent it.

use std::io;

use retake_types::{Intent, RunId};

use crate::dir::Dir;
use crate::projection::seq_of;
use crate::recording::insert_intent;
use crate::steps::step;
use crate::store::Durability;
use crate::{Error, Result, Store};

impl Store {
    /// Commits the intents of runs that are about to be sent elsewhere, all or none. Those already
    /// here are left as they are, so that a sender that died can be followed by another.
    pub fn send_away(&mut self, intents: &[Intent]) -> Result<()> {
        if self.is_read_only() {
            return Err(Error::ReadOnly { path: self.path().to_owned(), action: "record a run" });
        }
        // Before the intents: without its mark a run would read as interrupted.
        for intent in intents {
            drop(self.dir.create_private(&self.dir.away(intent.id()))?);
        }
        step("marked as away");
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

    /// The runs that are away. A mark that was left without a run, or by a run that has its
    /// outcome, is removed.
    pub fn away(&mut self) -> Result<Vec<RunId>> {
        let path = self.dir.away_dir();
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
            match self.whereabouts(id) {
                Ok((_, false)) => ids.push(id),
                Ok((_, true)) => crate::dir::remove(&self.dir.away(id))?,
                // Its sender may be about to commit it.
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        ids.sort_unstable();
        Ok(ids)
    }
}

/// Where the intent of a run that is away stands; `None` for one that is not.
pub(crate) fn awaited(
    connection: &rusqlite::Connection,
    dir: &Dir,
    id: RunId,
) -> rusqlite::Result<Option<i64>> {
    if !is_away(dir, id) {
        return Ok(None);
    }
    let Some(seq) = seq_of(connection, id)? else { return Ok(None) };
    let open = connection
        .prepare_cached("SELECT outcome_seq IS NULL FROM runs WHERE seq = ?1")?
        .query_row([seq], |row| row.get::<_, bool>(0))?;
    Ok(open.then_some(seq))
}

pub(crate) fn is_away(dir: &Dir, id: RunId) -> bool {
    dir.away(id).exists()
}
