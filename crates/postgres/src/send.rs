//! Sends the ledger in order, then loops with their events, then output if requested.
//!
//! New runs are copied directly into their table. Only runs that may exist already, or that
//! were sent before they ended, go through a temporary table.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use postgres::{Client, Row, Transaction};
use retake_runner::machine;
use retake_runner::project_identity::ProjectNames;
use retake_store::Store;
use retake_types::{LoopId, StopReason};

use super::copy_rows::CopyRows;
use super::pushed::Pushed;
use super::send_ledger::send_ledger;
use super::target::{Target, array, copy, derive, ids};
use super::{Address, Error, database, schema};

const EVENTS: usize = 4000;
/// Number of bytes that are sent together.
pub(super) const BYTES: usize = 16 << 20;

/// What to send besides runs, loops, events and the ledger.
#[derive(Clone, Debug, Default)]
pub struct PushOptions {
    /// The root of the project that uses the record, if any.
    pub root: Option<PathBuf>,
    /// Also sends output, at most this many bytes of each stream.
    pub output_bytes: Option<u64>,
    /// A record that differs from the pushed one is a copy of it, and gets its own name.
    pub as_copy: bool,
}

/// Sends everything that is not in the database yet. `progress` gets the number of sent entries and of all.
pub fn push(
    store: &mut Store,
    address: &Address,
    options: PushOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Pushed, Error> {
    let mut client = database::connect(address)?;
    let record = store.record_id()?;
    let names = ProjectNames::new(record, options.root.as_deref());
    let mut sender = Sender { store, names, target: Target::new(record) };
    schema::ready(&mut client)?;
    // The position of this record is written together with the data: if the server loses the latest part,
    // the next push sends that again. So only the end of a push waits for the server's disk.
    client.batch_execute("SET synchronous_commit = off")?;
    sender.register(&mut client)?;
    sender.name_projects(&mut client)?;
    match sender.ledger(&mut client, progress) {
        Err(Error::Replaced { .. }) if options.as_copy => {
            sender.target.record = sender.store.rename_record()?;
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
    Ok(sender.target.pushed)
}

/// A record that is sent, and its target.
pub(super) struct Sender<'a> {
    pub(super) store: &'a mut Store,
    names: ProjectNames,
    pub(super) target: Target,
}

impl Sender<'_> {
    /// Finds the projects of this record's runs that were pushed by releases without projects.
    fn name_projects(&mut self, client: &mut Client) -> Result<(), Error> {
        let unnamed = format!("record:{}", self.target.record);
        if self.names.fallback() == unnamed {
            return Ok(());
        }
        let found =
            client.query_opt("SELECT id FROM retake.projects WHERE name = $1", &[&unnamed])?;
        let Some(old) = found.map(|row| row.get::<_, i32>(0)) else { return Ok(()) };
        let record = self.target.record.to_string();
        let directories = client.query(
            "SELECT DISTINCT working_directory FROM retake.runs
             WHERE record = $1::text::uuid AND project = $2",
            &[&record, &old],
        )?;
        let mut transaction = client.transaction()?;
        for row in &directories {
            let directory: &str = row.get(0);
            let name = self.names.of(Path::new(directory));
            let new = self.target.number(&mut transaction, name)?;
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
        let own = self.target.number(&mut transaction, self.names.fallback())?;
        transaction.execute(
            "UPDATE retake.loops SET project = $2 WHERE project = $1 AND record = $3::text::uuid",
            &[&old, &own, &record],
        )?;
        transaction.commit()?;
        Ok(())
    }

    /// Waits until all sent data is on the server's disk.
    fn make_durable(&self, client: &mut Client) -> Result<(), Error> {
        let pushed = &self.target.pushed;
        if pushed.entries + pushed.events + pushed.outputs == 0 {
            return Ok(());
        }
        client.batch_execute("SET synchronous_commit = on")?;
        client.execute(
            "UPDATE retake.records SET pushed_at = now() WHERE id = $1::text::uuid",
            &[&self.target.record.to_string()],
        )?;
        Ok(())
    }

    /// Creates or updates this record's row.
    fn register(&self, client: &mut Client) -> Result<(), Error> {
        let path = std::path::absolute(self.store.path()).unwrap_or_default();
        client.execute(
            "INSERT INTO retake.records (id, host, path) VALUES ($1::text::uuid, $2, $3)
             ON CONFLICT (id) DO UPDATE SET host = excluded.host, path = excluded.path",
            &[
                &self.target.record.to_string(),
                &machine::host(),
                &path.to_string_lossy().into_owned(),
            ],
        )?;
        Ok(())
    }

    /// All entries that are not in the database yet.
    fn ledger(
        &mut self,
        client: &mut Client,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Error> {
        let Self { store, names, target } = self;
        send_ledger(client, (store, names), target, progress)
    }

    /// Loops change until they end; events are only added.
    fn loops(&mut self, client: &mut Client) -> Result<(), Error> {
        let mut loops = self.store.list_loops(None, usize::MAX)?;
        let local = self.store.last_loop_entries()?;
        // A loop that has ended, with the same events as here, is not sent again.
        let ended = client.query(
            "SELECT id::text, (SELECT coalesce(max(seq), 0) FROM retake.events WHERE loop_id = id)
             FROM retake.loops WHERE record = $1::text::uuid AND end_time IS NOT NULL",
            &[&self.target.record.to_string()],
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
            let name = self.names.of(directory.as_deref().unwrap_or(&own));
            numbers.push(self.target.number(client, name)?);
        }
        self.target.need(client, "new_loops")?;
        let mut transaction = client.transaction()?;
        self.target.position(&mut transaction, "FOR UPDATE")?;
        let mut rows = CopyRows::default();
        for (known, project) in loops.iter().zip(numbers) {
            rows.show(Some(known.id))
                .show(Some(self.target.record))
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
        // Another record may have sent them: one that this is a copy of.
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
        self.target.pushed.events += count;
        Ok(())
    }

    /// The working directory of a loop's first run, which identifies its project.
    fn loop_directory(&self, id: LoopId) -> Result<Option<PathBuf>, Error> {
        let first = self.store.runs_of_loop(id)?.into_iter().next();
        Ok(first.map(|run| PathBuf::from(run.intent.working_directory())))
    }
}

/// Moves runs to another project, including derived rows.
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
