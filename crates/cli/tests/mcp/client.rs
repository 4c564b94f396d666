//! A client that sends exactly what a test wants.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{RETAKE, Sandbox};

/// Longer than the slowest machine takes.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Client {
    pub(crate) server: Child,
    stdin: Option<ChildStdin>,
    stderr: Option<ChildStderr>,
    lines: Receiver<String>,
    /// The server's information about itself.
    info: Value,
    /// Messages that arrived while another one was awaited.
    early: VecDeque<Value>,
    next: i64,
}

impl Client {
    pub(crate) fn new(sandbox: &Sandbox) -> Self {
        Self::with(sandbox, |_| {})
    }

    /// With a change of the server's start.
    pub(crate) fn with(sandbox: &Sandbox, change: impl FnOnce(&mut Command)) -> Self {
        Self::silent(sandbox, change).begun("test")
    }

    /// Under another client name.
    pub(crate) fn named(sandbox: &Sandbox, name: &str) -> Self {
        Self::silent(sandbox, |_| {}).begun(name)
    }

    /// With a server that this command starts; its stderr is kept.
    pub(crate) fn speaking(mut command: Command) -> Self {
        command.stderr(Stdio::piped());
        Self::started(command).begun("test")
    }

    fn begun(mut self, name: &str) -> Self {
        let answer = self.request(
            "initialize",
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": name, "version": "1"}}),
        );
        assert_eq!(answer["result"]["serverInfo"]["name"], "retake", "{answer}");
        self.info = answer["result"].clone();
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        self
    }

    /// The server's instructions for a model.
    pub(crate) fn instructions(&self) -> String {
        self.info["instructions"].as_str().unwrap().to_owned()
    }

    /// The server's stderr, after it has exited.
    pub(crate) fn said(&mut self) -> String {
        let mut text = String::new();
        self.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// Started, without any message yet.
    pub(crate) fn silent(sandbox: &Sandbox, change: impl FnOnce(&mut Command)) -> Self {
        let mut command = sandbox.command(RETAKE);
        command.arg("mcp");
        change(&mut command);
        Self::started(command)
    }

    fn started(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = command.spawn().unwrap();
        let stdout = BufReader::new(server.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let (stdin, stderr) = (server.stdin.take(), server.stderr.take());
        let (early, info) = (VecDeque::new(), Value::Null);
        Self { server, stdin, stderr, lines, info, early, next: 0 }
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.say(message.to_string().as_bytes());
    }

    /// Any bytes, and a line end.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(bytes).unwrap();
        stdin.write_all(b"\n").unwrap();
        stdin.flush().unwrap();
    }

    pub(crate) fn begin(&mut self, method: &str, params: Value) -> i64 {
        self.next += 1;
        let id = self.next;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        self.answer_to(id)
    }

    pub(crate) fn answer_to(&mut self, id: i64) -> Value {
        self.wait_for(|message| message["id"] == id)
    }

    /// Waits for the first matching message.
    pub(crate) fn wait_for(&mut self, meant: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.early.iter().position(&meant) {
            return self.early.remove(at).unwrap();
        }
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect("an answer");
            let message: Value =
                serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            assert_eq!(message["jsonrpc"], "2.0", "{message}");
            if meant(&message) {
                return message;
            }
            self.early.push_back(message);
        }
    }

    pub(crate) fn begin_tool(&mut self, name: &str, arguments: Value) -> i64 {
        self.begin("tools/call", json!({"name": name, "arguments": arguments}))
    }

    /// The result of a call, which must not be an error of the protocol.
    pub(crate) fn tool(&mut self, name: &str, arguments: Value) -> Value {
        let id = self.begin_tool(name, arguments);
        let answer = self.answer_to(id);
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].clone()
    }

    /// The text that a model sees.
    pub(crate) fn text(&mut self, name: &str, arguments: Value) -> String {
        text(&self.tool(name, arguments))
    }

    /// Closes the connection, and waits for the server's exit.
    pub(crate) fn leave(&mut self) -> i32 {
        self.stdin = None;
        let status = self.server.wait().unwrap();
        status.code().unwrap_or(-1)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A failed test leaves no server behind.
        _ = self.server.kill();
        _ = self.server.wait();
    }
}

pub(crate) fn text(result: &Value) -> String {
    result["content"][0]["text"].as_str().unwrap().to_owned()
}

pub(crate) fn run_id(result: &Value) -> String {
    result["structuredContent"]["runId"].as_str().unwrap().to_owned()
}

/// A text without varying parts: ids and times.
pub(crate) fn steady(text: &str) -> String {
    let ids = regex::Regex::new(r"\b[0-9a-f]{8}\b").unwrap();
    let times = regex::Regex::new(r"after \d+(\.\d+)?m?s").unwrap();
    let text = ids.replace_all(text, "ID");
    times.replace_all(&text, "after TIME").into_owned()
}
