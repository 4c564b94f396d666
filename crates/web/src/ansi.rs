//! The output of a program as styled text: colours and weights become class names, all other terminal
//! control sequences are dropped or made visible. No text is hidden, and none is treated as markup.
//!
//! Colours beyond the sixteen named ones are shown as the nearest of these, so that both themes
//! can choose readable tones.

use std::fmt::Write;

use retake_types::text;
use serde::Serialize;

/// How text is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Style {
    foreground: Option<u8>,
    background: Option<u8>,
    bold: bool,
    dim: bool,
    italic: bool,
    underline: bool,
    inverse: bool,
    strike: bool,
}

/// Some text in one style.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Span(pub(super) String, pub(super) String);

/// Maximum length of an escape sequence that may continue in the next part.
const LONGEST: usize = 4096;

impl Style {
    /// Class names, separated by spaces.
    pub(super) fn classes(&self) -> String {
        let mut classes = String::new();
        let (mut fore, mut back) = (self.foreground, self.background);
        if self.inverse {
            (fore, back) = (back, fore);
        }
        for (letter, colour) in [("f", fore), ("b", back)] {
            match colour {
                // Writing to a string cannot fail.
                Some(colour) => _ = write!(classes, " {letter}{colour}"),
                None if self.inverse => _ = write!(classes, " {letter}i"),
                None => {}
            }
        }
        let flags = [
            ("bo", self.bold),
            ("di", self.dim),
            ("it", self.italic),
            ("un", self.underline),
            ("st", self.strike),
        ];
        for (name, _) in flags.into_iter().filter(|(_, set)| *set) {
            classes.push(' ');
            classes.push_str(name);
        }
        classes.trim_start().to_owned()
    }

    /// Applies the numbers of a `CSI … m`.
    fn select(&mut self, numbers: &str) {
        let mut rest = numbers.split([';', ':']).map(|text| text.parse::<u16>().unwrap_or(0));
        while let Some(number) = rest.next() {
            match number {
                0 => *self = Self::default(),
                1 => self.bold = true,
                2 => self.dim = true,
                3 => self.italic = true,
                4 => self.underline = true,
                7 => self.inverse = true,
                9 => self.strike = true,
                21 | 22 => (self.bold, self.dim) = (false, false),
                23 => self.italic = false,
                24 => self.underline = false,
                27 => self.inverse = false,
                29 => self.strike = false,
                30..=37 => self.foreground = Some((number - 30) as u8),
                38 => self.foreground = extended(&mut rest).or(self.foreground),
                39 => self.foreground = None,
                40..=47 => self.background = Some((number - 40) as u8),
                48 => self.background = extended(&mut rest).or(self.background),
                49 => self.background = None,
                90..=97 => self.foreground = Some((number - 90 + 8) as u8),
                100..=107 => self.background = Some((number - 100 + 8) as u8),
                _ => {}
            }
        }
    }
}

/// The colour behind `38;5;N` or `38;2;R;G;B`.
fn extended(rest: &mut impl Iterator<Item = u16>) -> Option<u8> {
    match rest.next()? {
        5 => {
            let number = rest.next()?;
            Some(match number {
                0..=15 => number as u8,
                16..=231 => {
                    let level = |n: u16| if n == 0 { 0 } else { 55 + 40 * n };
                    let cube = number - 16;
                    nearest([level(cube / 36), level(cube / 6 % 6), level(cube % 6)])
                }
                _ => nearest([8 + 10 * (number.min(255) - 232); 3]),
            })
        }
        2 => {
            let colour = [rest.next()?, rest.next()?, rest.next()?];
            Some(nearest(colour.map(|part| part.min(255))))
        }
        _ => None,
    }
}

fn nearest(colour: [u16; 3]) -> u8 {
    const NAMED: [[u16; 3]; 16] = [
        [0, 0, 0],
        [205, 0, 0],
        [0, 205, 0],
        [205, 205, 0],
        [0, 0, 238],
        [205, 0, 205],
        [0, 205, 205],
        [229, 229, 229],
        [127, 127, 127],
        [255, 0, 0],
        [0, 255, 0],
        [255, 255, 0],
        [92, 92, 255],
        [255, 0, 255],
        [0, 255, 255],
        [255, 255, 255],
    ];
    let distance = |named: &[u16; 3]| -> u32 {
        named.iter().zip(colour).map(|(a, b)| u32::from(a.abs_diff(b)).pow(2)).sum()
    };
    let best = NAMED.iter().enumerate().min_by_key(|(_, named)| distance(named));
    best.map_or(7, |(place, _)| place as u8)
}

/// The bytes as spans. `style` is the style before them, and becomes the style after them.
pub(super) fn spans(bytes: &[u8], style: &mut Style) -> Vec<Span> {
    let text = String::from_utf8_lossy(bytes);
    let mut painter = Painter { spans: Vec::new(), pending: String::new(), style };
    let mut rest = text.as_ref();
    while let Some(at) = rest.find(steers) {
        painter.pending.push_str(&rest[..at]);
        let steering = &rest[at..];
        let first = steering.chars().next().unwrap_or('\u{0}');
        let mut length = first.len_utf8();
        match first {
            '\u{1b}' => length = painter.escape(steering),
            '\r' if steering[1..].starts_with('\n') => {}
            // All versions of an overwritten line are shown.
            '\r' => painter.pending.push('\n'),
            '\u{8}' | '\u{7}' => {}
            other => painter.visible(other),
        }
        rest = &steering[length..];
    }
    painter.pending.push_str(rest);
    painter.flush();
    painter.spans
}

struct Painter<'a> {
    spans: Vec<Span>,
    pending: String,
    style: &'a mut Style,
}

impl Painter<'_> {
    fn flush(&mut self) {
        if !self.pending.is_empty() {
            let text = std::mem::take(&mut self.pending);
            self.spans.push(Span(self.style.classes(), text));
        }
    }

    /// Shows a control character.
    fn visible(&mut self, c: char) {
        self.flush();
        let shown = match c {
            '\u{0}'..='\u{1f}' => char::from_u32(0x2400 + u32::from(c)).map(String::from),
            '\u{7f}' => Some("\u{2421}".to_owned()),
            _ => None,
        };
        let shown = shown.unwrap_or_else(|| format!("<U+{:04X}>", u32::from(c)));
        self.spans.push(Span("ctl".to_owned(), shown));
    }

    /// Applies the escape sequence at the beginning of `text`, and returns its length.
    fn escape(&mut self, text: &str) -> usize {
        let Some(length) = escape_length(text.as_bytes()) else {
            self.visible('\u{1b}');
            return 1;
        };
        let sequence = &text[..length];
        if let Some(numbers) = sequence.strip_prefix("\u{1b}[").and_then(|s| s.strip_suffix('m'))
            && !numbers.starts_with(['?', '>', '<', '='])
        {
            self.flush();
            self.style.select(numbers);
        }
        length
    }
}

fn steers(c: char) -> bool {
    text::steers(c) && c != '\n' && c != '\t'
}

/// The length of the escape sequence at the beginning; `None` if it is incomplete or invalid.
fn escape_length(bytes: &[u8]) -> Option<usize> {
    let within = &bytes[..bytes.len().min(LONGEST)];
    match within.get(1)? {
        b'[' => {
            let last = within[2..].iter().position(|b| !(0x20..=0x3f).contains(b))?;
            // Another byte than a final byte ends the sequence without being part of it.
            let is_final = (0x40..=0x7e).contains(&within[2 + last]);
            Some(2 + last + usize::from(is_final))
        }
        // Strings for the terminal, such as titles and links.
        b']' | b'P' | b'X' | b'^' | b'_' => {
            let end = within[2..].iter().position(|b| matches!(b, 0x07 | 0x1b))?;
            let bell = within[2 + end] == 0x07;
            let closed = bell || within.get(2 + end + 1) == Some(&b'\\');
            Some(2 + end + if bell { 1 } else { 2 * usize::from(closed) })
        }
        0x20..=0x2f => {
            let last = within[2..].iter().position(|b| !(0x20..=0x2f).contains(b))?;
            let is_final = (0x30..=0x7e).contains(&within[2 + last]);
            Some(2 + last + usize::from(is_final))
        }
        0x30..=0x7e => Some(2),
        _ => Some(1),
    }
}

/// How many of the bytes can be shown now: an incomplete character or escape sequence at the end waits
/// for what follows.
pub(super) fn complete_length(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(LONGEST);
    let escape = bytes[tail..].iter().rposition(|b| *b == 0x1b).map(|at| tail + at);
    if let Some(at) = escape
        && escape_length(&bytes[at..]).is_none()
        && bytes.len() - at < LONGEST
    {
        return at;
    }
    let end = bytes.len();
    for back in 1..=end.min(3) {
        let byte = bytes[end - back];
        let needed = match byte {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            0x80..=0xbf => continue,
            _ => return end,
        };
        return if needed > back { end - back } else { end };
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<(String, String)> {
        let spans = spans(text.as_bytes(), &mut Style::default());
        spans.into_iter().map(|Span(class, text)| (class, text)).collect()
    }

    fn plain(text: &str) -> String {
        shown(text).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn colours_become_classes_and_end() {
        let red = shown("a\u{1b}[1;31mb\u{1b}[0mc");
        let expected = [("", "a"), ("f1 bo", "b"), ("", "c")];
        assert_eq!(red, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert_eq!(shown("\u{1b}[38;5;196mx")[0].0, "f9");
        assert_eq!(shown("\u{1b}[38;2;1;2;3;44mx")[0].0, "f0 b4");
        assert_eq!(shown("\u{1b}[7mx")[0].0, "fi bi");
        assert_eq!(shown("\u{1b}[7;32mx")[0].0, "fi b2");
    }

    #[test]
    fn control_sequences_are_removed_or_made_visible() {
        assert_eq!(plain("a\u{1b}[2Jb\u{1b}]0;title\u{7}c\u{1b}]8;;http://x\u{1b}\\d"), "abcd");
        assert_eq!(plain("x\u{0}y\u{202e}z"), "x\u{2400}y<U+202E>z");
        assert_eq!(plain("1%\r2%\r\nend"), "1%\n2%\nend");
        assert_eq!(plain("cut \u{1b}[3"), "cut \u{241b}[3");
        assert_eq!(plain("\u{1b}[8mhidden"), "hidden");
    }

    #[test]
    fn a_style_continues_in_the_next_piece() {
        let mut style = Style::default();
        spans(b"\x1b[32mgreen", &mut style);
        assert_eq!(spans(b"still", &mut style)[0].0, "f2");
    }

    #[test]
    fn incomplete_characters_and_sequences_wait_for_more_bytes() {
        assert_eq!(complete_length("aü".as_bytes()), 3);
        assert_eq!(complete_length(&"aü".as_bytes()[..2]), 1);
        assert_eq!(complete_length(&"a😀".as_bytes()[..4]), 1);
        assert_eq!(complete_length(b"a\x1b[3"), 1);
        assert_eq!(complete_length(b"a\x1b[31m"), 6);
        assert_eq!(complete_length(b"\xff\xff"), 2);
        assert_eq!(complete_length(b""), 0);
        // A sequence without an end must not be waited for.
        let endless = [b"\x1b]".to_vec(), vec![b'x'; LONGEST]].concat();
        assert_eq!(complete_length(&endless), endless.len());
    }

    #[test]
    fn any_bytes_at_all_are_shown() {
        let mut state = 1u32;
        for _ in 0..2000 {
            let bytes: Vec<u8> = (0..40)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let noise = (state >> 24) as u8;
                    if noise < 90 { b"\x1b[]m;0\n\r\x9b"[usize::from(noise % 9)] } else { noise }
                })
                .collect();
            let end = complete_length(&bytes);
            assert!(end <= bytes.len());
            let text: String =
                spans(&bytes, &mut Style::default()).into_iter().map(|span| span.1).collect();
            assert!(!text.contains('\u{1b}') && !text.contains('\u{9b}'));
        }
    }
}
