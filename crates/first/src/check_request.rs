//! The protocol of an orchestrator and its check server, over a socket that only these two
//! hold.
//!
//! The orchestrator sends requests, one at a time, and may cancel the current one. The
//! server first reports whether it can serve at all, and then answers each request with the outcome of the
//! check and everything that the check announced.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

/// Sent once, before the first request.
pub(crate) const READY: u8 = b'R';

/// How a child's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitKind {
    Exited(i32),
    Signaled(i32),
}

/// A frame of the orchestrator: a request.
const REQUEST: u8 = b'Q';
/// A frame of the orchestrator: the current check is not needed any more.
const CANCEL: u8 = b'C';

/// One state to check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckRequest {
    pub(crate) point_id: usize,
    pub(crate) label: String,
    pub(crate) target: usize,
    /// A file with the promises made before the crash.
    pub(crate) acks: PathBuf,
    /// The file for both of the check's output streams.
    pub(crate) log: PathBuf,
    pub(crate) timeout: Duration,
}

/// A frame of the orchestrator.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Check(CheckRequest),
    Cancel,
}

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckReply {
    pub(crate) status: ExitKind,
    pub(crate) timed_out: bool,
    pub(crate) out_of_memory: bool,
    /// The messages of the check, as they came.
    pub(crate) announced: Vec<u8>,
}

impl CheckRequest {
    pub(crate) fn send(&self, mut to: impl Write) -> io::Result<()> {
        let fields: [&[u8]; 6] = [
            &(self.point_id as u64).to_le_bytes(),
            self.label.as_bytes(),
            &(self.target as u64).to_le_bytes(),
            self.acks.as_os_str().as_bytes(),
            self.log.as_os_str().as_bytes(),
            // A timeout of more than 500 years means none.
            &u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX).to_le_bytes(),
        ];
        let mut body = Vec::new();
        for field in fields {
            body.extend_from_slice(&(field.len() as u64).to_le_bytes());
            body.extend_from_slice(field);
        }
        let mut frame = vec![REQUEST];
        frame.extend_from_slice(&(body.len() as u64).to_le_bytes());
        frame.append(&mut body);
        to.write_all(&frame)
    }
}

impl Frame {
    /// Cancels the current check.
    pub(crate) fn cancel(mut to: impl Write) -> io::Result<()> {
        to.write_all(&[CANCEL])
    }

    /// The next frame; `None` when the orchestrator is gone or needs no more checks.
    pub(crate) fn receive(mut from: impl Read) -> io::Result<Option<Self>> {
        let mut kind = [0];
        if from.read(&mut kind)? == 0 {
            return Ok(None);
        }
        if kind == [CANCEL] {
            return Ok(Some(Self::Cancel));
        }
        // In one read: reading each field is a system call.
        let body = bytes(&mut from)?;
        let mut body = &body[..];
        let mut field = || bytes(&mut body);
        let number = |bytes: Vec<u8>| {
            let bytes = bytes.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
            Ok::<_, io::Error>(u64::from_le_bytes(bytes))
        };
        Ok(Some(Self::Check(CheckRequest {
            point_id: number(field()?)? as usize,
            label: String::from_utf8_lossy(&field()?).into_owned(),
            target: number(field()?)? as usize,
            acks: OsString::from_vec(field()?).into(),
            log: OsString::from_vec(field()?).into(),
            timeout: Duration::from_nanos(number(field()?)?),
        })))
    }
}

impl CheckReply {
    pub(crate) fn send(&self, mut to: impl Write) -> io::Result<()> {
        let (kind, number) = match self.status {
            ExitKind::Exited(code) => (0, code),
            ExitKind::Signaled(signal) => (1, signal),
        };
        let mut frame = vec![kind, u8::from(self.timed_out), u8::from(self.out_of_memory)];
        frame.extend_from_slice(&number.to_le_bytes());
        frame.extend_from_slice(&(self.announced.len() as u64).to_le_bytes());
        frame.extend_from_slice(&self.announced);
        to.write_all(&frame)
    }

    pub(crate) fn receive(mut from: impl Read) -> io::Result<Self> {
        let mut head = [0; 7];
        from.read_exact(&mut head)?;
        let [kind, timed_out, out_of_memory, a, b, c, d] = head;
        let number = i32::from_le_bytes([a, b, c, d]);
        let status = match kind {
            0 => ExitKind::Exited(number),
            _ => ExitKind::Signaled(number),
        };
        Ok(Self {
            status,
            timed_out: timed_out != 0,
            out_of_memory: out_of_memory != 0,
            announced: bytes(&mut from)?,
        })
    }
}

fn bytes(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    let mut bytes = Vec::with_capacity(length.min(4096) as usize);
    // A wrong length must not allocate memory for bytes that do not exist.
    if from.take(length).read_to_end(&mut bytes)? as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_replies_arrive_as_they_were_sent() {
        let request = CheckRequest {
            point_id: 7,
            label: "ü\n".into(),
            target: 0,
            acks: "/a b".into(),
            log: OsString::from_vec(b"/\xff".to_vec()).into(),
            timeout: Duration::from_millis(1500),
        };
        let mut sent = Vec::new();
        Frame::cancel(&mut sent).unwrap();
        request.send(&mut sent).unwrap();
        let mut from = &sent[..];
        assert_eq!(Frame::receive(&mut from).unwrap(), Some(Frame::Cancel));
        assert_eq!(Frame::receive(&mut from).unwrap(), Some(Frame::Check(request)));
        assert_eq!(Frame::receive(&mut from).unwrap(), None);
        assert!(Frame::receive(&sent[1..20]).is_err(), "half a request is none");
        for status in [ExitKind::Exited(101), ExitKind::Signaled(9)] {
            let (timed_out, out_of_memory, announced) = (true, false, vec![1, 2]);
            let reply = CheckReply { status, timed_out, out_of_memory, announced };
            let mut sent = Vec::new();
            reply.send(&mut sent).unwrap();
            assert_eq!(CheckReply::receive(&sent[..]).unwrap(), reply);
        }
    }
}
