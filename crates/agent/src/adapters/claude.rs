//! Claude Code: `claude --print --output-format stream-json --verbose`.

use std::borrow::Cow;

use super::event::{
    LimitState, Payload, RateLimit, ResultEvent, Scope, StreamEvent, Tokens, UsageEvent,
};
use super::json::{Json, Object};
use super::status_code;

pub(super) fn read<'a>(line: &Object<'a>, emit: &mut dyn FnMut(StreamEvent<'a>)) {
    let Some(kind) = line.str("type") else { return };
    match &*kind {
        "system" => system(line, emit),
        "assistant" => assistant(line, emit),
        "user" => user(line, emit),
        "rate_limit_event" => rate_limit(line, emit),
        "result" => result(line, emit),
        // Partial messages are repeated by the complete ones.
        _ => {}
    }
}

fn system<'a>(line: &Object<'a>, emit: &mut dyn FnMut(StreamEvent<'a>)) {
    match line.str("subtype").as_deref() {
        Some("init") => {
            emit(StreamEvent::Started {
                session: line.str("session_id"),
                model: line.str("model"),
            });
        }
        Some("api_retry") => emit(StreamEvent::Retry {
            attempt: line.u64("attempt").unwrap_or(1),
            most: line.u64("max_retries"),
            delay_ms: line.u64("retry_delay_ms"),
            status: line.get("error_status").and_then(status_code),
        }),
        Some("permission_denied") => emit(StreamEvent::Denied {
            tool: line.str("tool_name").unwrap_or_default(),
            id: line.str("tool_use_id"),
            message: line.str("message").unwrap_or_default(),
        }),
        _ => {}
    }
}

fn assistant<'a>(line: &Object<'a>, emit: &mut dyn FnMut(StreamEvent<'a>)) {
    let Some(message) = line.object("message") else { return };
    let failed = line.get("is_api_error_message").and_then(|v| v.bool()).unwrap_or(false)
        || line.get("error").is_some();
    let mut said = String::new();
    for block in message.array("content") {
        let Some(block) = block.object() else { continue };
        match block.str("type").as_deref() {
            Some("text") => {
                let text = block.str("text").unwrap_or_default();
                if failed {
                    said.push_str(&text);
                }
                emit(StreamEvent::Text { text, delta: false });
            }
            Some("tool_use" | "server_tool_use") => emit(StreamEvent::ToolUse {
                id: block.str("id").unwrap_or_default(),
                name: block.str("name").unwrap_or_default(),
                input: Payload::of(block.get("input")),
            }),
            _ => {}
        }
    }
    if failed {
        let status = line.get("api_error_status").and_then(status_code);
        emit(StreamEvent::ApiError { status, kind: line.str("error"), message: Cow::Owned(said) });
        return;
    }
    // A subagent has its own context.
    let main = line.get("parent_tool_use_id").is_none();
    if let (Some(usage), Some(id)) = (message.object("usage"), message.str("id")) {
        let tokens = tokens(&usage);
        let context = main.then_some(tokens.total());
        let scope = Scope::Message(id);
        emit(StreamEvent::Usage(UsageEvent {
            scope,
            tokens,
            cost_usd: None,
            context,
            window: None,
        }));
    }
}

fn user<'a>(line: &Object<'a>, emit: &mut dyn FnMut(StreamEvent<'a>)) {
    let Some(message) = line.object("message") else { return };
    for block in message.array("content") {
        let Some(block) = block.object() else { continue };
        if block.is("type", "tool_result") {
            emit(StreamEvent::ToolResult {
                id: block.str("tool_use_id").unwrap_or_default(),
                is_error: block.get("is_error").and_then(|v| v.bool()).unwrap_or(false),
                exit_code: None,
                content: Payload::of(block.get("content")),
            });
        }
    }
}

fn rate_limit<'a>(line: &Object<'a>, emit: &mut dyn FnMut(StreamEvent<'a>)) {
    let Some(about) = line.object("rate_limit_info") else { return };
    let state = match about.str("status").as_deref() {
        Some("rejected") => LimitState::Rejected,
        Some("allowed_warning") => LimitState::Warning,
        Some("allowed") => LimitState::Allowed,
        _ => return,
    };
    emit(StreamEvent::RateLimit(RateLimit {
        state,
        resets_at: about.get("resetsAt").and_then(|v| v.i64()),
        window: about.str("rateLimitType").map(Cow::into_owned),
    }));
}

fn result<'a>(line: &Object<'a>, emit: &mut dyn FnMut(StreamEvent<'a>)) {
    if let Some(usage) = line.object("usage") {
        let window = line.object("modelUsage").and_then(|models| {
            models.fields().filter_map(|(_, model)| model.object()?.u64("contextWindow")).max()
        });
        emit(StreamEvent::Usage(UsageEvent {
            scope: Scope::Total,
            tokens: tokens(&usage),
            cost_usd: line.get("total_cost_usd").and_then(|v| v.f64()),
            context: None,
            window,
        }));
    }
    let text = line.str("result").or_else(|| {
        let errors: Vec<String> =
            line.array("errors").into_iter().filter_map(|e| Some(e.str()?.into_owned())).collect();
        (!errors.is_empty()).then(|| Cow::Owned(errors.join("\n")))
    });
    // Without the flag, only the subtype `success` counts as success.
    let is_error = line
        .get("is_error")
        .and_then(|v| v.bool())
        .unwrap_or_else(|| line.str("subtype").as_deref() != Some("success"));
    emit(StreamEvent::Result(ResultEvent {
        is_error,
        subtype: line.str("subtype"),
        reason: line.str("terminal_reason"),
        status: line.get("api_error_status").and_then(status_code),
        text,
        turns: line.u64("num_turns"),
        denied: line.get("permission_denials").and_then(|v| v.array()).map(|denials| {
            let tool = |denial: Json<'a>| denial.object()?.str("tool_name");
            denials.into_iter().map(|denial| tool(denial).unwrap_or_default()).collect()
        }),
    }));
}

fn tokens(usage: &Object<'_>) -> Tokens {
    let number = |name| usage.u64(name).unwrap_or(0);
    Tokens {
        input: number("input_tokens"),
        output: number("output_tokens"),
        cache_read: number("cache_read_input_tokens"),
        cache_write: number("cache_creation_input_tokens"),
    }
}
