//! HTTP downloads: a short text, or a long file that can be resumed.
//!
//! A separate thread reads the connection, so that an interrupt takes effect while a server is
//! silent. An abandoned thread ends with its connection or the program.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use ureq::tls::{RootCerts, TlsConfig};

use super::{BrowserError, Progress, Report};

/// The index is a few megabytes.
const LONGEST_TEXT: u64 = 256 << 20;
/// How long a server may be silent.
const SILENCE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(super) struct Client {
    agent: ureq::Agent,
}

impl Client {
    pub(super) fn new() -> Self {
        // Uses the system's certificates, or those of $SSL_CERT_FILE and $SSL_CERT_DIR, for a
        // company's proxy with its own authority.
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let config = ureq::Agent::config_builder()
            .tls_config(tls)
            .timeout_connect(Some(Duration::from_secs(30)))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .http_status_as_error(false)
            .user_agent(concat!("retake/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { agent: config.into() }
    }

    fn get(
        &self,
        url: &str,
        headers: &[(&str, String)],
    ) -> Result<ureq::http::Response<ureq::Body>, BrowserError> {
        let mut request = self.agent.get(url);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let sent = if is_loopback(url) {
            // No proxy reaches a loopback address of this machine.
            request.config().proxy(None).build().call()
        } else {
            request.call()
        };
        sent.map_err(|error| unreachable_url(url, &error))
    }
}

fn unreachable_url(url: &str, error: &dyn std::error::Error) -> BrowserError {
    let mut why = error.to_string();
    if why.contains("UnknownIssuer") {
        why += "; if it is a proxy's or a mirror's own, name its authority in SSL_CERT_FILE";
    }
    BrowserError::Unreachable { url: url.to_owned(), why }
}

fn is_loopback(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = rest.split(['/', '?']).next().unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name == "localhost" || name == "[::1]" || name.starts_with("127.")
}

/// A text, read in a separate thread; `interrupted` is polled while the server is silent.
pub(super) fn get_text(url: &str, interrupted: fn() -> bool) -> Result<String, BrowserError> {
    let messages = read_in_thread(Client::new(), url.to_owned(), Vec::new());
    let mut text = Vec::new();
    loop {
        match messages.recv_timeout(TICK) {
            Ok(Message::Head { status: 200, .. }) => {}
            Ok(Message::Head { status, .. }) => {
                return Err(BrowserError::Status { url: url.to_owned(), status });
            }
            Ok(Message::Data(bytes)) => text.extend(bytes),
            Ok(Message::End) => {
                return String::from_utf8(text).map_err(|error| unreachable_url(url, &error));
            }
            Ok(Message::Failed(why)) => {
                return Err(BrowserError::Unreachable { url: url.to_owned(), why });
            }
            Err(RecvTimeoutError::Disconnected) => {
                let why = "it was cancelled".to_owned();
                return Err(BrowserError::Unreachable { url: url.to_owned(), why });
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if interrupted() {
            return Err(BrowserError::Interrupted { what: url.to_owned() });
        }
        if text.len() as u64 > LONGEST_TEXT {
            let why = "it is longer than any index".to_owned();
            return Err(BrowserError::BadIndex { url: url.to_owned(), why });
        }
    }
}

/// The validator that must match to resume a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Validator {
    url: String,
    etag: String,
}

enum Message {
    /// Status, length of the whole file, offset of the body in it, and its validator.
    Head {
        status: u16,
        total: Option<u64>,
        start: u64,
        etag: Option<String>,
    },
    Data(Vec<u8>),
    End,
    Failed(String),
}

/// The result of a download that did not fail.
pub(super) enum Fetched {
    Complete,
    Missing,
}

/// A partial download: the bytes so far and, next to them, their origin.
pub(super) struct Part {
    path: PathBuf,
    validator: PathBuf,
}

impl Part {
    pub(super) fn new(path: PathBuf) -> Self {
        let mut validator = path.clone().into_os_string();
        validator.push(".from");
        Self { path, validator: validator.into() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn remove(&self) {
        // A missing file is fine.
        drop(std::fs::remove_file(&self.path));
        drop(std::fs::remove_file(&self.validator));
    }

    fn io(&self, error: io::Error) -> BrowserError {
        BrowserError::Io { path: self.path.clone(), error }
    }

    /// The length of a partial download of the same file, and its validator.
    fn begun(&self, url: &str) -> Option<(u64, String)> {
        let text = std::fs::read_to_string(&self.validator).ok()?;
        let known: Validator = serde_json::from_str(&text).ok()?;
        let length = std::fs::metadata(&self.path).ok()?.len();
        (known.url == url && length > 0).then_some((length, known.etag))
    }

    /// Downloads the file, resuming if the server still has the same one.
    pub(super) fn fetch(
        &self,
        client: &Client,
        url: &str,
        version: &str,
        report: Report<'_>,
    ) -> Result<Fetched, BrowserError> {
        let begun = self.begun(url);
        let mut headers = Vec::new();
        if let Some((length, etag)) = &begun {
            headers.push(("Range", format!("bytes={length}-")));
            headers.push(("If-Range", etag.clone()));
        }
        let messages = read_in_thread(client.clone(), url.to_owned(), headers);
        let mut file: Option<File> = None;
        let (mut done, mut total) = (0, None);
        loop {
            let message = match messages.recv_timeout(TICK) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => {
                    let progress = Progress::Downloading { done, total };
                    if report(progress) == ControlFlow::Break(()) {
                        return Err(BrowserError::Interrupted { what: version.to_owned() });
                    }
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => Message::Failed("it was cancelled".into()),
            };
            match message {
                Message::Head { status: 404, .. } => return Ok(Fetched::Missing),
                Message::Head { status: 416, .. } if begun.is_some() => {
                    // The partial file is longer than the whole: start over.
                    self.remove();
                    return self.fetch(client, url, version, report);
                }
                Message::Head { status, total: length, start, etag } => {
                    // A partial response is valid only if requested.
                    if status != 200 && (status != 206 || begun.is_none()) {
                        return Err(BrowserError::Status { url: url.to_owned(), status });
                    }
                    let resumes = status == 206 && begun.as_ref().is_some_and(|b| b.0 == start);
                    if status == 206 && !resumes {
                        self.remove();
                        return self.fetch(client, url, version, report);
                    }
                    file = Some(self.open(url, resumes, etag)?);
                    done = if resumes { start } else { 0 };
                    total = length;
                }
                Message::Data(bytes) => {
                    if let Some(file) = &mut file {
                        file.write_all(&bytes).map_err(|error| self.io(error))?;
                    }
                    done += bytes.len() as u64;
                    if report(Progress::Downloading { done, total }) == ControlFlow::Break(()) {
                        return Err(BrowserError::Interrupted { what: version.to_owned() });
                    }
                }
                Message::End if total.is_none_or(|total| total == done) => {
                    return Ok(Fetched::Complete);
                }
                Message::End => {
                    let why = "the server closed the connection".to_owned();
                    return Err(BrowserError::BrokenOff { url: url.to_owned(), got: done, why });
                }
                Message::Failed(why) if file.is_none() => {
                    return Err(BrowserError::Unreachable { url: url.to_owned(), why });
                }
                Message::Failed(why) => {
                    return Err(BrowserError::BrokenOff { url: url.to_owned(), got: done, why });
                }
            }
        }
    }

    /// The validator is written before the first byte, so that bytes without one are never used.
    fn open(&self, url: &str, resumes: bool, etag: Option<String>) -> Result<File, BrowserError> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(!resumes);
        if resumes {
            let mut file = options.open(&self.path).map_err(|error| self.io(error))?;
            file.seek(SeekFrom::End(0)).map_err(|error| self.io(error))?;
            return Ok(file);
        }
        self.remove();
        // A weak validator does not promise identical bytes.
        if let Some(etag) = etag.filter(|etag| !etag.starts_with("W/")) {
            let validator = Validator { url: url.to_owned(), etag };
            let text = serde_json::to_string(&validator).unwrap_or_default();
            std::fs::write(&self.validator, text).map_err(|error| self.io(error))?;
        }
        options.open(&self.path).map_err(|error| self.io(error))
    }
}

fn read_in_thread(
    client: Client,
    url: String,
    headers: Vec<(&'static str, String)>,
) -> mpsc::Receiver<Message> {
    // A small buffer: a slow disk slows the server down instead of filling memory.
    let (sender, receiver) = mpsc::sync_channel(8);
    let failed_sender = sender.clone();
    let started = std::thread::Builder::new().name("retake-download".to_owned()).spawn(move || {
        let response = match client.get(&url, &headers) {
            Ok(response) => response,
            Err(BrowserError::Unreachable { why, .. }) => {
                drop(sender.send(Message::Failed(why))); // the receiver may be gone
                return;
            }
            Err(error) => {
                drop(sender.send(Message::Failed(error.to_string())));
                return;
            }
        };
        let header = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok());
        let length = header("content-length").and_then(|v| v.parse::<u64>().ok());
        // bytes 100-199/200
        let range = header("content-range").and_then(|text| {
            let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
            Some((range.split_once('-')?.0.parse::<u64>().ok()?, total.parse::<u64>().ok()))
        });
        let status = response.status().as_u16();
        let etag = header("etag").map(str::to_owned);
        let (start, total) = match range {
            Some((start, total)) => (start, total.or(length.map(|length| start + length))),
            None => (0, length),
        };
        if sender.send(Message::Head { status, total, start, etag }).is_err() {
            return;
        }
        let mut reader = response.into_body().into_with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; 256 << 10];
        loop {
            let message = match reader.read(&mut buffer) {
                Ok(0) => Message::End,
                Ok(count) => Message::Data(buffer[..count].to_vec()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Message::Failed(error.to_string()),
            };
            let last = !matches!(message, Message::Data(_));
            if sender.send(message).is_err() || last {
                return;
            }
        }
    });
    if let Err(error) = started {
        drop(failed_sender.send(Message::Failed(error.to_string())));
    }
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_known_by_its_names() {
        for url in
            ["http://127.0.0.1:8080/x", "http://localhost/x", "http://[::1]:1/x", "http://127.1"]
        {
            assert!(is_loopback(url), "{url}");
        }
        for url in ["https://example.org/127.0.0.1", "http://localhost.example.org/"] {
            assert!(!is_loopback(url), "{url}");
        }
    }
}
