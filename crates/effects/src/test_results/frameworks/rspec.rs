//! RSpec: numbered failures and pending examples, then `N examples, F failures` after `Finished`.

use crate::test_results::framework_results::{
    Details, FrameworkResults, Message, TestCounts, add_problem,
};
use crate::test_results::output_cuts::OutputCuts;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{number, parts};
use retake_types::{Confidence, Framework, Stream, TestStatus};

pub(super) const BEGINNINGS: &[&[u8]] =
    &[b"Fa", b"Pe", b"Fi", b"An", b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9"];

#[derive(Default)]
pub(super) struct Rspec {
    section: Option<(Stream, TestStatus)>,
    name: Option<Vec<u8>>,
    message: Message,
    /// `Finished in …` was the previous line on this stream.
    finished: Option<Stream>,
    counts: TestCounts,
    summaries: u64,
    orphan: Option<TestCounts>,
    summary_at: u64,
    details: Details,
    problems: Vec<String>,
}

impl Recogniser for Rspec {
    fn line(&mut self, line: &Line<'_>) -> Attention {
        match self.section {
            Some((stream, status)) if stream == line.stream => self.within(line, status),
            _ => self.see(line),
        }
        match self.section {
            Some((stream, _)) if stream == line.stream => Attention::Alone,
            Some(_) => Attention::All,
            None if self.finished.is_some() => Attention::All,
            None => Attention::Idle,
        }
    }

    fn finish(mut self: Box<Self>, _cuts: OutputCuts) -> Option<FrameworkResults> {
        self.end_entry(TestStatus::Failed);
        let (counts, confidence) = match (self.summaries, self.orphan) {
            (0, Some(orphan)) => (orphan, Confidence::Low),
            (0, None) => return None,
            _ => (self.counts, Confidence::High),
        };
        Some(FrameworkResults {
            details: self.details,
            problems: self.problems,
            ends: true,
            summary_at: self.summary_at,
            ..FrameworkResults::new(Framework::Rspec, confidence, counts)
        })
    }
}

impl Rspec {
    fn see(&mut self, line: &Line<'_>) {
        if !line.at_margin() {
            return;
        }
        let text = line.text;
        let finished = self.finished == Some(line.stream);
        if finished {
            self.finished = None;
        }
        if text == b"Failures:" {
            self.section = Some((line.stream, TestStatus::Failed));
        } else if text.starts_with(b"Pending: (Failures listed here are expected") {
            self.section = Some((line.stream, TestStatus::Skipped));
        } else if text.starts_with(b"Finished in ") && text.ends_with(b" to load)") {
            self.finished = Some(line.stream);
        } else if let Some(file) = text.strip_prefix(b"An error occurred while loading ") {
            let file = file.strip_suffix(b".").unwrap_or(file);
            self.details.put(file, TestStatus::Error, None);
        } else if text.starts_with(b"An error occurred in a") && text.ends_with(b" hook.") {
            add_problem(&mut self.problems, text);
        } else if let Some(tally) = summary(text) {
            self.summary_at = line.number;
            if finished {
                self.counts += tally;
                self.summaries += 1;
            } else if line.leads {
                // Elsewhere it is output of a test.
                self.orphan = Some(tally);
            }
        }
    }

    fn within(&mut self, line: &Line<'_>, status: TestStatus) {
        if line.at_margin() && !line.text.is_empty() {
            // This section contains no output of tests, only messages and the next section.
            let next = line.text.starts_with(b"Finished in ")
                || line.text == b"Failures:"
                || line.text == b"Failed examples:"
                || line.text.starts_with(b"Pending: ");
            if next {
                self.end_entry(status);
                self.section = None;
                self.see(line);
                return;
            }
        }
        if line.indent == 2
            && let Some(name) = number(line.text).and_then(|(_, rest)| rest.strip_prefix(b") "))
        {
            self.end_entry(status);
            self.name = Some(name.to_vec());
        } else {
            self.message.line(line.whole.get(5..).unwrap_or_default());
        }
    }

    fn end_entry(&mut self, status: TestStatus) {
        let message = self.message.take();
        if let Some(name) = self.name.take() {
            self.details.put(&name, status, None);
            if status.is_failure() {
                self.details.explain(&name, &message);
            }
        }
    }
}

/// `7 examples, 2 failures, 3 pending, 1 error occurred outside of examples`
fn summary(text: &[u8]) -> Option<TestCounts> {
    let (total, rest) = number(text)?;
    let rest = rest.strip_prefix(b" example")?;
    let rest = rest.strip_prefix(b"s").unwrap_or(rest).strip_prefix(b", ")?;
    let (mut failed, mut skipped, mut errors) = (None, 0, 0);
    for part in parts(rest, b',') {
        let (count, what) = number(part)?;
        match what {
            b" failure" | b" failures" => failed = Some(count),
            b" pending" => skipped = count,
            b" error occurred outside of examples" | b" errors occurred outside of examples" => {
                errors = count;
            }
            _ => return None,
        }
    }
    let failed = failed?;
    let passed = total.checked_sub(failed.checked_add(skipped)?)?;
    Some(TestCounts { passed, failed: failed + errors, skipped })
}
