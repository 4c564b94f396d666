//! Loops and their entries, singly and in pages.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use retake_types::{Kind, LoopId, LoopState, StopReason};
use rusqlite::OptionalExtension;

use super::page_cursor::{BadCursor, pair};
use crate::base::live_file::{self, Liveness};
use crate::base::projection::{kind_number, kind_of};
use crate::{Error, Result, Store};

/// A recorded series of runs under one plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLoop {
    pub id: LoopId,
    pub kind: Kind,
    /// The plan, as JSON.
    pub plan: String,
    pub state: LoopState,
    pub stop_reason: Option<StopReason>,
    pub start_time: Timestamp,
    pub end_time: Option<Timestamp>,
}

/// An entry of a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopEntry {
    pub seq: u64,
    pub at: Timestamp,
    /// The entry, as JSON.
    pub body: String,
}

/// Where a page of loops ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopCursor {
    start_us: i64,
    id: LoopId,
}

impl LoopCursor {
    /// After this loop.
    pub fn after(last: &StoredLoop) -> Self {
        Self { start_us: last.start_time.as_microsecond(), id: last.id }
    }

    /// When the last loop of the page began, in microseconds.
    pub fn start_us(self) -> i64 {
        self.start_us
    }

    pub fn loop_id(self) -> LoopId {
        self.id
    }
}

#[derive(Clone, Debug)]
pub struct LoopPage {
    pub loops: Vec<StoredLoop>,
    /// Where the next page begins; `None` after the last page.
    pub next: Option<LoopCursor>,
}

impl fmt::Display for LoopCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.start_us, self.id)
    }
}

impl FromStr for LoopCursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let (start_us, id) = pair(text)?;
        let id = id.parse().map_err(|_| BadCursor { text: text.to_owned() })?;
        Ok(Self { start_us, id })
    }
}

const COLUMNS: &str = "id, kind, plan, state, stop_reason, start_us, end_us";

fn time(us: i64, column: usize) -> rusqlite::Result<Timestamp> {
    Timestamp::from_microsecond(us)
        .map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, us))
}

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<StoredLoop> {
    let kind = row.get(1)?;
    Ok(StoredLoop {
        id: LoopId::from_bytes(row.get(0)?),
        kind: kind_of(kind).ok_or(rusqlite::Error::IntegralValueOutOfRange(1, kind))?,
        plan: row.get(2)?,
        state: row.get::<_, String>(3)?.as_str().into(),
        stop_reason: row.get::<_, Option<String>>(4)?.map(|word| word.as_str().into()),
        start_time: time(row.get(5)?, 5)?,
        end_time: row.get::<_, Option<i64>>(6)?.map(|us| time(us, 6)).transpose()?,
    })
}

impl Store {
    pub fn get_loop(&self, id: LoopId) -> Result<StoredLoop> {
        self.connection
            .query_row(&format!("SELECT {COLUMNS} FROM loops WHERE id = ?1"), [id.as_bytes()], read)
            .optional()
            .map_err(|error| self.failed("look up the loop", error))?
            .ok_or(Error::NoLoop { id })
    }

    /// What the live file of a loop says about its runner, without writing anything. An open loop
    /// of unknown liveness was recorded by an earlier release.
    pub fn loop_liveness(&self, id: LoopId) -> Liveness {
        live_file::liveness(&self.dir, id)
    }

    /// Whether the runner of a loop is known to be alive.
    pub fn loop_is_alive(&self, id: LoopId) -> bool {
        self.loop_liveness(id) == Liveness::Alive
    }

    /// Loops of a kind (or all), newest first.
    pub fn list_loops(&self, kind: Option<Kind>, limit: usize) -> Result<Vec<StoredLoop>> {
        self.loops_where("?1 IS NULL OR kind = ?1", kind, limit)
    }

    /// Loops without a stop reason, newest first: running, or their runner died.
    pub fn open_loops(&self, kind: Kind) -> Result<Vec<StoredLoop>> {
        self.loops_where("kind = ?1 AND stop_reason IS NULL", Some(kind), usize::MAX)
    }

    fn loops_where(
        &self,
        condition: &str,
        kind: Option<Kind>,
        limit: usize,
    ) -> Result<Vec<StoredLoop>> {
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

    /// One page of loops of a kind (or all), newest first.
    pub fn page_loops(
        &self,
        kind: Option<Kind>,
        after: Option<LoopCursor>,
        limit: usize,
    ) -> Result<LoopPage> {
        let sql = format!(
            "SELECT {COLUMNS} FROM loops WHERE (?1 IS NULL OR kind = ?1)
               AND (?2 IS NULL OR (start_us, id) < (?2, ?3))
             ORDER BY start_us DESC, id DESC LIMIT ?4"
        );
        // One more than wanted shows whether there is a next page.
        let wanted = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
        let (start, id) = match after {
            Some(cursor) => (Some(cursor.start_us), Some(*cursor.id.as_bytes())),
            None => (None, None),
        };
        let mut loops: Vec<StoredLoop> = self
            .connection
            .prepare_cached(&sql)
            .and_then(|mut statement| {
                statement.query_map((kind.map(kind_number), start, id, wanted), read)?.collect()
            })
            .map_err(|error| self.failed("list loops", error))?;
        let more = loops.len() > limit;
        loops.truncate(limit);
        let next = loops.last().filter(|_| more).map(LoopCursor::after);
        Ok(LoopPage { loops, next })
    }

    /// Entries of a loop after a number, oldest first.
    pub fn loop_entries(&self, id: LoopId, after: u64, limit: usize) -> Result<Vec<LoopEntry>> {
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
                        Ok(LoopEntry {
                            seq: row.get::<_, i64>(0)?.unsigned_abs(),
                            at: time(row.get(1)?, 1)?,
                            body: row.get(2)?,
                        })
                    })?
                    .collect()
            })
            .map_err(|error| self.failed("read the loop's entries", error))
    }

    /// The number of a loop's last entry; 0 without entries.
    pub fn last_loop_entry(&self, id: LoopId) -> Result<u64> {
        self.connection
            .prepare_cached("SELECT coalesce(max(seq), 0) FROM events WHERE loop = ?1")
            .and_then(|mut statement| {
                statement.query_row([id.as_bytes()], |row| row.get::<_, i64>(0))
            })
            .map(i64::unsigned_abs)
            .map_err(|error| self.failed("read the loop's entries", error))
    }
}
