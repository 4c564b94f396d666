//! Events of all agents in one vocabulary.

use std::borrow::Cow;

use super::json::{Json, Tape, string, string_head};
use super::string_scan::line_feeds;

/// One event of an agent's stream. Borrows from its line.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent<'a> {
    Started {
        session: Option<Cow<'a, str>>,
        model: Option<Cow<'a, str>>,
    },
    /// Text from the agent. A `delta` continues the text before it.
    Text {
        text: Cow<'a, str>,
        delta: bool,
    },
    ToolUse {
        id: Cow<'a, str>,
        name: Cow<'a, str>,
        input: Payload<'a>,
    },
    ToolResult {
        id: Cow<'a, str>,
        is_error: bool,
        exit_code: Option<i32>,
        content: Payload<'a>,
    },
    Usage(UsageEvent<'a>),
    RateLimit(RateLimit),
    /// The agent retries a request.
    Retry {
        attempt: u64,
        most: Option<u64>,
        delay_ms: Option<u64>,
        status: Option<u16>,
    },
    ApiError {
        status: Option<u16>,
        /// The agent's name for it, such as `authentication_failed`.
        kind: Option<Cow<'a, str>>,
        message: Cow<'a, str>,
    },
    /// A permission was denied. The tool may be identified only by the id of its call.
    Denied {
        tool: Cow<'a, str>,
        id: Option<Cow<'a, str>>,
        message: Cow<'a, str>,
    },
    Result(ResultEvent<'a>),
    /// A line that is not an event: not interpreted, shown unchanged.
    Noise(Cow<'a, str>),
    /// An event that was too long to parse.
    Dropped(u64),
}

/// The final result of an agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResultEvent<'a> {
    pub is_error: bool,
    pub subtype: Option<Cow<'a, str>>,
    /// Why it ended, in the agent's own words: `completed`, `api_error`, `aborted_tools`, …
    pub reason: Option<Cow<'a, str>>,
    pub status: Option<u16>,
    pub text: Option<Cow<'a, str>>,
    pub turns: Option<u64>,
    /// The tools whose permission was denied, with repeats; `None` if it does not report them.
    pub denied: Option<Vec<Cow<'a, str>>>,
}

/// Tokens and cost, and their scope.
#[derive(Clone, Debug, PartialEq)]
pub struct UsageEvent<'a> {
    pub scope: Scope<'a>,
    pub tokens: Tokens,
    pub cost_usd: Option<f64>,
    /// Tokens in the model's context at this point.
    pub context: Option<u64>,
    pub window: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Scope<'a> {
    /// One reply. An agent repeats it for each part of the reply.
    Message(Cow<'a, str>),
    /// Another step, to add.
    Step,
    /// The total so far.
    Total,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Input tokens that were not read from the cache.
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
}

impl Tokens {
    pub fn total(&self) -> u64 {
        [self.input, self.output, self.cache_read, self.cache_write]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    pub fn add(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
    }
}

/// What an agent reports about the limit of its account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    pub state: LimitState,
    /// Seconds since 1970.
    pub resets_at: Option<i64>,
    /// Such as `five_hour` or `seven_day`.
    pub window: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitState {
    Allowed,
    Warning,
    Rejected,
}

/// The input or result of a tool, still as JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload<'a>(&'a str);

/// The beginning of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextHead<'a> {
    pub text: Cow<'a, str>,
    /// Lines of the whole text, without trailing empty ones.
    pub lines: usize,
}

impl<'a> Payload<'a> {
    pub const EMPTY: Payload<'static> = Payload("null");

    pub(crate) fn of(json: Option<Json<'a>>) -> Self {
        json.map_or(Payload::EMPTY, |json| Self(json.text()))
    }

    /// Wraps JSON text.
    pub fn json(text: &'a str) -> Self {
        Self(text)
    }

    pub fn as_json(&self) -> &'a str {
        self.0
    }

    /// The first lines, as in [`text`](Self::text), and the number of lines. Does not decode the
    /// rest.
    pub fn head(&self, lines: usize) -> TextHead<'a> {
        if let Some((text, true)) = string_head(self.0, lines) {
            let (empty, all) = trailing_line_feeds(self.0);
            let lines = if all { 0 } else { line_feeds(self.0.as_bytes()) + 1 - empty };
            return TextHead { text, lines };
        }
        let text = self.text();
        let content = text.trim_end_matches(['\n', '\r']);
        let ends = memchr::memchr_iter(b'\n', content.as_bytes()).count();
        TextHead { lines: ends + usize::from(!content.is_empty()), text }
    }

    /// Readable text: the content of a string, the joined text blocks of a list, an empty text for
    /// null, and JSON for anything else.
    pub fn text(&self) -> Cow<'a, str> {
        let json = self.0;
        match json.as_bytes().first() {
            _ if json == "null" => Cow::Borrowed(""),
            Some(b'"') => string(json).unwrap_or(Cow::Borrowed(json)),
            Some(b'[') => blocks(json).map_or(Cow::Borrowed(json), Cow::Owned),
            _ => Cow::Borrowed(json),
        }
    }

    /// One field of an object, as text.
    pub fn field(&self, name: &str) -> Option<Cow<'a, str>> {
        let tape = Tape::parse(self.0)?;
        let range = tape.root().object()?.get(name)?.range();
        Some(plain(&self.0[range]))
    }

    /// The fields of an object with their values as text.
    pub fn fields(&self) -> Vec<(String, Cow<'a, str>)> {
        let Some(tape) = Tape::parse(self.0) else { return Vec::new() };
        let Some(object) = tape.root().object() else { return Vec::new() };
        object
            .fields()
            .map(|(key, value)| (key.into_owned(), plain(&self.0[value.range()])))
            .collect()
    }
}

/// The number of line feeds at the end of a string, with carriage returns between them, and whether
/// the string has nothing else.
fn trailing_line_feeds(json: &str) -> (usize, bool) {
    let mut rest = json.strip_suffix('"').unwrap_or(json).as_bytes();
    let mut found = 0;
    while let [before @ .., b'\\', end @ (b'n' | b'r')] = rest {
        // After an escaped backslash it would be an ordinary letter.
        let slashes = before.iter().rev().take_while(|byte| **byte == b'\\').count();
        if slashes % 2 == 1 {
            break;
        }
        found += usize::from(*end == b'n');
        rest = before;
    }
    (found, rest == b"\"")
}

/// The content of a string, or the JSON of anything else.
fn plain(text: &str) -> Cow<'_, str> {
    string(text).unwrap_or(Cow::Borrowed(text))
}

fn blocks(text: &str) -> Option<String> {
    let tape = Tape::parse(text)?;
    let parts: Vec<String> = tape
        .root()
        .array()?
        .into_iter()
        .map(|block| match (block.str(), block.object()) {
            (Some(text), _) => text.into_owned(),
            (None, Some(object)) => object.str("text").map_or_else(
                || format!("[{}]", object.str("type").unwrap_or(Cow::Borrowed("data"))),
                Cow::into_owned,
            ),
            (None, None) => block.text().to_owned(),
        })
        .collect();
    Some(parts.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_read_as_text() {
        let text = |json| Payload::json(json).text().into_owned();
        assert_eq!(text(r#""a\nb""#), "a\nb");
        assert_eq!(
            text(r#"[{"type":"text","text":"x"},{"type":"image","source":{}},"y",3]"#),
            "x\n[image]\ny\n3"
        );
        assert_eq!(text("null"), "");
        assert_eq!(text(r#"{"a":1}"#), r#"{"a":1}"#);
        let input = Payload::json(r#"{"file_path":"/a","limit":5,"none":null}"#);
        assert_eq!(input.field("file_path").unwrap(), "/a");
        assert_eq!(input.field("limit").unwrap(), "5");
        assert_eq!(input.field("none"), None);
    }

    #[test]
    fn a_head_has_the_first_lines_and_counts_all() {
        for text in
            ["a", "a\nb\nc", "a\nb\nc\n", "a\n\n\nb\n\r\n\n", "", "\n\n", "x\\n\ny\\", "a\nb\\"]
        {
            let line = serde_json::json!([text]).to_string();
            let tape = Tape::parse(&line).unwrap();
            let item = tape.root().array().unwrap()[0];
            let payload = Payload::of(Some(item));
            let content = text.trim_end_matches(['\n', '\r']);
            for most in 1..5 {
                let head = payload.head(most);
                assert_eq!(head.lines, content.lines().count(), "{text:?} {most}");
                let shown: Vec<_> = head.text.lines().take(most.min(head.lines)).collect();
                let expected: Vec<_> = content.lines().take(most).collect();
                assert_eq!(shown, expected, "{text:?} {most}");
            }
            assert_eq!(Payload::json(item.text()).head(2).lines, content.lines().count());
        }
    }
}
