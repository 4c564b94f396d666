//! What an agent does while it does it: its tools and words, read from the output of its run.

use std::io::{Read, Seek, SeekFrom};

use retake_agent::adapters::{Event, Kind as Agent, Reader};
use retake_agent::display::Display;
use retake_event::{RunId, Stream};
use retake_store::Store;
use serde::Serialize;
use serde_json::Value;

/// How much of the end of an output is read for a page, and how much at once for a listener.
const END: u64 = 256 << 10;
const MOST: u64 = 256 << 10;
/// What is shown on a page, and of one event.
const LINES: usize = 60;
const LONGEST: usize = 4000;

/// One thing an agent did or said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::web) struct Line {
    /// `text`, `tool`, `result`, `trouble`.
    pub(in crate::web) kind: &'static str,
    pub(in crate::web) text: String,
}

fn agent(plan: &Value) -> Agent {
    let name = plan.get("agent").and_then(Value::as_str).unwrap_or_default();
    name.parse().unwrap_or_default()
}

/// Turns the events of a stream into lines. A piece of a text is joined to the one before.
pub(in crate::web) struct Teller {
    reader: Reader,
    display: Display,
}

impl Teller {
    pub(in crate::web) fn new(plan: &Value) -> Self {
        Self { reader: Reader::new(agent(plan)), display: Display::default() }
    }

    fn push(&mut self, bytes: &[u8], lines: &mut Vec<Line>) {
        let Self { reader, display } = self;
        reader.push(bytes, &mut |event| {
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
                _ => lines.push(Line { kind, text }),
            }
        });
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
pub(in crate::web) fn more(
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
pub(in crate::web) fn end_of(store: &Store, id: RunId) -> retake_store::Result<u64> {
    let output = store.read_output(id, Stream::Stdout)?;
    Ok(output.length())
}
