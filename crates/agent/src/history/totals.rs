//! Totals of a loop's iterations, updated as its entries are written.
//!
//! Each entry of a loop is written with the totals up to it, so the totals of the loop are read from
//! its last entry alone. A process that resumes a loop has read all its entries. A loop whose last
//! entry has no totals was written by an earlier release, and all its entries are read.

use retake_types::loop_record::agent::{
    AgentEntry, DeniedTools, Iteration, IterationStatus, Spent,
};
use serde::{Deserialize, Serialize};

use super::HistorySummary;

/// The totals of iterations. Counts of 0 are not written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoopTotals {
    /// All iterations, including open ones.
    #[serde(skip_serializing_if = "is_zero")]
    pub iterations: u32,
    /// Started but not ended: the iteration is running, or its runner died.
    #[serde(skip_serializing_if = "is_zero")]
    pub open: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub completed: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub timed_out: u32,
    pub duration_ms: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub files_modified: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub files_created: u32,
    #[serde(skip_serializing_if = "TestSum::is_zero")]
    pub tests: TestSum,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_tests: Option<LastTests>,
    /// Failures since the last completed iteration.
    #[serde(skip_serializing_if = "is_zero")]
    pub failure_streak: u32,
    /// Denied permissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denials: Option<u64>,
    /// The tools that were denied, as text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub denied_tools: String,
    /// Spent on iterations.
    pub spent: Spent,
    /// Spent on attempts and verifications.
    pub spent_otherwise: Spent,
}

/// Sums over all iterations: a test counts once for each iteration that runs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestSum {
    pub run: u32,
    pub passed: u32,
    pub failed: u32,
}

impl TestSum {
    fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// The test results of the last iteration that reported any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastTests {
    pub iteration: u32,
    pub passed: u64,
    pub failed: u64,
    pub total: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl LoopTotals {
    /// Adds an iteration.
    fn add(&mut self, iteration: &Iteration) {
        let mut summary = self.summary();
        summary.add(iteration);
        self.iterations = summary.total_iterations;
        self.completed = summary.successful_iterations;
        self.failed = summary.failed_iterations;
        self.timed_out = summary.timed_out_iterations;
        self.duration_ms = summary.total_duration_ms;
        self.files_modified = summary.total_files_modified;
        self.files_created = summary.total_files_created;
        self.tests = TestSum {
            run: summary.total_tests_run,
            passed: summary.total_tests_passed,
            failed: summary.total_tests_failed,
        };
        self.open += u32::from(!iteration.status.is_final());
        match iteration.status {
            IterationStatus::Failed | IterationStatus::TimedOut => self.failure_streak += 1,
            IterationStatus::Completed => self.failure_streak = 0,
            _ => {}
        }
        if let Some(tests) = iteration.test_results() {
            self.last_tests = Some(LastTests {
                iteration: iteration.number,
                passed: tests.passed,
                failed: tests.failed,
                total: tests.total,
            });
        }
        self.deny(iteration.facts.denials, iteration.facts.denied_tools.as_ref());
        self.spent.add(iteration.spent());
    }

    /// Adds the totals of an earlier loop of the same workspace.
    #[must_use]
    pub fn after(mut self, earlier: &Self) -> Self {
        // If no iteration completed, the failures continue the earlier streak.
        if self.completed == 0 {
            self.failure_streak += earlier.failure_streak;
        }
        self.iterations += earlier.iterations;
        self.open += earlier.open;
        self.completed += earlier.completed;
        self.failed += earlier.failed;
        self.timed_out += earlier.timed_out;
        self.duration_ms = self.duration_ms.saturating_add(earlier.duration_ms);
        self.files_modified = self.files_modified.saturating_add(earlier.files_modified);
        self.files_created = self.files_created.saturating_add(earlier.files_created);
        self.tests.run = self.tests.run.saturating_add(earlier.tests.run);
        self.tests.passed = self.tests.passed.saturating_add(earlier.tests.passed);
        self.tests.failed = self.tests.failed.saturating_add(earlier.tests.failed);
        self.last_tests = self.last_tests.or(earlier.last_tests);
        self.deny(earlier.denials, Some(&earlier.denied_tools()));
        self.spent.add(earlier.spent);
        self.spent_otherwise.add(earlier.spent_otherwise);
        self
    }

    fn deny(&mut self, denials: Option<u64>, tools: Option<&DeniedTools>) {
        let Some(denials) = denials else { return };
        self.denials = Some(self.denials.unwrap_or(0).saturating_add(denials));
        if let Some(tools) = tools.filter(|tools| !tools.is_empty()) {
            let mut all = self.denied_tools();
            all.add_all(tools);
            self.denied_tools = all.to_string();
        }
    }

    pub fn denied_tools(&self) -> DeniedTools {
        self.denied_tools.parse().unwrap_or_default()
    }

    /// Spent on iterations, attempts and verifications.
    pub fn spent_in_all(&self) -> Spent {
        let mut all = self.spent_otherwise;
        all.add(self.spent);
        all
    }

    pub fn summary(&self) -> HistorySummary {
        HistorySummary {
            total_iterations: self.iterations,
            successful_iterations: self.completed,
            failed_iterations: self.failed,
            timed_out_iterations: self.timed_out,
            total_duration_ms: self.duration_ms,
            total_files_modified: self.files_modified,
            total_files_created: self.files_created,
            total_tests_run: self.tests.run,
            total_tests_passed: self.tests.passed,
            total_tests_failed: self.tests.failed,
        }
    }
}

/// The totals of a loop, updated with each entry. The last entry with an iteration's number is its
/// result and replaces earlier ones, so the totals without the last iteration are kept as well.
#[derive(Clone, Debug, Default)]
pub struct RunningTotals {
    /// Without the last iteration.
    before: LoopTotals,
    /// The number of the last iteration, and whether it has ended; `None` before the first.
    last: Option<(u32, bool)>,
    /// With the last iteration.
    now: LoopTotals,
}

impl RunningTotals {
    pub fn now(&self) -> &LoopTotals {
        &self.now
    }

    pub fn take(&mut self, entry: &AgentEntry) {
        match entry {
            AgentEntry::Iteration { iteration } => {
                if self.last.is_none_or(|(number, _)| number != iteration.number) {
                    self.before = self.now.clone();
                }
                self.last = Some((iteration.number, iteration.status.is_final()));
                self.now = self.before.clone();
                self.now.add(iteration);
            }
            AgentEntry::Attempt { number, spent, .. } => {
                // The retry gets the same number.
                if self.last == Some((*number, false)) {
                    self.now = self.before.clone();
                    self.last = None;
                }
                self.spend(*spent);
            }
            AgentEntry::Verified { spent, .. } | AgentEntry::Unverified { spent, .. } => {
                self.spend(*spent);
            }
            AgentEntry::VerificationStarted { .. }
            | AgentEntry::Verifying { .. }
            | AgentEntry::Checkpoint { .. }
            | AgentEntry::Paused
            | AgentEntry::Resumed
            | AgentEntry::Waiting { .. }
            | AgentEntry::AgentChanged { .. }
            | AgentEntry::HookFailed { .. }
            | AgentEntry::Note { .. } => {}
        }
    }

    fn spend(&mut self, spent: Spent) {
        self.before.spent_otherwise.add(spent);
        self.now.spent_otherwise.add(spent);
    }
}

/// An entry with the totals up to it, as it is written. Readers of the entry ignore the totals.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CountedEntry<'a> {
    #[serde(flatten)]
    pub(crate) entry: &'a AgentEntry,
    pub(crate) so_far: &'a LoopTotals,
}

/// The totals that an entry was written with.
pub(crate) fn written_with(body: &str) -> Option<LoopTotals> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Counted {
        so_far: LoopTotals,
    }
    serde_json::from_str(body).map(|Counted { so_far }| so_far).ok()
}
