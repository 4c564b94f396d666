//! `cargo test`: libtest's rows and summaries, one block per binary and one for doctests.
//!
//! A block starts with `running N tests` and ends with a `test result:` that counts N tests, so
//! that a test's output is not mistaken for a result, even if it looks like one. Between
//! `failures:` and the result everything is captured output, which other recognisers do not get.
//!
//! If the beginning was cut off, rows and a result precede any block. Then the last of several
//! results is the real one, and the whole is partial.

use crate::test_results::framework_results::{
    Details, FrameworkResults, Message, TestCounts, add_problem, clipped,
};
use crate::test_results::limits::MAX_FAILURE_DETAILS;
use crate::test_results::output_cuts::OutputCuts;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{duration, find, number, parts, split, split_last};
use retake_types::{Confidence, Framework, Stream, TestStatus};

/// Maximum nesting of blocks: an aborted binary leaves its block open, and a test may print a
/// block.
const MAX_OPEN: usize = 8;

/// Maximum closed blocks inside one; further ones count as real.
const MAX_INNER: usize = 1_000;

pub(super) const BEGINNINGS: &[&[u8]] =
    &[b"te", b"ru", b"er", b"fa", b"su", b"ok", b"ig", b"FA", b"Ru", b"Do", b"Fi", b"--"];

#[derive(Default)]
pub(super) struct Cargo {
    open: Vec<Block>,
    counts: TestCounts,
    details: Details,
    closed: u64,
    /// Whether a block was seen.
    begun: bool,
    before_blocks: BeforeBlocks,
    programs: Programs,
    section: Section,
    section_stream: Option<Stream>,
    listed: Vec<Vec<u8>>,
    listing_failures: bool,
    message_of: Option<Vec<u8>>,
    message: Message,
    messages: Vec<(Vec<u8>, Vec<u8>)>,
    /// A row whose status follows the test's output.
    waiting: Option<Vec<u8>>,
    problems: Vec<String>,
    compile_error_in_tests: bool,
    target_failed: bool,
    all_targets_ran: bool,
    aborted: bool,
    summary_at: u64,
}

struct Block {
    announced: u64,
    rows: TestCounts,
    /// A matching result although rows are missing: the last such result belongs to the block.
    result: Option<TestCounts>,
    details_from: usize,
    /// Blocks that closed inside this one: real if this one never closes, otherwise test output.
    inner: Vec<(std::ops::Range<usize>, TestCounts)>,
}

/// The remains of blocks whose beginning was cut off.
#[derive(Default)]
struct BeforeBlocks {
    rows: TestCounts,
    tally: Option<TestCounts>,
    /// Whether the previous line was also a result: a search left the results of several blocks.
    adjacent: bool,
}

impl BeforeBlocks {
    fn counts(&self) -> TestCounts {
        self.tally.unwrap_or(self.rows)
    }

    fn seen(&self) -> bool {
        self.tally.is_some() || self.rows.total() > 0
    }
}

/// The test programs that cargo reported to run.
#[derive(Default)]
struct Programs {
    named: u64,
    /// Per stream: cargo reported that it built them, it named one, a block started.
    built: [bool; 2],
    runs: [bool; 2],
    blocks: [bool; 2],
    /// Whether the first of them were cut off.
    headless: bool,
}

impl Programs {
    /// `Running unittests src/lib.rs (target/…)`, `Doc-tests name`
    fn line(&mut self, line: &Line<'_>) {
        let of_stream = line.stream as usize;
        let runs = line.text.starts_with(b"Running ")
            && !line.text.starts_with(b"Running `")
            && line.text.ends_with(b")");
        if line.text.starts_with(b"Finished ") {
            self.built[of_stream] = true;
        } else if runs || line.text.starts_with(b"Doc-tests ") {
            self.named += 1;
            // It first reports that they are built, and then each one before its block.
            let first = !self.runs[of_stream];
            self.headless |= !self.built[of_stream] || first && self.blocks[of_stream];
            self.runs[of_stream] = true;
        }
    }
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Section {
    #[default]
    Rows,
    /// After `failures:` before any block: captured output or the list of names follows.
    Unsure,
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
            Section::Rows if self.waiting.is_some() || self.before_blocks.adjacent => {
                Attention::All
            }
            Section::Rows => Attention::Idle,
            _ if self.section_stream == Some(line.stream) => Attention::Alone,
            _ => Attention::All,
        }
    }

    fn finish(mut self: Box<Self>, _cuts: OutputCuts) -> Option<FrameworkResults> {
        self.close_with_result();
        let running = self.waiting.take();
        for block in std::mem::take(&mut self.open) {
            self.counts += block.rows;
            self.aborted = true;
        }
        let before = std::mem::take(&mut self.before_blocks);
        let headless = self.programs.headless || before.seen();
        self.counts += before.counts();
        let confidence = if self.closed > 0 {
            Confidence::High
        } else if self.begun || before.tally.is_some() && before.rows.total() > 0 {
            Confidence::Medium
        } else if before.seen() {
            Confidence::Low
        } else if self.compile_error_in_tests {
            Confidence::High
        } else {
            return None;
        };
        let named = self.programs.named;
        let all_programs = named > 0 && self.closed >= named && !headless;
        let stopped = self.target_failed && !self.all_targets_ran;
        Some(FrameworkResults {
            details: self.details,
            problems: self.problems,
            partial: self.aborted || headless || stopped,
            begins: all_programs,
            ends: all_programs,
            summary_at: self.summary_at,
            running: running.into_iter().collect(),
            ..FrameworkResults::new(Framework::Cargo, confidence, self.counts)
        })
    }
}

impl Cargo {
    fn outside(&mut self, line: &Line<'_>) {
        let adjacent = std::mem::take(&mut self.before_blocks.adjacent);
        if !line.at_margin() {
            self.programs.line(line);
            return;
        }
        let text = line.text;
        if let Some(rest) = text.strip_prefix(b"test ") {
            if let Some(result) = rest.strip_prefix(b"result: ") {
                self.before_blocks.adjacent = adjacent;
                self.summary_at = line.number;
                self.result(result);
            } else {
                self.row(rest);
            }
        } else if let Some(rest) = text.strip_prefix(b"running ") {
            self.running(line.stream, rest);
        } else if text == b"failures:" || text == b"successes:" {
            let known = !self.open.is_empty();
            if known || !self.begun && self.before_blocks.rows.total() > 0 {
                self.section = if known { Section::Captured } else { Section::Unsure };
                self.section_stream = Some(line.stream);
            }
        } else if let Some(name) = captured_of(text).filter(|_| !self.begun) {
            // Everything before it was captured output too.
            self.forget_rows();
            self.section = Section::Captured;
            self.section_stream = Some(line.stream);
            self.message_of = Some(clipped(name).to_vec());
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
                self.summary_at = line.number;
                return;
            }
        }
        if self.section == Section::Unsure && !text.is_empty() {
            // A list of names right after rows: the rows were captured output.
            self.forget_rows();
            self.section = Section::Listed;
            self.listing_failures = true;
            self.listed.clear();
        }
        match self.section {
            Section::Listed if line.indent == 4 && self.listed.len() < MAX_FAILURE_DETAILS => {
                self.listed.push(clipped(text).to_vec());
            }
            Section::Captured if self.message_of.is_some() => self.message.line(line.whole),
            _ => {}
        }
    }

    fn running(&mut self, stream: Stream, rest: &[u8]) {
        let Some((announced, b" test" | b" tests")) = number(rest) else { return };
        self.waiting = None;
        self.begun = true;
        self.programs.blocks[stream as usize] = true;
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
            // True for nearly every line of a log.
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
            None if self.begun => return,
            None => self.before_blocks.rows.count(status),
        }
        self.details.push(bare(name), status, time);
    }

    /// Rows before any block were captured output.
    fn forget_rows(&mut self) {
        self.before_blocks = BeforeBlocks::default();
        self.details = Details::default();
    }

    /// Whether the line is the result of an open block.
    fn result(&mut self, text: &[u8]) -> bool {
        let Some(tally) = summary(text) else { return false };
        let fits = |block: &Block| block.announced == tally.total();
        let Some(index) = self.open.iter().rposition(fits) else {
            return !self.begun && self.result_before_blocks(tally);
        };
        if !self.own_result(index, tally) {
            return false;
        }
        self.close(index, tally);
        true
    }

    /// Whether the line can be the result of a block whose beginning was cut off.
    fn result_before_blocks(&mut self, tally: TestCounts) -> bool {
        if matches!(self.section, Section::Captured | Section::Unsure) {
            return false;
        }
        let before = &mut self.before_blocks;
        let adjacent = std::mem::replace(&mut before.adjacent, true);
        let earlier = before.tally.filter(|_| adjacent).unwrap_or_default();
        before.tally = Some(tally);
        *before.tally.get_or_insert_default() += earlier;
        self.end_block(tally);
        true
    }

    /// Whether a matching result can belong to the block. With a failure, the list of failed tests
    /// precedes it; otherwise all rows do, unless output of tests has split some.
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
        // Blocks still open or closed inside this one were output of its tests.
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
        self.end_block(tally);
        if let Some(outer) = self.open.last_mut().filter(|outer| outer.inner.len() < MAX_INNER) {
            outer.inner.push((block.details_from..self.details.list.len(), tally));
        }
    }

    /// Takes names and messages from the list of failures, which is complete.
    fn end_block(&mut self, tally: TestCounts) {
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

/// `ok`, `FAILED`, `ignored[, why]`, `bench: …`, each optionally with ` <0.001s>`.
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

/// The name without libtest's suffixes about the expected result.
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

/// The text after `test result: `, which must be a complete result.
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
