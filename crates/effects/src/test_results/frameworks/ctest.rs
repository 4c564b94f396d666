//! CTest: a row per test and `X% tests passed, F tests failed out of N`.
//!
//! The summary counts skipped tests as passed and omits disabled ones, so the rows are counted if
//! they agree with it.

use crate::test_results::framework_results::{Details, FrameworkResults, TestCounts, clipped};
use crate::test_results::limits::MAX_RUNNING;
use crate::test_results::output_cuts::OutputCuts;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{duration, number, split, split_last};
use retake_types::{Confidence, Framework, TestStatus};

pub(super) const BEGINNINGS: &[&[u8]] =
    &[b"Te", b"No", b"St", b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9"];

#[derive(Default)]
pub(super) struct Ctest {
    project: bool,
    /// Tests that have started but have no row yet.
    started: Vec<Vec<u8>>,
    /// Whether the first row's number was not 1.
    headless: bool,
    cut: bool,
    summary_at: u64,
    rows: TestCounts,
    /// The rows above the last summary.
    visible: TestCounts,
    details: Details,
    counts: TestCounts,
    summaries: u64,
    none: bool,
    /// After the summary: the lists of tests that did not run or failed.
    listing: bool,
    /// Whether no row has counted the listed tests.
    listed_all: bool,
    /// The numbers of the last summary, while its lists may still name skipped tests.
    said: Option<TestCounts>,
}

impl Recogniser for Ctest {
    fn line(&mut self, line: &Line<'_>) -> Attention {
        self.see(line);
        if self.listing { Attention::All } else { Attention::Idle }
    }

    fn finish(mut self: Box<Self>, cuts: OutputCuts) -> Option<FrameworkResults> {
        // The lists at the end tell which tests were skipped.
        let lists_missing = cuts.end && self.listed_all;
        if let Some(said) = self.said.as_mut().filter(|_| lists_missing) {
            said.passed = said.passed.min(self.visible.passed);
        }
        self.count_summary();
        let (counts, confidence) = match self.summaries {
            0 if self.rows.total() > 0 => (self.rows, Confidence::Medium),
            0 if self.none => (TestCounts::default(), Confidence::Medium),
            0 => return None,
            _ if self.project || !self.details.list.is_empty() => (self.counts, Confidence::High),
            _ => (self.counts, Confidence::Low),
        };
        let ended = self.summaries > 0 || self.none;
        Some(FrameworkResults {
            details: self.details,
            cut: !ended || self.cut || lists_missing,
            begins: self.project,
            ends: ended,
            summary_at: self.summary_at,
            running: if ended { Vec::new() } else { self.started },
            ..FrameworkResults::new(Framework::Ctest, confidence, counts)
        })
    }
}

impl Ctest {
    fn see(&mut self, line: &Line<'_>) {
        let text = line.text;
        if line.unfinished {
            return;
        }
        if let Some(Row { position, name, status, time }) = row(text) {
            self.withdraw_summary();
            let cut = position.is_some_and(|number| number > 1);
            self.headless |= self.rows.total() == 0 && !self.project && cut;
            self.started.retain(|started| started != name);
            if let Some(before) = self.details.put(name, status, time) {
                self.rows.uncount(before);
            }
            self.rows.count(status);
        } else if let Some(name) = started(text) {
            if self.started.len() < MAX_RUNNING {
                self.started.push(clipped(name).to_vec());
            }
        } else if line.at_margin() {
            if text.starts_with(b"Test project ") {
                self.count_summary();
                self.project = true;
            } else if text == b"No tests were found!!!" {
                self.none = true;
            } else if let Some((failed, total)) = summary(text) {
                self.summary_at = line.number;
                self.summary(failed, total);
            }
        } else if self.listing {
            self.listed(text);
        }
    }

    fn summary(&mut self, failed: u64, total: u64) {
        // It must agree with the rows above it: a test may print a summary. If the first rows were
        // cut off, it counts more than they do.
        let rows = self.rows;
        let agrees = rows.failed == failed && rows.total() >= total && !self.headless;
        let cut = self.headless && rows.failed <= failed;
        if rows.total() > 0 && !agrees && !cut {
            return;
        }
        self.count_summary();
        self.summaries += 1;
        self.listing = true;
        self.cut |= cut;
        self.listed_all = rows.total() == 0 || cut;
        self.visible = std::mem::take(&mut self.rows);
        self.said = Some(if agrees && rows.total() > 0 {
            rows
        } else {
            TestCounts { passed: total.saturating_sub(failed), failed, skipped: 0 }
        });
    }

    /// `7 - skips (Skipped)`
    fn listed(&mut self, text: &[u8]) {
        let Some((_, rest)) = number(text) else { return };
        let Some(rest) = rest.strip_prefix(b" - ") else { return };
        let Some((name, why)) = rest.strip_suffix(b")").and_then(|r| split_last(r, b" (")) else {
            return;
        };
        let status = match why {
            b"Skipped" | b"Disabled" => TestStatus::Skipped,
            b"Not Run" => TestStatus::Error,
            _ => TestStatus::Failed,
        };
        self.details.put(name.trim_ascii(), status, None);
        if let (true, Some(said)) = (self.listed_all, &mut self.said)
            && status == TestStatus::Skipped
        {
            said.skipped += 1;
            // Disabled ones were not in the total.
            said.passed = said.passed.saturating_sub(u64::from(why == b"Skipped"));
        }
    }

    /// Rows follow the last summary, so it was output of a test.
    fn withdraw_summary(&mut self) {
        if self.said.take().is_some() {
            self.summaries -= 1;
            self.listing = false;
        }
    }

    fn count_summary(&mut self) {
        self.listing = false;
        if let Some(said) = self.said.take() {
            self.counts += said;
        }
    }
}

/// `Start 4: name`
fn started(text: &[u8]) -> Option<&[u8]> {
    let (_, rest) = number(text.strip_prefix(b"Start ")?.trim_ascii_start())?;
    rest.strip_prefix(b": ")
}

struct Row<'a> {
    position: Option<u64>,
    name: &'a [u8],
    status: TestStatus,
    time: Option<u64>,
}

/// `1/9 Test #1: name ....   Passed    0.00 sec`, with the first number; a repeated test has
/// another row without it.
fn row(text: &[u8]) -> Option<Row<'_>> {
    let (position, rest) = match number(text) {
        Some((at, rest)) => (Some(at), number(rest.strip_prefix(b"/")?)?.1),
        None => (None, text),
    };
    let (_, rest) = number(
        rest.trim_ascii_start().strip_prefix(b"Test")?.trim_ascii_start().strip_prefix(b"#")?,
    )?;
    let rest = rest.strip_prefix(b": ")?;
    let (rest, time) = match rest.strip_suffix(b" sec").and_then(|rest| split_last(rest, b" ")) {
        Some((rest, time)) => (rest.trim_ascii_end(), duration(&[time, b"s"].concat())),
        None => (rest, None),
    };
    // The name is padded with dots; the status follows them.
    let (name, word) = match split(rest, b"***") {
        Some((name, word)) => (name, word),
        None => {
            let (name, word) = split_last(rest, b".")?;
            (name, word.trim_ascii())
        }
    };
    let name = name.trim_ascii_end();
    let dots = name.iter().rev().take_while(|byte| **byte == b'.').count();
    let name = name[..name.len() - dots].trim_ascii_end();
    let status = match word {
        b"Passed" => TestStatus::Passed,
        b"Skipped" | b"Not Run (Disabled)" => TestStatus::Skipped,
        _ if word.starts_with(b"Not Run") => TestStatus::Error,
        _ if [&b"Failed"[..], b"Timeout", b"Exception", b"Bad", b"Unable"]
            .iter()
            .any(|known| word.starts_with(known)) =>
        {
            TestStatus::Failed
        }
        _ if split(rest, b"***").is_some() => TestStatus::Failed,
        _ => return None,
    };
    Some(Row { position, name, status, time })
}

/// `38% tests passed, 5 tests failed out of 8`
fn summary(text: &[u8]) -> Option<(u64, u64)> {
    let (percent, rest) = number(text)?;
    let (failed, rest) = number(rest.strip_prefix(b"% tests passed, ")?)?;
    let rest = rest
        .strip_prefix(b" tests failed out of ")
        .or(rest.strip_prefix(b" test failed out of "))?;
    let (total, rest) = number(rest)?;
    (percent <= 100 && failed <= total && rest.is_empty()).then_some((failed, total))
}
