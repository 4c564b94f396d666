//! Splits a stream of bytes into lines, holding at most a few megabytes for any input.
//!
//! A line up to [`WHOLE`] is passed unchanged. A longer one is shortened as it arrives: every JSON
//! string in it is cut to [`STRING`] bytes, with a note of how much is missing, so that the event
//! around an enormous payload can still be parsed. If it is still too long, it is dropped and
//! counted.

use memchr::{memchr, memchr2};
use retake_types::text;

/// Maximum length of an unchanged line.
pub(super) const WHOLE: usize = 1 << 20;
/// Maximum length of a string in a longer line.
pub(super) const STRING: usize = 64 << 10;
/// Maximum length of a shortened line.
pub(super) const SHRUNK: usize = 2 << 20;

/// One line, or the length of a dropped one.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    Text(&'a [u8]),
    /// A line this long was dropped.
    Dropped(u64),
}

/// The state between chunks.
#[derive(Debug, Default)]
pub struct Lines {
    held: Vec<u8>,
    /// Set during a line that is too long to hold.
    shrink: Option<Box<Shrink>>,
}

impl Lines {
    /// Processes the next bytes and passes every completed line, without its line feed.
    pub fn push(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(Line<'_>)) {
        while let Some(end) = memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            if self.held.is_empty() && self.shrink.is_none() && line.len() <= WHOLE {
                each(Line::Text(line));
            } else {
                self.hold(line);
                self.complete(each);
            }
            bytes = rest;
        }
        if !bytes.is_empty() {
            self.hold(bytes);
        }
    }

    /// Passes the text after the last line feed.
    pub fn finish(&mut self, each: &mut dyn FnMut(Line<'_>)) {
        if !self.held.is_empty() || self.shrink.is_some() {
            self.complete(each);
        }
    }

    fn hold(&mut self, bytes: &[u8]) {
        if self.shrink.is_none() {
            if self.held.len() + bytes.len() <= WHOLE {
                self.held.extend_from_slice(bytes);
                return;
            }
            let mut shrink = Box::<Shrink>::default();
            shrink.push(&self.held);
            self.held = Vec::new();
            self.shrink = Some(shrink);
        }
        if let Some(shrink) = &mut self.shrink {
            shrink.push(bytes);
        }
    }

    fn complete(&mut self, each: &mut dyn FnMut(Line<'_>)) {
        match self.shrink.take() {
            Some(shrink) if shrink.kept.len() > SHRUNK => each(Line::Dropped(shrink.seen)),
            Some(shrink) => each(Line::Text(&shrink.kept)),
            None => each(Line::Text(&self.held)),
        }
        self.held.clear();
    }
}

/// Copies JSON, cutting each string at the limit.
#[derive(Debug, Default)]
struct Shrink {
    kept: Vec<u8>,
    seen: u64,
    state: StringState,
    /// Bytes of the current string that were kept and omitted.
    inside: usize,
    left_out: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum StringState {
    #[default]
    Outside,
    /// In a string; `pair` after the first half of a surrogate pair, which must not be split.
    Inside {
        pair: bool,
    },
    Backslash {
        pair: bool,
    },
    /// In `\uXXXX`, with this many digits missing.
    Digits {
        left: u8,
        value: u32,
    },
    /// Beyond the limit.
    Beyond,
    BeyondBackslash,
}

impl Shrink {
    fn push(&mut self, mut bytes: &[u8]) {
        self.seen += bytes.len() as u64;
        while !bytes.is_empty() && self.kept.len() <= SHRUNK {
            bytes = match self.state {
                StringState::Outside => self.outside(bytes),
                StringState::Beyond => self.beyond(bytes),
                StringState::BeyondBackslash => {
                    self.state = StringState::Beyond;
                    self.left_out += 1;
                    &bytes[1..]
                }
                _ => self.inside(bytes),
            };
        }
    }

    fn outside<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let end = memchr(b'"', bytes).map_or(bytes.len(), |at| at + 1);
        if bytes[end - 1] == b'"' {
            (self.state, self.inside, self.left_out) = (StringState::Inside { pair: false }, 0, 0);
        }
        self.kept.extend_from_slice(&bytes[..end]);
        &bytes[end..]
    }

    fn inside<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let byte = bytes[0];
        let continues = byte & 0xC0 == 0x80;
        if self.state == (StringState::Inside { pair: false })
            && self.inside >= STRING
            && !continues
            && byte != b'"'
        {
            self.state = StringState::Beyond;
            return bytes;
        }
        self.kept.push(byte);
        self.inside += 1;
        self.state = match self.state {
            StringState::Inside { .. } if byte == b'"' => StringState::Outside,
            StringState::Inside { pair } if byte == b'\\' => StringState::Backslash { pair },
            StringState::Inside { .. } => StringState::Inside { pair: false },
            StringState::Backslash { .. } if byte == b'u' => {
                StringState::Digits { left: 4, value: 0 }
            }
            StringState::Backslash { .. } => StringState::Inside { pair: false },
            StringState::Digits { left, value } => {
                let value = value << 4 | (byte as char).to_digit(16).unwrap_or(0);
                match left {
                    1 => StringState::Inside { pair: (0xD800..0xDC00).contains(&value) },
                    _ => StringState::Digits { left: left - 1, value },
                }
            }
            other => other,
        };
        &bytes[1..]
    }

    fn beyond<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Some(end) = memchr2(b'"', b'\\', bytes) else {
            self.left_out += bytes.len() as u64;
            return &[];
        };
        self.left_out += end as u64;
        if bytes[end] == b'\\' {
            self.left_out += 1;
            self.state = StringState::BeyondBackslash;
        } else {
            let note = format!("… [{} more]\"", text::count(self.left_out, "byte"));
            self.kept.extend_from_slice(note.as_bytes());
            self.state = StringState::Outside;
        }
        &bytes[end + 1..]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(chunks: &[&[u8]]) -> Vec<Result<Vec<u8>, u64>> {
        let mut lines = Lines::default();
        let mut seen = Vec::new();
        let mut each = |line: Line<'_>| {
            seen.push(match line {
                Line::Text(text) => Ok(text.to_vec()),
                Line::Dropped(bytes) => Err(bytes),
            });
        };
        for chunk in chunks {
            lines.push(chunk, &mut each);
        }
        lines.finish(&mut each);
        seen
    }

    #[test]
    fn the_event_around_an_enormous_string_survives() {
        let big = "line\\n\\ud83d\\ude00é\\\"".repeat(400_000);
        let text = format!("{{\"type\":\"user\",\"content\":\"{big}\",\"is_error\":true}}\nnext\n");
        for size in [7, 4096, 1 << 16] {
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            let lines = all(&chunks);
            assert_eq!(lines.len(), 2);
            let value: serde_json::Value =
                serde_json::from_slice(lines[0].as_ref().unwrap()).expect("still JSON");
            assert_eq!(value["is_error"], true);
            let kept = value["content"].as_str().unwrap();
            assert!(kept.len() < STRING + 64 && kept.ends_with("bytes more]"));
            assert_eq!(lines[1].as_deref(), Ok(&b"next"[..]));
        }
    }

    #[test]
    fn no_character_is_cut_in_two() {
        for shift in 0..4 {
            let text = format!("{{\"a\":\"{}{}\"}}", "x".repeat(shift), "€".repeat(WHOLE));
            let lines = all(&[text.as_bytes()]);
            assert!(std::str::from_utf8(lines[0].as_ref().unwrap()).is_ok(), "{shift}");
        }
    }

    #[test]
    fn lines_that_cannot_be_shortened_are_dropped_and_counted() {
        let long = vec![b'['; 5 << 20];
        let lines = all(&[&long, b"\nnext"]);
        assert_eq!(lines, [Err(5 << 20), Ok(b"next".to_vec())]);
    }

    #[test]
    fn memory_stays_bounded_in_a_line_without_end() {
        let mut lines = Lines::default();
        let chunk = vec![b'x'; 1 << 16];
        lines.push(b"{\"a\":\"", &mut |_| {});
        for _ in 0..2048 {
            lines.push(&chunk, &mut |_| {});
        }
        let shrink = lines.shrink.as_ref().unwrap();
        assert!(shrink.kept.capacity() <= 2 * WHOLE && lines.held.capacity() <= 2 * WHOLE);
        assert_eq!(shrink.seen, 6 + (2048 << 16));
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_the_chunks(
            text in "[a\"\\\\\n{}:,u0-9]{0,200}",
            cuts in prop::collection::vec(1usize..40, 0..20),
        ) {
            let bytes = text.as_bytes();
            let (mut chunks, mut rest) = (Vec::new(), bytes);
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                chunks.push(head);
                rest = tail;
            }
            chunks.push(rest);
            let mut expected: Vec<_> = bytes.split(|b| *b == b'\n').map(|l| Ok(l.to_vec())).collect();
            if expected.last() == Some(&Ok(Vec::new())) {
                expected.pop();
            }
            prop_assert_eq!(all(&chunks), expected);
        }

        /// Keeps any JSON unchanged as long as no string is too long.
        #[test]
        fn shrinking_short_strings_changes_nothing(text in "\\PC{0,80}", cut in 0usize..40) {
            let json = serde_json::json!({"k": text, "l": [text, 1]}).to_string();
            let (head, tail) = json.as_bytes().split_at(cut.min(json.len()));
            let mut shrink = Shrink::default();
            shrink.push(head);
            shrink.push(tail);
            prop_assert_eq!(shrink.kept, json.into_bytes());
        }
    }
}
