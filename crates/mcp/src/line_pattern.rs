//! A pattern that is searched for in lines, one by one or in a whole block at once.
//!
//! Both ways find the same lines: in a block, a match never extends beyond its line, and `^` and `$` match
//! at the ends of each line.

use std::borrow::Cow;
use std::ops::Range;

use regex::bytes::{Regex, RegexBuilder};
use regex_automata::meta;
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{
    Capture, Class, ClassBytes, ClassBytesRange, ClassUnicode, ClassUnicodeRange, Hir, HirKind,
    Look, Repetition,
};

use super::terminal_text::{self, TerminalText};

/// Memory limit of a compiled pattern.
const SIZE: usize = 1 << 20;

#[derive(Clone, Debug)]
pub(super) struct LinePattern {
    /// For one line at a time.
    pub(super) line: Regex,
    /// For many lines at once.
    block: meta::Regex,
}

/// A matching line of a block.
pub(super) struct MatchingLine<'a> {
    /// Number of lines before it.
    pub(super) number: u64,
    /// Its range in the block, without the newline.
    pub(super) range: Range<usize>,
    pub(super) shown: &'a [u8],
}

impl LinePattern {
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let compile = |unicode: bool| -> Result<Self, String> {
            let mut builder = RegexBuilder::new(text);
            builder.size_limit(SIZE).unicode(unicode);
            let line = builder.build().map_err(|error| error.to_string())?;
            let mut parser = ParserBuilder::new();
            let mut parser = parser.unicode(unicode).utf8(false).multi_line(true).build();
            let read = parser.parse(text).map_err(|error| error.to_string())?;
            let config = meta::Config::new().nfa_size_limit(Some(SIZE)).utf8_empty(false);
            let block = meta::Builder::new().configure(config).build_from_hir(&within_line(&read));
            Ok(Self { line, block: block.map_err(|error| error.to_string())? })
        };
        // Without Unicode tables, ignoring case applies to ASCII letters only.
        compile(true).or_else(|error| compile(false).map_err(|_| error))
    }

    /// Calls `found` with each matching line of a block in which every line has its newline. Ends when
    /// `found` breaks.
    pub(super) fn matching_lines(
        &self,
        block: &[u8],
        found: &mut dyn FnMut(MatchingLine<'_>) -> bool,
    ) {
        let shown = shown_lines(block);
        let (mut at, mut number) = (0, 0);
        // The same line in the original block.
        let mut raw = 0;
        while at < shown.len() {
            let input = regex_automata::Input::new(&*shown).span(at..shown.len());
            let Some(hit) = self.block.search(&input) else { return };
            let passed = &shown[at..hit.start()];
            let skipped = memchr::memchr_iter(b'\n', passed).count();
            let start = memchr::memrchr(b'\n', passed).map_or(at, |newline| at + newline + 1);
            // No line begins after the last newline.
            if start >= shown.len() {
                return;
            }
            let end = memchr::memchr(b'\n', &shown[hit.start()..])
                .map_or(shown.len(), |newline| hit.start() + newline);
            number += skipped as u64;
            let line = match shown {
                Cow::Borrowed(_) => start..end,
                Cow::Owned(_) => {
                    if let Some(last) = skipped.checked_sub(1) {
                        let newline = memchr::memchr_iter(b'\n', &block[raw..]).nth(last);
                        raw += newline.map_or(0, |newline| newline + 1);
                    }
                    let length = memchr::memchr(b'\n', &block[raw..]);
                    raw..length.map_or(block.len(), |length| raw + length)
                }
            };
            raw = (line.end + 1).min(block.len());
            if !found(MatchingLine { number, range: line, shown: &shown[start..end] }) {
                return;
            }
            number += 1;
            at = end + 1;
        }
    }
}

/// The same pattern, restricted to matches within a line.
fn within_line(pattern: &Hir) -> Hir {
    match pattern.kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(literal) if literal.0.contains(&b'\n') => Hir::fail(),
        HirKind::Literal(literal) => Hir::literal(literal.0.clone()),
        HirKind::Class(Class::Unicode(class)) => {
            let mut class = class.clone();
            class.difference(&ClassUnicode::new([ClassUnicodeRange::new('\n', '\n')]));
            Hir::class(Class::Unicode(class))
        }
        HirKind::Class(Class::Bytes(class)) => {
            let mut class = class.clone();
            class.difference(&ClassBytes::new([ClassBytesRange::new(b'\n', b'\n')]));
            Hir::class(Class::Bytes(class))
        }
        HirKind::Look(look) => Hir::look(match look {
            Look::Start | Look::StartCRLF => Look::StartLF,
            Look::End | Look::EndCRLF => Look::EndLF,
            look => *look,
        }),
        HirKind::Repetition(repetition) => {
            let sub = Box::new(within_line(&repetition.sub));
            Hir::repetition(Repetition { sub, ..repetition.clone() })
        }
        HirKind::Capture(capture) => {
            let sub = Box::new(within_line(&capture.sub));
            Hir::capture(Capture { sub, ..capture.clone() })
        }
        HirKind::Concat(parts) => Hir::concat(parts.iter().map(within_line).collect()),
        HirKind::Alternation(parts) => Hir::alternation(parts.iter().map(within_line).collect()),
    }
}

/// Lines as they are shown, each with its newline if it has one.
pub(super) fn shown_lines(block: &[u8]) -> Cow<'_, [u8]> {
    if is_plain(block) {
        return Cow::Borrowed(block);
    }
    let mut shown = Vec::with_capacity(block.len());
    for line in Lines(block) {
        let (text, ended) = match line {
            [text @ .., b'\n'] => (text, true),
            text => (text, false),
        };
        show(text, &mut shown);
        if ended {
            shown.push(b'\n');
        }
    }
    Cow::Owned(shown)
}

/// A quick check whether these lines are shown unchanged.
fn is_plain(block: &[u8]) -> bool {
    let odd = |byte: u8| byte >= 0x7f || (byte < 0x20 && byte != b'\n' && byte != b'\t');
    // Without a branch for each byte, so that the compiler can vectorise it.
    block.chunks(4096).all(|chunk| !chunk.iter().fold(false, |any, &byte| any | odd(byte)))
}

/// Appends a line as it is shown.
fn show(line: &[u8], shown: &mut Vec<u8>) {
    // A carriage return at the end is not shown, unless the line has nothing else.
    let line = match line.strip_suffix(b"\r") {
        Some(text) if !text.trim_ascii().is_empty() => text,
        _ => line,
    };
    if is_plain(line) {
        return shown.extend_from_slice(line);
    }
    let before = shown.len();
    if show_without_colours(line, shown) {
        return;
    }
    shown.truncate(before);
    let mut terminal = TerminalText::default();
    let mut out = |piece: &str| shown.extend_from_slice(piece.as_bytes());
    terminal.push(line, &mut out);
    terminal.end(&mut out);
}

/// The same for a line that contains only plain text and colours; returns whether it
/// is one.
fn show_without_colours(line: &[u8], shown: &mut Vec<u8>) -> bool {
    let mut rest = line;
    loop {
        let (text, after) = match memchr::memchr(0x1b, rest) {
            Some(escape) => (&rest[..escape], Some(&rest[escape + 1..])),
            None => (rest, None),
        };
        let is_text = is_plain(text)
            || std::str::from_utf8(text).is_ok_and(|text| text.chars().all(terminal_text::is_text));
        if !is_text {
            return false;
        }
        shown.extend_from_slice(text);
        let Some(after) = after else { return true };
        let Some(parameters) = after.strip_prefix(b"[") else { return false };
        let is_parameter = |byte: &u8| matches!(byte, b'0'..=b'9' | b';' | b':');
        let length = parameters.iter().take_while(|byte| is_parameter(byte)).count();
        if length >= 64 || !matches!(parameters.get(length), Some(b'm' | b'K')) {
            return false;
        }
        rest = &parameters[length + 1..];
    }
}

/// Lines with their newlines.
struct Lines<'a>(&'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.0.is_empty() {
            return None;
        }
        let end = memchr::memchr(b'\n', self.0).map_or(self.0.len(), |newline| newline + 1);
        let (line, rest) = self.0.split_at(end);
        self.0 = rest;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slowly(pattern: &LinePattern, block: &[u8]) -> Vec<(u64, String)> {
        let lines = (0..).zip(Lines(block));
        let shown = lines.map(|(number, line)| {
            (number, terminal_text::clean(line.strip_suffix(b"\n").unwrap_or(line)))
        });
        shown.filter(|(_, line)| pattern.line.is_match(line.as_bytes())).collect()
    }

    fn at_once(pattern: &LinePattern, block: &[u8]) -> Vec<(u64, String)> {
        let mut found = Vec::new();
        pattern.matching_lines(block, &mut |matching| {
            let line = Lines(block).nth(matching.number as usize).unwrap();
            assert_eq!(&block[matching.range], line.strip_suffix(b"\n").unwrap_or(line));
            found.push((matching.number, String::from_utf8(matching.shown.to_vec()).unwrap()));
            true
        });
        found
    }

    proptest! {
        #[test]
        fn a_block_has_the_lines_that_match_one_by_one(
            block in proptest::collection::vec(
                prop_oneof![
                    4 => Just(b"\n".to_vec()),
                    4 => Just(b"ab".to_vec()),
                    4 => Just(b" a".to_vec()),
                    1 => Just(b"\x1b[1;31m".to_vec()),
                    1 => Just(b"\x1b[K".to_vec()),
                    1 => Just(b"\x1b]0;t\x07".to_vec()),
                    1 => Just(b"\x1b".to_vec()),
                    1 => Just(b"\r".to_vec()),
                    1 => Just(b"\r\n".to_vec()),
                    1 => Just("é\u{202e}".as_bytes().to_vec()),
                    1 => Just(b"\xff\x00".to_vec()),
                ],
                0..30,
            ),
            pattern in prop_oneof![
                Just("a"), Just("^a"), Just("b$"), Just("^$"), Just("x*"), Just("[^x]*b"),
                Just("\\s+a"), Just("a\\nb"), Just("(?s)a.*b"), Just("\\Aab\\z"), Just("\\bab\\b"),
                Just("é|\u{fffd}"), Just("(a|\\n)b"), Just("(?i)AB"), Just("b{2,}|a$"),
            ],
        ) {
            let pattern = LinePattern::new(pattern).unwrap();
            let block = [block.concat(), b"\n".to_vec()].concat();
            prop_assert_eq!(at_once(&pattern, &block), slowly(&pattern, &block));
        }
    }

    #[test]
    fn a_search_stops_when_its_callback_says_so() {
        let pattern = LinePattern::new("a").unwrap();
        let mut seen = 0;
        pattern.matching_lines(b"a\na\na\n", &mut |_| {
            seen += 1;
            seen < 2
        });
        assert_eq!(seen, 2);
    }

    #[test]
    fn an_invalid_pattern_is_refused_with_the_reason() {
        assert!(LinePattern::new("(").unwrap_err().contains("unclosed group"));
        LinePattern::new("(?i)grüße").unwrap();
    }
}
