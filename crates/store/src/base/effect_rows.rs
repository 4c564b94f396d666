//! What a run did, in rows that can be searched: the paths it changed and the tests it ran.
//!
//! Derived from the effects in the outcome, like the rest of the projection. The ledger has them
//! complete.

use std::collections::BTreeMap;
use std::path::Path;

use retake_types::{Observations, RunOutcome, TestResults, TestStatus};
use rusqlite::Connection;

use crate::base::{ledger, schema};

/// The status for a number in the `tests` table.
pub(crate) fn status_of_number(number: i64) -> Option<TestStatus> {
    usize::try_from(number).ok().and_then(|index| TestStatus::ALL.get(index).copied())
}

/// The rows of one run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EffectRows {
    counts: Option<TestCounts>,
    /// Relative to the tracked directory, or absolute.
    paths: Vec<String>,
    tests: BTreeMap<String, (i64, Option<i64>)>,
}

/// Counts from a run's test results, stored besides the named tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TestCounts {
    total: i64,
    failed: i64,
    vouches: bool,
}

impl TestCounts {
    fn of(results: &TestResults) -> Self {
        Self {
            total: small(results.total),
            failed: small(results.failed),
            vouches: results.unnamed_did_not_fail(),
        }
    }
}

fn small(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Fills the columns of [`schema::WITH_VOUCHING`] for runs recorded before it.
pub(crate) fn derive_vouching(connection: &Connection) -> rusqlite::Result<()> {
    const AT_ONCE: usize = 500;
    let mut after = 0;
    loop {
        let some: Vec<(i64, i64, Option<Vec<u8>>)> = connection
            .prepare_cached(
                "SELECT e.run, o.seq, o.body FROM effects e JOIN runs r ON r.seq = e.run
                   JOIN ledger o ON o.seq = r.outcome_seq
                 WHERE e.run > ?1 AND e.tests_failed IS NOT NULL ORDER BY e.run LIMIT ?2",
            )?
            .query_map((after, AT_ONCE as i64), |row| row.try_into())?
            .collect::<Result<_, _>>()?;
        for (run, seq, body) in &some {
            after = *run;
            // An unreadable entry is left to `verify`.
            let Ok(outcome) = ledger::parse_ending(*seq, body.as_deref()) else { continue };
            let counts = EffectRows::of(&outcome).and_then(|rows| rows.counts);
            if let Some(TestCounts { total, vouches, .. }) = counts {
                connection
                    .prepare_cached("UPDATE effects SET tests = ?2, vouches = ?3 WHERE run = ?1")?
                    .execute((run, total, vouches))?;
            }
        }
        if some.len() < AT_ONCE {
            return Ok(());
        }
    }
}

impl EffectRows {
    /// `None` for a run whose effects were not observed.
    pub(crate) fn of(outcome: &RunOutcome) -> Option<Self> {
        // Effects in an unknown form of a later retake are not searchable here.
        let nothing = Observations::default();
        let observed = outcome.effects.as_ref()?.observations().unwrap_or(&nothing);
        let root = observed.root.as_deref().unwrap_or_default();
        let renamed = observed.files_renamed.iter().flat_map(|pair| [&pair.from, &pair.to]);
        let mut paths: Vec<String> = observed
            .files_created
            .iter()
            .chain(&observed.files_modified)
            .chain(&observed.files_deleted)
            .chain(renamed)
            .map(|path| Path::new(root).join(path).to_string_lossy().into_owned())
            .collect();
        paths.sort_unstable();
        paths.dedup();
        let mut tests = BTreeMap::new();
        for detail in observed.test_results.iter().flat_map(|tests| &tests.details) {
            let row = (detail.status as i64, detail.duration_ms.map(small));
            // Of tests with the same name, the worst result counts.
            let kept = tests.entry(detail.name.clone()).or_insert(row);
            if severity(row.0) > severity(kept.0) {
                *kept = row;
            }
        }
        let counts = observed.test_results.as_ref().map(TestCounts::of);
        Some(Self { counts, paths, tests })
    }

    pub(crate) fn insert(&self, connection: &Connection, run: i64) -> rusqlite::Result<()> {
        let (start, cwd) = anchor(connection, run)?;
        connection
            .prepare_cached(
                "INSERT INTO effects (run, start_us, tests_failed, tests, vouches)
                 VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute((
                run,
                start,
                self.counts.map(|counts| counts.failed),
                self.counts.map(|counts| counts.total),
                self.counts.is_some_and(|counts| counts.vouches),
            ))?;
        for path in self.absolute(&cwd) {
            connection
                .prepare_cached("INSERT INTO changes (path, start_us, run) VALUES (?1, ?2, ?3)")?
                .execute((path, start, run))?;
        }
        for (name, (status, duration)) in &self.tests {
            connection
                .prepare_cached(
                    "INSERT INTO tests (name, start_us, run, status, duration_ms)
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute((name, start, run, status, duration))?;
        }
        Ok(())
    }

    /// Called before the run's own row is removed.
    pub(crate) fn remove(&self, connection: &Connection, run: i64) -> rusqlite::Result<()> {
        let (start, cwd) = anchor(connection, run)?;
        connection.execute("DELETE FROM effects WHERE run = ?1", [run])?;
        for path in self.absolute(&cwd) {
            connection
                .prepare_cached(
                    "DELETE FROM changes WHERE path = ?1 AND start_us = ?2 AND run = ?3",
                )?
                .execute((path, start, run))?;
        }
        for name in self.tests.keys() {
            connection
                .prepare_cached("DELETE FROM tests WHERE name = ?1 AND start_us = ?2 AND run = ?3")?
                .execute((name, start, run))?;
        }
        Ok(())
    }

    /// Whether the tables hold exactly these rows for the run. Additional rows show up in the
    /// totals.
    pub(crate) fn is_stored(&self, connection: &Connection, run: i64) -> rusqlite::Result<bool> {
        let (start, cwd) = anchor(connection, run)?;
        if !self.counts_are_stored(connection, (run, start))? {
            return Ok(false);
        }
        for path in self.absolute(&cwd) {
            let there = connection
                .prepare_cached(
                    "SELECT 1 FROM changes WHERE path = ?1 AND start_us = ?2 AND run = ?3",
                )?
                .exists((path, start, run))?;
            if !there {
                return Ok(false);
            }
        }
        for (name, (status, duration)) in &self.tests {
            let there = connection
                .prepare_cached(
                    "SELECT 1 FROM tests WHERE name = ?1 AND start_us = ?2 AND run = ?3
                       AND status = ?4 AND duration_ms IS ?5",
                )?
                .exists((name, start, run, status, duration))?;
            if !there {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn counts_are_stored(
        &self,
        connection: &Connection,
        (run, start): (i64, i64),
    ) -> rusqlite::Result<bool> {
        let expected = self.counts.map_or((None, None, false), |counts| {
            (Some(counts.failed), Some(counts.total), counts.vouches)
        });
        // A read-only store may still have the schema of an earlier release.
        let with_vouching = schema::of(connection)? >= schema::WITH_VOUCHING;
        let (sql, expected) = match with_vouching {
            true => ("SELECT tests_failed, tests, vouches FROM effects", expected),
            false => ("SELECT tests_failed, NULL, 0 FROM effects", (expected.0, None, false)),
        };
        let stored: Option<(Option<i64>, Option<i64>, bool)> = connection
            .prepare_cached(&format!("{sql} WHERE run = ?1 AND start_us = ?2"))?
            .query_map((run, start), |row| row.try_into())?
            .next()
            .transpose()?;
        Ok(stored == Some(expected))
    }

    pub(crate) fn row_counts(&self) -> (u64, u64) {
        (self.paths.len() as u64, self.tests.len() as u64)
    }

    fn absolute<'a>(&'a self, cwd: &'a str) -> impl Iterator<Item = String> + 'a {
        let joined = |path: &String| Path::new(cwd).join(path).to_string_lossy().into_owned();
        self.paths.iter().map(joined)
    }
}

fn severity(status: i64) -> u8 {
    match status_of_number(status) {
        Some(TestStatus::Error) => 3,
        Some(TestStatus::Failed) => 2,
        Some(TestStatus::Passed) => 1,
        Some(TestStatus::Skipped) | None => 0,
    }
}

fn anchor(connection: &Connection, run: i64) -> rusqlite::Result<(i64, String)> {
    connection
        .prepare_cached("SELECT start_us, cwd FROM runs WHERE seq = ?1")?
        .query_row([run], |row| Ok((row.get(0)?, row.get(1)?)))
}
