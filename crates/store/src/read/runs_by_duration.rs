//! Runs by duration. A database index would cost every run a page, so a process that serves lists
//! keeps the order in memory: eight bytes per run, built in one pass.

use std::collections::HashSet;

use jiff::Timestamp;
use retake_types::{Run, RunId};
use rusqlite::types::Value;

use crate::read::runs::{RUN_COLUMNS, RUN_JOINS, RunDetail, RunFilter, Sieve};
use crate::{Error, Result, Store};

/// Matching runs that are sorted for one page. Above this number the order of all runs is walked.
const SORTED: usize = 5000;
/// Places in the order of all runs examined per page.
const LOOKED_AT: usize = 20_000;
/// Places per query.
const ASKED: usize = 500;

/// The slowest runs, among which commands are searched.
const SLOW_RUNS: i64 = 500;

const READING: &str = "list runs by duration";

/// Which end of the order comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurationOrder {
    SlowestFirst,
    FastestFirst,
}

/// All runs that had ended at some moment, by duration.
#[derive(Clone, Debug, Default)]
pub struct RunsByDuration {
    /// Ascending.
    places: Vec<DurationPlace>,
}

/// A run's place: milliseconds, then its number. Numbers too large for it are left out; ledgers
/// have fewer entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DurationPlace(u64);

impl DurationPlace {
    /// After this many runs, in a list that another component sorts.
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
    /// Where the next page begins; `None` after the last page. A page may be short.
    pub next: Option<DurationPlace>,
    /// Why runs are missing: their ledger entries cannot be read.
    pub unreadable: Vec<String>,
}

impl RunsByDuration {
    pub fn read(store: &Store) -> Result<Self> {
        let sql = "SELECT seq, duration_ms FROM runs WHERE duration_ms IS NOT NULL";
        let mut places = store.duration_places(sql, Vec::new())?;
        places.sort_unstable();
        Ok(Self { places })
    }

    /// The places after a given one, in order.
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
            // A run that has not ended has no duration yet.
            let Some(duration) = row.get::<_, Option<i64>>(1).map_err(failed)? else { continue };
            places.extend(DurationPlace::of(row.get(0).map_err(failed)?, duration));
        }
        Ok(places)
    }

    /// The slowest run of each of the slowest commands since a moment, slowest first; summaries. A
    /// command with very many slow runs may hide other commands.
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

    /// One page of ended runs that match a filter, by duration; summaries.
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
        // Few matching runs would be far apart in the order of all runs.
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

    /// Walks the order of all runs and applies a filter to each place.
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
        // Matches that did not fit the page are examined again for the next one.
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
            // A run deleted after the order was built is missing.
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
    fn paging_by_duration_works_in_both_orders() {
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
