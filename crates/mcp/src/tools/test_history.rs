//! `tests`: test results over the recorded runs.

use std::fmt::Write as _;
use std::sync::Arc;

use jiff::Timestamp;
use retake_store::TestHistory;
use retake_types::{TestStatus, text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ClientSession, ToolAnswer, ToolError, limit};

const USUAL: usize = 50;
const MOST: usize = 500;
/// How many results of a test are drawn, the newest ones.
const DRAWN: usize = 20;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TestsArguments {
    /// Only tests with this name, or whose name matches this pattern (*, ?, [a-z])
    #[serde(default)]
    name: Option<String>,
    /// Only tests that fail now
    #[serde(default)]
    failing: bool,
    /// Only tests that went from passing to failing and back
    #[serde(default)]
    flaky: bool,
    /// Maximum number of tests. Default: 50; at most 500
    #[serde(default)]
    limit: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct TestHistories {
    tests: Vec<TestHistoryView>,
    /// Number of further matching tests
    omitted: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TestHistoryView {
    name: String,
    /// passed, failed, error or skipped
    last: String,
    runs: usize,
    failed: usize,
    /// How often it went from passing to failing or back
    flips: u64,
    /// The run since which it fails
    #[serde(skip_serializing_if = "Option::is_none")]
    failing_since: Option<String>,
    /// The newest results, oldest first: + passed, x failed, E error, - skipped
    history: String,
}

pub(super) async fn tests(
    session: &Arc<ClientSession>,
    asked: TestsArguments,
) -> Result<ToolAnswer, ToolError> {
    let limit = limit(asked.limit, USUAL, MOST)?;
    let mut found =
        session.read(move |store| Ok((store.tests(asked.name.as_deref())?, asked))).await?;
    let asked = found.1;
    let unknown_name = asked.name.filter(|_| found.0.is_empty());
    found.0.retain(|test| !asked.failing || test.failing_since().is_some());
    found.0.retain(|test| !asked.flaky || test.flips() > 1);
    let omitted = found.0.len().saturating_sub(limit);
    let mut text = String::new();
    let mut tests = Vec::new();
    for test in found.0.iter().take(limit) {
        let history = history(test);
        _ = write!(
            text,
            "{}  {}: {} of {} failed",
            history.last,
            history.name,
            history.failed,
            text::count(history.runs as u64, "run")
        );
        if let Some(since) = test.failing_since() {
            let ago = text::ago(since.at, Timestamp::now());
            _ = write!(text, ", failing since run {} ({ago})", since.run.short());
        }
        if history.flips > 1 {
            _ = write!(text, ", flaky ({})", text::count(history.flips, "flip"));
        }
        _ = writeln!(text, "  {}", history.history);
        tests.push(history);
    }
    if tests.is_empty() {
        text.push_str(&match unknown_name.filter(|name| !name.contains(['*', '?', '['])) {
            Some(name) => format!(
                "no recorded test is called {name}; the name *{name}* also finds parts of names\n"
            ),
            None => "no recorded test matches\n".to_owned(),
        });
    }
    if omitted > 0 {
        _ = writeln!(text, "and {omitted} more; a larger limit or a name shows them");
    }
    Ok(ToolAnswer::new(&TestHistories { tests, omitted }, text))
}

fn history(test: &TestHistory) -> TestHistoryView {
    let failed = |status: TestStatus| status.passed() == Some(false);
    let word = |status| match status {
        TestStatus::Passed => ("passed", '+'),
        TestStatus::Failed => ("failed", 'x'),
        TestStatus::Error => ("error", 'E'),
        TestStatus::Skipped => ("skipped", '-'),
    };
    let drawn = &test.results[test.results.len().saturating_sub(DRAWN)..];
    TestHistoryView {
        name: test.name.clone(),
        last: test.results.last().map_or("skipped", |result| word(result.status).0).to_owned(),
        runs: test.results.len(),
        failed: test.results.iter().filter(|result| failed(result.status)).count(),
        flips: test.flips(),
        failing_since: test.failing_since().map(|result| result.run.to_string()),
        history: drawn.iter().map(|result| word(result.status).1).collect(),
    }
}
