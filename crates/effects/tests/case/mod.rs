//! One recorded run of a test tool: its output, and its own report.

#![expect(dead_code, reason = "each test file uses its part")]
#![expect(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use retake_effects::test_results::TestOutputParser;
use retake_types::{Confidence, Stream, TestResults, TestStatus};
use serde::{Deserialize, Serialize};

pub(crate) struct Recorded {
    pub(crate) framework: String,
    pub(crate) name: String,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// The tool's JUnit XML, where it writes any.
    pub(crate) report: Option<Vec<u8>>,
    pub(crate) expected: Expected,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Expected {
    pub(crate) command: String,
    pub(crate) exit: i32,
    /// No results can be inferred from the output.
    #[serde(default)]
    pub(crate) unknown: bool,
    /// The output names every test, not only failed ones.
    #[serde(default)]
    pub(crate) complete: bool,
    /// Problems outside of tests must, or must not, be found.
    #[serde(default)]
    pub(crate) problem: bool,
    #[serde(default)]
    pub(crate) partial: bool,
    /// The output names failed tests differently from the report.
    #[serde(default)]
    pub(crate) nameless: bool,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    pub(crate) tests: BTreeMap<String, TestStatus>,
}

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

impl Recorded {
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for framework in directories(&fixtures()) {
            for case in directories(&framework) {
                all.push(Self::read(&framework, &case));
            }
        }
        assert!(all.len() > 40, "fixtures are missing");
        all
    }

    fn read(framework: &Path, case: &Path) -> Self {
        let expected = std::fs::read(case.join("expected.json")).unwrap();
        Self {
            framework: file_name(framework),
            name: file_name(case),
            stdout: std::fs::read(case.join("stdout")).unwrap_or_default(),
            stderr: std::fs::read(case.join("stderr")).unwrap_or_default(),
            report: std::fs::read(case.join("report.xml")).ok(),
            expected: serde_json::from_slice(&expected).unwrap(),
        }
    }

    pub(crate) fn keep(&self) {
        let directory = fixtures().join(&self.framework).join(&self.name);
        let _gone_before = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        for (name, bytes) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !bytes.is_empty() {
                std::fs::write(directory.join(name), bytes).unwrap();
            }
        }
        if let Some(report) = &self.report {
            std::fs::write(directory.join("report.xml"), report).unwrap();
        }
        let expected = serde_json::to_string_pretty(&self.expected).unwrap();
        std::fs::write(directory.join("expected.json"), expected + "\n").unwrap();
    }

    pub(crate) fn parse(&self, mut parser: TestOutputParser) -> Option<TestResults> {
        parser.push(Stream::Stdout, &self.stdout);
        parser.push(Stream::Stderr, &self.stderr);
        parser.finish(Some(self.expected.exit), Vec::new())
    }

    /// What the parser got wrong.
    pub(crate) fn check(&self, parser: TestOutputParser) -> Option<String> {
        let results = self.parse(parser);
        let wrong = self.compare(results.as_ref());
        if wrong.is_empty() {
            return None;
        }
        let shown = serde_json::to_string(&results).unwrap();
        Some(format!("{}/{}: {}\n{shown}", self.framework, self.name, wrong.join("; ")))
    }

    fn compare(&self, results: Option<&TestResults>) -> Vec<String> {
        let expected = &self.expected;
        let Some(results) = results else {
            return if expected.unknown { Vec::new() } else { vec!["nothing recognised".into()] };
        };
        let mut wrong = Vec::new();
        let mut check = |right: bool, what: String| {
            if !right {
                wrong.push(what);
            }
        };
        check(!expected.unknown, "recognised something".into());
        check(results.framework.as_str() == self.framework, "another framework".into());
        let (p, f, s) = (expected.passed, expected.failed, expected.skipped);
        let counts = (results.passed, results.failed, results.skipped);
        check(counts == (p, f, s), format!("{counts:?} instead of {:?}", (p, f, s)));
        check(results.total == p + f + s, "total does not add up".into());
        check(results.partial == expected.partial, format!("partial: {}", results.partial));
        check(
            results.problems.is_empty() != expected.problem,
            format!("problems: {:?}", results.problems),
        );
        if !expected.problem && !expected.partial {
            let sure = if p + f + s == 0 { Confidence::Medium } else { Confidence::High };
            check(results.confidence >= sure, format!("{:?}", results.confidence));
        }
        let passes = p > 0 && f == 0 && !expected.partial && !expected.problem;
        check(results.all_passed() == passes, "allPassed is wrong".into());
        for detail in &results.details {
            let known = expected.tests.get(&detail.name);
            // Text rarely distinguishes an error from a failure.
            let same = known.is_some_and(|known| {
                *known == detail.status || known.is_failure() && detail.status.is_failure()
            });
            check(same, format!("{:?} is {:?}, not {known:?}", detail.name, detail.status));
        }
        for (name, status) in &expected.tests {
            let found = results.details.iter().any(|detail| detail.name == *name);
            check(
                found || expected.nameless || !expected.complete && !status.is_failure(),
                format!("no {name:?} ({status:?})"),
            );
        }
        wrong
    }
}

fn directories(within: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = std::fs::read_dir(within)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    found.sort();
    found
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}
