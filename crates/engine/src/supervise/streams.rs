//! The child's output and the user's keys: read, passed on, never waited for.

use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use retake_types::Stream;

use super::{Cause, Event, Supervision};
use crate::buffer::PageBuffer;
use crate::relay::{Passed, Relay};
use crate::sys;

/// From this many bytes on a stream is one that floods.
const BUSY: u64 = 64 << 10;
/// A flooding stream's pipe: larger than the default, so that a child writing 64 KiB at a time does
/// not wait for each read.
const PIPE_SIZE: i32 = 256 << 10;
/// How long a flooding stream gathers in the pipe when a read found less than [`GATHERED`]: many
/// small writes then cost few reads, and nobody sees a delay this short.
const GATHER: Duration = Duration::from_micros(100);
const GATHERED: usize = 128 << 10;

impl Supervision<'_> {
    /// The descriptor of a stream we want to read now; `-1` while its reader is behind, or while
    /// more gathers in the pipe.
    pub(super) fn readable(&self, stream: Stream) -> RawFd {
        let index = stream.index();
        let behind = self.relays[index].as_ref().is_some_and(Relay::waits);
        match &self.streams[index] {
            Some(_) if self.gather_until[index].is_some() => -1,
            // What the last process has left in the pipe is all there will be, and is taken in.
            Some(fd) if !behind || self.alone || self.cause.is_some() => fd.as_raw_fd(),
            _ => -1,
        }
    }

    pub(super) fn waiting_relay(&self, stream: Stream) -> RawFd {
        let relay = self.relays[stream.index()].as_ref().filter(|relay| relay.waits());
        relay.map_or(-1, Relay::fd)
    }

    pub(super) fn read(&mut self, stream: Stream, events: i16, buffer: &mut PageBuffer) {
        let index = stream.index();
        let Some(fd) = self.streams[index].as_ref().map(AsRawFd::as_raw_fd) else { return };
        if events & libc::POLLIN == 0 {
            // Hung up with nothing left to read.
            self.streams[index] = None;
            return;
        }
        let n = match sys::read_some(fd, buffer.as_mut()) {
            Ok(Some(0)) | Err(_) => {
                self.streams[index] = None;
                return;
            }
            Ok(None) => return,
            Ok(Some(n)) => n,
        };
        let before = self.bytes[index];
        self.bytes[index] += n as u64;
        if before < BUSY && self.bytes[index] >= BUSY {
            // SAFETY: plain numbers. Over the user's share of pipe memory it stays as it is.
            unsafe { libc::fcntl(fd, libc::F_SETPIPE_SZ, PIPE_SIZE) };
        }
        if before >= BUSY && n < GATHERED {
            self.gather_until[index] = Some(Instant::now() + GATHER);
        }
        let bytes = &buffer.as_mut()[..n];
        (self.observer)(Event::Output { stream, bytes });
        if let Some(relay) = &mut self.relays[index] {
            if relay.waits() && self.cause.is_some() {
                relay.skip(bytes);
            } else if relay.waits() {
                relay.hold(bytes);
            } else {
                let passed = relay.pass(bytes);
                self.passed(stream, &passed);
            }
        }
    }

    pub(super) fn passed(&mut self, stream: Stream, passed: &Passed) {
        if !matches!(passed, Passed::Closed) {
            return;
        }
        let Some(relay) = self.relays[stream.index()].take() else { return };
        // Nobody reads any more. Like a program that writes into a closed pipe, the run ends. For a
        // child that already has, only a real failure matters.
        if self.exit.is_none() && self.cause.is_none() {
            self.relay_error = relay.error();
            self.end(Cause::Cancel(libc::SIGPIPE));
        } else if relay.error() != Some(libc::EPIPE) {
            self.relay_error = relay.error();
        }
    }

    /// Notices when the user's terminal has become ours to read.
    pub(super) fn look_to_the_front(&mut self) {
        if let Some(typing) = &mut self.typing {
            let in_front = typing.raw.in_front();
            if in_front && !std::mem::replace(&mut typing.in_front, in_front) {
                typing.raw.again();
            }
            typing.in_front = in_front;
        }
    }

    pub(super) fn key_source(&self) -> RawFd {
        match &self.typing {
            Some(typing) if typing.in_front && typing.keys.is_empty() => 0,
            _ => -1,
        }
    }

    pub(super) fn key_sink(&self) -> RawFd {
        match (&self.typing, &self.pty) {
            (Some(typing), Some(pty)) if !typing.keys.is_empty() => pty.ours.as_raw_fd(),
            _ => -1,
        }
    }

    /// Moves keys from the user's terminal to the child's.
    pub(super) fn type_on(&mut self) {
        let (Some(typing), Some(pty)) = (&mut self.typing, &self.pty) else { return };
        if typing.keys.is_empty() {
            let mut keys = [0; 512];
            match sys::read_some(0, &mut keys) {
                Ok(Some(n @ 1..)) => typing.keys.extend_from_slice(&keys[..n]),
                Ok(None) => {}
                // The user's terminal is gone: nothing more will be typed.
                Ok(Some(_)) | Err(_) => self.typing = None,
            }
            return;
        }
        // SAFETY: writes from a buffer that is alive, after `poll` said there is room.
        let n = unsafe {
            libc::write(pty.ours.as_raw_fd(), typing.keys.as_ptr().cast(), typing.keys.len())
        };
        if n > 0 {
            typing.keys.drain(..n as usize);
        }
    }
}
