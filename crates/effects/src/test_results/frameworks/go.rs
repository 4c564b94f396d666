//! `go test`: plain, verbose, and `-json`.
//!
//! A test's package is named only after the package's tests, so rows wait for it. Counted are
//! the innermost tests; an outer one only if it failed by itself. Without `-v` no passing test is
//! named: then the package is what is counted.

use retake_types::{Confidence, CountedUnit, Framework, Stream, TestStatus};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::Deserialize;

use crate::test_results::framework_results::{
    Details, FrameworkResults, Message, TestCounts, add_problem, clipped,
};
use crate::test_results::limits::MAX_NAME;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{duration, find, split, trailing_parenthesis};

pub(super) const BEGINNINGS: &[&[u8]] = &[b"==", b"--", b"ok", b"FA", b"?", b"{\""];

/// Rows that wait for their packages; further ones are counted without a name.
const MAX_WAITING: usize = 20_000;
const MAX_PACKAGES: usize = 1_000;
/// Tests whose log lines wait for the verdict.
const MAX_MESSAGES: usize = 1_000;

#[derive(Default)]
pub(super) struct Go {
    plain: Package,
    packages: HashMap<Vec<u8>, Package>,
    waiting: Waiting,
    counts: TestCounts,
    details: Details,
    unit: CountedUnit,
    seen: bool,
    verbose: bool,
    json: bool,
    problems: Vec<String>,
    partial: bool,
    /// Whose log lines these are.
    speaking: Option<(Stream, Vec<u8>)>,
}

/// How much is kept for packages that have not ended, all together.
#[derive(Default)]
struct Waiting {
    rows: usize,
    messages: usize,
}

/// The tests of a package that has not ended.
#[derive(Default)]
struct Package {
    rows: Vec<(Vec<u8>, TestStatus, Option<u64>)>,
    unnamed: TestCounts,
    messages: HashMap<Vec<u8>, Message>,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "Action", borrow)]
    action: Cow<'a, str>,
    #[serde(rename = "Package", borrow, default)]
    package: Option<Cow<'a, str>>,
    #[serde(rename = "Test", borrow, default)]
    test: Option<Cow<'a, str>>,
    #[serde(rename = "Elapsed", default)]
    elapsed: Option<f64>,
    #[serde(rename = "Output", borrow, default)]
    output: Option<Cow<'a, str>>,
    #[serde(rename = "FailedBuild", borrow, default)]
    failed_build: Option<Cow<'a, str>>,
    #[serde(rename = "ImportPath", borrow, default)]
    import_path: Option<Cow<'a, str>>,
}

impl Recogniser for Go {
    fn line(&mut self, line: &Line<'_>) -> Attention {
        self.see(line);
        if self.speaking.is_some() { Attention::All } else { Attention::Idle }
    }

    fn finish(mut self: Box<Self>, _exit: Option<i32>) -> Option<FrameworkResults> {
        let plain = std::mem::take(&mut self.plain);
        let open = std::mem::take(&mut self.packages);
        let waiting = !plain.rows.is_empty() || !open.is_empty();
        if !(self.seen || self.json || self.verbose && waiting) {
            return None;
        }
        self.partial |= waiting;
        self.add(plain, b"");
        let mut open: Vec<_> = open.into_iter().collect();
        open.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (name, package) in open {
            self.add(package, &name);
        }
        let sure = if self.seen || self.json { Confidence::High } else { Confidence::Medium };
        Some(FrameworkResults {
            details: self.details,
            problems: self.problems,
            partial: self.partial,
            unit: self.unit,
            ..FrameworkResults::new(Framework::Go, sure, self.counts)
        })
    }
}

impl Go {
    fn see(&mut self, line: &Line<'_>) {
        let text = line.text;
        match text.first() {
            Some(b'{') if line.at_margin() => self.event(text),
            Some(b'=') if line.at_margin() => {
                let verbs = [&b"=== RUN "[..], b"=== CONT ", b"=== NAME ", b"=== PAUSE "];
                let name = verbs.iter().find_map(|verb| text.strip_prefix(*verb));
                if let Some(name) = name {
                    self.verbose = true;
                    self.speaks(line.stream, name.trim_ascii());
                }
            }
            Some(b'-') if text.starts_with(b"--- ") => self.row(line),
            Some(b'o') if text.starts_with(b"ok") && line.at_margin() => self.passed(text),
            Some(b'F') if text.starts_with(b"FAIL") && line.at_margin() => self.failed(text),
            Some(b'?') if line.at_margin() => {
                self.seen |= text.starts_with(b"?") && text.ends_with(b"\t[no test files]");
            }
            _ if line.indent >= 4 => {
                if let Some((stream, name)) = &self.speaking
                    && *stream == line.stream
                {
                    self.plain.say(
                        &mut self.waiting,
                        name,
                        line.whole.get(4..).unwrap_or_default(),
                    );
                }
            }
            _ => {}
        }
    }

    /// `--- PASS: Name (0.00s)`
    fn row(&mut self, line: &Line<'_>) {
        let Some((word, rest)) = split(&line.text[4..], b": ") else { return };
        let status = match word {
            b"PASS" => TestStatus::Passed,
            b"FAIL" => TestStatus::Failed,
            b"SKIP" => TestStatus::Skipped,
            _ => return,
        };
        let Some((name, time)) = trailing_parenthesis(rest) else { return };
        let Some(time) = duration(time) else { return };
        self.plain.row(&mut self.waiting, name, status, Some(time));
        // Without `-v` the log follows the row.
        self.speaking = None;
        if status.is_failure() {
            self.speaks(line.stream, name);
        }
    }

    fn speaks(&mut self, stream: Stream, name: &[u8]) {
        self.speaking = Some((stream, clipped(name).to_vec()));
    }

    /// `ok  \tpackage\t0.01s`, `(cached)`, perhaps with coverage or `[no tests to run]`.
    fn passed(&mut self, text: &[u8]) {
        let mut fields = text.split(|byte| *byte == b'\t').map(<[u8]>::trim_ascii);
        let (Some(b"ok"), Some(package), Some(time)) =
            (fields.next(), fields.next(), fields.next())
        else {
            return;
        };
        let none = time.ends_with(b" [no tests to run]");
        let time = time.strip_suffix(b" [no tests to run]").unwrap_or(time);
        let timed = time == b"(cached)" || duration(time).is_some();
        if !timed
            || !fields.all(|field| field.starts_with(b"coverage: ") || field.starts_with(b"["))
        {
            return;
        }
        self.seen = true;
        self.speaking = None;
        let rows = std::mem::take(&mut self.plain);
        if !rows.is_empty() {
            self.add(rows, package);
        } else if !none {
            self.unit = CountedUnit::Packages;
            self.counts.count(TestStatus::Passed);
            self.details.put(package, TestStatus::Passed, duration(time));
        }
    }

    /// `FAIL\tpackage\t0.01s`, `FAIL\tpackage [build failed]`
    fn failed(&mut self, text: &[u8]) {
        let mut fields = text.split(|byte| *byte == b'\t');
        let (Some(b"FAIL"), Some(package)) = (fields.next().map(<[u8]>::trim_ascii), fields.next())
        else {
            return;
        };
        if let Some((package, why)) = split(package, b" [")
            && let Some(why) = why.strip_suffix(b"]")
        {
            self.seen = true;
            self.speaking = None;
            add_problem(&mut self.problems, [package, b": ", why].concat());
            return;
        }
        let Some(time) = fields.next().and_then(duration) else { return };
        self.seen = true;
        self.speaking = None;
        let rows = std::mem::take(&mut self.plain);
        self.failed_package(rows, package, Some(time));
    }

    fn failed_package(&mut self, rows: Package, package: &[u8], time: Option<u64>) {
        let blamed = rows.rows.iter().any(|(_, status, _)| status.is_failure());
        if !blamed && rows.unnamed.failed == 0 {
            // It ended by itself: a panic in the set-up, an exit, a deadline.
            self.counts.count(TestStatus::Error);
            self.details.put(package, TestStatus::Error, time);
        } else if !self.verbose && !self.json {
            self.unit = CountedUnit::Packages;
        }
        self.add(rows, package);
    }

    fn event(&mut self, text: &[u8]) {
        if find(text, b"\"Action\":").is_none() {
            return;
        }
        let Ok(event) = serde_json::from_slice::<Event<'_>>(text) else { return };
        if event.action == "build-fail" {
            let what = event.import_path.as_deref().unwrap_or("a package");
            add_problem(&mut self.problems, format!("{what}: build failed"));
            return;
        }
        let Some(name) = event.package.as_deref() else { return };
        let status = match &*event.action {
            "pass" => TestStatus::Passed,
            "fail" => TestStatus::Failed,
            "skip" => TestStatus::Skipped,
            "output" => return self.output(name, &event),
            _ => return,
        };
        self.json = true;
        let time = event.elapsed.map(|elapsed| ((elapsed * 1000.0).ceil() as u64).max(1));
        if let Some(test) = event.test.as_deref() {
            if let Some((package, waiting)) = self.package(name) {
                package.row(waiting, test.as_bytes(), status, time);
            }
            return;
        }
        let rows = self.packages.remove(name.as_bytes()).unwrap_or_default();
        if event.failed_build.is_some() {
            add_problem(&mut self.problems, format!("{name}: build failed"));
            self.add(rows, name.as_bytes());
        } else if status.is_failure() {
            self.failed_package(rows, name.as_bytes(), time);
        } else {
            self.add(rows, name.as_bytes());
        }
    }

    fn output(&mut self, name: &str, event: &Event<'_>) {
        if let (Some(test), Some(said)) = (event.test.as_deref(), event.output.as_deref())
            && let Some(said) = said.strip_prefix("    ")
            && !said.trim_start().starts_with("--- ")
            && let Some((package, waiting)) = self.package(name)
        {
            package.say(waiting, test.as_bytes(), said.trim_end().as_bytes());
        }
    }

    fn package(&mut self, name: &str) -> Option<(&mut Package, &mut Waiting)> {
        let known = self.packages.contains_key(name.as_bytes());
        if !known && (self.packages.len() >= MAX_PACKAGES || name.len() > MAX_NAME) {
            return None;
        }
        let package = self.packages.entry(name.as_bytes().to_vec()).or_default();
        Some((package, &mut self.waiting))
    }

    /// Counts the innermost tests of a package, and outer ones that failed by themselves.
    fn add(&mut self, mut package: Package, name: &[u8]) {
        self.waiting.rows -= package.rows.len();
        self.waiting.messages -= package.messages.len();
        self.counts += package.unnamed;
        self.details.omitted += package.unnamed.total();
        let mut outer: HashSet<&[u8]> = HashSet::new();
        let mut failed_within: HashSet<&[u8]> = HashSet::new();
        for (test, status, _) in &package.rows {
            for at in memchr::memchr_iter(b'/', test).take(32) {
                outer.insert(&test[..at]);
                if status.is_failure() {
                    failed_within.insert(&test[..at]);
                }
            }
        }
        for (test, status, time) in &package.rows {
            let alone = status.is_failure() && !failed_within.contains(test.as_slice());
            if outer.contains(test.as_slice()) && !alone {
                continue;
            }
            self.counts.count(*status);
            let full = if name.is_empty() { test.clone() } else { [name, b" ", test].concat() };
            self.details.put(&full, *status, *time);
            if status.is_failure()
                && let Some(mut message) = package.messages.remove(test.as_slice())
            {
                self.details.explain(&full, &message.take());
            }
        }
    }
}

impl Package {
    fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.unnamed.total() == 0
    }

    fn row(&mut self, waiting: &mut Waiting, name: &[u8], status: TestStatus, time: Option<u64>) {
        if !status.is_failure() && self.messages.remove(clipped(name)).is_some() {
            waiting.messages -= 1;
        }
        if waiting.rows < MAX_WAITING {
            waiting.rows += 1;
            self.rows.push((clipped(name).to_vec(), status, time));
        } else {
            self.unnamed.count(status);
        }
    }

    fn say(&mut self, waiting: &mut Waiting, name: &[u8], text: &[u8]) {
        if let Some(message) = self.messages.get_mut(clipped(name)) {
            message.line(text);
        } else if waiting.messages < MAX_MESSAGES {
            waiting.messages += 1;
            self.messages.entry(clipped(name).to_vec()).or_default().line(text);
        }
    }
}
