//! Sending: the ledger in order, then loops with their events, then output if it is wanted.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

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
const ENTRIES: usize = 4000;
const EVENTS: usize = 4000;
/// Runs whose output is looked at together, and bytes that are sent together.
const RUNS: i64 = 200;
const BYTES: usize = 16 << 20;

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
    let mut sender = Sender { record, store, projects, months, pushed, temporary: Vec::new() };
    schema::ready(&mut client)?;
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
    Ok(sender.pushed)
}

struct Sender<'a> {
    store: &'a mut Store,
    record: RunId,
    projects: Projects,
    months: Months,
    pushed: Pushed,
    /// Temporary tables that were made: only those that are needed are.
    temporary: Vec<&'static str>,
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
    fn need(&mut self, client: &mut Client, table: &'static str) -> Result<(), Error> {
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
            let moved = transaction.query_one(
                "SELECT array_agg(id)::text FROM retake.runs
                 WHERE record = $1::text::uuid AND project = $2 AND working_directory = $3",
                &[&record, &old, &directory],
            )?;
            move_runs(&mut transaction, &moved, new)?;
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
        while self.entries(client, progress)? {}
        Ok(())
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
        self.need(client, "new_runs")?;
        self.need(client, "new_endings")?;
        let mut transaction = client.transaction()?;
        if self.position(&mut transaction, "FOR UPDATE")?.0 != position {
            // Someone else has pushed this record meanwhile.
            return Ok(true);
        }
        let record = self.record.to_string();
        copy(
            &mut transaction,
            "retake.ledger (record, seq, hash, body_hash, body)",
            &sorted.ledger,
        )?;
        copy(&mut transaction, "new_runs", &sorted.runs)?;
        copy(&mut transaction, "new_endings", &sorted.endings)?;
        // A run that another record has as well stays that record's. What has its outcome since now
        // counts once.
        let ended = transaction.query_one(
            &format!(
                "WITH begun AS (
                   INSERT INTO retake.runs SELECT * FROM new_runs
                   ON CONFLICT (id) DO UPDATE SET {}
                     WHERE retake.runs.outcome IS NULL AND excluded.outcome IS NOT NULL
                   RETURNING id, outcome),
                 ended AS (
                   UPDATE retake.runs AS run SET ({ENDING}) = ({}) FROM new_endings AS new
                     WHERE run.id = new.id AND run.outcome IS NULL
                   RETURNING run.id)
                 SELECT array_agg(id)::text FROM
                   (SELECT id FROM begun WHERE outcome IS NOT NULL UNION SELECT id FROM ended) AS all_ended",
                columns("excluded", true),
                columns("new", false),
            ),
            &[],
        )?;
        derive(&mut transaction, &ended, 1)?;
        for (from, to) in &sorted.deleted {
            let range = [from, to].map(|seq| i64::try_from(*seq).unwrap_or(i64::MAX));
            transaction.execute(
                "UPDATE retake.ledger SET body = NULL
                 WHERE record = $1::text::uuid AND seq BETWEEN $2 AND $3",
                &[&record, &range[0], &range[1]],
            )?;
            let gone = transaction.query_one(
                "SELECT array_agg(id)::text FROM retake.runs
                 WHERE record = $1::text::uuid AND seq BETWEEN $2 AND $3",
                &[&record, &range[0], &range[1]],
            )?;
            derive(&mut transaction, &gone, -1)?;
            if let Some(ids) = ids(&gone) {
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

    /// Output of runs of which a stream is not there, or less than is wanted, whenever they were pushed.
    fn outputs(&mut self, client: &mut Client, most: u64) -> Result<(), Error> {
        let limit = i64::try_from(most).unwrap_or(i64::MAX);
        let record = self.record.to_string();
        // What was looked at with this limit or a larger one is not looked at again.
        let row = client.query_one(
            "SELECT outputs_pushed, outputs_limit, pushed FROM retake.records
             WHERE id = $1::text::uuid",
            &[&record],
        )?;
        let (looked, known, reached): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let mut after = if known >= limit { looked } else { 0 };
        if after >= reached {
            return Ok(());
        }
        // A run that is not over yet is looked at the next time.
        let open = client.query_one(
            "SELECT min(seq) FROM retake.runs
             WHERE record = $1::text::uuid AND seq > $2 AND outcome IS NULL",
            &[&record, &after],
        )?;
        let until = open.get::<_, Option<i64>>(0).map_or(reached, |open| open - 1);
        self.need(client, "new_outputs")?;
        loop {
            let mut transaction = client.transaction()?;
            let missing = transaction.query(
                "SELECT id::text, seq FROM retake.runs
                 WHERE record = $1::text::uuid AND seq > $2
                   AND (EXISTS (SELECT FROM (VALUES ('stdout', stdout_bytes), ('stderr', stderr_bytes))
                                  AS sent (stream, bytes)
                                WHERE bytes > 0 AND NOT EXISTS
                                  (SELECT FROM retake.outputs AS known
                                   WHERE known.run = id AND known.stream = sent.stream))
                     OR EXISTS (SELECT FROM retake.outputs
                                WHERE run = id AND truncated AND octet_length(content) < $4::bigint))
                 ORDER BY seq LIMIT $3",
                &[&self.record.to_string(), &after, &RUNS, &limit],
            )?;
            let Some(last) = missing.last() else {
                // What is damaged is named each time.
                if self.pushed.damaged.is_empty() {
                    transaction.execute(
                        "UPDATE retake.records SET outputs_pushed = $2, outputs_limit = $3
                         WHERE id = $1::text::uuid",
                        &[&record, &until, &limit.max(known)],
                    )?;
                    transaction.commit()?;
                }
                return Ok(());
            };
            after = last.get(1);
            let mut rows = CopyRows::default();
            for row in &missing {
                let Ok(id) = row.get::<_, &str>(0).parse::<RunId>() else { continue };
                self.output(id, most, &mut rows)?;
                if rows.as_bytes().len() > BYTES {
                    copy(&mut transaction, "new_outputs", &std::mem::take(&mut rows))?;
                }
            }
            copy(&mut transaction, "new_outputs", &rows)?;
            let changed = transaction.execute(
                "INSERT INTO retake.outputs AS known SELECT * FROM new_outputs
                 ON CONFLICT (run, stream) DO UPDATE
                   SET truncated = excluded.truncated, content = excluded.content
                   WHERE octet_length(known.content) < octet_length(excluded.content)",
                &[],
            )?;
            transaction.commit()?;
            self.pushed.outputs += changed;
        }
    }

    /// Both streams of a run. What is damaged is left out and noted.
    fn output(&mut self, id: RunId, most: u64, rows: &mut CopyRows) -> Result<(), Error> {
        for stream in Stream::BOTH {
            let read = self.store.read_output(id, stream).and_then(|mut output| {
                let mut bytes = Vec::new();
                Read::by_ref(&mut output)
                    .take(most)
                    .read_to_end(&mut bytes)
                    .map_err(|error| retake_store::Error::reading(id, error))?;
                Ok((output.length(), bytes))
            });
            let (length, bytes) = match read {
                Ok((0, _)) => continue,
                Ok(read) => read,
                // Erased since the database was asked.
                Err(retake_store::Error::NotFound { .. }) => continue,
                Err(error) if error.is_damage() => {
                    let error = error.to_string();
                    self.pushed.damaged.push(DamagedOutput { run: id, stream, error });
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            rows.show(Some(id))
                .text(stream.as_str())
                .show(Some(length))
                .text(if (bytes.len() as u64) < length { "t" } else { "f" })
                .bytes(&bytes)
                .end();
        }
        Ok(())
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

/// An array of ids as the database writes it; `None` for none.
fn ids(row: &Row) -> Option<String> {
    row.get(0)
}

/// Adds what follows from runs (`sign` 1), or takes it back (-1).
fn derive(transaction: &mut Transaction<'_>, row: &Row, sign: i32) -> Result<(), Error> {
    if let Some(ids) = ids(row) {
        transaction.execute("SELECT retake.derive($1::text::uuid[], $2)", &[&ids, &sign])?;
    }
    Ok(())
}

/// Has runs belong to another project, with all that follows from them.
fn move_runs(transaction: &mut Transaction<'_>, row: &Row, project: i32) -> Result<(), Error> {
    let Some(ids) = ids(row) else { return Ok(()) };
    derive(transaction, row, -1)?;
    transaction.execute(
        "UPDATE retake.runs SET project = $2 WHERE id = ANY ($1::text::uuid[])",
        &[&ids, &project],
    )?;
    derive(transaction, row, 1)
}

/// Loops and the number of their last event.
fn read_positions(rows: &[Row]) -> BTreeMap<LoopId, u64> {
    let read = |row: &Row| {
        Some((row.get::<_, &str>(0).parse().ok()?, row.get::<_, i64>(1).unsigned_abs()))
    };
    rows.iter().filter_map(read).collect()
}

fn copy(transaction: &mut Transaction<'_>, into: &str, rows: &CopyRows) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut writer = transaction.copy_in(&format!("COPY {into} FROM STDIN"))?;
    writer.write_all(rows.as_bytes())?;
    writer.finish()?;
    Ok(())
}
