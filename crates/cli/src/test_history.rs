//! `retake tests`: test results over the recorded runs.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use retake_store::{Store, TestHistory, TestResult};
use retake_types::{RunId, TestStatus};
use serde::Serialize;

use super::{Exit, Failure};
use crate::record::Record;
use crate::term::{Cell, Column, Palette, Shade, Table};
use crate::{record, term};

/// How many results of a test the HISTORY column shows, the newest ones.
const DRAWN: usize = 20;

/// Show test results over all recorded runs: first failure, flips, durations
///
/// Reads runs recorded with `--tests`. The exact name of a test shows each of its results.
/// In HISTORY, oldest first: + passed, x failed, E error, - skipped, and . for a complete run of
/// the same command that does not name the test among those that failed.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The test with this name, or tests whose whole name matches a pattern (*, ?, [a-z]): '*parse*'
    #[arg(value_name = "GLOB")]
    pattern: Option<String>,
    /// Only tests whose newest result is a failure; a later complete run without it is a pass
    #[arg(long)]
    failing: bool,
    /// Only tests that went from passing to failing and back
    #[arg(long)]
    flaky: bool,
    /// Maximum number of tests
    #[arg(long, short = 'n', value_name = "N", default_value_t = 200, value_parser = term::number)]
    limit: usize,
    /// Print an array of tests as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    name: &'a str,
    status: TestStatus,
    runs: usize,
    failed: usize,
    flips: u64,
    flaky: bool,
    first_failure: Option<RunReference>,
    failing_since: Option<RunReference>,
    p50_ms: Option<u64>,
    results: Vec<ResultDocument>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RunReference {
    run_id: RunId,
    at: Timestamp,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResultDocument {
    run_id: RunId,
    at: Timestamp,
    status: TestStatus,
    duration_ms: Option<u64>,
    /// The run does not name the test.
    inferred: bool,
}

pub(super) fn tests(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let record = Record::find(store)?;
    let store = record.read_marked_if_any()?;
    let mut tests = match &store {
        Some(store) => store.tests(args.pattern.as_deref())?,
        None => Vec::new(),
    };
    let known = tests.len();
    tests.retain(|test| !args.failing || test.failing_since().is_some());
    tests.retain(|test| !args.flaky || test.is_flaky());
    let shown = &tests[..tests.len().min(args.limit)];
    if args.json {
        term::document(&shown.iter().map(document).collect::<Vec<_>>())?;
    } else if args.limit == 0 {
        // Nothing was asked for.
    } else if shown.is_empty() {
        let runs = store.as_ref().map_or(Ok(0), Store::runs_with_tests)?;
        record.say_empty(&nothing(args, known, runs), store.as_ref());
    } else {
        let table = match shown {
            [test] if args.pattern.as_deref() == Some(&test.name) => one(test),
            several => all(several),
        };
        term::page(&table.render(term::width(), Palette::of_stdout()))?;
        if shown.len() < tests.len() {
            let rest = (tests.len() - shown.len()) as u64;
            term::say(&format!("{} not shown; --limit shows more", term::count(rest, "test")));
        }
    }
    if let Some(store) = store {
        record::tend(store);
    }
    Ok(Exit::OK)
}

/// Why no test is shown. `known` tests match the pattern, `runs` runs had test results.
fn nothing(args: &Args, known: usize, runs: u64) -> String {
    let kind = match (args.failing, args.flaky) {
        (true, true) => "failing and flaky test",
        (true, false) => "failing test",
        (false, true) => "flaky test",
        (false, false) => "test",
    };
    match (&args.pattern, known) {
        (None, 0) if runs > 0 => format!(
            "{} had tests but named none; most test runners name passing tests with -v",
            term::count(runs, "run")
        ),
        (None, 0) => {
            "no test was recorded yet; `retake exec --tests -- …` reads test results".to_owned()
        }
        (Some(pattern), 0) if pattern.contains(['*', '?', '[']) => {
            format!("no recorded test matches {pattern}")
        }
        (Some(pattern), 0) => {
            format!("no recorded test is called {pattern}; '*{pattern}*' also finds parts of names")
        }
        (None, known) => format!("no {kind} among {known}"),
        (Some(pattern), known) => {
            format!(
                "no {kind} among {known} that {} {pattern}",
                if known == 1 { "matches" } else { "match" }
            )
        }
    }
}

fn p50(test: &TestHistory) -> Option<u64> {
    let mut durations: Vec<u64> = test.results.iter().filter_map(|r| r.duration_ms).collect();
    durations.sort_unstable();
    durations.get(durations.len() / 2).copied()
}

fn document(test: &TestHistory) -> Document<'_> {
    let place = |result: &TestResult| RunReference { run_id: result.run, at: result.at };
    Document {
        name: &test.name,
        status: test.results.last().map_or(TestStatus::Skipped, |result| result.status),
        runs: test.results.len(),
        failed: test.failures(),
        flips: test.flips(),
        flaky: test.is_flaky(),
        first_failure: test.first_failure().map(place),
        failing_since: test.failing_since().map(place),
        p50_ms: p50(test),
        results: test
            .results
            .iter()
            .map(|result| ResultDocument {
                run_id: result.run,
                at: result.at,
                status: result.status,
                duration_ms: result.duration_ms,
                inferred: result.inferred,
            })
            .collect(),
    }
}

fn word(status: TestStatus) -> Cell {
    match status {
        TestStatus::Passed => Cell::shaded("passed", Shade::Good),
        TestStatus::Failed => Cell::shaded("failed", Shade::Bad),
        TestStatus::Error => Cell::shaded("error", Shade::Bad),
        TestStatus::Skipped => "skipped".into(),
    }
}

fn took(ms: Option<u64>) -> Cell {
    ms.map_or("-".to_owned(), |ms| term::duration(Duration::from_millis(ms))).into()
}

fn all(tests: &[TestHistory]) -> Table<'static> {
    let mut table = Table::new([
        Column::new("LAST"),
        Column::new("RUNS").right().spare(4),
        Column::new("FAILED").right().spare(3),
        Column::new("FLIPS").right(),
        Column::new("P50").right().spare(2),
        Column::new("FAILING SINCE").spare(5),
        Column::new("HISTORY").spare(1),
        Column::new("TEST").keep_end(),
    ]);
    let now = Timestamp::now();
    for test in tests {
        let since = test.failing_since().map_or("-".to_owned(), |result| {
            format!("{} {}", result.run.short(), term::ago(result.at, now))
        });
        let drawn = &test.results[test.results.len().saturating_sub(DRAWN)..];
        let history: String = drawn
            .iter()
            .map(|result| match result.status {
                _ if result.inferred => '.',
                TestStatus::Passed => '+',
                TestStatus::Failed => 'x',
                TestStatus::Error => 'E',
                TestStatus::Skipped => '-',
            })
            .collect();
        table.row([
            test.results.last().map_or("-".into(), |result| word(result.status)),
            test.results.len().to_string().into(),
            test.failures().to_string().into(),
            test.flips().to_string().into(),
            took(p50(test)),
            since.into(),
            history.into(),
            test.name.clone().into(),
        ]);
    }
    table
}

/// Every result of one test, newest first.
fn one(test: &TestHistory) -> Table<'static> {
    let mut table = Table::new([
        Column::new("RUN"),
        Column::new("WHEN"),
        Column::new("RESULT"),
        Column::new("TOOK").right(),
        Column::new("TEST").keep_end(),
    ]);
    let now = Timestamp::now();
    for result in test.results.iter().rev() {
        table.row([
            result.run.short().into(),
            term::ago(result.at, now).into(),
            if result.inferred { "not failed".into() } else { word(result.status) },
            took(result.duration_ms),
            test.name.clone().into(),
        ]);
    }
    table
}
