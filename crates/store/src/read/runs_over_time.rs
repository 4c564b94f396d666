//! Counts and durations of runs over time, for charts. Reads three columns of each run and no
//! ledger entry.

use jiff::Timestamp;

use crate::base::projection::OK;
use crate::{Result, Store};

/// The runs that began within one slice of a time range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimeSlice {
    pub ok: u64,
    pub failed: u64,
    /// Running, or their runner died.
    pub unfinished: u64,
    /// Of finished runs, in milliseconds.
    pub p50_ms: Option<u64>,
    pub p95_ms: Option<u64>,
}

/// Totals over all runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub runs: u64,
    pub failed: u64,
    /// When the first of them began.
    pub first: Option<Timestamp>,
}

impl Store {
    /// `count` slices of equal length from `since` to `until`, oldest first.
    pub fn timeline(
        &self,
        since: Timestamp,
        until: Timestamp,
        count: usize,
    ) -> Result<Vec<TimeSlice>> {
        let failed = |error| self.failed("count runs", error);
        let (from, to) = (since.as_microsecond(), until.as_microsecond());
        let mut slices = vec![TimeSlice::default(); count];
        let mut durations: Vec<Vec<u32>> = vec![Vec::new(); count];
        if count == 0 || to <= from {
            return Ok(slices);
        }
        let mut statement = self
            .connection
            .prepare_cached(
                "SELECT start_us, status, duration_ms FROM runs INDEXED BY runs_start
                 WHERE start_us >= ?1 AND start_us < ?2",
            )
            .map_err(failed)?;
        let mut rows = statement.query((from, to)).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let at = i128::from(row.get::<_, i64>(0).map_err(failed)? - from);
            let place = at * count as i128 / i128::from(to - from);
            let place = usize::try_from(place).unwrap_or(0).min(count - 1);
            let slice = &mut slices[place];
            match row.get::<_, Option<i64>>(1).map_err(failed)? {
                None => slice.unfinished += 1,
                Some(OK) => slice.ok += 1,
                Some(_) => slice.failed += 1,
            }
            let duration = row.get::<_, Option<i64>>(2).map_err(failed)?;
            durations[place].extend(duration.map(|ms| u32::try_from(ms).unwrap_or(u32::MAX)));
        }
        for (slice, durations) in slices.iter_mut().zip(&mut durations) {
            durations.sort_unstable();
            // The smallest duration that this share of the runs did not exceed.
            let percentile = |percent: usize| {
                let rank = (durations.len() * percent).div_ceil(100);
                durations.get(rank.checked_sub(1)?).map(|ms| u64::from(*ms))
            };
            (slice.p50_ms, slice.p95_ms) = (percentile(50), percentile(95));
        }
        Ok(slices)
    }

    pub fn totals(&self) -> Result<Totals> {
        self.connection
            .query_row(
                "SELECT (SELECT count(*) FROM runs INDEXED BY runs_start),
                   (SELECT count(*) FROM runs INDEXED BY runs_failed WHERE status > 0),
                   (SELECT min(start_us) FROM runs)",
                [],
                |row| {
                    Ok(Totals {
                        runs: row.get::<_, i64>(0)?.unsigned_abs(),
                        failed: row.get::<_, i64>(1)?.unsigned_abs(),
                        first: row
                            .get::<_, Option<i64>>(2)?
                            .and_then(|us| Timestamp::from_microsecond(us).ok()),
                    })
                },
            )
            .map_err(|error| self.failed("count runs", error))
    }
}
