//! Watches one child until it is dead: its messages, its time limit, and whether it is still
//! needed. Used by the orchestrator, and by a check server for its copies.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::check_request::Frame;

pub(crate) struct ChildWatch {
    pub(crate) pidfd: OwnedFd,
    pub(crate) announcements: OwnedFd,
}

impl ChildWatch {
    /// Receives the child's messages until it is dead; it is not reaped yet. It is killed if it
    /// takes too long, which is the second result, or if a frame arrives: a cancellation,
    /// or end-of-file because the orchestrator is gone.
    pub(crate) fn until_the_end(
        self,
        pid: u32,
        timeout: Duration,
        orders: Option<&File>,
    ) -> (Vec<u8>, bool) {
        let mut announced = Vec::new();
        let mut pipe = Some(File::from(self.announcements));
        let mut orders = orders;
        // A deadline beyond the clock's range means none.
        let deadline = Instant::now().checked_add(timeout);
        let mut timed_out = false;
        loop {
            // A negative descriptor is not polled.
            let on = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut fds = [
                on(self.pidfd.as_raw_fd()),
                on(pipe.as_ref().map_or(-1, AsRawFd::as_raw_fd)),
                on(orders.map_or(-1, AsRawFd::as_raw_fd)),
            ];
            let left = match deadline {
                Some(deadline) if !timed_out => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    // Rounded up: a poll that ends early would spin.
                    i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
                }
                _ => -1,
            };
            // SAFETY: three descriptors that live as long as the call.
            unsafe { libc::poll(fds.as_mut_ptr(), 3, left) };
            if fds[1].revents & libc::POLLIN != 0 {
                take(pipe.as_mut(), &mut announced);
            } else if fds[0].revents != 0 {
                return (announced, timed_out);
            } else if fds[1].revents != 0 {
                // Every write end is closed, and only the death is left to wait for. If it stayed polled,
                // the pipe would be readable forever.
                pipe = None;
            }
            if fds[2].revents != 0 {
                if !matches!(orders.map(Frame::receive), Some(Ok(Some(_)))) {
                    orders = None;
                }
                kill(pid);
            }
            if !timed_out && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                timed_out = true;
                kill(pid);
            }
        }
    }
}

fn take(pipe: Option<&mut File>, announced: &mut Vec<u8>) {
    let mut buffer = [0; 16 << 10];
    // Poll said that it is readable, so this does not block. After an error only the messages so far are known,
    // and the verdict reports what is missing.
    if let Some(Ok(n)) = pipe.map(|pipe| pipe.read(&mut buffer)) {
        announced.extend_from_slice(&buffer[..n]);
    }
}

/// Kills a child and its group. It has not been reaped, so both ids are its own.
fn kill(pid: u32) {
    signal(-(pid as i32), libc::SIGKILL);
    signal(pid as i32, libc::SIGKILL);
}

pub(crate) fn signal(pid: i32, signal: i32) {
    // SAFETY: plain numbers. The process or group is this process's child, and a failure means that it is gone.
    unsafe { libc::kill(pid, signal) };
}

/// How often the kernel's out-of-memory killer has acted since boot.
#[derive(Debug)]
pub(crate) struct OutOfMemoryKills(Option<File>);

impl OutOfMemoryKills {
    pub(crate) fn new() -> Self {
        Self(File::open("/proc/vmstat").ok())
    }

    pub(crate) fn count(&self) -> u64 {
        let Some(file) = &self.0 else { return 0 };
        let mut counters = [0; 16 << 10];
        let read = file.read_at(&mut counters, 0).unwrap_or(0);
        counters[..read]
            .split(|byte| *byte == b'\n')
            .find_map(|line| {
                std::str::from_utf8(line.strip_prefix(b"oom_kill ")?).ok()?.trim().parse().ok()
            })
            .unwrap_or(0)
    }
}
