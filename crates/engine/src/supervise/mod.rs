//! Supervises one run from spawn to result: a single loop over the child, its output, the clock,
//! and requests to end or pause the run.
//!
//! Theory of operation. [`Phase`] is the state of the run; each turn of the loop polls the
//! descriptors of a [`PollSet`] until the next deadline, and then handles the events: reports of
//! the keeper (`reports.rs`), requests of signal handlers and other threads (`requests.rs`),
//! expired deadlines (`phase.rs`), output (`output.rs`) and keys (`keyboard.rs`). Control comes
//! before output.
//!
//! Only `poll` waits: never the code for the child, for a grandchild that holds a pipe open, or for
//! the reader of retake's output.

mod keyboard;
mod output;
mod phase;
mod poll_set;
mod reports;
mod requests;
mod result;
mod start;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime};

use retake_types::{LeftProcess, LimitKind, Outcome, StartFailure, Stream, Usage};

use crate::cancel::Cancel;
use crate::command::Command;
use crate::keeper::Keeper;
use crate::limit_watch::LimitWatch;
use crate::page_buffer::PageBuffer;
use crate::terminal::{Pty, UserTerminal};
use keyboard::Keyboard;
use output::OutputStream;
use phase::{Phase, Timers};
use poll_set::{PollSet, Source};

pub use phase::DRAIN;

/// The live destinations of the child's output; `None` passes it only to the observer.
#[derive(Clone, Copy, Default)]
pub struct LiveOutput<'a> {
    pub stdout: Option<BorrowedFd<'a>>,
    pub stderr: Option<BorrowedFd<'a>>,
}

/// An event of a run, in order.
pub enum ProcessEvent<'a> {
    /// The program runs.
    Started {
        pid: i32,
    },
    /// The child, or a process it left, wrote this.
    Output {
        stream: Stream,
        bytes: &'a [u8],
    },
    /// The tree and the clock are stopped; both continue when the observer returns. `by_child` says
    /// that the child was stopped at its terminal, not this program.
    Suspended {
        by_child: bool,
    },
    Finished(&'a ProcessResult),
}

/// How the process ended, and all measurements.
#[derive(Clone, Debug)]
pub struct ProcessResult {
    pub outcome: Outcome,
    pub pid: Option<i32>,
    pub start: SystemTime,
    /// Until the child's exit, by a monotonic clock.
    pub duration: Duration,
    pub usage: Usage,
    /// Bytes written to stdout and stderr.
    pub bytes: [u64; 2],
    /// Whether processes outlived the child and had to be ended, or still hold its output open.
    pub leaked: bool,
    pub left: Vec<LeftProcess>,
    /// Bytes that were captured but not accepted by the reader of retake's output.
    pub unread: [u64; 2],
    /// Why forwarding output failed (`EPIPE`: its reader is gone), if that ended the run.
    pub relay_error: Option<i32>,
}

impl Keeper {
    /// Runs the command. Every failure is part of the result; earlier output is never lost.
    pub fn run(
        &mut self,
        command: &Command,
        cancel: &Cancel,
        live: LiveOutput<'_>,
        observer: &mut dyn FnMut(ProcessEvent<'_>),
    ) -> ProcessResult {
        let start = SystemTime::now();
        let clock = Instant::now();
        let result = match Supervision::start(self, command, cancel, live, observer, clock) {
            Ok(supervision) => supervision.supervise(start),
            Err(failure) => ProcessResult::start_failed(failure, start, clock.elapsed()),
        };
        observer(ProcessEvent::Finished(&result));
        result
    }
}

/// Why retake is ending the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Timeout,
    Cancel(i32),
    Limit(LimitKind),
}

struct Supervision<'a> {
    keeper: &'a mut Keeper,
    command: &'a Command,
    cancel: &'a Cancel,
    observer: &'a mut dyn FnMut(ProcessEvent<'_>),
    /// When the run began.
    clock: Instant,
    phase: Phase,
    timers: Timers,
    /// Set once retake ends the run; unset if the child exits by itself.
    cause: Option<Cause>,
    child: Child,
    /// Stdout and stderr.
    output: [OutputStream<'a>; 2],
    relay_error: Option<i32>,
    limit_watch: Option<LimitWatch>,
    terminals: Terminals,
    left: Vec<LeftProcess>,
    /// Whether pipes were still open after every process of the run had exited.
    held_open: bool,
    /// Whether the keeper died before it reported the child's exit.
    lost_keeper: bool,
}

/// What is known about the child.
#[derive(Default)]
struct Child {
    pid: Option<i32>,
    /// Readable when the child exits; `None` before its start and after its exit.
    pidfd: Option<OwnedFd>,
    exit: Option<Exit>,
    start_failure: Option<StartFailure>,
    usage: Usage,
}

/// The child's exit.
#[derive(Clone, Copy)]
struct Exit {
    wait_status: i32,
    /// Since the start of the run.
    after: Duration,
}

/// The terminals of a run; most runs have none.
struct Terminals {
    /// The user's own terminal, lent to the child.
    lent: Option<UserTerminal>,
    pty: Option<Pty>,
    keyboard: Option<Keyboard>,
}

impl Supervision<'_> {
    fn supervise(mut self, start: SystemTime) -> ProcessResult {
        let mut buffer = PageBuffer::new();
        while self.phase != Phase::Done {
            self.turn(&mut buffer);
        }
        self.into_result(start)
    }

    /// Sleeps until an event, then handles all events, control before output.
    fn turn(&mut self, buffer: &mut PageBuffer) {
        self.update_foreground();
        let mut polled = PollSet::of(self);
        polled.wait(self.next_instant());
        if polled.ready(Source::Keeper) {
            self.read_reports();
        }
        if polled.ready(Source::Cancel) {
            self.cancel.drain();
        }
        if polled.ready(Source::ChildExit) {
            self.child.pidfd = None;
            self.expect_report();
        }
        self.handle_requests();
        self.handle_timers(Instant::now());
        for stream in [Stream::Stdout, Stream::Stderr] {
            if polled.ready(Source::output(stream)) {
                self.read_output(stream, polled.events(Source::output(stream)), buffer);
            }
        }
        for stream in [Stream::Stdout, Stream::Stderr] {
            if polled.ready(Source::relay(stream)) {
                self.resume_relay(stream);
            }
        }
        if polled.ready(Source::Keyboard) || polled.ready(Source::Pty) {
            self.forward_keys();
        }
        self.finish_if_over();
    }
}
