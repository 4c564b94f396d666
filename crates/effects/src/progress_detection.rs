//! Decides whether a run made progress compared with earlier runs.
//!
//! Considers changed files and tests with a changed result: a suite that passed before and still
//! passes is not progress. Ignored files are not tracked, so build output is not progress either.

use std::collections::{HashMap, HashSet};

use retake_types::{CountedUnit, ProgressReason, RunProgress, TestResults, TestStatus};

use crate::files::Changes;

/// How many results are searched for flips.
const WINDOW: usize = 20;
/// Breaking once and being repaired once makes two flips; a third is not a coincidence.
const FLIPS: usize = 3;
/// The rate of flips per pair of consecutive results that must be exceeded: one in five.
const ONE_IN: usize = 5;

/// Test results of earlier iterations by name, newest last.
#[derive(Debug, Clone, Default)]
pub struct PastResults {
    statuses: HashMap<String, Vec<TestStatus>>,
    /// The previous iteration, for runners that report no names.
    last: Option<Totals>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Totals {
    passed: u64,
    failed: u64,
    skipped: u64,
    unit: CountedUnit,
}

impl Totals {
    fn of(results: &TestResults) -> Self {
        let TestResults { passed, failed, skipped, unit, .. } = *results;
        Self { passed, failed, skipped, unit }
    }
}

impl PastResults {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one iteration with tests.
    pub fn push(&mut self, results: &TestResults) {
        let verdicts: Vec<(String, bool)> =
            self.verdicts(results).into_iter().map(|(name, now)| (name.to_owned(), now)).collect();
        for (name, passes) in verdicts {
            let statuses = self.statuses.entry(name).or_default();
            if statuses.len() == WINDOW {
                statuses.remove(0);
            }
            statuses.push(if passes { TestStatus::Passed } else { TestStatus::Failed });
        }
        self.last = Some(Totals::of(results));
    }

    /// The verdict of each test that ran, including tests that a complete run did not name because
    /// they passed. A run of fewer tests may have selected others.
    fn verdicts<'a>(&'a self, results: &'a TestResults) -> HashMap<&'a str, bool> {
        let mut all = verdicts(results);
        let as_many = self.last.is_none_or(|last| results.total >= last.passed + last.skipped);
        if results.unnamed_did_not_fail() && as_many {
            let skipped = results.details.iter().filter(|test| test.status.passed().is_none());
            let skipped: HashSet<&str> = skipped.map(|test| test.name.as_str()).collect();
            for name in self.statuses.keys().filter(|name| !skipped.contains(name.as_str())) {
                all.entry(name).or_insert(true);
            }
        }
        all
    }

    /// The last results of one test, newest last; at most twenty.
    pub fn of(&self, name: &str) -> &[TestStatus] {
        self.statuses.get(name).map_or(&[], Vec::as_slice)
    }
}

/// How often a test changed between passing and failing; skips do not count.
pub fn flips(statuses: &[TestStatus]) -> usize {
    let ran: Vec<bool> = statuses.iter().filter_map(|status| status.passed()).collect();
    ran.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

/// Whether a test is flaky: three or more flips in its last twenty results, and more than one flip
/// per five results.
pub fn is_flaky(statuses: &[TestStatus]) -> bool {
    let window = &statuses[statuses.len().saturating_sub(WINDOW)..];
    let ran = window.iter().filter(|status| status.passed().is_some()).count();
    let flips = flips(window);
    flips >= FLIPS && flips * ONE_IN > ran - 1
}

/// Compares a run with earlier ones. `None` means unknown: files were not tracked, or no tests ran.
pub fn detect(
    changes: Option<&Changes>,
    results: Option<&TestResults>,
    history: &PastResults,
) -> RunProgress {
    let mut reasons = Vec::new();
    if changes.is_some_and(|changes| !changes.is_empty()) {
        reasons.push(ProgressReason::FilesChanged);
    }
    if let Some(results) = results {
        reasons.extend(tests(results, history));
    }
    reasons.sort_unstable();
    reasons.dedup();
    let detected = reasons.iter().any(|reason| {
        matches!(reason, ProgressReason::FilesChanged | ProgressReason::TestsNewlyPassing)
    });
    if reasons.is_empty() {
        reasons.push(ProgressReason::None);
    }
    RunProgress { detected, reasons }
}

/// The verdict of each test that ran. A name may occur twice, from two binaries; it passes if all
/// of them pass.
fn verdicts(results: &TestResults) -> HashMap<&str, bool> {
    let mut all: HashMap<&str, bool> = HashMap::new();
    for detail in &results.details {
        if let Some(passes) = detail.status.passed() {
            all.entry(&detail.name).and_modify(|all| *all &= passes).or_insert(passes);
        }
    }
    all
}

fn tests(results: &TestResults, history: &PastResults) -> Vec<ProgressReason> {
    let mut reasons = Vec::new();
    let mut compared = false;
    for (name, now) in history.verdicts(results) {
        let earlier = history.of(name);
        let Some(before) = earlier.last().and_then(|status| status.passed()) else { continue };
        compared = true;
        if before == now {
            continue;
        }
        let status = if now { TestStatus::Passed } else { TestStatus::Failed };
        let with_now: Vec<_> = earlier.iter().copied().chain([status]).collect();
        reasons.push(match now {
            _ if is_flaky(&with_now) => ProgressReason::TestsFlaky,
            true => ProgressReason::TestsNewlyPassing,
            false => ProgressReason::TestsNewlyFailing,
        });
    }
    if !compared
        && !results.partial
        && let Some(last) = history.last
    {
        reasons.extend(totals(last, Totals::of(results), results.details.is_empty()));
    }
    reasons
}

/// For runners that report no test names only the counts of similar runs can be compared: with an
/// equal total, a changed result shows.
fn totals(last: Totals, now: Totals, nameless: bool) -> Option<ProgressReason> {
    let ran = |totals: Totals| (totals.unit, totals.passed + totals.failed, totals.skipped);
    if !nameless || ran(last) != ran(now) {
        return None;
    }
    match now.failed.cmp(&last.failed) {
        std::cmp::Ordering::Less => Some(ProgressReason::TestsNewlyPassing),
        std::cmp::Ordering::Greater => Some(ProgressReason::TestsNewlyFailing),
        std::cmp::Ordering::Equal => None,
    }
}

#[cfg(test)]
mod cases {
    use super::*;
    use TestStatus::{Error, Failed, Passed, Skipped};
    use retake_types::{Framework, TestDetail};

    fn results(tests: &[(&str, TestStatus)]) -> TestResults {
        let mut results = TestResults::new(Framework::Pytest);
        for (name, status) in tests {
            let (name, status) = ((*name).to_owned(), *status);
            results.details.push(TestDetail { name, status, duration_ms: None, error: None });
            match status {
                Passed => results.passed += 1,
                Failed | Error => results.failed += 1,
                Skipped => results.skipped += 1,
            }
            results.total += 1;
        }
        results
    }

    fn history(iterations: &[&[(&str, TestStatus)]]) -> PastResults {
        let mut history = PastResults::new();
        iterations.iter().for_each(|tests| history.push(&results(tests)));
        history
    }

    fn judged(tests: &[(&str, TestStatus)], history: &PastResults) -> (bool, Vec<ProgressReason>) {
        let RunProgress { detected, reasons } = detect(None, Some(&results(tests)), history);
        (detected, reasons)
    }

    #[test]
    fn an_unchanged_green_suite_is_no_progress() {
        let green = [("a", Passed), ("b", Passed)];
        assert_eq!(judged(&green, &history(&[&green])), (false, vec![ProgressReason::None]));
        assert_eq!(
            judged(&green, &PastResults::new()),
            (false, vec![ProgressReason::None]),
            "the first time"
        );
        assert_eq!(detect(None, None, &PastResults::new()).reasons, [ProgressReason::None]);
    }

    #[test]
    fn files_are_progress_unless_they_only_could_not_be_read() {
        let unread = Changes { unreadable: vec!["a".into()], ..Changes::default() };
        assert!(!detect(Some(&unread), None, &PastResults::new()).detected);
        let changed = Changes { deleted: vec!["a".into()], ..Changes::default() };
        let progress = detect(Some(&changed), None, &PastResults::new());
        assert_eq!(
            (progress.detected, progress.reasons),
            (true, vec![ProgressReason::FilesChanged])
        );
    }

    #[test]
    fn tests_are_compared_with_when_they_last_ran() {
        let before = history(&[&[("a", Failed), ("b", Passed)], &[("a", Skipped)]]);
        let (passing, failing) =
            (ProgressReason::TestsNewlyPassing, ProgressReason::TestsNewlyFailing);
        assert_eq!(judged(&[("a", Passed)], &before), (true, vec![passing]));
        assert_eq!(judged(&[("b", Error)], &before), (false, vec![failing]));
        assert_eq!(
            judged(&[("a", Passed), ("b", Failed)], &before),
            (true, vec![passing, failing])
        );
        assert_eq!(judged(&[("a", Error)], &before), (false, vec![ProgressReason::None]));
        assert_eq!(judged(&[("new", Passed)], &before), (false, vec![ProgressReason::None]));
        assert_eq!(judged(&[("a", Skipped)], &before), (false, vec![ProgressReason::None]));
        assert_eq!(
            judged(&[("a", Passed), ("a", Failed)], &before),
            (false, vec![ProgressReason::None])
        );
    }

    #[test]
    fn a_test_that_keeps_flipping_is_flaky_and_nothing_else() {
        let before = history(&[&[("a", Passed)], &[("a", Failed)], &[("a", Passed)]]);
        assert_eq!(judged(&[("a", Failed)], &before), (false, vec![ProgressReason::TestsFlaky]));
        let twins = history(&[&[("a", Passed), ("a", Failed)], &[("a", Passed), ("a", Failed)]]);
        assert_eq!(
            judged(&[("a", Passed)], &twins),
            (true, vec![ProgressReason::TestsNewlyPassing])
        );
        let once = history(&[&[("a", Passed)], &[("a", Failed)]]);
        assert_eq!(
            judged(&[("a", Passed)], &once),
            (true, vec![ProgressReason::TestsNewlyPassing])
        );
        assert!(is_flaky(&[Passed, Skipped, Failed, Passed, Error]));
        assert!(!is_flaky(&[Passed, Failed, Passed]));
        let mut rare = vec![Passed; 20];
        (rare[3], rare[10]) = (Failed, Failed);
        assert!(is_flaky(&rare), "four flips in nineteen steps");
        rare[3] = Passed;
        assert!(!is_flaky(&rare));
        let mut long_ago = vec![Passed, Failed, Passed, Failed];
        long_ago.extend([Passed; 20]);
        assert!(!is_flaky(&long_ago));
        assert_eq!((is_flaky(&[]), flips(&[Skipped])), (false, 0));
    }

    #[test]
    fn a_complete_run_speaks_for_tests_it_does_not_name() {
        let run = |passed, failed: &[&str]| {
            let tests: Vec<_> = failed.iter().map(|name| (*name, Failed)).collect();
            let mut results = results(&tests);
            (results.passed, results.total) = (passed, passed + failed.len() as u64);
            results
        };
        let mut history = PastResults::new();
        history.push(&run(2, &["a"]));
        let judged = |results: &TestResults, history: &PastResults| {
            detect(None, Some(results), history).reasons
        };
        assert_eq!(judged(&run(3, &[]), &history), [ProgressReason::TestsNewlyPassing]);
        assert_eq!(judged(&run(1, &[]), &history), [ProgressReason::None], "a selection");
        let cut = TestResults { partial: true, ..run(3, &[]) };
        assert_eq!(judged(&cut, &history), [ProgressReason::None]);
        history.push(&run(3, &[]));
        assert_eq!(judged(&run(3, &[]), &history), [ProgressReason::None]);
        assert_eq!(judged(&run(2, &["a"]), &history), [ProgressReason::TestsNewlyFailing]);
        history.push(&run(2, &["a"]));
        assert_eq!(judged(&run(3, &[]), &history), [ProgressReason::TestsFlaky]);
    }

    #[test]
    fn numbers_are_compared_where_there_are_no_names() {
        let numbers = |passed, failed, skipped| {
            let mut results = TestResults::new(Framework::Mocha);
            (results.passed, results.failed, results.skipped) = (passed, failed, skipped);
            results.total = passed + failed + skipped;
            results
        };
        let mut history = PastResults::new();
        history.push(&numbers(8, 2, 1));
        let judged = |results| detect(None, Some(&results), &history).reasons;
        assert_eq!(judged(numbers(9, 1, 1)), [ProgressReason::TestsNewlyPassing]);
        assert_eq!(judged(numbers(7, 3, 1)), [ProgressReason::TestsNewlyFailing]);
        assert_eq!(judged(numbers(8, 2, 1)), [ProgressReason::None]);
        assert_eq!(judged(numbers(4, 0, 0)), [ProgressReason::None], "another selection of tests");
    }

    #[test]
    fn reasons_are_snake_case() {
        let progress =
            RunProgress { detected: true, reasons: vec![ProgressReason::TestsNewlyPassing] };
        let text = serde_json::to_string(&progress).unwrap();
        assert_eq!(text, r#"{"detected":true,"reasons":["tests_newly_passing"]}"#);
        assert_eq!(serde_json::from_str::<RunProgress>(&text).unwrap(), progress);
    }
}
