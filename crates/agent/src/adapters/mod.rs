//! The agents: how each is started, and how its stream maps to common events.
//!
//! An adapter builds arguments and parses bytes. It starts nothing and makes no decisions about the
//! loop.

mod argv;
mod claude;
mod codex;
mod event;
mod gemini;
mod json;
mod lines;
mod opencode;
mod reading;
pub(crate) mod string_scan;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

pub use argv::{AgentLaunch, Invocation, interactive, refuses_root, version};
pub use event::{
    LimitState, Payload, RateLimit, ResultEvent, Scope, StreamEvent, TextHead, Tokens, UsageEvent,
};
pub use lines::{Line, Lines};
pub use reading::{ApiError, AttemptVerdict, Closing, Reading};

use json::{Json, Node, Tape};

/// The kind of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AgentKind {
    #[default]
    Claude,
    Codex,
    Gemini,
    Opencode,
    /// Any command that reads a prompt from its standard input.
    Custom,
}

/// What an agent reports while it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// An event stream. Without one, the exit code decides.
    pub events: bool,
    pub tokens: bool,
    pub cost: bool,
    /// It enforces a cost limit itself.
    pub cost_cap: bool,
    /// It reports when a reached limit ends.
    pub rate_limit: bool,
    pub context: bool,
    pub session: bool,
}

impl AgentKind {
    pub const ALL: [Self; 5] =
        [Self::Claude, Self::Codex, Self::Gemini, Self::Opencode, Self::Custom];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Opencode => "opencode",
            Self::Custom => "custom",
        }
    }

    /// Its name in messages.
    pub fn title(self) -> &'static str {
        match self {
            Self::Claude => "Claude",
            Self::Codex => "Codex",
            Self::Gemini => "Gemini",
            Self::Opencode => "opencode",
            Self::Custom => "Agent",
        }
    }

    /// The default program. A custom agent has none.
    pub fn program(self) -> Option<&'static str> {
        (self != Self::Custom).then(|| self.as_str())
    }

    pub fn capabilities(self) -> Capabilities {
        let all = Capabilities {
            events: true,
            tokens: true,
            cost: true,
            cost_cap: true,
            rate_limit: true,
            context: true,
            session: true,
        };
        match self {
            Self::Claude => all,
            Self::Codex | Self::Gemini => Capabilities {
                cost: false,
                cost_cap: false,
                rate_limit: false,
                context: false,
                ..all
            },
            Self::Opencode => {
                Capabilities { cost_cap: false, rate_limit: false, context: false, ..all }
            }
            Self::Custom => Capabilities {
                events: false,
                tokens: false,
                cost: false,
                cost_cap: false,
                rate_limit: false,
                context: false,
                session: false,
            },
        }
    }
}

impl fmt::Display for AgentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for AgentKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or_else(|| {
            format!("{text:?} is not an agent; write claude, codex, gemini, opencode or custom")
        })
    }
}

/// Parses one agent's standard output as it arrives.
#[derive(Debug)]
pub struct Reader {
    kind: AgentKind,
    lines: Lines,
    reading: Reading,
    /// Reused for each line.
    nodes: Vec<Node>,
}

impl Reader {
    pub fn new(kind: AgentKind) -> Self {
        let (lines, reading) = (Lines::default(), Reading::default());
        Self { kind, lines, reading, nodes: Vec::with_capacity(256) }
    }

    /// Processes the next bytes and passes the events that they complete.
    pub fn push(&mut self, bytes: &[u8], emit: &mut dyn FnMut(&StreamEvent<'_>)) {
        let Self { kind, lines, reading, nodes } = self;
        lines.push(bytes, &mut |line| read_line(*kind, line, reading, nodes, emit));
    }

    /// Parses a last line without a line feed.
    pub fn finish(&mut self, emit: &mut dyn FnMut(&StreamEvent<'_>)) {
        let Self { kind, lines, reading, nodes } = self;
        lines.finish(&mut |line| read_line(*kind, line, reading, nodes, emit));
    }

    pub fn reading(&self) -> &Reading {
        &self.reading
    }

    pub fn into_reading(self) -> Reading {
        self.reading
    }
}

fn read_line(
    kind: AgentKind,
    line: Line<'_>,
    reading: &mut Reading,
    nodes: &mut Vec<Node>,
    emit: &mut dyn FnMut(&StreamEvent<'_>),
) {
    let mut each = |event: StreamEvent<'_>| {
        reading.absorb(&event);
        emit(&event);
    };
    let bytes = match line {
        Line::Text(bytes) => bytes.trim_ascii(),
        Line::Dropped(length) => return each(StreamEvent::Dropped(length)),
    };
    if bytes.is_empty() && kind != AgentKind::Custom {
        return;
    }
    // Validating UTF-8 is much faster than repairing it.
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(bytes),
    };
    if kind == AgentKind::Custom {
        return each(StreamEvent::Text { text, delta: false });
    }
    let tape = Tape::parse_in(&text, nodes);
    match tape.as_ref().and_then(|tape| tape.root().object()) {
        Some(object) => match kind {
            AgentKind::Claude => claude::read(&object, &mut each),
            AgentKind::Codex => codex::read(&object, &mut each),
            AgentKind::Gemini => gemini::read(&object, &mut each),
            AgentKind::Opencode => opencode::read(&object, &mut each),
            AgentKind::Custom => {}
        },
        None => each(StreamEvent::Noise(Cow::Borrowed(&text))),
    }
    if let Some(tape) = tape {
        *nodes = tape.into_nodes();
    }
}

/// Whether a request that failed with this status should be retried.
pub fn transient_status(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..=599)
}

fn status_code(json: Json<'_>) -> Option<u16> {
    let number = json.u64().or_else(|| json.str()?.parse().ok())?;
    u16::try_from(number).ok().filter(|status| (100..=599).contains(status))
}

/// The HTTP status in an error event's message, if the agent has no field for it: the number right
/// after `status` or `code` (`last status: 429 Too Many Requests`, `{"code":401}`).
fn status_in_message(message: &str) -> Option<u16> {
    let lower = message.to_ascii_lowercase();
    ["status", "code"].iter().find_map(|word| {
        lower.match_indices(word).find_map(|(at, _)| {
            let between = |c: char| c.is_ascii_whitespace() || matches!(c, ':' | '=' | '"' | '(');
            let rest = lower[at + word.len()..].trim_start_matches(between);
            let digits = rest.get(..3)?.parse::<u16>().ok()?;
            let longer = rest[3..].starts_with(|c: char| c.is_ascii_digit());
            (!longer && (100..=599).contains(&digits)).then_some(digits)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_found_only_where_it_stands() {
        for (message, status) in [
            ("exceeded retry limit, last status: 429 Too Many Requests", Some(429)),
            ("unexpected status 401 Unauthorized: no", Some(401)),
            (r#"[API Error: {"error":{"code":503,"message":"x"}}]"#, Some(503)),
            ("status code 500", Some(500)),
            ("the status is 12345, code 7", None),
            ("429 tests failed", None),
            ("status: é", None),
        ] {
            assert_eq!(status_in_message(message), status, "{message}");
        }
    }

    #[test]
    fn transient_http_statuses_are_retried() {
        let again: Vec<u16> = (100..600).filter(|status| transient_status(*status)).collect();
        assert!([408, 429, 500, 503, 529].iter().all(|status| again.contains(status)));
        assert!(![400, 401, 403, 404, 413].iter().any(|status| again.contains(status)));
    }
}
