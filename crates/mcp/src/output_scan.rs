//! Counts all lines of an output of any size, and finds certain ones.
//!
//! Lines are searched in whole blocks, by several threads for large output; a line that spans blocks
//! is joined first.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::{ControlFlow, Range, RangeInclusive};
use std::sync::atomic::{AtomicBool, Ordering};

use regex::bytes::Regex;
use retake_store::{ScannedLines, scan_lines, scan_threads};

use super::error_lines::{self, ErrorKind};
use super::line_pattern::LinePattern;
use super::output_line::{KeptPart, LineReader, OutputLine};

/// How much of a line that spans blocks is kept to search it for errors.
const KEPT_LINE: usize = 64 << 10;
/// Maximum distance in which the beginnings of earlier lines are searched.
const FAR: u64 = 16 << 20;
const BLOCK: u64 = 64 << 10;

/// A position in an output: where reading begins, or where it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) bytes: u64,
    /// Number of lines that end before it.
    pub(super) lines: u64,
    /// Number of characters before it in its line.
    pub(super) chars: u64,
}

/// The beginning of a line; lines are numbered from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LineStart {
    pub(super) line: u64,
    pub(super) at: u64,
}

/// A part of an output that several threads can read.
pub(super) struct ScannedOutput<'a, R> {
    pub(super) open: &'a dyn Fn() -> io::Result<R>,
    pub(super) start: Position,
    pub(super) end: u64,
}

/// The number of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LineCount {
    /// Up to the end, including an incomplete last line.
    pub(super) lines: u64,
    /// One of the last lines: few newlines follow it.
    pub(super) late: LineStart,
    /// The last line that spans blocks.
    pub(super) long: Option<LineStart>,
    /// The last line has no newline.
    pub(super) unfinished: bool,
}

/// The lines that match a pattern.
#[derive(Debug, Default)]
pub(super) struct PatternLines {
    pub(super) count: LineCount,
    pub(super) matches: u64,
    /// The first ones.
    pub(super) found: Vec<LineStart>,
}

/// Lines that look like errors, as many as requested.
#[derive(Debug, Default)]
pub(super) struct ErrorLines {
    pub(super) count: LineCount,
    pub(super) reported: Vec<LineStart>,
    pub(super) likely: Vec<LineStart>,
}

/// What to do with lines that span blocks.
#[derive(Clone, Copy)]
enum LongLines<'a> {
    Counted,
    Read,
    Matched(&'a Regex),
}

enum Seen<T> {
    /// Complete lines: the number of the first, their range, and the matches.
    Lines {
        first: u64,
        lines: u64,
        at: Range<u64>,
        found: T,
    },
    Line {
        number: u64,
        at: u64,
        line: OutputLine,
    },
}

/// A match in a block: the number of lines before it, and the offset of its line.
type InBlock = (u64, usize);

impl<R: Read + Seek + Send> ScannedOutput<'_, R> {
    fn readers(&self) -> io::Result<Vec<R>> {
        let bytes = self.end.saturating_sub(self.start.bytes);
        (0..scan_threads(bytes)).map(|_| (self.open)()).collect()
    }

    /// `reads` says what to do with lines that span blocks.
    fn scan<T: Send>(
        &self,
        reads: LongLines<'_>,
        look: &(dyn Fn(&[u8]) -> T + Sync),
        seen: &mut dyn FnMut(Seen<T>) -> io::Result<()>,
    ) -> io::Result<LineCount> {
        let pattern = match reads {
            LongLines::Counted | LongLines::Read => None,
            LongLines::Matched(pattern) => Some(pattern),
        };
        let is_read = !matches!(reads, LongLines::Counted);
        let mut reader = LineReader::new(KeptPart { from: 0, most: KEPT_LINE }, pattern);
        reader.after(self.start.chars);
        let mut begun = self.start.chars > 0;
        let late = LineStart { line: self.start.lines + 1, at: self.start.bytes };
        let lines = self.start.lines;
        let mut count = LineCount { lines, late, long: None, unfinished: false };
        let (mut line_at, mut failed) = (self.start.bytes, None);
        let was_begun = begun;
        let mut take = |scanned: ScannedLines<'_, T>| {
            let result = match scanned {
                ScannedLines::Lines { at, lines, found } => {
                    let first = count.lines + 1;
                    count.lines += lines;
                    count.late = LineStart { line: first, at: at.start };
                    seen(Seen::Lines { first, lines, at, found })
                }
                ScannedLines::Piece { at, bytes, ends } => {
                    if !begun {
                        line_at = at;
                    }
                    begun = true;
                    if is_read {
                        reader.push(bytes, &mut |_| {});
                    }
                    if !ends {
                        return ControlFlow::Continue(());
                    }
                    begun = false;
                    count.lines += 1;
                    count.late = LineStart { line: count.lines, at: line_at };
                    count.long = Some(count.late);
                    let line = reader.end(&mut |_| {});
                    seen(Seen::Line { number: count.lines, at: line_at, line })
                }
            };
            match result {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        };
        let range = self.start.bytes..self.end;
        scan_lines(self.readers()?, range, was_begun, look, &mut take)?;
        if let Some(error) = failed {
            return Err(error);
        }
        if begun {
            (count.unfinished, count.lines) = (true, count.lines + 1);
            count.late = LineStart { line: count.lines, at: line_at };
            let line = reader.end(&mut |_| {});
            seen(Seen::Line { number: count.lines, at: line_at, line })?;
        }
        Ok(count)
    }

    /// Counts the lines, and finds the beginning of one of them, if it exists.
    pub(super) fn find_line(&self, line: u64) -> io::Result<(LineCount, Option<LineStart>)> {
        let mut found = None;
        let mut seen = |seen: Seen<()>| {
            match seen {
                Seen::Line { number, at, .. } if number == line => {
                    found = Some(LineStart { line, at });
                }
                Seen::Lines { first, lines, at, .. } if (first..first + lines).contains(&line) => {
                    let at = self.line_in(at, line - first)?;
                    found = Some(LineStart { line, at });
                }
                _ => {}
            }
            Ok(())
        };
        let count = self.scan(LongLines::Counted, &|_| (), &mut seen)?;
        Ok((count, found))
    }

    /// The beginning of the line that follows this many others.
    fn line_in(&self, range: Range<u64>, before: u64) -> io::Result<u64> {
        let Some(last) = before.checked_sub(1) else { return Ok(range.start) };
        let bytes = self.read(range.clone())?;
        let mut newlines = memchr::memchr_iter(b'\n', &bytes);
        let newline = newlines.nth(usize::try_from(last).unwrap_or(usize::MAX));
        Ok(newline.map_or(range.end, |newline| range.start + newline as u64 + 1))
    }

    fn read(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let mut input = (self.open)()?;
        let mut bytes =
            vec![0; usize::try_from(range.end - range.start).map_err(io::Error::other)?];
        input.seek(SeekFrom::Start(range.start))?;
        input.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Counts the lines, and finds the matching ones in a range: their number, and the beginnings of the
    /// first ones, at most this many.
    pub(super) fn find_pattern(
        &self,
        pattern: &LinePattern,
        range: &RangeInclusive<u64>,
        most: usize,
    ) -> io::Result<PatternLines> {
        let enough = AtomicBool::new(false);
        let look = |block: &[u8]| {
            let wanted = if enough.load(Ordering::Relaxed) { 0 } else { most };
            matches_in_block(pattern, block, wanted, &|_| true)
        };
        let mut lines = PatternLines::default();
        let mut seen = |seen: Seen<(u64, Vec<InBlock>)>| {
            match seen {
                Seen::Line { number, at, line } => {
                    if range.contains(&number) && line.matched() {
                        lines.matches += 1;
                        lines.found.push(LineStart { line: number, at });
                    }
                }
                Seen::Lines { first, lines: count, at, found } => {
                    let last = first + count - 1;
                    if last < *range.start() || first > *range.end() {
                        return Ok(());
                    }
                    let (matches, starts) = match range.contains(&first) && range.contains(&last) {
                        true => found,
                        // Only some of these lines are in the range.
                        false => {
                            let is_wanted = |line: u64| range.contains(&(first + line));
                            let block = self.read(at.clone())?;
                            matches_in_block(pattern, &block, most, &is_wanted)
                        }
                    };
                    lines.matches += matches;
                    lines.found.extend(starts.iter().map(|(line, start)| LineStart {
                        line: first + line,
                        at: at.start + *start as u64,
                    }));
                }
            }
            lines.found.truncate(most);
            enough.store(lines.found.len() >= most, Ordering::Relaxed);
            Ok(())
        };
        let count = self.scan(LongLines::Matched(&pattern.line), &look, &mut seen)?;
        lines.count = count;
        Ok(lines)
    }

    /// Counts the lines, and finds the first errors of each kind, at most this many.
    pub(super) fn find_errors(&self, most: usize) -> io::Result<ErrorLines> {
        let kinds = [ErrorKind::Reported, ErrorKind::Likely];
        let enough = kinds.map(|_| AtomicBool::new(false));
        let look = |block: &[u8]| {
            let of = |at: usize| {
                let mut found: Vec<InBlock> = Vec::new();
                // If tools report errors, likely ones are not needed.
                if !enough[at].load(Ordering::Relaxed) && !enough[0].load(Ordering::Relaxed) {
                    error_lines::errors_in_block(kinds[at], block, &mut |number, start| {
                        found.push((number, start));
                        found.len() < most
                    });
                }
                found
            };
            [of(0), of(1)]
        };
        let mut lines = [Vec::new(), Vec::new()];
        let mut seen = |seen: Seen<[Vec<InBlock>; 2]>| {
            match seen {
                Seen::Line { number, at, line } => {
                    if let Some(kind) = error_lines::kind(&line.text) {
                        lines[kind as usize].push(LineStart { line: number, at });
                    }
                }
                Seen::Lines { first, at, found, .. } => {
                    for (lines, found) in lines.iter_mut().zip(found) {
                        lines.extend(found.iter().map(|(line, start)| LineStart {
                            line: first + line,
                            at: at.start + *start as u64,
                        }));
                    }
                }
            }
            for (lines, enough) in lines.iter_mut().zip(&enough) {
                lines.truncate(most);
                enough.store(lines.len() >= most, Ordering::Relaxed);
            }
            Ok(())
        };
        let count = self.scan(LongLines::Read, &look, &mut seen)?;
        let [reported, likely] = lines;
        Ok(ErrorLines { count, reported, likely })
    }
}

/// The number of matching lines of a block, and the beginnings of the first ones.
fn matches_in_block(
    pattern: &LinePattern,
    block: &[u8],
    most: usize,
    is_wanted: &dyn Fn(u64) -> bool,
) -> (u64, Vec<InBlock>) {
    let (mut matches, mut starts) = (0, Vec::new());
    pattern.matching_lines(block, &mut |line| {
        if is_wanted(line.number) {
            matches += 1;
            if starts.len() < most {
                starts.push((line.number, line.range.start));
            }
        }
        true
    });
    (matches, starts)
}

/// The beginning of a line at most this many lines before another one, and not before `least`.
pub(super) fn earlier_line(
    input: &mut (impl Read + Seek),
    from: LineStart,
    lines: u64,
    least: u64,
) -> io::Result<LineStart> {
    let mut found = from;
    let mut end = from.at;
    let farthest = least.max(from.at.saturating_sub(FAR));
    let mut block = Vec::new();
    while from.line - found.line < lines && end > farthest {
        let start = end.saturating_sub(BLOCK).max(farthest);
        block.resize(usize::try_from(end - start).unwrap_or(0), 0);
        input.seek(SeekFrom::Start(start))?;
        input.read_exact(&mut block)?;
        for newline in memchr::memrchr_iter(b'\n', &block) {
            let at = start + newline as u64 + 1;
            if at < found.at && from.line - found.line < lines {
                found = LineStart { line: found.line - 1, at };
            }
        }
        end = start;
    }
    // `least` is the beginning of a line, too.
    if end == least && found.at > least && from.line - found.line < lines {
        found = LineStart { line: found.line - 1, at: least };
    }
    Ok(found)
}
