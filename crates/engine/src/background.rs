//! Continues this program in the background, out of reach of the terminal it was started from.
//!
//! A fork, not a new start: what was read and checked stays as it is, and nothing has to be handed
//! over. The caller waits until the background process says that it has started, so that whatever
//! goes wrong before is still seen where the command was typed, with its exit code.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::{Pid, WaitOptions, waitpid};

use crate::syscalls::{above_stdio, check};

/// Which of the two processes this is.
pub enum InBackground {
    /// The one that was called.
    Caller(BackgroundStart),
    Process(BackgroundProcess),
}

/// The process in the background, seen by the one that was called.
pub struct BackgroundStart {
    pid: Pid,
    news: PipeReader,
}

/// How the start went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackgroundOutcome {
    Started {
        pid: i32,
    },
    /// It ended without having started, and has said why.
    Ended(ExitStatus),
}

/// This process, in the background. Its standard streams are still those of the caller.
pub struct BackgroundProcess {
    news: PipeWriter,
}

/// Continues in a process with a session of its own, which ignores SIGHUP and reads nothing. It keeps
/// stdout, stderr and nothing else of what was open.
///
/// # Safety
///
/// Only while the program has one thread: the copy of a lock that another one holds stays locked.
pub unsafe fn continue_in_background() -> io::Result<InBackground> {
    // What is held would be written twice.
    io::stdout().flush()?;
    let (reader, writer) = io::pipe()?;
    // SAFETY: one thread, as the caller promises.
    let pid = check(unsafe { libc::fork() })?;
    match Pid::from_raw(pid) {
        Some(pid) => Ok(InBackground::Caller(BackgroundStart { pid, news: reader })),
        None => {
            drop(reader);
            let news = PipeWriter::from(above_stdio(OwnedFd::from(writer))?);
            // SAFETY: dispositions and a session of our own; closes what only the caller uses.
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

/// A pipe or a lock of the caller's would otherwise be held as long as the background process lives.
unsafe fn close_all_but(kept: RawFd) {
    // SAFETY: as the name says; on an old kernel what is open stays open.
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

/// Makes this program's stdout and stderr another file.
pub fn redirect_output(output: BorrowedFd<'_>) -> io::Result<()> {
    replace(1, output)?;
    replace(2, output)
}

impl BackgroundStart {
    /// Waits until it has started or ended.
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
    /// Says that all is well, and leaves the caller's stdout and stderr: from here on, both are
    /// `output`. Fails if the caller is gone, who then does not know that this process exists.
    pub fn started(mut self, output: BorrowedFd<'_>) -> io::Result<()> {
        redirect_output(output)?;
        self.news.write_all(b"+")
    }
}
