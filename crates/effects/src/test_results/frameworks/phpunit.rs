//! PHPUnit: numbered sections, `Time:`, then `OK (N tests, …)` or a heading and `Tests: N, …`.

use crate::test_results::framework_results::{Details, FrameworkResults, Message, TestCounts};
use crate::test_results::output_cuts::OutputCuts;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{find, number, parts, split, split_last, whole_number};
use retake_types::{Confidence, Framework, Stream, TestStatus};

pub(super) const BEGINNINGS: &[&[u8]] =
    &[b"PH", b"Ti", b"Th", b"OK", b"FA", b"ER", b"WA", b"Te", b"No"];

#[derive(Default)]
pub(super) struct Phpunit {
    banner: bool,
    section: Option<(Stream, Option<TestStatus>)>,
    name: Option<Vec<u8>>,
    message: Message,
    closing: ClosingLine,
    closing_stream: Option<Stream>,
    counts: TestCounts,
    summaries: u64,
    details: Details,
    none: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum ClosingLine {
    #[default]
    No,
    /// After `Time: …, Memory: …`: `OK` may follow.
    Timed,
    /// After `FAILURES!` and similar: the numbers follow.
    Headed,
}

impl Recogniser for Phpunit {
    fn line(&mut self, line: &Line<'_>) -> Attention {
        // The other stream's lines may come in between.
        let waited = self.closing == ClosingLine::No || self.closing_stream == Some(line.stream);
        if !line.text.is_empty() && waited {
            self.see(line);
            self.closing_stream = Some(line.stream);
        }
        match self.section {
            Some((stream, _)) if stream == line.stream => Attention::Alone,
            Some(_) => Attention::All,
            None if self.closing != ClosingLine::No => Attention::All,
            None => Attention::Idle,
        }
    }

    fn finish(mut self: Box<Self>, _cuts: OutputCuts) -> Option<FrameworkResults> {
        self.end_entry();
        let (counts, confidence) = match self.summaries {
            0 if self.none => (TestCounts::default(), Confidence::Medium),
            0 if self.banner => (TestCounts::default(), Confidence::Low),
            0 => return None,
            _ if self.banner => (self.counts, Confidence::High),
            _ => (self.counts, Confidence::Medium),
        };
        Some(FrameworkResults {
            details: self.details,
            cut: self.summaries == 0 && !self.none,
            begins: self.banner,
            ends: self.summaries > 0,
            ..FrameworkResults::new(Framework::Phpunit, confidence, counts)
        })
    }
}

impl Phpunit {
    fn see(&mut self, line: &Line<'_>) {
        let text = line.text;
        if line.at_margin() && self.margin(line) {
            return;
        }
        match self.section {
            Some((stream, _)) if stream == line.stream => {
                if let Some(name) = entry(text).filter(|_| line.at_margin() && !line.unfinished) {
                    self.end_entry();
                    self.name = Some(name);
                } else if text == b"--" {
                    self.end_entry();
                    self.section = None;
                } else {
                    self.message.line(line.whole);
                }
            }
            _ => self.closing = ClosingLine::No,
        }
    }

    fn margin(&mut self, line: &Line<'_>) -> bool {
        let text = line.text;
        let before = self.closing;
        if text.starts_with(b"PHPUnit ") && text.ends_with(b"Sebastian Bergmann and contributors.")
        {
            self.banner = true;
        } else if text.starts_with(b"Time: ") && find(text, b", Memory: ").is_some() {
            self.closing = ClosingLine::Timed;
        } else if let Some(status) = section(text) {
            self.end_entry();
            self.section = Some((line.stream, status));
            self.closing = ClosingLine::No;
        } else if heading(text) && (self.banner || before == ClosingLine::Timed) {
            self.end_entry();
            self.section = None;
            self.closing = ClosingLine::Headed;
        } else if let Some(rest) = text.strip_prefix(b"Tests: ")
            && before == ClosingLine::Headed
            && let Some(tally) = numbers(rest)
        {
            self.add(tally);
        } else if let Some(rest) = text.strip_prefix(b"OK (")
            && before == ClosingLine::Timed
            && let Some(passed) = plain(rest)
        {
            self.add(TestCounts { passed, ..TestCounts::default() });
        } else if text == b"No tests executed!" && self.banner {
            self.none = true;
        } else {
            return false;
        }
        true
    }

    fn add(&mut self, tally: TestCounts) {
        self.counts += tally;
        self.summaries += 1;
        self.closing = ClosingLine::No;
    }

    fn end_entry(&mut self) {
        let message = self.message.take();
        let Some((_, Some(status))) = self.section else { return };
        if let Some(name) = self.name.take() {
            self.details.put(&name, status, None);
            if status.is_failure() {
                self.details.explain(&name, &message);
            }
        }
    }
}

/// `There was 1 failure:`, with the status of the listed tests.
fn section(text: &[u8]) -> Option<Option<TestStatus>> {
    let rest = text.strip_prefix(b"There was ").or(text.strip_prefix(b"There were "))?;
    let (_, what) = number(rest)?;
    match what.strip_suffix(b":")? {
        b" failure" | b" failures" => Some(Some(TestStatus::Failed)),
        b" error" | b" errors" => Some(Some(TestStatus::Error)),
        b" skipped test" | b" skipped tests" | b" incomplete test" | b" incomplete tests" => {
            Some(Some(TestStatus::Skipped))
        }
        b" risky test" | b" risky tests" | b" warning" | b" warnings" => Some(None),
        _ => None,
    }
}

fn heading(text: &[u8]) -> bool {
    matches!(text, b"FAILURES!" | b"ERRORS!" | b"WARNINGS!")
        || text.starts_with(b"OK, but ") && text.ends_with(b"!")
}

/// `9, Assertions: 5, Errors: 1, Failures: 1, Skipped: 1.`
fn numbers(text: &[u8]) -> Option<TestCounts> {
    let text = text.strip_suffix(b".")?;
    let (tests, rest) = split(text, b", ").unwrap_or((text, b""));
    let total = whole_number(tests)?;
    let (mut failed, mut skipped) = (0u64, 0u64);
    for part in parts(rest, b',').filter(|part| !part.is_empty()) {
        let (what, count) = split(part, b": ")?;
        let count = whole_number(count)?;
        match what {
            b"Errors" | b"Failures" => failed += count,
            b"Skipped" | b"Incomplete" => skipped += count,
            // Risky tests pass; warnings and deprecations are not tests.
            _ => {}
        }
    }
    let failed = failed.min(total);
    let skipped = skipped.min(total - failed);
    Some(TestCounts { passed: total - failed - skipped, failed, skipped })
}

/// `3 tests, 3 assertions)`
fn plain(text: &[u8]) -> Option<u64> {
    let (tests, rest) = split(text.strip_suffix(b")")?, b", ")?;
    let (count, b" tests" | b" test") = number(tests)? else { return None };
    let (_, b" assertions" | b" assertion") = number(rest)? else { return None };
    Some(count)
}

/// `1) Class::name with data set "one" (1)`, without the data.
fn entry(text: &[u8]) -> Option<Vec<u8>> {
    let name = number(text)?.1.strip_prefix(b") ")?;
    find(name, b"::")?;
    let data = find(name, b" with data set ");
    match data.and_then(|_| split_last(name, b" (")) {
        Some((bare, arguments)) if arguments.ends_with(b")") => Some(bare.to_vec()),
        _ => Some(name.to_vec()),
    }
}
