//! Waits for a socket until a deadline or the end of the run.

use std::io::{self, PipeReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Waits for any of the descriptors; a failure is a wake without readiness.
pub(super) fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) {
    let millis = timeout.map_or(-1, |timeout| {
        // Rounded up, so that it neither wakes early nor spins.
        i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
    });
    // SAFETY: the array outlives the call.
    if unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as _, millis) } < 0 {
        for fd in fds {
            fd.revents = 0;
        }
    }
}

/// A non-blocking socket and its run.
#[derive(Clone, Copy)]
pub(super) struct Link<'a> {
    pub(super) stream: &'a TcpStream,
    pub(super) stop: &'a PipeReader,
}

impl Link<'_> {
    fn wait(&self, events: libc::c_short, until: Instant) -> io::Result<()> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut watched = [
                libc::pollfd { fd: self.stop.as_raw_fd(), events: libc::POLLIN, revents: 0 },
                libc::pollfd { fd: self.stream.as_raw_fd(), events, revents: 0 },
            ];
            poll(&mut watched, Some(left));
            match watched {
                [stop, _] if stop.revents != 0 => {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                [_, socket] if socket.revents != 0 => return Ok(()),
                _ if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
                _ => {}
            }
        }
    }

    /// Reads once; 0 bytes is the end.
    pub(super) fn read(&self, buffer: &mut [u8], until: Instant) -> io::Result<usize> {
        loop {
            self.wait(libc::POLLIN, until)?;
            match (&mut &*self.stream).read(buffer) {
                Err(error) if is_passing(&error) => {}
                other => return other,
            }
        }
    }

    /// Reads until the buffer has this many bytes.
    pub(super) fn fill(
        &self,
        buffer: &mut Vec<u8>,
        wanted: usize,
        until: Instant,
    ) -> io::Result<()> {
        while buffer.len() < wanted {
            let mut part = [0; 512];
            match self.read(&mut part, until)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                got => buffer.extend_from_slice(&part[..got]),
            }
        }
        Ok(())
    }

    pub(super) fn write(&self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            self.wait(libc::POLLOUT, until)?;
            match (&mut &*self.stream).write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Closes after an answer, so that the answer arrives although unread data remains.
    pub(super) fn close(&self) {
        let until = Instant::now() + Duration::from_secs(1);
        // The client may be gone.
        _ = self.stream.shutdown(Shutdown::Write);
        let mut part = [0; 4096];
        for _ in 0..64 {
            match self.read(&mut part, until) {
                Ok(got) if got > 0 => {}
                _ => return,
            }
        }
    }
}

/// Whether a retry may succeed.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
