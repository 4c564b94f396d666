//! Loops page by page, and how far the events of one have come.

use std::fmt;
use std::str::FromStr;

use retake_types::{Kind, LoopId};

use crate::cursor::{BadCursor, pair};
use crate::loops::{COLUMNS, read};
use crate::projection::kind_number;
use crate::{LoopRecord, Result, Store};

/// Where a page of loops ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopCursor {
    start_us: i64,
    id: LoopId,
}

#[derive(Clone, Debug)]
pub struct LoopPage {
    pub loops: Vec<LoopRecord>,
    /// Where the next page begins; `None` when this was the last.
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

impl Store {
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
        // One more than asked tells whether there is a next page.
        let wanted = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
        let (start, id) = match after {
            Some(cursor) => (Some(cursor.start_us), Some(*cursor.id.as_bytes())),
            None => (None, None),
        };
        let mut loops: Vec<LoopRecord> = self
            .connection
            .prepare_cached(&sql)
            .and_then(|mut statement| {
                statement.query_map((kind.map(kind_number), start, id, wanted), read)?.collect()
            })
            .map_err(|error| self.failed("list loops", error))?;
        let more = loops.len() > limit;
        loops.truncate(limit);
        let next = loops
            .last()
            .filter(|_| more)
            .map(|last| LoopCursor { start_us: last.start_time.as_microsecond(), id: last.id });
        Ok(LoopPage { loops, next })
    }

    /// The number of a loop's last event; 0 while there is none.
    pub fn last_event(&self, id: LoopId) -> Result<u64> {
        self.connection
            .prepare_cached("SELECT coalesce(max(seq), 0) FROM events WHERE loop = ?1")
            .and_then(|mut statement| {
                statement.query_row([id.as_bytes()], |row| row.get::<_, i64>(0))
            })
            .map(i64::unsigned_abs)
            .map_err(|error| self.failed("read events", error))
    }
}
