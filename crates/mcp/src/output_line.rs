//! One line of output as a model sees it: as it would look in a terminal, but with nothing
//! lost silently, and in bounded memory for any length.
//!
//! All code that shows, counts, cuts or searches output uses this text, so that a pattern
//! finds what was shown, and columns are the same everywhere.

use std::io::{self, Read};
use std::ops::ControlFlow;

use regex::bytes::Regex;

use super::terminal_text::TerminalText;

/// How much of the end of an incompletely kept line is kept.
const TAIL: usize = 250;
/// In a longer line, matches up to this length are found.
const WINDOW: usize = 64 << 10;
/// How much is kept around a match.
const AROUND: usize = 1000;
const BLOCK: usize = 64 << 10;

/// Which characters of a line are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptPart {
    /// Number of characters before the first kept one.
    pub(super) from: u64,
    pub(super) most: usize,
}

/// The range of a match in a line, in characters, and the text around it.
#[derive(Clone, Debug)]
struct PatternMatch {
    from: u64,
    to: u64,
    around: String,
    /// Number of characters before `around`.
    start: u64,
}

/// A line, as far as it is kept.
#[derive(Clone, Debug, Default)]
pub(super) struct OutputLine {
    pub(super) text: String,
    /// Number of characters of the text.
    kept: usize,
    /// Number of characters before the text.
    from: u64,
    /// The end of the part that is not in the text.
    tail: String,
    /// Number of characters of the whole line.
    pub(super) chars: u64,
    hit: Option<PatternMatch>,
}

/// A line in the form in which it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FittedLine {
    pub(super) text: String,
    /// The first omitted characters, from 1.
    pub(super) cut: Option<(u64, u64)>,
}

impl OutputLine {
    fn push(&mut self, piece: &str, keep: KeptPart) {
        let count = piece.chars().count();
        let before = usize::try_from(keep.from.saturating_sub(self.chars)).unwrap_or(usize::MAX);
        self.chars += count as u64;
        if before >= count {
            return;
        }
        let piece = &piece[byte_at(piece, before)..];
        let end = byte_at(piece, keep.most - self.kept);
        self.text.push_str(&piece[..end]);
        self.kept += (count - before).min(keep.most - self.kept);
        if end < piece.len() {
            self.tail.push_str(last(&piece[end..], TAIL));
            if self.tail.len() > TAIL * 16 {
                self.tail = last(&self.tail, TAIL).to_owned();
            }
        }
    }

    pub(super) fn matched(&self) -> bool {
        self.hit.is_some()
    }

    /// Makes a part of the text the shown part of a line that is too long.
    pub(super) fn focus(&mut self, part: std::ops::Range<usize>) {
        self.hit = Some(pattern_match(&self.text, part, self.from));
    }

    /// The line within `limit` characters: cut in its middle, or to the text around a match.
    pub(super) fn fitted(mut self, limit: usize) -> FittedLine {
        let chars = self.chars.saturating_sub(self.from);
        if chars <= limit as u64 && self.kept as u64 == chars {
            return FittedLine { text: self.text, cut: None };
        }
        let marker = left_out(self.chars, self.chars + 1).len();
        let tail = (limit.saturating_sub(marker) / 4).min(TAIL);
        let head = limit.saturating_sub(marker + tail).min(self.kept);
        if let Some(hit) = self.hit.take()
            && hit.to > self.from + head as u64
        {
            return self.around(&hit, limit.saturating_sub(2 * marker));
        }
        let end =
            if self.kept as u64 == chars { last(&self.text, tail) } else { last(&self.tail, tail) };
        let first = self.from + head as u64 + 1;
        let until = self.chars - end.chars().count() as u64;
        let text =
            format!("{}{}{end}", &self.text[..byte_at(&self.text, head)], left_out(first, until));
        FittedLine { text, cut: Some((first, until)) }
    }

    fn around(&self, hit: &PatternMatch, width: usize) -> FittedLine {
        let lead = (hit.from - hit.start).min(width as u64 / 3);
        let start = hit.from - lead;
        let text = &hit.around[byte_at(&hit.around, (start - hit.start) as usize)..];
        let text = &text[..byte_at(text, width)];
        let end = start + text.chars().count() as u64;
        let mut shown = FittedLine { text: String::new(), cut: None };
        let mut leave_out = |text: &mut String, from: u64, to: u64| {
            if from <= to {
                text.push_str(&left_out(from, to));
                shown.cut.get_or_insert((from, to));
            }
        };
        leave_out(&mut shown.text, self.from + 1, start);
        shown.text.push_str(text);
        leave_out(&mut shown.text, end + 1, self.chars);
        shown
    }

    /// As much of the kept text as fits, and the character to continue with.
    pub(super) fn part(&self, room: usize, until: u64) -> (&str, Option<u64>) {
        let wanted = usize::try_from(until.saturating_sub(self.from)).unwrap_or(usize::MAX);
        let text = &self.text[..byte_at(&self.text, room.min(wanted))];
        let end = self.from + text.chars().count() as u64;
        (text, (end < self.chars.min(until)).then_some(end + 1))
    }
}

fn left_out(from: u64, to: u64) -> String {
    match to - from {
        0 => format!("[character {from} of this line left out]"),
        _ => format!("[characters {from}-{to} of this line left out]"),
    }
}

/// The byte offset of a character.
pub(super) fn byte_at(text: &str, chars: usize) -> usize {
    if chars >= text.len() {
        return text.len();
    }
    text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at)
}

/// The last characters of a text.
fn last(text: &str, chars: usize) -> &str {
    let at = chars.checked_sub(1).and_then(|back| text.char_indices().rev().nth(back));
    match at {
        Some((at, _)) => &text[at..],
        None if chars == 0 => "",
        None => text,
    }
}

fn pattern_match(text: &str, part: std::ops::Range<usize>, before: u64) -> PatternMatch {
    let count = |text: &str| text.chars().count() as u64;
    let lead = last(&text[..part.start], AROUND);
    let after = &text[part.start..];
    let from = before + count(&text[..part.start]);
    PatternMatch {
        from,
        to: from + count(&text[part.clone()]),
        around: format!("{lead}{}", &after[..byte_at(after, 2 * AROUND)]),
        start: from - count(lead),
    }
}

/// The part of a line that is searched for a pattern.
struct Window<'a> {
    pattern: &'a Regex,
    text: String,
    /// Number of characters of the line before the text.
    before: u64,
    /// A match may not begin before this byte: it is only context.
    from: usize,
    /// A match must end after this byte.
    seen: usize,
    hit: Option<PatternMatch>,
}

impl Window<'_> {
    fn push(&mut self, piece: &str) {
        if self.hit.is_some() {
            return;
        }
        self.text.push_str(piece);
        if self.text.len() >= 2 * WINDOW {
            self.search(false);
            let cut = self.text.floor_char_boundary(self.text.len() - WINDOW);
            self.before += self.text[..cut].chars().count() as u64;
            self.text.drain(..cut);
            self.seen = self.seen.saturating_sub(cut);
            self.from = self.text.chars().next().map_or(0, char::len_utf8);
        }
    }

    fn search(&mut self, ended: bool) {
        let mut at = self.from;
        while at <= self.text.len()
            && let Some(found) = self.pattern.find_at(self.text.as_bytes(), at)
        {
            if self.seen > 0 && found.end() <= self.seen {
                at = found.end().max(at + 1);
                continue;
            }
            // A match at the end of the known text may become longer, so it is searched again.
            let again = found.start() + WINDOW >= self.text.len();
            if ended || found.end() < self.text.len() || !again {
                let start = self.text.floor_char_boundary(found.start());
                let end = self.text.ceil_char_boundary(found.end());
                self.hit = Some(pattern_match(&self.text, start..end, self.before));
            }
            return;
        }
    }

    fn end(&mut self) -> Option<PatternMatch> {
        if self.hit.is_none() {
            self.search(true);
        }
        self.text.clear();
        (self.before, self.from, self.seen) = (0, 0, 0);
        self.hit.take()
    }
}

/// Splits bytes into lines.
pub(super) struct LineReader<'a> {
    terminal: TerminalText,
    line: OutputLine,
    keep: KeptPart,
    window: Option<Window<'a>>,
}

impl<'a> LineReader<'a> {
    pub(super) fn new(keep: KeptPart, pattern: Option<&'a Regex>) -> Self {
        let window = pattern.map(|pattern| Window {
            pattern,
            text: String::new(),
            before: 0,
            from: 0,
            seen: 0,
            hit: None,
        });
        let line = OutputLine { from: keep.from, ..OutputLine::default() };
        Self { terminal: TerminalText::default(), line, keep, window }
    }

    /// Sets how many characters of the first line were read before.
    pub(super) fn after(&mut self, chars: u64) {
        (self.line.from, self.line.chars) = (chars, chars);
    }

    /// Sets the text before the first line, in which a match may begin but not end.
    pub(super) fn behind(&mut self, text: &str) {
        if let Some(window) = &mut self.window {
            window.text.push_str(text);
            window.seen = text.len();
        }
    }

    /// Adds a part of a line; `also` receives it as it is shown.
    pub(super) fn push(&mut self, bytes: &[u8], also: &mut dyn FnMut(&str)) {
        let Self { terminal, line, keep, window } = self;
        terminal.push(bytes, &mut |piece| {
            line.push(piece, *keep);
            if let Some(window) = window {
                window.push(piece);
            }
            also(piece);
        });
    }

    pub(super) fn held(&self) -> usize {
        self.terminal.held()
    }

    pub(super) fn end(&mut self, also: &mut dyn FnMut(&str)) -> OutputLine {
        let Self { terminal, line, keep, window } = self;
        terminal.end(&mut |piece| {
            line.push(piece, *keep);
            if let Some(window) = window {
                window.push(piece);
            }
            also(piece);
        });
        line.hit = window.as_mut().and_then(Window::end);
        std::mem::replace(line, OutputLine { from: keep.from, ..OutputLine::default() })
    }
}

/// Reads lines, numbered from `number`, until there are no more or `seen` breaks. For a last line without a
/// newline it returns how many bytes belong to an incomplete character or sequence.
pub(super) fn read_lines(
    input: &mut dyn Read,
    first: u64,
    reader: &mut LineReader<'_>,
    seen: &mut dyn FnMut(u64, OutputLine) -> ControlFlow<()>,
) -> io::Result<Option<usize>> {
    let mut block = vec![0; BLOCK];
    let (mut number, mut begun) = (first, false);
    loop {
        let read = input.read(&mut block)?;
        if read == 0 {
            break;
        }
        for piece in block[..read].split_inclusive(|&byte| byte == b'\n') {
            let (text, ended) = match piece {
                [text @ .., b'\n'] => (text, true),
                text => (text, false),
            };
            begun = !ended;
            reader.push(text, &mut |_| {});
            if ended {
                if seen(number, reader.end(&mut |_| {})).is_break() {
                    return Ok(None);
                }
                number += 1;
            }
        }
    }
    let held = begun.then(|| reader.held());
    if begun {
        // The last line needs no result.
        _ = seen(number, reader.end(&mut |_| {}));
    }
    Ok(held)
}

#[cfg(test)]
mod tests;
