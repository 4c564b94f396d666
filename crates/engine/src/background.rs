//! Continues this program in the background, detached from its terminal.
//!
//! A fork, not a new start: everything read and checked stays, and nothing has to be passed on. The
//! caller waits until the background process reports that it has started, so that earlier errors
//! appear where the command was typed, with its exit code.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::{Pid, WaitOptions, waitpid};

use crate::syscalls::{above_stdio, check};

/// Which of the two processes this is.
pub enum InBackground {
    /// The original process.
    Caller(BackgroundStart),
    Process(BackgroundProcess),
}

/// The background process, seen from the original one.
pub struct BackgroundStart {
    pid: Pid,
    news: PipeReader,
}

/// The result of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackgroundOutcome {
    Started {
        pid: i32,
    },
    /// It exited before it started, and has printed why.
    Ended(ExitStatus),
}

/// This process, in the background. Its standard streams are still the caller's.
pub struct BackgroundProcess {
    news: PipeWriter,
}

/// Continues in a process with its own session, which ignores SIGHUP and has an empty stdin. It
/// keeps stdout and stderr, and no other open descriptor.
///
/// # Safety
///
/// Only while the program has one thread: a lock held by another thread would stay locked in the
/// copy.
pub unsafe fn continue_in_background() -> io::Result<InBackground> {
    // Buffered output would be written twice.
    io::stdout().flush()?;
    let (reader, writer) = io::pipe()?;
    // SAFETY: one thread, as the caller promises.
    let pid = check(unsafe { libc::fork() })?;
    match Pid::from_raw(pid) {
        Some(pid) => Ok(InBackground::Caller(BackgroundStart { pid, news: reader })),
        None => {
            drop(reader);
            let news = PipeWriter::from(above_stdio(OwnedFd::from(writer))?);
            // SAFETY: sets dispositions and the session of this process; closes what only the
            // caller uses.
            unsafe {
                libc::setsid();
                libc::signal(libc::SIGHUP, libc::SIG_IGN);
                close_all_but(news.as_raw_fd());
            }
            replace(0, std::fs::File::open("/dev/null")?.as_fd())?;
            Ok(InBackground::Process(BackgroundProcess { news }))
        }
    }
}

/// An inherited pipe or lock of the caller would be held for the life of the background process.
unsafe fn close_all_but(kept: RawFd) {
    // SAFETY: closes descriptors that nothing here uses; on an old kernel they stay open.
    let close = |from: RawFd, to: u32| unsafe {
        libc::syscall(libc::SYS_close_range, from, to, 0);
    };
    if kept > 3 {
        close(3, (kept - 1).unsigned_abs());
    }
    close(kept + 1, u32::MAX);
}

fn replace(number: RawFd, by: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: one of the standard streams, which always exist.
    check(unsafe { libc::dup2(by.as_raw_fd(), number) }).map(drop)
}

/// Redirects this program's stdout and stderr to another file.
pub fn redirect_output(output: BorrowedFd<'_>) -> io::Result<()> {
    replace(1, output)?;
    replace(2, output)
}

impl BackgroundStart {
    /// Waits until it has started or exited.
    pub fn wait(mut self) -> io::Result<BackgroundOutcome> {
        let mut said = [0];
        loop {
            match self.news.read(&mut said) {
                Ok(0) => break,
                Ok(_) => return Ok(BackgroundOutcome::Started { pid: self.pid.as_raw_pid() }),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        loop {
            match waitpid(Some(self.pid), WaitOptions::empty()) {
                Ok(Some((_, status))) => {
                    let status = ExitStatus::from_raw(status.as_raw());
                    return Ok(BackgroundOutcome::Ended(status));
                }
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl BackgroundProcess {
    /// Reports the start, and redirects stdout and stderr from the caller's to `output`. Fails if
    /// the caller is gone, because then it does not know that this process exists.
    pub fn started(mut self, output: BorrowedFd<'_>) -> io::Result<()> {
        redirect_output(output)?;
        self.news.write_all(b"+")
    }
}
