//! Figures about runs over time, over many machines.
//!
//! Reading millions of rows takes longer than a page may take: figures that go back more than a month come
//! from daily sums.

use jiff::{SignedDuration, Timestamp};
use retake_store::{TimeSlice, Totals};
use retake_types::{Run, RunId};

use super::run_filter::{Conditions, FAILED, PASSED};
use super::{SharedRecord, StoreResult, microseconds, time};

/// How far back runs are read one by one.
const SINGLE: SignedDuration = SignedDuration::from_hours(32 * 24);
/// The number of slowest runs in which commands are searched.
const SLOW_RUNS: usize = 500;

const COUNTING: &str = "count runs";

impl SharedRecord {
    /// Runs that ended by themselves. Cancelled, lost and running ones are in no sum.
    pub(super) fn sums(&self) -> StoreResult<Totals> {
        let sql = format!(
            "SELECT coalesce(sum(days.runs), 0)::bigint, coalesce(sum(days.failed), 0)::bigint,
                    (SELECT {} FROM retake.runs AS run WHERE {} ORDER BY run.id LIMIT 1)
             FROM retake.command_days AS days WHERE {}",
            microseconds("run.start_time"),
            self.of_project("run"),
            self.of_project("days")
        );
        let rows = self.query(COUNTING, &sql, &[])?;
        let Some(row) = rows.first() else { return Ok(Totals::default()) };
        Ok(Totals {
            runs: row.get::<_, i64>(0).unsigned_abs(),
            failed: row.get::<_, i64>(1).unsigned_abs(),
            first: row.get::<_, Option<i64>>(2).map(time),
        })
    }

    pub(super) fn slices(
        &self,
        since: Timestamp,
        until: Timestamp,
        count: usize,
    ) -> StoreResult<Vec<TimeSlice>> {
        let mut slices = vec![TimeSlice::default(); count];
        if count == 0 || until <= since {
            return Ok(slices);
        }
        let place = |at: &str| {
            format!(
                "width_bucket(extract(epoch FROM {at}), extract(epoch FROM $1::text::timestamptz),
                              extract(epoch FROM $2::text::timestamptz), $3) - 1"
            )
        };
        let sql = match until.duration_since(since) <= SINGLE {
            true => format!(
                "SELECT {}, count(*) FILTER (WHERE {PASSED}), count(*) FILTER (WHERE {FAILED}),
                        count(*) FILTER (WHERE run.outcome IS NULL),
                        percentile_disc(0.5) WITHIN GROUP (ORDER BY run.duration_ms),
                        percentile_disc(0.95) WITHIN GROUP (ORDER BY run.duration_ms)
                 FROM retake.runs AS run
                 WHERE {} AND run.id >= retake.id_at($1::text::timestamptz)
                   AND run.id < retake.id_at($2::text::timestamptz)
                   AND run.start_time >= $1::text::timestamptz
                   AND run.start_time < $2::text::timestamptz GROUP BY 1",
                place("run.start_time"),
                self.of_project("run")
            ),
            // A day is represented by its middle.
            false => format!(
                "SELECT {}, (sum(days.runs) - sum(days.failed))::bigint, sum(days.failed)::bigint,
                        0::bigint, NULL::bigint, NULL::bigint
                 FROM retake.command_days AS days
                 WHERE {} AND days.day + time '12:00' >= $1::text::timestamptz AT TIME ZONE 'UTC'
                   AND days.day + time '12:00' < $2::text::timestamptz AT TIME ZONE 'UTC' GROUP BY 1",
                place("(days.day + time '12:00') AT TIME ZONE 'UTC'"),
                self.of_project("days")
            ),
        };
        let slots = i32::try_from(count).unwrap_or(i32::MAX);
        let parameters: [&super::Parameter; 3] = [&since.to_string(), &until.to_string(), &slots];
        for row in &self.query(COUNTING, &sql, &parameters)? {
            let Ok(at) = usize::try_from(row.get::<_, i32>(0)) else { continue };
            let number = |column: usize| row.get::<_, i64>(column).unsigned_abs();
            let duration = |column: usize| row.get::<_, Option<i64>>(column).map(i64::unsigned_abs);
            if let Some(slice) = slices.get_mut(at) {
                *slice = TimeSlice {
                    ok: number(1),
                    failed: number(2),
                    unfinished: number(3),
                    p50_ms: duration(4),
                    p95_ms: duration(5),
                };
            }
        }
        Ok(slices)
    }

    /// Only within the last month.
    pub(super) fn slowest(&self, since: Timestamp, limit: usize) -> StoreResult<Vec<Run>> {
        let since = since.max(Timestamp::now() - SINGLE);
        let mut conditions = Conditions::new(self);
        conditions.with("run.id >= retake.id_at({}::text::timestamptz)", since.to_string());
        conditions.plain("run.duration_ms IS NOT NULL");
        let sql = format!(
            "SELECT run.id::text FROM retake.runs AS run WHERE {}
             ORDER BY run.duration_ms DESC, run.id DESC LIMIT {SLOW_RUNS}",
            conditions.text()
        );
        let rows = self.query("look for the slowest runs", &sql, &conditions.parameters())?;
        let ids: Vec<RunId> =
            rows.iter().filter_map(|row| row.get::<_, &str>(0).parse().ok()).collect();
        self.first_of_each_command(&ids, limit)
    }
}
