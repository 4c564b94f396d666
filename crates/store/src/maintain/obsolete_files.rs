//! Files that a commit makes obsolete. The commit includes their names, so that the next
//! maintenance can remove them if a crash prevented the removal.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, Transaction};

use crate::base::dir::{StoreDir, remove};
use crate::base::store::Durability;
use crate::{Error, Result, Store};

/// In `settings`, before the path relative to the store.
const PREFIX: &str = "remove:";
/// The lower bound of the names in `settings`, and the upper bound.
pub(super) const NAMES: [&str; 2] = [PREFIX, "remove;"];

/// Records that a file is to be removed after this commit.
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

    /// Removes the files that earlier commits made obsolete.
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
                // A new equal output may use the same name since.
                if !in_use(tx, dir, &path).map_err(failed)? {
                    remove(&path)?;
                }
                tx.execute("DELETE FROM settings WHERE name = ?1", [name]).map_err(failed)?;
            }
            Ok(())
        })
    }
}

/// Only compressed output is shared by content; other files belong to one run.
fn in_use(tx: &Transaction<'_>, dir: &StoreDir, path: &Path) -> rusqlite::Result<bool> {
    let Ok(below) = path.strip_prefix(dir.output_dir()) else { return Ok(false) };
    let hex: String = below.with_extension("").to_string_lossy().replace('/', "");
    let Ok(hash) = blake3::Hash::from_hex(hex) else { return Ok(false) };
    tx.prepare_cached("SELECT 1 FROM outputs WHERE hash = ?1 AND storage = 2")?
        .exists([hash.as_bytes()])
}
