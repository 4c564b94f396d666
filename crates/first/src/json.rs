//! JSON objects, written by hand: a dependency would be linked into every user's tests.

use std::fmt::Write as _;

/// One object, its members in the order they were given.
#[derive(Debug)]
pub(crate) struct Object {
    text: String,
}

impl Object {
    pub(crate) fn new() -> Self {
        Self { text: "{".to_owned() }
    }

    pub(crate) fn string(mut self, key: &str, value: &str) -> Self {
        self.key(key);
        quote(&mut self.text, value);
        self
    }

    pub(crate) fn string_or_null(mut self, key: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.string(key, value),
            None => {
                self.key(key);
                self.text.push_str("null");
                self
            }
        }
    }

    pub(crate) fn number(mut self, key: &str, value: u64) -> Self {
        self.key(key);
        let _infallible = write!(self.text, "{value}");
        self
    }

    /// The object as one line, including the line end.
    pub(crate) fn line(mut self) -> String {
        self.text.push_str("}\n");
        self.text
    }

    fn key(&mut self, key: &str) {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        quote(&mut self.text, key);
        self.text.push(':');
    }
}

fn quote(text: &mut String, value: &str) {
    text.push('"');
    for c in value.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            c if c < ' ' || c == '\u{7f}' => {
                let _infallible = write!(text, "\\u{:04x}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Object;

    proptest! {
        #[test]
        fn any_string_round_trips_through_json(key in any::<String>(), value in any::<String>()) {
            let line = Object::new().string(&key, &value).line();
            let body = line.strip_suffix('\n').unwrap();
            prop_assert!(!body.contains('\n'));
            let read: serde_json::Value = serde_json::from_str(body).unwrap();
            prop_assert_eq!(read[key.as_str()].as_str(), Some(value.as_str()));
        }
    }

    #[test]
    fn members_keep_their_order_and_kind() {
        let line = Object::new()
            .string("event", "crash")
            .number("target", u64::MAX)
            .string_or_null("label", None)
            .line();
        assert_eq!(line, "{\"event\":\"crash\",\"target\":18446744073709551615,\"label\":null}\n");
    }
}
