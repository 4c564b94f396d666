//! A scripted agent: plays a recorded stream, hangs, lies, ignores SIGTERM, leaves children behind,
//! writes malformed status files.
//!
//! `RETAKE_FAKE_AGENT` names a JSON file: `{"steps": [[ACTION, …], …]}`. Each invocation performs
//! the next step, and after the last step the last one again. The count is kept next to the script,
//! in `SCRIPT.count`; without that file it starts at 0. `--version` does not count.
//!
//! An action is an object with a key `do`:
//!
//! - `play` `file` [`delayMs`]: prints a file's lines, waiting between them
//! - `print` `text`, `stderr` `text`: unchanged
//! - `say` `text`, `start`, `tool` `name` `input` `id`, `returned` `id` `content` `isError`: lines
//!   of Claude's stream
//! - `result` …: a result line; its fields override the usual ones
//! - `limit` [`resetsAt` | `inSeconds`]: a rejected rate limit, then a failed result
//! - `write` `path` `text`: a file, its directories made; `replace`: by rename; `remove` `path`
//! - `append` `path` `text`
//! - `half` `path` `text`: a file in two halves with `delayMs` between
//! - `stdin` `path`, `argv` `path`, `env` `path`: saves its input
//! - `ready` `path`: an empty file that a test can wait for
//! - `wait` `path`: until the file exists
//! - `sleep` `ms`, `hang`, `ignoreTerm`, `signal` `number`, `exit` `code`
//! - `child` `how` (`hang`, `stubborn`, `daemon`) [`pidFile`]: leaves a process behind
//! - `spew` `bytes` [`line`]: a long stream of tool results; one enormous line with `line: true`

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::exit,
    reason = "a program for tests"
)]

use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

const SESSION: &str = "00000000-0000-4000-8000-000000000000";

fn main() {
    if std::env::args().any(|arg| arg == "--version") {
        println!("retake-fake-agent 1.0.0");
        return;
    }
    let script = std::env::var("RETAKE_FAKE_AGENT").expect("RETAKE_FAKE_AGENT names a script");
    let text = std::fs::read_to_string(&script).expect("the script can be read");
    let value: Value = serde_json::from_str(&text).expect("the script is JSON");
    let steps = value["steps"].as_array().expect("the script has steps");
    let count_file = format!("{script}.count");
    let count: usize = std::fs::read_to_string(&count_file)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0);
    std::fs::write(&count_file, (count + 1).to_string()).unwrap();
    let step = &steps[count.min(steps.len() - 1)];
    for action in step.as_array().expect("a step is a list of actions") {
        act(action);
    }
}

fn act(action: &Value) {
    let text = |name: &str| action[name].as_str().unwrap_or_default();
    let number = |name: &str| action[name].as_u64().unwrap_or(0);
    match text("do") {
        "play" => {
            for line in std::fs::read_to_string(text("file")).unwrap().lines() {
                emit(line);
                pause(number("delayMs"));
            }
        }
        "print" => print_now(text("text")),
        "stderr" => eprint!("{}", text("text")),
        "start" => emit_json(&json!({
            "type": "system", "subtype": "init", "session_id": SESSION, "model": "fake-model",
        })),
        "say" => emit_json(&assistant(json!({"type": "text", "text": text("text")}))),
        "tool" => emit_json(&assistant(json!({
            "type": "tool_use", "id": action["id"], "name": action["name"], "input": action["input"],
        }))),
        "returned" => emit_json(&returned(text("id"), &action["content"], &action["isError"])),
        "result" => result(action),
        "limit" => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            let at = action["resetsAt"].as_u64().unwrap_or(now.as_secs() + number("inSeconds"));
            emit_json(&json!({
                "type": "rate_limit_event",
                "rate_limit_info": {"status": "rejected", "resetsAt": at, "rateLimitType": "five_hour"},
            }));
            result(
                &json!({"is_error": true, "api_error_status": 429, "terminal_reason": "api_error"}),
            );
        }
        "write" => {
            directories(text("path"));
            std::fs::write(text("path"), text("text")).unwrap();
        }
        "append" => {
            directories(text("path"));
            let mut file =
                std::fs::OpenOptions::new().append(true).create(true).open(text("path")).unwrap();
            file.write_all(text("text").as_bytes()).unwrap();
        }
        "replace" => {
            directories(text("path"));
            let staged = format!("{}.new", text("path"));
            std::fs::write(&staged, text("text")).unwrap();
            std::fs::rename(staged, text("path")).unwrap();
        }
        "half" => {
            let (head, tail) = text("text").split_at(text("text").len() / 2);
            let mut file = std::fs::File::create(text("path")).unwrap();
            file.write_all(head.as_bytes()).unwrap();
            pause(number("delayMs"));
            file.write_all(tail.as_bytes()).unwrap();
        }
        "remove" => std::fs::remove_file(text("path")).unwrap(),
        "stdin" => {
            let mut given = Vec::new();
            std::io::stdin().read_to_end(&mut given).unwrap();
            std::fs::write(text("path"), given).unwrap();
        }
        "argv" => {
            let argv: Vec<String> = std::env::args().collect();
            std::fs::write(text("path"), serde_json::to_string(&argv).unwrap()).unwrap();
        }
        "env" => {
            let all: std::collections::BTreeMap<String, String> = std::env::vars().collect();
            std::fs::write(text("path"), serde_json::to_string(&all).unwrap()).unwrap();
        }
        "ready" => std::fs::write(text("path"), "").unwrap(),
        "wait" => {
            while !Path::new(text("path")).exists() {
                pause(5);
            }
        }
        "sleep" => pause(number("ms")),
        "hang" => hang(),
        // SAFETY: setting a disposition has no other effect.
        "ignoreTerm" => unsafe {
            libc::signal(libc::SIGTERM, libc::SIG_IGN);
        },
        // SAFETY: signals this process.
        "signal" => unsafe {
            libc::raise(number("number") as i32);
        },
        "exit" => std::process::exit(number("code") as i32),
        "child" => child(text("how"), action["pidFile"].as_str()),
        "spew" => spew(number("bytes"), action["line"].as_bool().unwrap_or(false)),
        other => panic!("no action {other:?}"),
    }
}

fn print_now(text: &str) {
    let mut out = std::io::stdout();
    // A reader that closed its end has finished the test.
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(141);
    }
}

fn emit(line: &str) {
    print_now(&format!("{line}\n"));
}

fn emit_json(value: &Value) {
    emit(&value.to_string());
}

fn assistant(block: Value) -> Value {
    let usage = json!({"input_tokens": 100, "output_tokens": 10,
                       "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0});
    json!({"type": "assistant", "session_id": SESSION, "parent_tool_use_id": null,
           "message": {"id": "msg_1", "role": "assistant", "content": [block], "usage": usage}})
}

fn returned(id: &str, content: &Value, is_error: &Value) -> Value {
    let block = json!({"type": "tool_result", "tool_use_id": id, "content": content,
                       "is_error": is_error.as_bool().unwrap_or(false)});
    json!({"type": "user", "message": {"role": "user", "content": [block]}})
}

fn result(overrides: &Value) {
    let mut line = json!({
        "duration_ms": 10, "type": "result", "subtype": "success", "is_error": false,
        "num_turns": 1, "result": "done", "session_id": SESSION, "total_cost_usd": 0.01,
        "usage": {"input_tokens": 100, "output_tokens": 10},
        "modelUsage": {"fake-model": {"contextWindow": 200_000}},
        "permission_denials": [], "terminal_reason": "completed",
    });
    for (key, value) in overrides.as_object().unwrap() {
        if key != "do" {
            line[key] = value.clone();
        }
    }
    emit_json(&line);
}

fn directories(path: &str) {
    if let Some(parent) = Path::new(path).parent() {
        std::fs::create_dir_all(parent).unwrap();
    }
}

fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

fn hang() -> ! {
    loop {
        // SAFETY: waits for a signal, nothing else.
        unsafe { libc::pause() };
    }
}

fn child(how: &str, pid_file: Option<&str>) {
    // SAFETY: this program has one thread.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        if how == "stubborn" {
            act(&json!({"do": "ignoreTerm"}));
        }
        if how == "daemon" {
            // SAFETY: as above; the parent of the second child exits at once.
            unsafe {
                libc::setsid();
                if libc::fork() != 0 {
                    libc::_exit(0);
                }
            }
        }
        if let Some(path) = pid_file {
            let staged = format!("{path}.new");
            std::fs::write(&staged, std::process::id().to_string()).unwrap();
            std::fs::rename(staged, path).unwrap();
        }
        hang();
    }
    if let Some(path) = pid_file {
        act(&json!({"do": "wait", "path": path}));
    }
}

fn spew(bytes: u64, one_line: bool) {
    let mut out = std::io::BufWriter::with_capacity(1 << 20, std::io::stdout().lock());
    if one_line {
        let head = r#"{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"big","content":""#;
        let _ = out.write_all(head.as_bytes());
        let chunk = "0123456789abcde\\n".repeat(4096);
        let mut left = bytes;
        while left > 0 {
            if out.write_all(chunk.as_bytes()).is_err() {
                return;
            }
            left = left.saturating_sub(chunk.len() as u64);
        }
        let _ = out.write_all(b"\"}]}}\n");
        return;
    }
    let content = json!("fn main() {\n    println!(\"hello\");\n}\n".repeat(50));
    let line = returned("toolu_1", &content, &json!(false)).to_string() + "\n";
    let mut left = bytes;
    while left > 0 {
        if out.write_all(line.as_bytes()).is_err() {
            return;
        }
        left = left.saturating_sub(line.len() as u64);
    }
}
