//! The activity of an agent: its tool calls and messages, read from the output of its run.

use std::io::{Read, Seek, SeekFrom};

use retake_agent::adapters::{AgentKind, Reader, StreamEvent};
use retake_agent::display::Display;
use retake_types::loop_record::agent::AgentLoopPlan;
use retake_types::{RunId, Stream};
use serde::Serialize;

use crate::ansi::{self, Span, Style};
use crate::store_pool::Store;

/// How much of the end of an output is read for a page, and how much at once for a listener.
const TAIL: u64 = 256 << 10;
const CHUNK: u64 = 256 << 10;
/// How many lines a page shows, and how much of one event.
const MAX_LINES: usize = 60;
const MAX_LENGTH: usize = 4000;

/// The kind of a line, as the page and the API name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ActivityKind {
    Text,
    Tool,
    Result,
    #[serde(rename = "trouble")]
    Error,
}

impl ActivityKind {
    /// The CSS class of its line.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Tool => "tool",
            Self::Result => "result",
            Self::Error => "trouble",
        }
    }
}

/// One action or message of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ActivityLine {
    pub(crate) kind: ActivityKind,
    /// Without control characters.
    pub(crate) text: String,
    /// The same with styles, where it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) spans: Option<Vec<Span>>,
}

impl ActivityLine {
    /// Removes control characters and separates the styles, once the line is complete.
    fn finish(&mut self) {
        let text = self.text.replace(STAND_IN, "\u{1b}");
        let spans = ansi::spans(text.as_bytes(), &mut Style::default());
        self.text = spans.iter().map(|span| span.1.as_str()).collect();
        self.spans = spans.iter().any(|span| !span.0.is_empty()).then_some(spans);
    }
}

/// Stands in for the ESC of a colour, which the agent display would make visible. A character of a private
/// use area, which agents do not use.
const STAND_IN: char = '\u{e01b}';

/// Replaces ESC by the stand-in, whether it is escaped as in JSON or not.
fn with_stand_ins(bytes: &[u8]) -> Vec<u8> {
    let mut replaced = Vec::with_capacity(bytes.len());
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let json = line.first() == Some(&b'{');
        let mut rest = line;
        while let Some((&first, after)) = rest.split_first() {
            let taken = match first {
                0x1b => {
                    replaced.extend_from_slice(STAND_IN.encode_utf8(&mut [0; 4]).as_bytes());
                    1
                }
                b'\\' if json && after.len() >= 5 && after[..5].eq_ignore_ascii_case(b"u001b") => {
                    replaced.extend_from_slice(br"\ue01b");
                    6
                }
                // The escaped character may be a backslash.
                b'\\' if json && !after.is_empty() => {
                    replaced.extend_from_slice(&rest[..2]);
                    2
                }
                other => {
                    replaced.push(other);
                    1
                }
            };
            rest = &rest[taken..];
        }
    }
    replaced
}

/// Turns the events of an agent's output into lines. Pieces of one text are joined.
pub(crate) struct ActivityReader {
    reader: Reader,
    display: Display,
}

impl ActivityReader {
    pub(crate) fn new(plan: &AgentLoopPlan) -> Self {
        let kind: AgentKind = plan.agent.parse().unwrap_or_default();
        Self { reader: Reader::new(kind), display: Display::default() }
    }

    fn push(&mut self, bytes: &[u8], lines: &mut Vec<ActivityLine>) {
        let Self { reader, display } = self;
        reader.push(&with_stand_ins(bytes), &mut |event| {
            let kind = match event {
                StreamEvent::Text { .. } | StreamEvent::Noise(_) => ActivityKind::Text,
                StreamEvent::ToolUse { .. } => ActivityKind::Tool,
                StreamEvent::ToolResult { is_error: false, .. } => ActivityKind::Result,
                _ => ActivityKind::Error,
            };
            let Some(shown) = display.event(event) else { return };
            let continues = matches!(event, StreamEvent::Text { delta: true, .. });
            let mut text = if continues { shown } else { shown.trim_matches('\n').to_owned() };
            if text.len() > MAX_LENGTH {
                let end = (0..=MAX_LENGTH).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
                text.truncate(end);
                text.push('…');
            }
            match lines.last_mut() {
                Some(last)
                    if continues
                        && last.kind == ActivityKind::Text
                        && last.text.len() < MAX_LENGTH =>
                {
                    last.text.push_str(&text);
                }
                _ => lines.push(ActivityLine { kind, text, spans: None }),
            }
        });
        lines.iter_mut().for_each(ActivityLine::finish);
    }
}

/// The last activity of an agent. Output that cannot be read any more is skipped.
pub(super) fn recent(store: &Store, id: RunId, plan: &AgentLoopPlan) -> Vec<ActivityLine> {
    let Ok(mut output) = store.read_output(id, Stream::Stdout) else { return Vec::new() };
    let start = output.length().saturating_sub(TAIL);
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
    ActivityReader::new(plan).push(&bytes[whole..], &mut lines);
    let excess = lines.len().saturating_sub(MAX_LINES);
    lines.drain(..excess);
    lines
}

/// The activity after an offset of the output, and the offset after the last complete line.
pub(crate) fn read_from(
    store: &Store,
    id: RunId,
    reader: &mut ActivityReader,
    from: u64,
) -> retake_store::Result<(Vec<ActivityLine>, u64)> {
    let mut output = store.read_output(id, Stream::Stdout)?;
    let mut bytes = Vec::new();
    let read = output
        .seek(SeekFrom::Start(from))
        .and_then(|_| Read::by_ref(&mut output).take(CHUNK).read_to_end(&mut bytes));
    let mut lines = Vec::new();
    if read.is_err() {
        // The run's page reports a damaged file.
        return Ok((lines, from));
    }
    let whole = match bytes.iter().rposition(|byte| *byte == b'\n') {
        Some(newline) => newline + 1,
        // A longer line is skipped.
        None if bytes.len() as u64 == CHUNK => bytes.len(),
        None => 0,
    };
    reader.push(&bytes[..whole], &mut lines);
    Ok((lines, from + whole as u64))
}

/// The length of the output of a run.
pub(crate) fn output_length(store: &Store, id: RunId) -> retake_store::Result<u64> {
    let output = store.read_output(id, Stream::Stdout)?;
    Ok(output.length())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_escape_characters_get_a_placeholder() {
        let replaced = |text: &str| String::from_utf8(with_stand_ins(text.as_bytes())).unwrap();
        assert_eq!(
            replaced("{\"a\":\"\\u001b[31m\\u001B[0m\"}\n"),
            "{\"a\":\"\\ue01b[31m\\ue01b[0m\"}\n"
        );
        // The literal text of an escape, as in a program's source.
        let written = "{\"a\":\"\\\\u001b[31m \\\"\"}\n\\u001b\n";
        assert_eq!(replaced(written), written);
        assert_eq!(replaced("\u{1b}[1mloud\\"), "\u{e01b}[1mloud\\");
    }
}
