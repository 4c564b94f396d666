//! Sending: the ledger in order, then loops with their events, then output if it is wanted.
//!
//! Runs that are new are copied right into their table. Only runs that may be there already, or that
//! were sent before they ended, are sent through a temporary table.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};

use postgres::error::SqlState;
use postgres::{Client, GenericClient, Row, Transaction};
use retake_runner::machine;
use retake_runner::project_identity::ProjectNames;
use retake_store::Store;
use retake_types::{LoopId, RunId, StopReason, Stream};

use super::copy_rows::CopyRows;
use super::ledger_rows::{ENDING, LedgerRows};
use super::months::Months;
use super::{Address, Error, database, schema};

/// Entries in one transaction.
const ENTRIES: usize = 10_000;
const EVENTS: usize = 4000;
/// Bytes that are sent together.
pub(super) const BYTES: usize = 16 << 20;
/// How often a transaction that waits for another one in a circle is tried.
const DEADLOCK_TRIES: u32 = 5;

/// What is sent beyond runs, loops, events and the ledger.
#[derive(Clone, Debug, Default)]
pub struct PushOptions {
    /// The project that the record is used from, if it is one.
    pub root: Option<PathBuf>,
    /// Output is sent, at most this many bytes of each stream.
    pub output_bytes: Option<u64>,
    /// A record that is not the one that was pushed is a copy of it, and gets a name of its own.
    pub as_copy: bool,
}

/// What was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pushed {
    pub entries: u64,
    pub runs: u64,
    pub events: u64,
    pub outputs: u64,
    /// Outputs that are not those recorded, and were not sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<DamagedOutput>,
}

/// An output that is lost or was altered.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DamagedOutput {
    pub run: RunId,
    pub stream: Stream,
    /// Why.
    pub error: String,
}

/// Sends everything that is not there yet. `progress` hears how many entries of how many are.
pub fn push(
    store: &mut Store,
    address: &Address,
    options: PushOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Pushed, Error> {
    let mut client = database::connect(address)?;
    let record = store.record_id()?;
    let names = ProjectNames::new(record, options.root.as_deref());
    let projects = Projects { names, numbers: HashMap::new() };
    let (pushed, months) = (Pushed::default(), Months::default());
    let temporary = Vec::new();
    let mut sender =
        Sender { record, store, projects, months, pushed, temporary, known_runs: false };
    schema::ready(&mut client)?;
    // How far this record was sent is written with what was sent: if the server loses the end of it,
    // the next push sends that again. So nothing waits for its disk before the end.
    client.batch_execute("SET synchronous_commit = off")?;
    sender.register(&mut client)?;
    sender.name_projects(&mut client)?;
    match sender.ledger(&mut client, progress) {
        Err(Error::Replaced { .. }) if options.as_copy => {
            sender.record = sender.store.rename_record()?;
            sender.register(&mut client)?;
            sender.ledger(&mut client, progress)?;
        }
        other => other?,
    }
    sender.loops(&mut client)?;
    if let Some(most) = options.output_bytes {
        sender.outputs(&mut client, most)?;
    }
    database::apply_daily(&mut client)?;
    sender.make_durable(&mut client)?;
    Ok(sender.pushed)
}

pub(super) struct Sender<'a> {
    pub(super) store: &'a mut Store,
    pub(super) record: RunId,
    projects: Projects,
    months: Months,
    pub(super) pushed: Pushed,
    /// Temporary tables that were made: only those that are needed are.
    temporary: Vec<&'static str>,
    /// Another record has sent runs that this one has as well.
    known_runs: bool,
}

/// The numbers of projects there.
struct Projects {
    names: ProjectNames,
    numbers: HashMap<String, i32>,
}

impl Projects {
    /// The number of the project that a run in this directory belongs to.
    fn number(&mut self, client: &mut impl GenericClient, directory: &Path) -> Result<i32, Error> {
        let name = self.names.of(directory);
        number_of(&mut self.numbers, client, name)
    }
}

fn number_of(
    numbers: &mut HashMap<String, i32>,
    client: &mut impl GenericClient,
    name: &str,
) -> Result<i32, Error> {
    if let Some(number) = numbers.get(name) {
        return Ok(*number);
    }
    let number = client.query_one("SELECT retake.project_of($1)", &[&name])?.get(0);
    numbers.insert(name.to_owned(), number);
    Ok(number)
}

/// A table for rows on their way, by what it is called.
fn temporary_table(name: &str) -> String {
    match name {
        "new_endings" => format!(
            "CREATE TEMP TABLE new_endings ON COMMIT DELETE ROWS AS
               SELECT id, {ENDING} FROM retake.runs WITH NO DATA"
        ),
        other => {
            let like = other.trim_start_matches("new_");
            format!("CREATE TEMP TABLE {other} (LIKE retake.{like}) ON COMMIT DELETE ROWS")
        }
    }
}

impl Sender<'_> {
    /// Makes a temporary table, once. To be called outside of a transaction.
    pub(super) fn need(&mut self, client: &mut Client, table: &'static str) -> Result<(), Error> {
        if !self.temporary.contains(&table) {
            client.batch_execute(&temporary_table(table))?;
            self.temporary.push(table);
        }
        Ok(())
    }

    /// Finds the projects of runs of this record that were pushed when projects were not noted.
    fn name_projects(&mut self, client: &mut Client) -> Result<(), Error> {
        let unnamed = format!("record:{}", self.record);
        if self.projects.names.fallback() == unnamed {
            return Ok(());
        }
        let found =
            client.query_opt("SELECT id FROM retake.projects WHERE name = $1", &[&unnamed])?;
        let Some(old) = found.map(|row| row.get::<_, i32>(0)) else { return Ok(()) };
        let record = self.record.to_string();
        let directories = client.query(
            "SELECT DISTINCT working_directory FROM retake.runs
             WHERE record = $1::text::uuid AND project = $2",
            &[&record, &old],
        )?;
        let mut transaction = client.transaction()?;
        for row in &directories {
            let directory: &str = row.get(0);
            let new = self.projects.number(&mut transaction, Path::new(directory))?;
            if new == old {
                continue;
            }
            let moved = transaction.query(
                "SELECT id::text FROM retake.runs
                 WHERE record = $1::text::uuid AND project = $2 AND working_directory = $3",
                &[&record, &old, &directory],
            )?;
            move_runs(&mut transaction, &ids(&moved), new)?;
        }
        let own = number_of(
            &mut self.projects.numbers,
            &mut transaction,
            self.projects.names.fallback(),
        )?;
        transaction.execute(
            "UPDATE retake.loops SET project = $2 WHERE project = $1 AND record = $3::text::uuid",
            &[&old, &own, &record],
        )?;
        transaction.commit()?;
        Ok(())
    }

    /// Waits until all that was sent is on the server's disk.
    fn make_durable(&self, client: &mut Client) -> Result<(), Error> {
        if self.pushed.entries + self.pushed.events + self.pushed.outputs == 0 {
            return Ok(());
        }
        client.batch_execute("SET synchronous_commit = on")?;
        client.execute(
            "UPDATE retake.records SET pushed_at = now() WHERE id = $1::text::uuid",
            &[&self.record.to_string()],
        )?;
        Ok(())
    }

    /// Our row.
    fn register(&self, client: &mut Client) -> Result<(), Error> {
        let path = std::path::absolute(self.store.path()).unwrap_or_default();
        client.execute(
            "INSERT INTO retake.records (id, host, path) VALUES ($1::text::uuid, $2, $3)
             ON CONFLICT (id) DO UPDATE SET host = excluded.host, path = excluded.path",
            &[&self.record.to_string(), &machine::host(), &path.to_string_lossy().into_owned()],
        )?;
        Ok(())
    }

    /// All entries that are not there yet.
    fn ledger(
        &mut self,
        client: &mut Client,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            match self.entries(client, progress) {
                Ok(true) => tries = 0,
                Ok(false) => return Ok(()),
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

    /// How much was sent already. With `FOR UPDATE` other pushes of this record wait for this
    /// transaction.
    fn position(
        &self,
        client: &mut impl GenericClient,
        lock: &str,
    ) -> Result<(u64, Option<String>), Error> {
        let row = client.query_one(
            &format!("SELECT pushed, head FROM retake.records WHERE id = $1::text::uuid {lock}"),
            &[&self.record.to_string()],
        )?;
        Ok((row.get::<_, i64>(0).unsigned_abs(), row.get(1)))
    }

    /// Sends the next entries; `false` once there are none.
    fn entries(
        &mut self,
        client: &mut Client,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<bool, Error> {
        let (position, head) = self.position(client, "")?;
        // One entry more than is new: the last that is there must be the one that is here.
        let mut entries = self.store.ledger_after(position.saturating_sub(1), ENTRIES + 1)?;
        if position > 0 {
            let known = entries.first().filter(|entry| entry.seq == position);
            let same = known.is_some_and(|known| head.as_deref() == Some(&*known.hash.to_hex()));
            if !same {
                return Err(Error::Replaced { seq: position });
            }
            entries.remove(0);
        }
        let Some(last) = entries.last() else { return Ok(false) };
        let sorted = LedgerRows::of(self.record, &entries, &mut |directory| {
            self.projects.number(client, directory)
        })?;
        // Tables are made before the transaction: making one waits for everybody who writes.
        self.months.add(client, sorted.runs_begun.iter().copied())?;
        if self.known_runs {
            self.need(client, "new_runs")?;
        }
        if !sorted.endings.is_empty() {
            self.need(client, "new_endings")?;
        }
        let mut transaction = client.transaction()?;
        if self.position(&mut transaction, "FOR UPDATE")?.0 != position {
            // Someone else has pushed this record meanwhile.
            return Ok(true);
        }
        if !keep_projects(&mut transaction, &sorted)? {
            // A project was renamed meanwhile.
            self.projects.numbers.clear();
            return Ok(true);
        }
        let record = self.record.to_string();
        copy(
            &mut transaction,
            "retake.ledger (record, seq, hash, body_hash, body)",
            &sorted.ledger,
        )?;
        let mut ended = match self.known_runs {
            true => insert_unknown(&mut transaction, &sorted.runs)?,
            false => match copy(&mut transaction, "retake.runs", &sorted.runs) {
                Ok(()) => sorted.runs_ended.iter().map(ToString::to_string).collect(),
                Err(Error::Database(error))
                    if error.code() == Some(&SqlState::UNIQUE_VIOLATION) =>
                {
                    // Once more, looking at each run.
                    self.known_runs = true;
                    return Ok(true);
                }
                Err(error) => return Err(error),
            },
        };
        ended.extend(complete(&mut transaction, &sorted.endings)?);
        derive(&mut transaction, &ended, 1)?;
        for (from, to) in &sorted.deleted {
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
            derive(&mut transaction, &gone, -1)?;
            if !gone.is_empty() {
                let ids = array(&gone);
                let delete = |table: &str, column: &str| {
                    format!("DELETE FROM retake.{table} WHERE {column} = ANY ($1::text::uuid[])")
                };
                transaction.execute(&delete("outputs", "run"), &[&ids])?;
                transaction.execute(&delete("runs", "id"), &[&ids])?;
            }
        }
        let reached = i64::try_from(last.seq).unwrap_or(i64::MAX);
        transaction.execute(
            "UPDATE retake.records SET pushed = $2, head = $3, pushed_at = now()
             WHERE id = $1::text::uuid",
            &[&record, &reached, &last.hash.to_hex().to_string()],
        )?;
        transaction.commit()?;
        self.pushed.entries += entries.len() as u64;
        self.pushed.runs += sorted.runs_begun.len() as u64;
        progress(last.seq, self.store.head()?.count.max(last.seq));
        Ok(entries.len() >= ENTRIES)
    }

    /// Loops change until they end; events only become more.
    fn loops(&mut self, client: &mut Client) -> Result<(), Error> {
        let mut loops = self.store.list_loops(None, usize::MAX)?;
        let local = self.store.last_loop_entries()?;
        // What ended and is there as it is here is not sent again.
        let ended = client.query(
            "SELECT id::text, (SELECT coalesce(max(seq), 0) FROM retake.events WHERE loop_id = id)
             FROM retake.loops WHERE record = $1::text::uuid AND end_time IS NOT NULL",
            &[&self.record.to_string()],
        )?;
        let ended: BTreeMap<LoopId, u64> = read_positions(&ended);
        loops.retain(|known| {
            ended.get(&known.id) != Some(&local.get(&known.id).copied().unwrap_or(0))
        });
        if loops.is_empty() {
            return Ok(());
        }
        let mut numbers = Vec::new();
        for known in &loops {
            let directory = self.loop_directory(known.id)?;
            let own = PathBuf::from("/");
            numbers.push(self.projects.number(client, directory.as_deref().unwrap_or(&own))?);
        }
        self.need(client, "new_loops")?;
        let mut transaction = client.transaction()?;
        self.position(&mut transaction, "FOR UPDATE")?;
        let mut rows = CopyRows::default();
        for (known, project) in loops.iter().zip(numbers) {
            rows.show(Some(known.id))
                .show(Some(self.record))
                .text(known.kind.as_str())
                .text(&known.plan)
                .text(known.state.as_str())
                .field(known.stop_reason.as_ref().map(StopReason::as_str))
                .show(Some(known.start_time))
                .show(known.end_time)
                .show(Some(project))
                .end();
        }
        copy(&mut transaction, "new_loops", &rows)?;
        transaction.batch_execute(
            "INSERT INTO retake.loops AS known SELECT * FROM new_loops ON CONFLICT (id) DO UPDATE
               SET state = excluded.state, stop_reason = excluded.stop_reason,
                   end_time = excluded.end_time
               WHERE (known.record = excluded.record OR known.end_time IS NULL)
                 AND (known.state, known.stop_reason, known.end_time)
                 IS DISTINCT FROM (excluded.state, excluded.stop_reason, excluded.end_time)",
        )?;
        // Another record may have brought them: one that this is a copy of.
        let there = transaction.query(
            "SELECT loop_id::text, max(seq) FROM retake.events JOIN new_loops ON id = loop_id
             GROUP BY loop_id",
            &[],
        )?;
        let there = read_positions(&there);
        let mut rows = CopyRows::default();
        let mut count = 0;
        for known in &loops {
            let mut after = there.get(&known.id).copied().unwrap_or(0);
            while local.get(&known.id).is_some_and(|last| *last > after) {
                let events = self.store.loop_entries(known.id, after, EVENTS)?;
                let Some(last) = events.last() else { break };
                after = last.seq;
                for event in &events {
                    rows.show(Some(known.id))
                        .show(Some(event.seq))
                        .show(Some(event.at))
                        .text(&event.body)
                        .end();
                }
                count += events.len() as u64;
                if rows.as_bytes().len() > BYTES {
                    copy(&mut transaction, "retake.events", &std::mem::take(&mut rows))?;
                }
            }
        }
        copy(&mut transaction, "retake.events", &rows)?;
        transaction.commit()?;
        self.pushed.events += count;
        Ok(())
    }

    /// Where the first run of a loop worked: what its project is known by.
    fn loop_directory(&self, id: LoopId) -> Result<Option<PathBuf>, Error> {
        let first = self.store.runs_of_loop(id)?.into_iter().next();
        Ok(first.map(|run| PathBuf::from(run.intent.working_directory())))
    }
}

/// The columns of an ending, from a table of this name; with `name = `, if they are to be set.
fn columns(table: &str, set: bool) -> String {
    let column = |name: &str| match set {
        true => format!("{name} = {table}.{name}"),
        false => format!("{table}.{name}"),
    };
    ENDING.split(", ").map(column).collect::<Vec<_>>().join(", ")
}

/// The ids that a question was answered with.
fn ids(rows: &[Row]) -> Vec<String> {
    rows.iter().map(|row| row.get(0)).collect()
}

/// Ids as the database writes an array.
fn array(ids: &[String]) -> String {
    format!("{{{}}}", ids.join(","))
}

/// Keeps the projects of these runs from being renamed until the transaction ends; `false` if one of
/// them was. Tables with many rows do not refer to them: that would cost a look for each row.
fn keep_projects(transaction: &mut Transaction<'_>, rows: &LedgerRows) -> Result<bool, Error> {
    if rows.projects.is_empty() {
        return Ok(true);
    }
    let numbers: Vec<i32> = rows.projects.iter().copied().collect();
    let kept = transaction
        .query("SELECT id FROM retake.projects WHERE id = ANY ($1) FOR KEY SHARE", &[&numbers])?;
    Ok(kept.len() == numbers.len())
}

/// Sends runs of which another record may have sent some. Those stay that record's; a run whose
/// outcome was not known there gets it. Gives the runs that have their outcome since now.
fn insert_unknown(
    transaction: &mut Transaction<'_>,
    rows: &CopyRows,
) -> Result<Vec<String>, Error> {
    copy(transaction, "new_runs", rows)?;
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

/// Adds what follows from runs (`sign` 1), or takes it back (-1).
fn derive(transaction: &mut Transaction<'_>, ids: &[String], sign: i32) -> Result<(), Error> {
    if !ids.is_empty() {
        let ids = array(ids);
        transaction.execute("SELECT retake.derive($1::text::uuid[], $2)", &[&ids, &sign])?;
    }
    Ok(())
}

/// Has runs belong to another project, with all that follows from them.
fn move_runs(transaction: &mut Transaction<'_>, ids: &[String], project: i32) -> Result<(), Error> {
    if ids.is_empty() {
        return Ok(());
    }
    derive(transaction, ids, -1)?;
    transaction.execute(
        "UPDATE retake.runs SET project = $2 WHERE id = ANY ($1::text::uuid[])",
        &[&array(ids), &project],
    )?;
    derive(transaction, ids, 1)
}

/// Loops and the number of their last event.
fn read_positions(rows: &[Row]) -> BTreeMap<LoopId, u64> {
    let read = |row: &Row| {
        Some((row.get::<_, &str>(0).parse().ok()?, row.get::<_, i64>(1).unsigned_abs()))
    };
    rows.iter().filter_map(read).collect()
}

pub(super) fn copy(
    transaction: &mut Transaction<'_>,
    into: &str,
    rows: &CopyRows,
) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut writer = transaction.copy_in(&format!("COPY {into} FROM STDIN"))?;
    writer.write_all(rows.as_bytes())?;
    writer.finish()?;
    Ok(())
}
