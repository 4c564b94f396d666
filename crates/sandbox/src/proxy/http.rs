//! HTTP requests to the proxy: tunnels, and single unencrypted requests.

use std::io;
use std::time::Instant;

use retake_types::NetworkRefusal;

use super::body::BodyFrame;
use super::connection::Connection;
use super::dial::{ANSWER, Declined, Purpose};
use super::head::{self, BadHead, Form, Head};
use super::relay::{Broken, Down, Up};

/// Reads the head, connects, and forwards the rest.
pub(super) fn serve(connection: &Connection<'_>, mut begun: Vec<u8>, until: Instant) {
    let end = match receive(connection, &mut begun, until) {
        Ok(end) => end,
        Err(None) => return,
        Err(Some(bad)) => return refuse(connection, bad),
    };
    let rest = begun.split_off(end);
    let head = match Head::parse(&begun) {
        Ok(head) => head,
        Err(bad) => return refuse(connection, bad),
    };
    let purpose = match head.form {
        Form::Connect => Purpose::Tunnel,
        Form::Forward { .. } => Purpose::Request,
    };
    let dialed = match connection.dial(&head.authority, purpose) {
        Ok(dialed) => dialed,
        Err(declined) => return decline(connection, &head.authority.to_string(), &declined),
    };
    match head.form {
        Form::Connect => {
            let until = Instant::now() + ANSWER;
            let established = b"HTTP/1.1 200 Connection established\r\n\r\n";
            if connection.link().write(established, until).is_ok() {
                connection.tunnel_to(&head.authority, &dialed, rest);
            }
        }
        Form::Forward { .. } => {
            let mut first = head.forwarded(dialed.parent.as_deref());
            let mut frame = BodyFrame::new(head.body);
            if frame.pass(&rest, &mut first).is_err() {
                return refuse(connection, BadHead::Malformed);
            }
            let down = Down::answer(head.upgrade.is_some());
            match connection.relay(&dialed, first, Up::Body(frame), down) {
                Err(Broken::Malformed) => refuse(connection, BadHead::Malformed),
                _ => connection.link().close(),
            }
        }
    }
}

/// Reads until the head is complete. `None` if the client is gone.
fn receive(
    connection: &Connection<'_>,
    begun: &mut Vec<u8>,
    until: Instant,
) -> Result<usize, Option<BadHead>> {
    let mut part = [0; 4096];
    loop {
        if let Some(end) = head::end(begun) {
            return Ok(end);
        }
        if begun.len() > head::LONGEST {
            return Err(Some(BadHead::TooLong));
        }
        match connection.link().read(&mut part, until) {
            Ok(0) => return Err(None),
            Ok(got) => begun.extend_from_slice(&part[..got]),
            Err(_) => return Err(None),
        }
    }
}

fn refuse(connection: &Connection<'_>, bad: BadHead) {
    let (status, refusal) = match bad {
        BadHead::TooLong => ("431 Request Header Fields Too Large", NetworkRefusal::Malformed),
        BadHead::Malformed | BadHead::NotForProxy => ("400 Bad Request", NetworkRefusal::Malformed),
        BadHead::Scheme => ("501 Not Implemented", NetworkRefusal::Unsupported),
    };
    connection.refuse_unnamed(refusal);
    answer(connection, status, &refusal.to_string());
}

fn decline(connection: &Connection<'_>, host: &str, declined: &Declined) {
    let (status, why) = match declined {
        Declined::Refused(refusal) => ("403 Forbidden", refusal.to_string()),
        Declined::Failed(io::ErrorKind::TimedOut) => ("504 Gateway Timeout", no_connection()),
        Declined::Failed(_) => ("502 Bad Gateway", no_connection()),
    };
    answer(connection, status, &format!("{host}: {why}"));
}

fn no_connection() -> String {
    "no connection could be made".to_owned()
}

fn answer(connection: &Connection<'_>, status: &str, why: &str) {
    let body = format!("sandbox: {why}\n");
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    let link = connection.link();
    if link.write(text.as_bytes(), Instant::now() + ANSWER).is_ok() {
        link.close();
    }
}
