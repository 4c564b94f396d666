//! Loops and their events. A loop's events are numbered without gaps, so that an observer who
//! reconnects knows what it missed.

use jiff::Timestamp;
use retake_types::{Kind, LoopId};
use rusqlite::OptionalExtension;

use crate::projection::{kind_number, kind_of};
use crate::store::Durability;
use crate::{Error, Result, Store};

/// A series of runs under one plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopRecord {
    pub id: LoopId,
    pub kind: Kind,
    /// What was planned, as JSON.
    pub plan: String,
    /// In the words of the loop's kind, `running` at first.
    pub state: String,
    pub stop_reason: Option<String>,
    pub start_time: Timestamp,
    pub end_time: Option<Timestamp>,
}

impl LoopRecord {
    /// A new loop that begins now.
    pub fn running(kind: Kind, plan: String) -> Self {
        Self {
            id: LoopId::new(),
            kind,
            plan,
            state: "running".to_owned(),
            stop_reason: None,
            start_time: Timestamp::now(),
            end_time: None,
        }
    }
}

/// A fact about a loop or one of its runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub seq: u64,
    pub at: Timestamp,
    /// The event, as JSON.
    pub body: String,
}

pub(crate) const COLUMNS: &str = "id, kind, plan, state, stop_reason, start_us, end_us";

fn time(us: i64, column: usize) -> rusqlite::Result<Timestamp> {
    Timestamp::from_microsecond(us)
        .map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, us))
}

pub(crate) fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<LoopRecord> {
    let kind = row.get(1)?;
    Ok(LoopRecord {
        id: LoopId::from_bytes(row.get(0)?),
        kind: kind_of(kind).ok_or(rusqlite::Error::IntegralValueOutOfRange(1, kind))?,
        plan: row.get(2)?,
        state: row.get(3)?,
        stop_reason: row.get(4)?,
        start_time: time(row.get(5)?, 5)?,
        end_time: row.get::<_, Option<i64>>(6)?.map(|us| time(us, 6)).transpose()?,
    })
}

impl Store {
    /// Records that a loop begins. An `exec` is a loop of one and needs no record of its own.
    pub fn begin_loop(&mut self, record: &LoopRecord) -> Result<()> {
        self.write(Durability::Process, "record the loop", |tx, dir| {
            tx.execute(
                "INSERT INTO loops (id, kind, plan, state, stop_reason, start_us, end_us)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                (
                    record.id.as_bytes(),
                    kind_number(record.kind),
                    &record.plan,
                    &record.state,
                    &record.stop_reason,
                    record.start_time.as_microsecond(),
                    record.end_time.map(Timestamp::as_microsecond),
                ),
            )
            .map_err(|error| Error::sqlite("record the loop", dir.database(), error))
        })?;
        Ok(())
    }

    /// Changes a loop's state; a stop reason ends it.
    pub fn update_loop(
        &mut self,
        id: LoopId,
        state: &str,
        stop: Option<(&str, Timestamp)>,
    ) -> Result<()> {
        let durability = if stop.is_some() { Durability::Power } else { Durability::Process };
        let changed = self.write(durability, "update the loop", |tx, dir| {
            tx.execute(
                "UPDATE loops SET state = ?2, stop_reason = coalesce(?3, stop_reason),
                   end_us = coalesce(?4, end_us) WHERE id = ?1",
                (
                    id.as_bytes(),
                    state,
                    stop.map(|(reason, _)| reason),
                    stop.map(|(_, at)| at.as_microsecond()),
                ),
            )
            .map_err(|error| Error::sqlite("update the loop", dir.database(), error))
        })?;
        if changed == 0 { Err(Error::NoLoop { id }) } else { Ok(()) }
    }

    pub fn get_loop(&self, id: LoopId) -> Result<LoopRecord> {
        self.connection
            .query_row(&format!("SELECT {COLUMNS} FROM loops WHERE id = ?1"), [id.as_bytes()], read)
            .optional()
            .map_err(|error| self.failed("look up the loop", error))?
            .ok_or(Error::NoLoop { id })
    }

    /// Loops of a kind (or all), newest first.
    pub fn list_loops(&self, kind: Option<Kind>, limit: usize) -> Result<Vec<LoopRecord>> {
        self.loops_where("?1 IS NULL OR kind = ?1", kind, limit)
    }

    /// Loops that run, or whose runner died without a word, newest first.
    pub fn open_loops(&self, kind: Kind) -> Result<Vec<LoopRecord>> {
        self.loops_where("kind = ?1 AND stop_reason IS NULL", Some(kind), usize::MAX)
    }

    fn loops_where(
        &self,
        condition: &str,
        kind: Option<Kind>,
        limit: usize,
    ) -> Result<Vec<LoopRecord>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM loops WHERE {condition}
             ORDER BY start_us DESC, id DESC LIMIT ?2"
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.connection
            .prepare(&sql)
            .and_then(|mut statement| {
                statement.query_map((kind.map(kind_number), limit), read)?.collect()
            })
            .map_err(|error| self.failed("list loops", error))
    }

    /// Appends events in one commit and returns the number of the last; the first one is 1.
    pub fn append_events(&mut self, id: LoopId, events: &[(Timestamp, String)]) -> Result<u64> {
        self.write(Durability::Process, "record events", |tx, dir| {
            let failed = |error| Error::sqlite("record events", dir.database(), error);
            let mut seq: i64 = tx
                .prepare_cached("SELECT coalesce(max(seq), 0) FROM events WHERE loop = ?1")
                .and_then(|mut statement| statement.query_row([id.as_bytes()], |row| row.get(0)))
                .map_err(failed)?;
            let mut insert = tx
                .prepare_cached("INSERT INTO events (loop, seq, at_us, body) VALUES (?1,?2,?3,?4)")
                .map_err(failed)?;
            for (at, body) in events {
                seq += 1;
                insert.execute((id.as_bytes(), seq, at.as_microsecond(), body)).map_err(failed)?;
            }
            Ok(seq.unsigned_abs())
        })
    }

    /// Events of a loop after a number, oldest first.
    pub fn events(&self, id: LoopId, after: u64, limit: usize) -> Result<Vec<Event>> {
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.connection
            .prepare_cached(
                "SELECT seq, at_us, body FROM events WHERE loop = ?1 AND seq > ?2
                 ORDER BY seq LIMIT ?3",
            )
            .and_then(|mut statement| {
                statement
                    .query_map((id.as_bytes(), after, limit), |row| {
                        Ok(Event {
                            seq: row.get::<_, i64>(0)?.unsigned_abs(),
                            at: time(row.get(1)?, 1)?,
                            body: row.get(2)?,
                        })
                    })?
                    .collect()
            })
            .map_err(|error| self.failed("read events", error))
    }
}
