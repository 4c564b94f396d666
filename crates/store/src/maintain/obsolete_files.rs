//! Files that a commit has made obsolete. Their names are part of the commit, so that they are still
//! known after a crash before their removal: the next maintenance of the store removes them.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, Transaction};

use crate::base::dir::{StoreDir, remove};
use crate::base::store::Durability;
use crate::{Error, Result, Store};

/// In `settings`, before the path below the store.
const PREFIX: &str = "remove:";
/// The first of the names in `settings`, and the first text after all of them.
pub(super) const NAMES: [&str; 2] = [PREFIX, "remove;"];

/// Notes that a file goes after this commit.
pub(crate) fn note(tx: &Transaction<'_>, dir: &StoreDir, file: &Path) -> rusqlite::Result<()> {
    let Ok(below) = file.strip_prefix(dir.root()) else { return Ok(()) };
    tx.prepare_cached("INSERT OR REPLACE INTO settings (name, value) VALUES (?1, '')")?
        .execute([format!("{PREFIX}{}", below.to_string_lossy())])
        .map(drop)
}

fn noted(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    connection
        .prepare_cached("SELECT name FROM settings WHERE name >= ?1 AND name < ?2 LIMIT 1000")?
        .query_map(NAMES, |row| row.get(0))?
        .collect()
}

impl Store {
    pub(crate) fn has_obsolete_files(&self) -> bool {
        noted(&self.connection).is_ok_and(|names| !names.is_empty())
    }

    /// Removes what earlier commits left to be removed.
    pub(crate) fn remove_obsolete_files(&mut self) -> Result<()> {
        let names = noted(&self.connection)
            .map_err(|error| self.failed("look for files to remove", error))?;
        if names.is_empty() || self.is_read_only() {
            return Ok(());
        }
        self.write(Durability::Process, "remove files", |tx, dir| {
            let failed = |error| Error::sqlite("remove files", dir.database(), error);
            for name in &names {
                let path: PathBuf = dir.root().join(name.trim_start_matches(PREFIX));
                // An equal output may have come since, and has the same name.
                if !in_use(tx, dir, &path).map_err(failed)? {
                    remove(&path)?;
                }
                tx.execute("DELETE FROM settings WHERE name = ?1", [name]).map_err(failed)?;
            }
            Ok(())
        })
    }
}

/// Only compressed output is found by its content; every other name is a run's own.
fn in_use(tx: &Transaction<'_>, dir: &StoreDir, path: &Path) -> rusqlite::Result<bool> {
    let Ok(below) = path.strip_prefix(dir.output_dir()) else { return Ok(false) };
    let hex: String = below.with_extension("").to_string_lossy().replace('/', "");
    let Ok(hash) = blake3::Hash::from_hex(hex) else { return Ok(false) };
    tx.prepare_cached("SELECT 1 FROM outputs WHERE hash = ?1 AND storage = 2")?
        .exists([hash.as_bytes()])
}
