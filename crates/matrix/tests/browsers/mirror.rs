//! A mirror of Chrome for Testing on the loopback interface, with the behaviour of real servers.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Cursor, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

#[derive(Default)]
pub(crate) struct State {
    pub(crate) files: HashMap<String, Vec<u8>>,
    /// Close the connection after this many bytes of a body.
    pub(crate) cut: Option<usize>,
    /// Whether Range is unsupported.
    pub(crate) no_ranges: bool,
    pub(crate) no_length: bool,
    /// Hang after this many bytes.
    pub(crate) stall: Option<usize>,
    pub(crate) etag: String,
    /// Answer a Range with another one, this many bytes earlier.
    pub(crate) early: usize,
    /// Path and Range of every request.
    pub(crate) log: Vec<(String, Option<String>)>,
}

pub(crate) struct Mirror {
    pub(crate) url: String,
    pub(crate) state: Arc<Mutex<State>>,
}

pub(crate) const PLATFORM: &str =
    if cfg!(target_arch = "aarch64") { "linux-arm64" } else { "linux64" };
pub(crate) const DIRECTORY: &str =
    if cfg!(target_arch = "aarch64") { "linux_arm" } else { "linux" };

impl Mirror {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State { etag: "\"one\"".into(), ..State::default() }));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || answer(stream, &shared));
            }
        });
        Self { url, state }
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    pub(crate) fn log(&self) -> Vec<(String, Option<String>)> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }

    /// Serves the archive of a version.
    pub(crate) fn archive(&self, version: &str, bytes: Vec<u8>) {
        let path = format!("/dl/{version}/{PLATFORM}/chrome-{PLATFORM}.zip");
        self.change(|state| {
            state.files.insert(path, bytes);
        });
    }

    /// Serves the index of these versions.
    pub(crate) fn index(&self, versions: &[&str]) {
        let entry = |version: &&str| {
            let url = format!("{}/dl/{version}/{PLATFORM}/chrome-{PLATFORM}.zip", self.url);
            serde_json::json!({
                "version": version, "revision": "1",
                "downloads": {"chrome": [{"platform": PLATFORM, "url": url}]}
            })
        };
        let newest = |version: &str| serde_json::json!({"version": version, "revision": "1"});
        let milestones: serde_json::Map<String, serde_json::Value> =
            versions.iter().map(|v| (v.split('.').next().unwrap().to_owned(), newest(v))).collect();
        let last = versions.last().unwrap();
        let pages = [
            (
                "known-good-versions-with-downloads.json",
                serde_json::json!({"timestamp": "x", "versions": versions.iter().map(entry).collect::<Vec<_>>()}),
            ),
            ("latest-versions-per-milestone.json", serde_json::json!({"milestones": milestones})),
            (
                "last-known-good-versions.json",
                serde_json::json!({"channels": {"Stable": newest(last)}}),
            ),
        ];
        self.change(|state| {
            for (name, page) in pages {
                state.files.insert(format!("/index/{name}"), page.to_string().into_bytes());
            }
        });
    }
}

fn answer(mut stream: TcpStream, shared: &Mutex<State>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut range, mut if_range) = (None, None);
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header).unwrap_or(0) == 0 || header.trim().is_empty() {
            break;
        }
        let (name, value) = header.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "range" => range = Some(value.trim().to_owned()),
            "if-range" => if_range = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let mut state = shared.lock().unwrap();
    state.log.push((path.clone(), range.clone()));
    let Some(bytes) = state.files.get(&path).cloned() else {
        drop(stream.write_all(
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        ));
        return;
    };
    let start = range
        .filter(|_| !state.no_ranges && if_range.as_deref() == Some(&state.etag))
        .and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok())
        .map(|start| start - state.early);
    let mut head =
        match start {
            Some(start) if start >= bytes.len() => {
                drop(stream.write_all(
                    b"HTTP/1.1 416 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                ));
                return;
            }
            Some(start) => format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{}/{}\r\n",
                bytes.len() - 1,
                bytes.len()
            ),
            None => "HTTP/1.1 200 OK\r\n".to_owned(),
        };
    let body = &bytes[start.unwrap_or(0)..];
    if !state.no_length {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    head += &format!("ETag: {}\r\nConnection: close\r\n\r\n", state.etag);
    let (cut, stall) = (state.cut, state.stall);
    drop(state);
    let until = cut.or(stall).unwrap_or(body.len()).min(body.len());
    drop(stream.write_all(head.as_bytes()));
    drop(stream.write_all(&body[..until]));
    if stall.is_some() {
        // Until the client closes the connection.
        drop(reader.read_line(&mut String::new()));
    }
}

/// An archive with a browser that prints its version, and additional entries.
pub(crate) fn browser_zip(version: &str, padding: usize, more: impl FnOnce(&mut Zip)) -> Vec<u8> {
    let mut zip = Zip::new(Cursor::new(Vec::new()));
    let directory = format!("chrome-{PLATFORM}");
    let script = format!("#!/bin/sh\necho {version}\n");
    file(&mut zip, &format!("{directory}/chrome"), script.as_bytes(), 0o755);
    // Incompressible, so that the archive is as large as its content.
    let mut random = retake_matrix::random::Random::new(1);
    let noise: Vec<u8> = (0..padding).map(|_| random.next_u64() as u8).collect();
    file(&mut zip, &format!("{directory}/resources.pak"), &noise, 0o644);
    more(&mut zip);
    zip.finish().unwrap().into_inner()
}

pub(crate) type Zip = zip::ZipWriter<Cursor<Vec<u8>>>;

pub(crate) fn file(zip: &mut Zip, name: &str, bytes: &[u8], mode: u32) {
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .unix_permissions(mode);
    zip.start_file(name, options).unwrap();
    zip.write_all(bytes).unwrap();
}
