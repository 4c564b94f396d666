//! The child's output: read, passed to the observer and, live, to retake's own output, without ever
//! waiting.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use retake_types::Stream;

use super::{Cause, ProcessEvent, Supervision};
use crate::output_relay::{OutputRelay, Passed};
use crate::page_buffer::PageBuffer;
use crate::syscalls;

/// A stream counts as busy from this many bytes on.
const BUSY: u64 = 64 << 10;
/// The pipe size of a busy stream: larger than the default, so that a child writing 64 KiB at a
/// time does not wait for each read.
const PIPE_SIZE: i32 = 256 << 10;
/// How long a busy stream collects in the pipe after a read below [`GATHERED`]: many small writes
/// then cost few reads, and the delay is imperceptible.
const GATHER: Duration = Duration::from_micros(100);
const GATHERED: usize = 128 << 10;

/// One stream of the child.
pub(super) struct OutputStream<'a> {
    /// The reading end; `None` once it is closed.
    pub(super) pipe: Option<OwnedFd>,
    /// Bytes read so far.
    pub(super) bytes: u64,
    /// A busy stream is not read until then, so that the next read returns more.
    pub(super) gather_until: Option<Instant>,
    /// Its live destination.
    pub(super) relay: Option<OutputRelay<'a>>,
}

impl<'a> OutputStream<'a> {
    pub(super) fn new(pipe: Option<OwnedFd>, relay: Option<OutputRelay<'a>>) -> Self {
        Self { pipe, bytes: 0, gather_until: None, relay }
    }

    /// Bytes that the reader of retake's output did not accept.
    pub(super) fn lost(&self) -> u64 {
        self.relay.as_ref().map_or(0, OutputRelay::lost)
    }
}

impl Supervision<'_> {
    /// The descriptor of a stream to read now; `-1` while its reader is behind, or while output
    /// collects in the pipe.
    pub(super) fn readable(&self, stream: Stream) -> RawFd {
        let OutputStream { pipe, gather_until, relay, .. } = &self.output[stream.index()];
        let behind = relay.as_ref().is_some_and(OutputRelay::waits);
        match pipe {
            Some(_) if gather_until.is_some() => -1,
            // After the last process exited the pipe's content is complete, and is read.
            Some(fd) if !behind || self.phase.tree_is_gone() || self.cause.is_some() => {
                fd.as_raw_fd()
            }
            _ => -1,
        }
    }

    /// The descriptor that pending output waits for; `-1` without pending output.
    pub(super) fn waiting_relay(&self, stream: Stream) -> RawFd {
        let relay = self.output[stream.index()].relay.as_ref().filter(|relay| relay.waits());
        relay.map_or(-1, OutputRelay::fd)
    }

    pub(super) fn read_output(&mut self, stream: Stream, events: i16, buffer: &mut PageBuffer) {
        let output = &mut self.output[stream.index()];
        let Some(fd) = output.pipe.as_ref().map(AsRawFd::as_raw_fd) else { return };
        if events & libc::POLLIN == 0 {
            // Closed, with nothing left to read.
            output.pipe = None;
            return;
        }
        let n = match syscalls::read_some(fd, buffer.as_mut()) {
            Ok(Some(0)) | Err(_) => {
                output.pipe = None;
                return;
            }
            Ok(None) => return,
            Ok(Some(n)) => n,
        };
        let before = output.bytes;
        output.bytes += n as u64;
        if before < BUSY && output.bytes >= BUSY {
            // SAFETY: plain numbers. Above the user's pipe memory limit the size stays unchanged.
            unsafe { libc::fcntl(fd, libc::F_SETPIPE_SZ, PIPE_SIZE) };
        }
        if before >= BUSY && n < GATHERED {
            output.gather_until = Some(Instant::now() + GATHER);
        }
        let bytes = &buffer.as_mut()[..n];
        (self.observer)(ProcessEvent::Output { stream, bytes });
        if let Some(relay) = &mut output.relay {
            if relay.waits() && self.cause.is_some() {
                relay.skip(bytes);
            } else if relay.waits() {
                relay.hold(bytes);
            } else {
                let passed = relay.pass(bytes);
                self.end_if_closed(stream, &passed);
            }
        }
    }

    /// The reader of retake's output accepts data again.
    pub(super) fn resume_relay(&mut self, stream: Stream) {
        if let Some(relay) = &mut self.output[stream.index()].relay {
            let passed = relay.resume();
            self.end_if_closed(stream, &passed);
        }
    }

    /// Like a program that writes into a closed pipe, the run ends when its output has no reader.
    /// After the child's exit, only a real failure matters.
    fn end_if_closed(&mut self, stream: Stream, passed: &Passed) {
        if !matches!(passed, Passed::Closed) {
            return;
        }
        let Some(relay) = self.output[stream.index()].relay.take() else { return };
        if self.child.exit.is_none() && self.cause.is_none() {
            self.relay_error = relay.error();
            self.end(Cause::Cancel(libc::SIGPIPE));
        } else if relay.error() != Some(libc::EPIPE) {
            self.relay_error = relay.error();
        }
    }
}
