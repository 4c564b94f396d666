//! Relays bytes in both directions until both sides have ended, the connection is idle for too
//! long, or the run is over.

use std::io::{self, PipeReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::body::BodyFrame;
use super::head;
use super::link::{is_passing, poll};
use super::log::Traffic;
use super::server_name::{Hello, hello};

/// Which of the client's bytes go to the server.
pub(super) enum Up<'a> {
    Everything,
    /// The body of one request.
    Body(BodyFrame),
    /// Everything, if the server name at the beginning is allowed.
    Named {
        held: Vec<u8>,
        allowed: &'a dyn Fn(&str) -> bool,
    },
}

/// Which of the server's bytes go to the client.
pub(super) enum Down {
    Everything,
    /// The answer to one request, after which the connection ends.
    Answer {
        held: Vec<u8>,
        /// Whether the request asked for another protocol.
        upgrade: bool,
    },
    /// The connection uses another protocol now.
    Upgraded,
}

/// How a connection ended early.
#[derive(Debug)]
pub(super) enum Broken {
    /// Either side is gone, the run is over, or the connection was idle for too long.
    Ended,
    /// The client violated the framing of its request.
    Malformed,
    /// The client named this host inside the connection.
    OtherName(String),
}

pub(super) struct Ends<'a> {
    pub(super) client: &'a TcpStream,
    pub(super) server: &'a TcpStream,
    pub(super) stop: &'a PipeReader,
    pub(super) traffic: &'a Traffic,
    pub(super) half_closed: Duration,
    /// How long the connection may be idle at present.
    pub(super) patience: &'a dyn Fn() -> Option<Duration>,
}

/// One direction.
#[derive(Default)]
struct Flow {
    waiting: Vec<u8>,
    sent: usize,
    /// The source has ended.
    ended: bool,
    /// The destination was told.
    told: bool,
}

/// How often an idle connection checks whether others need its place.
const LOOK: Duration = Duration::from_secs(5);
const PART: usize = 16 << 10;

impl Flow {
    fn is_empty(&self) -> bool {
        self.sent == self.waiting.len()
    }

    /// Sends what fits, and returns its length.
    fn send(&mut self, mut to: &TcpStream) -> io::Result<usize> {
        // After a shutdown not even an empty send is allowed.
        if self.is_empty() {
            return Ok(0);
        }
        match to.write(&self.waiting[self.sent..]) {
            Ok(sent) => {
                self.sent += sent;
                if self.is_empty() {
                    self.waiting.clear();
                    self.sent = 0;
                }
                Ok(sent)
            }
            Err(error) if is_passing(&error) => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn tell_end(&mut self, to: &TcpStream) {
        if self.ended && self.is_empty() && !self.told {
            // A closed peer need not be told.
            _ = to.shutdown(Shutdown::Write);
            self.told = true;
        }
    }
}

impl Up<'_> {
    fn is_done(&self) -> bool {
        matches!(self, Self::Body(frame) if frame.is_done())
    }

    pub(super) fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Broken> {
        match self {
            Self::Everything => out.extend_from_slice(bytes),
            Self::Body(frame) => frame.pass(bytes, out).map_err(|_| Broken::Malformed)?,
            Self::Named { held, allowed } => {
                held.extend_from_slice(bytes);
                match hello(held) {
                    Hello::More => return Ok(()),
                    Hello::Named(name) if !allowed(&name) => return Err(Broken::OtherName(name)),
                    Hello::Named(_) | Hello::Unnamed => {}
                }
                out.append(held);
                *self = Self::Everything;
            }
        }
        Ok(())
    }

    /// The client has ended: held-back bytes were not the beginning of something longer.
    fn end(&mut self, out: &mut Vec<u8>) {
        if let Self::Named { held, .. } = self {
            out.append(held);
        }
    }
}

impl Down {
    pub(super) fn answer(upgrade: bool) -> Self {
        Self::Answer { held: Vec::new(), upgrade }
    }

    fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let Self::Answer { held, upgrade } = self else {
            out.extend_from_slice(bytes);
            return;
        };
        held.extend_from_slice(bytes);
        while let Some(end) = head::end(held) {
            let rest = held.split_off(end);
            let text = String::from_utf8_lossy(held).into_owned();
            let status = text.split(' ').nth(1).unwrap_or_default();
            match status {
                "101" if *upgrade => {
                    out.append(held);
                    out.extend(rest);
                    *self = Self::Upgraded;
                    return;
                }
                // Before the answer, not the answer.
                _ if status.starts_with('1') && text.starts_with("HTTP/1.") => out.append(held),
                _ if text.starts_with("HTTP/1.") => {
                    closing(held, out);
                    out.extend(rest);
                    *self = Self::Everything;
                    return;
                }
                _ => {
                    out.append(held);
                    out.extend(rest);
                    *self = Self::Everything;
                    return;
                }
            }
            *held = rest;
        }
        if held.len() > head::LONGEST {
            self.end(out);
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if let Self::Answer { held, .. } = self {
            out.append(held);
            *self = Self::Everything;
        }
    }
}

/// The head of an answer, with `Connection: close`.
fn closing(head: &[u8], out: &mut Vec<u8>) {
    let mut rest = &head[..head.len() - 2];
    while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, more) = rest.split_at(at + 1);
        rest = more;
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        let own = ["connection", "keep-alive", "proxy-connection"];
        if !own.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes())) {
            out.extend_from_slice(line);
        }
    }
    out.extend_from_slice(b"Connection: close\r\n\r\n");
}

/// Relays bytes until the end. `first` goes to the server before anything else.
pub(super) fn relay(
    ends: &Ends<'_>,
    first: Vec<u8>,
    mut up: Up<'_>,
    mut down: Down,
) -> Result<(), Broken> {
    let mut to_server = Flow { waiting: first, ..Flow::default() };
    let mut to_client = Flow::default();
    let (mut hung_up, mut last) = (false, Instant::now());
    let mut buffer = vec![0; PART];
    loop {
        if matches!(down, Down::Upgraded) && up.is_done() {
            up = Up::Everything;
        }
        let mut watched = watch(ends, (&to_server, &to_client), up.is_done(), hung_up);
        let allowed = match to_server.ended || to_client.ended || hung_up {
            true => Some(ends.half_closed),
            false => (ends.patience)(),
        };
        if allowed.is_some_and(|allowed| last.elapsed() >= allowed) {
            return Err(Broken::Ended);
        }
        poll(&mut watched, Some(LOOK));
        let [stop, client, server] = watched;
        if stop.revents != 0 {
            return Err(Broken::Ended);
        }
        if client.revents != 0 || server.revents != 0 {
            last = Instant::now();
        }
        let gone = libc::POLLERR | libc::POLLHUP;
        if up.is_done() {
            hung_up |= client.revents & libc::POLLRDHUP != 0;
            if client.revents & gone != 0 {
                return Err(Broken::Ended);
            }
        } else if client.events & libc::POLLIN != 0 && client.revents & (libc::POLLIN | gone) != 0 {
            match read(ends.client, &mut buffer)? {
                Some(0) => {
                    up.end(&mut to_server.waiting);
                    to_server.ended = true;
                }
                Some(got) => up.pass(&buffer[..got], &mut to_server.waiting)?,
                None => {}
            }
        }
        if server.events & libc::POLLIN != 0 && server.revents & (libc::POLLIN | gone) != 0 {
            match read(ends.server, &mut buffer)? {
                Some(0) => {
                    down.end(&mut to_client.waiting);
                    to_client.ended = true;
                }
                Some(got) => down.pass(&buffer[..got], &mut to_client.waiting),
                None => {}
            }
        }
        let sent = to_server.send(ends.server).map_err(|_| Broken::Ended)?;
        Traffic::add(&ends.traffic.sent, sent);
        let received = to_client.send(ends.client).map_err(|_| Broken::Ended)?;
        Traffic::add(&ends.traffic.received, received);
        to_server.tell_end(ends.server);
        to_client.tell_end(ends.client);
        if to_client.told && (to_server.told || up.is_done()) {
            return Ok(());
        }
    }
}

/// What to poll: each side is read only when its earlier bytes are sent.
fn watch(
    ends: &Ends<'_>,
    (to_server, to_client): (&Flow, &Flow),
    done: bool,
    hung_up: bool,
) -> [libc::pollfd; 3] {
    let side = |socket: &TcpStream, from: &Flow, to: &Flow, read: bool, hang_up: bool| {
        let mut events = 0;
        if read && from.is_empty() && !from.ended {
            events |= libc::POLLIN;
        }
        if !to.is_empty() {
            events |= libc::POLLOUT;
        }
        if hang_up {
            events |= libc::POLLRDHUP;
        }
        // A closed peer that is not needed would wake the poll forever.
        let fd = if events == 0 { -1 } else { socket.as_raw_fd() };
        libc::pollfd { fd, events, revents: 0 }
    };
    [
        libc::pollfd { fd: ends.stop.as_raw_fd(), events: libc::POLLIN, revents: 0 },
        side(ends.client, to_server, to_client, !done, done && !hung_up),
        side(ends.server, to_client, to_server, true, false),
    ]
}

fn read(mut from: &TcpStream, buffer: &mut [u8]) -> Result<Option<usize>, Broken> {
    match from.read(buffer) {
        Ok(got) => Ok(Some(got)),
        Err(error) if is_passing(&error) => Ok(None),
        Err(_) => Err(Broken::Ended),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(parts: &[&str], upgrade: bool) -> (String, Down) {
        let (mut down, mut out) = (Down::answer(upgrade), Vec::new());
        for part in parts {
            down.pass(part.as_bytes(), &mut out);
        }
        (String::from_utf8(out).expect("text"), down)
    }

    #[test]
    fn the_proxy_marks_the_last_answer_of_a_connection() {
        let (text, down) = answered(
            &[
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nConn",
                "ection: keep-alive\r\nA: b\r\n\r\nbody",
            ],
            false,
        );
        assert_eq!(
            text,
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nA: b\r\nConnection: close\r\n\r\nbody"
        );
        assert!(matches!(down, Down::Everything));
    }

    #[test]
    fn only_a_server_that_agrees_changes_the_protocol() {
        let switch = "HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nx";
        let (text, down) = answered(&[switch], true);
        assert_eq!(text, switch);
        assert!(matches!(down, Down::Upgraded));
        let (_, down) = answered(&[switch], false);
        assert!(!matches!(down, Down::Upgraded));
    }
}
