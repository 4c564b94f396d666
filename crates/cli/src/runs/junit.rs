//! Runs as a JUnit report: every run is a test case, and one that failed brings its last lines.

use std::io::{Read, Seek, SeekFrom, Write};

use retake_runner::html::escape_xml;
use retake_runner::run_text;
use retake_store::{Error, Store};
use retake_types::{OutcomeKind, Run, RunId, State};

use crate::Failure;

/// How much of a failed run's output the report carries.
const TAIL: u64 = 64 * 1024;

#[derive(Default)]
struct Totals {
    tests: u64,
    failures: u64,
    errors: u64,
    skipped: u64,
    ms: u64,
}

/// What a report calls the ways a run can end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CaseResult {
    Passed,
    Failed,
    /// The run itself could not be done.
    Error,
    /// Not over.
    Skipped,
}

impl CaseResult {
    fn of(run: &Run) -> Self {
        match run.outcome.as_ref().map(|outcome| outcome.kind) {
            _ if run.success() => Self::Passed,
            Some(OutcomeKind::NotStarted | OutcomeKind::Interrupted) => Self::Error,
            Some(_) => Self::Failed,
            None if run.state == State::Interrupted => Self::Error,
            None => Self::Skipped,
        }
    }
}

/// Writes the report. The numbers come first, so the runs are read twice.
pub(super) fn report(
    store: Option<&Store>,
    ids: &[RunId],
    out: &mut impl Write,
) -> Result<(), Failure> {
    let mut totals = Totals::default();
    each(store, ids, |_, run| {
        totals.tests += 1;
        totals.ms += run.outcome.as_ref().map_or(0, |outcome| outcome.duration_ms);
        match CaseResult::of(run) {
            CaseResult::Passed => {}
            CaseResult::Failed => totals.failures += 1,
            CaseResult::Error => totals.errors += 1,
            CaseResult::Skipped => totals.skipped += 1,
        }
        Ok(())
    })?;
    let Totals { tests, failures, errors, skipped, ms } = totals;
    let counts = format!(
        "tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\" time=\"{}\"",
        seconds(ms)
    );
    writeln!(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
    writeln!(out, "<testsuites name=\"retake\" {counts}>")?;
    writeln!(out, "  <testsuite name=\"retake\" {counts}>")?;
    each(store, ids, |store, run| case(store, run, out))?;
    writeln!(out, "  </testsuite>\n</testsuites>")?;
    Ok(())
}

fn each(
    store: Option<&Store>,
    ids: &[RunId],
    mut with: impl FnMut(&Store, &Run) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Some(store) = store else { return Ok(()) };
    for id in ids {
        match store.get(*id) {
            // Erased since it was listed.
            Err(Error::NotFound { .. }) => {}
            run => with(store, &run?)?,
        }
    }
    Ok(())
}

fn case(store: &Store, run: &Run, out: &mut impl Write) -> Result<(), Failure> {
    let ms = run.outcome.as_ref().map_or(0, |outcome| outcome.duration_ms);
    write!(
        out,
        "    <testcase classname=\"retake.{}\" name=\"{}\" time=\"{}\" timestamp=\"{}\">",
        run.intent.kind().as_str(),
        escape_xml(run.intent.command()),
        seconds(ms),
        run.intent.start_time
    )?;
    writeln!(
        out,
        "\n      <properties><property name=\"id\" value=\"{}\"/></properties>",
        run.intent.id()
    )?;
    let outcome = escape_xml(&run_text::outcome(run).0);
    let error = run.outcome.as_ref().and_then(|outcome| outcome.error.as_ref());
    let message = error.map_or_else(|| outcome.clone(), |error| escape_xml(&error.message));
    match CaseResult::of(run) {
        CaseResult::Passed => {}
        CaseResult::Skipped => writeln!(out, "      <skipped message=\"{message}\"/>")?,
        CaseResult::Failed => {
            writeln!(out, "      <failure type=\"{outcome}\" message=\"{message}\"/>")?
        }
        CaseResult::Error => {
            writeln!(out, "      <error type=\"{outcome}\" message=\"{message}\"/>")?
        }
    }
    if matches!(CaseResult::of(run), CaseResult::Failed | CaseResult::Error) {
        let output = tail(store, run.intent.id())?;
        writeln!(out, "      <system-out>{}</system-out>", escape_xml(&output))?;
    }
    writeln!(out, "    </testcase>")?;
    Ok(())
}

fn tail(store: &Store, id: RunId) -> Result<String, Failure> {
    let reading = |error| Failure::from(Error::reading(id, error));
    let mut merged = store.read_interleaved(id)?;
    let from = merged.length().saturating_sub(TAIL);
    merged.seek(SeekFrom::Start(from)).map_err(reading)?;
    let mut bytes = Vec::new();
    merged.take(TAIL).read_to_end(&mut bytes).map_err(reading)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_to_the_millisecond() {
        assert_eq!(seconds(61_005), "61.005");
    }
}
