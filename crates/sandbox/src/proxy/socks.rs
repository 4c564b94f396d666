//! SOCKS version 5 requests to the proxy (RFC 1928): connections by name or address.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use retake_types::NetworkRefusal;

use super::connection::Connection;
use super::dial::{ANSWER, Declined, Purpose};
use super::head::Authority;

pub(super) const VERSION: u8 = 5;

const NO_LOGIN: u8 = 0;
const LOGIN: u8 = 2;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;

const ADDRESS_4: u8 = 1;
const NAME: u8 = 3;
const ADDRESS_6: u8 = 4;

// Answer codes.
const GRANTED: u8 = 0;
const FAILURE: u8 = 1;
const NOT_ALLOWED: u8 = 2;
const UNREACHABLE: u8 = 4;
const REFUSED: u8 = 5;
const TIMED_OUT: u8 = 6;
const NO_COMMAND: u8 = 7;
const NO_ADDRESS: u8 = 8;

/// Why a request ended early.
enum Stopped {
    /// The connection ended.
    Ended,
    /// The request is answered with this.
    Answered(u8, NetworkRefusal),
}

impl From<io::Error> for Stopped {
    fn from(_: io::Error) -> Self {
        Self::Ended
    }
}

/// The client's bytes, read only as far as needed.
struct Incoming<'a> {
    connection: &'a Connection<'a>,
    bytes: Vec<u8>,
    until: Instant,
}

impl Incoming<'_> {
    fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        self.connection.link().fill(&mut self.bytes, count, self.until)?;
        let rest = self.bytes.split_off(count);
        Ok(std::mem::replace(&mut self.bytes, rest))
    }

    fn byte(&mut self) -> io::Result<u8> {
        self.take(1).map(|one| one[0])
    }

    /// Bytes with a length prefix.
    fn counted(&mut self) -> io::Result<Vec<u8>> {
        let count = self.byte()?;
        self.take(count.into())
    }

    fn answer(&self, bytes: &[u8]) -> io::Result<()> {
        self.connection.link().write(bytes, self.until)
    }
}

pub(super) fn serve(connection: &Connection<'_>, begun: Vec<u8>, until: Instant) {
    let mut incoming = Incoming { connection, bytes: begun, until };
    let authority = match agree(&mut incoming).and_then(|()| request(&mut incoming)) {
        Ok(authority) => authority,
        Err(Stopped::Ended) => return,
        Err(Stopped::Answered(code, refusal)) => {
            connection.refuse_unnamed(refusal);
            return reply(connection, code);
        }
    };
    match connection.dial(&authority, Purpose::Tunnel) {
        Ok(dialed) => {
            let granted = answer_of(GRANTED);
            if connection.link().write(&granted, Instant::now() + ANSWER).is_ok() {
                connection.tunnel_to(&authority, &dialed, incoming.bytes);
            }
        }
        Err(declined) => reply(
            connection,
            match declined {
                Declined::Refused(_) => NOT_ALLOWED,
                Declined::Failed(io::ErrorKind::ConnectionRefused) => REFUSED,
                Declined::Failed(io::ErrorKind::TimedOut) => TIMED_OUT,
                Declined::Failed(_) => UNREACHABLE,
            },
        ),
    }
}

/// Agrees on an authentication method: none, or any.
fn agree(incoming: &mut Incoming<'_>) -> Result<(), Stopped> {
    incoming.byte()?;
    let methods = incoming.counted()?;
    if methods.contains(&NO_LOGIN) {
        incoming.answer(&[VERSION, NO_LOGIN])?;
    } else if methods.contains(&LOGIN) {
        incoming.answer(&[VERSION, LOGIN])?;
        incoming.byte()?;
        incoming.counted()?;
        incoming.counted()?;
        incoming.answer(&[1, 0])?;
    } else {
        incoming.answer(&[VERSION, NO_METHOD])?;
        return Err(Stopped::Ended);
    }
    Ok(())
}

fn request(incoming: &mut Incoming<'_>) -> Result<Authority, Stopped> {
    let start = incoming.take(4)?;
    if start[0] != VERSION || start[2] != 0 {
        return Err(Stopped::Answered(FAILURE, NetworkRefusal::Malformed));
    }
    let host = match start[3] {
        ADDRESS_4 => {
            let bytes: [u8; 4] = incoming.take(4)?.try_into().map_err(|_| Stopped::Ended)?;
            Some(Ipv4Addr::from(bytes).to_string())
        }
        ADDRESS_6 => {
            let bytes: [u8; 16] = incoming.take(16)?.try_into().map_err(|_| Stopped::Ended)?;
            Some(Ipv6Addr::from(bytes).to_string())
        }
        NAME => {
            let name = incoming.counted()?;
            String::from_utf8(name).ok()
        }
        _ => return Err(Stopped::Answered(NO_ADDRESS, NetworkRefusal::Malformed)),
    };
    let port = incoming.take(2)?;
    let port = u16::from_be_bytes([port[0], port[1]]);
    if start[1] != CONNECT {
        return Err(Stopped::Answered(NO_COMMAND, NetworkRefusal::Unsupported));
    }
    host.filter(|_| port > 0)
        .and_then(|host| Authority::new(&host, port))
        .ok_or(Stopped::Answered(FAILURE, NetworkRefusal::Malformed))
}

fn answer_of(code: u8) -> [u8; 10] {
    [VERSION, code, 0, ADDRESS_4, 0, 0, 0, 0, 0, 0]
}

fn reply(connection: &Connection<'_>, code: u8) {
    let link = connection.link();
    if link.write(&answer_of(code), Instant::now() + ANSWER).is_ok() {
        link.close();
    }
}
