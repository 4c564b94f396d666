//! A client that says exactly what a test wants said.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{RETAKE, Sandbox};

/// As long as any machine may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Client {
    pub(crate) server: Child,
    stdin: Option<ChildStdin>,
    stderr: Option<ChildStderr>,
    lines: Receiver<String>,
    /// What the server said of itself.
    info: Value,
    /// What came while something else was waited for.
    early: VecDeque<Value>,
    next: i64,
}

impl Client {
    pub(crate) fn new(sandbox: &Sandbox) -> Self {
        Self::with(sandbox, |_| {})
    }

    /// With a change to how the server is started.
    pub(crate) fn with(sandbox: &Sandbox, change: impl FnOnce(&mut Command)) -> Self {
        Self::silent(sandbox, change).begun("test")
    }

    /// As another program would.
    pub(crate) fn named(sandbox: &Sandbox, name: &str) -> Self {
        Self::silent(sandbox, |_| {}).begun(name)
    }

    /// With a server that this command starts; what it says is kept.
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

    /// What the server tells a model about itself.
    pub(crate) fn instructions(&self) -> String {
        self.info["instructions"].as_str().unwrap().to_owned()
    }

    /// What the server wrote to stderr, once it is gone.
    pub(crate) fn said(&mut self) -> String {
        let mut text = String::new();
        self.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// Started, and nothing said yet.
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

    /// Any bytes, and the end of a line.
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

    /// The first message that is meant.
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

    /// What a model sees of a call.
    pub(crate) fn text(&mut self, name: &str, arguments: Value) -> String {
        text(&self.tool(name, arguments))
    }

    /// Says nothing more, and waits for the server's end.
    pub(crate) fn leave(&mut self) -> i32 {
        self.stdin = None;
        let status = self.server.wait().unwrap();
        status.code().unwrap_or(-1)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A test that failed leaves no server behind.
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

/// A text without what differs each time: ids and times.
pub(crate) fn steady(text: &str) -> String {
    let ids = regex::Regex::new(r"\b[0-9a-f]{8}\b").unwrap();
    let times = regex::Regex::new(r"after \d+(\.\d+)?m?s").unwrap();
    let text = ids.replace_all(text, "ID");
    times.replace_all(&text, "after TIME").into_owned()
}
