//! The history of tests over runs.

use jiff::Timestamp;
use retake_types::{RunId, TestStatus};
use rusqlite::types::Value;

use crate::base::effect_rows::status_of_number;
use crate::{Error, Result, Store};

/// One test over all recorded runs that had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestHistory {
    pub name: String,
    /// Oldest first.
    pub results: Vec<TestResult>,
}

/// How a test went in one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestResult {
    pub run: RunId,
    pub at: Timestamp,
    pub status: TestStatus,
    pub duration_ms: Option<u64>,
}

impl TestHistory {
    /// How often it went from passing to failing or back; skips do not count.
    pub fn flips(&self) -> u64 {
        let outcomes: Vec<bool> = self.results.iter().filter_map(|r| r.status.passed()).collect();
        outcomes.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64
    }

    /// Where the present row of failures began; `None` when it does not fail now.
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

impl Store {
    /// The tests whose names match a shell-style pattern, or have it as their exact name, by name.
    pub fn tests(&self, pattern: Option<&str>) -> Result<Vec<TestHistory>> {
        if !self.has_effects()? {
            return Ok(Vec::new());
        }
        let failed = |error| self.failed("read the history of tests", error);
        let condition = match pattern {
            None => "",
            Some(_) => "WHERE t.name = ?1 OR t.name GLOB ?1",
        };
        let sql = format!(
            "SELECT t.name, r.id, t.start_us, t.status, t.duration_ms
             FROM tests t JOIN runs r ON r.seq = t.run {condition}
             ORDER BY t.name, t.start_us, t.run"
        );
        let parameters: Vec<Value> =
            pattern.iter().map(|text| Value::Text((*text).to_owned())).collect();
        let mut statement = self.connection.prepare(&sql).map_err(failed)?;
        let mut rows = statement.query(rusqlite::params_from_iter(parameters)).map_err(failed)?;
        let mut histories: Vec<TestHistory> = Vec::new();
        while let Some(row) = rows.next().map_err(failed)? {
            let name: String = row.get(0).map_err(failed)?;
            let (start_us, status): (i64, i64) =
                (row.get(2).map_err(failed)?, row.get(3).map_err(failed)?);
            let damaged = |what: &str| Error::Corrupt {
                path: self.dir.database().to_owned(),
                detail: format!("the test {name:?} has an impossible {what}"),
            };
            let result = TestResult {
                run: RunId::from_bytes(row.get(1).map_err(failed)?),
                at: Timestamp::from_microsecond(start_us).map_err(|_| damaged("time"))?,
                status: status_of_number(status).ok_or_else(|| damaged("status"))?,
                duration_ms: row.get::<_, Option<i64>>(4).map_err(failed)?.map(i64::unsigned_abs),
            };
            match histories.last_mut() {
                Some(last) if last.name == name => last.results.push(result),
                _ => histories.push(TestHistory { name, results: vec![result] }),
            }
        }
        Ok(histories)
    }
}
