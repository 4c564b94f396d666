//! Splits chunks into lines as a terminal would show them, in bounded memory.

use memchr::{memchr, memrchr};

/// Maximum length of a line; the rest of a longer one is dropped.
pub(super) const MAX_LINE: usize = 64 * 1024;

/// Assembles one stream's lines.
///
/// A carriage return restarts the line, so the last non-empty part is the line. The boundaries of
/// chunks do not matter.
#[derive(Default)]
pub(super) struct LineSplitter {
    /// The part since the last carriage return.
    current: Vec<u8>,
    /// The last non-empty part before it.
    overwritten: Vec<u8>,
    /// Whether anything of the unfinished line was seen, even only a carriage return.
    open: bool,
}

impl LineSplitter {
    pub(super) fn push(&mut self, mut chunk: &[u8], mut each: impl FnMut(&[u8])) {
        if self.open {
            let Some(end) = memchr(b'\n', chunk) else {
                self.keep(chunk);
                return;
            };
            self.keep(&chunk[..end]);
            self.flush(&mut each);
            chunk = &chunk[end + 1..];
        }
        let overwrites = memchr(b'\r', chunk).is_some();
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', chunk) {
            let mut line = &chunk[start..end];
            if overwrites {
                line = visible(line);
            }
            each(&line[..line.len().min(MAX_LINE)]);
            start = end + 1;
        }
        if start < chunk.len() {
            self.keep(&chunk[start..]);
        }
    }

    /// Passes the last line, if it lacks its newline.
    pub(super) fn flush(&mut self, mut each: impl FnMut(&[u8])) {
        if !self.open {
            return;
        }
        each(if self.current.is_empty() { &self.overwritten } else { &self.current });
        self.current.clear();
        self.overwritten.clear();
        self.open = false;
    }

    fn keep(&mut self, part: &[u8]) {
        self.open = true;
        let mut rest = part;
        while let Some(at) = memchr(b'\r', rest) {
            self.append(&rest[..at]);
            if !self.current.is_empty() {
                std::mem::swap(&mut self.current, &mut self.overwritten);
                self.current.clear();
            }
            rest = &rest[at + 1..];
        }
        self.append(rest);
    }

    fn append(&mut self, bytes: &[u8]) {
        let room = MAX_LINE - self.current.len();
        self.current.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

fn visible(mut line: &[u8]) -> &[u8] {
    while let [rest @ .., b'\r'] = line {
        line = rest;
    }
    match memrchr(b'\r', line) {
        Some(at) => &line[at + 1..],
        None => line,
    }
}

/// Copies `line` without control sequences: CSI, OSC and other strings, charset and two-byte
/// escapes.
pub(super) fn strip_escapes(line: &[u8], into: &mut Vec<u8>) {
    into.clear();
    let mut rest = line;
    while let Some(at) = memchr(0x1b, rest) {
        into.extend_from_slice(&rest[..at]);
        rest = after_escape(&rest[at + 1..]);
    }
    into.extend_from_slice(rest);
}

/// The text after the sequence whose ESC was consumed; an unfinished sequence extends to the end.
fn after_escape(rest: &[u8]) -> &[u8] {
    let Some((&kind, body)) = rest.split_first() else { return rest };
    match kind {
        b'[' => {
            let end = body.iter().position(|byte| !(0x20..=0x3f).contains(byte));
            end.map_or(&[], |end| &body[end + usize::from((0x40..=0x7e).contains(&body[end]))..])
        }
        b']' | b'P' | b'X' | b'^' | b'_' => match memchr::memchr2(0x07, 0x1b, body) {
            Some(end) if body[end] == 0x07 => &body[end + 1..],
            Some(end) => body[end + 1..].strip_prefix(b"\\").unwrap_or(&body[end..]),
            None => &[],
        },
        0x20..=0x2f => {
            let end = body.iter().position(|byte| !(0x20..=0x2f).contains(byte));
            end.map_or(&[], |end| &body[end + 1..])
        }
        _ => body,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines_of(chunks: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut lines = LineSplitter::default();
        let mut found = Vec::new();
        for chunk in chunks {
            lines.push(chunk, |line| found.push(line.to_vec()));
        }
        lines.flush(|line| found.push(line.to_vec()));
        found
    }

    #[test]
    fn a_carriage_return_starts_over() {
        assert_eq!(
            lines_of(&[b"10%\r20%\rdone\r\nnext\r\r\n\rlast\r"]),
            [b"done".to_vec(), b"next".to_vec(), b"last".to_vec()]
        );
    }

    #[test]
    fn a_line_is_bounded() {
        let long = vec![b'x'; 3 * MAX_LINE];
        let mut lines = LineSplitter::default();
        for _ in 0..100 {
            lines.push(&long, |_| panic!("no line ended"));
        }
        assert!(lines.current.capacity() <= 2 * MAX_LINE, "{}", lines.current.capacity());
        let mut ended = Vec::new();
        lines.push(b"\nshort\n", |line| ended.push(line.len()));
        assert_eq!(ended, [MAX_LINE, 5]);
        assert_eq!(lines_of(&[&long, b"\rtail\n"]), [b"tail".to_vec()]);
    }

    #[test]
    fn escapes_go() {
        let mut clean = Vec::new();
        for (dirty, expected) in [
            ("\x1b[1;32mok\x1b[0m\x1b(B", "ok"),
            ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x07!", "link!"),
            ("a\x1b[?25l\x1b[2Kb\x1b7c\x1b=d", "abcd"),
            ("cut \x1b[1;3", "cut "),
            ("cut \x1b]0;title", "cut "),
            ("lone \x1b", "lone "),
            ("x\x1bP1$r0m\x1b\\y", "xy"),
            ("a\x1b[12\u{fffd}b", "a\u{fffd}b"),
        ] {
            strip_escapes(dirty.as_bytes(), &mut clean);
            assert_eq!(String::from_utf8_lossy(&clean), expected, "{dirty:?}");
        }
    }

    proptest! {
        #[test]
        fn splits_make_no_difference(
            text in "[ab\r\n]{0,40}",
            cuts in prop::collection::vec(0usize..40, 0..6),
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut chunks = Vec::new();
            let mut start = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                chunks.push(&bytes[start..cut]);
                start = cut;
            }
            prop_assert_eq!(lines_of(&chunks), lines_of(&[bytes]));
        }

        #[test]
        fn stripping_never_fails(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut clean = Vec::new();
            strip_escapes(&bytes, &mut clean);
            prop_assert!(!clean.contains(&0x1b));
            prop_assert!(clean.len() <= bytes.len());
        }
    }
}
