//! pytest, with and without `-q`, `-v`, `-rA` and xdist.
//!
//! A session ends with a line of counts. The text between the `FAILURES`, `ERRORS` or `PASSES` bar
//! and that line is output of tests, so the last line of counts is the real one.

use retake_types::{Confidence, Framework, Stream, TestStatus};
use std::collections::HashMap;

use super::pytest_lines::{
    bare_title, before_reason, between_bars, collected, ending_status, lone_status, node_id,
    outcomes, status, summary, title_of, without_progress,
};
use crate::test_results::framework_results::{
    Details, FrameworkResults, Message, TestCounts, add_problem, clipped,
};
use crate::test_results::limits::{MAX_DETAILS, MAX_FAILURE_DETAILS};
use crate::test_results::output_cuts::OutputCuts;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{find, number, split, split_last};

pub(super) const BEGINNINGS: &[&[u8]] = &[
    b"==", b"no", b"!!", b"__", b"[g", b"IN", b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8",
    b"9", b".", b"F", b"E", b"s", b"x", b"X",
];

/// Maximum xdist workers whose last tests are remembered.
const MAX_WORKERS: usize = 64;

#[derive(Default)]
pub(super) struct Pytest {
    stream: Option<Stream>,
    session: Session,
    counts: TestCounts,
    details: Details,
    problems: Vec<String>,
    partial: bool,
    cut: bool,
    confidence: Option<Confidence>,
    /// Whether a session lacks its beginning, and whether the last one has its end.
    headless: bool,
    ended: bool,
    summary_at: u64,
    running: Option<Vec<u8>>,
    title: Option<Vec<u8>>,
    message: Message,
    shift: usize,
    /// Messages of failed tests, by the title of their section.
    messages: HashMap<Vec<u8>, Vec<u8>>,
}

#[derive(Default)]
struct Session {
    /// `test session starts` was seen.
    opened: bool,
    /// A section or progress that only pytest prints was seen.
    evident: bool,
    /// A bar with a known title was seen, and one above failures.
    sections: bool,
    failures: bool,
    within: Within,
    /// Outcomes by letter, for `-qq`, which prints no line of counts.
    letters: TestCounts,
    /// Outcomes by letter after the names of files, and the file whose line was not ended. They count only
    /// if the session was cut before its line of counts: a test may print the like.
    file_letters: TestCounts,
    file: Option<Vec<u8>>,
    /// The last progress in percent.
    percent: Option<u64>,
    rows: TestCounts,
    /// A verbose row that waits for its status, with other output in between.
    waiting: Option<Vec<u8>>,
    collected: Option<u64>,
    summary: Option<TestCounts>,
    stopped: bool,
    /// Tests that passed so far: the last one of each worker may still fail in its teardown, and
    /// those in the short summary may be repeated.
    unsure: Vec<Vec<u8>>,
    last_passed: HashMap<Vec<u8>, Vec<u8>>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Within {
    #[default]
    Rows,
    Output,
    ShortSummary,
    /// After a line of counts, which may still turn out to be output of a test.
    Ended,
}

impl Recogniser for Pytest {
    fn line(&mut self, line: &Line<'_>) -> Attention {
        if self.stream.is_none_or(|stream| stream == line.stream) {
            self.see(line);
        }
        let opened = self.session.opened || self.session.evident;
        let ours = self.stream == Some(line.stream);
        match self.session.within {
            Within::Output if ours => Attention::Alone,
            Within::Rows if opened => Attention::All,
            Within::Output | Within::ShortSummary => Attention::All,
            Within::Rows | Within::Ended => Attention::Idle,
        }
    }

    fn finish(mut self: Box<Self>, _cuts: OutputCuts) -> Option<FrameworkResults> {
        self.end_session();
        let confidence = self.confidence?;
        Some(FrameworkResults {
            details: self.details,
            problems: self.problems,
            partial: self.partial,
            cut: self.cut,
            begins: !self.headless,
            ends: self.ended,
            summary_at: self.summary_at,
            running: self.running.into_iter().collect(),
            ..FrameworkResults::new(Framework::Pytest, confidence, self.counts)
        })
    }
}

impl Pytest {
    fn see(&mut self, line: &Line<'_>) {
        let text = line.text;
        if line.at_margin() && self.margin(line, text) {
            return;
        }
        match self.session.within {
            Within::Output => {
                let said = text.strip_prefix(b"E").filter(|_| line.at_margin());
                if let Some(said) = said.filter(|said| matches!(said.first(), None | Some(b' '))) {
                    let blanks = said.iter().take_while(|byte| **byte == b' ').count();
                    if self.message.is_empty() {
                        self.shift = blanks;
                    }
                    self.message.line(&said[self.shift.min(blanks)..]);
                } else if text.starts_with(b"[XPASS(strict)]") {
                    self.message.line(text);
                }
            }
            Within::Rows if self.session.opened => self.row(line),
            _ => {}
        }
    }

    /// Handles lines that begin at the margin. Returns whether it was significant.
    fn margin(&mut self, line: &Line<'_>, text: &[u8]) -> bool {
        match text.first() {
            Some(b'=') => {
                let Some(title) = between_bars(text, b'=') else { return false };
                if let Some(tally) = summary(title) {
                    self.ended(line, tally);
                } else {
                    self.bar(line, title);
                }
                true
            }
            Some(b'_') if matches!(self.session.within, Within::Output | Within::Ended) => {
                let Some(title) = between_bars(text, b'_') else { return false };
                self.end_message();
                self.session.within = Within::Output;
                self.title = Some(clipped(bare_title(title)).to_vec());
                true
            }
            Some(b'!') if self.session.opened || self.session.evident => {
                let Some(title) = between_bars(text, b'!') else { return false };
                if title.starts_with(b"stopping after ") {
                    self.session.stopped = true;
                } else {
                    add_problem(&mut self.problems, title);
                }
                true
            }
            Some(b'I') if text.starts_with(b"INTERNALERROR> ") && self.session.opened => {
                add_problem(&mut self.problems, b"pytest: internal error");
                true
            }
            Some(b'0'..=b'9' | b'n') if !self.session.opened => {
                let Some(tally) = summary(text) else { return false };
                self.ended(line, tally);
                true
            }
            // The short summary without its bar, which was cut off.
            Some(b'F' | b'E') if !self.session.opened && self.session.within == Within::Rows => {
                self.lone_failure(line)
            }
            _ if self.session.within == Within::ShortSummary => {
                if !line.unfinished {
                    self.short(text);
                }
                true
            }
            Some(b'.' | b'F' | b'E' | b's' | b'x' | b'X')
                if self.session.within == Within::Rows || self.session.within == Within::Ended =>
            {
                self.quiet_progress(line, text)
            }
            _ => false,
        }
    }

    fn bar(&mut self, line: &Line<'_>, title: &[u8]) {
        match title {
            b"test session starts" => {
                // Within output it was printed by a test.
                if self.session.within == Within::Output {
                    return;
                }
                self.end_session();
                self.session.opened = true;
            }
            b"FAILURES" | b"ERRORS" | b"PASSES" | b"XFAILURES" | b"XPASSES"
            | b"warnings summary" => {
                self.end_message();
                self.session.failures |= matches!(title, b"FAILURES" | b"ERRORS");
                self.session.evident = true;
                self.session.sections = true;
                self.session.within = Within::Output;
            }
            b"short test summary info" => {
                self.end_message();
                self.session.evident = true;
                self.session.sections = true;
                self.session.within = Within::ShortSummary;
            }
            _ => {
                // Slowest durations, coverage and plugin sections: not rows.
                if self.session.opened && self.session.within == Within::Rows {
                    self.session.within = Within::Output;
                }
                return;
            }
        }
        self.stream = Some(line.stream);
    }

    /// Whether a line of counts can belong to the session: it must count at least the tests seen.
    fn counts_all(&self, tally: TestCounts) -> bool {
        let session = &self.session;
        let seen = session.letters.total().max(session.rows.total());
        let stopped = session.stopped || !self.problems.is_empty();
        let collected = session.collected.filter(|_| session.opened && !stopped).unwrap_or(0);
        tally.total() >= seen
            && tally.total() >= collected
            && (tally.failed > 0 || !session.failures)
    }

    /// `FAILED file.py::name - why`, or the end of the letters of `-q`.
    fn lone_failure(&mut self, line: &Line<'_>) -> bool {
        let failed = line.text.strip_prefix(b"FAILED ").or(line.text.strip_prefix(b"ERROR "));
        let Some((file, _)) = failed.and_then(|rest| split(rest, b"::")) else {
            return self.quiet_progress(line, line.text);
        };
        if memchr::memchr(b' ', file).is_some() || line.unfinished {
            return false;
        }
        self.session.evident = true;
        self.session.within = Within::ShortSummary;
        self.stream = Some(line.stream);
        self.short(line.text);
        true
    }

    fn ended(&mut self, line: &Line<'_>, tally: TestCounts) {
        if !self.counts_all(tally) {
            return;
        }
        let evident = self.session.opened || self.session.evident;
        if !evident && !line.leads {
            // Elsewhere it is output of a test.
            return;
        }
        self.summary_at = line.number;
        self.end_message();
        self.stream = Some(line.stream);
        let session = &self.session;
        // Alone at the margin it may be a quotation; treat it as a separate session.
        if session.summary.is_some() && session.within == Within::Ended && !session.opened {
            self.end_session();
        }
        self.session.summary = Some(tally);
        self.session.within = Within::Ended;
    }

    fn end_session(&mut self) {
        self.end_message();
        let session = std::mem::take(&mut self.session);
        let evident = session.opened || session.evident;
        // More of the session followed it, so it was output of a test.
        let summary = session.summary.filter(|_| session.within == Within::Ended);
        let mut in_letters = session.letters;
        in_letters += session.file_letters;
        let (tally, confidence) = match summary {
            Some(tally) if evident => (tally, Confidence::High),
            Some(tally) => (tally, Confidence::Low),
            None if session.letters.total() > 0 && !session.opened => {
                let sure = if session.sections { Confidence::High } else { Confidence::Medium };
                (session.letters, sure)
            }
            None if session.opened && session.rows.total() > 0 => {
                (session.rows, Confidence::Medium)
            }
            None if session.opened && in_letters.total() > 0 => (in_letters, Confidence::Medium),
            // At least the failed ones are named.
            None if session.opened && self.confidence.is_none() => {
                (self.details.counts(), Confidence::Medium)
            }
            None if session.opened => (TestCounts::default(), Confidence::Medium),
            None => return,
        };
        // A lone line of counts is dropped next to real sessions.
        if confidence == Confidence::Low && self.confidence.is_some_and(|c| c > Confidence::Low) {
            return;
        }
        if self.confidence == Some(Confidence::Low) {
            // Of several lone lines of counts, the others may be output of tests.
            self.cut |= confidence == Confidence::Low;
            self.counts = TestCounts::default();
        }
        self.counts += tally;
        self.headless |= !session.opened && session.letters.total() < tally.total();
        self.ended = summary.is_some() || !session.opened && session.percent == Some(100);
        if !self.ended {
            for name in session.unsure.iter().chain(session.last_passed.values()) {
                self.forget_passed(name);
            }
        }
        self.running = if self.ended { None } else { session.waiting.or(session.file) };
        self.confidence = Some(self.confidence.map_or(confidence, |before| {
            if before == Confidence::Low { confidence } else { before.min(confidence) }
        }));
        let short = session.collected.is_some_and(|collected| tally.total() < collected);
        self.cut |= !self.ended;
        self.partial |= session.stopped && (short || session.collected.is_none());
    }

    /// `FE.xs [100%]`: printed by `-q` instead of a header and file names.
    fn quiet_progress(&mut self, line: &Line<'_>, text: &[u8]) -> bool {
        let (letters, rest) = split(text, b" ").unwrap_or((text, b""));
        let percent = rest.trim_ascii().strip_prefix(b"[").and_then(|r| r.strip_suffix(b"%]"));
        let Some((percent, _)) = percent.and_then(|p| number(p.trim_ascii())) else {
            return false;
        };
        let Some(tally) = outcomes(letters) else { return false };
        if self.session.within == Within::Ended {
            self.end_session();
        }
        self.session.evident = true;
        self.session.letters += tally;
        self.session.percent = Some(percent);
        self.stream = Some(line.stream);
        true
    }

    fn row(&mut self, line: &Line<'_>) {
        let text = line.text;
        if self.session.waiting.is_some()
            && let Some((status, time)) = lone_status(text)
        {
            let name = self.session.waiting.take().unwrap_or_default();
            self.count(b"", &name, (status, time));
        } else if let Some(rest) = text.strip_prefix(b"collecting ... ").or(Some(text))
            && let Some(rest) = rest.strip_prefix(b"collected ")
        {
            self.session.collected = collected(rest);
        } else if let Some(rest) = text.strip_prefix(b"[gw") {
            if !line.unfinished {
                self.worker_row(rest);
            }
        } else if let Some((items, b"]")) =
            split(text, b" workers [").and_then(|(_, rest)| split(rest, b" items"))
        {
            self.session.collected = number(items).map(|(items, _)| items);
        } else if find(text, b"::").is_some() {
            self.verbose_row(line);
        } else {
            self.file_row(line);
        }
    }

    /// `file.py .F.s [ 25%]`, or the letters that continue it on the next line.
    fn file_row(&mut self, line: &Line<'_>) {
        let (row, _) = without_progress(line.text);
        let (file, letters) = match split(row, b" ") {
            Some((file, letters)) => (file, letters.trim_ascii()),
            None if row.ends_with(b".py") => (row, &b""[..]),
            // Elsewhere it is output of a test, or has its progress.
            None if line.unfinished => (&b""[..], row),
            None => return,
        };
        let is_file = line.at_margin() && (file.is_empty() || memchr::memchr(b'.', file).is_some());
        let Some(tally) = outcomes(letters).filter(|_| is_file) else { return };
        self.session.file_letters += tally;
        if !file.is_empty() {
            self.session.file = line.unfinished.then(|| clipped(file).to_vec());
        }
    }

    /// `[gw0] [ 25%] PASSED file.py::name`
    fn worker_row(&mut self, rest: &[u8]) {
        let Some((worker, rest)) = split(rest, b"] [") else { return };
        let Some((_, rest)) = split(rest, b"] ") else { return };
        let Some((word, name)) = split(rest, b" ") else { return };
        if let Some(status) = status(word) {
            self.count(worker, name.trim_ascii(), (status, None));
        }
    }

    /// `file.py::name PASSED [ 25%]`, optionally with a reason after the status.
    fn verbose_row(&mut self, line: &Line<'_>) {
        let text = line.text;
        let (mut row, time) = without_progress(text);
        if let Some((before, _)) = split_last(row, b" (").filter(|_| row.ends_with(b")"))
            && split_last(before, b" ").is_some_and(|(_, word)| status(word).is_some())
        {
            row = before;
        }
        // A reason that was cut to the terminal's width, or that contains parentheses.
        for word in [&b" SKIPPED ("[..], b" XFAIL (", b" XPASS ("] {
            if let Some((name, _)) = split(row, word) {
                let word = &word[1..word.len() - 2];
                if let Some(status) = status(word) {
                    self.count(b"", name, (status, time));
                }
                return;
            }
        }
        if let Some((name, word)) = split_last(row, b" ")
            && let Some(status) = status(word)
        {
            self.count(b"", name.trim_ascii(), (status, time));
            return;
        }
        let (name, printed) = node_id(row);
        let Some(file) = split(name, b"::").map(|(file, _)| file) else { return };
        // Excludes arbitrary words with colons between them.
        let file_name = split_last(file, b"/").map_or(file, |(_, name)| name);
        if memchr::memchr(b'.', file_name).is_none() {
            return;
        }
        match ending_status(printed) {
            Some(status) => self.count(b"", name, (status, time)),
            // One test at a time: everything before its status is its output.
            None if self.session.waiting.is_none() => {
                // The next test begins after the teardown of the last one, unless this is the row of that
                // teardown, or the beginning of it.
                let last = self.session.last_passed.get(&b""[..]);
                let same = last.is_some_and(|last| match line.unfinished {
                    true => last.starts_with(clipped(name)),
                    false => last == clipped(name),
                });
                if !same {
                    self.session.last_passed.remove(&b""[..]);
                }
                self.session.waiting = Some(clipped(name).to_vec());
            }
            None => {}
        }
    }

    fn count(&mut self, worker: &[u8], name: &[u8], (status, time): (TestStatus, Option<u64>)) {
        let session = &mut self.session;
        session.waiting = None;
        session.rows.count(status);
        if session.last_passed.len() < MAX_WORKERS {
            let name =
                if status == TestStatus::Passed { clipped(name).to_vec() } else { Vec::new() };
            session.last_passed.insert(worker.to_vec(), name);
        }
        self.put(name, status, time);
    }

    fn put(&mut self, name: &[u8], status: TestStatus, time: Option<u64>) {
        // A test that passed and failed in its teardown has both; the worse one stays.
        let worse = self.details.get(name).is_none_or(|known| status > known.status);
        if worse {
            self.details.put(name, status, time);
        }
    }

    /// A line of the short summary: `FAILED file.py::name - why`.
    fn short(&mut self, text: &[u8]) {
        let Some((word, rest)) = split(text, b" ") else { return };
        let Some(status) = status(word) else { return };
        if rest.starts_with(b"[") || rest.is_empty() {
            return;
        }
        let (name, why) = before_reason(rest);
        if status == TestStatus::Passed && self.session.unsure.len() < MAX_DETAILS {
            self.session.unsure.push(clipped(name).to_vec());
        }
        self.put(name, status, None);
        if !status.is_failure() {
            return;
        }
        let message = self.messages.remove(clipped(&title_of(name)));
        self.details.explain(name, message.as_deref().unwrap_or(why));
    }

    fn forget_passed(&mut self, name: &[u8]) {
        if self.details.get(name).is_some_and(|known| known.status == TestStatus::Passed) {
            self.details.forget(name);
        }
    }

    fn end_message(&mut self) {
        let message = self.message.take();
        if let Some(title) = self.title.take()
            && !message.is_empty()
            && self.messages.len() < MAX_FAILURE_DETAILS
        {
            self.messages.entry(title).or_insert(message);
        }
    }
}
