//! node:test's spec reporter: marked rows, two blanks a level, and a block of `ℹ` counts.
//!
//! A row that closes a `▶` title may be a test or a suite; the counts show whether there are any
//! suites, and if both occur, only closing rows that failed by themselves are kept.

use crate::test_results::framework_results::{
    Details, FrameworkResults, Message, TestCounts, clipped,
};
use crate::test_results::limits::MAX_FAILURE_DETAILS;
use crate::test_results::output_cuts::OutputCuts;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{
    duration, rfind, split, split_last, trailing_parenthesis, whole_number,
};
use retake_types::{Confidence, Framework, Stream, TestStatus};

pub(super) const BEGINNINGS: &[&[u8]] = &[b"\xe2", b"\xef", b"te"];

/// The counts after the rows, in this order.
const COUNTS: [&[u8]; 8] =
    [b"tests", b"suites", b"pass", b"fail", b"cancelled", b"skipped", b"todo", b"duration_ms"];

/// Parses the block of counts, one line at a time.
#[derive(Default)]
pub(in crate::test_results) struct NodeCounts {
    next: usize,
    numbers: [u64; 7],
}

impl NodeCounts {
    /// Parses `pass 5`; returns the totals and the number of suites after the last line.
    pub(in crate::test_results) fn line(&mut self, text: &[u8]) -> Option<(TestCounts, u64)> {
        let (word, value) = split(text, b" ")?;
        if word == COUNTS[0] {
            self.next = 0;
        }
        if COUNTS.get(self.next) != Some(&word) {
            self.next = 0;
            return None;
        }
        if let Some(slot) = self.numbers.get_mut(self.next) {
            let Some(value) = whole_number(value) else {
                self.next = 0;
                return None;
            };
            *slot = value;
            self.next += 1;
            return None;
        }
        self.next = 0;
        let [tests, suites, pass, fail, cancelled, skipped, todo] = self.numbers;
        let tally = TestCounts { passed: pass, failed: fail + cancelled, skipped: skipped + todo };
        (tally.total() == tests).then_some((tally, suites))
    }
}

#[derive(Default)]
pub(super) struct Node {
    titles: Vec<Vec<u8>>,
    rows: TestCounts,
    details: Details,
    /// Rows that close a title: name, status and whether something inside failed.
    closers: Vec<(Vec<u8>, TestStatus, bool)>,
    /// Whether something failed, by level.
    failed_within: Vec<bool>,
    counts: NodeCounts,
    totals: TestCounts,
    summaries: u64,
    listing: bool,
    listed: usize,
    /// The level of the previous row, and whether the very first row was seen.
    level_before: usize,
    first_row: Option<FirstRow>,
    cut: bool,
    failing: Option<(Stream, usize, Vec<u8>)>,
    message: Message,
}

/// The first row of a stream, which may close a title that was cut off.
struct FirstRow {
    name: Vec<u8>,
    status: TestStatus,
}

impl Recogniser for Node {
    fn line(&mut self, line: &Line<'_>) -> Attention {
        self.see(line);
        if self.failing.is_some() { Attention::All } else { Attention::Idle }
    }

    fn finish(mut self: Box<Self>, cuts: OutputCuts) -> Option<FrameworkResults> {
        self.end_message();
        if let Some(FirstRow { name, status }) = self.first_row.take()
            && cuts.beginning
        {
            self.forget(&name, status);
        }
        let (counts, confidence) = match self.summaries {
            // Failed rows alone may be the end of a list of failures, which has incomplete names.
            0 if self.rows.passed + self.rows.skipped > 0 => (self.rows, Confidence::Low),
            0 => return None,
            _ => (self.totals, Confidence::High),
        };
        Some(FrameworkResults {
            details: self.details,
            cut: self.summaries == 0,
            begins: self.summaries > 0 && !self.cut,
            ends: self.summaries > 0,
            ..FrameworkResults::new(Framework::Node, confidence, counts)
        })
    }
}

impl Node {
    fn see(&mut self, line: &Line<'_>) {
        if let Some((stream, indent, _)) = &self.failing
            && *stream == line.stream
        {
            if line.indent > *indent {
                self.message.line(line.whole.get(indent + 2..).unwrap_or_default());
                return;
            }
            self.end_message();
        }
        let text = line.text;
        if let Some(count) = text.strip_prefix("ℹ ".as_bytes()) {
            if let Some((tally, suites)) = self.counts.line(count) {
                self.close_run(tally, suites);
            }
        } else if let Some(title) = text.strip_prefix("▶ ".as_bytes()) {
            let level = (line.indent / 2).min(31);
            let title = trailing_parenthesis(title)
                .filter(|(_, time)| duration(time).is_some())
                .map_or(title, |(bare, _)| bare);
            self.titles.resize(level, Vec::new());
            self.titles.push(title[..title.len().min(256)].to_vec());
            self.failed_within.resize(level + 1, false);
        } else if text == "✖ failing tests:".as_bytes() && line.at_margin() {
            self.listing = true;
        } else if text.starts_with(b"test at ") && line.at_margin() {
            if self.summaries == 0 && !self.listing {
                // The counts were cut off, and so was everything before them.
                self.rows = TestCounts::default();
                self.details = Details::default();
            }
            self.listing = true;
        } else if let Some((status, name, time)) = row(text).filter(|_| !line.unfinished) {
            self.row(line, status, name, time);
        }
    }

    fn row(&mut self, line: &Line<'_>, status: TestStatus, name: &[u8], time: Option<u64>) {
        if self.listing {
            self.listed += 1;
            let full = self.by_leaf(name).unwrap_or_else(|| name.to_vec());
            self.failing = Some((line.stream, line.indent, full));
            return;
        }
        let level = (line.indent / 2).min(31);
        let full = self.full(level, name);
        let closes = self.titles.get(level).is_some_and(|title| title == name);
        let titled = self.titles.iter().take(level).filter(|title| !title.is_empty()).count();
        let inside = std::mem::replace(&mut self.level_before, level) > level;
        if inside && !closes {
            // It closes a title that was cut off.
            self.titles.truncate(level);
        } else if closes {
            let failed_within = self.failed_within.get(level + 1).copied().unwrap_or(false);
            if self.closers.len() < MAX_FAILURE_DETAILS {
                self.closers.push((clipped(&full).to_vec(), status, failed_within));
            }
            self.titles.truncate(level);
            self.level_before = level;
        } else {
            self.rows.count(status);
            if titled == level {
                self.details.put(&full, status, time);
            }
            if self.rows.total() == 1 && self.closers.is_empty() && self.titles.is_empty() {
                self.first_row = Some(FirstRow { name: full, status });
            }
        }
        self.failed_within.truncate(level + 1);
        self.failed_within.resize(level + 1, false);
        if status.is_failure() {
            self.failed_within.iter_mut().for_each(|failed| *failed = true);
            if !closes {
                let full = self.full(level, name);
                self.failing = Some((line.stream, line.indent, full));
            }
        }
    }

    fn full(&self, level: usize, name: &[u8]) -> Vec<u8> {
        let mut full = Vec::new();
        for title in self.titles.iter().take(level) {
            full.extend_from_slice(title);
            full.extend_from_slice(b" > ");
        }
        full.extend_from_slice(name);
        full
    }

    /// The failed test whose last part is `name`: the list of failures omits the rest.
    fn by_leaf(&self, name: &[u8]) -> Option<Vec<u8>> {
        if self.listed > MAX_FAILURE_DETAILS {
            return None;
        }
        let found = self.details.list.iter().find(|detail| {
            let known = detail.name.as_bytes();
            let leaf = split_last(known, b" > ").map_or(known, |(_, leaf)| leaf);
            detail.status.is_failure() && detail.error.is_none() && leaf == name
        });
        found.map(|detail| detail.name.clone().into_bytes())
    }

    fn close_run(&mut self, tally: TestCounts, suites: u64) {
        self.end_message();
        let closers = (self.closers.len() as u64).saturating_sub(suites);
        let whole = self.rows.total() + closers >= tally.total();
        if let Some(FirstRow { name, status }) = self.first_row.take().filter(|_| !whole) {
            self.forget(&name, status);
        }
        self.cut |= !whole;
        self.totals += tally;
        self.summaries += 1;
        for (name, status, failed_within) in std::mem::take(&mut self.closers) {
            if suites == 0 || status.is_failure() && !failed_within {
                self.details.put(&name, status, None);
            }
        }
        self.rows = TestCounts::default();
        self.titles.clear();
        self.failed_within.clear();
        self.listing = false;
    }

    /// Reverts a row that may not be a test.
    fn forget(&mut self, name: &[u8], status: TestStatus) {
        let known = self.details.list.first();
        if known.is_some_and(|known| known.name.as_bytes() == name && known.status == status) {
            self.details.remove(std::slice::from_ref(&(0..1)));
        }
    }

    fn end_message(&mut self) {
        let message = self.message.take();
        if let Some((_, _, name)) = self.failing.take() {
            self.details.explain(&name, &message);
        }
    }
}

fn row(text: &[u8]) -> Option<(TestStatus, &[u8], Option<u64>)> {
    let (mark, rest) = split(text, b" ")?;
    let status = match std::str::from_utf8(mark).ok()? {
        "✔" => TestStatus::Passed,
        "✖" => TestStatus::Failed,
        "﹣" | "⚠" => TestStatus::Skipped,
        _ => return None,
    };
    // The duration is always present, whatever follows it.
    let at = rfind(rest, b"ms)")?;
    let (name, time) = trailing_parenthesis(&rest[..at + 3])?;
    let time = duration(time)?;
    let note = &rest[at + 3..];
    let left_out = note.starts_with(b" # TODO") || note.starts_with(b" # SKIP");
    let status = if left_out { TestStatus::Skipped } else { status };
    Some((status, name, Some(time)))
}
