//! Runs as a JUnit report: a suite for each run, with a test case for each of its named tests. A run
//! without test results is itself a test case.
//!
//! Valid for both the schema of Ant's JUnit task and that of Jenkins: suites are not nested, a test case
//! contains only its result, and there are no extra attributes.

use std::io::{Read, Seek, SeekFrom, Write};

use retake_runner::html::escape_xml;
use retake_runner::run_text;
use retake_store::{Error, Store};
use retake_types::loop_record::matrix::CellLabels;
use retake_types::{
    CountedUnit, OutcomeKind, Run, RunId, State, Stream, TestDetail, TestResults, TestStatus,
};

use crate::{Failure, term};

/// How much of each stream of a failed run the report carries.
const TAIL: u64 = 64 * 1024;
/// Stands for the tests that a run counts but does not name.
const UNNAMED: &str = "tests that are not named";

/// One test case.
struct Case {
    class: String,
    name: String,
    ms: u64,
    result: CaseResult,
}

/// The results of a test, as JUnit calls them.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CaseResult {
    Passed,
    Skipped {
        message: String,
    },
    Failed {
        kind: String,
        message: String,
        text: String,
    },
    /// The test could not be carried out.
    Error {
        kind: String,
        message: String,
        text: String,
    },
}

impl CaseResult {
    /// The run as a whole.
    fn of_run(run: &Run) -> Self {
        let kind = run_text::outcome(run).0;
        let error = run.outcome.as_ref().and_then(|outcome| outcome.error.as_ref());
        let message = error.map_or_else(|| kind.clone(), |error| error.message.clone());
        let text = String::new();
        match run.outcome.as_ref().map(|outcome| outcome.kind) {
            _ if run.success() => Self::Passed,
            Some(OutcomeKind::NotStarted | OutcomeKind::Interrupted) => {
                Self::Error { kind, message, text }
            }
            Some(_) => Self::Failed { kind, message, text },
            None if run.state == State::Interrupted => Self::Error { kind, message, text },
            None => Self::Skipped { message },
        }
    }

    fn of_test(test: &TestDetail) -> Self {
        let message = test.headline().unwrap_or_default().to_owned();
        let text = test.error.clone().unwrap_or_default();
        match test.status {
            TestStatus::Passed => Self::Passed,
            TestStatus::Skipped => Self::Skipped { message },
            TestStatus::Failed => Self::Failed { kind: "failed".to_owned(), message, text },
            TestStatus::Error => Self::Error { kind: "error".to_owned(), message, text },
        }
    }

    fn is_failure(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::Error { .. })
    }
}

/// Writes the report. Returns how many tests it counts without a name.
pub(super) fn report(
    store: Option<&Store>,
    ids: &[RunId],
    out: &mut impl Write,
) -> Result<u64, Failure> {
    writeln!(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>")?;
    let (mut number, mut unnamed) = (0, 0);
    for (store, id) in store.into_iter().flat_map(|store| ids.iter().map(move |id| (store, id))) {
        match store.get(*id) {
            // Erased since the listing.
            Err(Error::NotFound { .. }) => continue,
            run => {
                let run = run?;
                suite(store, &run, number, out)?;
                unnamed += results_of(&run).map_or(0, without_name);
            }
        }
        number += 1;
    }
    writeln!(out, "</testsuites>")?;
    Ok(unnamed)
}

fn suite(store: &Store, run: &Run, number: u64, out: &mut impl Write) -> Result<(), Failure> {
    let cases = cases(run);
    let counts = SuiteCounts::of(run, &cases);
    // The schema allows no time zone.
    let started = term::moment(run.intent.start_time);
    writeln!(
        out,
        "  <testsuite id=\"{number}\" name=\"{}\" package=\"{}\" timestamp=\"{}\" hostname=\"{}\" \
         tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{}\">",
        escape_xml(&name_of_run(run)),
        class_of_run(run),
        started.trim_end_matches('Z'),
        escape_xml(if run.intent.host.is_empty() { "localhost" } else { &run.intent.host }),
        counts.tests,
        counts.failures,
        counts.errors,
        counts.skipped,
        seconds(run.outcome.as_ref().map_or(0, |outcome| outcome.duration_ms)),
    )?;
    properties(run, out)?;
    for case in &cases {
        write_case(case, out)?;
    }
    for (stream, element) in [(Stream::Stdout, "system-out"), (Stream::Stderr, "system-err")] {
        let output = match run.success() || run.outcome.is_none() {
            true => String::new(),
            false => tail(store, run.intent.id(), stream)?,
        };
        writeln!(out, "    <{element}>{}</{element}>", escape_xml(&output))?;
    }
    writeln!(out, "  </testsuite>")?;
    Ok(())
}

/// The attributes of a suite: of all tests that ran, also of those without a test case.
#[derive(Default)]
struct SuiteCounts {
    tests: u64,
    failures: u64,
    errors: u64,
    skipped: u64,
}

impl SuiteCounts {
    fn of(run: &Run, cases: &[Case]) -> Self {
        let mut counts = Self::default();
        let results = results_of(run).filter(|results| results.total > 0);
        let class_of_run = class_of_run(run);
        for case in cases {
            // What the totals of the tests include.
            let included = match &results {
                None => false,
                Some(_) if case.class != class_of_run => true,
                // The run stands for its tests, or is a failure besides them.
                Some(results) => {
                    results.details.is_empty() && results.failed > 0 || !case.result.is_failure()
                }
            };
            counts.tests += u64::from(!included);
            match case.result {
                CaseResult::Error { .. } => counts.errors += u64::from(!included),
                CaseResult::Failed { .. } => counts.failures += u64::from(!included),
                CaseResult::Skipped { .. } => counts.skipped += u64::from(!included),
                CaseResult::Passed => {}
            }
        }
        if let Some(results) = results {
            let errors = results.details.iter().filter(|test| test.status == TestStatus::Error);
            let errors = errors.count() as u64;
            counts.tests += results.total;
            counts.errors += errors;
            counts.failures += results.failed.saturating_sub(errors);
            counts.skipped += results.skipped;
        }
        counts
    }
}

/// How many tests of a run have no name.
fn without_name(results: &TestResults) -> u64 {
    results.total.saturating_sub(results.details.len() as u64 + results.details_omitted)
}

fn properties(run: &Run, out: &mut impl Write) -> Result<(), Failure> {
    let mut all = vec![
        ("id", run.intent.id().to_string()),
        ("directory", run.intent.working_directory()),
        ("outcome", run_text::outcome(run).0),
    ];
    if let Some(results) = results_of(run) {
        all.extend([
            ("tests.framework", results.framework.to_string()),
            ("tests.passed", results.passed.to_string()),
            ("tests.failed", results.failed.to_string()),
            ("tests.skipped", results.skipped.to_string()),
            ("tests.partial", results.partial.to_string()),
        ]);
        let unnamed = without_name(results);
        if unnamed > 0 {
            let text = format!("{unnamed} of {}", term::count(results.total, "test"));
            all.push(("tests.unnamed", text));
        }
        all.extend(results.problems.iter().map(|problem| ("tests.problem", problem.clone())));
        all.extend(results.running.iter().map(|test| ("tests.running", test.clone())));
    }
    writeln!(out, "    <properties>")?;
    for (name, value) in all {
        writeln!(out, "      <property name=\"{name}\" value=\"{}\"/>", escape_xml(&value))?;
    }
    writeln!(out, "    </properties>")?;
    Ok(())
}

/// The named tests of a run, and a case for the rest: a run that failed never appears without a failure.
fn cases(run: &Run) -> Vec<Case> {
    let itself = || Case {
        class: class_of_run(run),
        name: name_of_run(run),
        ms: run.outcome.as_ref().map_or(0, |outcome| outcome.duration_ms),
        result: CaseResult::of_run(run),
    };
    let Some(results) = results_of(run).filter(|results| !results.details.is_empty()) else {
        return vec![itself()];
    };
    let class = results.framework.to_string();
    let mut cases: Vec<Case> = results
        .details
        .iter()
        .map(|test| Case {
            class: class.clone(),
            name: test.name.clone(),
            ms: test.duration_ms.unwrap_or(0),
            result: CaseResult::of_test(test),
        })
        .collect();
    cases.extend(unnamed(results).map(|result| {
        let name = UNNAMED.to_owned();
        Case { class, name, ms: 0, result }
    }));
    if CaseResult::of_run(run).is_failure() && !cases.iter().any(|case| case.result.is_failure()) {
        cases.push(itself());
    }
    cases
}

/// The result of tests that are counted but not named.
fn unnamed(results: &TestResults) -> Option<CaseResult> {
    let named = results.details.len() as u64;
    let failed = results.failed.saturating_sub(results.failing().count() as u64);
    if failed > 0 {
        let message = format!("{} that are not named", term::count(failed, "failed test"));
        let kind = "failed".to_owned();
        return Some(CaseResult::Failed { kind, message, text: String::new() });
    }
    // Of packages, the number of their tests is unknown.
    let all = named >= results.total && results.unit == CountedUnit::Tests;
    (!all).then_some(CaseResult::Passed)
}

fn results_of(run: &Run) -> Option<&TestResults> {
    let effects = run.outcome.as_ref()?.effects.as_ref()?;
    effects.observations()?.test_results.as_ref()
}

fn class_of_run(run: &Run) -> String {
    format!("retake.{}", run.intent.kind().as_str())
}

/// The command, and the cell that a run of a matrix belongs to: all cells may have one command.
fn name_of_run(run: &Run) -> String {
    let command = run.intent.command();
    let axes = CellLabels::axes(&run.intent.request.labels);
    let axes: Vec<String> = axes.map(|(name, value)| format!("{name}={value}")).collect();
    match axes.is_empty() {
        true => command.to_owned(),
        false => format!("{command} [{}]", axes.join(", ")),
    }
}

fn write_case(case: &Case, out: &mut impl Write) -> Result<(), Failure> {
    let Case { class, name, ms, result } = case;
    write!(
        out,
        "    <testcase classname=\"{}\" name=\"{}\" time=\"{}\"",
        escape_xml(class),
        escape_xml(name),
        seconds(*ms)
    )?;
    let (tag, kind, message, text) = match result {
        CaseResult::Passed => {
            writeln!(out, "/>")?;
            return Ok(());
        }
        CaseResult::Skipped { message } => {
            writeln!(out, "><skipped message=\"{}\"/></testcase>", escape_xml(message))?;
            return Ok(());
        }
        CaseResult::Failed { kind, message, text } => ("failure", kind, message, text),
        CaseResult::Error { kind, message, text } => ("error", kind, message, text),
    };
    writeln!(
        out,
        "><{tag} type=\"{}\" message=\"{}\">{}</{tag}></testcase>",
        escape_xml(kind),
        escape_xml(message),
        escape_xml(text)
    )?;
    Ok(())
}

fn tail(store: &Store, id: RunId, stream: Stream) -> Result<String, Failure> {
    let reading = |error| Failure::from(Error::reading(id, error));
    let mut output = store.read_output(id, stream)?;
    let from = output.length().saturating_sub(TAIL);
    output.seek(SeekFrom::Start(from)).map_err(reading)?;
    let mut bytes = Vec::new();
    output.take(TAIL).read_to_end(&mut bytes).map_err(reading)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn junit_times_have_milliseconds() {
        assert_eq!(seconds(61_005), "61.005");
    }
}
