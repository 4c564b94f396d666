//! Sends the ledger: one thread reads entries and builds rows, while the server processes those of the previous
//! batch. Otherwise each of the two would wait for the other.

use std::sync::mpsc::{SyncSender, sync_channel};

use postgres::error::SqlState;
use postgres::{Client, Transaction};
use retake_runner::project_identity::ProjectNames;
use retake_store::Store;
use retake_types::RunId;

use super::Error;
use super::copy_rows::CopyRows;
use super::ledger_rows::{ENDING, LedgerRows, RunRows};
use super::target::{Target, array, copy, derive, ids};

/// Number of entries in one transaction.
const ENTRIES: usize = 10_000;
/// How often a transaction is retried after a deadlock.
const DEADLOCK_TRIES: u32 = 5;

/// Consecutive entries, as they are sent.
struct Batch {
    rows: LedgerRows,
    entries: u64,
    /// The number and the hash of the last one.
    last: u64,
    head: String,
    /// How many entries the ledger has.
    of: u64,
}

/// The outcome of sending a batch.
enum Sent {
    All,
    /// Nothing was sent: an assumption no longer holds.
    Nothing,
    /// Another process has pushed this record in the meantime.
    Overtaken,
}

/// Sends all entries that are not in the database yet. `progress` gets the number of sent entries and of all.
pub(super) fn send_ledger(
    client: &mut Client,
    (store, names): (&mut Store, &mut ProjectNames),
    target: &mut Target,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    while !send_from_position(client, (store, names), target, progress)? {}
    Ok(())
}

/// Sends entries from the database's position; `false` if another process has sent some in the meantime.
fn send_from_position(
    client: &mut Client,
    (store, names): (&mut Store, &mut ProjectNames),
    target: &mut Target,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<bool, Error> {
    let (mut position, head) = target.position(client, "")?;
    if position > 0 {
        // The last entry in the database must be the same as here.
        let known = store.ledger_after(position - 1, 1)?;
        let known = known.first().filter(|entry| entry.seq == position);
        if known.is_none_or(|known| head.as_deref() != Some(&*known.hash.to_hex())) {
            return Err(Error::Replaced { seq: position });
        }
    }
    // A batch has tens of megabytes: only one is built ahead while another is sent.
    let (sender, batches) = sync_channel(0);
    let record = target.record;
    std::thread::scope(|scope| {
        scope.spawn(move || make_batches((store, names), record, position, &sender));
        for batch in batches {
            let batch: Batch = batch?;
            if !send_batch(client, target, &batch, position)? {
                return Ok(false);
            }
            position = batch.last;
            progress(position, batch.of.max(position));
        }
        Ok(true)
    })
}

/// Reads the ledger to its end, as long as the receiver takes batches.
fn make_batches(
    (store, names): (&mut Store, &mut ProjectNames),
    record: RunId,
    mut after: u64,
    to: &SyncSender<Result<Batch, Error>>,
) {
    loop {
        let (batch, more) = match make_batch((&mut *store, &mut *names), record, after) {
            Ok(None) => return,
            Ok(Some(batch)) => {
                after = batch.last;
                let more = batch.entries >= ENTRIES as u64;
                (Ok(batch), more)
            }
            Err(error) => (Err(error), false),
        };
        // After a failure the receiver is gone.
        if to.send(batch).is_err() || !more {
            return;
        }
    }
}

fn make_batch(
    (store, names): (&mut Store, &mut ProjectNames),
    record: RunId,
    after: u64,
) -> Result<Option<Batch>, Error> {
    let entries = store.ledger_after(after, ENTRIES)?;
    let Some(last) = entries.last() else { return Ok(None) };
    Ok(Some(Batch {
        rows: LedgerRows::of(record, &entries, names),
        entries: entries.len() as u64,
        last: last.seq,
        head: last.hash.to_hex().to_string(),
        of: store.head()?.count,
    }))
}

/// Sends a batch that follows this position; `false` if another process has sent it.
fn send_batch(
    client: &mut Client,
    target: &mut Target,
    batch: &Batch,
    position: u64,
) -> Result<bool, Error> {
    let mut tries = 0;
    loop {
        match try_batch(client, target, batch, position) {
            Ok(Sent::All) => return Ok(true),
            Ok(Sent::Nothing) => {}
            Ok(Sent::Overtaken) => return Ok(false),
            // Simultaneous pushes may deadlock. The server aborts one of them, and nothing of it is
            // committed.
            Err(Error::Database(error))
                if error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED)
                    && tries < DEADLOCK_TRIES =>
            {
                tries += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn try_batch(
    client: &mut Client,
    target: &mut Target,
    batch: &Batch,
    position: u64,
) -> Result<Sent, Error> {
    let rows = &batch.rows;
    let mut numbers = Vec::new();
    for name in &rows.runs.projects {
        numbers.push(target.number(client, name)?);
    }
    // Tables are created before the transaction: creating one waits for all writers.
    target.months.add(client, rows.runs_begun.iter().copied())?;
    if target.known_runs {
        target.need(client, "new_runs")?;
    }
    if !rows.endings.is_empty() {
        target.need(client, "new_endings")?;
    }
    let mut transaction = client.transaction()?;
    if target.position(&mut transaction, "FOR UPDATE")?.0 != position {
        return Ok(Sent::Overtaken);
    }
    if !keep_projects(&mut transaction, &numbers)? {
        // A project was renamed in the meantime.
        target.numbers.clear();
        return Ok(Sent::Nothing);
    }
    copy(&mut transaction, "retake.ledger (record, seq, hash, body_hash, body)", &rows.ledger)?;
    let mut ended = match target.known_runs {
        true => insert_unknown(&mut transaction, &rows.runs, &numbers)?,
        false => match copy_runs(&mut transaction, "retake.runs", &rows.runs, &numbers) {
            Ok(()) => rows.runs_ended.iter().map(ToString::to_string).collect(),
            Err(Error::Database(error)) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
                // Try again, checking each run.
                target.known_runs = true;
                return Ok(Sent::Nothing);
            }
            Err(error) => return Err(error),
        },
    };
    ended.extend(complete(&mut transaction, &rows.endings)?);
    derive(&mut transaction, &ended, 1)?;
    delete(&mut transaction, target.record, &rows.deleted)?;
    let reached = i64::try_from(batch.last).unwrap_or(i64::MAX);
    transaction.execute(
        "UPDATE retake.records SET pushed = $2, head = $3, pushed_at = now()
         WHERE id = $1::text::uuid",
        &[&target.record.to_string(), &reached, &batch.head],
    )?;
    transaction.commit()?;
    target.pushed.entries += batch.entries;
    target.pushed.runs += rows.runs_begun.len() as u64;
    Ok(Sent::All)
}

/// Removes entries that were deleted from the record.
fn delete(
    transaction: &mut Transaction<'_>,
    record: RunId,
    ranges: &[(u64, u64)],
) -> Result<(), Error> {
    let record = record.to_string();
    for (from, to) in ranges {
        let range = [from, to].map(|seq| i64::try_from(*seq).unwrap_or(i64::MAX));
        transaction.execute(
            "UPDATE retake.ledger SET body = NULL
             WHERE record = $1::text::uuid AND seq BETWEEN $2 AND $3",
            &[&record, &range[0], &range[1]],
        )?;
        let gone = transaction.query(
            "SELECT id::text FROM retake.runs
             WHERE record = $1::text::uuid AND seq BETWEEN $2 AND $3",
            &[&record, &range[0], &range[1]],
        )?;
        let gone = ids(&gone);
        derive(transaction, &gone, -1)?;
        if !gone.is_empty() {
            let ids = array(&gone);
            let delete = |table: &str, column: &str| {
                format!("DELETE FROM retake.{table} WHERE {column} = ANY ($1::text::uuid[])")
            };
            transaction.execute(&delete("outputs", "run"), &[&ids])?;
            transaction.execute(&delete("runs", "id"), &[&ids])?;
        }
    }
    Ok(())
}

/// Keeps these projects from being renamed until the transaction ends; `false` if one of them was. Tables
/// with many rows have no foreign key to them, which would cost a lookup for each row.
fn keep_projects(transaction: &mut Transaction<'_>, numbers: &[i32]) -> Result<bool, Error> {
    if numbers.is_empty() {
        return Ok(true);
    }
    let mut numbers = numbers.to_vec();
    // Two names may belong to one project.
    numbers.sort_unstable();
    numbers.dedup();
    let kept = transaction
        .query("SELECT id FROM retake.projects WHERE id = ANY ($1) FOR KEY SHARE", &[&numbers])?;
    Ok(kept.len() == numbers.len())
}

/// Sends runs of which another record may have sent some. Those keep belonging to that record; a run without
/// an outcome gets it. Returns the runs that got their outcome now.
fn insert_unknown(
    transaction: &mut Transaction<'_>,
    rows: &RunRows,
    numbers: &[i32],
) -> Result<Vec<String>, Error> {
    copy_runs(transaction, "new_runs", rows, numbers)?;
    let begun = transaction.query(
        &format!(
            "WITH begun AS (
               INSERT INTO retake.runs SELECT * FROM new_runs
               ON CONFLICT (id) DO UPDATE SET {}
                 WHERE retake.runs.outcome IS NULL AND excluded.outcome IS NOT NULL
               RETURNING id, outcome)
             SELECT id::text FROM begun WHERE outcome IS NOT NULL",
            columns("excluded", true),
        ),
        &[],
    )?;
    Ok(ids(&begun))
}

/// Adds the outcomes of runs that were sent earlier, and returns the runs that got one now.
fn complete(transaction: &mut Transaction<'_>, rows: &CopyRows) -> Result<Vec<String>, Error> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    copy(transaction, "new_endings", rows)?;
    let ended = transaction.query(
        &format!(
            "UPDATE retake.runs AS run SET ({ENDING}) = ({}) FROM new_endings AS new
             WHERE run.id = new.id AND run.outcome IS NULL RETURNING run.id::text",
            columns("new", false),
        ),
        &[],
    )?;
    Ok(ids(&ended))
}

/// The columns of an ending, from a table of this name; with `name = ` if they are to be assigned.
fn columns(table: &str, set: bool) -> String {
    let column = |name: &str| match set {
        true => format!("{name} = {table}.{name}"),
        false => format!("{table}.{name}"),
    };
    ENDING.split(", ").map(column).collect::<Vec<_>>().join(", ")
}

fn copy_runs(
    transaction: &mut Transaction<'_>,
    into: &str,
    rows: &RunRows,
    numbers: &[i32],
) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut writer = transaction.copy_in(&format!("COPY {into} FROM STDIN"))?;
    rows.write(numbers, &mut writer)?;
    writer.finish()?;
    Ok(())
}
