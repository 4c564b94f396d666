//! The transcript of an agent's run, from the events in its output: messages, tool calls with their
//! results, denials.
//!
//! Output may be large, so it is read in parts of complete events. A result that follows after the end of
//! a part stands alone at the beginning of the next one.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};

use retake_agent::adapters::{AgentKind, LimitState, Payload, Reader, StreamEvent};
use retake_agent::display;
use retake_types::{RunId, Stream};

use crate::error::RequestError;
use crate::store_pool::Store;

/// Bytes of output in one part; a single event may be longer.
const PART: u64 = 384 << 10;
const MAX_PART: u64 = 16 << 20;
/// Maximum number of bytes of one text that are shown.
const MAX_TEXT: usize = 24 << 10;

/// A text from the output, possibly cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Excerpt {
    pub(crate) text: String,
    /// Number of lines of the complete text.
    pub(crate) lines: usize,
    pub(crate) cut: bool,
}

impl Excerpt {
    fn of(text: &str) -> Self {
        let text = text.trim_end();
        let end = (0..=MAX_TEXT.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        let kept = &text[..end.unwrap_or(0)];
        Self { text: kept.to_owned(), lines: text.lines().count(), cut: kept.len() < text.len() }
    }

    fn push(&mut self, more: &str) {
        if self.text.len() + more.len() > MAX_TEXT {
            self.cut = true;
            return;
        }
        self.text.push_str(more);
        self.lines = self.text.lines().count();
    }
}

/// What a tool returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolResult {
    pub(crate) content: Excerpt,
    pub(crate) is_error: bool,
    pub(crate) exit_code: Option<i32>,
}

/// A use of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolCall {
    pub(crate) tool: String,
    /// The file, the command or the pattern.
    pub(crate) subject: Option<String>,
    /// The arguments, by name.
    pub(crate) input: Vec<(String, Excerpt)>,
    /// A change of a file: the old and the new text.
    pub(crate) change: Option<(Excerpt, Excerpt)>,
    pub(crate) result: Option<ToolResult>,
    pub(crate) denied: Option<String>,
}

/// An event besides messages and tool calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AgentNote {
    Started {
        model: Option<String>,
    },
    Denied {
        tool: String,
        message: String,
    },
    ApiError {
        status: Option<u16>,
        message: String,
    },
    Retry {
        attempt: u64,
    },
    LimitNear,
    LimitReached,
    /// An event that was too long to read.
    Dropped {
        bytes: u64,
    },
    Ended {
        is_error: bool,
        turns: Option<u64>,
        text: Option<Excerpt>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TranscriptItem {
    Said(Excerpt),
    Call(Box<ToolCall>),
    /// The result of a call in an earlier part.
    Result(ToolResult),
    /// A line that is not an event.
    Line(Excerpt),
    Note(AgentNote),
}

/// A part of an agent's transcript.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transcript {
    pub(crate) items: Vec<TranscriptItem>,
    /// The range of the output that it covers.
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) length: u64,
}

impl Transcript {
    /// Reads the part that begins at an offset, or with the first complete event after it.
    pub(crate) fn read(
        store: &Store,
        id: RunId,
        kind: AgentKind,
        from: u64,
    ) -> Result<Self, RequestError> {
        let mut output = store.read_output(id, Stream::Stdout)?;
        let length = output.length();
        let lost = |error| RequestError::from(retake_store::Error::reading(id, error));
        let from = from.min(length);
        let begun = from > 0 && byte_before(&mut output, from).map_err(lost)? != Some(b'\n');
        let mut bytes = Vec::new();
        let mut size = PART;
        output.seek(SeekFrom::Start(from)).map_err(lost)?;
        // Continue until at least one event is complete.
        loop {
            let wanted = size - bytes.len() as u64;
            let more = Read::by_ref(&mut output).take(wanted).read_to_end(&mut bytes);
            let read = more.map_err(lost)? as u64;
            if read < wanted || bytes.contains(&b'\n') || size >= MAX_PART {
                break;
            }
            size *= 2;
        }
        let at_end = from + bytes.len() as u64 >= length;
        let skipped = match bytes.iter().position(|byte| *byte == b'\n') {
            Some(feed) if begun => feed + 1,
            _ => 0,
        };
        let whole = match bytes.iter().rposition(|byte| *byte == b'\n') {
            _ if at_end => bytes.len(),
            Some(feed) => feed + 1,
            None => bytes.len(),
        };
        let mut collector = Collector::default();
        let mut reader = Reader::new(kind);
        reader.push(&bytes[skipped.min(whole)..whole], &mut |event| collector.take(event));
        if at_end {
            reader.finish(&mut |event| collector.take(event));
        }
        Ok(Self { items: collector.items, from, to: from + whole as u64, length })
    }
}

fn byte_before(output: &mut (impl Read + Seek), at: u64) -> std::io::Result<Option<u8>> {
    let mut byte = [0];
    output.seek(SeekFrom::Start(at - 1))?;
    Ok((output.read(&mut byte)? == 1).then_some(byte[0]))
}

/// Combines events into items.
#[derive(Default)]
struct Collector {
    items: Vec<TranscriptItem>,
    /// The positions of calls that have no result yet.
    open: HashMap<String, usize>,
    /// The last item is a message that may continue.
    flowing: bool,
}

impl Collector {
    fn take(&mut self, event: &StreamEvent<'_>) {
        let flowing = std::mem::take(&mut self.flowing);
        let item = match event {
            StreamEvent::Text { text, delta: true } => {
                self.flowing = true;
                if let (true, Some(TranscriptItem::Said(said))) = (flowing, self.items.last_mut()) {
                    said.push(text);
                    return;
                }
                let mut said = Excerpt::default();
                said.push(text);
                TranscriptItem::Said(said)
            }
            StreamEvent::Text { text, .. } if text.trim().is_empty() => return,
            StreamEvent::Text { text, .. } => TranscriptItem::Said(Excerpt::of(text)),
            StreamEvent::ToolUse { id, name, input } => {
                self.open.insert(id.to_string(), self.items.len());
                TranscriptItem::Call(Box::new(call(name, input)))
            }
            StreamEvent::ToolResult { id, is_error, exit_code, content } => {
                let content = Excerpt::of(&content.text());
                let result = ToolResult { content, is_error: *is_error, exit_code: *exit_code };
                let at = self.open.remove(&**id);
                match at.and_then(|at| self.items.get_mut(at)) {
                    Some(TranscriptItem::Call(call)) => {
                        call.result = Some(result);
                        return;
                    }
                    _ => TranscriptItem::Result(result),
                }
            }
            StreamEvent::Denied { tool, id, message } => {
                let at = id.as_deref().and_then(|id| self.open.get(id));
                if let Some(TranscriptItem::Call(call)) = at.and_then(|at| self.items.get_mut(*at))
                {
                    call.denied = Some(message.to_string());
                    return;
                }
                let (tool, message) = (tool.to_string(), message.to_string());
                TranscriptItem::Note(AgentNote::Denied { tool, message })
            }
            StreamEvent::Noise(text) if text.trim().is_empty() => return,
            StreamEvent::Noise(text) => TranscriptItem::Line(Excerpt::of(text)),
            other => match note(other) {
                Some(note) => TranscriptItem::Note(note),
                None => {
                    self.flowing = flowing;
                    return;
                }
            },
        };
        self.items.push(item);
    }
}

fn note(event: &StreamEvent<'_>) -> Option<AgentNote> {
    Some(match event {
        StreamEvent::Started { model, .. } => {
            AgentNote::Started { model: model.as_ref().map(ToString::to_string) }
        }
        StreamEvent::ApiError { status, message, .. } => {
            AgentNote::ApiError { status: *status, message: message.to_string() }
        }
        StreamEvent::Retry { attempt, .. } => AgentNote::Retry { attempt: *attempt },
        StreamEvent::RateLimit(limit) => match limit.state {
            LimitState::Allowed => return None,
            LimitState::Warning => AgentNote::LimitNear,
            LimitState::Rejected => AgentNote::LimitReached,
        },
        StreamEvent::Dropped(bytes) => AgentNote::Dropped { bytes: *bytes },
        StreamEvent::Result(result) => AgentNote::Ended {
            is_error: result.is_error,
            turns: result.turns,
            text: result.text.as_deref().map(Excerpt::of).filter(|_| result.is_error),
        },
        _ => return None,
    })
}

fn call(name: &str, input: &Payload<'_>) -> ToolCall {
    let (tool, subject) = display::tool_use(name, input);
    let field = |names: [&str; 2]| names.iter().find_map(|name| input.field(name));
    let change = match (field(["old_string", "oldString"]), field(["new_string", "newString"])) {
        (Some(old), Some(new)) => Some((Excerpt::of(&old), Excerpt::of(&new))),
        _ => None,
    };
    let is_change = |name: &str| {
        change.is_some() && ["old_string", "oldString", "new_string", "newString"].contains(&name)
    };
    let fields = input.fields();
    let mut input_fields: Vec<(String, Excerpt)> = fields
        .iter()
        .filter(|(name, _)| !is_change(name))
        .map(|(name, value)| (name.clone(), Excerpt::of(value)))
        .collect();
    if fields.is_empty() && !matches!(input.as_json(), "null" | "{}") {
        input_fields.push(("input".to_owned(), Excerpt::of(&input.text())));
    }
    ToolCall { tool, subject, input: input_fields, change, result: None, denied: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(lines: &[serde_json::Value]) -> Vec<TranscriptItem> {
        let mut collector = Collector::default();
        let mut reader = Reader::new(AgentKind::Claude);
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        reader.push(text.as_bytes(), &mut |event| collector.take(event));
        collector.items
    }

    #[test]
    fn a_call_has_its_result_and_a_change_both_sides() {
        let used = |id: &str, name: &str, input: serde_json::Value| {
            serde_json::json!({"type": "assistant", "message": {"id": "m", "role": "assistant",
                "content": [{"type": "tool_use", "id": id, "name": name, "input": input}]}})
        };
        let returned = |id: &str, text: &str, error: bool| {
            serde_json::json!({"type": "user", "message": {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": id, "content": text, "is_error": error}]}})
        };
        let edit = serde_json::json!({"file_path": "/a", "old_string": "x", "new_string": "y"});
        let items = items(&[
            used("1", "Edit", edit),
            used("2", "Bash", serde_json::json!({"command": "make"})),
            returned("2", "no rule\nstop", true),
            returned("1", "done", false),
            returned("0", "of an earlier part", false),
        ]);
        let [TranscriptItem::Call(edit), TranscriptItem::Call(bash), TranscriptItem::Result(early)] =
            &items[..]
        else {
            panic!("{items:?}");
        };
        assert_eq!((edit.subject.as_deref(), edit.tool.as_str()), (Some("/a"), "Edit"));
        let (old, new) = edit.change.as_ref().unwrap();
        assert_eq!((old.text.as_str(), new.text.as_str()), ("x", "y"));
        assert_eq!(edit.input.len(), 1, "the sides are not shown twice");
        assert_eq!(edit.result.as_ref().unwrap().content.text, "done");
        let result = bash.result.as_ref().unwrap();
        assert!(result.is_error && result.content.lines == 2);
        assert_eq!(early.content.text, "of an earlier part");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let long = "ü".repeat(MAX_TEXT);
        let excerpt = Excerpt::of(&long);
        assert!(excerpt.cut && excerpt.text.len() <= MAX_TEXT && excerpt.text.ends_with('ü'));
        assert_eq!(Excerpt::of("a\nb\n\n"), Excerpt { text: "a\nb".into(), lines: 2, cut: false });
    }
}
