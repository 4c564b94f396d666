//! A client of an MCP server on its pipes, retake's or another one.
//!
//! A request is written in one piece, as clients do, and the same thread reads the
//! answer: this measures the server, and not the wake-up of another thread here.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::text;

pub(super) struct Client {
    server: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    /// Bytes of the server that were not parsed yet.
    unread: Vec<u8>,
    next: u64,
}

/// The next message of a server.
enum NextLine {
    Line(Vec<u8>),
    Nothing,
    Ended,
}

/// The result of a call.
pub(super) enum Answered {
    /// The result, and how long it took.
    Result(Value, Duration),
    /// No answer within the time limit.
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
        let stdout = server.stdout.take().ok_or("no stdout")?;
        let mut client = Self { server, stdin, stdout, unread: Vec::new(), next: 0 };
        client.request(
            "initialize",
            &json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}),
        )?;
        let begun = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        client.say(&begun).map_err(text)?;
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
        if self.say(&message).is_err() {
            return Ok(Answered::Ended);
        }
        loop {
            let line = match self.line(start + patience)? {
                NextLine::Line(line) => line,
                NextLine::Nothing => return Ok(Answered::Nothing),
                NextLine::Ended => return Ok(Answered::Ended),
            };
            let took = start.elapsed();
            let answer: Value = serde_json::from_slice(&line).map_err(text)?;
            if answer["id"] == self.next {
                return match answer.get("result") {
                    Some(result) => Ok(Answered::Result(result.clone(), took)),
                    None => Err(answer.to_string()),
                };
            }
        }
    }

    fn say(&mut self, message: &Value) -> std::io::Result<()> {
        self.stdin.write_all(format!("{message}\n").as_bytes())
    }

    fn line(&mut self, until: Instant) -> Result<NextLine, String> {
        let mut searched = 0;
        loop {
            let end = self.unread[searched..].iter().position(|byte| *byte == b'\n');
            if let Some(end) = end {
                return Ok(NextLine::Line(self.unread.drain(..=searched + end).collect()));
            }
            searched = self.unread.len();
            let left = until.saturating_duration_since(Instant::now());
            let wait = left.as_millis().min(i32::MAX as u128) as i32;
            let mut poll =
                libc::pollfd { fd: self.stdout.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor, which is open.
            match unsafe { libc::poll(&mut poll, 1, wait) } {
                0 => return Ok(NextLine::Nothing),
                1 => {}
                _ => return Err(text(std::io::Error::last_os_error())),
            }
            let mut block = [0; 64 << 10];
            match self.stdout.read(&mut block).map_err(text)? {
                0 => return Ok(NextLine::Ended),
                read => self.unread.extend_from_slice(&block[..read]),
            }
        }
    }

    pub(super) fn call(&mut self, tool: &str, arguments: &Value) -> Result<Value, String> {
        self.request("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    pub(super) fn exec(&mut self, arguments: &Value) -> Result<Value, String> {
        self.exec_timed(arguments).map(|(result, _)| result)
    }

    /// The same, and the time from the request's first byte to the answer's last.
    pub(super) fn exec_timed(&mut self, arguments: &Value) -> Result<(Value, Duration), String> {
        let asked = json!({"name": "exec", "arguments": arguments});
        let answered = self.request_within("tools/call", &asked, Duration::from_secs(900))?;
        let Answered::Result(result, took) = answered else { return Err("no answer".into()) };
        match &result["structuredContent"]["recorded"] {
            Value::Bool(true) => Ok((result, took)),
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
            // A thread may end before it is read.
            let list = fs::read_to_string(task.map_err(text)?.path().join("children"));
            count += list.map_or(0, |list| list.split_whitespace().count());
        }
        Ok(count)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Best effort.
        _ = self.server.kill();
        _ = self.server.wait();
    }
}
