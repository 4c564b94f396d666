//! cargo-nextest: rows and a summary on stderr, failed tests' output between them.
//!
//! That output contains libtest's own rows and results, which must not be counted: other
//! recognisers do not get it, and the last result of a retried test counts.

use std::collections::HashSet;

use crate::test_results::framework_results::{
    Details, FrameworkResults, Message, TestCounts, add_problem, clipped,
};
use crate::test_results::limits::{MAX_FAILURE_DETAILS, MAX_RUNNING};
use crate::test_results::output_cuts::OutputCuts;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{duration, find, number, parts, split};
use retake_types::{Confidence, Framework, Stream, TestStatus};

pub(super) const BEGINNINGS: &[&[u8]] = &[
    b"PA", b"FA", b"FL", b"LE", b"LK", b"TR", b"TI", b"TE", b"TM", b"SK", b"SL", b"SI", b"SE",
    b"SU", b"Su", b"St", b"AB", b"XF", b"KI", b"BU", b"QU", b"IL", b"HU", b"PI", b"AL", b"US",
    b"Ne", b"st", b"ou", b"er", b"wa", b"--", b"\xe2",
];

#[derive(Default)]
pub(super) struct Nextest {
    started: bool,
    rows: TestCounts,
    counts: TestCounts,
    summaries: u64,
    details: Details,
    problems: Vec<String>,
    partial: bool,
    build_failed: bool,
    current: Option<Vec<u8>>,
    summary_at: u64,
    /// Tests that failed in an attempt that may not be their last.
    tried: HashSet<Vec<u8>>,
    /// Tests that were reported as slow and have no result yet.
    slow: Vec<Vec<u8>>,
    output: Option<Output>,
    stdout: Message,
    stderr: Message,
}

/// The part of a failed test's output that is being replayed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Output {
    stream: Stream,
    is_stderr: bool,
    /// Recent versions indent it by four; older ones do not.
    indented: bool,
}

impl Recogniser for Nextest {
    fn line(&mut self, line: &Line<'_>) -> Attention {
        let replayed = self.output.filter(|output| output.stream == line.stream);
        if !replayed.is_some_and(|output| self.replay(line, output)) {
            self.own(line);
        }
        match self.output {
            Some(output) if output.stream == line.stream => Attention::Alone,
            Some(_) => Attention::All,
            None => Attention::Idle,
        }
    }

    fn finish(mut self: Box<Self>, _cuts: OutputCuts) -> Option<FrameworkResults> {
        self.end_output();
        if self.summaries == 0 {
            for name in std::mem::take(&mut self.tried) {
                if let Some(status) = self.details.forget(&name) {
                    self.rows.uncount(status);
                }
            }
        }
        if !self.started && self.summaries == 0 && !self.build_failed {
            return None;
        }
        let seen = self.started || self.rows.total() > 0;
        let (counts, confidence) = match self.summaries {
            0 if self.rows.total() > 0 => (self.rows, Confidence::Medium),
            0 => (TestCounts::default(), Confidence::Medium),
            _ if seen => (self.counts, Confidence::High),
            _ => (self.counts, Confidence::Low),
        };
        Some(FrameworkResults {
            details: self.details,
            problems: self.problems,
            partial: self.partial,
            cut: self.started && self.summaries == 0 && !self.build_failed,
            begins: self.started,
            ends: self.summaries > 0,
            summary_at: self.summary_at,
            running: if self.summaries == 0 { self.slow } else { Vec::new() },
            ..FrameworkResults::new(Framework::Nextest, confidence, counts)
        })
    }
}

impl Nextest {
    /// Whether the line is part of a test's output.
    fn replay(&mut self, line: &Line<'_>, output: Output) -> bool {
        let inside = if output.indented {
            line.indent >= 4 && row(line.text).is_none() || line.text.is_empty()
        } else {
            !(row(line.text).is_some()
                || line.text.starts_with("────".as_bytes())
                || line.text.starts_with(b"Summary [")
                || line.text.starts_with(b"--- STD") && header(line).is_some())
        };
        if inside {
            let text = if output.indented { line.whole.get(4..) } else { Some(line.whole) };
            let message = if output.is_stderr { &mut self.stderr } else { &mut self.stdout };
            message.line(text.unwrap_or_default());
        }
        inside
    }

    fn own(&mut self, line: &Line<'_>) {
        if let Some(mut output) = header(line) {
            // Another row's output, or the second part of the same row's.
            output.stream = line.stream;
            self.output = Some(output);
            return;
        }
        self.output = None;
        let text = line.text;
        if let Some((words, time, name)) = row(text).filter(|_| !line.unfinished) {
            self.end_output();
            self.count(words, time, name);
        } else if let Some(rest) = text.strip_prefix(b"Summary [") {
            self.end_output();
            if !line.unfinished {
                self.summary_at = line.number;
                self.summary(rest);
            }
        } else if text.starts_with(b"Nextest run ID ") {
            self.started = true;
        } else if let Some(rest) = text.strip_prefix(b"Starting ") {
            let tests = number(rest).map(|(_, rest)| rest);
            self.started |= tests.is_some_and(|rest| {
                rest.starts_with(b" test across") || rest.starts_with(b" tests across")
            });
        } else if let Some(rest) = text.strip_prefix(b"error: ") {
            let built = rest.starts_with(b"command `")
                && find(rest, b" test --no-run").is_some()
                && find(rest, b"` exited with").is_some();
            if built {
                self.build_failed = true;
                add_problem(&mut self.problems, b"the tests could not be built");
            }
        } else if text.starts_with(b"warning: ") {
            self.partial |= find(text, b" tests were not run").is_some()
                || find(text, b" test was not run").is_some();
        }
    }

    fn count(&mut self, words: &[u8], time: Option<u64>, name: &[u8]) {
        self.slow.retain(|slow| slow != name);
        let Some(status) = status(words) else {
            if words == b"SLOW" && self.slow.len() < MAX_RUNNING {
                self.slow.push(clipped(name).to_vec());
            }
            if words.starts_with(b"SETUP") && words.ends_with(b"FAIL") {
                add_problem(&mut self.problems, b"a setup script failed");
            }
            return;
        };
        if words.starts_with(b"TRY ") && status.is_failure() {
            if self.tried.len() < MAX_FAILURE_DETAILS {
                self.tried.insert(clipped(name).to_vec());
            }
        } else {
            self.tried.remove(clipped(name));
        }
        if let Some(before) = self.details.put(name, status, time) {
            self.rows.uncount(before);
        }
        self.rows.count(status);
        self.current = status.is_failure().then(|| name.to_vec());
    }

    fn summary(&mut self, rest: &[u8]) {
        let Some((time, rest)) = split(rest, b"] ") else { return };
        let Some((ran, mut rest)) = number(rest) else { return };
        let mut planned = ran;
        if let Some(of) = rest.strip_prefix(b"/") {
            let Some((all, after)) = number(of) else { return };
            (planned, rest) = (all, after);
        }
        let after = rest.strip_prefix(b" tests run: ").or(rest.strip_prefix(b" test run: "));
        let (Some(_), Some(after)) = (duration(time.trim_ascii()), after) else { return };
        let Some(tally) = tally(&without_parentheses(after)) else { return };
        self.counts += tally;
        self.summaries += 1;
        self.partial |= planned > ran;
    }

    fn end_output(&mut self) {
        self.output = None;
        let (stdout, stderr) = (self.stdout.take(), self.stderr.take());
        if let Some(name) = self.current.take() {
            self.details.explain(&name, if stderr.is_empty() { &stdout } else { &stderr });
        }
    }
}

/// `  stdout ───`, `──── STDERR:  binary name`, `--- STDOUT:  binary name ---`.
fn header(line: &Line<'_>) -> Option<Output> {
    let output = |is_stderr, indented| Output { stream: line.stream, is_stderr, indented };
    if line.indent == 2 {
        let (word, rest) = split(line.text, b" ")?;
        let bar = !rest.is_empty() && rest.chunks(3).all(|part| part == "─".as_bytes());
        return match word {
            b"stdout" | b"output" if bar => Some(output(false, true)),
            b"stderr" if bar => Some(output(true, true)),
            _ => None,
        };
    }
    let text = line.text;
    let rest = text.strip_prefix(b"--- ").or_else(|| text.strip_prefix("──── ".as_bytes()))?;
    let title = split(rest, b":")?.0;
    let title = title.strip_prefix(b"TRY ").and_then(|t| split(t, b" ")).map_or(title, |t| t.1);
    match title {
        b"STDOUT" | b"OUTPUT" => Some(output(false, false)),
        b"STDERR" => Some(output(true, false)),
        _ => None,
    }
}

/// `STATUS [   0.005s] (1/8) binary name`
fn row(text: &[u8]) -> Option<(&[u8], Option<u64>, &[u8])> {
    if !text.first()?.is_ascii_uppercase() {
        return None;
    }
    let (words, rest) = split(text, b" [")?;
    let (time, rest) = split(rest, b"] ")?;
    let word = |byte: &u8| {
        byte.is_ascii_uppercase()
            || byte.is_ascii_digit()
            || matches!(byte, b' ' | b'-' | b'+' | b'/')
    };
    if words.len() > 24 || !words.iter().all(word) {
        return None;
    }
    let time = time.trim_ascii();
    let time = time.strip_prefix(b">").unwrap_or(time).trim_ascii();
    let milliseconds = duration(time);
    if milliseconds.is_none() && !time.is_empty() {
        return None;
    }
    let rest = rest.trim_ascii();
    let name = match rest.strip_prefix(b"(") {
        Some(counted) => split(counted, b") ")?.1.trim_ascii(),
        None => rest,
    };
    memchr::memchr(b' ', name).map(|_| (words, milliseconds, name))
}

fn status(words: &[u8]) -> Option<TestStatus> {
    let last = match words.strip_prefix(b"TRY ") {
        Some(tried) => split(tried, b" ")?.1,
        None => words,
    };
    match last {
        b"PASS" | b"LEAK" | b"TIMEOUT-PASS" | b"TMPASS" => Some(TestStatus::Passed),
        b"SKIP" => Some(TestStatus::Skipped),
        b"SLOW" | b"TRMNTG" | b"TERMINATING" | b"START" | b"DELAY" | b"RETRY" => None,
        _ if last.starts_with(b"FLAKY") => Some(TestStatus::Passed),
        _ if last.starts_with(b"SETUP") => None,
        _ => Some(TestStatus::Failed),
    }
}

fn tally(text: &[u8]) -> Option<TestCounts> {
    let mut tally = TestCounts::default();
    for part in parts(text, b',') {
        let (count, what) = number(part)?;
        let status = match what {
            b" passed" => TestStatus::Passed,
            b" skipped" => TestStatus::Skipped,
            b" failed" | b" exec failed" | b" timed out" => TestStatus::Failed,
            _ => continue,
        };
        tally.add(status, count);
    }
    Some(tally)
}

fn without_parentheses(text: &[u8]) -> Vec<u8> {
    let mut depth = 0u32;
    let mut kept = Vec::with_capacity(text.len());
    for byte in text {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            _ if depth == 0 => kept.push(*byte),
            _ => {}
        }
    }
    kept
}
