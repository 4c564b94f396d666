//! Results of the tests that a run ran: totals, and as many details as fit.

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use super::{Map, map_strings};

/// How the tests of one run went.
///
/// `total` is always `passed + failed + skipped`, even with details left out.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TestResults {
    #[serde(default)]
    pub framework: Framework,
    #[serde(default = "Confidence::of_old_records")]
    pub confidence: Confidence,
    #[serde(default)]
    pub source: ResultsSource,
    #[serde(default)]
    pub unit: CountedUnit,
    #[serde(default)]
    pub total: u64,
    #[serde(default)]
    pub passed: u64,
    /// Includes tests with status [`TestStatus::Error`].
    #[serde(default)]
    pub failed: u64,
    /// Includes expected failures, todo, pending, ignored and incomplete ones.
    #[serde(default)]
    pub skipped: u64,
    /// More tests would have run: the run was cut short, or its end was not seen.
    #[serde(default)]
    pub partial: bool,
    /// Tests that had started but not ended when the run ended, where the runner reports that. After a
    /// timeout each is also in `details`, with an error.
    #[serde(default)]
    pub running: Vec<String>,
    /// Errors outside of any test, such as a compile error or a violated TAP plan.
    #[serde(default)]
    pub problems: Vec<String>,
    #[serde(default)]
    pub details: Vec<TestDetail>,
    /// Tests that are known by name but left out of `details` to bound its size.
    #[serde(default)]
    pub details_omitted: u64,
}

impl TestResults {
    /// The failed tests that are known by name.
    pub fn failing(&self) -> impl Iterator<Item = &TestDetail> {
        self.details.iter().filter(|test| test.status.is_failure())
    }

    /// Whether a test absent from these results did not fail: every failed test is named, and other
    /// tests ran unnamed, as with runners that name only failures.
    pub fn unnamed_did_not_fail(&self) -> bool {
        let named = self.details.len() as u64;
        let all_named =
            named + self.details_omitted >= self.total && self.unit == CountedUnit::Tests;
        self.passed > 0
            && !self.partial
            && self.problems.is_empty()
            && self.confidence > Confidence::Low
            && self.failing().count() as u64 >= self.failed
            && !all_named
    }
}

/// One test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TestDetail {
    pub name: String,
    pub status: TestStatus,
    /// `None` where the runner reports no duration; otherwise rounded up, never 0.
    #[serde(default)]
    pub duration_ms: Option<u64>,
    #[serde(default)]
    pub error: Option<String>,
}

impl TestDetail {
    /// The most informative line of the error: the exception at the end of a traceback, the message
    /// after the location of a panic, else the first line.
    pub fn headline(&self) -> Option<&str> {
        headline(self.error.as_deref()?)
    }
}

fn headline(error: &str) -> Option<&str> {
    const TRACEBACK: &str = "Traceback (most recent call last):";
    let mut lines = error.lines().map(str::trim_end);
    if let Some((_, last)) = error.rsplit_once(TRACEBACK) {
        // Frames are indented, the exception is not. In an exception group a bar precedes both.
        let exception = last
            .lines()
            .skip(1)
            .map(|line| line.trim_start_matches([' ', '+']).strip_prefix("| ").unwrap_or(line))
            .find(|line| !line.is_empty() && !line.starts_with([' ', '\t', '…']));
        if let Some(exception) = exception {
            return Some(exception.trim_end());
        }
    }
    let first = lines.by_ref().find(|line| !line.is_empty())?;
    let panicked = first.starts_with("thread '") && first.contains(" panicked at ");
    match lines.find(|line| !line.is_empty()) {
        Some(message) if panicked && first.ends_with(':') => Some(message),
        _ => Some(first),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TestStatus {
    Passed,
    Failed,
    Skipped,
    /// Could not run; counts as failed.
    Error,
}

/// The test framework that the results come from.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Framework {
    Cargo,
    Nextest,
    Pytest,
    Unittest,
    Jest,
    Vitest,
    Mocha,
    Node,
    Go,
    /// JUnit XML by an unidentified tool.
    Junit,
    Tap,
    Dotnet,
    Rspec,
    Phpunit,
    Ctest,
    Surefire,
    /// Several frameworks in one run, summed.
    Mixed,
    /// Missing from the record, or written by a later version of retake.
    #[default]
    #[serde(other)]
    Other,
}

/// How certain it is that these are the results of this run's tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// A lone line that looks like a summary, or one that contradicts the exit code.
    Low,
    /// Summary or rows, but not both, or they do not add up.
    Medium,
    /// Summary, rows and exit code agree, or a machine report says so.
    High,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultsSource {
    /// What the run printed.
    #[default]
    Output,
    /// Report files.
    Report,
    /// Both, for different tests.
    Both,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CountedUnit {
    #[default]
    Tests,
    /// Some of the counted items are packages: `go test` without `-v` names no passing test.
    Packages,
}

impl TestResults {
    pub fn new(framework: Framework) -> Self {
        Self {
            framework,
            confidence: Confidence::High,
            source: ResultsSource::default(),
            unit: CountedUnit::default(),
            total: 0,
            passed: 0,
            failed: 0,
            skipped: 0,
            partial: false,
            running: Vec::new(),
            problems: Vec::new(),
            details: Vec::new(),
            details_omitted: 0,
        }
    }

    /// Results of exactly these tests.
    pub fn from_details(framework: Framework, details: Vec<TestDetail>) -> Self {
        let count = |counts: fn(TestStatus) -> bool| {
            details.iter().filter(|d| counts(d.status)).count() as u64
        };
        let passed = count(|status| status == TestStatus::Passed);
        let failed = count(TestStatus::is_failure);
        let skipped = count(|status| status == TestStatus::Skipped);
        Self {
            total: passed + failed + skipped,
            passed,
            failed,
            skipped,
            details,
            ..Self::new(framework)
        }
    }

    /// Makes an error of each test that was running when the run was ended: reports, histories and lists
    /// of failed tests then name it.
    pub fn fail_running(&mut self, error: &str) {
        for name in &self.running {
            let known = self.details.iter_mut().find(|test| test.name == *name);
            match known {
                Some(test) if test.status.is_failure() => continue,
                Some(test) => {
                    let counted = match test.status {
                        TestStatus::Passed => &mut self.passed,
                        _ => &mut self.skipped,
                    };
                    *counted = counted.saturating_sub(1);
                    test.status = TestStatus::Error;
                    test.error = Some(error.to_owned());
                }
                None => self.details.push(TestDetail {
                    name: name.clone(),
                    status: TestStatus::Error,
                    duration_ms: None,
                    error: Some(error.to_owned()),
                }),
            }
            self.failed += 1;
        }
        self.total = self.passed + self.failed + self.skipped;
    }

    /// At least one test passed, none failed, no results are missing and no other error occurred.
    pub fn all_passed(&self) -> bool {
        self.passed > 0 && self.failed == 0 && !self.partial && self.problems.is_empty()
    }

    /// Percentage of all tests that passed; `None` without tests.
    pub fn success_rate(&self) -> Option<f64> {
        (self.total > 0).then(|| self.passed as f64 / self.total as f64 * 100.0)
    }

    pub(super) fn map_strings(&mut self, map: Map<'_>) {
        let Self {
            framework: _,
            confidence: _,
            source: _,
            unit: _,
            total: _,
            passed: _,
            failed: _,
            skipped: _,
            partial: _,
            running,
            problems,
            details,
            details_omitted: _,
        } = self;
        map_strings(running, map);
        map_strings(problems, map);
        for TestDetail { name, status: _, duration_ms: _, error } in details {
            *name = map(name);
            if let Some(error) = error {
                *error = map(error);
            }
        }
    }
}

impl TestStatus {
    pub const ALL: [Self; 4] = [Self::Passed, Self::Failed, Self::Skipped, Self::Error];

    pub fn is_failure(self) -> bool {
        matches!(self, Self::Failed | Self::Error)
    }

    /// `None` for a skipped test.
    pub fn passed(self) -> Option<bool> {
        match self {
            Self::Passed => Some(true),
            Self::Failed | Self::Error => Some(false),
            Self::Skipped => None,
        }
    }
}

impl Framework {
    /// The word used in JSON and on the terminal.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cargo => "cargo",
            Self::Nextest => "nextest",
            Self::Pytest => "pytest",
            Self::Unittest => "unittest",
            Self::Jest => "jest",
            Self::Vitest => "vitest",
            Self::Mocha => "mocha",
            Self::Node => "node",
            Self::Go => "go",
            Self::Junit => "junit",
            Self::Tap => "tap",
            Self::Dotnet => "dotnet",
            Self::Rspec => "rspec",
            Self::Phpunit => "phpunit",
            Self::Ctest => "ctest",
            Self::Surefire => "surefire",
            Self::Mixed => "mixed",
            Self::Other => "other",
        }
    }
}

impl std::fmt::Display for Framework {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Confidence {
    fn of_old_records() -> Self {
        Self::Medium
    }
}

impl Serialize for TestResults {
    /// Written by hand to add `allPassed` and `successRate`, which are derived and therefore not
    /// read back.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut shape = serializer.serialize_struct("TestResults", 15)?;
        shape.serialize_field("framework", &self.framework)?;
        shape.serialize_field("confidence", &self.confidence)?;
        shape.serialize_field("source", &self.source)?;
        shape.serialize_field("unit", &self.unit)?;
        shape.serialize_field("total", &self.total)?;
        shape.serialize_field("passed", &self.passed)?;
        shape.serialize_field("failed", &self.failed)?;
        shape.serialize_field("skipped", &self.skipped)?;
        shape.serialize_field("allPassed", &self.all_passed())?;
        shape.serialize_field("successRate", &self.success_rate())?;
        shape.serialize_field("partial", &self.partial)?;
        shape.serialize_field("running", &self.running)?;
        shape.serialize_field("problems", &self.problems)?;
        shape.serialize_field("details", &self.details)?;
        shape.serialize_field("detailsOmitted", &self.details_omitted)?;
        shape.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail(name: &str, status: TestStatus) -> TestDetail {
        TestDetail { name: name.into(), status, duration_ms: None, error: None }
    }

    #[test]
    fn shape_is_the_documented_one() {
        let mut results = TestResults::from_details(
            Framework::Pytest,
            vec![detail("a", TestStatus::Passed), detail("b", TestStatus::Error)],
        );
        results.details[1].error = Some("boom".into());
        results.details[0].duration_ms = Some(3);
        let json = serde_json::to_value(&results).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "framework": "pytest", "confidence": "high", "source": "output", "unit": "tests",
                "total": 2, "passed": 1, "failed": 1, "skipped": 0,
                "allPassed": false, "successRate": 50.0,
                "partial": false, "running": [], "problems": [],
                "details": [
                    {"name": "a", "status": "passed", "durationMs": 3, "error": null},
                    {"name": "b", "status": "error", "durationMs": null, "error": "boom"},
                ],
                "detailsOmitted": 0,
            })
        );
        assert_eq!(serde_json::from_value::<TestResults>(json).unwrap(), results);
    }

    #[test]
    fn the_headline_of_an_error_says_what_went_wrong() {
        for (error, expected) in [
            ("boom", Some("boom")),
            ("\n\nboom\nmore", Some("boom")),
            ("", None),
            (
                "Traceback (most recent call last):\n  File \"a.py\", line 9, in f\n    g()\n    ^^^\n\
                 AssertionError: Lists differ: [1] != [2]\n\nFirst differing element 0:\n1\n2\n",
                Some("AssertionError: Lists differ: [1] != [2]"),
            ),
            (
                "ImportError: Failed to import test module: t\nTraceback (most recent call last):\n  \
                 File \"l.py\", line 1, in <module>\n    import x\n\
                 ModuleNotFoundError: No module named 'x'\n",
                Some("ModuleNotFoundError: No module named 'x'"),
            ),
            (
                "Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'a'\n\n\
                 During handling of the above exception, another exception occurred:\n\n\
                 Traceback (most recent call last):\n  File \"a.py\", line 3\nValueError: b",
                Some("ValueError: b"),
            ),
            (
                "  + Exception Group Traceback (most recent call last):\n  |   File \"a.py\", line 1\n  \
                 | ExceptionGroup: both (2 sub-exceptions)\n",
                Some("ExceptionGroup: both (2 sub-exceptions)"),
            ),
            (
                "Traceback (most recent call last):\n  File",
                Some("Traceback (most recent call last):"),
            ),
            (
                "thread 'a::b' panicked at src/lib.rs:5:9:\nassertion `left == right` failed\n  left: 1",
                Some("assertion `left == right` failed"),
            ),
            (
                "thread 'a' (123) panicked at src/lib.rs:5:9:\n\nnote: run with `RUST_BACKTRACE=1`",
                Some("note: run with `RUST_BACKTRACE=1`"),
            ),
            (
                "thread 'main' panicked at 'old', src/lib.rs:1:1\nnote: x",
                Some("thread 'main' panicked at 'old', src/lib.rs:1:1"),
            ),
        ] {
            assert_eq!(headline(error), expected, "{error:?}");
        }
    }

    #[test]
    fn only_a_whole_run_speaks_for_tests_it_does_not_name() {
        let mut green = TestResults::new(Framework::Unittest);
        (green.total, green.passed) = (3, 3);
        assert!(green.unnamed_did_not_fail());
        let named = (0..3).map(|n| detail(&n.to_string(), TestStatus::Passed)).collect();
        assert!(!TestResults { details: named, ..green.clone() }.unnamed_did_not_fail());
        assert!(!TestResults { partial: true, ..green.clone() }.unnamed_did_not_fail());
        assert!(
            !TestResults { problems: vec!["x".into()], ..green.clone() }.unnamed_did_not_fail()
        );
        let low = Confidence::Low;
        assert!(!TestResults { confidence: low, ..green.clone() }.unnamed_did_not_fail());
        let failed = vec![detail("a", TestStatus::Failed)];
        let one = TestResults { passed: 2, failed: 1, details: failed, ..green.clone() };
        assert!(one.unnamed_did_not_fail());
        assert!(!TestResults { passed: 1, failed: 2, ..one }.unnamed_did_not_fail());
        let packages = vec![detail("p", TestStatus::Passed)];
        let unit = CountedUnit::Packages;
        let go = TestResults { total: 1, passed: 1, details: packages, unit, ..green };
        assert!(go.unnamed_did_not_fail());
    }

    #[test]
    fn words_on_screen_are_the_words_in_json() {
        for framework in [
            Framework::Cargo,
            Framework::Nextest,
            Framework::Pytest,
            Framework::Unittest,
            Framework::Jest,
            Framework::Vitest,
            Framework::Mocha,
            Framework::Node,
            Framework::Go,
            Framework::Junit,
            Framework::Tap,
            Framework::Dotnet,
            Framework::Rspec,
            Framework::Phpunit,
            Framework::Ctest,
            Framework::Surefire,
            Framework::Mixed,
            Framework::Other,
        ] {
            assert_eq!(serde_json::to_value(framework).unwrap(), framework.as_str());
        }
    }

    #[test]
    fn no_tests_are_no_success() {
        let none = TestResults::new(Framework::Cargo);
        assert!(!none.all_passed());
        assert_eq!(none.success_rate(), None);
        assert!(serde_json::to_value(&none).unwrap()["successRate"].is_null());
        let skipped =
            TestResults::from_details(Framework::Cargo, vec![detail("a", TestStatus::Skipped)]);
        assert!(!skipped.all_passed());
        assert_eq!(skipped.success_rate(), Some(0.0));
    }

    #[test]
    fn a_problem_or_a_cut_is_no_success() {
        let good =
            TestResults::from_details(Framework::Cargo, vec![detail("a", TestStatus::Passed)]);
        assert!(good.all_passed());
        assert!(!TestResults { partial: true, ..good.clone() }.all_passed());
        assert!(!TestResults { problems: vec!["compile error".into()], ..good }.all_passed());
    }
}
