//! Vitest: rows below files, ` FAIL ` sections, `Test Files` and `Tests` at the end.

use crate::test_results::framework_results::{
    Details, FrameworkResults, Message, TestCounts, add_problem,
};
use crate::test_results::output_cuts::OutputCuts;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{
    duration, find, number, parts, split, split_last, trailing_parenthesis, whole_number,
};
use retake_types::{Confidence, Framework, Stream, TestStatus};

pub(super) const BEGINNINGS: &[&[u8]] =
    &[b"RU", b"Te", b"FA", b"Er", b"No", b"St", b"Du", b"\xe2", b"\xc3"];

#[derive(Default)]
pub(super) struct Vitest {
    started: bool,
    file: Vec<u8>,
    last_failed: Option<Vec<u8>>,
    failing: Option<(Stream, Vec<u8>)>,
    message: Message,
    summary: Summary,
    summary_stream: Option<Stream>,
    counts: TestCounts,
    summaries: u64,
    files_failed: u64,
    /// A file failed without failed tests: the reason is printed elsewhere, unless cut off.
    broken_files: bool,
    /// The lines after the counts of tests are missing: they may report errors outside of tests.
    unended: bool,
    none_found: bool,
    details: Details,
    problems: Vec<String>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Summary {
    #[default]
    No,
    Files,
    Tests,
}

impl Recogniser for Vitest {
    fn line(&mut self, line: &Line<'_>) -> Attention {
        match &self.failing {
            Some((stream, _)) if *stream == line.stream => {
                if !self.failure(line) {
                    self.own(line);
                }
            }
            _ => self.own(line),
        }
        match &self.failing {
            Some((stream, _)) if *stream == line.stream => Attention::Alone,
            Some(_) => Attention::All,
            None if self.summary != Summary::No => Attention::All,
            None => Attention::Idle,
        }
    }

    fn finish(mut self: Box<Self>, _cuts: OutputCuts) -> Option<FrameworkResults> {
        self.end_failure();
        if self.broken_files && self.problems.is_empty() {
            add_problem(&mut self.problems, b"a test file failed");
        }
        let (counts, confidence) = match self.summaries {
            0 if self.started => (self.details.counts(), Confidence::Medium),
            0 => return None,
            _ if self.started => (self.counts, Confidence::High),
            _ => (self.counts, Confidence::Medium),
        };
        Some(FrameworkResults {
            details: self.details,
            cut: self.summaries == 0 && !self.none_found || self.unended,
            begins: self.started,
            ends: self.summaries > 0 && !self.unended,
            problems: self.problems,
            ..FrameworkResults::new(Framework::Vitest, confidence, counts)
        })
    }
}

impl Vitest {
    fn own(&mut self, line: &Line<'_>) {
        let text = line.text;
        // The other stream's lines may come in between.
        let expected = if self.summary_stream == Some(line.stream) {
            std::mem::take(&mut self.summary)
        } else {
            Summary::No
        };
        if let Some(rest) = text.strip_prefix(b"RUN  v") {
            self.started |= line.indent == 1 && number(rest).is_some();
        } else if let Some(rest) = text.strip_prefix(b"Test Files  ") {
            if let Some(files) = tally(rest).filter(|_| line.indent == 1) {
                self.summary = Summary::Files;
                self.summary_stream = Some(line.stream);
                self.files_failed = files.failed;
            }
        } else if let Some(rest) = text.strip_prefix(b"Tests  ") {
            if expected == Summary::Files
                && let Some(tally) = tally(rest)
            {
                self.counts += tally;
                self.summaries += 1;
                self.summary = Summary::Tests;
                self.unended = true;
                self.broken_files |= self.files_failed > 0 && tally.failed == 0;
            }
        } else if let Some(rest) = text.strip_prefix(b"Errors  ") {
            if expected == Summary::Tests {
                add_problem(&mut self.problems, [rest, b" outside of any test"].concat());
            }
        } else if text.starts_with(b"Start at  ") || text.starts_with(b"Duration  ") {
            self.unended = false;
        } else if let Some(name) = text.strip_prefix(b"FAIL  ") {
            // Coloured Jest output looks the same.
            if line.indent == 1 && self.started && !line.unfinished {
                self.failing = Some((line.stream, name[..name.len().min(1024)].to_vec()));
            }
        } else if let Some(why) = text.strip_prefix("→ ".as_bytes()) {
            if let Some(name) = self.last_failed.take() {
                self.details.explain(&name, why);
            }
        } else if text.starts_with(b"No test files found, exiting with code ") && self.started {
            self.none_found = true;
            add_problem(&mut self.problems, b"no test files found");
        } else {
            self.row(line);
        }
    }

    /// Whether the line still belongs to the section of a failure.
    fn failure(&mut self, line: &Line<'_>) -> bool {
        let bar = line.text.starts_with("⎯⎯⎯".as_bytes());
        let next = line.indent == 1 && line.text.starts_with(b"FAIL  ");
        if bar || next {
            self.end_failure();
            return bar;
        }
        self.message.line(line.whole);
        true
    }

    fn end_failure(&mut self) {
        let message = self.message.take();
        let Some((_, name)) = self.failing.take() else { return };
        // `FAIL  file.js [ file.js ]` is a file that could not be loaded.
        if find(&name, b" > ").is_none() {
            let file = split(&name, b" [ ").map_or(name.as_slice(), |(file, _)| file);
            add_problem(&mut self.problems, [file, b": test file failed"].concat());
            return;
        }
        self.details.put(&name, TestStatus::Failed, None);
        if let Some(known) = self.details.get(&name) {
            // The row's text is the first line of this.
            known.error = None;
        }
        self.details.explain(&name, &message);
    }

    fn row(&mut self, line: &Line<'_>) {
        let Some((mark, rest)) = split(line.text, b" ").filter(|_| !line.unfinished) else {
            return;
        };
        let status = match std::str::from_utf8(mark) {
            Ok("✓") => TestStatus::Passed,
            Ok("×") => TestStatus::Failed,
            Ok("↓") => TestStatus::Skipped,
            Ok("❯") => {
                if let Some((file, _)) = file(rest) {
                    self.file = file.to_vec();
                }
                return;
            }
            _ => return,
        };
        if line.indent == 1 {
            if let Some((file, _)) = file(rest) {
                self.file = file.to_vec();
                return;
            }
            let (name, time) = timed(rest);
            if find(name, b" > ").is_some() {
                self.count(name.to_vec(), status, time);
            }
        } else if line.indent == 3 && !self.file.is_empty() {
            let (name, time) = timed(rest);
            self.count([&self.file, &b" > "[..], name].concat(), status, time);
        }
    }

    fn count(&mut self, name: Vec<u8>, status: TestStatus, time: Option<u64>) {
        if !self.started {
            return;
        }
        self.details.put(&name, status, time);
        self.last_failed = status.is_failure().then_some(name);
    }
}

/// `path (7 tests | 2 skipped) 333ms`; `path (7) 333ms` before version 2.
fn file(text: &[u8]) -> Option<(&[u8], Option<u64>)> {
    let (row, time) = timed(text);
    let (path, counts) = trailing_parenthesis(row)?;
    let (_, rest) = number(counts)?;
    let counted = rest.is_empty() || rest.starts_with(b" test") || rest.starts_with(b" |");
    counted.then_some((path, time))
}

/// A name, and the duration in the following text: ` 12ms (retry x2, repeat x3) 23 MB heap used`,
/// in any order.
fn timed(text: &[u8]) -> (&[u8], Option<u64>) {
    let (mut name, mut time) = (text, None);
    loop {
        if let Some((bare, last)) = split_last(name, b" ")
            && time.is_none()
            && let Some(took) = duration(last)
        {
            (name, time) = (bare.trim_ascii_end(), Some(took));
        } else if let Some((bare, note)) = trailing_parenthesis(name)
            && parts(note, b',').all(is_repetition)
        {
            name = bare;
        } else if let Some(bare) = without_heap(name) {
            name = bare;
        } else {
            return (name, time);
        }
    }
}

/// `retry x2`, `repeat x3`
fn is_repetition(note: &[u8]) -> bool {
    [&b"retry x"[..], b"repeat x"]
        .iter()
        .any(|word| note.strip_prefix(*word).is_some_and(|count| whole_number(count).is_some()))
}

fn without_heap(text: &[u8]) -> Option<&[u8]> {
    let (bare, size) = split_last(text.strip_suffix(b" MB heap used")?, b" ")?;
    whole_number(size).map(|_| bare.trim_ascii_end())
}

/// `1 failed | 5 passed | 1 skipped (7)`, `no tests`
fn tally(text: &[u8]) -> Option<TestCounts> {
    let mut tally = TestCounts::default();
    if text == b"no tests" {
        return Some(tally);
    }
    let (counts, total) = trailing_parenthesis(text)?;
    for part in parts(counts, b'|') {
        let (count, what) = number(part)?;
        match what {
            b" passed" => tally.passed += count,
            b" failed" => tally.failed += count,
            b" skipped" | b" todo" | b" expected fail" => tally.skipped += count,
            _ => return None,
        }
    }
    let (total, _) = number(total)?;
    (tally.total() == total).then_some(tally)
}
