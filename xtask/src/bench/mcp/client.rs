//! A client of an MCP server on its pipes, ours or another's.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::text;

pub(super) struct Client {
    server: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    next: u64,
}

/// The result of a call.
pub(super) enum Answered {
    /// The result, and how long it took.
    Result(Value, Duration),
    /// Nothing, for as long as was waited.
    Nothing,
    /// The server ended.
    Ended,
}

impl Client {
    pub(super) fn retake(retake: &Path, project: &Path, options: &[&str]) -> Result<Self, String> {
        let mut command = Command::new(retake);
        command.arg("mcp").args(options).env_remove("RETAKE_STORE");
        Self::start(command, project)
    }

    pub(super) fn start(mut command: Command, project: &Path) -> Result<Self, String> {
        let mut server = command
            .current_dir(project)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{command:?}: {error}"))?;
        let stdin = server.stdin.take().ok_or("no stdin")?;
        let stdout = BufReader::new(server.stdout.take().ok_or("no stdout")?);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut client = Self { server, stdin, lines, next: 0 };
        client.request(
            "initialize",
            &json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}),
        )?;
        let begun = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        writeln!(client.stdin, "{begun}").and_then(|()| client.stdin.flush()).map_err(text)?;
        Ok(client)
    }

    pub(super) fn request(&mut self, method: &str, params: &Value) -> Result<Value, String> {
        match self.request_within(method, params, Duration::from_secs(900))? {
            Answered::Result(result, _) => Ok(result),
            Answered::Nothing | Answered::Ended => Err(format!("no answer to {method}")),
        }
    }

    pub(super) fn request_within(
        &mut self,
        method: &str,
        params: &Value,
        patience: Duration,
    ) -> Result<Answered, String> {
        self.next += 1;
        let message =
            json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params});
        let start = Instant::now();
        let said = writeln!(self.stdin, "{message}").and_then(|()| self.stdin.flush());
        if said.is_err() {
            return Ok(Answered::Ended);
        }
        loop {
            let line = match self.lines.recv_timeout(patience.saturating_sub(start.elapsed())) {
                Ok(line) => line,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => return Ok(Answered::Nothing),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return Ok(Answered::Ended),
            };
            let took = start.elapsed();
            let answer: Value = serde_json::from_str(&line).map_err(text)?;
            if answer["id"] == self.next {
                return match answer.get("result") {
                    Some(result) => Ok(Answered::Result(result.clone(), took)),
                    None => Err(line),
                };
            }
        }
    }

    pub(super) fn call(&mut self, tool: &str, arguments: &Value) -> Result<Value, String> {
        self.request("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    pub(super) fn exec(&mut self, arguments: &Value) -> Result<Value, String> {
        let result = self.call("exec", arguments)?;
        match &result["structuredContent"]["recorded"] {
            Value::Bool(true) => Ok(result),
            _ => Err(result.to_string()),
        }
    }

    /// A number in `/proc/PID/status`.
    pub(super) fn status(&self, name: &str) -> Result<u64, String> {
        let path = format!("/proc/{}/status", self.server.id());
        let status = fs::read_to_string(path).map_err(text)?;
        let line =
            status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such field")?;
        line.trim().trim_end_matches(" kB").parse().map_err(text)
    }

    pub(super) fn descriptors(&self) -> Result<usize, String> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.server.id())).map_err(text)?.count())
    }

    pub(super) fn children(&self) -> Result<usize, String> {
        let mut count = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.server.id())).map_err(text)? {
            // A thread may end between the look and the read.
            let list = fs::read_to_string(task.map_err(text)?.path().join("children"));
            count += list.map_or(0, |list| list.split_whitespace().count());
        }
        Ok(count)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It is of no use to anyone any more.
        _ = self.server.kill();
        _ = self.server.wait();
    }
}
