//! What an agent does while it does it: its tools and words, read from the output of its run.

use std::io::{Read, Seek, SeekFrom};

use retake_agent::adapters::{Event, Kind as Agent, Reader};
use retake_agent::display::Display;
use retake_store::Store;
use retake_types::{RunId, Stream};
use serde::Serialize;
use serde_json::Value;

use crate::ansi::{self, Span, Style};

/// How much of the end of an output is read for a page, and how much at once for a listener.
const END: u64 = 256 << 10;
const MOST: u64 = 256 << 10;
/// What is shown on a page, and of one event.
const LINES: usize = 60;
const LONGEST: usize = 4000;

/// One thing an agent did or said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Line {
    /// `text`, `tool`, `result`, `trouble`.
    pub(crate) kind: &'static str,
    /// Without what steers a terminal.
    pub(crate) text: String,
    /// The same in styles, where it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) spans: Option<Vec<Span>>,
}

impl Line {
    /// Makes it harmless to look at, once it is whole.
    fn finish(&mut self) {
        let text = self.text.replace(STAND_IN, "\u{1b}");
        let spans = ansi::spans(text.as_bytes(), &mut Style::default());
        self.text = spans.iter().map(|span| span.1.as_str()).collect();
        self.spans = spans.iter().any(|span| !span.0.is_empty()).then_some(spans);
    }
}

/// Stands for the escape that begins a colour, which the display would spell out. In a private area,
/// where agents have no business.
const STAND_IN: char = '\u{e01b}';

/// The same lines with stand-ins, wherever an escape is written as JSON writes it, or as it is.
fn with_stand_ins(bytes: &[u8]) -> Vec<u8> {
    let mut stood = Vec::with_capacity(bytes.len());
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let json = line.first() == Some(&b'{');
        let mut rest = line;
        while let Some((&first, after)) = rest.split_first() {
            let taken = match first {
                0x1b => {
                    stood.extend_from_slice(STAND_IN.encode_utf8(&mut [0; 4]).as_bytes());
                    1
                }
                b'\\' if json && after.len() >= 5 && after[..5].eq_ignore_ascii_case(b"u001b") => {
                    stood.extend_from_slice(br"\ue01b");
                    6
                }
                // What is escaped is not looked at: it may be a backslash.
                b'\\' if json && !after.is_empty() => {
                    stood.extend_from_slice(&rest[..2]);
                    2
                }
                other => {
                    stood.push(other);
                    1
                }
            };
            rest = &rest[taken..];
        }
    }
    stood
}

fn agent(plan: &Value) -> Agent {
    let name = plan.get("agent").and_then(Value::as_str).unwrap_or_default();
    name.parse().unwrap_or_default()
}

/// Turns the events of a stream into lines. A piece of a text is joined to the one before.
pub(crate) struct Teller {
    reader: Reader,
    display: Display,
}

impl Teller {
    pub(crate) fn new(plan: &Value) -> Self {
        Self { reader: Reader::new(agent(plan)), display: Display::default() }
    }

    fn push(&mut self, bytes: &[u8], lines: &mut Vec<Line>) {
        let Self { reader, display } = self;
        reader.push(&with_stand_ins(bytes), &mut |event| {
            let kind = match event {
                Event::Text { .. } | Event::Noise(_) => "text",
                Event::ToolUse { .. } => "tool",
                Event::ToolResult { is_error: false, .. } => "result",
                _ => "trouble",
            };
            let Some(shown) = display.event(event) else { return };
            let flows = matches!(event, Event::Text { delta: true, .. });
            let mut text = if flows { shown } else { shown.trim_matches('\n').to_owned() };
            if text.len() > LONGEST {
                let end = (0..=LONGEST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
                text.truncate(end);
                text.push('…');
            }
            match lines.last_mut() {
                Some(last) if flows && last.kind == "text" && last.text.len() < LONGEST => {
                    last.text.push_str(&text);
                }
                _ => lines.push(Line { kind, text, spans: None }),
            }
        });
        lines.iter_mut().for_each(Line::finish);
    }
}

/// The last things an agent did. What cannot be read any more is simply not shown.
pub(super) fn recent(store: &Store, id: RunId, plan: &Value) -> Vec<Line> {
    let Ok(mut output) = store.read_output(id, Stream::Stdout) else { return Vec::new() };
    let start = output.length().saturating_sub(END);
    let mut bytes = Vec::new();
    let read = output.seek(SeekFrom::Start(start)).and_then(|_| output.read_to_end(&mut bytes));
    if read.is_err() {
        return Vec::new();
    }
    let whole = match bytes.iter().position(|byte| *byte == b'\n') {
        Some(newline) if start > 0 => newline + 1,
        _ => 0,
    };
    let mut lines = Vec::new();
    Teller::new(plan).push(&bytes[whole..], &mut lines);
    let excess = lines.len().saturating_sub(LINES);
    lines.drain(..excess);
    lines
}

/// What an agent did since a place in its output, and the place after the last whole line.
pub(crate) fn more(
    store: &Store,
    id: RunId,
    teller: &mut Teller,
    from: u64,
) -> retake_store::Result<(Vec<Line>, u64)> {
    let mut output = store.read_output(id, Stream::Stdout)?;
    let mut bytes = Vec::new();
    let read = output
        .seek(SeekFrom::Start(from))
        .and_then(|_| Read::by_ref(&mut output).take(MOST).read_to_end(&mut bytes));
    let mut lines = Vec::new();
    if read.is_err() {
        // A file that was cut is told of where its output is shown.
        return Ok((lines, from));
    }
    let whole = match bytes.iter().rposition(|byte| *byte == b'\n') {
        Some(newline) => newline + 1,
        // A line longer than that is passed over.
        None if bytes.len() as u64 == MOST => bytes.len(),
        None => 0,
    };
    teller.push(&bytes[..whole], &mut lines);
    Ok((lines, from + whole as u64))
}

/// How long the output of a run is, to be followed from there.
pub(crate) fn end_of(store: &Store, id: RunId) -> retake_store::Result<u64> {
    let output = store.read_output(id, Stream::Stdout)?;
    Ok(output.length())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_escapes_that_are_meant_get_a_stand_in() {
        let stood = |text: &str| String::from_utf8(with_stand_ins(text.as_bytes())).unwrap();
        assert_eq!(
            stood("{\"a\":\"\\u001b[31m\\u001B[0m\"}\n"),
            "{\"a\":\"\\ue01b[31m\\ue01b[0m\"}\n"
        );
        // The text of an escape, as one writes it in a program.
        let written = "{\"a\":\"\\\\u001b[31m \\\"\"}\n\\u001b\n";
        assert_eq!(stood(written), written);
        assert_eq!(stood("\u{1b}[1mloud\\"), "\u{e01b}[1mloud\\");
    }
}
