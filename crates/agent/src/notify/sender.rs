//! Sends notifications from a separate thread. The loop never waits for it and never fails because
//! of it; at the end it gets a short time to finish.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Events, Notification, NotifyFormat};

/// Maximum queued notifications; more are dropped, and counted.
const WAITING: usize = 256;
/// Attempts per notification.
const TRIES: u32 = 3;

/// The results of sending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub sent: u64,
    pub failed: u64,
    /// Dropped because too many were queued, or because time ran out.
    pub dropped: u64,
    /// The last failure, without the URL, which may contain a secret.
    pub last_error: Option<String>,
}

/// The loop's handle.
#[derive(Debug)]
pub struct Sender {
    queue: Option<SyncSender<Notification>>,
    done: Receiver<()>,
    summary: Arc<Mutex<Summary>>,
    events: Events,
    queued: u64,
}

impl Sender {
    /// `timeout` is for one attempt; `pause` between attempts, doubling.
    pub fn start(
        url: &str,
        format: NotifyFormat,
        events: Events,
        timeout: Duration,
        pause: Duration,
    ) -> std::io::Result<Self> {
        let (queue, waiting) = mpsc::sync_channel::<Notification>(WAITING);
        let (finished, done) = mpsc::channel();
        let summary = Arc::new(Mutex::new(Summary::default()));
        let shared = Arc::clone(&summary);
        let url = url.to_owned();
        std::thread::Builder::new().name("notify".to_owned()).spawn(move || {
            let agent = ureq::Agent::new_with_config(
                ureq::Agent::config_builder()
                    .timeout_global(Some(timeout))
                    // A redirect could send details of the task to any server.
                    .max_redirects(0)
                    .max_redirects_will_error(false)
                    .user_agent(concat!("retake/", env!("CARGO_PKG_VERSION")))
                    .build(),
            );
            for notification in waiting {
                let outcome = send(&agent, &url, format, &notification, pause);
                if let Ok(mut summary) = shared.lock() {
                    match outcome {
                        Ok(()) => summary.sent += 1,
                        Err(error) => {
                            summary.failed += 1;
                            summary.last_error = Some(error);
                        }
                    }
                }
            }
            // The receiver may be gone.
            let _ = finished.send(());
        })?;
        Ok(Self { queue: Some(queue), done, summary, events, queued: 0 })
    }

    /// Queues a notification if its event is selected. Returns at once.
    pub fn notify(&mut self, notification: Notification) {
        if !self.events.wants(notification.event) {
            return;
        }
        let Some(queue) = &self.queue else { return };
        match queue.try_send(notification) {
            Ok(()) => self.queued += 1,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                if let Ok(mut summary) = self.summary.lock() {
                    summary.dropped += 1;
                }
            }
        }
    }

    /// The results so far.
    pub fn summary(&self) -> Summary {
        self.summary.lock().map(|summary| summary.clone()).unwrap_or_default()
    }

    /// Waits for queued notifications, at most this long. The thread exits later.
    pub fn finish(mut self, most: Duration) -> Summary {
        self.queue = None;
        let until = Instant::now() + most;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.done.recv_timeout(left) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if left.is_zero() => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        let mut summary = self.summary();
        summary.dropped += self.queued.saturating_sub(summary.sent + summary.failed);
        summary
    }
}

fn send(
    agent: &ureq::Agent,
    url: &str,
    format: NotifyFormat,
    notification: &Notification,
    pause: Duration,
) -> Result<(), String> {
    let mut wait = pause;
    for attempt in 1.. {
        let answered = match format {
            NotifyFormat::Ntfy => {
                let mut request = agent
                    .post(url)
                    .header("Content-Type", "text/plain; charset=utf-8")
                    .header("Title", header(&notification.title))
                    .header("Tags", header(&notification.tags.join(",")));
                if let Some(priority) = notification.priority {
                    request = request.header("Priority", priority.as_str());
                }
                request.send(notification.body.as_str())
            }
            NotifyFormat::Json => agent
                .post(url)
                .header("Content-Type", "application/json")
                .send(notification.to_json().as_str()),
        };
        let error = match answered {
            Ok(answer) if answer.status().is_redirection() => {
                return Err(format!("the server answered {}", answer.status().as_u16()));
            }
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let again = match &error {
            ureq::Error::StatusCode(status) => crate::adapters::transient_status(*status),
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => false,
            _ => true,
        };
        if attempt >= TRIES || !again {
            return Err(reason(&error));
        }
        std::thread::sleep(wait);
        wait *= 2;
    }
    unreachable!("the last attempt returns")
}

fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::StatusCode(status) => format!("the server answered {status}"),
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => "the address is not valid".to_owned(),
        other => other.to_string(),
    }
}

/// A header contains one line of ASCII. ntfy decodes RFC 2047 words for anything else.
fn header(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.is_ascii() {
        return line;
    }
    let mut encoded = String::from("=?UTF-8?Q?");
    for byte in line.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("={byte:02X}")),
        }
    }
    encoded + "?="
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A server with these answers, one per connection, that reports the requests.
    fn server(answers: Vec<&'static str>) -> (String, Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/topic", listener.local_addr().unwrap());
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = String::new();
                let mut buffer = [0; 4096];
                while !request.contains("\r\n\r\n") || body_is_short(&request) {
                    let length = stream.read(&mut buffer).unwrap();
                    if length == 0 {
                        break;
                    }
                    request.push_str(&String::from_utf8_lossy(&buffer[..length]));
                }
                let _ = tell.send(request);
                if answer == "hang" {
                    std::mem::forget(stream);
                    continue;
                }
                let answer =
                    format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        (url, told)
    }

    fn body_is_short(request: &str) -> bool {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        let length = head.lines().find_map(|line| {
            line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok()
        });
        length.is_some_and(|length: usize| body.len() < length)
    }

    const SHORT: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn posts_what_ntfy_reads_and_tries_again() {
        let (url, told) = server(vec!["503 Busy", "200 OK"]);
        let mut sender =
            Sender::start(&url, NotifyFormat::Ntfy, Events::default(), LONG, SHORT).unwrap();
        sender.notify(Notification::error("wörk", 2, "it broke"));
        let summary = sender.finish(LONG);
        assert_eq!((summary.sent, summary.failed, summary.dropped), (1, 0, 0));
        let request = told.iter().last().unwrap().to_ascii_lowercase();
        for part in [
            "post /topic http/1.1",
            "content-type: text/plain",
            "title: execution error",
            "priority: urgent",
            "tags: retake,error",
            "execution error\n\nworkspace: wörk\niteration: 2\nerror: it broke",
        ] {
            assert!(request.contains(part), "{part} in {request}");
        }
    }

    #[test]
    fn refusals_and_silence_do_not_hold_the_loop() {
        let (url, _told) = server(vec!["403 Forbidden"]);
        let mut sender =
            Sender::start(&url, NotifyFormat::Ntfy, Events::default(), LONG, SHORT).unwrap();
        sender.notify(Notification::setup_complete("w"));
        let summary = sender.finish(LONG);
        assert_eq!(
            (summary.failed, summary.last_error.as_deref()),
            (1, Some("the server answered 403"))
        );

        let (url, told) = server(vec!["hang", "hang"]);
        let mut sender =
            Sender::start(&url, NotifyFormat::Ntfy, Events::default(), LONG, SHORT).unwrap();
        for _ in 0..WAITING + 10 {
            sender.notify(Notification::setup_complete("w"));
        }
        told.recv().unwrap();
        let summary = sender.finish(SHORT);
        assert_eq!((summary.sent, summary.dropped), (0, WAITING as u64 + 10));

        let mut sender = Sender::start(
            "http://127.0.0.1:1/",
            NotifyFormat::Ntfy,
            Events::default(),
            LONG,
            SHORT,
        )
        .unwrap();
        sender.notify(Notification::setup_complete("w"));
        assert_eq!(sender.finish(LONG).failed, 1);
    }

    #[test]
    fn unwanted_events_are_not_sent() {
        let (url, told) = server(vec!["200 OK"]);
        let events = Events::parse(["error"]).unwrap();
        let mut sender = Sender::start(&url, NotifyFormat::Ntfy, events, LONG, SHORT).unwrap();
        sender.notify(Notification::setup_complete("w"));
        sender.notify(Notification::error("w", 1, "x"));
        assert_eq!(sender.finish(LONG).sent, 1);
        assert!(told.recv().unwrap().contains("Execution Error"));
    }

    #[test]
    fn headers_are_one_line_of_ascii() {
        assert_eq!(header("a\r\nInjected: b"), "a  Injected: b");
        assert_eq!(header("é x"), "=?UTF-8?Q?=C3=A9=20x?=");
    }
}
