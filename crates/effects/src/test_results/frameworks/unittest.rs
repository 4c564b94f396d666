//! Python's unittest: sections of failures, `Ran N tests in …`, then `OK` or `FAILED (…)`.

use std::collections::HashSet;

use crate::test_results::framework_results::{
    Details, FrameworkResults, Message, TestCounts, clipped,
};
use crate::test_results::limits::MAX_FAILURE_DETAILS;
use crate::test_results::output_cuts::OutputCuts;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{
    duration, number, parts, rfind, split, split_last, whole_number,
};
use retake_types::{Confidence, Framework, Stream, TestStatus};

pub(super) const BEGINNINGS: &[&[u8]] =
    &[b"te", b"se", b"Ra", b"==", b".", b"F", b"E", b"s", b"x", b"u"];

#[derive(Default)]
pub(super) struct Unittest {
    counts: TestCounts,
    runs: u64,
    details: Details,
    rows: TestCounts,
    /// A row that waits for its status, after a docstring, a warning or subtests.
    waiting: Option<Vec<u8>>,
    state: State,
    stream: Option<Stream>,
    failing: Option<Vec<u8>>,
    message: Message,
    sections: Sections,
    /// Outcomes by letter since the last summary, as printed without `-v`.
    letters: u64,
    /// Named rows since the last summary.
    named: u64,
    /// A run whose beginning is incomplete, and one whose sections do not cover its failures.
    headless: bool,
    cut: bool,
}

/// The sections of failures since the last summary.
#[derive(Default)]
struct Sections {
    /// All failures: a test that fails twice has two.
    titles: u64,
    /// Tests among them.
    tests: u64,
    known: HashSet<Vec<u8>>,
    /// Classes and modules whose setup failed: none of their tests ran.
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

    fn finish(mut self: Box<Self>, _cuts: OutputCuts) -> Option<FrameworkResults> {
        self.end_message();
        if self.runs == 0 && self.rows.total() == 0 {
            return None;
        }
        let ended = self.runs > 0;
        let (counts, confidence) = match ended {
            true => (self.counts, Confidence::High),
            false => (self.rows, Confidence::Low),
        };
        Some(FrameworkResults {
            details: self.details,
            cut: !ended || self.cut,
            begins: !self.headless,
            ends: ended,
            running: self.waiting.into_iter().collect(),
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
            // These share one bar.
            State::Section if text.starts_with(b"UNEXPECTED SUCCESS: ") && line.at_margin() => {
                self.end_message();
                self.title(text);
            }
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
        let Some((word, name, status)) = titles
            .iter()
            .find_map(|(word, status)| Some((*word, text.strip_prefix(*word)?, *status)))
        else {
            return false;
        };
        let Some(name) = id(name) else { return false };
        let failed = word != b"UNEXPECTED SUCCESS: ";
        self.sections.titles += u64::from(failed);
        let again =
            self.failing.as_deref() == Some(&name) || self.sections.known.contains(clipped(&name));
        if !again && failed {
            let around = [&b"setUpClass"[..], b"tearDownClass", b"setUpModule", b"tearDownModule"];
            if split_last(&name, b".").is_some_and(|(_, last)| around.contains(&last)) {
                self.sections.outside += 1;
            } else {
                self.sections.tests += 1;
            }
            if self.sections.known.len() < MAX_FAILURE_DETAILS {
                self.sections.known.insert(clipped(&name).to_vec());
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
        let Some(said) = verdict(text) else { return };
        let sections = std::mem::take(&mut self.sections);
        // One test with several failed subtests is one failed test, but several failures. For
        // failures whose sections were cut off, the test is unknown.
        let unseen = said.failures.saturating_sub(sections.titles);
        self.cut |= unseen > 0;
        let failed = (sections.tests + unseen + said.unexpected_successes).min(ran);
        let skipped = said.skipped.min(ran - failed);
        self.counts += TestCounts {
            passed: ran - failed - skipped,
            failed: failed + sections.outside,
            skipped,
        };
        self.headless |= std::mem::take(&mut self.letters) < ran && self.named < ran;
        self.named = 0;
        self.runs += 1;
        self.failing = None;
        self.waiting = None;
    }

    /// `name (module.Class.name) ... ok`
    fn row(&mut self, line: &Line<'_>) {
        let text = line.text;
        if line.at_margin() && text.iter().all(|byte| b".FEsxu".contains(byte)) {
            self.letters += text.len() as u64;
            return;
        }
        if let Some(name) = self.waiting.as_deref()
            && line.at_margin()
            && let Some(status) = status(text)
        {
            // Other output came between the name and the status.
            let name = name.to_vec();
            self.count(&name, status);
            return;
        }
        if self.waiting.is_none() {
            // A row has one word and a parenthesis.
            let Some(space) = memchr::memchr(b' ', text) else { return };
            if text.get(space + 1) != Some(&b'(') {
                return;
            }
        }
        let Some((head, word)) = split_row(text) else {
            if line.at_margin() && text.starts_with(b"test") {
                self.waiting = id(text).or(self.waiting.take());
            }
            return;
        };
        if !line.at_margin() {
            // A failed subtest fails its test.
            if let Some(status) = status(word).filter(|status| status.is_failure())
                && let Some(name) = id(head)
            {
                self.count(&name, status);
            }
            return;
        }
        match (id(head).or_else(|| self.waiting.clone()), status(word)) {
            (Some(name), Some(status)) => self.count(&name, status),
            (Some(name), None) => self.waiting = Some(name),
            (None, _) => {}
        }
    }

    fn count(&mut self, name: &[u8], status: TestStatus) {
        self.waiting = None;
        match self.details.put(name, status, None) {
            Some(before) => self.rows.uncount(before),
            None => self.named += 1,
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

/// The content of the last line.
#[derive(Default)]
struct Verdict {
    /// Failures and errors, each with a section.
    failures: u64,
    unexpected_successes: u64,
    skipped: u64,
}

/// `OK`, `FAILED (failures=1, errors=1)`, `NO TESTS RAN`
fn verdict(text: &[u8]) -> Option<Verdict> {
    let (word, numbers) = match text.strip_suffix(b")").and_then(|text| split(text, b" (")) {
        Some((word, numbers)) => (word, Some(numbers)),
        None => (text, None),
    };
    if !matches!(word, b"OK" | b"FAILED" | b"NO TESTS RAN") {
        return None;
    }
    let mut said = Verdict::default();
    for part in numbers.into_iter().flat_map(|numbers| parts(numbers, b',')) {
        let (what, count) = split(part, b"=")?;
        let count = whole_number(count)?;
        match what {
            b"failures" | b"errors" => said.failures += count,
            b"unexpected successes" => said.unexpected_successes += count,
            b"skipped" | b"expected failures" => said.skipped += count,
            _ => return None,
        }
    }
    Some(said)
}

/// A row's name, and the text after ` ... `: its status, or other output.
fn split_row(text: &[u8]) -> Option<(&[u8], &[u8])> {
    const DOTS: &[u8] = b" ... ";
    // The reason of a skip, and a docstring, may contain such dots.
    let mut end = text.len();
    while let Some(at) = rfind(&text[..end], DOTS) {
        if status(&text[at + DOTS.len()..]).is_some() {
            return Some((&text[..at], &text[at + DOTS.len()..]));
        }
        end = at;
    }
    split(text, DOTS).or_else(|| text.strip_suffix(b" ...").map(|head| (head, &b""[..])))
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
