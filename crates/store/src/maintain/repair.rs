//! Repair: recovers what can be, and never overwrites: what is replaced or set aside is kept.
//!
//! A sound database keeps its ledger to the byte; only what is derived from it is made anew, so a
//! repair cannot hide an edit. When SQLite cannot read some of the ledger, the readable entries
//! begin a new chain whose first entry says so.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use retake_types::{RunId, RunOutcome, Stream};
use rusqlite::Connection;

use crate::base::block_hashes::{BlockHashes, OutputHash};
use crate::base::dir::{StoreDir, sync_dir};
use crate::base::imports;
use crate::base::ledger::{self, Entry, Import, Repair};
use crate::base::projection::{Row, complete, insert_labels, seq_of};
use crate::base::reserve::{self, Claim};
use crate::base::schema;
use crate::base::store::Durability;
use crate::base::write_lock::WriteTurn;
use crate::maintain::verify::{BreakKind, Verification, VerifyDepth};
use crate::read::output::{self, Storage, Stored, output_key};
use crate::read::output_reader::RecordedOutput;
use crate::write::run_entries::{StreamContent, insert_intent, insert_outcome, insert_output};
use crate::{Error, Result, Store};

/// How long a repair compresses output, to make room on a full disk.
const COMPRESSING: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Where the database as it was is kept; `None` when it was not replaced.
    pub backup: Option<PathBuf>,
    /// Ledger entries that could be read from a damaged database.
    pub entries_read: u64,
    /// Ledger entries that could not.
    pub entries_lost: u64,
    /// The searchable columns were derived anew.
    pub projection_rebuilt: bool,
    /// Runs that were marked interrupted.
    pub interrupted: Vec<RunId>,
    /// Files that nothing refers to, now in `orphans/`.
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
    let rebuild = match store.verify_with(None, VerifyDepth::Quick, &mut |_| {})? {
        Verification::Intact(_) => false,
        Verification::Broken(found) => {
            found.iter().any(|found| matches!(found.kind, BreakKind::Projection(_)))
        }
    };
    if rebuild {
        let backup = backup_dir(root)?;
        let copy = backup.join("retake.db");
        store
            .connection
            .execute("VACUUM INTO ?1", [copy.to_string_lossy()])
            .map_err(|error| store.failed("copy the database", error))?;
        repaired.backup.get_or_insert(backup);
        store.rebuild_projection()?;
        repaired.projection_rebuilt = true;
    }
    let recovered = store.claiming(Claim::Erase, Store::recover)?;
    repaired.interrupted = recovered.runs.iter().map(|run| run.intent.id()).collect();
    for orphan in store.orphans()? {
        match set_aside(root, &orphan) {
            // It stays where it is, and the next examination names it.
            Err(Error::DiskFull { .. }) => break,
            moved => repaired.set_aside.push(moved?),
        }
    }
    store.claiming(Claim::Erase, Store::give_space_back);
    Ok(repaired)
}

/// Whether SQLite can read all of it; whether that makes sense is for `verify` to say.
fn is_sound(store: &Store) -> bool {
    store.integrity().is_ok_and(|found| found.is_empty())
        && schema::faults(&store.connection).is_ok_and(|faults| faults.is_empty())
        && store.verify_with(None, VerifyDepth::Quick, &mut |_| {}).is_ok()
}

fn backup_dir(root: &Path) -> Result<PathBuf> {
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
    /// On a disk that is almost full, compresses what waits for it. The WAL's room is lent to the
    /// compressed file; where even that is too little, the output stays as it is.
    fn give_space_back(&mut self) {
        if !reserve::disk_is_almost_full(&self.dir) {
            return;
        }
        // What fails here leaves everything as it was, and is tried again by the next command.
        drop(self.truncate_wal(Duration::ZERO));
        drop(self.compact(COMPRESSING));
        reserve::keep_wal_room(&self.dir);
    }

    /// Derives the projection from the ledger again. The order of arrival is in `runs` alone
    /// and is carried over.
    fn rebuild_projection(&mut self) -> Result<()> {
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
            remove_wrong_lists(tx).map_err(failed)?;
            tx.execute_batch(
                "UPDATE runs SET chunks = (SELECT chunks FROM temp.kept k WHERE k.seq = runs.seq);
                 DROP TABLE temp.kept;",
            )
            .map_err(failed)
        })
    }
}

/// Takes away lists of block hashes that are not those of their outputs; maintenance makes them anew.
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

/// One ledger row as it was found.
struct Salvaged {
    seq: i64,
    body: Option<Vec<u8>>,
    hashes: [Vec<u8>; 2],
}

/// Puts a new database, made of what can be read, in the place of a damaged one.
fn salvage(root: &Path, repaired: &mut Repaired) -> Result<()> {
    let dir = StoreDir::new(root);
    let _turn = WriteTurn::take(&dir)?;
    let backup = backup_dir(root)?;
    let names = ["retake.db", "retake.db-wal", "retake.db-shm"];
    for name in names {
        let from = root.join(name);
        if from.exists() {
            // A copy, not a move: until the new database is complete the old one stays in place.
            fs::copy(&from, backup.join(name)).map_err(|error| Error::io("copy", &from, error))?;
        }
    }
    let scratch = backup.join("new");
    let mut fresh = Store::open(&scratch)?;
    let old = Connection::open(backup.join("retake.db"))
        .map_err(|error| Error::sqlite("open the damaged record", dir.database(), error))?;
    let (entries, lost) = read_ledger(&old);
    let chained = entries.iter().all(|entry| entry.hashes.iter().all(|hash| !hash.is_empty()));
    (repaired.entries_read, repaired.entries_lost) = (entries.len() as u64, lost);
    fresh.write(Durability::Process, "restore the record", |tx, _| {
        if lost == 0 && chained {
            restore_verbatim(tx, &dir, &old, &entries)
        } else {
            restore_anew(tx, &dir, &old, &entries, lost)
        }
    })?;
    fresh.write(Durability::Power, "restore the loops", |tx, _| copy_loops(tx, &dir, &old))?;
    fresh.truncate_wal(Duration::from_secs(5))?;
    drop(fresh);
    drop(old);
    // A WAL or index of the old database must not be taken for one of the new.
    for name in &names[1..] {
        crate::base::dir::remove(&root.join(name))?;
    }
    let new = scratch.join("retake.db");
    fs::rename(&new, dir.database())
        .map_err(|error| Error::io("replace", dir.database(), error))?;
    fs::remove_dir_all(&scratch).map_err(|error| Error::io("remove", &scratch, error))?;
    sync_dir(root)?;
    repaired.backup = Some(backup);
    repaired.projection_rebuilt = true;
    Ok(())
}

/// Reads every entry that SQLite still gives out, and counts those it does not.
fn read_ledger(old: &Connection) -> (Vec<Salvaged>, u64) {
    const WHOLE: &str = "SELECT seq, body, body_hash, hash FROM ledger";
    // Without the chain the bodies still say what ran.
    const BODIES: &str = "SELECT seq, body, x'', x'' FROM ledger";
    let columns = if old.prepare(WHOLE).is_ok() { WHOLE } else { BODIES };
    let read = |row: &rusqlite::Row<'_>| {
        Ok(Salvaged { seq: row.get(0)?, body: row.get(1)?, hashes: [row.get(2)?, row.get(3)?] })
    };
    let mut entries: Vec<Salvaged> = Vec::new();
    let in_order = old.prepare(&format!("{columns} ORDER BY seq")).and_then(|mut statement| {
        for entry in statement.query_map([], read)? {
            entries.push(entry?);
        }
        Ok(())
    });
    if in_order.is_ok() {
        return (entries, 0);
    }
    // From the other end, then one by one in between.
    let mut tail: Vec<Salvaged> = Vec::new();
    let first = entries.last().map_or(0, |entry| entry.seq);
    // Ends in an error where the damage is; what came before it is all that can be read.
    drop(old.prepare(&format!("{columns} WHERE seq > ?1 ORDER BY seq DESC")).and_then(
        |mut statement| {
            for entry in statement.query_map([first], read)? {
                tail.push(entry?);
            }
            Ok(())
        },
    ));
    let end = tail.last().map(|entry| entry.seq);
    for seq in first + 1..end.unwrap_or(first + 10_000) {
        let one = old.query_row(&format!("{columns} WHERE seq = ?1"), [seq], read);
        entries.extend(one.ok()); // unreadable: counted below
    }
    entries.extend(tail.into_iter().rev());
    let highest = entries.last().map_or(0, |entry| entry.seq.unsigned_abs());
    let lost = highest.saturating_sub(entries.len() as u64).max(1);
    (entries, lost)
}

fn restore_verbatim(
    tx: &Connection,
    dir: &StoreDir,
    old: &Connection,
    entries: &[Salvaged],
) -> Result<()> {
    let failed = |error| Error::sqlite("restore the record", dir.database(), error);
    for entry in entries {
        tx.prepare_cached("INSERT INTO ledger (seq, body, body_hash, hash) VALUES (?1,?2,?3,?4)")
            .and_then(|mut insert| {
                insert.execute((entry.seq, &entry.body, &entry.hashes[0], &entry.hashes[1]))
            })
            .map_err(failed)?;
        // An edited body stays as it is, for verify to report; it has no place in the list.
        let Some(Ok(parsed)) = entry.body.as_ref().map(|body| ledger::parse(entry.seq, body))
        else {
            continue;
        };
        match parsed {
            Entry::Intent(intent) => {
                Row::of(entry.seq, &intent).insert(tx).map_err(failed)?;
                insert_labels(tx, entry.seq, &intent).map_err(failed)?;
            }
            Entry::Outcome { run, outcome } => {
                let Some(seq) = seq_of(tx, run).map_err(failed)? else { continue };
                let chunks = old_chunks(old, seq);
                complete(tx, seq, (entry.seq, &outcome), chunks.as_deref()).map_err(failed)?;
                restore_outputs(tx, dir, (old, seq), (run, seq), &outcome)?;
            }
            Entry::Import(import) => imports::note(tx, entry.seq, &import).map_err(failed)?,
            Entry::Marker(_) | Entry::Repair(_) => {}
        }
    }
    Ok(())
}

fn restore_anew(
    tx: &Connection,
    dir: &StoreDir,
    old: &Connection,
    entries: &[Salvaged],
    lost: u64,
) -> Result<()> {
    let failed = |error| Error::sqlite("restore the record", dir.database(), error);
    let head = entries.last().map(|entry| {
        let hash: String = entry.hashes[1].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}:{hash}", entry.seq)
    });
    let note = Repair { at: Timestamp::now(), read: entries.len() as u64, lost, old_head: head };
    ledger::append(tx, &Entry::Repair(note)).map_err(failed)?;
    // Old and new number of each run whose outcome has not come yet.
    let mut numbers = HashMap::new();
    let mut renumbered = Vec::new();
    for entry in entries {
        let Some(body) = &entry.body else { continue };
        match ledger::parse(entry.seq, body) {
            Ok(Entry::Intent(intent)) => match insert_intent(tx, dir, &intent) {
                Ok(seq) => {
                    numbers.insert(intent.id(), (entry.seq, seq));
                    renumbered.push((entry.seq, seq));
                }
                Err(Error::Duplicate { .. }) => {}
                Err(error) => return Err(error),
            },
            Ok(Entry::Outcome { run, outcome }) => {
                let Some((old_seq, seq)) = numbers.remove(&run) else { continue };
                let chunks = old_chunks(old, old_seq);
                insert_outcome(tx, dir, (run, seq), &outcome, &[], chunks.as_deref())?;
                restore_outputs(tx, dir, (old, old_seq), (run, seq), &outcome)?;
            }
            Ok(Entry::Import(import)) => {
                let (first, last) = import.entries;
                let those = renumbered.iter().filter(|(old, _)| (first..=last).contains(old));
                let numbers = || those.clone().map(|(_, new)| *new);
                if let (Some(first), Some(last)) = (numbers().min(), numbers().max()) {
                    imports::append(tx, Import { entries: (first, last), ..import })
                        .map_err(failed)?;
                }
            }
            Ok(Entry::Marker(_) | Entry::Repair(_)) | Err(_) => {} // about numbers that are gone
        }
    }
    Ok(())
}

fn old_chunks(old: &Connection, seq: i64) -> Option<Vec<u8>> {
    old.query_row("SELECT chunks FROM runs WHERE seq = ?1", [seq], |row| row.get(0))
        .ok() // unreadable: the streams are shown one after the other
        .flatten()
}

/// Finds each output again: in the damaged database, or as a file.
fn restore_outputs(
    tx: &Connection,
    dir: &StoreDir,
    (old, old_seq): (&Connection, i64),
    (run, seq): (RunId, i64),
    outcome: &RunOutcome,
) -> Result<()> {
    let failed = |error| Error::sqlite("restore output", dir.database(), error);
    for stream in Stream::BOTH {
        let Some(recorded) = output::recorded_output(outcome, stream) else { continue };
        let RecordedOutput { bytes, hash } = recorded;
        let old_key = output_key(old_seq, stream);
        let inline = output::load_content(old, old_key)
            .ok() // unreadable: a file may still have it
            .filter(|content| blake3::hash(content) == hash);
        let blocks = output::load_blocks(old, old_key)
            .ok() // unreadable: the list can be made again
            .flatten()
            .and_then(|blocks| BlockHashes::of_output(&blocks, bytes, &hash));
        let compressed = dir.output(&hash).exists();
        let raw = dir.spool(run, stream).metadata().is_ok_and(|file| file.len() == bytes);
        if inline.is_some() || compressed || raw {
            let output = OutputHash { bytes, hash, blocks };
            let kept = StreamContent { stream, output, inline: inline.as_deref() };
            insert_output(tx, seq, &kept).map_err(failed)?;
            if inline.is_none() && compressed {
                let storage = Storage::Compressed.number();
                tx.execute(
                    "UPDATE outputs SET storage = ?2 WHERE place = ?1",
                    (output_key(seq, stream), storage),
                )
                .map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// Loops, events and settings are not in the ledger: as many rows as SQLite gives out.
fn copy_loops(tx: &Connection, dir: &StoreDir, old: &Connection) -> Result<()> {
    let failed = |error| Error::sqlite("restore the loops", dir.database(), error);
    let tables = [
        ("loops", "id, kind, plan, state, stop_reason, start_us, end_us", 7),
        ("events", "loop, seq, at_us, body", 4),
        ("settings", "name, value", 2),
    ];
    for (table, columns, count) in tables {
        let Ok(mut statement) = old.prepare(&format!("SELECT {columns} FROM {table}")) else {
            continue; // the table is unreadable: nothing of it can be read
        };
        let Ok(mut rows) = statement.query([]) else { continue };
        let marks = vec!["?"; count].join(", ");
        let insert = format!("INSERT OR IGNORE INTO {table} ({columns}) VALUES ({marks})");
        while let Ok(Some(row)) = rows.next() {
            let values: rusqlite::Result<Vec<rusqlite::types::Value>> =
                (0..count).map(|column| row.get(column)).collect();
            if let Ok(values) = values {
                tx.execute(&insert, rusqlite::params_from_iter(values)).map_err(failed)?;
            }
        }
    }
    Ok(())
}
