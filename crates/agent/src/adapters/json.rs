//! Reads one line of JSON in a single pass and decodes only what is asked for.
//!
//! An event may contain megabytes that are never read, and fields may change their type in the next
//! version of an agent. So a value stays text until it is needed, and a field of an unexpected type
//! reads as missing without affecting the rest of the line. Rejected: parsing level by level with a
//! general library, which scans the payload once per level and is three times slower.

use std::borrow::Cow;
use std::ops::Range;

use super::string_scan::{Block, Escapes, next_backslash};

/// Deeper than any event; protects the stack.
const DEEPEST: u32 = 128;

/// The ranges of the values of a line. An object is followed by its keys and values alternately, an
/// array by its values.
#[derive(Debug)]
pub(crate) struct Tape<'a> {
    text: &'a str,
    nodes: Vec<Node>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    start: u32,
    end: u32,
    /// The first node after this one and its children.
    after: u32,
    /// Whether a string has escapes.
    escapes: bool,
}

impl<'a> Tape<'a> {
    /// `None` unless the text is exactly one value.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        Self::parse_in(text, &mut Vec::with_capacity(64))
    }

    /// The same, reusing a vector of nodes; return it with [`into_nodes`](Self::into_nodes).
    pub(crate) fn parse_in(text: &'a str, nodes: &mut Vec<Node>) -> Option<Self> {
        u32::try_from(text.len()).ok()?;
        nodes.clear();
        let mut parser = Parser { bytes: text.as_bytes(), at: 0, nodes };
        parser.value(0)?;
        parser.space();
        let whole = parser.at == text.len();
        whole.then(|| Self { text, nodes: std::mem::take(nodes) })
    }

    pub(crate) fn into_nodes(self) -> Vec<Node> {
        self.nodes
    }

    pub(crate) fn root(&self) -> Json<'_> {
        Json { tape: self, index: 0 }
    }
}

struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: &'a mut Vec<Node>,
}

impl Parser<'_> {
    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.bytes.get(self.at) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.bytes.get(self.at) == Some(&byte);
        self.at += usize::from(there);
        there
    }

    fn value(&mut self, depth: u32) -> Option<()> {
        self.space();
        let index = self.nodes.len();
        // The length of the text was checked to fit.
        let start = self.at as u32;
        self.nodes.push(Node { start, end: start, after: 0, escapes: false });
        let mut escapes = false;
        match self.bytes.get(self.at)? {
            b'"' => escapes = self.string()?,
            open @ (b'{' | b'[') if depth < DEEPEST => self.list(*open, depth)?,
            _ => self.scalar()?,
        }
        let after = self.nodes.len() as u32;
        self.nodes[index] = Node { start, end: self.at as u32, after, escapes };
        Some(())
    }

    fn list(&mut self, open: u8, depth: u32) -> Option<()> {
        let close = if open == b'{' { b'}' } else { b']' };
        self.at += 1;
        self.space();
        if self.take(close) {
            return Some(());
        }
        loop {
            if open == b'{' {
                self.space();
                if self.bytes.get(self.at) != Some(&b'"') {
                    return None;
                }
                self.value(depth + 1)?;
                self.space();
                if !self.take(b':') {
                    return None;
                }
            }
            self.value(depth + 1)?;
            self.space();
            if self.take(close) {
                return Some(());
            }
            if !self.take(b',') {
                return None;
            }
        }
    }

    /// Returns whether it has escapes.
    #[inline]
    fn string(&mut self) -> Option<bool> {
        self.at += 1;
        let (mut escapes, mut any) = (Escapes::default(), 0);
        loop {
            let block = Block::at(self.bytes, self.at)?;
            let backslashes = block.places_of(b'\\');
            let quotes = block.places_of(b'"') & !escapes.of(backslashes);
            if quotes != 0 {
                let before = quotes ^ (quotes - 1);
                self.at += quotes.trailing_zeros() as usize + 1;
                return Some(any | (backslashes & before) != 0);
            }
            any |= backslashes;
            self.at += Block::WIDTH;
        }
    }

    fn scalar(&mut self) -> Option<()> {
        let rest = &self.bytes[self.at..];
        let ends =
            |b: &u8| matches!(b, b',' | b'}' | b']' | b':' | b'"' | b' ' | b'\t' | b'\r' | b'\n');
        let length = rest.iter().position(ends).unwrap_or(rest.len());
        let word = &rest[..length];
        let number = matches!(word.first(), Some(b'-' | b'0'..=b'9'))
            && word.iter().all(|b| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'));
        self.at += length;
        (number || matches!(word, b"true" | b"false" | b"null")).then_some(())
    }
}

/// One JSON value, still as text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Json<'a> {
    tape: &'a Tape<'a>,
    index: usize,
}

impl<'a> Json<'a> {
    fn node(self) -> Node {
        self.tape.nodes[self.index]
    }

    pub(crate) fn range(self) -> Range<usize> {
        self.node().start as usize..self.node().end as usize
    }

    pub(crate) fn text(self) -> &'a str {
        &self.tape.text[self.range()]
    }

    pub(crate) fn str(self) -> Option<Cow<'a, str>> {
        string(self.text())
    }

    pub(crate) fn bool(self) -> Option<bool> {
        self.text().parse().ok()
    }

    pub(crate) fn f64(self) -> Option<f64> {
        self.text().parse().ok()
    }

    /// Whole numbers, also when written as `3.0`.
    pub(crate) fn u64(self) -> Option<u64> {
        self.text().parse().ok().or_else(|| {
            let number = self.f64().filter(|n| n.fract() == 0.0 && (0.0..=1e15).contains(n))?;
            Some(number as u64)
        })
    }

    pub(crate) fn i64(self) -> Option<i64> {
        self.text().parse().ok().or_else(|| self.f64().filter(|n| n.abs() < 1e15).map(|n| n as i64))
    }

    pub(crate) fn object(self) -> Option<Object<'a>> {
        self.text().starts_with('{').then_some(Object(self))
    }

    pub(crate) fn array(self) -> Option<Vec<Json<'a>>> {
        self.text().starts_with('[').then(|| self.children().collect())
    }

    /// The direct children.
    fn children(self) -> impl Iterator<Item = Json<'a>> {
        let (tape, end) = (self.tape, self.node().after as usize);
        let mut index = self.index + 1;
        std::iter::from_fn(move || {
            let child = (index < end).then_some(Json { tape, index })?;
            index = child.node().after as usize;
            Some(child)
        })
    }
}

/// The content of a string; borrowed if it has no escapes. A broken escape affects only itself.
pub(crate) fn string(text: &str) -> Option<Cow<'_, str>> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    let Some(first) = next_backslash(inner.as_bytes(), 0) else {
        return Some(Cow::Borrowed(inner));
    };
    let mut decoded = String::with_capacity(inner.len());
    decode(inner, first, usize::MAX, &mut decoded);
    Some(Cow::Owned(decoded))
}

/// The first lines of a string; `true` if more follow.
pub(crate) fn string_head(text: &str, lines: usize) -> Option<(Cow<'_, str>, bool)> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    let Some(first) = next_backslash(inner.as_bytes(), 0) else {
        return Some((Cow::Borrowed(inner), false));
    };
    // Most lines are shorter.
    let mut decoded = String::with_capacity(inner.len().min(lines.saturating_mul(100)));
    let cut = decode(inner, first, lines, &mut decoded);
    Some((Cow::Owned(decoded), cut))
}

/// Decodes the content of a string, up to this many line feeds; `true` if more follows. `first` is
/// the position of the first escape.
fn decode(inner: &str, first: usize, lines: usize, into: &mut String) -> bool {
    let bytes = inner.as_bytes();
    let (mut from, mut escape, mut line_feeds) = (0, first, 0);
    loop {
        into.push_str(&inner[from..escape]);
        let (decoded, length) = unescape(&inner[escape..]);
        match decoded {
            Some(c) => into.push(c),
            None => into.push_str(&inner[escape..escape + length]),
        }
        from = escape + length;
        if decoded == Some('\n') {
            line_feeds += 1;
            if line_feeds == lines {
                return from < bytes.len();
            }
        }
        match next_backslash(bytes, from) {
            Some(next) => escape = next,
            None => {
                into.push_str(&inner[from..]);
                return false;
            }
        }
    }
}

/// The character of the escape at the beginning, and its length; `None` if it is broken.
fn unescape(text: &str) -> (Option<char>, usize) {
    let bytes = text.as_bytes();
    let simple = match bytes.get(1) {
        Some(b'n') => '\n',
        Some(b't') => '\t',
        Some(b'r') => '\r',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(c @ (b'"' | b'\\' | b'/')) => char::from(*c),
        Some(b'u') => return unescape_unicode(bytes),
        _ => return (None, 1),
    };
    (Some(simple), 2)
}

/// `\uXXXX`, or two of them for one character.
fn unescape_unicode(bytes: &[u8]) -> (Option<char>, usize) {
    let Some(unit) = code_unit(bytes) else { return (None, 1) };
    if let Some(c) = char::from_u32(unit) {
        return (Some(c), 6);
    }
    let second = bytes.get(6..).and_then(code_unit);
    match (unit, second) {
        (0xD800..0xDC00, Some(low @ 0xDC00..0xE000)) => {
            let code = 0x1_0000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
            (char::from_u32(code), 12)
        }
        _ => (None, 6),
    }
}

/// The four digits of `\uXXXX` at the beginning.
fn code_unit(bytes: &[u8]) -> Option<u32> {
    let digits = bytes.strip_prefix(b"\\u")?.get(..4)?;
    let digit = |value: u32, digit: &u8| Some(value << 4 | char::from(*digit).to_digit(16)?);
    digits.iter().try_fold(0, digit)
}

/// The fields of one object, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object<'a>(Json<'a>);

impl<'a> Object<'a> {
    /// A field that is present and not null. If a key is repeated, the last one counts.
    pub(crate) fn get(&self, name: &str) -> Option<Json<'a>> {
        let mut children = self.0.children();
        let mut found = None;
        while let (Some(key), Some(value)) = (children.next(), children.next()) {
            if is_key(key, name) {
                found = Some(value);
            }
        }
        found.filter(|value| value.text() != "null")
    }

    pub(crate) fn str(&self, name: &str) -> Option<Cow<'a, str>> {
        self.get(name)?.str()
    }

    pub(crate) fn u64(&self, name: &str) -> Option<u64> {
        self.get(name)?.u64()
    }

    pub(crate) fn object(&self, name: &str) -> Option<Object<'a>> {
        self.get(name)?.object()
    }

    pub(crate) fn array(&self, name: &str) -> Vec<Json<'a>> {
        self.get(name).and_then(Json::array).unwrap_or_default()
    }

    pub(crate) fn is(&self, name: &str, word: &str) -> bool {
        self.get(name).and_then(Json::str).is_some_and(|text| text == word)
    }

    pub(crate) fn fields(&self) -> impl Iterator<Item = (Cow<'a, str>, Json<'a>)> {
        let mut children = self.0.children();
        std::iter::from_fn(move || Some((children.next()?.str()?, children.next()?)))
    }
}

/// Whether a key equals this name. Few keys have escapes.
fn is_key(key: Json<'_>, name: &str) -> bool {
    match key.node().escapes {
        false => key.range().len() == name.len() + 2 && &key.text()[1..=name.len()] == name,
        true => key.str().is_some_and(|key| key == name),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_of_another_type_read_as_absent() {
        let line = r#" {"a":1.0,"b" : "x\ny","c":null,"d":[1,"two",{"e":true}],"a2":"7","f":{"g":-3},
            "h":[],"i":{}, "j\u006b": 2}"#;
        let tape = Tape::parse(line).unwrap();
        let object = tape.root().object().unwrap();
        assert_eq!(object.u64("a"), Some(1));
        assert_eq!(object.u64("b"), None);
        assert_eq!(object.str("b").as_deref(), Some("x\ny"));
        assert!(object.get("c").is_none() && object.get("zzz").is_none());
        assert_eq!(object.u64("a2"), None);
        let items = object.array("d");
        assert_eq!(items.len(), 3);
        assert_eq!(items[2].object().unwrap().get("e").unwrap().bool(), Some(true));
        assert_eq!(object.object("f").unwrap().get("g").unwrap().i64(), Some(-3));
        assert!(object.array("a").is_empty() && object.object("a").is_none());
        assert!(object.array("h").is_empty() && object.object("i").is_some());
        assert_eq!(object.u64("jk"), Some(2));
    }

    #[test]
    fn text_that_is_not_exactly_one_value_is_refused() {
        for text in [
            "",
            "x",
            "{\"a\":1} x",
            "{\"a\":",
            "{\"a\" 1}",
            "{1:2}",
            "[1,]",
            "[1 2]",
            "\"a",
            "\"a\\",
            "{\"a\":tru}",
            "nan",
            "{,}",
            "]",
        ] {
            assert!(Tape::parse(text).is_none(), "{text}");
        }
        let deep = "[".repeat(100_000);
        assert!(Tape::parse(&deep).is_none());
    }

    #[test]
    fn a_broken_escape_spoils_only_itself() {
        for (json, text) in [
            (r#""a\ud800b""#, r"a\ud800b"),
            (r#""\udc00\n""#, "\\udc00\n"),
            (r#""\ud83d\ude00!""#, "😀!"),
            (r#""\ud83dx\u00e9""#, "\\ud83dxé"),
            (r#""a\x\"""#, "a\\x\""),
            (r#""\u12""#, r"\u12"),
            (r#""\u00e9\/\b\f\t\r\\""#, "é/\u{8}\u{c}\t\r\\"),
        ] {
            assert_eq!(string(json).unwrap(), text, "{json}");
        }
    }

    #[test]
    fn the_head_of_a_string_is_cut_after_its_lines() {
        let text = r#""a\nb\\n\nc""#;
        let head = |lines| string_head(text, lines).unwrap();
        assert_eq!(head(1), ("a\n".into(), true));
        assert_eq!(head(2), ("a\nb\\n\n".into(), true));
        assert_eq!(head(3), ("a\nb\\n\nc".into(), false));
        assert_eq!(string_head(r#""a\n""#, 1).unwrap(), ("a\n".into(), false));
        assert_eq!(string_head(r#""plain""#, 1).unwrap(), ("plain".into(), false));
    }

    fn same(json: Json<'_>, value: &serde_json::Value) -> bool {
        use serde_json::Value;
        match value {
            Value::Null => json.text() == "null",
            Value::Bool(truth) => json.bool() == Some(*truth),
            Value::Number(number) => json.f64() == number.as_f64(),
            Value::String(text) => json.str().as_deref() == Some(text),
            Value::Array(items) => {
                let found = json.array().unwrap();
                found.len() == items.len() && found.iter().zip(items).all(|(a, b)| same(*a, b))
            }
            Value::Object(fields) => {
                let object = json.object().unwrap();
                object.fields().count() == fields.len()
                    && fields.iter().filter(|(_, v)| !v.is_null()).all(|(name, value)| {
                        object.get(name).is_some_and(|found| same(found, value))
                    })
            }
        }
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i32>().prop_map(Into::into),
            "\\PC{0,12}|[\\\\\"\n{}\\[\\],:]{0,8}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::vec(("[a-z\"\\\\]{0,4}", inner), 0..6)
                    .prop_map(|pairs| serde_json::Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Includes characters that need two units, or that some writers escape.
        #[test]
        fn strings_are_decoded_as_by_others(text in ".{0,40}|[\\n\"\\\\😀é/]{0,20}", ascii in any::<bool>()) {
            let mut json = serde_json::to_string(&text).expect("JSON");
            if ascii {
                let escaped = |c: char| -> String {
                    let mut units = [0; 2];
                    let units = c.encode_utf16(&mut units);
                    units.iter().map(|unit| format!("\\u{unit:04x}")).collect()
                };
                json = json.chars().map(|c| if c.is_ascii() { c.into() } else { escaped(c) }).collect();
            }
            let decoded = string(&json).expect("a string");
            prop_assert_eq!(&*decoded, text.as_str());
            let feeds = text.matches('\n').count();
            prop_assert_eq!(super::super::string_scan::line_feeds(json.as_bytes()), feeds);
            let escapes = Tape::parse(&json).expect("valid").root().node().escapes;
            prop_assert_eq!(escapes, json.contains('\\'));
        }

        #[test]
        fn reads_what_others_write(value in any_json(), pretty in any::<bool>()) {
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            let tape = Tape::parse(&text).expect("valid JSON");
            prop_assert!(same(tape.root(), &value), "{}", text);
        }

        #[test]
        fn malformed_json_is_never_accepted(text in "[\\[\\]{}:,\"a1 ]{0,12}") {
            if Tape::parse(&text).is_some() {
                // Numbers with leading zeros are the only exception that is accepted.
                prop_assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{}", text);
            }
        }
    }
}
