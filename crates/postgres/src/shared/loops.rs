//! Loops of many machines, and their entries.

use postgres::Row;
use retake_store::{Error, LoopCursor, LoopEntry, LoopPage, StoredLoop};
use retake_types::{Kind, LoopId};

use super::{SharedRecord, StoreResult, limited, microseconds, time};

fn columns() -> String {
    format!(
        "loop.id::text, loop.kind, loop.plan, loop.state, loop.stop_reason, {}, {}",
        microseconds("loop.start_time"),
        microseconds("loop.end_time")
    )
}

/// `None` for an unknown kind.
fn read(row: &Row) -> Option<StoredLoop> {
    let kind: &str = row.get(1);
    Some(StoredLoop {
        id: row.get::<_, &str>(0).parse().ok()?,
        kind: Kind::ALL.into_iter().find(|known| known.as_str() == kind)?,
        plan: row.get(2),
        state: row.get::<_, &str>(3).into(),
        stop_reason: row.get::<_, Option<&str>>(4).map(Into::into),
        start_time: time(row.get(5)),
        end_time: row.get::<_, Option<i64>>(6).map(time),
    })
}

impl SharedRecord {
    pub(super) fn one_loop(&self, id: LoopId) -> StoreResult<StoredLoop> {
        let sql = format!(
            "SELECT {} FROM retake.loops AS loop WHERE loop.id = $1::text::uuid AND {}",
            columns(),
            self.of_project("loop")
        );
        let rows = self.query("look up the loop", &sql, &[&id.to_string()])?;
        rows.first().and_then(read).ok_or(Error::NoLoop { id })
    }

    pub(super) fn loops(
        &self,
        kind: Option<Kind>,
        after: Option<LoopCursor>,
        limit: usize,
    ) -> StoreResult<LoopPage> {
        // One more than requested shows whether there is a next page.
        let sql = format!(
            "SELECT {} FROM retake.loops AS loop
             WHERE {} AND ($1::text IS NULL OR loop.kind = $1)
               AND ($2::text IS NULL OR (loop.start_time, loop.id)
                                        < ($2::text::timestamptz, $3::text::uuid))
             ORDER BY loop.start_time DESC, loop.id DESC LIMIT {}",
            columns(),
            self.of_project("loop"),
            limited(limit.saturating_add(1))
        );
        let (start, id) = match after {
            Some(cursor) => {
                (Some(time(cursor.start_us()).to_string()), Some(cursor.loop_id().to_string()))
            }
            None => (None, None),
        };
        let rows = self.query("list loops", &sql, &[&kind.map(Kind::as_str), &start, &id])?;
        let more = rows.len() > limit;
        let loops: Vec<StoredLoop> = rows.iter().take(limit).filter_map(read).collect();
        let next = loops.last().filter(|_| more).map(LoopCursor::after);
        Ok(LoopPage { loops, next })
    }

    pub(super) fn events(
        &self,
        id: LoopId,
        after: u64,
        limit: usize,
    ) -> StoreResult<Vec<LoopEntry>> {
        let sql = format!(
            "SELECT seq, {}, body FROM retake.events
             WHERE loop_id = $1::text::uuid AND seq > $2 ORDER BY seq LIMIT {}",
            microseconds("at"),
            limited(limit)
        );
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let rows = self.query("read the loop's entries", &sql, &[&id.to_string(), &after])?;
        let read = |row: &Row| LoopEntry {
            seq: row.get::<_, i64>(0).unsigned_abs(),
            at: time(row.get(1)),
            body: row.get(2),
        };
        Ok(rows.iter().map(read).collect())
    }

    pub(super) fn last_event(&self, id: LoopId) -> StoreResult<u64> {
        let sql = "SELECT coalesce(max(seq), 0) FROM retake.events WHERE loop_id = $1::text::uuid";
        let rows = self.query("read the loop's entries", sql, &[&id.to_string()])?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }
}
