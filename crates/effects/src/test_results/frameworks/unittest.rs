//! Python's unittest: sections of failures, `Ran N tests in …`, then `OK` or `FAILED (…)`.

use crate::test_results::framework_results::{Details, FrameworkResults, Message, TestCounts};
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{
    duration, number, parts, split, split_last, whole_number,
};
use retake_types::{Confidence, Framework, Stream, TestStatus};

pub(super) const BEGINNINGS: &[&[u8]] = &[b"te", b"se", b"Ra", b"=="];

#[derive(Default)]
pub(super) struct Unittest {
    counts: TestCounts,
    runs: u64,
    sure: bool,
    details: Details,
    rows: TestCounts,
    /// A row whose name stands on the line before its docstring, or whose subtests come between.
    waiting: Option<Vec<u8>>,
    state: State,
    stream: Option<Stream>,
    failing: Option<Vec<u8>>,
    message: Message,
    /// Tests with a section of their own, since the last summary.
    sections: TestCounts,
    /// Sections of classes and modules that could not be set up: no tests were run for them.
    outside: u64,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Rows,
    /// After a double bar: a title follows.
    Bar,
    Section,
    /// `Ran N tests` was seen: the verdict follows.
    Ran(u64),
}

impl Recogniser for Unittest {
    fn line(&mut self, line: &Line<'_>) -> Attention {
        if self.state == State::Rows || self.stream == Some(line.stream) {
            self.see(line);
        }
        let ours = self.stream == Some(line.stream);
        match self.state {
            State::Section if ours => Attention::Alone,
            State::Rows if self.waiting.is_none() => Attention::Idle,
            _ => Attention::All,
        }
    }

    fn finish(mut self: Box<Self>, _exit: Option<i32>) -> Option<FrameworkResults> {
        self.end_message();
        if self.runs == 0 && self.rows.total() == 0 {
            return None;
        }
        let ended = self.runs > 0;
        let confidence = match (ended, self.sure) {
            (true, true) => Confidence::High,
            (true, false) => Confidence::Medium,
            (false, _) => Confidence::Low,
        };
        let counts = if ended { self.counts } else { self.rows };
        Some(FrameworkResults {
            details: self.details,
            partial: !ended,
            ..FrameworkResults::new(Framework::Unittest, confidence, counts)
        })
    }
}

impl Unittest {
    fn see(&mut self, line: &Line<'_>) {
        let text = line.text;
        if line.at_margin() {
            if text.len() == 70 && text.iter().all(|byte| *byte == b'=') {
                self.end_message();
                self.state = State::Bar;
                self.stream = Some(line.stream);
                return;
            }
            if let Some(rest) = text.strip_prefix(b"Ran ")
                && let Some(ran) = ran(rest)
            {
                self.end_message();
                self.state = State::Ran(ran);
                self.stream = Some(line.stream);
                return;
            }
        }
        match self.state {
            State::Bar => {
                self.state = if self.title(text) { State::Section } else { State::Rows };
            }
            State::Section if !text.is_empty() && text.iter().all(|byte| *byte == b'-') => {}
            State::Section => self.message.line(line.whole),
            State::Ran(ran) if !text.is_empty() => {
                self.state = State::Rows;
                self.verdict(text, ran);
            }
            State::Ran(_) => {}
            State::Rows => self.row(line),
        }
    }

    fn title(&mut self, text: &[u8]) -> bool {
        let titles = [
            (&b"FAIL: "[..], TestStatus::Failed),
            (b"ERROR: ", TestStatus::Error),
            (b"UNEXPECTED SUCCESS: ", TestStatus::Failed),
        ];
        let Some((name, status)) =
            titles.iter().find_map(|(word, status)| Some((text.strip_prefix(*word)?, *status)))
        else {
            return false;
        };
        let Some(name) = id(name) else { return false };
        let known = self.failing.as_deref() == Some(&name);
        if !known {
            let around = [&b"setUpClass"[..], b"tearDownClass", b"setUpModule", b"tearDownModule"];
            if split_last(&name, b".").is_some_and(|(_, last)| around.contains(&last)) {
                self.outside += 1;
            } else {
                self.sections.count(status);
            }
        }
        if let Some(before) = self.details.put(&name, status, None) {
            self.rows.uncount(before);
        }
        self.rows.count(status);
        self.failing = Some(name);
        true
    }

    fn verdict(&mut self, text: &[u8], ran: u64) {
        let Some(numbers) = verdict(text) else { return };
        let sections = std::mem::take(&mut self.sections);
        let outside = std::mem::take(&mut self.outside);
        // One test with several failed subtests is one failed test, but that many failures.
        let said = numbers.failed.saturating_sub(outside);
        let failed = if sections.failed > 0 { said.min(sections.failed) } else { said }.min(ran);
        let skipped = numbers.skipped.min(ran - failed);
        self.counts +=
            TestCounts { passed: ran - failed - skipped, failed: failed + outside, skipped };
        self.runs += 1;
        self.sure = true;
        self.failing = None;
    }

    /// `name (module.Class.name) ... ok`
    fn row(&mut self, line: &Line<'_>) {
        let text = line.text;
        if self.waiting.is_none() {
            // One word and a parenthesis, or it is no row.
            let Some(space) = memchr::memchr(b' ', text) else { return };
            if text.get(space + 1) != Some(&b'(') {
                return;
            }
        }
        let Some((head, word)) = split_last(text, b" ... ")
            .or_else(|| text.strip_suffix(b" ...").map(|head| (head, &b""[..])))
        else {
            self.waiting = id(text).filter(|_| line.at_margin() && text.starts_with(b"test"));
            return;
        };
        if !line.at_margin() {
            // A subtest that failed: so has the test.
            if let Some(status) = status(word).filter(|status| status.is_failure())
                && let Some(name) = id(head)
            {
                self.count(&name, status);
            }
            return;
        }
        let named = id(head).or_else(|| self.waiting.take());
        match (named, status(word)) {
            (Some(name), Some(status)) => self.count(&name, status),
            (Some(name), None) if word.is_empty() => self.waiting = Some(name),
            _ => {}
        }
    }

    fn count(&mut self, name: &[u8], status: TestStatus) {
        self.waiting = None;
        if let Some(before) = self.details.put(name, status, None) {
            self.rows.uncount(before);
        }
        self.rows.count(status);
    }

    fn end_message(&mut self) {
        let message = self.message.take();
        if let Some(name) = &self.failing {
            self.details.explain(name, &message);
        }
    }
}

/// `3 tests in 0.001s`
fn ran(text: &[u8]) -> Option<u64> {
    let (count, rest) = number(text)?;
    let time = rest.strip_prefix(b" tests in ").or(rest.strip_prefix(b" test in "))?;
    duration(time).map(|_| count)
}

/// `OK`, `FAILED (failures=1, errors=1)`, `NO TESTS RAN`
fn verdict(text: &[u8]) -> Option<TestCounts> {
    let (word, numbers) = match text.strip_suffix(b")").and_then(|text| split(text, b" (")) {
        Some((word, numbers)) => (word, Some(numbers)),
        None => (text, None),
    };
    if !matches!(word, b"OK" | b"FAILED" | b"NO TESTS RAN") {
        return None;
    }
    let mut tally = TestCounts::default();
    for part in numbers.into_iter().flat_map(|numbers| parts(numbers, b',')) {
        let (what, count) = split(part, b"=")?;
        let count = whole_number(count)?;
        match what {
            b"failures" | b"errors" | b"unexpected successes" => tally.failed += count,
            b"skipped" | b"expected failures" => tally.skipped += count,
            _ => return None,
        }
    }
    Some(tally)
}

fn status(word: &[u8]) -> Option<TestStatus> {
    match word {
        b"ok" => Some(TestStatus::Passed),
        b"FAIL" | b"unexpected success" => Some(TestStatus::Failed),
        b"ERROR" => Some(TestStatus::Error),
        b"expected failure" => Some(TestStatus::Skipped),
        _ if word.starts_with(b"skipped ") => Some(TestStatus::Skipped),
        _ => None,
    }
}

/// `name (module.Class.name)` or, before 3.11, `name (module.Class)`, as a dotted id.
fn id(text: &[u8]) -> Option<Vec<u8>> {
    let (name, rest) = split(text, b" (")?;
    let (inner, _) = split(rest, b")")?;
    let word = |text: &[u8]| {
        !text.is_empty()
            && text
                .iter()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.') || *b >= 0x80)
    };
    if !word(name) || !word(inner) {
        return None;
    }
    if split_last(inner, b".").is_some_and(|(_, last)| last == name) {
        return Some(inner.to_vec());
    }
    Some([inner, b".", name].concat())
}
