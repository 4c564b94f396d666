//! JUnit XML in the dialects of its writers.
//!
//! Test cases are counted individually: the totals in the attributes are often missing or wrong.

use std::collections::HashSet;

use super::xml::Event;
use crate::test_results::framework_results::{Details, FrameworkResults, TestCounts, add_problem};
use crate::test_results::frameworks::node::NodeCounts;
use crate::test_results::limits::{MAX_DETAILS, MAX_ERROR, MAX_FAILURE_DETAILS};
use crate::test_results::token_parsing::seconds;
use retake_types::{Confidence, Framework, ResultsSource, TestStatus};

#[derive(Default)]
pub(super) struct Junit {
    framework: Option<Framework>,
    suites: Vec<String>,
    case: Option<Case>,
    /// Inside an element whose text is a message.
    telling: bool,
    rows: Vec<(String, TestStatus, Option<u64>, Option<String>)>,
    unnamed: TestCounts,
    problems: Vec<String>,
    node: NodeCounts,
    node_totals: Option<TestCounts>,
}

#[derive(Default)]
struct Case {
    name: String,
    class: String,
    time: Option<u64>,
    failed: bool,
    error: bool,
    skipped: bool,
    todo: bool,
    message: String,
    /// Whether the message is real, not only the kind of the failure.
    has_message: bool,
    text: String,
}

impl Junit {
    pub(super) fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Open { name, attributes } => self.open(name, attributes),
            Event::Close { name } => self.close(name),
            Event::Text(text) => self.text(text),
            Event::Comment(text) => {
                if let Some((tally, _)) = self.node.line(text.trim().as_bytes()) {
                    self.node_totals = Some(tally);
                }
            }
        }
    }

    fn open(&mut self, name: &str, attributes: &[(String, String)]) {
        let get = |key: &str| {
            attributes.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
        };
        match name {
            "testsuites" | "testsuite" => {
                let title = get("name").unwrap_or_default();
                if self.framework.is_none() {
                    self.framework = writer(title, get("noNamespaceSchemaLocation"), get("uuid"));
                }
                if name == "testsuite" && self.suites.len() < 64 {
                    self.suites.push(title.to_owned());
                }
            }
            "testcase" => self.open_case(&get),
            "property" if get("name") == Some("go.version") => {
                self.framework = Some(Framework::Go);
            }
            "failure" | "error" => {
                let Some(case) = &mut self.case else {
                    let what = get("message").unwrap_or(name);
                    let suite = self.suites.last().map_or("", String::as_str);
                    add_problem(&mut self.problems, format!("{suite}: {what}"));
                    return;
                };
                // PHPUnit reports risky tests as errors, but they pass.
                if get("type").is_some_and(|kind| kind.ends_with("RiskyTestError")) {
                    return;
                }
                case.error |= name == "error";
                case.failed |= name == "failure";
                if case.message.is_empty() {
                    let message = get("message").filter(|message| !message.is_empty());
                    let told = message.or_else(|| get("type")).unwrap_or_default();
                    case.message = told.to_owned();
                    case.has_message = message.is_some();
                }
                self.telling = true;
            }
            "skipped" | "disabled" => {
                if let Some(case) = &mut self.case {
                    // CTest's text for a test whose program is missing.
                    let missing = get("message").is_some_and(|m| m.starts_with("Unable to find"));
                    case.error |= missing;
                    case.skipped |= !missing;
                    case.todo |= get("type") == Some("todo");
                }
            }
            _ => {}
        }
    }

    fn open_case<'a>(&mut self, get: &impl Fn(&str) -> Option<&'a str>) {
        let name = get("name").unwrap_or_default();
        let class = get("classname").or_else(|| get("class")).unwrap_or_default();
        if self.framework.is_none() {
            self.framework = match (get("assertions"), get("status")) {
                (Some(_), _) => Some(Framework::Phpunit),
                (_, Some("run" | "fail" | "notrun" | "disabled")) if class == name => {
                    Some(Framework::Ctest)
                }
                _ if class == "test" && get("file").is_none() => Some(Framework::Node),
                _ => None,
            };
        }
        let left_out = get("status") == Some("disabled")
            || get("status") == Some("notrun") && get("result").is_some()
            || get("result") == Some("skipped");
        self.case = Some(Case {
            name: name.to_owned(),
            class: class.to_owned(),
            time: get("time").and_then(|time| seconds(time.replace(',', "").as_bytes())),
            skipped: left_out,
            ..Case::default()
        });
    }

    fn text(&mut self, text: &str) {
        if let (true, Some(case)) = (self.telling, &mut self.case) {
            let room = (2 * MAX_ERROR).saturating_sub(case.text.len());
            case.text.extend(text.chars().take(room));
        }
    }

    fn close(&mut self, name: &str) {
        match name {
            "testsuite" => {
                self.suites.pop();
            }
            "failure" | "error" => self.telling = false,
            "testcase" => {
                if let Some(case) = self.case.take() {
                    self.add(case);
                }
            }
            _ => {}
        }
    }

    fn add(&mut self, case: Case) {
        let status = match case {
            Case { skipped: true, todo: true, .. } => TestStatus::Skipped,
            Case { error: true, .. } => TestStatus::Error,
            Case { failed: true, .. } => TestStatus::Failed,
            Case { skipped: true, .. } => TestStatus::Skipped,
            _ => TestStatus::Passed,
        };
        if self.rows.len() >= MAX_DETAILS + MAX_FAILURE_DETAILS {
            self.unnamed.count(status);
            return;
        }
        let name = self.full_name(&case);
        let error = status.is_failure().then(|| {
            let text = case.text.trim();
            let first = case.message.lines().next().unwrap_or_default();
            if text.is_empty() || case.has_message && !text.contains(first) {
                format!("{}\n{text}", case.message).trim().to_owned()
            } else {
                text.to_owned()
            }
        });
        self.rows.push((name, status, case.time, error));
    }

    /// The name as the tool prints it, as far as the report shows.
    fn full_name(&self, case: &Case) -> String {
        let Case { name, class, .. } = case;
        let joined = |separator: &str| {
            if class.is_empty() || class == name || name.starts_with(class.as_str()) {
                name.clone()
            } else {
                format!("{class}{separator}{name}")
            }
        };
        match self.framework {
            Some(Framework::Nextest | Framework::Go | Framework::Mocha) => {
                if class.is_empty() {
                    name.clone()
                } else {
                    format!("{class} {name}")
                }
            }
            Some(Framework::Vitest) => joined(" > "),
            Some(Framework::Pytest | Framework::Phpunit) => joined("::"),
            Some(Framework::Ctest | Framework::Rspec) => name.clone(),
            Some(Framework::Node) => {
                let outer = self.suites.iter().map(|suite| format!("{suite} > "));
                outer.collect::<String>() + name
            }
            _ => joined("."),
        }
    }

    pub(super) fn finish(self) -> FrameworkResults {
        let framework = self.framework.unwrap_or(Framework::Junit);
        let outer: HashSet<String> =
            if framework == Framework::Go { outer(&self.rows) } else { HashSet::new() };
        let mut counts = self.unnamed;
        let mut details = Details::default();
        details.omitted = self.unnamed.total();
        for (name, status, time, error) in &self.rows {
            if outer.contains(name) {
                continue;
            }
            counts.count(*status);
            details.push(name.as_bytes(), *status, *time);
            if let Some(error) = error {
                details.explain(name.as_bytes(), error.as_bytes());
            }
        }
        FrameworkResults {
            source: ResultsSource::Report,
            details,
            problems: self.problems,
            ..FrameworkResults::new(framework, Confidence::High, self.node_totals.unwrap_or(counts))
        }
    }
}

/// Go's outer tests, except those that failed by themselves.
fn outer(rows: &[(String, TestStatus, Option<u64>, Option<String>)]) -> HashSet<String> {
    let mut outer = HashSet::new();
    let mut blamed = HashSet::new();
    for (name, status, ..) in rows {
        let test = name.rfind(' ').map_or(0, |at| at + 1);
        for (at, _) in name.match_indices('/').filter(|(at, _)| *at > test).take(32) {
            outer.insert(name[..at].to_owned());
            if status.is_failure() {
                blamed.insert(name[..at].to_owned());
            }
        }
    }
    for (name, status, ..) in rows {
        if status.is_failure() && !blamed.contains(name) {
            outer.remove(name);
        }
    }
    outer
}

/// The framework that wrote the report, from the titles of its first elements.
fn writer(title: &str, schema: Option<&str>, uuid: Option<&str>) -> Option<Framework> {
    match title {
        "nextest-run" => Some(Framework::Nextest),
        "pytest" | "pytest tests" => Some(Framework::Pytest),
        "jest tests" => Some(Framework::Jest),
        "vitest tests" => Some(Framework::Vitest),
        "Mocha Tests" => Some(Framework::Mocha),
        _ if schema.is_some_and(|schema| schema.contains("surefire")) => Some(Framework::Surefire),
        _ if title == "rspec" || title.starts_with("rspec") && uuid.is_none() => {
            Some(Framework::Rspec)
        }
        _ => None,
    }
}
