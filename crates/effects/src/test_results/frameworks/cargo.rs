//! `cargo test`: libtest's rows and summaries, one block per binary and one for doctests.
//!
//! A block opens with `running N tests` and closes with a `test result:` that counts N tests, so
//! what a test prints is not taken for a result, even if it looks like one. Between `failures:`
//! and the result everything is captured output, which is kept from other recognisers too.

use crate::test_results::framework_results::{
    Details, FrameworkResults, Message, TestCounts, add_problem, clipped,
};
use crate::test_results::limits::MAX_FAILURE_DETAILS;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{duration, find, number, parts, split, split_last};
use retake_types::{Confidence, Framework, Stream, TestStatus};

/// Blocks within blocks: an aborted binary leaves its block open, and a test may print a block.
const MAX_OPEN: usize = 8;

/// Blocks that closed inside of one; further ones are taken as real.
const MAX_INNER: usize = 1_000;

pub(super) const BEGINNINGS: &[&[u8]] = &[b"te", b"ru", b"er", b"fa", b"su", b"ok", b"ig", b"FA"];

#[derive(Default)]
pub(super) struct Cargo {
    open: Vec<Block>,
    counts: TestCounts,
    details: Details,
    closed: u64,
    /// Rows outside of any block, and results that close none: the beginning was cut off.
    loose: TestCounts,
    orphan: Option<TestCounts>,
    section: Section,
    section_stream: Option<Stream>,
    listed: Vec<Vec<u8>>,
    listing_failures: bool,
    message_of: Option<Vec<u8>>,
    message: Message,
    messages: Vec<(Vec<u8>, Vec<u8>)>,
    /// A row whose status comes after what the test prints.
    waiting: Option<Vec<u8>>,
    problems: Vec<String>,
    compile_error_in_tests: bool,
    target_failed: bool,
    all_targets_ran: bool,
    aborted: bool,
}

struct Block {
    announced: u64,
    rows: TestCounts,
    /// A result that fits, while rows are missing: the last one is the block's own.
    result: Option<TestCounts>,
    details_from: usize,
    /// Blocks that closed inside this one: real if this one never closes, printed by a test if
    /// it does.
    inner: Vec<(std::ops::Range<usize>, TestCounts)>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Section {
    #[default]
    Rows,
    Captured,
    Listed,
}

impl Recogniser for Cargo {
    fn line(&mut self, line: &Line<'_>) -> Attention {
        if self.section == Section::Rows {
            self.outside(line);
        } else if self.section_stream == Some(line.stream) {
            self.inside(line);
        } else if line.at_margin() {
            self.error(line.text);
        }
        match self.section {
            Section::Rows if self.waiting.is_some() => Attention::All,
            Section::Rows => Attention::Idle,
            _ if self.section_stream == Some(line.stream) => Attention::Alone,
            _ => Attention::All,
        }
    }

    fn finish(mut self: Box<Self>, _exit: Option<i32>) -> Option<FrameworkResults> {
        self.close_with_result();
        for block in std::mem::take(&mut self.open) {
            self.counts += block.rows;
            self.aborted = true;
        }
        let rows = self.counts.total() > 0 || self.aborted;
        let (counts, confidence) = if self.closed > 0 {
            (self.counts, Confidence::High)
        } else if rows {
            (self.counts, Confidence::Medium)
        } else if let Some(orphan) = self.orphan {
            (orphan, Confidence::Low)
        } else if self.loose.total() > 0 {
            self.aborted = true;
            (self.loose, Confidence::Low)
        } else if self.compile_error_in_tests {
            (TestCounts::default(), Confidence::High)
        } else {
            return None;
        };
        Some(FrameworkResults {
            details: self.details,
            problems: self.problems,
            partial: self.aborted || self.target_failed && !self.all_targets_ran,
            ..FrameworkResults::new(Framework::Cargo, confidence, counts)
        })
    }
}

impl Cargo {
    fn outside(&mut self, line: &Line<'_>) {
        if !line.at_margin() {
            return;
        }
        let text = line.text;
        if let Some(rest) = text.strip_prefix(b"test ") {
            if let Some(result) = rest.strip_prefix(b"result: ") {
                self.result(result);
            } else {
                self.row(rest);
            }
        } else if let Some(rest) = text.strip_prefix(b"running ") {
            self.running(rest);
        } else if (text == b"failures:" || text == b"successes:") && !self.open.is_empty() {
            self.section = Section::Captured;
            self.section_stream = Some(line.stream);
        } else if self.waiting.is_some()
            && let Some((status, time)) = status(text)
        {
            let name = self.waiting.take().unwrap_or_default();
            self.count(&name, status, time);
        } else {
            self.error(text);
        }
    }

    fn inside(&mut self, line: &Line<'_>) {
        let text = line.text;
        if line.at_margin() {
            if let Some(name) = captured_of(text) {
                self.end_message();
                self.section = Section::Captured;
                self.message_of = Some(clipped(name).to_vec());
                return;
            }
            if text == b"failures:" || text == b"successes:" {
                self.end_message();
                self.section = Section::Listed;
                self.listing_failures = text == b"failures:";
                self.listed.clear();
                return;
            }
            if let Some(result) = text.strip_prefix(b"test result: ")
                && self.result(result)
            {
                return;
            }
        }
        match self.section {
            Section::Listed if line.indent == 4 && self.listed.len() < MAX_FAILURE_DETAILS => {
                self.listed.push(clipped(text).to_vec());
            }
            Section::Captured if self.message_of.is_some() => self.message.line(line.whole),
            _ => {}
        }
    }

    fn running(&mut self, rest: &[u8]) {
        let Some((announced, b" test" | b" tests")) = number(rest) else { return };
        self.waiting = None;
        self.close_with_result();
        if self.open.len() == MAX_OPEN {
            let outermost = self.open.remove(0);
            self.counts += outermost.rows;
            self.aborted = true;
        }
        self.open.push(Block {
            announced,
            rows: TestCounts::default(),
            result: None,
            details_from: self.details.list.len(),
            inner: Vec::new(),
        });
    }

    fn row(&mut self, rest: &[u8]) {
        if let Some(name) = rest.strip_suffix(b" ... ok") {
            // Nearly every line of a log.
            self.waiting = None;
            self.count(name, TestStatus::Passed, None);
        } else if let Some((name, word)) = split_last(rest, b" ... ")
            && let Some((status, time)) = status(word)
        {
            self.waiting = None;
            self.count(name, status, time);
        } else if let Some((name, _)) = split(rest, b" ...") {
            self.waiting = Some(clipped(name).to_vec());
        }
    }

    fn count(&mut self, name: &[u8], status: TestStatus, time: Option<u64>) {
        match self.open.last_mut() {
            Some(block) => block.rows.count(status),
            None => self.loose.count(status),
        }
        self.details.push(bare(name), status, time);
    }

    /// Whether the line is the result of an open block.
    fn result(&mut self, text: &[u8]) -> bool {
        let Some(tally) = summary(text) else { return false };
        let fits = |block: &Block| block.announced == tally.total();
        let Some(index) = self.open.iter().rposition(fits) else {
            if self.open.is_empty() {
                let rows = std::mem::take(&mut self.loose);
                if rows.total() > 0 && rows.total() <= tally.total() {
                    self.counts += tally;
                } else {
                    *self.orphan.get_or_insert_default() += tally;
                }
            }
            return false;
        };
        if !self.own_result(index, tally) {
            return false;
        }
        self.close(index, tally);
        true
    }

    /// Whether a result that fits can be the block's own. After a failure the list of failed
    /// tests precedes it; without one, all rows do, unless what tests print has torn some.
    fn own_result(&mut self, index: usize, tally: TestCounts) -> bool {
        if self.section != Section::Rows {
            let listed = self.listed.len();
            let all = listed as u64 == tally.failed || listed == MAX_FAILURE_DETAILS;
            let told = if self.listing_failures { all } else { tally.failed == 0 };
            return self.section == Section::Listed && told;
        }
        let Some(block) = self.open.get_mut(index) else { return false };
        if tally.failed > 0 {
            return false;
        }
        if block.rows.total() == 0 || block.rows == tally {
            return true;
        }
        block.result = Some(tally);
        false
    }

    fn close_with_result(&mut self) {
        if let Some(block) = self.open.last()
            && let Some(tally) = block.result
        {
            self.close(self.open.len() - 1, tally);
        }
    }

    fn close(&mut self, index: usize, tally: TestCounts) {
        // Blocks still open inside this one were printed by its tests, as were those that closed.
        let printed = self.open.get(index + 1).map(|inner| inner.details_from..usize::MAX);
        self.open.truncate(index + 1);
        let Some(block) = self.open.pop() else { return };
        let mut ranges = Vec::new();
        for (range, inner) in block.inner {
            ranges.push(range);
            self.counts -= inner;
            self.closed -= 1;
        }
        ranges.extend(printed);
        self.details.remove(&ranges);
        self.counts += tally;
        self.closed += 1;
        self.end_message();
        let listed = std::mem::take(&mut self.listed);
        if self.listing_failures && listed.len() as u64 == tally.failed {
            for name in listed {
                if self.details.get(&name).is_none_or(|known| !known.status.is_failure()) {
                    self.details.push(&name, TestStatus::Failed, None);
                }
            }
        }
        for (name, message) in std::mem::take(&mut self.messages) {
            if self.details.get(&name).is_some_and(|known| known.status.is_failure()) {
                self.details.explain(&name, &message);
            }
        }
        if let Some(outer) = self.open.last_mut().filter(|outer| outer.inner.len() < MAX_INNER) {
            outer.inner.push((block.details_from..self.details.list.len(), tally));
        }
        self.section = Section::Rows;
        self.waiting = None;
    }

    fn end_message(&mut self) {
        let message = self.message.take();
        if let Some(name) = self.message_of.take()
            && self.messages.len() < MAX_FAILURE_DETAILS
        {
            self.messages.push((name, message));
        }
    }

    fn error(&mut self, text: &[u8]) {
        let Some(rest) = text.strip_prefix(b"error: ") else { return };
        if rest.starts_with(b"could not compile ") {
            self.compile_error_in_tests |=
                find(rest, b" test)").is_some() || rest.ends_with(b"(test)");
            self.compile_error_in_tests |= find(rest, b" (test ").is_some();
            add_problem(&mut self.problems, rest);
        } else if rest.starts_with(b"test failed, to rerun pass") {
            self.target_failed = true;
        } else if let Some((_, after)) = number(rest) {
            self.all_targets_ran |= after.starts_with(b" target");
        }
    }
}

/// `ok`, `FAILED`, `ignored[, why]`, `bench: …`, each perhaps with ` <0.001s>`.
fn status(text: &[u8]) -> Option<(TestStatus, Option<u64>)> {
    let (word, time) = match text.strip_suffix(b">").and_then(|text| split_last(text, b" <")) {
        Some((word, time)) => (word, duration(time)),
        None => (text, None),
    };
    let status = match word {
        b"ok" => TestStatus::Passed,
        b"FAILED" | b"failed" => TestStatus::Failed,
        b"ignored" => TestStatus::Skipped,
        _ if word.starts_with(b"ignored, ") => TestStatus::Skipped,
        _ if word.starts_with(b"bench: ") => TestStatus::Passed,
        _ if word.starts_with(b"FAILED (") => TestStatus::Failed,
        _ => return None,
    };
    Some((status, time))
}

/// The name without what libtest says about how the test must go.
fn bare(name: &[u8]) -> &[u8] {
    [&b" - should panic"[..], b" - compile fail", b" - compile"]
        .iter()
        .find_map(|suffix| name.strip_suffix(*suffix))
        .unwrap_or(name)
}

fn captured_of(text: &[u8]) -> Option<&[u8]> {
    let text = text.strip_prefix(b"---- ")?.strip_suffix(b" ----")?;
    text.strip_suffix(b" stdout").or_else(|| text.strip_suffix(b" stderr"))
}

/// What follows `test result: `, which must be a result to its end.
fn summary(text: &[u8]) -> Option<TestCounts> {
    let rest = text.strip_prefix(b"ok. ").or_else(|| text.strip_prefix(b"FAILED. "))?;
    let mut tally = TestCounts::default();
    for (index, part) in parts(rest, b';').enumerate() {
        if index >= 5 {
            part.strip_prefix(b"finished in ")?;
            continue;
        }
        let (count, what) = number(part)?;
        match (index, what) {
            (0, b" passed") => tally.passed += count,
            (1, b" failed") => tally.failed += count,
            (2, b" ignored") => tally.skipped += count,
            (3, b" measured") => tally.passed += count,
            (4, b" filtered out") => {}
            _ => return None,
        }
    }
    Some(tally)
}
