//! The history of tests over runs.
//!
//! Many runners name only failed tests. A complete run of the same command in the same directory
//! ran the tests it does not name without failure: such results are inferred here and marked as
//! inferred. They are never stored.

use std::collections::HashMap;
use std::rc::Rc;

use jiff::Timestamp;
use retake_types::{RunId, TestStatus};
use rusqlite::types::Value;

use crate::base::effect_rows::status_of_number;
use crate::base::schema;
use crate::{Error, Result, Store};

/// The history of one test over all runs that had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestHistory {
    pub name: String,
    /// Oldest first.
    pub results: Vec<TestResult>,
}

/// The result of a test in one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestResult {
    pub run: RunId,
    pub at: Timestamp,
    pub status: TestStatus,
    pub duration_ms: Option<u64>,
    /// The run does not name it, but is complete and names all failed tests.
    pub inferred: bool,
}

impl TestHistory {
    /// How often it changed between passing and failing; skips do not count.
    pub fn flips(&self) -> u64 {
        let outcomes: Vec<bool> = self.results.iter().filter_map(|r| r.status.passed()).collect();
        outcomes.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64
    }

    /// Passed, failed and passed again, or the reverse.
    pub fn is_flaky(&self) -> bool {
        self.flips() > 1
    }

    pub fn failures(&self) -> usize {
        self.results.iter().filter(|result| result.status.is_failure()).count()
    }

    /// The first failure of the current streak; `None` if it does not fail now.
    pub fn failing_since(&self) -> Option<&TestResult> {
        self.results
            .iter()
            .rev()
            .filter(|result| result.status.passed().is_some())
            .take_while(|result| result.status.passed() == Some(false))
            .last()
    }

    pub fn first_failure(&self) -> Option<&TestResult> {
        self.results.iter().find(|result| result.status.passed() == Some(false))
    }
}

/// A recorded run with test results, reduced to what inference needs.
struct RunWithTests {
    id: RunId,
    /// The command and its directory: runs with equal ones should run the same tests.
    suite: (String, String),
    total: u64,
    failed: u64,
}

/// A run that vouches for tests it does not name.
struct VouchingRun {
    seq: i64,
    id: RunId,
    start_us: i64,
    total: u64,
}

/// A result that a run names.
struct NamedResult {
    seq: i64,
    start_us: i64,
    status: TestStatus,
    duration_ms: Option<u64>,
    run: Rc<RunWithTests>,
}

/// Reads histories and caches what tests share.
struct HistoryReader<'a> {
    store: &'a Store,
    vouching: bool,
    /// The earliest time of inferred results.
    since: i64,
    /// Maximum newest runs of a suite to infer from; negative for all.
    most: i64,
    runs: HashMap<i64, Rc<RunWithTests>>,
    suites: HashMap<(String, String), Rc<[VouchingRun]>>,
}

impl Store {
    /// The tests whose names equal a shell-style pattern or match it, by name.
    pub fn tests(&self, pattern: Option<&str>) -> Result<Vec<TestHistory>> {
        let mut histories = Vec::new();
        self.each_test(pattern, &mut |history| histories.push(history))?;
        Ok(histories)
    }

    /// The same, one at a time, since all of them may exceed memory.
    pub fn each_test(
        &self,
        pattern: Option<&str>,
        take: &mut dyn FnMut(TestHistory),
    ) -> Result<()> {
        if !self.has_effects()? {
            return Ok(());
        }
        let condition = match pattern {
            None => "",
            Some(_) => "WHERE name = ?1 OR name GLOB ?1",
        };
        let sql = format!(
            "SELECT name, run, start_us, status, duration_ms FROM tests {condition}
             ORDER BY name, start_us, run"
        );
        let parameters: Vec<Value> =
            pattern.iter().map(|text| Value::Text((*text).to_owned())).collect();
        let mut reader = HistoryReader::new(self)?;
        let mut named: Vec<NamedResult> = Vec::new();
        let mut name = String::new();
        let failed = |error| self.failed(READING, error);
        let mut statement = self.connection.prepare(&sql).map_err(failed)?;
        let mut rows = statement.query(rusqlite::params_from_iter(parameters)).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let next = row.get_ref(0).and_then(|name| Ok(name.as_str()?)).map_err(failed)?;
            if next != name {
                reader.history(&name, std::mem::take(&mut named))?.into_iter().for_each(&mut *take);
                name = next.to_owned();
            }
            named.push(reader.named(row, &name)?);
        }
        reader.history(&name, named)?.into_iter().for_each(take);
        Ok(())
    }

    /// The newest results of the test with exactly this name: at most `most` named ones, and those
    /// inferred since the oldest of them. `None` for a test that no run names.
    pub fn test_named(&self, name: &str, most: usize) -> Result<Option<TestHistory>> {
        if !self.has_effects()? {
            return Ok(None);
        }
        let failed = |error| self.failed(READING, error);
        let mut reader = HistoryReader::new(self)?;
        let mut named: Vec<NamedResult> = Vec::new();
        let mut statement = self.connection.prepare_cached(NAMED_SQL).map_err(failed)?;
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let mut rows = statement.query((name, most)).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            named.push(reader.named(row, name)?);
        }
        named.reverse();
        reader.most = MAX_VOUCHING;
        reader.since = named.first().map_or(0, |first| first.start_us);
        reader.history(name, named)
    }

    /// The number of runs with test results.
    pub fn runs_with_tests(&self) -> Result<u64> {
        if !self.has_effects()? {
            return Ok(0);
        }
        let sql = "SELECT count(*) FROM effects WHERE tests_failed IS NOT NULL";
        let count = self.connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        Ok(count.map_err(|error| self.failed(READING, error))?.unsigned_abs())
    }
}

const READING: &str = "read the history of tests";
/// The query for the results of one test, for tests that examine its query plan.
#[doc(hidden)]
pub const NAMED_SQL: &str = "SELECT name, run, start_us, status, duration_ms FROM tests
     WHERE name = ?1 ORDER BY start_us DESC, run DESC LIMIT ?2";
/// Runs of a suite to infer from, for one test.
const MAX_VOUCHING: i64 = 5000;

impl<'a> HistoryReader<'a> {
    fn new(store: &'a Store) -> Result<Self> {
        let version = schema::version(&store.connection, &store.dir)?;
        Ok(Self {
            store,
            vouching: version >= schema::WITH_VOUCHING,
            since: i64::MIN,
            most: -1,
            runs: HashMap::new(),
            suites: HashMap::new(),
        })
    }

    fn named(&mut self, row: &rusqlite::Row<'_>, name: &str) -> Result<NamedResult> {
        let failed = |error| self.store.failed(READING, error);
        let (seq, start_us, status): (i64, i64, i64) =
            (row.get(1).map_err(failed)?, row.get(2).map_err(failed)?, row.get(3).map_err(failed)?);
        let duration: Option<i64> = row.get(4).map_err(failed)?;
        let status =
            status_of_number(status).ok_or_else(|| self.store.damaged_test(name, "status"))?;
        let run = self.run(seq)?;
        let duration_ms = duration.map(i64::unsigned_abs);
        Ok(NamedResult { seq, start_us, status, duration_ms, run })
    }

    fn run(&mut self, seq: i64) -> Result<Rc<RunWithTests>> {
        if let Some(known) = self.runs.get(&seq) {
            return Ok(known.clone());
        }
        let columns = if self.vouching { "e.tests, e.tests_failed" } else { "NULL, NULL" };
        let sql = format!(
            "SELECT r.id, r.command, r.cwd, {columns} FROM runs r
             LEFT JOIN effects e ON e.run = r.seq WHERE r.seq = ?1"
        );
        let found = self.store.connection.prepare_cached(&sql).and_then(|mut statement| {
            statement.query_row([seq], |row| {
                let number = |column| {
                    Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.unwrap_or(0))
                };
                Ok(RunWithTests {
                    id: RunId::from_bytes(row.get(0)?),
                    suite: (row.get(1)?, row.get(2)?),
                    total: number(3)?.unsigned_abs(),
                    failed: number(4)?.unsigned_abs(),
                })
            })
        });
        let run = Rc::new(found.map_err(|error| self.store.failed(READING, error))?);
        self.runs.insert(seq, run.clone());
        Ok(run)
    }

    /// The runs of a suite that vouch for tests they do not name, oldest first.
    fn suite(&mut self, suite: &(String, String)) -> Result<Rc<[VouchingRun]>> {
        if let Some(known) = self.suites.get(suite) {
            return Ok(known.clone());
        }
        let sql = "SELECT r.seq, r.id, r.start_us, e.tests
             FROM runs r INDEXED BY runs_command JOIN effects e ON e.run = r.seq
             WHERE r.command = ?1 AND r.cwd = ?2 AND r.start_us >= ?3 AND e.vouches = 1
             ORDER BY r.start_us DESC, r.seq DESC LIMIT ?4";
        let found = self.store.connection.prepare_cached(sql).and_then(|mut statement| {
            let asked = (&suite.0, &suite.1, self.since, self.most);
            let rows = statement.query_map(asked, |row| {
                Ok(VouchingRun {
                    seq: row.get(0)?,
                    id: RunId::from_bytes(row.get(1)?),
                    start_us: row.get(2)?,
                    total: row.get::<_, Option<i64>>(3)?.unwrap_or(0).unsigned_abs(),
                })
            })?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        });
        let found = found.map(|mut newest_first| {
            newest_first.reverse();
            newest_first
        });
        let found: Rc<[VouchingRun]> =
            found.map_err(|error| self.store.failed(READING, error))?.into();
        self.suites.insert(suite.clone(), found.clone());
        Ok(found)
    }

    /// `None` if no run names it.
    fn history(&mut self, name: &str, named: Vec<NamedResult>) -> Result<Option<TestHistory>> {
        if named.is_empty() {
            return Ok(None);
        }
        let mut inferred: Vec<(i64, i64, RunId)> = Vec::new();
        if self.vouching {
            let mut suites: Vec<&(String, String)> = named.iter().map(|n| &n.run.suite).collect();
            suites.sort_unstable();
            suites.dedup();
            for suite in suites {
                let of_suite: Vec<&NamedResult> =
                    named.iter().filter(|result| result.run.suite == *suite).collect();
                let runs = self.suite(suite)?;
                let unnamed = unnamed_runs(&of_suite, &runs);
                inferred.extend(unnamed.map(|run| (run.start_us, run.seq, run.id)));
            }
        }
        let at = |start_us| {
            Timestamp::from_microsecond(start_us).map_err(|_| self.store.damaged_test(name, "time"))
        };
        let mut results = Vec::with_capacity(named.len() + inferred.len());
        for NamedResult { seq, start_us, status, duration_ms, run } in named {
            let at = at(start_us)?;
            let result = TestResult { run: run.id, at, status, duration_ms, inferred: false };
            results.push(((start_us, seq), result));
        }
        for (start_us, seq, run) in inferred {
            let (at, status) = (at(start_us)?, TestStatus::Passed);
            let result = TestResult { run, at, status, duration_ms: None, inferred: true };
            results.push(((start_us, seq), result));
        }
        results.sort_by_key(|(order, _)| *order);
        let results = results.into_iter().map(|(_, result)| result).collect();
        Ok(Some(TestHistory { name: name.to_owned(), results }))
    }
}

/// The runs of a suite that ran a test without naming it. Excludes runs before it was first named,
/// when it may not have existed, and runs with fewer tests than had passed when it was last named,
/// which may have selected other tests.
fn unnamed_runs<'a>(
    named: &[&NamedResult],
    runs: &'a [VouchingRun],
) -> impl Iterator<Item = &'a VouchingRun> {
    let order: Vec<((i64, i64), u64)> = named
        .iter()
        .map(|result| {
            let passed = result.run.total.saturating_sub(result.run.failed);
            ((result.start_us, result.seq), passed)
        })
        .collect();
    runs.iter().filter(move |run| {
        let key = (run.start_us, run.seq);
        match order.partition_point(|(at, _)| *at <= key).checked_sub(1) {
            Some(before) => order[before].0 != key && run.total >= order[before].1,
            None => false,
        }
    })
}

impl Store {
    fn damaged_test(&self, name: &str, what: &str) -> Error {
        Error::Corrupt {
            path: self.dir.database().to_owned(),
            detail: format!("the test {name:?} has an impossible {what}"),
        }
    }
}
