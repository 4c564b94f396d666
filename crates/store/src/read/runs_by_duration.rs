//! Runs by how long they took. An index in the database would cost every run a page, so who serves lists
//! keeps the order in memory instead: eight bytes for each run, made by one look at all of them.

use std::collections::HashSet;

use jiff::Timestamp;
use retake_types::{Run, RunId};
use rusqlite::types::Value;

use crate::read::runs::{RUN_COLUMNS, RUN_JOINS, RunDetail, RunFilter, Sieve};
use crate::{Error, Result, Store};

/// Runs that pass a filter and are sorted for one page. Of more the order of all runs is walked.
const SORTED: usize = 5000;
/// Places of the order of all runs that are looked at for one page.
const LOOKED_AT: usize = 20_000;
/// Places that are asked about at once.
const ASKED: usize = 500;

/// The slowest runs among which commands are looked for.
const SLOW_RUNS: i64 = 500;

const READING: &str = "list runs by duration";

/// Which end of the order comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurationOrder {
    SlowestFirst,
    FastestFirst,
}

/// All runs that had ended at one moment, by duration.
#[derive(Clone, Debug, Default)]
pub struct RunsByDuration {
    /// Ascending.
    places: Vec<DurationPlace>,
}

/// A run's place: milliseconds, and its number where those are equal. A ledger has fewer entries than
/// fit; those beyond would be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DurationPlace(u64);

impl DurationPlace {
    /// Behind this many runs, in a list that someone else sorts.
    pub fn at_position(position: u64) -> Self {
        Self(position)
    }

    pub fn position(self) -> u64 {
        self.0
    }

    fn of(seq: i64, duration_ms: i64) -> Option<Self> {
        let duration = u64::from(u32::try_from(duration_ms.max(0)).unwrap_or(u32::MAX));
        Some(Self(duration << 32 | u64::from(u32::try_from(seq).ok()?)))
    }

    fn seq(self) -> i64 {
        i64::from(self.0 as u32)
    }
}

impl std::fmt::Display for DurationPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for DurationPlace {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// One page of runs by duration.
#[derive(Clone, Debug, Default)]
pub struct DurationPage {
    pub runs: Vec<Run>,
    /// Where the next page begins; `None` when this was the last. A page may be short.
    pub next: Option<DurationPlace>,
    /// Why runs are left out: what the ledger has of them cannot be read.
    pub unreadable: Vec<String>,
}

impl RunsByDuration {
    pub fn read(store: &Store) -> Result<Self> {
        let sql = "SELECT seq, duration_ms FROM runs WHERE duration_ms IS NOT NULL";
        let mut places = store.duration_places(sql, Vec::new())?;
        places.sort_unstable();
        Ok(Self { places })
    }

    /// Those behind a place, in order.
    fn after(
        places: &[DurationPlace],
        order: DurationOrder,
        after: Option<DurationPlace>,
    ) -> Box<dyn Iterator<Item = DurationPlace> + '_> {
        match order {
            DurationOrder::SlowestFirst => {
                let end =
                    after.map_or(places.len(), |after| places.partition_point(|p| *p < after));
                Box::new(places[..end].iter().rev().copied())
            }
            DurationOrder::FastestFirst => {
                let begin = after.map_or(0, |after| places.partition_point(|p| *p <= after));
                Box::new(places[begin..].iter().copied())
            }
        }
    }
}

impl Store {
    fn duration_places(&self, sql: &str, parameters: Vec<Value>) -> Result<Vec<DurationPlace>> {
        let failed = |error| self.failed(READING, error);
        let mut statement = self.connection.prepare(sql).map_err(failed)?;
        let mut rows = statement.query(rusqlite::params_from_iter(parameters)).map_err(failed)?;
        let mut places = Vec::new();
        while let Some(row) = rows.next().map_err(failed)? {
            // A run that has not ended took no time yet.
            let Some(duration) = row.get::<_, Option<i64>>(1).map_err(failed)? else { continue };
            places.extend(DurationPlace::of(row.get(0).map_err(failed)?, duration));
        }
        Ok(places)
    }

    /// The slowest run of each of the commands that took longest since a moment, the slowest first. A
    /// command that was slow very often may keep others from being found. Summaries.
    pub fn slowest_commands(&self, since: Timestamp, limit: usize) -> Result<Vec<Run>> {
        let sql = "SELECT id, command, cwd FROM runs INDEXED BY runs_start
                   WHERE start_us >= ?1 AND duration_ms IS NOT NULL
                   ORDER BY duration_ms DESC, seq DESC LIMIT ?2";
        let failed = |error| self.failed(READING, error);
        let mut statement = self.connection.prepare_cached(sql).map_err(failed)?;
        let parameters = (since.as_microsecond(), SLOW_RUNS);
        let mut rows = statement.query(parameters).map_err(failed)?;
        let mut known: HashSet<(String, String)> = HashSet::new();
        let mut runs = Vec::new();
        while let Some(row) = rows.next().map_err(failed)? {
            let command = (row.get(1).map_err(failed)?, row.get(2).map_err(failed)?);
            if runs.len() < limit && known.insert(command) {
                let id = RunId::from_bytes(row.get(0).map_err(failed)?);
                match self.get_with(RunDetail::Summary, id) {
                    Ok(run) => runs.push(run),
                    Err(Error::BadEntry { .. } | Error::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(runs)
    }

    /// One page of the runs that have ended and pass a filter, by how long they took; summaries.
    pub fn list_by_duration(
        &self,
        all: &RunsByDuration,
        filter: &RunFilter,
        order: DurationOrder,
        after: Option<DurationPlace>,
        limit: usize,
    ) -> Result<DurationPage> {
        let sieve = Sieve::new(self, filter)?;
        if sieve.is_shut() {
            return Ok(DurationPage::default());
        }
        if sieve.is_open() {
            let places = RunsByDuration::after(&all.places, order, after);
            return self.duration_page(places, limit);
        }
        // A filter that passes few runs would have them far apart in the order of all.
        if filter.is_searchable() {
            let (sql, parameters) =
                filter.sql(("r.seq, r.duration_ms", ""), None, SORTED + 1, sieve.live());
            let mut found = self.duration_places(&sql, parameters)?;
            if found.len() <= SORTED {
                found.sort_unstable();
                return self.duration_page(RunsByDuration::after(&found, order, after), limit);
            }
        }
        self.walk(all, &sieve, order, after, limit)
    }

    /// Holds the order of all runs against a filter, place by place.
    fn walk(
        &self,
        all: &RunsByDuration,
        sieve: &Sieve<'_>,
        order: DurationOrder,
        after: Option<DurationPlace>,
        limit: usize,
    ) -> Result<DurationPage> {
        let mut places = RunsByDuration::after(&all.places, order, after).peekable();
        let (mut passed, mut looked_at, mut last) = (Vec::new(), 0, after);
        while looked_at < LOOKED_AT && passed.len() < limit && places.peek().is_some() {
            let some: Vec<DurationPlace> = places.by_ref().take(ASKED).collect();
            let numbers: Vec<i64> = some.iter().map(|place| place.seq()).collect();
            let through = sieve.pass(&numbers)?;
            looked_at += some.len();
            last = some.last().copied();
            passed.extend(some.into_iter().filter(|place| through.contains(&place.seq())));
        }
        let more = passed.len() > limit || places.peek().is_some();
        passed.truncate(limit);
        // What was asked about and not shown is asked about again.
        let last = if passed.len() == limit { passed.last().copied() } else { last };
        let mut page = self.duration_page(passed.into_iter(), limit)?;
        page.next = last.filter(|_| more);
        Ok(page)
    }

    fn duration_page(
        &self,
        places: impl Iterator<Item = DurationPlace>,
        limit: usize,
    ) -> Result<DurationPage> {
        let sql = format!("SELECT {RUN_COLUMNS} FROM runs r {RUN_JOINS} WHERE r.seq = ?1");
        let mut page = DurationPage::default();
        let mut last = None;
        for place in places {
            if page.runs.len() == limit {
                page.next = last;
                break;
            }
            last = Some(place);
            // One that was deleted since the order was made is not there.
            for found in self.select(&sql, vec![Value::from(place.seq())])? {
                match self.assemble(found, RunDetail::Summary) {
                    Ok(run) => page.runs.push(run),
                    Err(error @ Error::BadEntry { .. }) => page.unreadable.push(error.to_string()),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_ordered_by_duration_and_reads_back() {
        let place = |seq, ms| DurationPlace::of(seq, ms).unwrap();
        assert!(place(9, 10) < place(1, 11) && place(1, 10) < place(2, 10));
        assert_eq!((place(7, 3).seq(), place(7, i64::MAX).seq()), (7, 7));
        assert_eq!(place(7, 3).to_string().parse(), Ok(place(7, 3)));
        assert_eq!(DurationPlace::of(1 << 40, 3), None);
    }

    #[test]
    fn what_follows_a_place_is_the_same_from_either_end() {
        let places: Vec<_> = (1..=5).map(|seq| DurationPlace::of(seq, 10).unwrap()).collect();
        let seqs = |order, after: usize| -> Vec<i64> {
            RunsByDuration::after(&places, order, Some(places[after]))
                .map(DurationPlace::seq)
                .collect()
        };
        assert_eq!(seqs(DurationOrder::SlowestFirst, 2), [2, 1]);
        assert_eq!(seqs(DurationOrder::FastestFirst, 2), [4, 5]);
        assert_eq!(RunsByDuration::after(&places, DurationOrder::SlowestFirst, None).count(), 5);
    }
}
