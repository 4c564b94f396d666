//! Passing the child's output on, byte for byte, without ever waiting for whoever reads it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::syscalls;

/// Where one stream of the child goes, live.
pub(crate) struct OutputRelay<'a> {
    target: BorrowedFd<'a>,
    way: Option<Way>,
    pending: Vec<u8>,
    sent: usize,
    /// Bytes given up because nobody took them in time.
    lost: u64,
    /// Why nothing more can be written.
    error: Option<i32>,
}

/// How to write without blocking and without changing flags others share.
enum Way {
    /// A file: writing does not wait for a reader.
    Direct,
    /// A pipe or terminal, opened again so that "do not block" is ours alone.
    Reopened(OwnedFd),
    Socket,
    /// One that may not be reopened, such as another user's: its flag is set for each write only.
    Borrowed,
}

pub(crate) enum Passed {
    /// Everything went out.
    All,
    /// Some of it waits for the reader.
    Waiting,
    /// The reader is gone.
    Closed,
}

impl<'a> OutputRelay<'a> {
    pub(crate) fn new(target: BorrowedFd<'a>) -> Self {
        Self { target, way: None, pending: Vec::new(), sent: 0, lost: 0, error: None }
    }

    /// Sends what the reader takes now and holds the rest.
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

    /// Tries again to send what waits.
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

    /// Drops what waits: the run is over and the reader has had its chance.
    pub(crate) fn give_up(&mut self) {
        self.lost += (self.pending.len() - self.sent) as u64;
        self.sent = self.pending.len();
    }

    /// Adds to what waits: the last output, which nobody will write any more.
    pub(crate) fn hold(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// Counts output that is not even tried: the run is being ended and earlier output waits.
    pub(crate) fn skip(&mut self, bytes: &[u8]) {
        self.lost += bytes.len() as u64;
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// The reason of a [`Passed::Closed`].
    pub(crate) fn error(&self) -> Option<i32> {
        self.error
    }

    /// The descriptor to poll for room.
    pub(crate) fn fd(&self) -> RawFd {
        match &self.way {
            Some(Way::Reopened(fd)) => fd.as_raw_fd(),
            _ => self.target.as_raw_fd(),
        }
    }

    /// Writes until all is out (then the length) or the reader is slow (then less).
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let target = self.target.as_raw_fd();
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let way = self.way.get_or_insert_with(|| Way::to(target));
            let n = match way {
                // SAFETY: each writes from a slice that is alive.
                Way::Direct => unsafe { libc::write(target, rest.as_ptr().cast(), rest.len()) },
                // SAFETY: as above.
                Way::Reopened(fd) => unsafe {
                    libc::write(fd.as_raw_fd(), rest.as_ptr().cast(), rest.len())
                },
                // SAFETY: as above.
                Way::Socket => unsafe {
                    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                    libc::send(target, rest.as_ptr().cast(), rest.len(), flags)
                },
                // SAFETY: as above; the flags are put back as they were.
                Way::Borrowed => unsafe {
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
                // A signal may have come because we may not write now (`stty tostop`): the caller
                // looks at what was asked before it tries again.
                libc::EINTR | libc::EAGAIN => return Ok(done),
                code => return Err(io::Error::from_raw_os_error(code)),
            }
        }
        Ok(done)
    }
}

impl Way {
    fn to(fd: RawFd) -> Self {
        // SAFETY: zero is a valid stat, filled by the call.
        let kind = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            libc::fstat(fd, &raw mut stat);
            stat.st_mode & libc::S_IFMT
        };
        // SAFETY: asks about a descriptor.
        let terminal = kind == libc::S_IFCHR && unsafe { libc::isatty(fd) } == 1;
        match kind {
            libc::S_IFSOCK => Self::Socket,
            libc::S_IFIFO => Self::reopened(fd).unwrap_or(Self::Borrowed),
            _ if terminal => Self::reopened(fd).unwrap_or(Self::Borrowed),
            _ => Self::Direct,
        }
    }

    fn reopened(fd: RawFd) -> Option<Self> {
        let path = format!("/proc/self/fd/{fd}\0");
        let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        // SAFETY: the path ends with a zero byte.
        let fd = unsafe { libc::open(path.as_ptr().cast(), flags) };
        // SAFETY: just opened, ours alone.
        (fd >= 0).then(|| Self::Reopened(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}
