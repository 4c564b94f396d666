//! opencode: `opencode run --format json`.
//!
//! It has no final event: a step that finished with the reason `stop` is the end.

use std::borrow::Cow;

use super::event::{Payload, ResultEvent, Scope, StreamEvent, Tokens, UsageEvent};
use super::json::Object;
use super::{status_code, status_in_message};

pub(super) fn read<'a>(line: &Object<'a>, emit: &mut dyn FnMut(StreamEvent<'a>)) {
    let Some(kind) = line.str("type") else { return };
    match &*kind {
        "step_start" => emit(StreamEvent::Started { session: line.str("sessionID"), model: None }),
        "text" => {
            if let Some(text) = line.object("part").and_then(|part| part.str("text")) {
                emit(StreamEvent::Text { text, delta: false });
            }
        }
        "tool_use" => tool(line, emit),
        "step_finish" => step(line, emit),
        "error" => error(line, emit),
        _ => {}
    }
}

/// Texts by which a result reports a denied permission.
const DENIED: [&str; 2] = ["rejected permission", "specified a rule"];

/// One event contains the whole use of a tool: input and result.
fn tool<'a>(line: &Object<'a>, emit: &mut dyn FnMut(StreamEvent<'a>)) {
    let Some(part) = line.object("part") else { return };
    let Some(state) = part.object("state") else { return };
    let id = part.str("callID").or_else(|| part.str("id")).unwrap_or_default();
    emit(StreamEvent::ToolUse {
        id: id.clone(),
        name: part.str("tool").unwrap_or_default(),
        input: Payload::of(state.get("input")),
    });
    let status = state.str("status").unwrap_or_default();
    if matches!(&*status, "completed" | "error") {
        let exit_code = state
            .object("metadata")
            .and_then(|about| about.get("exit")?.i64())
            .map(|code| code as i32);
        let error = state.str("error").unwrap_or_default();
        // It has no other mark; its own screen searches for these texts, too.
        if status == "error" && DENIED.iter().any(|words| error.contains(words)) {
            emit(StreamEvent::Denied {
                tool: part.str("tool").unwrap_or_default(),
                id: Some(id.clone()),
                message: error,
            });
        }
        emit(StreamEvent::ToolResult {
            id,
            is_error: status == "error" || exit_code.is_some_and(|code| code != 0),
            exit_code,
            content: Payload::of(state.get("error").or_else(|| state.get("output"))),
        });
    }
}

fn step<'a>(line: &Object<'a>, emit: &mut dyn FnMut(StreamEvent<'a>)) {
    let Some(part) = line.object("part") else { return };
    if let Some(tokens) = part.object("tokens") {
        let cache = tokens.object("cache");
        let cached = |name| cache.as_ref().and_then(|c| c.u64(name)).unwrap_or(0);
        let tokens = Tokens {
            input: tokens.u64("input").unwrap_or(0),
            output: tokens.u64("output").unwrap_or(0) + tokens.u64("reasoning").unwrap_or(0),
            cache_read: cached("read"),
            cache_write: cached("write"),
        };
        emit(StreamEvent::Usage(UsageEvent {
            scope: Scope::Step,
            tokens,
            cost_usd: part.get("cost").and_then(|v| v.f64()),
            context: Some(tokens.total()),
            window: None,
        }));
    }
    if part.is("reason", "stop") {
        emit(StreamEvent::Result(ResultEvent {
            reason: part.str("reason"),
            ..ResultEvent::default()
        }));
    }
}

fn error<'a>(line: &Object<'a>, emit: &mut dyn FnMut(StreamEvent<'a>)) {
    let error = line.object("error");
    let data = error.as_ref().and_then(|e| e.object("data"));
    let message = data
        .as_ref()
        .and_then(|d| d.str("message"))
        .or_else(|| error.as_ref()?.str("message"))
        .unwrap_or_default();
    let status = data
        .as_ref()
        .and_then(|d| d.get("statusCode"))
        .and_then(status_code)
        .or_else(|| status_in_message(&message));
    emit(StreamEvent::ApiError { status, kind: None, message: message.clone() });
    emit(StreamEvent::Result(ResultEvent {
        is_error: true,
        subtype: error.as_ref().and_then(|e| e.str("name")),
        status,
        text: Some(Cow::Owned(message.into_owned())),
        ..ResultEvent::default()
    }));
}
