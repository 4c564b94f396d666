//! Forwards the child's output byte for byte, without ever waiting for its reader.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{FileType, fstat};

use crate::syscalls;

/// The live destination of one stream of the child.
pub(crate) struct OutputRelay<'a> {
    target: BorrowedFd<'a>,
    method: Option<WriteMethod>,
    pending: Vec<u8>,
    sent: usize,
    /// Bytes dropped because the reader was too slow.
    lost: u64,
    /// Why no more can be written.
    error: Option<i32>,
}

/// How to write without blocking, and without changing shared flags.
enum WriteMethod {
    /// A file: writing does not wait for a reader.
    Direct,
    /// A pipe or terminal, reopened so that O_NONBLOCK is not shared.
    Reopened(OwnedFd),
    Socket,
    /// One that cannot be reopened, such as another user's: O_NONBLOCK is set only during each
    /// write.
    Borrowed,
}

pub(crate) enum Passed {
    /// Everything was written.
    All,
    /// Some of it waits for the reader.
    Waiting,
    /// The reader has closed it.
    Closed,
}

impl<'a> OutputRelay<'a> {
    pub(crate) fn new(target: BorrowedFd<'a>) -> Self {
        Self { target, method: None, pending: Vec::new(), sent: 0, lost: 0, error: None }
    }

    /// Writes what the reader accepts now and keeps the rest.
    pub(crate) fn pass(&mut self, bytes: &[u8]) -> Passed {
        debug_assert!(!self.waits(), "more output while the last waits");
        match self.write(bytes) {
            Ok(n) if n == bytes.len() => Passed::All,
            Ok(n) => {
                self.pending.clear();
                self.pending.extend_from_slice(&bytes[n..]);
                self.sent = 0;
                Passed::Waiting
            }
            Err(error) => {
                self.error = error.raw_os_error();
                Passed::Closed
            }
        }
    }

    /// Tries to write the rest.
    pub(crate) fn resume(&mut self) -> Passed {
        let pending = std::mem::take(&mut self.pending);
        let result = self.write(&pending[self.sent..]);
        self.pending = pending;
        match result {
            Ok(n) => {
                self.sent += n;
                if self.waits() { Passed::Waiting } else { Passed::All }
            }
            Err(error) => {
                self.error = error.raw_os_error();
                self.give_up();
                Passed::Closed
            }
        }
    }

    pub(crate) fn waits(&self) -> bool {
        self.sent < self.pending.len()
    }

    /// Drops the rest: the run is over and the reader had enough time.
    pub(crate) fn give_up(&mut self) {
        self.lost += (self.pending.len() - self.sent) as u64;
        self.sent = self.pending.len();
    }

    /// Adds the last output to the rest, without writing it.
    pub(crate) fn hold(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// Counts output as dropped without trying: the run is being ended and earlier output is still
    /// pending.
    pub(crate) fn skip(&mut self, bytes: &[u8]) {
        self.lost += bytes.len() as u64;
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// The error behind a [`Passed::Closed`].
    pub(crate) fn error(&self) -> Option<i32> {
        self.error
    }

    /// The descriptor to poll for writability.
    pub(crate) fn fd(&self) -> RawFd {
        match &self.method {
            Some(WriteMethod::Reopened(fd)) => fd.as_raw_fd(),
            _ => self.target.as_raw_fd(),
        }
    }

    /// Writes until everything is written (then the length) or the reader is slow (then less).
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let target = self.target.as_raw_fd();
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let method = self.method.get_or_insert_with(|| WriteMethod::to(self.target));
            let n = match method {
                // SAFETY: each writes from a live slice.
                WriteMethod::Direct => unsafe {
                    libc::write(target, rest.as_ptr().cast(), rest.len())
                },
                // SAFETY: as above.
                WriteMethod::Reopened(fd) => unsafe {
                    libc::write(fd.as_raw_fd(), rest.as_ptr().cast(), rest.len())
                },
                // SAFETY: as above.
                WriteMethod::Socket => unsafe {
                    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                    libc::send(target, rest.as_ptr().cast(), rest.len(), flags)
                },
                // SAFETY: as above; the flags are put back as they were.
                WriteMethod::Borrowed => unsafe {
                    let flags = libc::fcntl(target, libc::F_GETFL);
                    libc::fcntl(target, libc::F_SETFL, flags | libc::O_NONBLOCK);
                    let n = libc::write(target, rest.as_ptr().cast(), rest.len());
                    let errno = syscalls::errno();
                    libc::fcntl(target, libc::F_SETFL, flags);
                    *libc::__errno_location() = errno;
                    n
                },
            };
            if n >= 0 {
                done += n as usize;
                continue;
            }
            match syscalls::errno() {
                // The signal may be SIGTTOU (`stty tostop`): the caller checks for requests before
                // it tries again.
                libc::EINTR | libc::EAGAIN => return Ok(done),
                code => return Err(io::Error::from_raw_os_error(code)),
            }
        }
        Ok(done)
    }
}

impl WriteMethod {
    fn to(target: BorrowedFd<'_>) -> Self {
        // Unknown targets are written directly.
        let kind =
            fstat(target).map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode));
        match kind {
            FileType::Socket => Self::Socket,
            FileType::Fifo => Self::reopened(target).unwrap_or(Self::Borrowed),
            FileType::CharacterDevice if target.is_terminal() => {
                Self::reopened(target).unwrap_or(Self::Borrowed)
            }
            _ => Self::Direct,
        }
    }

    fn reopened(target: BorrowedFd<'_>) -> Option<Self> {
        let path = format!("/proc/self/fd/{}", target.as_raw_fd());
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = File::options().write(true).custom_flags(flags).open(path).ok()?;
        Some(Self::Reopened(file.into()))
    }
}
