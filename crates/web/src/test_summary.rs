//! All named tests of all runs, with what a list shows of each: recent results, how often they change,
//! since when it fails, and how long it takes.

use std::cmp::Reverse;

use jiff::Timestamp;
use retake_store::{TestHistory, TestResult};
use retake_types::{RunId, TestStatus};
use serde::Serialize;

use crate::count_cache::CountCache;
use crate::error::RequestError;
use crate::params::Params;
use crate::store_pool::Store;

/// How many results of each test a list draws, the newest ones.
pub(crate) const DRAWN: usize = 24;
/// How many decided results make the flaky score, the newest ones.
const SCORED: usize = 50;
/// How many durations are compared with those before them, the newest ones.
const RECENT: usize = 10;
const ENOUGH: usize = 5;

/// Durations are whole milliseconds: a smaller change is noise, whatever its percentage.
const LEAST_CHANGE_MS: u64 = 5;

/// A run with a certain result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunPlace {
    pub(crate) run_id: RunId,
    pub(crate) at: Timestamp,
}

impl RunPlace {
    fn of(result: &TestResult) -> Self {
        Self { run_id: result.run, at: result.at }
    }
}

/// One result as a list draws it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DrawnResult {
    pub(crate) run_id: RunId,
    pub(crate) status: TestStatus,
    /// The run is complete and names all tests that failed, but not this one.
    pub(crate) inferred: bool,
}

/// A test over all runs.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TestSummary {
    pub(crate) name: String,
    pub(crate) status: TestStatus,
    pub(crate) last: RunPlace,
    pub(crate) runs: usize,
    pub(crate) failed: usize,
    pub(crate) flips: u64,
    /// How many percent of the recent results differ from the previous one.
    pub(crate) flaky_percent: u8,
    pub(crate) first_failure: Option<RunPlace>,
    pub(crate) failing_since: Option<RunPlace>,
    /// The last run in which it passed.
    pub(crate) last_passed: Option<RunPlace>,
    pub(crate) p50_ms: Option<u64>,
    /// How much longer it takes recently, in percent; `None` with too few runs.
    pub(crate) trend_percent: Option<i64>,
    /// The newest results, oldest first.
    pub(crate) results: Vec<DrawnResult>,
}

impl TestSummary {
    /// `None` for a history without results.
    pub(crate) fn of(history: &TestHistory) -> Option<Self> {
        let last = history.results.last()?;
        let failing_since = history.failing_since();
        let passed = |result: &&TestResult| result.status.passed() == Some(true);
        let drawn = &history.results[history.results.len().saturating_sub(DRAWN)..];
        let drawn = drawn.iter().map(|result| DrawnResult {
            run_id: result.run,
            status: result.status,
            inferred: result.inferred,
        });
        let durations: Vec<u64> = history.results.iter().filter_map(|r| r.duration_ms).collect();
        // A test that is skipped now was decided earlier.
        let decided = history.results.iter().rev().find(|r| r.status.passed().is_some());
        Some(Self {
            name: history.name.clone(),
            status: decided.unwrap_or(last).status,
            last: RunPlace::of(last),
            runs: history.results.len(),
            failed: history.failures(),
            flips: history.flips(),
            flaky_percent: flaky_percent(history),
            first_failure: history.first_failure().map(RunPlace::of),
            failing_since: failing_since.map(RunPlace::of),
            last_passed: history.results.iter().rev().find(passed).map(RunPlace::of),
            p50_ms: median(&durations),
            trend_percent: trend(&durations),
            results: drawn.collect(),
        })
    }

    pub(crate) fn fails(&self) -> bool {
        self.failing_since.is_some()
    }

    /// Passed, failed and passed again, or the other way round.
    pub(crate) fn is_flaky(&self) -> bool {
        self.flips > 1 && self.flaky_percent > 0
    }
}

/// How many percent of the newest decided results differ from the previous one.
fn flaky_percent(history: &TestHistory) -> u8 {
    let decided: Vec<bool> =
        history.results.iter().rev().filter_map(|r| r.status.passed()).take(SCORED).collect();
    let flips = decided.windows(2).filter(|pair| pair[0] != pair[1]).count();
    // A single change is a test that broke or was repaired.
    match (flips, decided.len()) {
        (0 | 1, _) => 0,
        (flips, decided) => u8::try_from((flips * 100).div_ceil(decided - 1)).unwrap_or(100),
    }
}

fn median(durations: &[u64]) -> Option<u64> {
    let mut sorted = durations.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

/// How much longer the newest durations are than those before them, in percent.
fn trend(durations: &[u64]) -> Option<i64> {
    let (before, recent) = durations.split_at(durations.len().saturating_sub(RECENT));
    if before.len() < ENOUGH || recent.len() < ENOUGH {
        return None;
    }
    let (before, recent) = (median(before)?, median(recent)?);
    if before.abs_diff(recent) < LEAST_CHANGE_MS {
        return Some(0);
    }
    Some(((recent as f64 / before.max(1) as f64 - 1.0) * 100.0).round() as i64)
}

/// All tests, by name.
#[derive(Clone, Debug)]
pub(crate) struct TestSummaries {
    pub(crate) tests: Vec<TestSummary>,
    /// Runs with test results, whether or not they name a test.
    pub(crate) runs: u64,
    pub(crate) counted_at: Timestamp,
}

pub(crate) type TestsCache = CountCache<(), TestSummaries>;

impl TestSummaries {
    pub(crate) fn count(store: &Store, (): ()) -> Result<Self, RequestError> {
        let mut tests = Vec::new();
        store.each_test(None, &mut |history| tests.extend(TestSummary::of(&history)))?;
        Ok(Self { tests, runs: store.runs_with_tests()?, counted_at: Timestamp::now() })
    }
}

/// Which tests are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Shown {
    #[default]
    All,
    Failing,
    Flaky,
    Slower,
}

impl Shown {
    pub(crate) const ALL: [Self; 4] = [Self::All, Self::Failing, Self::Flaky, Self::Slower];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::All => "",
            Self::Failing => "failing",
            Self::Flaky => "flaky",
            Self::Slower => "slower",
        }
    }

    pub(crate) fn admits(self, test: &TestSummary) -> bool {
        match self {
            Self::All => true,
            Self::Failing => test.fails(),
            Self::Flaky => test.is_flaky(),
            Self::Slower => test.trend_percent.is_some_and(|percent| percent >= SLOWER),
        }
    }
}

/// A test that takes this many percent longer than before counts as slower.
const SLOWER: i64 = 25;

/// The order of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// Failing tests, then flaky ones, then by name.
    #[default]
    Attention,
    Name,
    Flaky,
    Slow,
    Failures,
    Newest,
}

impl Order {
    pub(crate) const ALL: [(Self, &'static str, &'static str); 6] = [
        (Self::Attention, "", "needs attention"),
        (Self::Name, "name", "name"),
        (Self::Flaky, "flaky", "flakiest"),
        (Self::Slow, "slow", "slowest"),
        (Self::Failures, "failures", "most failures"),
        (Self::Newest, "newest", "ran last"),
    ];

    fn sort(self, tests: &mut [&TestSummary]) {
        match self {
            Self::Attention => {
                tests.sort_by_key(|test| (!test.fails(), Reverse(test.flaky_percent)));
            }
            // They are in this order already.
            Self::Name => {}
            Self::Flaky => tests.sort_by_key(|test| Reverse((test.flaky_percent, test.flips))),
            Self::Slow => tests.sort_by_key(|test| Reverse(test.p50_ms)),
            Self::Failures => tests.sort_by_key(|test| Reverse(test.failed)),
            Self::Newest => tests.sort_by_key(|test| Reverse(test.last.at)),
        }
    }
}

/// The parameters of an address.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestQuery {
    /// A part of the name, ignoring case.
    pub(crate) name: String,
    pub(crate) shown: Shown,
    pub(crate) order: Order,
    /// How many tests to skip.
    pub(crate) skip: usize,
}

impl TestQuery {
    pub(crate) fn from_params(params: &Params) -> Result<Self, RequestError> {
        let shown = params.get("show").unwrap_or_default();
        let order = params.get("sort").unwrap_or_default();
        let bad = |name: &str, value: &str, words: &str| {
            RequestError::bad_request(format!("{name}={value} is not one of {words}"))
        };
        let shown = Shown::ALL.into_iter().find(|one| one.as_str() == shown);
        let order = Order::ALL.into_iter().find(|(_, word, _)| *word == order);
        Ok(Self {
            name: params.get("name").unwrap_or_default().to_lowercase(),
            shown: shown.ok_or_else(|| {
                let value = params.get("show").unwrap_or_default();
                bad("show", value, "failing, flaky, slower")
            })?,
            order: order.map(|(order, ..)| order).ok_or_else(|| {
                let value = params.get("sort").unwrap_or_default();
                bad("sort", value, "name, flaky, slow, failures, newest")
            })?,
            skip: usize::try_from(params.number("skip")?.unwrap_or(0)).unwrap_or(usize::MAX),
        })
    }

    /// One page of the requested tests, and how many there are.
    pub(crate) fn page<'a>(
        &self,
        all: &'a TestSummaries,
        limit: usize,
    ) -> (Vec<&'a TestSummary>, usize) {
        let named = |test: &&TestSummary| {
            self.name.is_empty() || test.name.to_lowercase().contains(&self.name)
        };
        let admitted = |test: &&TestSummary| self.shown.admits(test) && named(test);
        let mut found: Vec<&TestSummary> = all.tests.iter().filter(admitted).collect();
        self.order.sort(&mut found);
        let count = found.len();
        (found.into_iter().skip(self.skip).take(limit).collect(), count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(name: &str, letters: &str) -> TestHistory {
        let results = letters.chars().enumerate().map(|(at, letter)| TestResult {
            run: RunId::new(),
            at: Timestamp::from_second(at as i64).unwrap(),
            status: match letter {
                '+' | '.' => TestStatus::Passed,
                'x' => TestStatus::Failed,
                'E' => TestStatus::Error,
                _ => TestStatus::Skipped,
            },
            duration_ms: (letter != '.').then_some(100 + at as u64),
            inferred: letter == '.',
        });
        TestHistory { name: name.to_owned(), results: results.collect() }
    }

    fn summary(letters: &str) -> TestSummary {
        TestSummary::of(&history("t", letters)).unwrap()
    }

    #[test]
    fn a_summary_gives_the_status_and_flakiness_of_a_test() {
        let broken = summary("+++.xx-");
        assert_eq!((broken.status, broken.runs, broken.failed), (TestStatus::Failed, 7, 2));
        assert_eq!(broken.failing_since.unwrap().at.as_second(), 4);
        assert_eq!(broken.last_passed.unwrap().at.as_second(), 3);
        // It broke once, which is not flaky.
        assert_eq!((broken.flips, broken.flaky_percent, broken.is_flaky()), (1, 0, false));
        let flaky = summary("+x+x+");
        assert_eq!((flaky.flaky_percent, flaky.is_flaky(), flaky.fails()), (100, true, false));
        assert_eq!(flaky.first_failure.unwrap().at.as_second(), 1);
        assert_eq!(summary("+".repeat(60).as_str()).results.len(), DRAWN);
        // A test that was flaky long ago is not flaky now.
        let old = summary(&format!("+x+x{}", "+".repeat(60)));
        assert_eq!((old.flips, old.flaky_percent, old.is_flaky()), (4, 0, false));
        assert!(TestSummary::of(&history("none", "")).is_none());
    }

    #[test]
    fn a_trend_needs_enough_durations_on_both_sides_and_more_than_noise() {
        assert_eq!(trend(&[100; 14]), None);
        assert_eq!(trend(&[100; 15]), Some(0));
        assert_eq!(trend(&[[100; 10], [150; 10]].concat()), Some(50));
        assert_eq!(trend(&[[0; 10], [9; 10]].concat()), Some(800));
        // A millisecond is not a change, even if it is a sixth of all.
        assert_eq!(trend(&[[6; 10], [7; 10]].concat()), Some(0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_list_is_filtered_and_sorted() {
        let tests = [("a::Flaky", "+x+x+"), ("b::broken", "++x"), ("c::fine", "+++")];
        let tests: Vec<_> =
            tests.iter().map(|(n, l)| TestSummary::of(&history(n, l)).unwrap()).collect();
        let all = TestSummaries { tests, runs: 5, counted_at: Timestamp::UNIX_EPOCH };
        let names = |query: &TestQuery| -> Vec<String> {
            let (found, count) = query.page(&all, 2);
            assert!(count >= found.len());
            found.iter().map(|test| test.name.clone()).collect()
        };
        assert_eq!(names(&TestQuery::default()), ["b::broken", "a::Flaky"]);
        assert_eq!(names(&TestQuery { skip: 2, ..TestQuery::default() }), ["c::fine"]);
        let name = |name: &str| TestQuery { name: name.into(), ..TestQuery::default() };
        assert_eq!(names(&name("flaky")), ["a::Flaky"]);
        let shown = |shown| TestQuery { shown, ..TestQuery::default() };
        assert_eq!(names(&shown(Shown::Failing)), ["b::broken"]);
        assert_eq!(names(&shown(Shown::Flaky)), ["a::Flaky"]);
        assert!(names(&shown(Shown::Slower)).is_empty());
        let ordered = TestQuery { order: Order::Name, ..TestQuery::default() };
        assert_eq!(names(&ordered), ["a::Flaky", "b::broken"]);
    }
}
