//! Pipes and process descriptors for children.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A pipe, reader first. Both ends close on exec and have numbers above 2, so that they cannot be
/// taken for stdin, stdout or stderr.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    // try_clone returns a number above 2.
    let above = |fd: OwnedFd| if fd.as_raw_fd() > 2 { Ok(fd) } else { fd.try_clone() };
    Ok((above(reader.into())?, above(writer.into())?))
}

/// A descriptor that becomes readable when the process ends.
pub fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers in, a new descriptor or -1 out.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as i32, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
