//! Maven Surefire and Failsafe: a line per class, `Results:` and the numbers of each module.

use crate::test_results::framework_results::{Details, FrameworkResults, Message, TestCounts};
use crate::test_results::output_cuts::OutputCuts;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{duration, parts, split, split_last, whole_number};
use retake_types::{Confidence, Framework, Stream, TestStatus};

pub(super) const BEGINNINGS: &[&[u8]] = &[b"[I", b"[E", b"[W", b"T ", b"Te", b"Re"];

#[derive(Default)]
pub(super) struct Surefire {
    running: bool,
    results: bool,
    /// Whether lines have Maven's `[INFO]` prefix; then a line without it is output of a test.
    prefixed: bool,
    /// The first line of Maven, and one of its last.
    scanned: bool,
    built: bool,
    classes: TestCounts,
    counts: TestCounts,
    summaries: u64,
    details: Details,
    failing: Option<(Stream, Vec<u8>)>,
    message: Message,
}

impl Recogniser for Surefire {
    fn line(&mut self, line: &Line<'_>) -> Attention {
        self.see(line);
        match &self.failing {
            Some((stream, _)) if *stream == line.stream => Attention::Alone,
            Some(_) => Attention::All,
            None => Attention::Idle,
        }
    }

    fn finish(mut self: Box<Self>, _cuts: OutputCuts) -> Option<FrameworkResults> {
        self.end_message();
        let (counts, confidence) = match self.summaries {
            0 if self.running && self.classes.total() > 0 => (self.classes, Confidence::Medium),
            0 => return None,
            _ if self.running => (self.counts, Confidence::High),
            _ => (self.counts, Confidence::Medium),
        };
        Some(FrameworkResults {
            details: self.details,
            cut: self.summaries == 0,
            begins: self.scanned,
            ends: self.built,
            ..FrameworkResults::new(Framework::Surefire, confidence, counts)
        })
    }
}

impl Surefire {
    fn see(&mut self, line: &Line<'_>) {
        let (prefixed, text) = bare(line.text);
        if let Some((stream, _)) = &self.failing
            && *stream == line.stream
        {
            if !prefixed && !line.text.is_empty() {
                self.message.line(line.whole);
                return;
            }
            self.end_message();
        }
        if !line.at_margin() || self.prefixed && !prefixed {
            return;
        }
        if prefixed && text.starts_with(b"Scanning for projects") {
            self.scanned = true;
        } else if prefixed && text.starts_with(b"BUILD ") {
            self.built = true;
        } else if text == b"T E S T S" {
            self.prefixed |= prefixed;
            self.running = true;
            self.results = false;
        } else if text == b"Results:" || text == b"Results :" {
            self.results = true;
        } else if let Some(rest) = text.strip_prefix(b"Tests run: ") {
            self.numbers(rest);
        } else if let Some((name, status, time)) = failure(text) {
            self.details.put(&name, status, time);
            self.failing = Some((line.stream, name));
        }
    }

    fn numbers(&mut self, rest: &[u8]) {
        let Some((tally, of_class)) = tally(rest) else { return };
        if of_class {
            self.classes += tally;
        } else if self.results {
            self.counts += tally;
            self.summaries += 1;
            self.results = false;
        }
    }

    fn end_message(&mut self) {
        let message = self.message.take();
        if let Some((_, name)) = self.failing.take() {
            self.details.explain(&name, &message);
        }
    }
}

/// The line without `[INFO] `, and whether it had that prefix.
fn bare(text: &[u8]) -> (bool, &[u8]) {
    [&b"[INFO]"[..], b"[ERROR]", b"[WARNING]"]
        .iter()
        .find_map(|prefix| text.strip_prefix(*prefix))
        .map_or((false, text.trim_ascii()), |rest| (true, rest.trim_ascii()))
}

/// `3, Failures: 1, Errors: 1, Skipped: 0, Time elapsed: 0.1 s <<< FAILURE! - in Class`, and
/// whether it is for one class.
fn tally(text: &[u8]) -> Option<(TestCounts, bool)> {
    let mut of_class = false;
    let mut fields = parts(text, b',');
    let total = whole_number(fields.next()?)?;
    let (mut failed, mut skipped, mut seen) = (0u64, 0u64, 0);
    for field in fields {
        let (what, value) = split(field, b": ")?;
        match what {
            b"Failures" | b"Errors" => failed += whole_number(value)?,
            b"Skipped" => skipped = whole_number(value)?,
            b"Time elapsed" => {
                of_class = true;
                break;
            }
            // Tests that passed when repeated.
            b"Flakes" => {}
            _ => return None,
        }
        seen += 1;
    }
    let passed = total.checked_sub(failed.checked_add(skipped)?)?;
    (seen >= 3).then_some((TestCounts { passed, failed, skipped }, of_class))
}

/// `name(Class)  Time elapsed: 0.01 s  <<< FAILURE!`, `Class.name -- Time elapsed: …`
fn failure(text: &[u8]) -> Option<(Vec<u8>, TestStatus, Option<u64>)> {
    let (rest, word) = split_last(text, b"<<< ")?;
    let status = match word {
        b"FAILURE!" => TestStatus::Failed,
        b"ERROR!" => TestStatus::Error,
        _ => return None,
    };
    let (name, time) = split(rest, b"Time elapsed: ")?;
    let time = time.trim_ascii();
    let time = duration(time.strip_suffix(b"sec").map_or(time, |t| t.trim_ascii_end()))
        .or_else(|| duration(time));
    let name = name.trim_ascii();
    let name = name.strip_suffix(b"--").unwrap_or(name).trim_ascii();
    if let Some((method, class)) = name.strip_suffix(b")").and_then(|name| split_last(name, b"(")) {
        return Some(([class, b".", method].concat(), status, time));
    }
    Some((name.to_vec(), status, time))
}
