//! Gemini CLI: `gemini --output-format stream-json`.
//!
//! It reports no cost, and treats a failed shell command as a success.

use std::borrow::Cow;

use super::event::{Payload, ResultEvent, Scope, StreamEvent, Tokens, UsageEvent};
use super::json::Object;
use super::{status_code, status_in_message};

pub(super) fn read<'a>(line: &Object<'a>, emit: &mut dyn FnMut(StreamEvent<'a>)) {
    let Some(kind) = line.str("type") else { return };
    match &*kind {
        "init" => {
            emit(StreamEvent::Started {
                session: line.str("session_id"),
                model: line.str("model"),
            });
        }
        "message" if line.is("role", "assistant") => emit(StreamEvent::Text {
            text: line.str("content").unwrap_or_default(),
            delta: line.get("delta").and_then(|v| v.bool()).unwrap_or(false),
        }),
        "tool_use" => emit(StreamEvent::ToolUse {
            id: line.str("tool_id").unwrap_or_default(),
            name: line.str("tool_name").unwrap_or_default(),
            input: Payload::of(line.get("parameters")),
        }),
        "tool_result" => {
            let is_error = line.is("status", "error");
            let error = line.object("error").filter(|_| is_error);
            // A tool without permission is not even offered.
            let denied = |error: &Object<'a>| {
                error.is("type", "policy_violation") || error.is("type", "tool_not_registered")
            };
            if let Some(error) = error.filter(denied) {
                emit(StreamEvent::Denied {
                    tool: Cow::Borrowed(""),
                    id: line.str("tool_id"),
                    message: error.str("message").unwrap_or_default(),
                });
            }
            let content = line.get("error").filter(|_| is_error).or_else(|| line.get("output"));
            emit(StreamEvent::ToolResult {
                id: line.str("tool_id").unwrap_or_default(),
                is_error,
                exit_code: None,
                content: Payload::of(content),
            });
        }
        "error" => {
            let message = line.str("message").unwrap_or_default();
            // A warning, such as a detected loop, ends nothing.
            if !line.is("severity", "warning") {
                emit(StreamEvent::ApiError {
                    status: status_in_message(&message),
                    kind: None,
                    message,
                });
            }
        }
        "result" => result(line, emit),
        _ => {}
    }
}

fn result<'a>(line: &Object<'a>, emit: &mut dyn FnMut(StreamEvent<'a>)) {
    if let Some(stats) = line.object("stats") {
        let number = |name| stats.u64(name).unwrap_or(0);
        let cached = number("cached");
        let tokens = Tokens {
            input: number("input_tokens").saturating_sub(cached),
            output: number("output_tokens"),
            cache_read: cached,
            cache_write: 0,
        };
        emit(StreamEvent::Usage(UsageEvent {
            scope: Scope::Total,
            tokens,
            cost_usd: None,
            context: None,
            window: None,
        }));
    }
    let error = line.object("error");
    let message = error.as_ref().and_then(|e| e.str("message"));
    let status = error
        .as_ref()
        .and_then(|e| e.get("code").or_else(|| e.get("status")))
        .and_then(status_code)
        .or_else(|| status_in_message(message.as_deref().unwrap_or_default()));
    emit(StreamEvent::Result(ResultEvent {
        is_error: !line.is("status", "success"),
        subtype: error.as_ref().and_then(|e| e.str("type")),
        status,
        text: message.map(|m| Cow::Owned(m.into_owned())),
        ..ResultEvent::default()
    }));
}
