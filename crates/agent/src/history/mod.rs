//! Statistics of the iterations of a workspace. All are derived from the entries of its loops, so a
//! restart can neither lose nor double anything.

mod chart;
mod totals;

use retake_types::loop_record::agent::{Iteration, IterationStatus};
use serde::{Deserialize, Serialize};

pub use chart::chart;
pub(crate) use totals::{CountedEntry, written_with};
pub use totals::{LastTests, LoopTotals, RunningTotals, TestSum};

/// Summary statistics of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistorySummary {
    pub total_iterations: u32,
    pub successful_iterations: u32,
    pub failed_iterations: u32,
    pub timed_out_iterations: u32,
    /// Of all iterations, including failed ones.
    pub total_duration_ms: u64,
    pub total_files_modified: u32,
    pub total_files_created: u32,
    pub total_tests_run: u32,
    pub total_tests_passed: u32,
    pub total_tests_failed: u32,
}

/// The iterations of a workspace, oldest first.
#[derive(Clone, Copy, Debug)]
pub struct History<'a>(&'a [Iteration]);

impl<'a> History<'a> {
    pub fn new(iterations: &'a [Iteration]) -> Self {
        Self(iterations)
    }

    pub fn summary(&self) -> HistorySummary {
        let mut summary = HistorySummary::default();
        for iteration in self.0 {
            summary.add(iteration);
        }
        summary
    }

    /// The last `n`, newest first.
    pub fn last(&self, n: usize) -> impl Iterator<Item = &'a Iteration> {
        self.0.iter().rev().take(n)
    }

    pub fn get(&self, number: u32) -> Option<&'a Iteration> {
        self.0.iter().rev().find(|iteration| iteration.number == number)
    }

    pub fn filter(
        &self,
        predicate: impl Fn(&Iteration) -> bool,
    ) -> impl Iterator<Item = &'a Iteration> {
        self.0.iter().filter(move |iteration| predicate(iteration))
    }

    /// How many iterations failed since the last completed one. Skipped and interrupted ones
    /// neither count nor break the streak.
    pub fn failure_streak(&self) -> u32 {
        let mut streak = 0;
        for iteration in self.0.iter().rev() {
            match iteration.status {
                IterationStatus::Failed | IterationStatus::TimedOut => streak += 1,
                IterationStatus::Completed => break,
                _ => {}
            }
        }
        streak
    }

    /// The number that the next iteration gets.
    pub fn next_number(&self) -> u32 {
        self.0.iter().map(|iteration| iteration.number).max().unwrap_or(0) + 1
    }
}

impl HistorySummary {
    /// Adds one more iteration, for histories read in pages.
    pub fn add(&mut self, iteration: &Iteration) {
        let more = |total: &mut u32, by: u64| {
            *total = total.saturating_add(u32::try_from(by).unwrap_or(u32::MAX));
        };
        more(&mut self.total_iterations, 1);
        match iteration.status {
            IterationStatus::Completed => more(&mut self.successful_iterations, 1),
            IterationStatus::Failed => more(&mut self.failed_iterations, 1),
            IterationStatus::TimedOut => more(&mut self.timed_out_iterations, 1),
            _ => {}
        }
        self.total_duration_ms =
            self.total_duration_ms.saturating_add(iteration.duration_ms().unwrap_or(0));
        let Some(result) = &iteration.result else { return };
        more(&mut self.total_files_modified, result.files_modified.len() as u64);
        more(&mut self.total_files_created, result.files_created.len() as u64);
        if let Some(tests) = &result.test_results {
            more(&mut self.total_tests_run, tests.total);
            more(&mut self.total_tests_passed, tests.passed);
            more(&mut self.total_tests_failed, tests.failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use retake_types::loop_record::agent::IterationResult;

    fn iteration(number: u32, status: IterationStatus) -> Iteration {
        let mut iteration = Iteration::new(number, String::new(), Timestamp::UNIX_EPOCH);
        let result = IterationResult {
            files_modified: vec!["a".into(), "b".into()],
            files_created: vec!["c".into()],
            duration_ms: 100,
            ..IterationResult::default()
        };
        let result = status.is_final().then_some(result);
        iteration.end(status, Timestamp::UNIX_EPOCH, result);
        iteration
    }

    #[test]
    fn everything_is_derived() {
        use IterationStatus::*;
        let statuses = [Completed, Failed, TimedOut, Skipped, Interrupted, Failed];
        let all: Vec<_> =
            statuses.iter().enumerate().map(|(i, s)| iteration(i as u32 + 1, *s)).collect();
        let history = History::new(&all);
        let summary = history.summary();
        assert_eq!(
            (
                summary.total_iterations,
                summary.successful_iterations,
                summary.failed_iterations,
                summary.timed_out_iterations
            ),
            (6, 1, 2, 1)
        );
        assert_eq!((summary.total_duration_ms, summary.total_files_modified), (600, 12));
        assert_eq!(history.failure_streak(), 3);
        assert_eq!(history.last(2).map(|i| i.number).collect::<Vec<_>>(), [6, 5]);
        assert_eq!(history.get(3).unwrap().status, TimedOut);
        assert!(history.get(9).is_none());
        assert_eq!(history.filter(|i| i.status == Failed).count(), 2);
        assert_eq!(history.next_number(), 7);
        assert_eq!(History::new(&[]).next_number(), 1);
        assert_eq!(History::new(&all[..1]).failure_streak(), 0);
    }
}
