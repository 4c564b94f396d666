//! `dotnet test`: VSTest's line per assembly or block, the terminal logger's line, and the block of
//! Microsoft.Testing.Platform. Only in English: reports are the same in every language.

use crate::test_results::framework_results::{
    Details, FrameworkResults, Message, TestCounts, add_problem,
};
use crate::test_results::output_cuts::OutputCuts;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{duration, parts, split, split_last, whole_number};
use retake_types::{Confidence, Framework, Stream, TestStatus};

pub(super) const BEGINNINGS: &[&[u8]] =
    &[b"Pa", b"Fa", b"Sk", b"To", b"Te", b"Bu", b"pa", b"fa", b"sk", b"to", b"su"];

#[derive(Default)]
pub(super) struct Dotnet {
    /// Sums of `Passed!  - Failed: …` lines, one per assembly.
    assemblies: Option<TestCounts>,
    /// The number of these lines, and of announcements `Test run for …`.
    lines: u64,
    started: u64,
    /// `Test summary:` and `Test run summary:` count all assemblies together.
    overall: Option<TestCounts>,
    block: Option<Block>,
    blocks: Option<TestCounts>,
    rows: TestCounts,
    details: Details,
    failing: Option<(Stream, Vec<u8>)>,
    in_message: bool,
    message: Message,
    problems: Vec<String>,
}

/// Numbers printed one per line.
struct Block {
    stream: Stream,
    platform: bool,
    total: u64,
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Recogniser for Dotnet {
    fn line(&mut self, line: &Line<'_>) -> Attention {
        self.see(line);
        let open = self.failing.is_some() || self.block.is_some();
        if open { Attention::All } else { Attention::Idle }
    }

    fn finish(mut self: Box<Self>, _cuts: OutputCuts) -> Option<FrameworkResults> {
        self.end_message();
        self.end_block();
        let (counts, confidence) = match (self.overall, self.assemblies, self.blocks) {
            (Some(tally), ..) | (None, Some(tally), _) | (None, None, Some(tally)) => {
                (tally, Confidence::High)
            }
            (None, None, None) => return None,
        };
        Some(FrameworkResults {
            details: self.details,
            problems: self.problems,
            cut: self.overall.is_none()
                && self.lines > 0
                && self.lines != self.started
                && self.started > 0,
            begins: self.overall.is_some() && self.started > 0,
            ends: self.overall.is_some(),
            ..FrameworkResults::new(Framework::Dotnet, confidence, counts)
        })
    }
}

impl Dotnet {
    fn see(&mut self, line: &Line<'_>) {
        let text = line.text;
        if self.block.as_ref().is_some_and(|block| block.stream == line.stream) {
            if self.block_line(text) {
                return;
            }
            self.end_block();
        }
        if self.failing.as_ref().is_some_and(|(stream, _)| *stream == line.stream)
            && self.failure_line(line)
        {
            return;
        }
        if line.at_margin() && self.margin(line) {
            return;
        }
        if let Some((name, status, time)) = row(line) {
            self.end_message();
            if let Some(before) = self.details.put(name, status, time) {
                self.rows.uncount(before);
            }
            self.rows.count(status);
            if status.is_failure() {
                self.failing = Some((line.stream, name.to_vec()));
            }
        }
    }

    fn margin(&mut self, line: &Line<'_>) -> bool {
        let text = line.text;
        let verdicts = [&b"Passed!"[..], b"Failed!", b"Skipped!"];
        if let Some(rest) = verdicts.iter().find_map(|word| text.strip_prefix(*word)) {
            let rest = rest.trim_ascii_start().strip_prefix(b"- ");
            let Some(tally) = rest.and_then(numbers) else { return false };
            *self.assemblies.get_or_insert_default() += tally;
            self.lines += 1;
        } else if text.starts_with(b"Test run for ") {
            self.started += 1;
        } else if let Some(rest) = text.strip_prefix(b"Test summary: ") {
            let Some(tally) = numbers(rest) else { return false };
            *self.overall.get_or_insert_default() += tally;
        } else if let Some(total) = text.strip_prefix(b"Total tests: ") {
            if let Some(tally) = on_one_line(total) {
                *self.blocks.get_or_insert_default() += tally;
                return true;
            }
            let Some(total) = whole_number(total.trim_ascii()) else { return false };
            self.block = Some(Block::new(line.stream, false, total));
        } else if text.starts_with(b"Test run summary: ") {
            self.block = Some(Block::new(line.stream, true, 0));
        } else if text == b"Build FAILED." {
            add_problem(&mut self.problems, b"build failed");
        } else if text == b"Test Run Aborted." {
            add_problem(&mut self.problems, b"test run aborted");
        } else {
            return false;
        }
        self.end_message();
        true
    }

    /// Whether the line is another number of the block.
    fn block_line(&mut self, text: &[u8]) -> bool {
        let Some(block) = &mut self.block else { return false };
        let Some((word, value)) = split(text, b": ") else {
            return block.platform && block.total == 0 && text.is_empty();
        };
        let slot = match word {
            b"total" if block.platform => &mut block.total,
            b"Passed" | b"succeeded" => &mut block.passed,
            b"Failed" | b"failed" => &mut block.failed,
            b"Skipped" | b"skipped" => &mut block.skipped,
            b"error" | b"duration" => return block.platform,
            _ => return false,
        };
        let Some(value) = whole_number(value.trim_ascii()) else { return false };
        *slot = value;
        true
    }

    fn end_block(&mut self) {
        let Some(block) = self.block.take() else { return };
        let tally =
            TestCounts { passed: block.passed, failed: block.failed, skipped: block.skipped };
        // Without numbers it was only a heading.
        if tally.total() == 0 || block.total != tally.total() {
            return;
        }
        let sum = if block.platform { &mut self.overall } else { &mut self.blocks };
        *sum.get_or_insert_default() += tally;
    }

    /// Whether the line belongs to a failure's message and trace.
    fn failure_line(&mut self, line: &Line<'_>) -> bool {
        match line.text {
            b"Error Message:" => self.in_message = true,
            b"Stack Trace:" | b"Standard Output Messages:" => self.in_message = false,
            _ if self.in_message && !line.text.is_empty() && line.indent > 0 => {
                self.message.line(line.text);
            }
            _ => return false,
        }
        true
    }

    fn end_message(&mut self) {
        self.in_message = false;
        let message = self.message.take();
        if let Some((_, name)) = self.failing.take() {
            self.details.explain(&name, &message);
        }
    }
}

impl Block {
    fn new(stream: Stream, platform: bool, total: u64) -> Self {
        Self { stream, platform, total, passed: 0, failed: 0, skipped: 0 }
    }
}

/// `Failed: 1, Passed: 4, Skipped: 1, Total: 6, Duration: 12 ms - Tests.dll (net8.0)` and
/// `total: 6, failed: 1, succeeded: 4, skipped: 1, duration: 1.2s`
fn numbers(text: &[u8]) -> Option<TestCounts> {
    let mut tally = TestCounts::default();
    let mut total = None;
    for part in parts(text, b',') {
        let (word, value) = split(part, b":")?;
        let slot = match word {
            b"Failed" | b"failed" => &mut tally.failed,
            b"Passed" | b"succeeded" => &mut tally.passed,
            b"Skipped" | b"skipped" => &mut tally.skipped,
            b"Total" | b"total" => total.insert(0),
            b"Duration" | b"duration" => break,
            _ => return None,
        };
        *slot = whole_number(value.trim_ascii())?;
    }
    (total? == tally.total()).then_some(tally)
}

/// `39. Passed: 33. Failed: 4. Skipped: 2.`, the format of VSTest before version 16.
fn on_one_line(text: &[u8]) -> Option<TestCounts> {
    let text = text.strip_suffix(b".")?;
    let mut fields = parts(text, b'.');
    let total = whole_number(fields.next()?)?;
    let mut tally = TestCounts::default();
    for field in fields {
        let (word, count) = split(field, b": ")?;
        let count = whole_number(count)?;
        match word {
            b"Passed" => tally.passed = count,
            b"Failed" => tally.failed = count,
            b"Skipped" => tally.skipped = count,
            _ => return None,
        }
    }
    (tally.total() == total).then_some(tally)
}

/// `  Failed Namespace.Class.Name [12 ms]`, `failed Name (12ms)`
fn row<'a>(line: &Line<'a>) -> Option<(&'a [u8], TestStatus, Option<u64>)> {
    let (word, rest) = split(line.text, b" ")?;
    let status = match word {
        b"Passed" | b"passed" => TestStatus::Passed,
        b"Failed" | b"failed" => TestStatus::Failed,
        b"Skipped" | b"skipped" => TestStatus::Skipped,
        _ => return None,
    };
    let vstest = word[0].is_ascii_uppercase();
    let (name, time) = if vstest {
        rest.strip_suffix(b"]").and_then(|rest| split_last(rest, b" ["))?
    } else {
        rest.strip_suffix(b")").and_then(|rest| split_last(rest, b" ("))?
    };
    (line.at_margin() != vstest).then_some((name, status, Some(duration(time)?)))
}
