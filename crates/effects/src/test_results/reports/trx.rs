//! TRX, the report of VSTest and `dotnet test`.

use super::xml::Event;
use crate::test_results::framework_results::{Details, FrameworkResults, TestCounts, add_problem};
use crate::test_results::limits::MAX_ERROR;
use crate::test_results::token_parsing::{number, thousandths};
use retake_types::{Confidence, Framework, ResultsSource, TestStatus};

#[derive(Default)]
pub(super) struct Trx {
    counts: TestCounts,
    details: Details,
    problems: Vec<String>,
    result: Option<(String, TestStatus, Option<u64>)>,
    in_error: bool,
    in_message: bool,
    message: String,
}

impl Trx {
    pub(super) fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Open { name, attributes } => {
                let get = |key: &str| {
                    attributes.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
                };
                match *name {
                    "UnitTestResult" => {
                        let status = status(get("outcome").unwrap_or_default());
                        let time = get("duration").and_then(clock);
                        let name = get("testName").unwrap_or_default().to_owned();
                        self.result = Some((name, status, time));
                        self.message.clear();
                    }
                    "ErrorInfo" => self.in_error = true,
                    "Message" => self.in_message = self.in_error,
                    "RunInfo" if get("outcome") == Some("Error") => {
                        add_problem(&mut self.problems, "the test run reports an error");
                    }
                    _ => {}
                }
            }
            Event::Close { name } => match *name {
                "UnitTestResult" => self.close(),
                "ErrorInfo" => self.in_error = false,
                "Message" => self.in_message = false,
                _ => {}
            },
            Event::Text(text) if self.in_message => {
                let room = (2 * MAX_ERROR).saturating_sub(self.message.len());
                self.message.extend(text.chars().take(room));
            }
            Event::Text(_) | Event::Comment(_) => {}
        }
    }

    fn close(&mut self) {
        let Some((name, status, time)) = self.result.take() else { return };
        self.counts.count(status);
        self.details.push(name.as_bytes(), status, time);
        if status.is_failure() {
            self.details.explain(name.as_bytes(), self.message.as_bytes());
        }
    }

    pub(super) fn finish(self) -> FrameworkResults {
        FrameworkResults {
            source: ResultsSource::Report,
            details: self.details,
            problems: self.problems,
            ..FrameworkResults::new(Framework::Dotnet, Confidence::High, self.counts)
        }
    }
}

fn status(outcome: &str) -> TestStatus {
    match outcome {
        "Passed" | "PassedButRunAborted" | "Warning" | "Completed" => TestStatus::Passed,
        "NotExecuted" | "NotRunnable" | "Inconclusive" | "Pending" | "InProgress" => {
            TestStatus::Skipped
        }
        "Failed" => TestStatus::Failed,
        _ => TestStatus::Error,
    }
}

/// `00:00:01.2345678` in milliseconds.
fn clock(text: &str) -> Option<u64> {
    let (hours, rest) = number(text.as_bytes())?;
    let (minutes, rest) = number(rest.strip_prefix(b":")?)?;
    let (seconds, rest) = thousandths(rest.strip_prefix(b":")?)?;
    let whole = hours.checked_mul(3_600_000)?.checked_add(minutes.checked_mul(60_000)?)?;
    rest.is_empty().then_some(whole.checked_add(seconds)?.max(1))
}
