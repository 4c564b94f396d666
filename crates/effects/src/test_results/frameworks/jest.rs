//! Jest: blocks per file, `●` sections per failure, `Test Suites:` and `Tests:` at the end.

use crate::test_results::framework_results::{
    Details, FrameworkResults, Message, TestCounts, add_problem,
};
use crate::test_results::output_cuts::OutputCuts;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{
    duration, find, number, parts, split_last, trailing_parenthesis,
};
use retake_types::{Confidence, Framework, Stream, TestStatus};

pub(super) const BEGINNINGS: &[&[u8]] = &[b"PA", b"FA", b"Te", b"No", b"\xe2"];

/// Headings of `●` sections that are not about tests.
const NOT_TESTS: [&[u8]; 7] = [
    b"Console",
    b"Test suite failed to run",
    b"Cannot log after tests are done",
    b"Deprecation Warning",
    b"Validation Warning",
    b"Validation Error",
    b"process.exit called with",
];

#[derive(Default)]
pub(super) struct Jest {
    file: Option<File>,
    /// Titles of `describe` blocks with their indentation.
    titles: Vec<(usize, Vec<u8>)>,
    failing: Option<Vec<u8>>,
    message: Message,
    /// `Test Suites:` was the previous line on this stream.
    suites: Option<Stream>,
    /// The total of all of those lines.
    suites_in_all: u64,
    counts: TestCounts,
    summaries: u64,
    orphan: Option<TestCounts>,
    summary_at: u64,
    files: u64,
    details: Details,
    problems: Vec<String>,
    none_found: bool,
}

struct File {
    stream: Stream,
    path: Vec<u8>,
    failed: bool,
    in_section: bool,
}

impl Recogniser for Jest {
    fn line(&mut self, line: &Line<'_>) -> Attention {
        // In colour, the first word has an extra blank on either side.
        let framed = line.indent == 1 && file(line.text).is_some();
        if line.at_margin() && !line.text.is_empty() || framed {
            self.margin(line);
        } else if self.file.as_ref().is_some_and(|file| file.stream == line.stream) {
            self.within(line);
        }
        match &self.file {
            Some(file) if file.in_section && file.stream == line.stream => Attention::Alone,
            Some(_) => Attention::All,
            None if self.suites.is_some() => Attention::All,
            None => Attention::Idle,
        }
    }

    fn finish(mut self: Box<Self>, _cuts: OutputCuts) -> Option<FrameworkResults> {
        self.end_section();
        let (counts, confidence) = if self.summaries > 0 {
            (self.counts, Confidence::High)
        } else if !self.details.list.is_empty() {
            (self.details.counts(), Confidence::Medium)
        } else if let Some(orphan) = self.orphan {
            (orphan, Confidence::Low)
        } else if self.none_found {
            (TestCounts::default(), Confidence::Medium)
        } else {
            return None;
        };
        Some(FrameworkResults {
            details: self.details,
            problems: self.problems,
            cut: self.summaries == 0 && confidence == Confidence::Medium && !self.none_found,
            begins: self.files >= self.suites_in_all && self.summaries > 0,
            ends: self.summaries > 0,
            summary_at: self.summary_at,
            ..FrameworkResults::new(Framework::Jest, confidence, counts)
        })
    }
}

impl Jest {
    fn margin(&mut self, line: &Line<'_>) {
        let text = line.text;
        if let Some((path, failed)) = file(text) {
            self.end_section();
            self.files += 1;
            self.titles.clear();
            let path = path.to_vec();
            self.file = Some(File { stream: line.stream, path, failed, in_section: false });
        } else if let Some(rest) = text.strip_prefix(b"Test Suites: ") {
            self.end_section();
            self.file = None;
            let tally = tally(rest);
            self.suites = tally.map(|_| line.stream);
            self.suites_in_all += tally.map_or(0, TestCounts::total);
        } else if let Some(rest) = text.strip_prefix(b"Tests: ") {
            let after_suites = self.suites.take() == Some(line.stream);
            self.summary_at = line.number;
            match (after_suites, tally(rest)) {
                (true, Some(tally)) => {
                    self.counts += tally;
                    self.summaries += 1;
                }
                // Elsewhere it is output of a test.
                (false, Some(tally)) if line.leads => self.orphan = Some(tally),
                _ => {}
            }
        } else {
            self.none_found |= text.starts_with(b"No tests found, exiting with code ");
            if self.suites == Some(line.stream) {
                self.suites = None;
            }
            if self.file.as_ref().is_some_and(|file| file.stream == line.stream) {
                self.end_section();
                self.file = None;
            }
        }
    }

    fn within(&mut self, line: &Line<'_>) {
        let text = line.text;
        if line.unfinished {
            return;
        }
        if let Some(title) = text.strip_prefix("● ".as_bytes())
            && line.indent == 2
        {
            self.end_section();
            self.section(title);
            return;
        }
        let Some(file) = &self.file else { return };
        if file.in_section {
            self.message.line(line.whole.get(4..).unwrap_or_default());
        } else if text.is_empty() {
            self.titles.clear();
        } else if let Some((status, name, time)) = row(text) {
            self.titles.retain(|(indent, _)| *indent < line.indent);
            let name = self.full(name);
            self.details.put(&name, status, time);
        } else {
            self.titles.retain(|(indent, _)| *indent < line.indent);
            if self.titles.len() < 16 {
                self.titles.push((line.indent, text[..text.len().min(256)].to_vec()));
            }
        }
    }

    fn section(&mut self, title: &[u8]) {
        let Some(file) = &mut self.file else { return };
        file.in_section = true;
        if title.starts_with(b"Test suite failed to run") {
            let problem = [file.path.as_slice(), b": test suite failed to run"].concat();
            add_problem(&mut self.problems, problem);
        } else if file.failed && !NOT_TESTS.iter().any(|other| title.starts_with(other)) {
            self.failing = Some(title.to_vec());
        }
    }

    fn end_section(&mut self) {
        let message = self.message.take();
        if let Some(name) = self.failing.take() {
            self.details.put(&name, TestStatus::Failed, None);
            self.details.explain(&name, &message);
        }
        if let Some(file) = &mut self.file {
            file.in_section = false;
        }
    }

    fn full(&self, name: &[u8]) -> Vec<u8> {
        let mut full = Vec::new();
        for (_, title) in &self.titles {
            full.extend_from_slice(title);
            full.extend_from_slice(" › ".as_bytes());
        }
        full.extend_from_slice(name);
        full
    }
}

/// `PASS path`, `FAIL path (5.1 s)`
fn file(text: &[u8]) -> Option<(&[u8], bool)> {
    let (path, failed) = match text.strip_prefix(b"PASS ") {
        Some(path) => (path, false),
        None => (text.strip_prefix(b"FAIL ")?, true),
    };
    let path = match trailing_parenthesis(path) {
        Some((path, time)) if duration(time).is_some() => path,
        _ => path,
    };
    let path = path.strip_prefix(b" ").unwrap_or(path);
    let name = split_last(path, b"/").map_or(path, |(_, name)| name);
    let plausible = !path.starts_with(b" ") && memchr::memchr(b'.', name).is_some();
    // Vitest's sections begin in the same way.
    let vitest = [&b" > "[..], b" [ "].iter().any(|mark| find(path, mark).is_some());
    (plausible && !vitest).then_some((path, failed))
}

fn row(text: &[u8]) -> Option<(TestStatus, &[u8], Option<u64>)> {
    for (mark, status) in [
        ("✓ ", TestStatus::Passed),
        ("√ ", TestStatus::Passed),
        ("✕ ", TestStatus::Failed),
        ("× ", TestStatus::Failed),
        ("○ skipped ", TestStatus::Skipped),
        ("✎ todo ", TestStatus::Skipped),
    ] {
        if let Some(name) = text.strip_prefix(mark.as_bytes()) {
            if let Some((bare, time)) = trailing_parenthesis(name)
                && let Some(time) = duration(time)
            {
                return Some((status, bare, Some(time)));
            }
            return Some((status, name, None));
        }
    }
    None
}

/// `1 failed, 1 skipped, 6 passed, 8 total`, up to the end; also `3 of 4 total`.
fn tally(text: &[u8]) -> Option<TestCounts> {
    let mut tally = TestCounts::default();
    let mut total = None;
    for part in parts(text, b',') {
        let (count, what) = number(part)?;
        match what {
            b" passed" => tally.passed += count,
            b" failed" => tally.failed += count,
            b" skipped" | b" todo" | b" pending" => tally.skipped += count,
            b" total" => total = Some(count),
            _ => {
                let (all, b" total") = number(what.strip_prefix(b" of ")?)? else { return None };
                total = Some(all);
            }
        }
    }
    (total? == tally.total()).then_some(tally)
}
