//! A scripted model API on loopback for real agents: the Messages API (Claude Code), the Responses
//! API (Codex), `streamGenerateContent` (Gemini) and chat completions (opencode).
//!
//! `retake-fake-api SCRIPT [LOG]` prints its address, such as `http://127.0.0.1:40123`, and serves
//! until it is killed. LOG gets every request as a line of JSON.
//!
//! The script is `{"turns": [TURN, …]}`. Each request that offers tools takes the next turn, and
//! after the last turn the last one again. A request without tools is a side question and gets a
//! short answer. With `"each": true` beside the turns every conversation has its own sequence: the
//! number of answers in a request selects its turn. A turn may have:
//!
//! - `text`; `tools`: a list of `{"name", "input"}`, for Codex also `namespace`
//! - `status`, `type`, `message`, `retryAfter`, `headers`: an error instead of an answer
//! - `usage`: overrides the token counts; `stop`: the stop reason
//! - `delayMs` before the answer; `hang`: no answer at all; `drop`: the connection is cut after
//!   the beginning

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program for tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

/// What is streamed: an event name if the API has one, and the data.
type Events = Vec<(Option<&'static str>, Value)>;
type Dialect = fn(&Value, usize) -> Events;

struct Server {
    turns: Vec<Value>,
    /// Whether every conversation has its own turns.
    each: bool,
    next: Mutex<usize>,
    log: Option<Mutex<std::fs::File>>,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let text = std::fs::read_to_string(&words[0]).expect("the script can be read");
    let script: Value = serde_json::from_str(&text).expect("the script is JSON");
    let log = words.get(1).map(|path| Mutex::new(std::fs::File::create(path).unwrap()));
    let turns = script["turns"].as_array().expect("the script has turns").clone();
    let (each, next) = (script["each"] == true, Mutex::new(0));
    let server: &Server = Box::leak(Box::new(Server { turns, each, next, log }));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("http://{}", listener.local_addr().unwrap());
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            // Some tests need an agent that closes the connection during an answer.
            while let Ok(Some(request)) = read(&mut reader) {
                if server.answer(&request, &stream).is_err() {
                    break;
                }
            }
        });
    }
}

struct Request {
    method: String,
    path: String,
    body: Value,
}

fn read(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (mut length, mut chunked) = (0, false);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        chunked |= line.starts_with("transfer-encoding:") && line.contains("chunked");
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    while chunked {
        let mut size = String::new();
        reader.read_line(&mut size)?;
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk)?;
        body.extend_from_slice(&chunk[..size]);
        chunked = size > 0;
    }
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Ok(Some(Request { method, path, body }))
}

impl Server {
    fn answer(&self, request: &Request, mut stream: &TcpStream) -> std::io::Result<()> {
        if let Some(log) = &self.log {
            let line =
                json!({"method": request.method, "path": request.path, "body": request.body});
            writeln!(log.lock().unwrap(), "{line}")?;
        }
        let path = request.path.split('?').next().unwrap_or_default();
        let dialect: Dialect = match (request.method.as_str(), path) {
            ("POST", path) if path.ends_with("/count_tokens") => {
                return plain(stream, 200, &[], &json!({"input_tokens": 100}));
            }
            ("POST", path) if path.ends_with("/messages") => messages,
            ("POST", path) if path.ends_with("/responses") => responses,
            ("POST", path) if path.ends_with("/chat/completions") => chat,
            ("POST", path) if path.contains(":streamGenerateContent") => gemini,
            ("POST", path) if path.contains(":generateContent") => {
                let (_, value) = gemini(&json!({"text": "ok"}), 0).remove(0);
                return plain(stream, 200, &[], &value);
            }
            ("POST", path) if path.contains(":countTokens") => {
                return plain(stream, 200, &[], &json!({"totalTokens": 100}));
            }
            ("HEAD" | "GET", "/") => return plain(stream, 200, &[], &json!({})),
            _ => {
                let error =
                    json!({"type": "error", "error": {"type": "not_found_error", "message": path}});
                return plain(stream, 404, &[], &error);
            }
        };
        let side = json!({"text": "ok"});
        let (turn, number) = match request.body["tools"].as_array() {
            Some(tools) if !tools.is_empty() => {
                let mut next = self.next.lock().unwrap();
                let said = request.body["messages"].as_array().into_iter().flatten();
                let number = match self.each {
                    true => said.filter(|message| message["role"] == "assistant").count(),
                    false => *next,
                };
                *next += 1;
                (&self.turns[number.min(self.turns.len() - 1)], number)
            }
            _ => (&side, 0),
        };
        std::thread::sleep(Duration::from_millis(turn["delayMs"].as_u64().unwrap_or(0)));
        if turn["hang"] == true {
            std::thread::sleep(Duration::from_secs(3600));
        }
        if let Some(status) = turn["status"].as_u64() {
            let mut headers = Vec::new();
            if let Some(seconds) = turn["retryAfter"].as_u64() {
                headers.push(format!("retry-after: {seconds}"));
            }
            for (name, value) in turn["headers"].as_object().into_iter().flatten() {
                headers.push(format!("{name}: {}", value.as_str().unwrap_or_default()));
            }
            let kind = turn["type"].as_str().unwrap_or("api_error");
            let message = turn["message"].as_str().unwrap_or("as the script says");
            let body = json!({"type": "error", "error": {"type": kind, "message": message,
                              "code": status, "status": kind}});
            return plain(stream, status, &headers, &body);
        }
        let events = dialect(turn, number);
        if request.body["stream"] == false && path.ends_with("/messages") {
            return plain(stream, 200, &[], &whole(turn, number));
        }
        stream.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nrequest-id: req_fake\r\n\
              connection: close\r\n\r\n",
        )?;
        for (index, (name, event)) in events.iter().enumerate() {
            if turn["drop"] == true && index > 1 {
                break;
            }
            if let Some(name) = name {
                writeln!(stream, "event: {name}")?;
            }
            write!(stream, "data: {event}\n\n")?;
        }
        stream.flush()?;
        stream.shutdown(std::net::Shutdown::Both)
    }
}

fn plain(
    mut stream: &TcpStream,
    status: u64,
    headers: &[String],
    body: &Value,
) -> std::io::Result<()> {
    let body = body.to_string();
    let mut head = format!(
        "HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\nrequest-id: req_fake\r\n\
         content-length: {}\r\n",
        body.len()
    );
    for header in headers {
        head.push_str(&format!("{header}\r\n"));
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes())
}

fn usage(turn: &Value) -> Value {
    let mut usage = json!({"input_tokens": 100, "cache_creation_input_tokens": 0,
                           "cache_read_input_tokens": 0, "output_tokens": 20});
    for (name, value) in turn["usage"].as_object().into_iter().flatten() {
        usage[name] = value.clone();
    }
    usage
}

fn tools(turn: &Value) -> impl Iterator<Item = &Value> {
    turn["tools"].as_array().into_iter().flatten()
}

fn blocks(turn: &Value, number: usize) -> Vec<Value> {
    let mut blocks = Vec::new();
    if let Some(text) = turn["text"].as_str() {
        blocks.push(json!({"type": "text", "text": text}));
    }
    for (index, tool) in tools(turn).enumerate() {
        let id = format!("toolu_{number:04}_{index:02}");
        blocks.push(
            json!({"type": "tool_use", "id": id, "name": tool["name"], "input": tool["input"]}),
        );
    }
    blocks
}

fn stop(turn: &Value) -> String {
    let usual = if tools(turn).next().is_some() { "tool_use" } else { "end_turn" };
    turn["stop"].as_str().unwrap_or(usual).to_owned()
}

fn whole(turn: &Value, number: usize) -> Value {
    json!({"id": format!("msg_{number:04}"), "type": "message", "role": "assistant",
           "model": "fake-model", "content": blocks(turn, number), "stop_reason": stop(turn),
           "stop_sequence": null, "usage": usage(turn)})
}

/// The Messages API, block by block as the real one streams it.
fn messages(turn: &Value, number: usize) -> Events {
    let mut message = whole(turn, number);
    message["content"] = json!([]);
    message["stop_reason"] = Value::Null;
    message["usage"]["output_tokens"] = json!(1);
    let mut events =
        vec![(Some("message_start"), json!({"type": "message_start", "message": message}))];
    for (index, block) in blocks(turn, number).into_iter().enumerate() {
        let (empty, delta) = match block["type"].as_str() {
            Some("text") => (
                json!({"type": "text", "text": ""}),
                json!({"type": "text_delta", "text": block["text"]}),
            ),
            _ => (
                json!({"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}),
                json!({"type": "input_json_delta", "partial_json": block["input"].to_string()}),
            ),
        };
        events.push((
            Some("content_block_start"),
            json!({"type": "content_block_start", "index": index, "content_block": empty}),
        ));
        events.push((
            Some("content_block_delta"),
            json!({"type": "content_block_delta", "index": index, "delta": delta}),
        ));
        events.push((
            Some("content_block_stop"),
            json!({"type": "content_block_stop", "index": index}),
        ));
    }
    events.push((
        Some("message_delta"),
        json!({"type": "message_delta",
        "delta": {"stop_reason": stop(turn), "stop_sequence": null}, "usage": usage(turn)}),
    ));
    events.push((Some("message_stop"), json!({"type": "message_stop"})));
    events
}

/// The Responses API.
fn responses(turn: &Value, number: usize) -> Events {
    let id = format!("resp_{number:04}");
    let mut output = Vec::new();
    if let Some(text) = turn["text"].as_str() {
        output.push(json!({"type": "message", "role": "assistant", "id": format!("msg_{number}"),
                           "content": [{"type": "output_text", "text": text, "annotations": []}]}));
    }
    for (index, tool) in tools(turn).enumerate() {
        output.push(json!({"type": "function_call", "id": format!("fc_{number}_{index}"),
            "call_id": format!("call_{number}_{index}"), "name": tool["name"],
            "namespace": tool["namespace"], "arguments": tool["input"].to_string()}));
    }
    let usage = usage(turn);
    let totals = json!({
        "input_tokens": usage["input_tokens"], "input_tokens_details": {"cached_tokens": usage["cache_read_input_tokens"]},
        "output_tokens": usage["output_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 120,
    });
    let mut events = vec![(
        Some("response.created"),
        json!({"type": "response.created", "response": {"id": id}}),
    )];
    for (index, item) in output.iter().enumerate() {
        events.push((
            Some("response.output_item.done"),
            json!({"type": "response.output_item.done", "output_index": index, "item": item}),
        ));
    }
    events.push((
        Some("response.completed"),
        json!({"type": "response.completed",
        "response": {"id": id, "output": output, "usage": totals}}),
    ));
    events
}

/// Chat completions, as compatible servers stream them.
fn chat(turn: &Value, number: usize) -> Events {
    let chunk = |delta: Value, finish: Value, usage: Value| {
        (
            None,
            json!({"id": format!("chat_{number}"), "object": "chat.completion.chunk",
                      "created": 1, "model": "fake-model", "usage": usage,
                      "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}),
        )
    };
    let mut events = Vec::new();
    if let Some(text) = turn["text"].as_str() {
        let delta = json!({"role": "assistant", "content": text});
        events.push(chunk(delta, Value::Null, Value::Null));
    }
    for (index, tool) in tools(turn).enumerate() {
        let call = json!({"index": index, "id": format!("call_{number}_{index}"), "type": "function",
            "function": {"name": tool["name"], "arguments": tool["input"].to_string()}});
        events.push(chunk(json!({"tool_calls": [call]}), Value::Null, Value::Null));
    }
    let finish = if tools(turn).next().is_some() { "tool_calls" } else { "stop" };
    let usage = usage(turn);
    let totals = json!({"prompt_tokens": usage["input_tokens"],
                        "completion_tokens": usage["output_tokens"], "total_tokens": 120});
    events.push(chunk(json!({}), json!(finish), totals));
    events
}

fn gemini(turn: &Value, _number: usize) -> Events {
    let mut parts = Vec::new();
    if let Some(text) = turn["text"].as_str() {
        parts.push(json!({"text": text}));
    }
    for tool in tools(turn) {
        parts.push(json!({"functionCall": {"name": tool["name"], "args": tool["input"]}}));
    }
    let usage = usage(turn);
    vec![(
        None,
        json!({
            "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}],
            "usageMetadata": {"promptTokenCount": usage["input_tokens"],
                              "candidatesTokenCount": usage["output_tokens"], "totalTokenCount": 120},
            "modelVersion": "fake-model", "responseId": "r",
        }),
    )]
}
