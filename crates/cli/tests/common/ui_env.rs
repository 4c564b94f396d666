//! Helpers for tests of the page: the server, and arbitrary requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::{RETAKE, Sandbox, eventually};

/// A server beside the test; killed when dropped.
pub(crate) struct Ui {
    child: Child,
    pub(crate) port: u16,
    pub(crate) token: String,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("text")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

impl Sandbox {
    pub(crate) fn ui(&self) -> Ui {
        self.ui_at(0)
    }

    /// A recorded run that keeps running during the test.
    pub(crate) fn start(&self, script: &str) -> Child {
        let mut command = self.command(RETAKE);
        command.args(["exec", "--", "sh", "-c", script]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started")
    }

    pub(crate) fn ui_at(&self, port: u16) -> Ui {
        self.ui_with(port, &[])
    }

    pub(crate) fn ui_with(&self, port: u16, options: &[&str]) -> Ui {
        let mut command = self.command(RETAKE);
        command.args(["ui", "--port", &port.to_string()]).args(options);
        Ui::started(&mut command)
    }
}

impl Ui {
    /// The server that a command starts.
    pub(crate) fn started(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("an address");
        let rest = line.trim().strip_prefix("http://127.0.0.1:").expect(&line);
        let (port, token) = rest.split_once("/?token=").expect("a token");
        Self { child, port: port.parse().expect("a port"), token: token.to_owned() }
    }
}

/// One request on a separate connection.
pub(crate) fn request(
    port: u16,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    read_answer(send(port, method, path, headers, body))
}

fn send(port: u16, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(200))).expect("set");
    let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += &format!("Content-Length: {}\r\n\r\n", body.len());
    stream.write_all(text.as_bytes()).expect("sent");
    stream.write_all(body).expect("sent");
    stream
}

fn read_head(reader: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).expect("a status");
    let status = line.split(' ').nth(1).and_then(|code| code.parse().ok()).expect(&line);
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a header");
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.to_owned(), value.to_owned())),
            None if line.trim_end().is_empty() => return (status, headers),
            None => {
                let (name, value) = line.trim_end().split_once(':').expect("a header");
                headers.push((name.to_owned(), value.trim().to_owned()));
            }
        }
    }
}

fn read_answer(stream: TcpStream) -> Answer {
    let mut reader = BufReader::new(stream);
    let (status, headers) = read_head(&mut reader);
    let mut answer = Answer { status, headers, body: Vec::new() };
    match answer.header("content-length").and_then(|length| length.parse().ok()) {
        Some(length) => {
            answer.body = vec![0; length];
            reader.read_exact(&mut answer.body).expect("a body");
        }
        None => _ = reader.read_to_end(&mut answer.body).expect("a body"),
    }
    answer
}

impl Ui {
    /// The id of the run that keeps running.
    pub(crate) fn running(&self) -> String {
        let mut id = String::new();
        eventually("the run", || {
            let answer = self.get("/api/v1/runs?status=running");
            if answer.status == 200
                && let Some(found) = answer.json()["runs"][0]["id"].as_str()
            {
                id = found.to_owned();
            }
            !id.is_empty()
        });
        id
    }

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn authorised(&self) -> (String, String) {
        ("Authorization".to_owned(), format!("Bearer {}", self.token))
    }

    /// A request of a program: with the token.
    pub(crate) fn get(&self, path: &str) -> Answer {
        let (host, (name, value)) = (self.host(), self.authorised());
        request(self.port, "GET", path, &[("Host", &host), (&name, &value)], b"")
    }

    /// Sends a request and does not read the response.
    pub(crate) fn stall(&self, path: &str) -> TcpStream {
        let (host, (name, value)) = (self.host(), self.authorised());
        send(self.port, "GET", path, &[("Host", &host), (&name, &value)], b"")
    }

    /// The token that only a page of the server contains.
    pub(crate) fn page_token(&self) -> String {
        let page = self.get("/runs").text();
        let (_, rest) = page.split_once("name=\"retake-page-token\" content=\"").expect("a token");
        rest.split('"').next().expect("a token").to_owned()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        let (host, (name, value), token) = (self.host(), self.authorised(), self.page_token());
        let headers = [("Host", &*host), (&name, &value), ("X-Retake-Page-Token", &token)];
        request(self.port, "POST", path, &headers, body.to_string().as_bytes())
    }

    /// Listens to events, from a position if one is given.
    pub(crate) fn listen(&self, path: &str, last: Option<&str>) -> Events {
        let (host, (name, value)) = (self.host(), self.authorised());
        let mut headers = vec![("Host", &*host), (&*name, &*value)];
        headers.extend(last.map(|last| ("Last-Event-ID", last)));
        let mut reader = BufReader::new(send(self.port, "GET", path, &headers, b""));
        let (status, headers) = read_head(&mut reader);
        let kind = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        assert_eq!((status, kind.expect("a type").1.as_str()), (200, "text/event-stream"));
        Events { reader: Chunked { reader, left: 0 }, pending: Vec::new(), looked: 0 }
    }

    /// The server's current memory in kilobytes.
    pub(crate) fn memory_kb(&self) -> u64 {
        let path = format!("/proc/{}/status", self.pid());
        let status = std::fs::read_to_string(path).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
        line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("a number")
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// One event.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) name: String,
    pub(crate) id: Option<String>,
    pub(crate) data: Value,
}

pub(crate) struct Events {
    reader: Chunked,
    pending: Vec<u8>,
    /// How much was searched for the end of an event.
    looked: usize,
}

impl Events {
    /// The next event; `None` once the server has ended.
    pub(crate) fn next(&mut self) -> Option<Told> {
        loop {
            let looked = self.looked.saturating_sub(1).min(self.pending.len());
            let end = self.pending[looked..].windows(2).position(|pair| pair == b"\n\n");
            self.looked = self.pending.len();
            if let Some(end) = end.map(|end| looked + end) {
                self.looked = 0;
                let rest = self.pending.split_off(end + 2);
                let text = String::from_utf8(std::mem::replace(&mut self.pending, rest)).ok()?;
                let field = |name: &str| {
                    text.lines().find_map(|line| Some(line.strip_prefix(name)?.to_owned()))
                };
                let Some(event) = field("event: ") else { continue };
                let data = serde_json::from_str(&field("data: ").expect("data")).expect("JSON");
                return Some(Told { name: event, id: field("id: "), data });
            }
            let mut buffer = [0; 65536];
            match self.reader.read(&mut buffer) {
                Ok(0) | Err(_) => return None,
                Ok(read) => self.pending.extend_from_slice(&buffer[..read]),
            }
        }
    }

    /// Waits for an event of this name.
    pub(crate) fn until(&mut self, name: &str) -> Told {
        loop {
            let told = self.next().unwrap_or_else(|| panic!("the server ended without {name}"));
            if told.name == name {
                return told;
            }
        }
    }
}

/// The chunks of an HTTP/1.1 body.
struct Chunked {
    reader: BufReader<TcpStream>,
    left: usize,
}

impl Read for Chunked {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 {
            let mut line = String::new();
            while line.trim().is_empty() {
                line.clear();
                if self.reader.read_line(&mut line)? == 0 {
                    return Ok(0);
                }
            }
            self.left = usize::from_str_radix(line.trim(), 16).unwrap_or(0);
            if self.left == 0 {
                return Ok(0);
            }
        }
        let wanted = buffer.len().min(self.left);
        let read = self.reader.read(&mut buffer[..wanted])?;
        self.left -= read;
        Ok(read)
    }
}
