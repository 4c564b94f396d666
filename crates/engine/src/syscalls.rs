//! The system calls of the engine, as safe functions where possible.
//!
//! Nothing here allocates unless its name or result says so: the keeper runs in a forked copy of a
//! possibly threaded program, where only async-signal-safe calls are allowed.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use libc::{c_int, c_void};

/// Turns the `-1` of a C call into its error.
pub(crate) fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(crate) fn errno() -> i32 {
    // SAFETY: the location is valid for the calling thread.
    unsafe { *libc::__errno_location() }
}

/// A connected pair of message sockets: each message arrives completely or not at all, in order.
pub(crate) fn message_sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: `ends` has room for the two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
    // SAFETY: both are new and owned only here.
    let (a, b) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    Ok((above_stdio(a)?, above_stdio(b)?))
}

/// Duplicates a descriptor above 2: with a closed stdin, stdout or stderr, a new descriptor would
/// take its number and receive output.
pub(crate) fn above_stdio(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > 2 {
        return Ok(fd);
    }
    // SAFETY: duplicates an open descriptor; the copy is owned only here.
    unsafe {
        let copy = check(libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3))?;
        Ok(OwnedFd::from_raw_fd(copy))
    }
}

/// Reads once; `Ok(None)` without data.
pub(crate) fn read_some(fd: RawFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: a local buffer of the stated length.
    let n = unsafe { libc::read(fd, buffer.as_mut_ptr().cast::<c_void>(), buffer.len()) };
    if n >= 0 {
        return Ok(Some(n as usize));
    }
    // An interruption may be a request: the caller checks before it reads again.
    match errno() {
        libc::EINTR | libc::EAGAIN => Ok(None),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Waits for any of the descriptors, until the instant at the latest. An interruption counts as a
/// wake.
pub(crate) fn poll(fds: &mut [libc::pollfd], until: Option<Instant>) {
    let limit;
    let timeout = match until {
        None => std::ptr::null(),
        Some(until) => {
            let left = until.saturating_duration_since(Instant::now());
            limit = timespec(left);
            &raw const limit
        }
    };
    // SAFETY: the array and the timeout outlive the call. A failure is a wake without readiness.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as _, timeout, std::ptr::null()) };
    if ready < 0 {
        for fd in fds {
            fd.revents = 0;
        }
    }
}

pub(crate) fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: duration.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// A signal set with every member, or none.
pub(crate) fn signal_set(full: bool) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: both calls initialise the whole set and cannot fail.
    unsafe {
        if full {
            libc::sigfillset(set.as_mut_ptr());
        } else {
            libc::sigemptyset(set.as_mut_ptr());
        }
        set.assume_init()
    }
}

/// The maximum number of descriptors in one message.
pub(crate) const MAX_FDS: usize = 10;

#[repr(C)]
union ControlBuffer {
    _align: libc::cmsghdr,
    bytes: [u8; 128],
}

/// Sends a plain value and descriptors as one message.
pub(crate) fn send<T: Copy>(socket: RawFd, value: &T, fds: &[RawFd]) -> io::Result<()> {
    debug_assert!(fds.len() <= MAX_FDS, "more descriptors than a message carries");
    let mut control = ControlBuffer { bytes: [0; 128] };
    let mut part = libc::iovec {
        iov_base: std::ptr::from_ref(value).cast_mut().cast::<c_void>(),
        iov_len: size_of::<T>(),
    };
    // SAFETY: zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        let length = size_of_val(fds) as u32;
        // SAFETY: CMSG_SPACE of ten descriptors is below the 128 bytes of the buffer, and the
        // header and data written lie within it.
        unsafe {
            message.msg_control = (&raw mut control.bytes).cast();
            message.msg_controllen = libc::CMSG_SPACE(length) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(length) as _;
            std::ptr::copy_nonoverlapping(
                fds.as_ptr(),
                libc::CMSG_DATA(header).cast::<RawFd>(),
                fds.len(),
            );
        }
    }
    loop {
        // SAFETY: everything the message points to is alive.
        let sent = unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) };
        if sent >= 0 {
            return Ok(());
        }
        if errno() != libc::EINTR {
            return Err(io::Error::from_raw_os_error(errno()));
        }
    }
}

/// The result of [`receive`].
pub(crate) enum Received<T> {
    Message(T, [RawFd; MAX_FDS]),
    Nothing,
    Closed,
}

/// Receives one message without waiting. Absent descriptors are `-1`; the caller closes the others.
pub(crate) fn receive<T: Copy>(socket: RawFd) -> Received<T> {
    let mut control = ControlBuffer { bytes: [0; 128] };
    let mut value = MaybeUninit::<T>::uninit();
    let mut fds = [-1; MAX_FDS];
    let mut part =
        libc::iovec { iov_base: value.as_mut_ptr().cast::<c_void>(), iov_len: size_of::<T>() };
    // SAFETY: zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<ControlBuffer>() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let got = loop {
        // SAFETY: everything the message points to is alive.
        let got = unsafe { libc::recvmsg(socket, &raw mut message, flags) };
        if got < 0 && errno() == libc::EINTR {
            continue;
        }
        break got;
    };
    if got < 0 && errno() == libc::EAGAIN {
        return Received::Nothing;
    }
    if got < size_of::<T>() as isize {
        return Received::Closed;
    }
    // SAFETY: the kernel filled the control buffer; headers and data lie within it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS {
            let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
            let count = (bytes / size_of::<RawFd>()).min(MAX_FDS);
            std::ptr::copy_nonoverlapping(
                libc::CMSG_DATA(header).cast::<RawFd>(),
                fds.as_mut_ptr(),
                count,
            );
        }
        // SAFETY: a whole `T` arrived, sent by `send` with the same type in the same program.
        Received::Message(value.assume_init(), fds)
    }
}

pub(crate) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = check(fd as c_int)?;
    // SAFETY: a new descriptor, owned only here.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Waits for a child's exit for at most `patience`, and reaps it. If another part of the program
/// has reaped it, there is nothing to wait for.
pub(crate) fn reap(pid: i32, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    if let Ok(pidfd) = pidfd_open(pid) {
        let mut ended = [libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        while ended[0].revents == 0 && Instant::now() < until {
            poll(&mut ended, Some(until));
        }
    }
    // SAFETY: waits only for this program's child.
    let reaped = unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) };
    reaped != 0
}

pub(crate) fn pidfd_signal(pidfd: RawFd, signal: c_int) -> io::Result<()> {
    // SAFETY: a null siginfo is the default.
    let result = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd, signal, std::ptr::null::<c_void>(), 0)
    };
    check(result as c_int).map(drop)
}

/// Builds short paths such as `/proc/1/task/1/children` without allocating.
pub(crate) struct PathBuffer {
    bytes: [u8; 64],
    length: usize,
}

impl PathBuffer {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; 64], length: 0 }
    }

    pub(crate) fn text(mut self, text: &[u8]) -> Self {
        // The last byte stays zero, which ends the string.
        let room = self.bytes.len() - 1 - self.length;
        let n = text.len().min(room);
        self.bytes[self.length..self.length + n].copy_from_slice(&text[..n]);
        self.length += n;
        self
    }

    pub(crate) fn number(self, number: i32) -> Self {
        let mut digits = [0u8; 10];
        let (mut at, mut rest) = (digits.len(), number.unsigned_abs());
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.text(&digits[at..])
    }

    /// Opens the path for reading, close-on-exec.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        let path = self.bytes.as_ptr().cast();
        // SAFETY: the buffer ends with a zero byte.
        let fd = check(unsafe { libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC) })?;
        // SAFETY: a new descriptor, owned only here.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}
