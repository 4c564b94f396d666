//! Replaces a database that SQLite cannot read by a new one, from every readable ledger entry and
//! every output that can be found. The old one is kept.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use jiff::Timestamp;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::base::dir::{StoreDir, remove, sync_dir};
use crate::base::imports;
use crate::base::ledger::{self, Entry, Import, Repair};
use crate::base::projection::{Row, complete, insert_labels, seq_of};
use crate::base::reserve;
use crate::base::schema;
use crate::base::write_lock::WriteTurn;
use crate::maintain::compact;
use crate::maintain::output_rows::{InlineOutputs, NamedOutput};
use crate::maintain::repair::{Repaired, backup_dir};
use crate::read::output::output_key;
use crate::write::run_entries::{insert_intent, insert_outcome};
use crate::{Error, Result};

/// One ledger row as read.
struct Salvaged {
    seq: i64,
    body: Option<Vec<u8>>,
    hashes: [Vec<u8>; 2],
}

/// Replaces a damaged database by a new one with everything readable. Needs space for the new one
/// only: the old one is kept under a second name.
pub(crate) fn salvage(root: &Path, repaired: &mut Repaired) -> Result<()> {
    let dir = StoreDir::new(root);
    salvage_in(&dir, repaired).map_err(|error| match error {
        Error::DiskFull { .. } => {
            // At most as large as the old one with its WAL.
            let length = |path: &Path| path.metadata().map_or(0, |file| file.len());
            let needed = length(dir.database()) + length(&dir.wal());
            Error::NoRoomToRepair { path: dir.database().to_owned(), needed }
        }
        error => error,
    })
}

fn salvage_in(dir: &StoreDir, repaired: &mut Repaired) -> Result<()> {
    let _turn = WriteTurn::take(dir)?;
    if reserve::disk_is_almost_full(dir) {
        reserve::give_wal_room_back(dir);
    }
    let backup = backup_dir(dir.root())?;
    let old = open_old(dir, &backup)?;
    let (entries, lost) = read_ledger(&old);
    (repaired.entries_read, repaired.entries_lost) = (entries.len() as u64, lost);
    let old = OldRecord { inline: InlineOutputs::of(&old), connection: &old, entries, lost };
    let new = match NewDatabase::build(dir, &backup, &old) {
        Err(Error::DiskFull { .. }) if compress_outputs(dir, &old.entries)? > 0 => {
            NewDatabase::build(dir, &backup, &old)
        }
        built => built,
    };
    let new = new.inspect_err(|_| {
        // Nothing was replaced, so the backup is not needed. If it cannot be removed, it is only a
        // second name.
        drop(fs::remove_dir_all(&backup));
    })?;
    new.replace_database(dir)?;
    repaired.backup = Some(backup);
    repaired.projection_rebuilt = true;
    Ok(())
}

/// Moves the damaged database to the backup, and opens it there for reading.
fn open_old(dir: &StoreDir, backup: &Path) -> Result<Connection> {
    let files = || {
        let files = [dir.database().to_owned(), dir.wal()].into_iter().filter(|file| file.exists());
        files.map(|file| (backup.join(file.file_name().unwrap_or_default()), file))
    };
    for (kept, file) in files() {
        if fs::hard_link(&file, &kept).is_err() {
            fs::copy(&file, &kept).map_err(|error| Error::io("copy", &file, error))?;
        }
    }
    let failed = |error| Error::sqlite("open the damaged record", dir.database(), error);
    let open = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let old = Connection::open_with_flags(backup.join("retake.db"), flags)?;
        old.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        old.execute_batch(
            "PRAGMA locking_mode = EXCLUSIVE; PRAGMA query_only = ON; PRAGMA temp_store = MEMORY",
        )?;
        Ok(old)
    };
    let old = open().map_err(failed)?;
    let look = old.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()));
    let in_use = look.is_err_and(|error| {
        matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
        )
    });
    if !in_use {
        return Ok(old); // what else is wrong with it, reading shows
    }
    // A program that has it open prevents reading the same file.
    drop(old);
    for (kept, file) in files() {
        remove(&kept)?;
        fs::copy(&file, &kept).map_err(|error| Error::io("copy", &file, error))?;
    }
    open().map_err(failed)
}

/// On a full disk: compresses outputs that the ledger names. Returns how many.
fn compress_outputs(dir: &StoreDir, entries: &[Salvaged]) -> Result<u64> {
    let mut compressed = 0;
    for entry in entries {
        let Some(Ok(Entry::Outcome { run, outcome })) =
            entry.body.as_ref().map(|body| ledger::parse(entry.seq, body))
        else {
            continue;
        };
        for output in NamedOutput::of(run, 0, &outcome) {
            match compact::compress_in_place(dir, (run, output.stream), &output.recorded.hash) {
                Ok(done) => compressed += u64::from(done),
                // The next one may be smaller.
                Err(Error::DiskFull { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(compressed)
}

/// The readable parts of a damaged record.
struct OldRecord<'a> {
    connection: &'a Connection,
    inline: InlineOutputs<'a>,
    entries: Vec<Salvaged>,
    lost: u64,
}

/// A complete database under a temporary name.
struct NewDatabase {
    dir: StoreDir,
}

impl NewDatabase {
    fn build(dir: &StoreDir, backup: &Path, old: &OldRecord<'_>) -> Result<Self> {
        let new = Self { dir: StoreDir::new(backup).unfinished() };
        let built = new.fill(dir, old);
        if built.is_err() {
            for suffix in ["", "-wal", "-journal"] {
                remove(&new.dir.beside_database(suffix))?;
            }
        }
        built.map(|()| new)
    }

    fn fill(&self, dir: &StoreDir, old: &OldRecord<'_>) -> Result<()> {
        let failed = |error| Error::sqlite("restore the record", dir.database(), error);
        let file = self.dir.create_private(self.dir.database())?;
        let mut fresh = Connection::open(self.dir.database()).map_err(failed)?;
        // An incomplete database is discarded, and a journal would need twice the space.
        fresh
            .execute_batch(
                "PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = OFF;
                 PRAGMA journal_mode = OFF; PRAGMA temp_store = MEMORY",
            )
            .map_err(failed)?;
        schema::migrate(&mut fresh, &self.dir)?;
        let tx = fresh.transaction().map_err(failed)?;
        let hashed = |entry: &Salvaged| entry.hashes.iter().all(|hash| !hash.is_empty());
        if old.lost == 0 && old.entries.iter().all(hashed) {
            restore_verbatim(&tx, dir, old)?;
        } else {
            restore_anew(&tx, dir, old)?;
        }
        copy_loops(&tx, dir, old.connection)?;
        tx.commit().map_err(failed)?;
        fresh.pragma_update(None, "journal_mode", "wal").map_err(failed)?;
        fresh.close().map_err(|(_, error)| failed(error))?;
        file.sync_all().map_err(|error| Error::io("sync", self.dir.database(), error))
    }

    fn replace_database(self, dir: &StoreDir) -> Result<()> {
        // SQLite must not apply a WAL or index of the old database to the new one.
        for suffix in ["-wal", "-shm"] {
            remove(&self.dir.beside_database(suffix))?;
            remove(&dir.beside_database(suffix))?;
        }
        fs::rename(self.dir.database(), dir.database())
            .map_err(|error| Error::io("replace", dir.database(), error))?;
        sync_dir(dir.root())
    }
}

/// Reads every entry that SQLite still returns, and counts the others.
fn read_ledger(old: &Connection) -> (Vec<Salvaged>, u64) {
    const WHOLE: &str = "SELECT seq, body, body_hash, hash FROM ledger";
    // Even without the chain, the bodies show what ran.
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
    // The damage ends this with an error; earlier rows are kept.
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
    let known = "SELECT max(max(seq), coalesce(max(outcome_seq), 0)) FROM runs";
    let known: Option<i64> = old.query_row(known, [], |row| row.get(0)).ok().flatten(); // or nothing
    let last = entries.last().map_or(0, |entry| entry.seq).max(known.unwrap_or(0));
    let highest = last.unsigned_abs();
    let lost = highest.saturating_sub(entries.len() as u64).max(1);
    (entries, lost)
}

fn restore_verbatim(tx: &Connection, dir: &StoreDir, old: &OldRecord<'_>) -> Result<()> {
    let failed = |error| Error::sqlite("restore the record", dir.database(), error);
    for entry in &old.entries {
        tx.prepare_cached("INSERT INTO ledger (seq, body, body_hash, hash) VALUES (?1,?2,?3,?4)")
            .and_then(|mut insert| {
                insert.execute((entry.seq, &entry.body, &entry.hashes[0], &entry.hashes[1]))
            })
            .map_err(failed)?;
        // An edited body is kept for verify to report, but has no row in `runs`.
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
                let chunks = old_chunks(old.connection, seq);
                complete(tx, seq, (entry.seq, &outcome), chunks.as_deref()).map_err(failed)?;
                let named = NamedOutput::of(run, seq, &outcome);
                restore_outputs(tx, dir, old, seq, named)?;
            }
            Entry::Import(import) => imports::note(tx, entry.seq, &import).map_err(failed)?,
            Entry::Marker(_) | Entry::Repair(_) => {}
        }
    }
    Ok(())
}

fn restore_anew(tx: &Connection, dir: &StoreDir, old: &OldRecord<'_>) -> Result<()> {
    let OldRecord { entries, lost, .. } = old;
    let failed = |error| Error::sqlite("restore the record", dir.database(), error);
    let head = entries.last().map(|entry| {
        let hash: String = entry.hashes[1].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}:{hash}", entry.seq)
    });
    let note =
        Repair { at: Timestamp::now(), read: entries.len() as u64, lost: *lost, old_head: head };
    ledger::append(tx, &Entry::Repair(note)).map_err(failed)?;
    // Old and new number of each run without an outcome so far.
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
                let chunks = old_chunks(old.connection, old_seq);
                insert_outcome(tx, dir, (run, seq), &outcome, &[], chunks.as_deref())?;
                let named = NamedOutput::of(run, seq, &outcome);
                restore_outputs(tx, dir, old, old_seq, named)?;
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

/// Looks for each output in the damaged database and in files.
fn restore_outputs(
    tx: &Connection,
    dir: &StoreDir,
    old: &OldRecord<'_>,
    old_seq: i64,
    outputs: impl Iterator<Item = NamedOutput>,
) -> Result<()> {
    for output in outputs {
        let old_key = output_key(old_seq, output.stream);
        if let Some(found) = output.find(dir, &old.inline, old_key) {
            found
                .insert(tx)
                .map_err(|error| Error::sqlite("restore output", dir.database(), error))?;
        }
    }
    Ok(())
}

/// Loops, events and settings are not in the ledger: copies as many rows as SQLite returns.
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
