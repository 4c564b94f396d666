//! The descriptors that one turn of the supervision polls.

use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use retake_types::Stream;

use super::Supervision;
use crate::syscalls;

/// The source of an event.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// A report of the keeper.
    Keeper,
    /// A request of a signal handler or another thread.
    Cancel,
    /// The child has exited.
    ChildExit,
    Stdout,
    Stderr,
    /// The reader of retake's stdout accepts data again.
    StdoutRelay,
    StderrRelay,
    /// The user has typed.
    Keyboard,
    /// The child's pseudo-terminal accepts keys.
    Pty,
}

impl Source {
    const COUNT: usize = 9;

    pub(super) fn output(stream: Stream) -> Self {
        match stream {
            Stream::Stdout => Self::Stdout,
            Stream::Stderr => Self::Stderr,
        }
    }

    pub(super) fn relay(stream: Stream) -> Self {
        match stream {
            Stream::Stdout => Self::StdoutRelay,
            Stream::Stderr => Self::StderrRelay,
        }
    }
}

pub(super) struct PollSet {
    entries: [libc::pollfd; Source::COUNT],
}

impl PollSet {
    /// The events that the run waits for now.
    pub(super) fn of(run: &Supervision<'_>) -> Self {
        // `poll` skips an entry without a descriptor.
        let unused = libc::pollfd { fd: -1, events: 0, revents: 0 };
        let mut set = Self { entries: [unused; Source::COUNT] };
        set.add(Source::Keeper, run.keeper.socket(), libc::POLLIN);
        set.add(Source::Cancel, run.cancel.fd(), libc::POLLIN);
        let pidfd = run.child.pidfd.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        set.add(Source::ChildExit, pidfd, libc::POLLIN);
        for stream in [Stream::Stdout, Stream::Stderr] {
            set.add(Source::output(stream), run.readable(stream), libc::POLLIN);
            set.add(Source::relay(stream), run.waiting_relay(stream), libc::POLLOUT);
        }
        set.add(Source::Keyboard, run.key_source(), libc::POLLIN);
        set.add(Source::Pty, run.key_sink(), libc::POLLOUT);
        set
    }

    fn add(&mut self, source: Source, fd: RawFd, events: i16) {
        self.entries[source as usize] = libc::pollfd { fd, events, revents: 0 };
    }

    /// Waits for any of the sources, until the instant at the latest.
    pub(super) fn wait(&mut self, until: Option<Instant>) {
        syscalls::poll(&mut self.entries, until);
    }

    pub(super) fn ready(&self, source: Source) -> bool {
        self.events(source) != 0
    }

    pub(super) fn events(&self, source: Source) -> i16 {
        self.entries[source as usize].revents
    }
}
