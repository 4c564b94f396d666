//! Sending: the ledger in order, then loops with their events, then output if it is wanted.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use postgres::{Client, Transaction};
use retake_runner::machine;
use retake_store::Store;
use retake_types::{LoopId, RunId, StopReason, Stream};

use super::copy_rows::CopyRows;
use super::ledger_rows::{ENDING, LedgerRows};
use super::{Address, Error, schema, tls};

/// Entries in one transaction.
const ENTRIES: usize = 4000;
const EVENTS: usize = 4000;
/// Runs whose output is looked at together, and bytes that are sent together.
const RUNS: i64 = 200;
const BYTES: usize = 16 << 20;

/// What is sent beyond runs, loops, events and the ledger.
#[derive(Clone, Copy, Debug, Default)]
pub struct PushOptions {
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
    let connector = tls::connector(&address.trust)?;
    let mut client = address.config.connect(connector).map_err(Error::Connect)?;
    let mut sender = Sender { record: store.record_id()?, store, pushed: Pushed::default() };
    sender.introduce(&mut client)?;
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
    Ok(sender.pushed)
}

struct Sender<'a> {
    store: &'a mut Store,
    record: RunId,
    pushed: Pushed,
}

impl Sender<'_> {
    /// Makes what is missing there: the tables, our row, and room for what arrives.
    fn introduce(&self, client: &mut Client) -> Result<(), Error> {
        let mut transaction = client.transaction()?;
        schema::ready(&mut transaction)?;
        transaction.commit()?;
        self.register(client)?;
        client.batch_execute(&format!(
            "CREATE TEMP TABLE new_runs (LIKE retake.runs) ON COMMIT DELETE ROWS;
             CREATE TEMP TABLE new_endings ON COMMIT DELETE ROWS AS
               SELECT id, {ENDING} FROM retake.runs WITH NO DATA;
             CREATE TEMP TABLE new_loops (LIKE retake.loops) ON COMMIT DELETE ROWS;
             CREATE TEMP TABLE new_outputs (LIKE retake.outputs) ON COMMIT DELETE ROWS;"
        ))?;
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

    /// How much was sent already. Other pushes of this record wait for this transaction.
    fn position(&self, transaction: &mut Transaction<'_>) -> Result<(u64, Option<String>), Error> {
        let row = transaction.query_one(
            "SELECT pushed, head FROM retake.records WHERE id = $1::text::uuid FOR UPDATE",
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
        let mut transaction = client.transaction()?;
        let (position, head) = self.position(&mut transaction)?;
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
        let sorted = LedgerRows::of(self.record, &entries);
        let record = self.record.to_string();
        copy(
            &mut transaction,
            "retake.ledger (record, seq, hash, body_hash, body)",
            &sorted.ledger,
        )?;
        copy(&mut transaction, "new_runs", &sorted.runs)?;
        copy(&mut transaction, "new_endings", &sorted.endings)?;
        let sets = ENDING.split(", ").map(|column| format!("{column} = excluded.{column}"));
        let sets: Vec<String> = sets.collect();
        // A run that another record has as well stays that record's.
        transaction.batch_execute(&format!(
            "INSERT INTO retake.runs SELECT * FROM new_runs ON CONFLICT (id) DO UPDATE SET {}
               WHERE retake.runs.outcome IS NULL AND excluded.outcome IS NOT NULL;
             UPDATE retake.runs AS run SET ({ENDING}) = ({}) FROM new_endings AS new
               WHERE run.id = new.id AND run.outcome IS NULL;",
            sets.join(", "),
            ENDING.split(", ").map(|column| format!("new.{column}")).collect::<Vec<_>>().join(", "),
        ))?;
        for (from, to) in &sorted.deleted {
            let range = [from, to].map(|seq| i64::try_from(*seq).unwrap_or(i64::MAX));
            transaction.execute(
                "UPDATE retake.ledger SET body = NULL
                 WHERE record = $1::text::uuid AND seq BETWEEN $2 AND $3",
                &[&record, &range[0], &range[1]],
            )?;
            transaction.execute(
                "DELETE FROM retake.runs WHERE record = $1::text::uuid AND seq BETWEEN $2 AND $3",
                &[&record, &range[0], &range[1]],
            )?;
        }
        let reached = i64::try_from(last.seq).unwrap_or(i64::MAX);
        transaction.execute(
            "UPDATE retake.records SET pushed = $2, head = $3, pushed_at = now()
             WHERE id = $1::text::uuid",
            &[&record, &reached, &last.hash.to_hex().to_string()],
        )?;
        transaction.commit()?;
        self.pushed.entries += entries.len() as u64;
        self.pushed.runs += sorted.begun;
        progress(last.seq, self.store.head()?.count.max(last.seq));
        Ok(entries.len() >= ENTRIES)
    }

    /// Loops change until they end; events only become more.
    fn loops(&mut self, client: &mut Client) -> Result<(), Error> {
        let loops = self.store.list_loops(None, usize::MAX)?;
        let local = self.store.last_loop_entries()?;
        let mut transaction = client.transaction()?;
        self.position(&mut transaction)?;
        let mut rows = CopyRows::default();
        for known in &loops {
            rows.show(Some(known.id))
                .show(Some(self.record))
                .text(known.kind.as_str())
                .text(&known.plan)
                .text(known.state.as_str())
                .field(known.stop_reason.as_ref().map(StopReason::as_str))
                .show(Some(known.start_time))
                .show(known.end_time)
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
        let there: BTreeMap<LoopId, u64> = there
            .iter()
            .filter_map(|row| {
                Some((row.get::<_, &str>(0).parse().ok()?, row.get::<_, i64>(1).unsigned_abs()))
            })
            .collect();
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

    /// Output of runs of which a stream is not there, or less than is wanted, whenever they were pushed.
    fn outputs(&mut self, client: &mut Client, most: u64) -> Result<(), Error> {
        let mut after = 0i64;
        let limit = i64::try_from(most).unwrap_or(i64::MAX);
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
            let Some(last) = missing.last() else { return Ok(()) };
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

fn copy(transaction: &mut Transaction<'_>, into: &str, rows: &CopyRows) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut writer = transaction.copy_in(&format!("COPY {into} FROM STDIN"))?;
    writer.write_all(rows.as_bytes())?;
    writer.finish()?;
    Ok(())
}
