//! The text that bytes would leave on a terminal: without colours, with progress bars
//! collapsed, and nothing hidden or lost silently.

use super::error_lines::error_in;

/// Text that a carriage return may overwrite. Longer than any progress bar.
const SEGMENT: usize = 4 << 10;
/// How many overwritten parts of a line are kept.
const OVERWRITTEN: usize = 20;
/// Marks where a line returned to its beginning.
const RETURN: &str = "\u{240d}";

/// Whether a character hides or reverses the text near it, or is itself hidden text.
fn hides(c: char) -> bool {
    matches!(c,
        '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{e0000}'..='\u{e01ef}')
}

/// Whether a character is shown as it is.
pub(super) fn is_text(c: char) -> bool {
    c == '\t' || !c.is_control() && !hides(c)
}

#[derive(Debug, Default, PartialEq)]
enum Escape {
    #[default]
    None,
    Begun,
    Parameters(String),
    Charset,
    /// A title or a link, up to its end.
    Text(String),
    TextEnd,
}

/// Processes the bytes of a line.
#[derive(Debug, Default)]
pub(super) struct TerminalText {
    /// Bytes of an incomplete character.
    partial: Vec<u8>,
    escape: Escape,
    escape_bytes: usize,
    segment: String,
    /// The part before the last carriage return: the text that follows decides whether it is kept.
    pending: Option<String>,
    /// The segment is too long to be overwritten and is written out immediately.
    committed: bool,
    emitted: bool,
    kept: usize,
    lost: usize,
}

impl TerminalText {
    pub(super) fn push(&mut self, bytes: &[u8], out: &mut dyn FnMut(&str)) {
        let plain = |byte: &u8| (0x20..0x7f).contains(byte) || *byte == b'\t';
        if self.partial.is_empty()
            && self.escape == Escape::None
            && bytes.iter().all(plain)
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            return self.text(text, out);
        }
        let joined;
        let mut rest = bytes;
        if !self.partial.is_empty() {
            joined = [std::mem::take(&mut self.partial), bytes.to_vec()].concat();
            rest = &joined;
        }
        while !rest.is_empty() {
            let Err(error) = std::str::from_utf8(rest).map(|text| self.characters(text, out))
            else {
                break;
            };
            let (good, bad) = rest.split_at(error.valid_up_to());
            self.characters(std::str::from_utf8(good).unwrap_or_default(), out);
            match error.error_len() {
                Some(length) => {
                    self.characters("\u{fffd}", out);
                    rest = &bad[length..];
                }
                None => {
                    self.partial = bad.to_vec();
                    break;
                }
            }
        }
    }

    fn characters(&mut self, text: &str, out: &mut dyn FnMut(&str)) {
        let mut plain = 0;
        for (at, c) in text.char_indices() {
            if self.escape == Escape::None && is_text(c) {
                continue;
            }
            self.text(&text[plain..at], out);
            plain = at + c.len_utf8();
            self.special(c, out);
            self.escape_bytes =
                if self.escape == Escape::None { 0 } else { self.escape_bytes + c.len_utf8() };
        }
        self.text(&text[plain..], out);
    }

    fn special(&mut self, c: char, out: &mut dyn FnMut(&str)) {
        match &mut self.escape {
            Escape::None => match c {
                '\u{1b}' => self.escape = Escape::Begun,
                '\u{9b}' => self.escape = Escape::Parameters(String::new()),
                '\r' => self.carriage_return(out),
                c if hides(c) => self.text(&c.escape_default().to_string(), out),
                c if c == '\t' || !c.is_control() => {
                    self.text(c.encode_utf8(&mut [0; 4]), out);
                }
                _ => {}
            },
            Escape::Begun => {
                self.escape = match c {
                    '[' => Escape::Parameters(String::new()),
                    ']' | 'P' | 'X' | '^' | '_' => Escape::Text(String::new()),
                    '(' | ')' | '*' | '+' | '#' | '%' => Escape::Charset,
                    '\u{1b}' => Escape::Begun,
                    _ => Escape::None,
                }
            }
            Escape::Parameters(given) => match c {
                '\u{20}'..='\u{3f}' if given.len() < 64 => given.push(c),
                '\u{40}'..='\u{7e}' => {
                    let back = c == 'G' && ["", "0", "1"].contains(&given.as_str());
                    self.escape = Escape::None;
                    if back {
                        self.carriage_return(out);
                    }
                }
                // Not an escape sequence: the rest is text.
                _ => {
                    self.escape = Escape::None;
                    self.special(c, out);
                }
            },
            Escape::Charset => self.escape = Escape::None,
            Escape::Text(swallowed) => match c {
                '\u{7}' | '\u{9c}' => self.escape = Escape::None,
                '\u{1b}' => self.escape = Escape::TextEnd,
                c if swallowed.len() < SEGMENT => swallowed.push(c),
                _ => self.give_back(out),
            },
            Escape::TextEnd => {
                self.escape = Escape::Begun;
                if c == '\\' {
                    self.escape = Escape::None;
                } else {
                    self.special(c, out);
                }
            }
        }
    }

    /// An escape without an end must not hide the rest of the line.
    fn give_back(&mut self, out: &mut dyn FnMut(&str)) {
        if let Escape::Text(swallowed) = std::mem::take(&mut self.escape) {
            let text: String = swallowed.chars().filter(|c| !c.is_control()).collect();
            self.characters(&text, out);
        }
    }

    fn text(&mut self, text: &str, out: &mut dyn FnMut(&str)) {
        if self.committed {
            return out(text);
        }
        self.segment.push_str(text);
        if self.segment.len() > SEGMENT {
            if let Some(before) = self.pending.take() {
                self.keep_overwritten(&before, out);
            }
            self.committed = true;
            let segment = std::mem::take(&mut self.segment);
            self.emit(&segment, out);
        }
    }

    /// The text that follows overwrites the line from its beginning.
    fn carriage_return(&mut self, out: &mut dyn FnMut(&str)) {
        if std::mem::take(&mut self.committed) || self.segment.trim().is_empty() {
            return self.segment.clear();
        }
        if let Some(before) = self.pending.take() {
            self.keep_overwritten(&before, out);
        }
        self.pending = Some(std::mem::take(&mut self.segment));
    }

    /// Keeps overwritten text, unless it was a step of a progress bar.
    fn keep_overwritten(&mut self, before: &str, out: &mut dyn FnMut(&str)) {
        if !matters(before, &self.segment) {
            return;
        }
        if self.kept < OVERWRITTEN {
            self.kept += 1;
            self.emit(before, out);
        } else {
            self.lost += 1;
        }
    }

    fn emit(&mut self, text: &str, out: &mut dyn FnMut(&str)) {
        if std::mem::replace(&mut self.emitted, true) {
            out(RETURN);
        }
        out(text);
    }

    /// How many of the last bytes belong to an incomplete character or sequence.
    pub(super) fn held(&self) -> usize {
        self.partial.len() + self.escape_bytes
    }

    /// Ends the line; the next one can begin.
    pub(super) fn end(&mut self, out: &mut dyn FnMut(&str)) {
        if !std::mem::take(&mut self.partial).is_empty() {
            self.characters("\u{fffd}", out);
        }
        self.give_back(out);
        if !self.committed {
            if let Some(before) = self.pending.take() {
                if self.segment.trim().is_empty() {
                    self.segment = before;
                } else {
                    self.keep_overwritten(&before, out);
                }
            }
            if self.lost > 0 {
                self.emit(&format!("[{} more overwritten]", self.lost), out);
            }
            if !self.segment.is_empty() {
                let segment = std::mem::take(&mut self.segment);
                self.emit(&segment, out);
            }
        }
        *self = Self::default();
    }
}

/// Whether overwritten text contains something that its replacement does not.
fn matters(before: &str, after: &str) -> bool {
    if error_in(before).is_some() || before.to_ascii_lowercase().contains("warn") {
        return true;
    }
    let first = |text: &str| {
        let mut words = text.split(|c: char| !c.is_alphanumeric());
        words.find(|word| word.contains(char::is_alphabetic)).map(str::to_owned)
    };
    let word = first(before);
    word.is_some() && !before.contains(|c: char| c.is_ascii_digit()) && word != first(after)
}

/// A complete text as it is shown.
pub(super) fn clean(bytes: &[u8]) -> String {
    let (mut terminal, mut text) = (TerminalText::default(), String::new());
    terminal.push(bytes, &mut |piece| text.push_str(piece));
    terminal.end(&mut |piece| text.push_str(piece));
    text
}

/// Makes hidden characters visible in a text that is not output.
pub(super) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match is_text(c) {
            true => shown.push(c),
            false => shown.extend(c.escape_default()),
        }
    }
    shown
}
