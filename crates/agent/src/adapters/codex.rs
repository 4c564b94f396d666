//! Codex: `codex exec --json`.
//!
//! It reports no cost. A run with `error` items may still succeed; `turn.completed` or
//! `turn.failed` decides.

use std::borrow::Cow;

use super::event::{Payload, ResultEvent, Scope, StreamEvent, Tokens, UsageEvent};
use super::json::Object;
use super::status_in_message;

pub(super) fn read<'a>(line: &Object<'a>, emit: &mut dyn FnMut(StreamEvent<'a>)) {
    let Some(kind) = line.str("type") else { return };
    match &*kind {
        "thread.started" => {
            emit(StreamEvent::Started { session: line.str("thread_id"), model: line.str("model") });
        }
        "item.started" => item(line, false, emit),
        "item.completed" => item(line, true, emit),
        "turn.completed" => {
            if let Some(usage) = line.object("usage") {
                let number = |name| usage.u64(name).unwrap_or(0);
                let cached = number("cached_input_tokens");
                let tokens = Tokens {
                    input: number("input_tokens").saturating_sub(cached),
                    output: number("output_tokens"),
                    cache_read: cached,
                    cache_write: number("cache_write_input_tokens"),
                };
                emit(StreamEvent::Usage(UsageEvent {
                    scope: Scope::Total,
                    tokens,
                    cost_usd: None,
                    context: None,
                    window: None,
                }));
            }
            emit(StreamEvent::Result(ResultEvent::default()));
        }
        "turn.failed" => {
            let message = line.object("error").and_then(|e| e.str("message")).unwrap_or_default();
            let status = status_in_message(&message);
            if status.is_some() {
                emit(StreamEvent::ApiError { status, kind: None, message: message.clone() });
            }
            emit(StreamEvent::Result(ResultEvent {
                is_error: true,
                status,
                text: Some(message),
                ..ResultEvent::default()
            }));
        }
        "error" => {
            let message = line.str("message").unwrap_or_default();
            emit(StreamEvent::ApiError {
                status: status_in_message(&message),
                kind: None,
                message,
            });
        }
        _ => {}
    }
}

fn item<'a>(line: &Object<'a>, done: bool, emit: &mut dyn FnMut(StreamEvent<'a>)) {
    let Some(object) = line.object("item") else { return };
    let id = object.str("id").unwrap_or_default();
    let kind = object.str("type").unwrap_or_default();
    match &*kind {
        "agent_message" if done => {
            emit(StreamEvent::Text { text: object.str("text").unwrap_or_default(), delta: false });
        }
        "command_execution" | "file_change" | "mcp_tool_call" | "web_search" => {
            let name: Cow<'a, str> = match &*kind {
                "command_execution" => Cow::Borrowed("Bash"),
                "mcp_tool_call" => Cow::Owned(format!(
                    "mcp__{}__{}",
                    object.str("server").unwrap_or_default(),
                    object.str("tool").unwrap_or_default()
                )),
                other => Cow::Owned(other.to_owned()),
            };
            // File changes are single events, without a start.
            let tool = name.clone();
            if !done || &*kind == "file_change" {
                let input = match &*kind {
                    "mcp_tool_call" => Payload::of(object.get("arguments")),
                    "file_change" => Payload::of(object.get("changes")),
                    _ => Payload::of(line.get("item")),
                };
                emit(StreamEvent::ToolUse { id: id.clone(), name, input });
            }
            if done {
                let exit_code = object.get("exit_code").and_then(|v| v.i64()).map(|c| c as i32);
                let is_error =
                    matches!(object.str("status").as_deref(), Some("failed" | "declined"))
                        || exit_code.is_some_and(|code| code != 0);
                let content = object
                    .get("aggregated_output")
                    .or_else(|| object.get("result"))
                    .or_else(|| object.get("error"));
                if object.is("status", "declined") {
                    emit(StreamEvent::Denied {
                        tool,
                        id: Some(id.clone()),
                        message: object.str("command").unwrap_or_default(),
                    });
                }
                let content = Payload::of(content);
                emit(StreamEvent::ToolResult { id, is_error, exit_code, content });
            }
        }
        _ => {}
    }
}
