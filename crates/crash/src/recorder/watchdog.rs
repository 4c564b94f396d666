//! Kills a workload that exceeds its time limit or is cancelled.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use super::error::RecordError;

const TIME: u8 = 1;
const CANCEL: u8 = 2;

#[derive(Debug)]
pub(super) struct Watchdog<'a> {
    process: &'a OwnedFd,
    limit: Option<Duration>,
    cancel: Option<&'a OwnedFd>,
    exceeded: AtomicU8,
}

impl<'a> Watchdog<'a> {
    pub(super) fn new(
        process: &'a OwnedFd,
        limit: Option<Duration>,
        cancel: Option<&'a OwnedFd>,
    ) -> Self {
        Self { process, limit, cancel, exceeded: AtomicU8::new(0) }
    }

    /// Waits for the process to end, and kills it if necessary. The tracer ends the rest.
    pub(super) fn run(&self) {
        let deadline = self.limit.and_then(|limit| Instant::now().checked_add(limit));
        let on = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // A negative number is not polled.
        let mut fds =
            [on(self.process.as_raw_fd()), on(self.cancel.map_or(-1, AsRawFd::as_raw_fd))];
        let reason = loop {
            let left = deadline.map_or(-1, |deadline| {
                let left = deadline.saturating_duration_since(Instant::now());
                i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
            });
            // SAFETY: two descriptors that live as long as the call.
            unsafe { libc::poll(fds.as_mut_ptr(), 2, left) };
            if fds[0].revents != 0 {
                return;
            }
            if fds[1].revents != 0 {
                break CANCEL;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break TIME;
            }
        };
        self.exceeded.store(reason, Ordering::Release);
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: a descriptor we hold; no siginfo is given. A failure means it is already gone.
        unsafe {
            let process = self.process.as_raw_fd();
            libc::syscall(libc::SYS_pidfd_send_signal, process, libc::SIGKILL, none, 0);
        }
    }

    pub(super) fn exceeded(&self) -> Option<RecordError> {
        match self.exceeded.load(Ordering::Acquire) {
            TIME => Some(RecordError::TimedOut { limit: self.limit.unwrap_or_default() }),
            CANCEL => Some(RecordError::Cancelled),
            _ => None,
        }
    }
}
