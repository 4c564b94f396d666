//! The part of an output that is worth a model's attention, within a budget.
//!
//! All of it where it fits. Otherwise the beginning, the end, and for a run that failed the lines
//! that look like errors with what stands around them; in place of the rest, which lines are missing.
//! Reads any amount in bounded memory. What it is given has been redacted.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::sync::LazyLock;

use regex::bytes::Regex;

/// Errors are looked for in this much of each end of an output.
const SEARCHED: u64 = 4 << 20;
/// A longer line is cut in its middle where the output does not fit as a whole.
const LONG_LINE: usize = 1000;
/// What is kept of a line while it is read.
const KEPT_LINE: usize = 64 << 10;
/// Lines around one that looks like an error.
const BEFORE: usize = 2;
const AFTER: u64 = 6;
const BLOCK: usize = 64 << 10;

/// What is shown of one stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Excerpt {
    pub(super) text: String,
    /// Of the whole stream.
    pub(super) lines: u64,
    /// The first lines that are not shown.
    pub(super) missing: Option<(u64, u64)>,
    /// Lines in which no error was looked for.
    pub(super) unsearched: Option<(u64, u64)>,
}

/// Looks at an output of `length` bytes. `errors` says that it is one of a run that failed.
pub(super) fn excerpt(
    input: &mut dyn Read,
    length: u64,
    budget: usize,
    errors: bool,
) -> io::Result<Excerpt> {
    let mut collected = Collected::new(budget, errors);
    let mut block = vec![0; BLOCK];
    let mut at = 0;
    let (early, late) = (SEARCHED, length.saturating_sub(SEARCHED).max(SEARCHED));
    loop {
        // A block lies in one part only.
        let until = if at < early { early } else { late.max(at + 1) };
        let room = if at < late { usize::try_from(until - at).unwrap_or(BLOCK) } else { BLOCK };
        let read = input.read(&mut block[..room.min(BLOCK)])?;
        if read == 0 {
            break;
        }
        if (early..late).contains(&at) {
            collected.pass_over(&block[..read]);
        } else {
            collected.take(&block[..read]);
        }
        at += read as u64;
    }
    Ok(collected.finish())
}

struct Collected {
    budget: usize,
    errors: bool,
    /// Everything so far, while it fits.
    whole: Option<Vec<u8>>,
    line: Vec<u8>,
    /// Bytes of the line that were not kept.
    cut: usize,
    lines: u64,
    head: Vec<(u64, String)>,
    head_room: usize,
    tail: VecDeque<(u64, Vec<u8>, usize)>,
    tail_bytes: usize,
    found: Vec<(u64, String)>,
    found_room: usize,
    /// Lines up to this one belong to an error that was found.
    found_until: u64,
    unsearched: Option<(u64, u64)>,
}

impl Collected {
    fn new(budget: usize, errors: bool) -> Self {
        Self {
            budget,
            errors,
            whole: Some(Vec::new()),
            line: Vec::new(),
            cut: 0,
            lines: 0,
            head: Vec::new(),
            head_room: if errors { budget / 5 } else { budget * 2 / 5 },
            tail: VecDeque::new(),
            tail_bytes: 0,
            found: Vec::new(),
            found_room: if errors { budget * 2 / 5 } else { 0 },
            found_until: 0,
            unsearched: None,
        }
    }

    fn take(&mut self, block: &[u8]) {
        if let Some(whole) = &mut self.whole {
            // Escapes take room that is not shown.
            if whole.len() + block.len() > self.budget * 4 + BLOCK {
                self.whole = None;
            } else {
                whole.extend_from_slice(block);
            }
        }
        for piece in block.split_inclusive(|&byte| byte == b'\n') {
            let (text, ended) = match piece {
                [text @ .., b'\n'] => (text, true),
                text => (text, false),
            };
            let room = KEPT_LINE.saturating_sub(self.line.len()).min(text.len());
            self.line.extend_from_slice(&text[..room]);
            self.cut += text.len() - room;
            if ended {
                self.end_line();
            }
        }
    }

    /// Counts lines and looks at nothing.
    fn pass_over(&mut self, block: &[u8]) {
        self.whole = None;
        let first = self.unsearched.map_or(self.lines + 1, |(first, _)| first);
        self.lines += block.iter().filter(|&&byte| byte == b'\n').count() as u64;
        self.line.clear();
        self.cut = 0;
        self.unsearched = Some((first, self.lines));
    }

    fn end_line(&mut self) {
        self.lines += 1;
        let number = self.lines;
        let (line, cut) = (std::mem::take(&mut self.line), std::mem::take(&mut self.cut));
        if self.head_room > 0 {
            let text = shown(&line, cut);
            if text.len() < self.head_room {
                self.head_room -= text.len() + 1;
                self.head.push((number, text));
            } else {
                self.head_room = 0;
            }
        }
        if self.errors && self.found_room > 0 {
            self.look(number, &line, cut);
        }
        self.tail_bytes += line.len() + 1;
        self.tail.push_back((number, line, cut));
        // Whatever is cut from a line, this much is enough to choose from.
        let enough = self.budget + KEPT_LINE;
        while self.tail.len() > BEFORE
            && let Some((_, first, _)) = self.tail.front()
            && self.tail_bytes - first.len() > enough
        {
            self.tail_bytes -= first.len() + 1;
            self.tail.pop_front();
        }
    }

    /// Keeps the line if it is, or follows, one that looks like an error.
    fn look(&mut self, number: u64, line: &[u8], cut: usize) {
        let error = is_error(line);
        if error {
            let before: Vec<_> = self.tail.iter().rev().take(BEFORE).rev().collect();
            for (number, line, cut) in before {
                if self.found.last().is_none_or(|(last, _)| last < number) {
                    let text = shown(line, *cut);
                    self.found_room = self.found_room.saturating_sub(text.len() + 1);
                    self.found.push((*number, text));
                }
            }
            self.found_until = number + AFTER;
        }
        if error || number <= self.found_until {
            let text = shown(line, cut);
            self.found_room = self.found_room.saturating_sub(text.len() + 1);
            self.found.push((number, text));
        }
    }

    fn finish(mut self) -> Excerpt {
        if !self.line.is_empty() || self.cut > 0 {
            self.end_line();
        }
        let lines = self.lines;
        if let Some(whole) = self.whole.take() {
            let text = clean_all(&whole);
            if text.len() <= self.budget {
                return Excerpt { text, lines, ..Excerpt::default() };
            }
        }
        let mut chosen: BTreeMap<u64, String> = self.head.into_iter().chain(self.found).collect();
        let mut room =
            self.budget.saturating_sub(chosen.values().map(|text| text.len() + 1).sum::<usize>());
        for (number, line, cut) in self.tail.iter().rev() {
            if chosen.contains_key(number) {
                continue;
            }
            let text = shown(line, *cut);
            if text.len() + 1 > room {
                break;
            }
            room -= text.len() + 1;
            chosen.insert(*number, text);
        }
        let mut text = String::new();
        let (mut next, mut missing) = (1, None);
        let mut gap = |text: &mut String, from: u64, to: u64| {
            missing.get_or_insert((from, to));
            text.push_str(&match to - from {
                0 => format!("[line {from} left out]\n"),
                _ => format!("[lines {from}-{to} left out]\n"),
            });
        };
        for (number, line) in &chosen {
            if *number > next {
                gap(&mut text, next, number - 1);
            }
            text.push_str(line);
            text.push('\n');
            next = number + 1;
        }
        if next <= lines {
            gap(&mut text, next, lines);
        }
        // A line whose middle was cut is missing as well.
        if missing.is_none() {
            missing = Some((1, lines));
        }
        let unsearched = self.unsearched.filter(|_| self.errors);
        Excerpt { text, lines, missing, unsearched }
    }
}

/// Whether a line looks like it says what went wrong.
fn is_error(line: &[u8]) -> bool {
    static ERROR: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(concat!(
            r"(?i-u)(\b(error|errors|fatal|panicked|panic|exception|traceback|failed|failure|",
            r"failures|assertionerror|assertion|unresolved|undefined|segmentation fault|",
            r"no such file|not found|cannot|denied|killed|refused|aborted|timed out)\b|",
            r"[a-z](error|exception)\b|^\s*e\s{2,}|^---\s+fail|^not ok\b)"
        ))
        .expect("a valid pattern")
    });
    static NONE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(
            r"(?i-u)\b(0|no) (failed|failures?|errors?)\b|\b(failed|failures?|errors?)[:=] ?0\b",
        )
        .expect("a valid pattern")
    });
    ERROR.is_match(line)
        && (!NONE.is_match(line) || ERROR.is_match(&NONE.replace_all(line, &b""[..])))
}

/// One line as it is shown where not everything is.
pub(super) fn shown(line: &[u8], cut: usize) -> String {
    let text = clean(line);
    if text.len() <= LONG_LINE && cut == 0 {
        return text;
    }
    let floor = |at: usize| (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let head = floor((LONG_LINE * 2 / 3).min(text.len()));
    let tail = floor(text.len().saturating_sub(LONG_LINE / 4)).max(head);
    let left_out = tail - head + cut;
    format!("{}[{left_out} bytes of this line left out]{}", &text[..head], &text[tail..])
}

fn clean_all(bytes: &[u8]) -> String {
    bytes
        .split_inclusive(|&byte| byte == b'\n')
        .map(|line| match line {
            [line @ .., b'\n'] => clean(line) + "\n",
            line => clean(line),
        })
        .collect()
}

/// A line as a terminal would leave it on the screen: without escapes and control characters, and
/// where the cursor went back to the beginning, what was written last.
pub(super) fn clean(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let start = line.iter().rposition(|&byte| byte == b'\r').map_or(0, |at| at + 1);
    let text = String::from_utf8_lossy(&line[start..]);
    if !text.contains(|c: char| c.is_control() && c != '\t') {
        return text.into_owned();
    }
    let mut clean = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => skip_escape(&mut chars),
            '\u{9b}' => skip_parameters(&mut chars),
            '\t' => clean.push(c),
            c if c.is_control() => {}
            c => clean.push(c),
        }
    }
    clean
}

fn skip_escape(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match chars.next() {
        Some('[') => skip_parameters(chars),
        Some(']' | 'P' | 'X' | '^' | '_') => {
            while let Some(c) = chars.next() {
                if c == '\u{7}'
                    || c == '\u{9c}'
                    || c == '\u{1b}' && chars.next_if_eq(&'\\').is_some()
                {
                    break;
                }
            }
        }
        Some('(' | ')' | '*' | '+' | '#' | '%') => _ = chars.next(),
        _ => {}
    }
}

fn skip_parameters(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    for c in chars.by_ref() {
        if ('\u{40}'..='\u{7e}').contains(&c) {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &[u8], budget: usize, errors: bool) -> Excerpt {
        excerpt(&mut &text[..], text.len() as u64, budget, errors).unwrap()
    }

    fn numbered(lines: u64) -> String {
        (1..=lines).map(|n| format!("line {n}\n")).collect()
    }

    #[test]
    fn what_fits_is_shown_whole_and_clean() {
        let shown = of(b"\x1b[1m\x1b[32mok\x1b[0m\x1b(B\r\n 10%\r 99%\rdone\nlast \xff", 100, true);
        assert_eq!(shown.text, "ok\ndone\nlast \u{fffd}");
        assert_eq!((shown.lines, shown.missing), (3, None));
        assert_eq!(of(b"", 100, true), Excerpt::default());
    }

    #[test]
    fn head_and_tail_of_a_run_that_went_well() {
        let shown = of(numbered(1000).as_bytes(), 100, false);
        assert!(shown.text.starts_with("line 1\nline 2\n"), "{}", shown.text);
        assert!(shown.text.ends_with("line 999\nline 1000\n"), "{}", shown.text);
        assert_eq!((shown.lines, shown.missing), (1000, Some((6, 993))));
        assert!(shown.text.contains("[lines 6-993 left out]\n"), "{}", shown.text);
    }

    #[test]
    fn an_error_in_the_middle_comes_with_its_surroundings() {
        let text = numbered(500) + "error[E0308]: mismatched types\n" + &numbered(500);
        let shown = of(text.as_bytes(), 400, true);
        assert!(
            shown
                .text
                .contains("line 499\nline 500\nerror[E0308]: mismatched types\nline 1\nline 2\n"),
            "{}",
            shown.text
        );
        assert!(shown.text.len() < 500 && shown.text.ends_with("line 500\n"), "{}", shown.text);
        // What went well has no errors to look for.
        assert!(!of(text.as_bytes(), 400, false).text.contains("E0308"));
    }

    #[test]
    fn no_failures_are_no_error() {
        for line in ["test result: ok. 3 passed; 0 failed", "0 errors", "errors: 0", "all fine"] {
            assert!(!is_error(line.as_bytes()), "{line}");
        }
        for line in [
            "1 failed, 0 errors",
            "TypeError: x",
            "E   assert 1 == 2",
            "not ok 3",
            "ld: cannot find -lx",
        ] {
            assert!(is_error(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn one_endless_line_is_cut() {
        let text = vec![b'x'; 5 << 20];
        let shown = of(&text, 4000, true);
        assert!(shown.text.len() < 4000, "{}", shown.text.len());
        assert!(shown.text.contains("bytes of this line left out]"));
        assert_eq!((shown.lines, shown.missing), (1, Some((1, 1))));
    }

    #[test]
    fn a_huge_output_is_searched_at_both_ends_only_and_says_so() {
        let lines = 2_000_000;
        let text = numbered(lines);
        let shown = of(text.as_bytes(), 1000, true);
        assert_eq!(shown.lines, lines);
        assert!(shown.text.ends_with("line 1999999\nline 2000000\n"));
        let (from, to) = shown.unsearched.unwrap();
        assert!(from > 300_000 && to < 1_700_000, "{from}-{to}");
    }
}
