//! Sending the ledger: one thread reads entries and makes rows of them, while the server takes in those of the
//! batch before. Otherwise each of the two would wait for the other.

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

/// Entries in one transaction.
const ENTRIES: usize = 10_000;
/// How often a transaction that waits for another one in a circle is tried.
const DEADLOCK_TRIES: u32 = 5;

/// Entries in a row, as they are sent.
struct Batch {
    rows: LedgerRows,
    entries: u64,
    /// The number and the hash of the last one.
    last: u64,
    head: String,
    /// How many entries the ledger has.
    of: u64,
}

/// What became of a batch.
enum Sent {
    All,
    /// Nothing of it: what it was sent with is not so any more.
    Nothing,
    /// Someone else has pushed this record meanwhile.
    Overtaken,
}

/// Sends all entries that are not there yet. `progress` hears how many of how many are.
pub(super) fn send_ledger(
    client: &mut Client,
    (store, names): (&mut Store, &mut ProjectNames),
    target: &mut Target,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    while !send_from_position(client, (store, names), target, progress)? {}
    Ok(())
}

/// Sends entries from where the database is; `false` if someone else has sent some meanwhile.
fn send_from_position(
    client: &mut Client,
    (store, names): (&mut Store, &mut ProjectNames),
    target: &mut Target,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<bool, Error> {
    let (mut position, head) = target.position(client, "")?;
    if position > 0 {
        // The last entry that is there must be the one that is here.
        let known = store.ledger_after(position - 1, 1)?;
        let known = known.first().filter(|entry| entry.seq == position);
        if known.is_none_or(|known| head.as_deref() != Some(&*known.hash.to_hex())) {
            return Err(Error::Replaced { seq: position });
        }
    }
    // A batch has tens of megabytes: none waits but the one that was made while another was sent.
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

/// Reads the ledger to its end, for as long as someone takes what is made of it.
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
        // Who has failed takes no more.
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

/// Sends a batch that follows this position; `false` if someone else has sent it.
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
            // Many who push at once may wait for each other in a circle. The server ends one of
            // them, and nothing of it was done.
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
    // Tables are made before the transaction: making one waits for everybody who writes.
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
        // A project was renamed meanwhile.
        target.numbers.clear();
        return Ok(Sent::Nothing);
    }
    copy(&mut transaction, "retake.ledger (record, seq, hash, body_hash, body)", &rows.ledger)?;
    let mut ended = match target.known_runs {
        true => insert_unknown(&mut transaction, &rows.runs, &numbers)?,
        false => match copy_runs(&mut transaction, "retake.runs", &rows.runs, &numbers) {
            Ok(()) => rows.runs_ended.iter().map(ToString::to_string).collect(),
            Err(Error::Database(error)) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
                // Once more, looking at each run.
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

/// Removes what someone has deleted from the record.
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
/// with many rows do not refer to them: that would cost a look for each row.
fn keep_projects(transaction: &mut Transaction<'_>, numbers: &[i32]) -> Result<bool, Error> {
    if numbers.is_empty() {
        return Ok(true);
    }
    let mut numbers = numbers.to_vec();
    // Two names may be those of one project.
    numbers.sort_unstable();
    numbers.dedup();
    let kept = transaction
        .query("SELECT id FROM retake.projects WHERE id = ANY ($1) FOR KEY SHARE", &[&numbers])?;
    Ok(kept.len() == numbers.len())
}

/// Sends runs of which another record may have sent some. Those stay that record's; a run whose
/// outcome was not known there gets it. Gives the runs that have their outcome since now.
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

/// Gives runs that were sent earlier their outcomes, and says which have one since now.
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

/// The columns of an ending, from a table of this name; with `name = `, if they are to be set.
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
