//! `go test`: plain, verbose, and `-json`.
//!
//! A test's package is named only after the package's tests, so rows wait for it. The innermost
//! tests are counted; an outer one only if it failed by itself. Without `-v` passing tests have no
//! names: then the package is counted.

use retake_types::{Confidence, CountedUnit, Framework, Stream, TestStatus};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::Deserialize;

use crate::test_results::framework_results::{
    Details, FrameworkResults, Message, TestCounts, add_problem, clipped,
};
use crate::test_results::limits::{MAX_NAME, MAX_RUNNING};
use crate::test_results::output_cuts::OutputCuts;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{
    duration, find, rfind, split, split_last, trailing_parenthesis,
};

pub(super) const BEGINNINGS: &[&[u8]] = &[b"==", b"--", b"ok", b"FA", b"?", b"{\"", b"pa"];

/// Maximum rows that wait for their packages; further ones are counted without a name.
const MAX_WAITING: usize = 20_000;
const MAX_PACKAGES: usize = 1_000;
/// Maximum concurrent tests of one package.
const MAX_BEGUN: usize = 10_000;
/// Maximum tests whose log lines wait for the verdict.
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
    /// Whether a timeout occurred: the running tests are or will be listed.
    timed_out: bool,
    listing_running: bool,
    /// `FAIL` alone: a test of the package that ends next has failed.
    blamed: bool,
    /// A package that is named instead of tests at the very beginning: its tests may have been cut
    /// off.
    first_package: Option<Vec<u8>>,
    /// Tests that were running when their packages ended.
    running: Vec<Vec<u8>>,
    /// The test that the log lines belong to.
    speaking: Option<(Stream, Vec<u8>)>,
}

/// Totals over all unfinished packages.
#[derive(Default)]
struct Waiting {
    rows: usize,
    messages: usize,
}

/// The tests of an unfinished package.
#[derive(Default)]
struct Package {
    /// Tests that have started but not ended.
    running: HashSet<Vec<u8>>,
    /// Seen at all, seen from its beginning, beginning missing, without tests.
    seen: bool,
    begun: bool,
    headless: bool,
    no_tests: bool,
    rows: Vec<Row>,
    unnamed: TestCounts,
    messages: HashMap<Vec<u8>, Message>,
}

/// The result of one test of a package.
struct Row {
    name: Vec<u8>,
    status: TestStatus,
    time: Option<u64>,
    /// Whether its start was seen. If not, tests inside it may have been cut off.
    announced: bool,
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
        // Output of a test without a newline precedes a row.
        let waits = !self.plain.is_empty() || !self.plain.running.is_empty();
        let inside = self.verbose && waits;
        if inside || self.speaking.is_some() { Attention::All } else { Attention::Idle }
    }

    fn finish(mut self: Box<Self>, cuts: OutputCuts) -> Option<FrameworkResults> {
        let plain = std::mem::take(&mut self.plain);
        let open = std::mem::take(&mut self.packages);
        let waiting = !plain.rows.is_empty() || !open.is_empty();
        if !(self.seen || self.json || self.verbose && waiting) {
            return None;
        }
        self.partial |= waiting;
        let mut running = plain.innermost_running();
        self.add_nameless(plain);
        let mut open: Vec<_> = open.into_iter().collect();
        open.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (name, package) in open {
            running.extend(
                package
                    .innermost_running()
                    .into_iter()
                    .map(|test| [name.as_slice(), b" ", &test].concat()),
            );
            self.add(package, &name);
        }
        running.splice(0..0, std::mem::take(&mut self.running));
        running.truncate(MAX_RUNNING);
        if let Some(package) = self.first_package.take().filter(|_| cuts.beginning) {
            self.details.forget(&package);
        }
        let sure = if self.seen || self.json { Confidence::High } else { Confidence::Medium };
        Some(FrameworkResults {
            details: self.details,
            problems: self.problems,
            partial: self.partial,
            unit: self.unit,
            running,
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
                    let name = name.trim_ascii();
                    self.is_verbose();
                    if text.starts_with(b"=== RUN ") {
                        self.plain.begin(name);
                    }
                    self.speaks(line.stream, name);
                }
            }
            Some(b'-') if text.starts_with(b"--- ") => self.row(line),
            Some(b'o') if text.starts_with(b"ok") && line.at_margin() => self.passed(text),
            Some(b'F') if text == b"FAIL" && line.at_margin() => self.blamed = true,
            Some(b'F') if text.starts_with(b"FAIL") && line.at_margin() => self.failed(text),
            // After go's own timeout: `running tests:` and below it `\tName (1s)`.
            _ if self.listing_running && line.indent == 1 => {
                if let Some((name, time)) = trailing_parenthesis(text)
                    && duration(time).is_some()
                {
                    self.plain.begin(name);
                }
            }
            _ if text == b"running tests:" && self.timed_out => self.listing_running = true,
            Some(b'p') if text.starts_with(b"panic: test timed out after ") => {
                self.timed_out = true;
                self.speaking = Some((line.stream, Vec::new()));
            }
            Some(b'?') if line.at_margin() => {
                self.seen |= text.starts_with(b"?") && text.ends_with(b"\t[no test files]");
            }
            // Output of a test without a newline.
            _ if self.verbose && self.interrupted_row(line).is_some() => {}
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
        let Some((name, status, time)) = row(line.text) else { return };
        // Only with `-v`, which announces each test first.
        if !status.is_failure() {
            self.is_verbose();
        }
        let announced = self.plain.end(name) || !self.verbose;
        self.plain.headless |= !announced;
        let row = Row { name: clipped(name).to_vec(), status, time: Some(time), announced };
        self.plain.row(&mut self.waiting, row);
        // Without `-v` the log follows the row.
        self.speaking = None;
        if status.is_failure() {
            self.speaks(line.stream, name);
        }
    }

    fn is_verbose(&mut self) {
        if !std::mem::replace(&mut self.verbose, true) {
            // The announcements of these rows were cut off.
            self.plain.headless |= !self.plain.rows.is_empty();
            self.plain.rows.iter_mut().for_each(|row| row.announced = false);
        }
    }

    /// `printed--- PASS: Name (0.00s)`, `printed=== RUN   Name`
    fn interrupted_row(&mut self, line: &Line<'_>) -> Option<()> {
        if let Some((_, name)) = split_last(line.text, b"=== RUN   ") {
            self.plain.begin(name);
            self.speaks(line.stream, name);
            return Some(());
        }
        let at = rfind(line.text, b"--- ").filter(|at| *at > 0)?;
        let (name, status, time) = row(&line.text[at..])?;
        if !self.plain.end(name) {
            return None;
        }
        let row = Row { name: clipped(name).to_vec(), status, time: Some(time), announced: true };
        self.plain.row(&mut self.waiting, row);
        self.speaking = None;
        Some(())
    }

    fn speaks(&mut self, stream: Stream, name: &[u8]) {
        self.speaking = Some((stream, clipped(name).to_vec()));
    }

    /// `ok  \tpackage\t0.01s` or `(cached)`, optionally with coverage or `[no tests to run]`.
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
        self.blamed = false;
        let rows = std::mem::take(&mut self.plain);
        if !rows.is_empty() {
            self.add(rows, package);
        } else if !none {
            self.unit = CountedUnit::Packages;
            self.package_result(package, TestStatus::Passed, duration(time));
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
        let named = rows.rows.iter().any(|row| row.status.is_failure());
        let blamed = std::mem::take(&mut self.blamed);
        let room = MAX_RUNNING.saturating_sub(self.running.len());
        let running = rows.innermost_running().into_iter().take(room);
        self.running.extend(running.map(|test| [package, b" ", &test].concat()));
        if !named && rows.unnamed.failed == 0 && (blamed || rows.headless) {
            // The names of its failed tests were cut off.
            self.counts.count(TestStatus::Failed);
            self.details.omitted += 1;
            self.partial = true;
            if !self.verbose && !self.json {
                self.unit = CountedUnit::Packages;
            }
        } else if !named && rows.unnamed.failed == 0 {
            // The package itself failed: a panic in the setup, an exit, a timeout.
            self.package_result(package, TestStatus::Error, time);
        } else if !self.verbose && !self.json {
            self.unit = CountedUnit::Packages;
        }
        self.add(rows, package);
    }

    /// Counts a package in place of its tests, none of which failed or is named.
    fn package_result(&mut self, package: &[u8], status: TestStatus, time: Option<u64>) {
        if self.counts.total() == 0 {
            self.first_package = Some(package.to_vec());
        }
        self.counts.count(status);
        self.details.put(package, status, time);
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
        if let Some((package, _)) = self.package(name) {
            // The first event of a package starts it or one of its tests.
            let first = !std::mem::replace(&mut package.seen, true);
            package.begun |= matches!(&*event.action, "start" | "run");
            package.headless |= first && !package.begun && event.test.is_some();
            package.no_tests |= event.action == "skip"
                || event.output.as_deref().is_some_and(|said| said.contains("no tests to run"));
        }
        let status = match &*event.action {
            "pass" => TestStatus::Passed,
            "fail" => TestStatus::Failed,
            "skip" => TestStatus::Skipped,
            "output" => return self.output(name, &event),
            "run" => {
                if let (Some((package, _)), Some(test)) =
                    (self.package(name), event.test.as_deref())
                {
                    package.begin(test.as_bytes());
                }
                return;
            }
            _ => return,
        };
        self.json = true;
        let time = event.elapsed.map(|elapsed| ((elapsed * 1000.0).ceil() as u64).max(1));
        if let Some(test) = event.test.as_deref() {
            if let Some((package, waiting)) = self.package(name) {
                let announced = package.end(test.as_bytes());
                package.headless |= !announced;
                let name = clipped(test.as_bytes()).to_vec();
                package.row(waiting, Row { name, status, time, announced });
            }
            return;
        }
        let mut rows = self.packages.remove(name.as_bytes()).unwrap_or_default();
        rows.headless |= rows.is_empty() && rows.seen && !rows.begun && !rows.no_tests;
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

    /// Counts the tests of a package whose name was cut off: with another name they would be
    /// different tests.
    fn add_nameless(&mut self, package: Package) {
        let details = std::mem::take(&mut self.details);
        self.add(package, b"");
        let nameless = std::mem::replace(&mut self.details, details);
        self.details.omitted += nameless.list.len() as u64 + nameless.omitted;
    }

    /// Counts the innermost tests of a package, and outer ones that failed by themselves.
    fn add(&mut self, mut package: Package, name: &[u8]) {
        self.partial |= package.headless;
        self.waiting.rows -= package.rows.len();
        self.waiting.messages -= package.messages.len();
        self.counts += package.unnamed;
        self.details.omitted += package.unnamed.total();
        let mut outer: HashSet<&[u8]> = HashSet::new();
        let mut failed_within: HashSet<&[u8]> = HashSet::new();
        for Row { name: test, status, .. } in &package.rows {
            for at in memchr::memchr_iter(b'/', test).take(32) {
                outer.insert(&test[..at]);
                if status.is_failure() {
                    failed_within.insert(&test[..at]);
                }
            }
        }
        for Row { name: test, status, time, announced } in &package.rows {
            let alone = status.is_failure() && !failed_within.contains(test.as_slice());
            if outer.contains(test.as_slice()) && !alone {
                continue;
            }
            if !announced {
                // It may contain other tests.
                self.counts.add(*status, u64::from(status.is_failure()));
                self.details.omitted += u64::from(status.is_failure());
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

/// `--- PASS: Name (0.00s)`
fn row(text: &[u8]) -> Option<(&[u8], TestStatus, u64)> {
    let (word, rest) = split(text.strip_prefix(b"--- ")?, b": ")?;
    let status = match word {
        b"PASS" => TestStatus::Passed,
        b"FAIL" => TestStatus::Failed,
        b"SKIP" => TestStatus::Skipped,
        _ => return None,
    };
    let (name, time) = trailing_parenthesis(rest)?;
    Some((name, status, duration(time)?))
}

impl Package {
    fn begin(&mut self, test: &[u8]) {
        if self.running.len() < MAX_BEGUN {
            self.running.insert(clipped(test).to_vec());
        }
    }

    /// Whether the start of the test was seen.
    fn end(&mut self, test: &[u8]) -> bool {
        self.running.remove(clipped(test)) || self.running.len() >= MAX_BEGUN
    }

    /// Tests that have started but not ended, except those that wait for an inner one.
    fn innermost_running(&self) -> Vec<Vec<u8>> {
        let outer = |test: &Vec<u8>| {
            self.running.iter().any(|other| {
                other.strip_prefix(test.as_slice()).is_some_and(|rest| rest.starts_with(b"/"))
            })
        };
        if self.running.len() > MAX_RUNNING * MAX_RUNNING {
            return Vec::new();
        }
        let mut innermost: Vec<_> =
            self.running.iter().filter(|test| !outer(test)).cloned().collect();
        innermost.sort();
        innermost.truncate(MAX_RUNNING);
        innermost
    }

    fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.unnamed.total() == 0
    }

    fn row(&mut self, waiting: &mut Waiting, row: Row) {
        if !row.status.is_failure() && self.messages.remove(&row.name).is_some() {
            waiting.messages -= 1;
        }
        if waiting.rows < MAX_WAITING {
            waiting.rows += 1;
            self.rows.push(row);
        } else {
            self.unnamed.count(row.status);
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
