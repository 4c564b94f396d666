//! Repair: restores what it can without overwriting: replaced files are kept.
//!
//! An intact database keeps its ledger byte for byte; only derived data is rebuilt, so a repair
//! cannot hide an edit. If SQLite cannot read parts of the ledger, the readable entries start a new
//! chain whose first entry records that.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use retake_types::RunId;
use rusqlite::Connection;

use crate::base::block_hashes::BlockHashes;
use crate::base::dir::StoreDir;
use crate::base::imports;
use crate::base::ledger::{self, Entry};
use crate::base::projection::{Row, complete, insert_labels, seq_of};
use crate::base::reserve::{self, Claim};
use crate::base::schema;
use crate::base::store::Durability;
use crate::maintain::output_rows;
use crate::maintain::salvage::salvage;
use crate::maintain::verify::{Break, BreakKind, Verification, VerifyDepth};
use crate::read::output::{self, Stored};
use crate::read::output_reader::RecordedOutput;
use crate::{Error, Result, Store};

/// How long a repair compresses output to make space on a full disk.
const COMPRESSING: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Where the previous database is kept; `None` if it was not replaced.
    pub backup: Option<PathBuf>,
    /// Ledger entries that could be read from a damaged database.
    pub entries_read: u64,
    /// Ledger entries that could not be read.
    pub entries_lost: u64,
    /// Whether the searchable columns were rebuilt.
    pub projection_rebuilt: bool,
    /// Whether there was no space for a copy of the database. Then only data derived from the
    /// ledger was changed.
    pub without_copy: bool,
    /// Outputs with a missing or wrong row whose bytes were found.
    pub outputs_found: u64,
    /// Runs that were marked interrupted.
    pub interrupted: Vec<RunId>,
    /// Files that nothing refers to, moved to `orphans/`.
    pub set_aside: Vec<PathBuf>,
}

/// Repairs the store in `root` as far as possible.
pub fn repair(root: &Path) -> Result<Repaired> {
    let mut repaired = Repaired::default();
    let sound = match Store::open(root) {
        Ok(store) => Some(store).filter(is_sound),
        Err(Error::Corrupt { .. } | Error::Sqlite { .. }) => None,
        Err(error) => return Err(error),
    };
    let mut store = match sound {
        Some(store) => store,
        None => {
            salvage(root, &mut repaired)?;
            Store::open(root)?
        }
    };
    if store.derived_is_wrong()? {
        match store.copy_into_backup() {
            Ok(backup) => repaired.backup = Some(repaired.backup.take().unwrap_or(backup)),
            Err(Error::DiskFull { .. }) => repaired.without_copy = true,
            Err(error) => return Err(error),
        }
        let copy_kept = !repaired.without_copy;
        repaired.outputs_found =
            store.claiming(Claim::Erase, |store| store.rebuild_projection(copy_kept))?;
        repaired.projection_rebuilt = true;
    }
    let recovered = store.claiming(Claim::Erase, Store::recover)?;
    repaired.interrupted = recovered.runs.iter().map(|run| run.intent.id()).collect();
    for orphan in store.orphans()? {
        match set_aside(root, &orphan) {
            // It stays in place, and the next examination names it.
            Err(Error::DiskFull { .. }) => break,
            moved => repaired.set_aside.push(moved?),
        }
    }
    store.claiming(Claim::Erase, Store::give_space_back);
    Ok(repaired)
}

/// Whether SQLite can read all of it; `verify` checks the content.
fn is_sound(store: &Store) -> bool {
    store.integrity().is_ok_and(|found| found.is_empty())
        && schema::faults(&store.connection).is_ok_and(|faults| faults.is_empty())
        && store.verify_with(None, VerifyDepth::Quick, &mut |_| {}).is_ok()
}

pub(crate) fn backup_dir(root: &Path) -> Result<PathBuf> {
    let dir = StoreDir::new(root);
    for attempt in 0.. {
        let name = format!("backup-{}-{attempt}", Timestamp::now().as_second());
        let path = root.join(name);
        if !path.exists() {
            dir.make(&path)?;
            return Ok(path);
        }
    }
    Err(Error::io("make a backup in", root, io::ErrorKind::AlreadyExists.into()))
}

fn set_aside(root: &Path, orphan: &Path) -> Result<PathBuf> {
    let directory = root.join("orphans");
    StoreDir::new(root).make(&directory)?;
    let name = orphan.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for attempt in 0.. {
        let to =
            directory.join(if attempt == 0 { name.clone() } else { format!("{name}.{attempt}") });
        if !to.exists() {
            fs::rename(orphan, &to).map_err(|error| Error::io("set aside", orphan, error))?;
            return Ok(to);
        }
    }
    Err(Error::io("set aside", orphan, io::ErrorKind::AlreadyExists.into()))
}

impl Store {
    /// Whether derived data contradicts the ledger.
    fn derived_is_wrong(&self) -> Result<bool> {
        let derived = |found: &Break| matches!(found.kind, BreakKind::Projection(_));
        match self.verify_with(None, VerifyDepth::Quick, &mut |_| {})? {
            Verification::Broken(found) if found.iter().any(derived) => Ok(true),
            _ => output_rows::can_be_restored(&self.connection, &self.dir)
                .map_err(|error| self.failed("examine outputs", error)),
        }
    }

    /// Copies the database next to it. If there is no space, compresses output first.
    fn copy_into_backup(&mut self) -> Result<PathBuf> {
        let copied = self.copy_database();
        if !matches!(copied, Err(Error::DiskFull { .. })) {
            return copied;
        }
        self.claiming(Claim::Erase, Self::give_space_back);
        self.copy_database()
    }

    fn copy_database(&self) -> Result<PathBuf> {
        let backup = backup_dir(self.dir.root())?;
        let copy = backup.join("retake.db");
        let copied = self.connection.execute("VACUUM INTO ?1", [copy.to_string_lossy()]);
        if let Err(error) = copied {
            // An incomplete copy is useless and takes the space that the repair needs.
            drop(fs::remove_dir_all(&backup));
            return Err(self.failed("copy the database", error));
        }
        Ok(backup)
    }

    /// On an almost full disk, compresses waiting output. The compressed file may use the WAL's
    /// room; if even that is too little, the output stays raw.
    fn give_space_back(&mut self) {
        if !reserve::disk_is_almost_full(&self.dir) {
            return;
        }
        // A failure changes nothing, and the next command retries.
        drop(self.truncate_wal(Duration::ZERO));
        drop(self.compact(COMPRESSING));
        reserve::keep_wal_room(&self.dir);
    }

    /// Rebuilds the projection from the ledger. Only `runs` has the arrival order, which is carried
    /// over. Returns how many outputs were found.
    fn rebuild_projection(&mut self, copy_kept: bool) -> Result<u64> {
        self.write(Durability::Power, "rebuild the list of runs", |tx, dir| {
            let failed = |error| Error::sqlite("rebuild the list of runs", dir.database(), error);
            tx.execute_batch(
                "CREATE TEMP TABLE kept AS SELECT seq, chunks FROM runs;
                 DELETE FROM runs; DELETE FROM labels;
                 DELETE FROM effects; DELETE FROM changes; DELETE FROM tests;",
            )
            .map_err(failed)?;
            let mut statement = tx
                .prepare("SELECT seq, body FROM ledger WHERE body IS NOT NULL ORDER BY seq")
                .map_err(failed)?;
            let mut rows = statement.query([]).map_err(failed)?;
            while let Some(row) = rows.next().map_err(failed)? {
                let (seq, body): (i64, Vec<u8>) = row.try_into().map_err(failed)?;
                match ledger::parse(seq, &body)? {
                    Entry::Intent(intent) => {
                        Row::of(seq, &intent).insert(tx).map_err(failed)?;
                        insert_labels(tx, seq, &intent).map_err(failed)?;
                    }
                    Entry::Outcome { run, outcome } => {
                        if let Some(intent_seq) = seq_of(tx, run).map_err(failed)? {
                            complete(tx, intent_seq, (seq, &outcome), None).map_err(failed)?;
                        }
                    }
                    Entry::Import(import) => imports::note(tx, seq, &import).map_err(failed)?,
                    Entry::Marker(_) | Entry::Repair(_) => {}
                }
            }
            let found = output_rows::restore_rows(tx, dir, copy_kept).map_err(failed)?;
            remove_wrong_lists(tx).map_err(failed)?;
            tx.execute_batch(
                "UPDATE runs SET chunks = (SELECT chunks FROM temp.kept k WHERE k.seq = runs.seq);
                 DROP TABLE temp.kept;",
            )
            .map_err(failed)?;
            Ok(found)
        })
    }
}

/// Removes lists of block hashes that do not match their outputs; maintenance computes them again.
fn remove_wrong_lists(tx: &Connection) -> rusqlite::Result<()> {
    let mut statement = tx.prepare("SELECT place FROM outputs WHERE length(blocks) > 0")?;
    let keys: Vec<i64> = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for key in keys {
        let Some(Stored { output: RecordedOutput { bytes, hash }, .. }) = output::load(tx, key)?
        else {
            continue;
        };
        let list = output::load_blocks(tx, key)?.unwrap_or_default();
        if BlockHashes::of_output(&list, bytes, &hash).is_none() {
            tx.execute("UPDATE outputs SET blocks = NULL WHERE place = ?1", [key])?;
        }
    }
    Ok(())
}
