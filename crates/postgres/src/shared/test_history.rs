//! The history of tests over many machines.
//!
//! Results of named tests. Two projects may have tests of the same name, so without a project there is no
//! list of tests.

use postgres::Row;
use retake_store::{Error, TestHistory, TestResult};
use retake_types::TestStatus;

use super::{SharedRecord, StoreResult, limited, microseconds, time};

/// How far back the list of all tests goes.
const LISTED: &str = "30 days";
/// Maximum number of results that are read for the list of all tests.
const MOST: i64 = 500_000;

const READING: &str = "read the history of tests";

fn status_of(word: &str) -> Option<TestStatus> {
    Some(match word {
        "passed" => TestStatus::Passed,
        "failed" => TestStatus::Failed,
        "skipped" => TestStatus::Skipped,
        "error" => TestStatus::Error,
        _ => return None,
    })
}

/// From the columns run, time, status and duration.
fn result(row: &Row, first: usize) -> Option<TestResult> {
    Some(TestResult {
        run: row.get::<_, &str>(first).parse().ok()?,
        at: time(row.get(first + 1)),
        status: status_of(row.get(first + 2))?,
        duration_ms: row.get::<_, Option<f64>>(first + 3).map(|ms| ms.max(0.0).round() as u64),
        inferred: false,
    })
}

fn columns() -> String {
    format!(
        "result.run::text, {}, result.status, result.duration_ms",
        microseconds("result.start_time")
    )
}

impl SharedRecord {
    /// The tests of a project with recent results, by name.
    pub(super) fn test_histories(
        &self,
        pattern: Option<&str>,
        take: &mut dyn FnMut(TestHistory),
    ) -> StoreResult<()> {
        if self.project.is_none() {
            return Ok(());
        }
        // The newest ones first, then sorted for display.
        let sql = format!(
            "SELECT * FROM (
               SELECT result.test, {} FROM retake.test_results AS result
               WHERE {} AND result.run >= retake.since('{LISTED}')
                 AND ($1::text IS NULL OR result.test = $1)
               ORDER BY result.run DESC LIMIT {MOST}) AS newest
             ORDER BY 1, 3, 2",
            columns(),
            self.of_project("result")
        );
        let mut open: Option<TestHistory> = None;
        for row in &self.query(READING, &sql, &[&pattern])? {
            let Some(result) = result(row, 1) else { continue };
            let name: &str = row.get(0);
            match &mut open {
                Some(history) if history.name == name => history.results.push(result),
                _ => {
                    let new = TestHistory { name: name.to_owned(), results: vec![result] };
                    open.replace(new).into_iter().for_each(&mut *take);
                }
            }
        }
        open.into_iter().for_each(take);
        Ok(())
    }

    pub(super) fn test_history(&self, name: &str, most: usize) -> StoreResult<Option<TestHistory>> {
        let project = match self.project {
            Some(project) => project,
            None => {
                let rows = self.query(
                    READING,
                    "SELECT id FROM retake.projects AS project WHERE EXISTS
                       (SELECT FROM retake.test_results AS result
                        WHERE result.project = project.id AND result.test = $1) LIMIT 2",
                    &[&name],
                )?;
                match &rows[..] {
                    [] => return Ok(None),
                    [one] => one.get(0),
                    _ => {
                        let detail =
                            "several projects have a test of this name; choose one of them";
                        return Err(Error::Shared { action: READING, detail: detail.to_owned() });
                    }
                }
            }
        };
        let sql = format!(
            "SELECT {} FROM retake.test_results AS result
             WHERE result.project = $1 AND result.test = $2 ORDER BY result.run DESC LIMIT {}",
            columns(),
            limited(most)
        );
        let rows = self.query(READING, &sql, &[&project, &name])?;
        let mut results: Vec<TestResult> = rows.iter().filter_map(|row| result(row, 0)).collect();
        results.reverse();
        Ok((!results.is_empty()).then(|| TestHistory { name: name.to_owned(), results }))
    }

    pub(super) fn count_runs_with_tests(&self) -> StoreResult<u64> {
        if self.project.is_none() {
            return Ok(0);
        }
        let sql = format!(
            "SELECT count(DISTINCT result.run) FROM retake.test_results AS result
             WHERE {} AND result.run >= retake.since('{LISTED}')",
            self.of_project("result")
        );
        let rows = self.query(READING, &sql, &[])?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }
}
