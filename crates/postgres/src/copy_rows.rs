//! Rows in PostgreSQL's text format, the fastest way to insert them that needs no types.

use std::fmt::Write as _;

/// Rows that are collected and sent together.
#[derive(Default)]
pub(super) struct CopyRows {
    text: String,
    begun: bool,
}

impl CopyRows {
    /// Adds a field; `None` is NULL.
    pub(super) fn field(&mut self, value: Option<&str>) -> &mut Self {
        self.next();
        let Some(value) = value else {
            self.text.push_str("\\N");
            return self;
        };
        // Only a few ASCII bytes are special: everything between them is copied unchanged.
        let mut rest = value;
        while let Some(at) = rest.bytes().position(is_special) {
            self.text.push_str(&rest[..at]);
            self.text.push_str(match rest.as_bytes()[at] {
                b'\\' => "\\\\",
                b'\n' => "\\n",
                b'\r' => "\\r",
                b'\t' => "\\t",
                // NUL, which a text in PostgreSQL cannot contain.
                _ => "\u{fffd}",
            });
            rest = &rest[at + 1..];
        }
        self.text.push_str(rest);
        self
    }

    pub(super) fn text(&mut self, value: &str) -> &mut Self {
        self.field(Some(value))
    }

    pub(super) fn show(&mut self, value: Option<impl std::fmt::Display>) -> &mut Self {
        match value {
            // Numbers, ids, times and fixed words contain no special characters.
            Some(value) => {
                self.next();
                // Writing to a string cannot fail.
                _ = write!(self.text, "{value}");
                self
            }
            None => self.field(None),
        }
    }

    /// JSON whose strings contain no NUL, as `jsonb` requires.
    pub(super) fn json(&mut self, value: &impl serde::Serialize) -> &mut Self {
        // Plain data always serialises.
        let text = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
        match text.contains("\\u0000") {
            true => self.text(&without_nul(&text)),
            false => self.text(&text),
        }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.next();
        self.text.push_str("\\\\x");
        for byte in bytes {
            // Writing to a string cannot fail.
            _ = write!(self.text, "{byte:02x}");
        }
        self
    }

    /// Leaves out a field that is not known yet, and returns its position.
    pub(super) fn later(&mut self) -> usize {
        self.next();
        self.text.len()
    }

    pub(super) fn end(&mut self) {
        self.text.push('\n');
        self.begun = false;
    }

    fn next(&mut self) {
        if self.begun {
            self.text.push('\t');
        }
        self.begun = true;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

fn is_special(byte: u8) -> bool {
    matches!(byte, b'\\' | b'\n' | b'\r' | b'\t' | 0)
}

/// Replaces `\u0000` if it is an escape of JSON, and not the end of `\\u0000`.
fn without_nul(json: &str) -> String {
    let mut clean = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        clean.push_str(before);
        let length = if escape.starts_with("\\u0000") {
            clean.push_str("\\ufffd");
            6
        } else {
            let length = 1 + escape[1..].chars().next().map_or(0, char::len_utf8);
            clean.push_str(&escape[..length]);
            length
        };
        rest = &escape[length..];
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_in_copied_fields_are_escaped() {
        let mut rows = CopyRows::default();
        rows.text("a\tb\\c\nd\0").field(None).show(Some(7)).bytes(&[0, 255]);
        rows.end();
        assert_eq!(rows.text, "a\\tb\\\\c\\nd\u{fffd}\t\\N\t7\t\\\\x00ff\n");
    }

    #[test]
    fn json_has_no_nul_and_is_otherwise_the_same() {
        assert_eq!(without_nul(r#"{"a":"x\u0000y\\u0000\n"}"#), r#"{"a":"x\ufffdy\\u0000\n"}"#);
        assert_eq!(without_nul(r#"["\\\u0000"]"#), r#"["\\\ufffd"]"#);
    }
}
