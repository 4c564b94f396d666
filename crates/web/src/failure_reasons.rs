//! Why a run failed, according to its output: the first lines that report an error, and their
//! positions.
//!
//! Only the beginning and the end of a large output are searched, and the result says so. The result
//! for a finished run does not change, so it is cached.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use retake_runner::error_lines::{self, ErrorKind};
use retake_types::{Kind, Run, RunId, State, Stream};

use crate::ansi::{self, Span, Style};
use crate::error::RequestError;
use crate::line_index::LineIndexes;
use crate::output_source::OutputSource;
use crate::output_window::read;
use crate::store_pool::Store;

/// Bytes that are searched at the beginning and at the end of each stream.
const HEAD: u64 = 256 << 10;
const TAIL: u64 = 512 << 10;
/// How many lines of each stream are shown, and how much of each.
const LINES: usize = 6;
const MAX_LINE: usize = 400;
/// How many lines are shown if none looks like an error.
const LAST_LINES: usize = 4;
/// Bytes in which lines are counted for links to them.
const COUNTED: u64 = 8 << 20;
/// How many runs' results are cached.
const KEPT: usize = 128;

/// A line of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorLine {
    pub(crate) stream: Stream,
    pub(crate) offset: u64,
    /// Its beginning, with styles and without control characters.
    pub(crate) spans: Vec<Span>,
    pub(crate) cut: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FailureReasons {
    pub(crate) lines: Vec<ErrorLine>,
    /// How certain it is that they are errors; `None` if they are just the last lines.
    pub(crate) kind: Option<ErrorKind>,
    /// The whole output was searched.
    pub(crate) complete: bool,
}

/// The selected lines of one stream.
#[derive(Default)]
struct StreamLines {
    reported: Vec<ErrorLine>,
    likely: Vec<ErrorLine>,
    last: VecDeque<ErrorLine>,
}

impl FailureReasons {
    fn read(store: &Store, run: &Run) -> Result<Self, RequestError> {
        let id = run.intent.id();
        let mut complete = true;
        let mut found = Vec::new();
        for stream in [Stream::Stderr, Stream::Stdout] {
            // The events of an agent quote errors that it saw, which are not the reason of its failure.
            if run.intent.kind() == Kind::Agent && stream == Stream::Stdout {
                continue;
            }
            let mut lines = StreamLines::default();
            let mut output = store.read_output(id, stream)?;
            let length = output.length();
            let lost =
                |error: io::Error| RequestError::from(retake_store::Error::reading(id, error));
            for range in ranges(length) {
                let bytes = read(&mut output, &range).map_err(lost)?;
                lines.look(stream, &bytes, &range, length);
            }
            complete &= length <= HEAD + TAIL;
            found.push(lines);
        }
        Ok(Self::of(found, complete))
    }

    /// The line numbers, as far as counting is fast.
    pub(crate) fn numbers(
        &self,
        store: &Store,
        id: RunId,
        lines: &LineIndexes,
    ) -> Vec<Option<u64>> {
        let number = |line: &ErrorLine| {
            let mut output = store.read_output(id, line.stream).ok()?;
            let length = output.length();
            let effort = if length <= COUNTED { length } else { 0 };
            let of = (id, OutputSource::One(line.stream));
            // A line without a number is identified by its offset.
            lines.line_at(of, &mut output, length, (line.offset, effort)).ok()?.0
        };
        self.lines.iter().map(number).collect()
    }

    /// Certain errors only; if there are none, likely ones; if there are none, the last lines.
    fn of(streams: Vec<StreamLines>, complete: bool) -> Self {
        let has = |of: fn(&StreamLines) -> usize| streams.iter().any(|lines| of(lines) > 0);
        let kind = if has(|lines| lines.reported.len()) {
            Some(ErrorKind::Reported)
        } else if has(|lines| lines.likely.len()) {
            Some(ErrorKind::Likely)
        } else {
            None
        };
        let lines = match kind {
            Some(ErrorKind::Reported) => streams.into_iter().flat_map(|one| one.reported).collect(),
            Some(ErrorKind::Likely) => streams.into_iter().flat_map(|one| one.likely).collect(),
            // Of stderr, if it has any.
            None => {
                let ends = streams.into_iter().map(|one| Vec::from(one.last));
                ends.into_iter().find(|last| !last.is_empty()).unwrap_or_default()
            }
        };
        Self { lines, kind, complete }
    }
}

/// The parts of an output that are searched.
fn ranges(length: u64) -> impl Iterator<Item = Range<u64>> {
    let whole = length <= HEAD + TAIL;
    let first = if whole { 0..length } else { 0..HEAD };
    let last = (!whole).then(|| length - TAIL..length);
    std::iter::once(first).chain(last)
}

impl StreamLines {
    fn look(&mut self, stream: Stream, bytes: &[u8], range: &Range<u64>, length: u64) {
        let mut at = 0;
        // Skip lines that are cut at the beginning or end of a part.
        if range.start > 0 {
            at = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
        }
        while at < bytes.len() {
            let end = bytes[at..].iter().position(|byte| *byte == b'\n').map(|end| at + end);
            let Some(end) = end.or((range.end == length).then_some(bytes.len())) else { return };
            let offset = range.start + at as u64;
            self.line(stream, offset, &bytes[at..end]);
            at = end + 1;
        }
    }

    fn line(&mut self, stream: Stream, offset: u64, line: &[u8]) {
        let cut = line.len() > MAX_LINE;
        let shown = if cut { &line[..whole_characters(line, MAX_LINE)] } else { line };
        let spans = || ansi::spans(shown.trim_ascii_end(), &mut Style::default());
        let text: String = match shown.contains(&0x1b) {
            true => spans().into_iter().map(|Span(_, text)| text).collect(),
            false => String::from_utf8_lossy(shown).into_owned(),
        };
        let text = text.trim_end();
        if text.is_empty() {
            return;
        }
        let kind = error_lines::kind(text);
        let room = match kind {
            Some(ErrorKind::Reported) => self.reported.len() < LINES,
            Some(ErrorKind::Likely) => self.likely.len() < LINES,
            None => false,
        };
        // Most lines are neither: parse the styles only of those that may be last.
        let line = ErrorLine { stream, offset, spans: spans(), cut };
        match kind {
            Some(ErrorKind::Reported) if room => self.reported.push(line.clone()),
            Some(ErrorKind::Likely) if room => self.likely.push(line.clone()),
            _ => {}
        }
        if self.last.len() == LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }
}

/// The results for recently shown runs.
#[derive(Default)]
pub(crate) struct ReasonsCache(Mutex<VecDeque<(RunId, Arc<FailureReasons>)>>);

impl ReasonsCache {
    /// The reasons of a finished run; empty for others.
    pub(crate) fn of(&self, store: &Store, run: &Run) -> Result<Arc<FailureReasons>, RequestError> {
        let id = run.intent.id();
        if run.state == State::Running || run.success() {
            return Ok(Arc::default());
        }
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = lock().iter().find(|(known, _)| *known == id) {
            return Ok(known.clone());
        }
        let reasons = Arc::new(FailureReasons::read(store, run)?);
        // A run without an outcome may still get one.
        if run.outcome.is_some() {
            let mut kept = lock();
            kept.truncate(KEPT - 1);
            kept.push_front((id, reasons.clone()));
        }
        Ok(reasons)
    }
}

/// The end of the last character that fits, also in invalid UTF-8.
fn whole_characters(line: &[u8], most: usize) -> usize {
    let is_begin = |at: &usize| line.get(*at).is_none_or(|byte| byte & 0xc0 != 0x80);
    (most.saturating_sub(3)..=most).rev().find(is_begin).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_between_characters() {
        let line = "漢".repeat(200);
        let end = whole_characters(line.as_bytes(), MAX_LINE);
        assert!(end <= MAX_LINE && end > MAX_LINE - 4 && line.is_char_boundary(end));
        assert_eq!(whole_characters(&[0x80; 900], MAX_LINE), MAX_LINE);
    }

    fn reasons(stdout: &str, stderr: &str) -> FailureReasons {
        let streams = [(Stream::Stderr, stderr), (Stream::Stdout, stdout)];
        let found = streams.map(|(stream, text)| {
            let mut lines = StreamLines::default();
            let length = text.len() as u64;
            lines.look(stream, text.as_bytes(), &(0..length), length);
            lines
        });
        FailureReasons::of(found.into(), true)
    }

    fn texts(reasons: &FailureReasons) -> Vec<String> {
        let text = |line: &ErrorLine| line.spans.iter().map(|span| span.1.as_str()).collect();
        reasons.lines.iter().map(text).collect()
    }

    #[test]
    fn reported_errors_are_preferred_to_likely_ones_and_those_to_the_last_lines() {
        let sure = reasons("1 failed\nall else is well\n", "\u{1b}[31merror\u{1b}[0m: no\nx\n");
        assert_eq!(
            (sure.kind, texts(&sure)),
            (Some(ErrorKind::Reported), vec!["error: no".into()])
        );
        assert_eq!((sure.lines[0].stream, sure.lines[0].offset), (Stream::Stderr, 0));
        let likely = reasons("fine\nit failed badly\n", "a\nb\n");
        assert_eq!(texts(&likely), ["it failed badly"]);
        assert_eq!((likely.kind, likely.lines[0].offset), (Some(ErrorKind::Likely), 5));
        let end = reasons("1\n2\n3\n4\n5\n\n", "");
        assert_eq!((end.kind, texts(&end)), (None, ["2", "3", "4", "5"].map(str::to_owned).into()));
        assert_eq!(reasons("", ""), FailureReasons { complete: true, ..Default::default() });
    }

    #[test]
    fn incomplete_lines_at_the_ends_of_a_part_are_ignored() {
        let mut lines = StreamLines::default();
        let text = b"or: half\nerror: whole\nerror: ha";
        lines.look(Stream::Stdout, text, &(100..100 + text.len() as u64), 1000);
        assert_eq!(lines.reported.len(), 1);
        assert_eq!(lines.reported[0].offset, 109);
        assert!(ranges(10).eq(std::iter::once(0..10)));
        assert!(ranges(1 << 30).eq([0..HEAD, (1 << 30) - TAIL..1 << 30]));
    }
}
