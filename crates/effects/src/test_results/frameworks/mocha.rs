//! Mocha's console reporters: rows below indented titles, then `N passing`, pending, failing.

use crate::test_results::framework_results::{Details, FrameworkResults, Message, TestCounts};
use crate::test_results::limits::MAX_FAILURE_DETAILS;
use crate::test_results::output_cuts::OutputCuts;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{duration, number, trailing_parenthesis};
use retake_types::{Confidence, Framework, Stream, TestStatus};

pub(super) const BEGINNINGS: &[&[u8]] =
    &[b"- ", b"\xe2", b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9"];

#[derive(Default)]
pub(super) struct Mocha {
    /// Since the last summary.
    rows: TestCounts,
    /// The first of them was below unseen titles, or at the very beginning.
    headless: bool,
    details: Details,
    counts: TestCounts,
    summaries: u64,
    /// A summary without rows; if rows follow, it was output of a test.
    rowless: Option<TestCounts>,
    /// Whether a summary lacks some of its rows.
    cut: bool,
    stream: Option<Stream>,
    state: State,
    entries: usize,
    title: Vec<u8>,
    message: Message,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Rows,
    /// `N passing` was seen: pending and failing may follow.
    Summary,
    /// Between the summary and the list of failures, or in a message.
    List,
    /// In the title of a failure, which spans several lines.
    Title,
}

impl Recogniser for Mocha {
    fn line(&mut self, line: &Line<'_>) -> Attention {
        if (self.state == State::Rows || self.stream == Some(line.stream)) && !line.unfinished {
            self.see(line);
        }
        if self.state == State::Rows { Attention::Idle } else { Attention::All }
    }

    fn finish(mut self: Box<Self>, _cuts: OutputCuts) -> Option<FrameworkResults> {
        // Without the following blank line the summary may be incomplete.
        let unfinished = self.state == State::Summary;
        if self.state == State::Title {
            self.title.clear();
        }
        self.end_entry();
        let rowless = self.rowless.is_some();
        self.counts += self.rowless.take().unwrap_or_default();
        let (counts, confidence) = match self.summaries {
            // Rows alone resemble those of other runners.
            0 if self.rows.passed > 0 => (self.rows, Confidence::Low),
            0 => return None,
            _ => (self.counts, Confidence::High),
        };
        Some(FrameworkResults {
            details: self.details,
            cut: self.summaries == 0 || unfinished,
            begins: self.summaries > 0 && !self.cut && !rowless,
            ends: self.summaries > 0 && !unfinished,
            ..FrameworkResults::new(Framework::Mocha, confidence, counts)
        })
    }
}

impl Mocha {
    fn see(&mut self, line: &Line<'_>) {
        if self.summary(line) {
            return;
        }
        match self.state {
            State::Rows => self.row(line),
            State::Summary if line.text.is_empty() => self.state = State::List,
            State::Summary => self.state = State::Rows,
            State::List => {
                if let Some(title) = numbered(line.text).filter(|_| line.indent == 2) {
                    self.end_entry();
                    self.entries += 1;
                    self.title = title.to_vec();
                    self.state = State::Title;
                    self.title_ends();
                } else if !self.title.is_empty() {
                    self.message.line(line.whole);
                }
            }
            State::Title => {
                self.title.push(b' ');
                self.title.extend_from_slice(&line.text[..line.text.len().min(256)]);
                self.title_ends();
            }
        }
    }

    /// Whether the line is part of a summary.
    fn summary(&mut self, line: &Line<'_>) -> bool {
        if line.indent != 2 {
            return false;
        }
        let Some((count, rest)) = number(line.text) else { return false };
        if rest.starts_with(b" passing (") && line.after_blank {
            let timed =
                trailing_parenthesis(rest).is_some_and(|(_, time)| duration(time).is_some());
            // It must match the rows above it, unless the first of them were cut off.
            let rows = self.rows.passed;
            let counted = rows == count || self.rows.total() == 0 || self.headless && rows < count;
            if !timed || !counted {
                return false;
            }
            self.end_entry();
            self.counts += self.rowless.take().unwrap_or_default();
            self.cut |= rows < count && self.rows.total() > 0;
            let tally = TestCounts { passed: count, ..TestCounts::default() };
            match self.rows.total() {
                0 => self.rowless = Some(tally),
                _ => self.counts += tally,
            }
            self.summaries += 1;
            self.rows = TestCounts::default();
            self.headless = false;
            self.entries = 0;
            self.stream = Some(line.stream);
            self.state = State::Summary;
            return true;
        }
        let counts = self.rowless.as_mut().unwrap_or(&mut self.counts);
        match rest {
            b" pending" if self.state == State::Summary => counts.skipped += count,
            b" failing" if self.state == State::Summary => counts.failed += count,
            _ => return false,
        }
        true
    }

    fn row(&mut self, line: &Line<'_>) {
        if line.indent < 2 || line.indent % 2 == 1 {
            return;
        }
        let text = line.text;
        let (status, name) = if let Some(name) = text.strip_prefix(b"- ") {
            (TestStatus::Skipped, name)
        } else if let Some(name) = numbered(text) {
            (TestStatus::Failed, name)
        } else {
            let marks = ["✔ ", "✓ ", "√ "];
            let Some(name) = marks.iter().find_map(|mark| text.strip_prefix(mark.as_bytes()))
            else {
                return;
            };
            (TestStatus::Passed, name)
        };
        let (name, time) = match trailing_parenthesis(name) {
            Some((bare, time)) if duration(time).is_some() => (bare, duration(time)),
            _ => (name, None),
        };
        // Jest uses such marks before its sections.
        if line.titles.above(line.indent).any(|title| title.starts_with("●".as_bytes())) {
            return;
        }
        if self.rowless.take().is_some() {
            self.summaries -= 1;
        }
        let whole = line.titles.complete_above(line.indent) && (line.after_blank || !line.leads);
        self.headless |= self.rows.total() == 0 && !whole;
        self.rows.count(status);
        if !whole {
            return;
        }
        let mut full = Vec::new();
        for title in line.titles.above(line.indent) {
            full.extend_from_slice(title);
            full.push(b' ');
        }
        full.extend_from_slice(name);
        self.details.put(&full, status, time);
    }

    fn title_ends(&mut self) {
        if self.title.ends_with(b":") {
            self.title.pop();
            self.state = State::List;
        } else if self.title.len() > 4096 {
            self.title.clear();
            self.state = State::List;
        }
    }

    fn end_entry(&mut self) {
        let message = self.message.take();
        let title = std::mem::take(&mut self.title);
        if !title.is_empty() && self.entries <= MAX_FAILURE_DETAILS {
            self.details.put(&title, TestStatus::Failed, None);
            self.details.explain(&title, &message);
        }
        if self.state != State::Rows {
            self.state = State::List;
        }
    }
}

/// `3) name`
fn numbered(text: &[u8]) -> Option<&[u8]> {
    number(text)?.1.strip_prefix(b") ")
}
