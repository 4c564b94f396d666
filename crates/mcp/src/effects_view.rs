//! The known effects of a run: its tests and the files it changed.

use std::fmt::Write as _;

use retake_types::{Observations, TestStatus, text};
use schemars::JsonSchema;
use serde::Serialize;

use super::run_view::{LISTED, cut};

/// Maximum length of a test's message.
const MESSAGE: usize = 500;

/// Results of tests that the run printed or wrote reports of.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct TestsView {
    pub(super) framework: String,
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
    /// More tests would have run
    pub(super) partial: bool,
    pub(super) failures: Vec<FailureView>,
    /// What went wrong outside of any test
    pub(super) problems: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct FailureView {
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
}

/// Files that the run changed, relative to the tracked directory.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChangesView {
    pub(super) created: Vec<String>,
    pub(super) modified: Vec<String>,
    pub(super) deleted: Vec<String>,
    /// As "from -> to"
    pub(super) renamed: Vec<String>,
    /// How many more there are than are listed
    pub(super) omitted: usize,
}

impl TestsView {
    pub(super) fn write(&self, text: &mut String) {
        let partial = if self.partial { ", cut short" } else { "" };
        _ = writeln!(
            text,
            "tests ({}): {} passed, {} failed, {} skipped{partial}",
            self.framework, self.passed, self.failed, self.skipped
        );
        for problem in &self.problems {
            _ = writeln!(text, "  {problem}");
        }
        for failure in &self.failures {
            _ = writeln!(text, "  FAILED {}", failure.name);
            for line in failure.message.iter().flat_map(|message| message.lines()) {
                _ = writeln!(text, "    {line}");
            }
        }
        let rest = self.failed.saturating_sub(self.failures.len() as u64);
        if rest > 0 && !self.failures.is_empty() {
            _ = writeln!(text, "  and {rest} more");
        }
    }
}

impl ChangesView {
    pub(super) fn write(&self, text: &mut String) {
        let lists = [
            ("created", &self.created),
            ("modified", &self.modified),
            ("deleted", &self.deleted),
            ("renamed", &self.renamed),
        ];
        if lists.iter().all(|(_, files)| files.is_empty()) {
            text.push_str("no files changed\n");
        }
        for (did, files) in lists.iter().filter(|(_, files)| !files.is_empty()) {
            _ = writeln!(text, "{did}: {}", files.join(", "));
        }
        if self.omitted > 0 {
            _ = writeln!(text, "and {}", text::count(self.omitted as u64, "more file"));
        }
    }
}

pub(super) fn tests(effects: &Observations) -> Option<TestsView> {
    let results = effects.test_results.as_ref()?;
    let failed = results
        .details
        .iter()
        .filter(|d| matches!(d.status, TestStatus::Failed | TestStatus::Error));
    Some(TestsView {
        framework: results.framework.as_str().to_owned(),
        passed: results.passed,
        failed: results.failed,
        skipped: results.skipped,
        partial: results.partial,
        failures: failed
            .take(LISTED)
            .map(|test| FailureView {
                name: test.name.clone(),
                message: test.error.as_deref().map(|text| cut(text, MESSAGE)),
            })
            .collect(),
        problems: results.problems.iter().take(LISTED).map(|text| cut(text, MESSAGE)).collect(),
    })
}

pub(super) fn changes(effects: &Observations) -> ChangesView {
    let mut omitted = 0;
    let mut some = |files: Vec<String>| {
        omitted += files.len().saturating_sub(LISTED);
        files.into_iter().take(LISTED).collect()
    };
    let renamed = effects.files_renamed.iter().map(|pair| format!("{} -> {}", pair.from, pair.to));
    ChangesView {
        created: some(effects.files_created.clone()),
        modified: some(effects.files_modified.clone()),
        deleted: some(effects.files_deleted.clone()),
        renamed: some(renamed.collect()),
        omitted,
    }
}
