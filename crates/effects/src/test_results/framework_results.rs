//! The results of one recogniser: exact counts, bounded details.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;

use super::limits::{MAX_DETAILS, MAX_ERROR, MAX_FAILURE_DETAILS, MAX_NAME, MAX_PROBLEMS};
use retake_types::{
    Confidence, CountedUnit, Framework, ResultsSource, TestDetail, TestResults, TestStatus,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TestCounts {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
}

impl TestCounts {
    pub(super) fn total(self) -> u64 {
        self.passed.saturating_add(self.failed).saturating_add(self.skipped)
    }

    pub(super) fn count(&mut self, status: TestStatus) {
        self.add(status, 1);
    }

    pub(super) fn add(&mut self, status: TestStatus, tests: u64) {
        let field = match status {
            TestStatus::Passed => &mut self.passed,
            TestStatus::Skipped => &mut self.skipped,
            TestStatus::Failed | TestStatus::Error => &mut self.failed,
        };
        *field = field.saturating_add(tests);
    }

    /// Reverts a count, when a test turns out to have another result.
    pub(super) fn uncount(&mut self, status: TestStatus) {
        match status {
            TestStatus::Passed => self.passed = self.passed.saturating_sub(1),
            TestStatus::Skipped => self.skipped = self.skipped.saturating_sub(1),
            TestStatus::Failed | TestStatus::Error => self.failed = self.failed.saturating_sub(1),
        }
    }
}

impl std::ops::SubAssign for TestCounts {
    fn sub_assign(&mut self, other: Self) {
        self.passed = self.passed.saturating_sub(other.passed);
        self.failed = self.failed.saturating_sub(other.failed);
        self.skipped = self.skipped.saturating_sub(other.skipped);
    }
}

impl std::ops::AddAssign for TestCounts {
    fn add_assign(&mut self, other: Self) {
        self.add(TestStatus::Passed, other.passed);
        self.add(TestStatus::Failed, other.failed);
        self.add(TestStatus::Skipped, other.skipped);
    }
}

/// Details by name, with space reserved for failures.
#[derive(Default)]
pub(super) struct Details {
    pub(super) list: Vec<TestDetail>,
    /// Hash of a name to its latest index in the list. The hash is keyed, so that output cannot
    /// cause collisions.
    index_by_hash: HashMap<u64, usize>,
    hasher: RandomState,
    failures: usize,
    pub(super) omitted: u64,
}

impl Details {
    /// Adds a test, even if the name exists: two binaries may share a name.
    pub(super) fn push(&mut self, name: &[u8], status: TestStatus, duration_ms: Option<u64>) {
        let full = if status.is_failure() {
            self.failures >= MAX_FAILURE_DETAILS
        } else {
            self.list.len() - self.failures >= MAX_DETAILS
        };
        if full {
            self.omitted += 1;
            return;
        }
        self.failures += usize::from(status.is_failure());
        let name = text(name, MAX_NAME);
        self.index_by_hash.insert(self.hasher.hash_one(name.as_bytes()), self.list.len());
        self.list.push(TestDetail { name, status, duration_ms, error: None });
    }

    /// Adds a test whose row may be repeated: the last one counts. Returns the previous status.
    pub(super) fn put(
        &mut self,
        name: &[u8],
        status: TestStatus,
        duration_ms: Option<u64>,
    ) -> Option<TestStatus> {
        let Some(detail) = self.get(name) else {
            self.push(name, status, duration_ms);
            return None;
        };
        let before = detail.status;
        detail.status = status;
        detail.duration_ms = duration_ms.or(detail.duration_ms);
        self.failures += usize::from(status.is_failure());
        self.failures -= usize::from(before.is_failure());
        Some(before)
    }

    pub(super) fn get(&mut self, name: &[u8]) -> Option<&mut TestDetail> {
        let hash = if name.len() > MAX_NAME {
            self.hasher.hash_one(text(name, MAX_NAME).as_bytes())
        } else {
            self.hasher.hash_one(name)
        };
        let index = *self.index_by_hash.get(&hash)?;
        self.list.get_mut(index)
    }

    /// Sets why a test failed, unless a reason is known.
    pub(super) fn explain(&mut self, name: &[u8], why: &[u8]) {
        if let Some(detail) = self.get(name).filter(|detail| detail.error.is_none()) {
            detail.error = message(why);
        }
    }

    /// Appends another list, within the limits.
    pub(super) fn append(&mut self, other: Self) {
        self.omitted += other.omitted;
        for detail in other.list {
            let kept = self.list.len();
            self.push(detail.name.as_bytes(), detail.status, detail.duration_ms);
            if let Some(added) = self.list.get_mut(kept) {
                added.error = detail.error;
            }
        }
    }

    /// The counts of the tests known by name.
    pub(super) fn counts(&self) -> TestCounts {
        let mut counts = TestCounts::default();
        self.list.iter().for_each(|detail| counts.count(detail.status));
        counts
    }

    /// Removes the latest test with that name. Returns its status.
    pub(super) fn forget(&mut self, name: &[u8]) -> Option<TestStatus> {
        let status = self.get(name)?.status;
        let name = text(name, MAX_NAME);
        let at = *self.index_by_hash.get(&self.hasher.hash_one(name.as_bytes()))?;
        self.remove(std::slice::from_ref(&(at..at + 1)));
        Some(status)
    }

    /// Removes the entries in these sorted ranges. The cost depends only on the entries since the
    /// first of them.
    pub(super) fn remove(&mut self, ranges: &[std::ops::Range<usize>]) {
        let Some(first) = ranges.first().filter(|range| range.start < self.list.len()) else {
            return;
        };
        let mut ranges = ranges.iter().peekable();
        for (index, detail) in (first.start..).zip(self.list.split_off(first.start)) {
            while ranges.next_if(|range| range.end <= index).is_some() {}
            let hash = self.hasher.hash_one(detail.name.as_bytes());
            if ranges.peek().is_some_and(|range| range.contains(&index)) {
                self.failures -= usize::from(detail.status.is_failure());
                if self.index_by_hash.get(&hash) == Some(&index) {
                    self.index_by_hash.remove(&hash);
                }
            } else {
                self.index_by_hash.insert(hash, self.list.len());
                self.list.push(detail);
            }
        }
    }
}

/// A message being collected. Of a long one the beginning and the end are kept, because the end of
/// a traceback names the error.
#[derive(Default)]
pub(super) struct Message {
    head: Vec<u8>,
    tail: VecDeque<Vec<u8>>,
    tail_bytes: usize,
    cut: bool,
}

/// How much of the beginning of a long message is kept; the rest is for its end.
const HEAD: usize = MAX_ERROR / 4;
const TAIL: usize = MAX_ERROR - HEAD - 16;

impl Message {
    pub(super) fn line(&mut self, line: &[u8]) {
        if self.head.is_empty() && line.trim_ascii().is_empty() {
            return;
        }
        if self.tail.is_empty() && self.head.len() + 1 + line.len() <= HEAD {
            if !self.head.is_empty() {
                self.head.push(b'\n');
            }
            self.head.extend_from_slice(line);
            return;
        }
        let kept = &line[..line.len().min(TAIL - 1)];
        self.cut |= kept.len() < line.len();
        self.tail_bytes += kept.len() + 1;
        self.tail.push_back(kept.to_vec());
        while self.tail_bytes > TAIL {
            self.tail_bytes -= self.tail.pop_front().map_or(0, |line| line.len() + 1);
            self.cut = true;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head.is_empty() && self.tail.is_empty()
    }

    pub(super) fn take(&mut self) -> Vec<u8> {
        let Self { head: mut text, tail, cut, .. } = std::mem::take(self);
        let lines = cut.then(|| "…".as_bytes().to_vec()).into_iter().chain(tail);
        for line in lines {
            if !text.is_empty() {
                text.push(b'\n');
            }
            text.extend_from_slice(&line);
        }
        text
    }
}

/// The significant part of a name, to store it.
pub(super) fn clipped(name: &[u8]) -> &[u8] {
    &name[..name.len().min(MAX_NAME + 1)]
}

/// `bytes` as text of at most `limit` bytes.
pub(super) fn text(bytes: &[u8], limit: usize) -> String {
    let cut = bytes.len() > limit;
    let mut text = String::from_utf8_lossy(&bytes[..bytes.len().min(limit)]).into_owned();
    if cut || text.len() > limit {
        let mut end = text.len().min(limit.saturating_sub('…'.len_utf8()));
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

/// `bytes` as a message without surrounding blanks; `None` if empty.
pub(super) fn message(bytes: &[u8]) -> Option<String> {
    let bytes = bytes.trim_ascii_end();
    let start = bytes.iter().position(|byte| !matches!(byte, b'\n' | b'\r'))?;
    Some(text(&bytes[start..], MAX_ERROR))
}

/// The results of one recogniser.
pub(super) struct FrameworkResults {
    pub(super) framework: Framework,
    pub(super) confidence: Confidence,
    pub(super) source: ResultsSource,
    pub(super) unit: CountedUnit,
    pub(super) counts: TestCounts,
    pub(super) details: Details,
    pub(super) problems: Vec<String>,
    /// Whether more tests would have run: the runner stopped early.
    pub(super) partial: bool,
    /// Whether output is missing, which a report file may contain.
    pub(super) cut: bool,
    /// The line number of its last summary.
    pub(super) summary_at: u64,
    /// Whether its first seen line is certainly its first, and its last one its last.
    pub(super) begins: bool,
    pub(super) ends: bool,
    /// Tests that started but whose end was not seen.
    pub(super) running: Vec<Vec<u8>>,
}

impl FrameworkResults {
    pub(super) fn new(framework: Framework, confidence: Confidence, counts: TestCounts) -> Self {
        Self {
            framework,
            confidence,
            source: ResultsSource::Output,
            unit: CountedUnit::Tests,
            counts,
            details: Details::default(),
            problems: Vec::new(),
            partial: false,
            cut: false,
            summary_at: 0,
            begins: false,
            ends: false,
            running: Vec::new(),
        }
    }

    pub(super) fn into_results(self) -> TestResults {
        TestResults {
            framework: self.framework,
            confidence: self.confidence,
            source: self.source,
            unit: self.unit,
            total: self.counts.total(),
            passed: self.counts.passed,
            failed: self.counts.failed,
            skipped: self.counts.skipped,
            partial: self.partial || self.cut,
            running: self.running.iter().map(|name| text(name, MAX_NAME)).collect(),
            problems: self.problems,
            details: self.details.list,
            details_omitted: self.details.omitted,
        }
    }
}

/// Adds an error outside of any test, once.
pub(super) fn add_problem(problems: &mut Vec<String>, problem: impl AsRef<[u8]>) {
    if problems.len() >= MAX_PROBLEMS {
        return;
    }
    let problem = text(problem.as_ref().trim_ascii(), MAX_NAME);
    if !problems.contains(&problem) {
        problems.push(problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_bounded_and_failures_have_room() {
        let mut details = Details::default();
        for n in 0..MAX_DETAILS + 5 {
            details.push(format!("t{n}").as_bytes(), TestStatus::Passed, None);
        }
        for n in 0..MAX_FAILURE_DETAILS + 7 {
            details.push(format!("f{n}").as_bytes(), TestStatus::Failed, None);
        }
        assert_eq!(details.list.len(), MAX_DETAILS + MAX_FAILURE_DETAILS);
        assert_eq!(details.omitted, 12);
    }

    #[test]
    fn the_last_word_counts() {
        let mut details = Details::default();
        assert_eq!(details.put(b"a", TestStatus::Failed, Some(2)), None);
        assert_eq!(details.put(b"a", TestStatus::Passed, None), Some(TestStatus::Failed));
        assert_eq!(details.list.len(), 1);
        assert_eq!(details.list[0].duration_ms, Some(2));
        assert_eq!(details.failures, 0);
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        for limit in 4..20 {
            let cut = text("ääääääääääääää".as_bytes(), limit);
            assert!(cut.len() <= limit && cut.ends_with('…'), "{limit}: {cut}");
        }
        assert_eq!(text(b"\xff\xfe", 6), "\u{fffd}\u{fffd}");
        assert_eq!(text(b"short", 5), "short");
        let mut long = Message::default();
        for _ in 0..10_000 {
            long.line(b"0123456789");
        }
        let long = message(&long.take()).unwrap();
        assert!(long.len() <= MAX_ERROR && long.contains("\n…\n"));
        assert!(long.starts_with("0123456789\n") && long.ends_with("\n0123456789"));
        let mut wide = Message::default();
        wide.line(&[b'x'; 10_000]);
        wide.line(b"ValueError: last");
        let wide = message(&wide.take()).unwrap();
        assert!(wide.len() <= MAX_ERROR && wide.ends_with("\nValueError: last"), "{wide}");
        let mut short = Message::default();
        ["a", "", "b"].iter().for_each(|line| short.line(line.as_bytes()));
        assert_eq!(short.take(), b"a\n\nb");
        assert!(short.is_empty());
    }

    #[test]
    fn a_long_name_is_found_again() {
        let mut details = Details::default();
        let name = vec![b'n'; 2 * MAX_NAME];
        details.push(&name, TestStatus::Failed, None);
        details.explain(&name, b"why");
        assert_eq!(details.list[0].error.as_deref(), Some("why"));
    }
}
