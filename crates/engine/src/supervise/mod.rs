//! One run from spawn to result: a single loop over the child, its output, the clock and requests
//! to end or pause the run.
//!
//! Theory of operation. [`Phase`] says what is alive and what is waited for; each turn of the loop
//! polls the descriptors of a [`PollSet`] until the next instant that matters, and then handles
//! what came: reports of the keeper (`reports.rs`), requests of signal handlers and other threads
//! (`requests.rs`), instants that have passed (`phase.rs`), output (`output.rs`) and keys
//! (`keyboard.rs`). Control comes before output.
//!
//! Nothing in here waits for anything but `poll`: not for the child, not for a grandchild that
//! holds a pipe open, not for the reader of our own output.

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

/// Where the child's output goes, live; `None` keeps it to the observer.
#[derive(Clone, Copy, Default)]
pub struct LiveOutput<'a> {
    pub stdout: Option<BorrowedFd<'a>>,
    pub stderr: Option<BorrowedFd<'a>>,
}

/// What an observer sees of a run, in order.
pub enum ProcessEvent<'a> {
    /// The program runs.
    Started {
        pid: i32,
    },
    /// The child, or something it left, wrote this.
    Output {
        stream: Stream,
        bytes: &'a [u8],
    },
    /// The tree and the clock are stopped; both continue when the observer returns.
    /// `by_child` says that the child was stopped at its terminal, and not this program.
    Suspended {
        by_child: bool,
    },
    Finished(&'a ProcessResult),
}

/// What the process did: how it ended, and everything measured on the way.
#[derive(Clone, Debug)]
pub struct ProcessResult {
    pub outcome: Outcome,
    pub pid: Option<i32>,
    pub start: SystemTime,
    /// Until the child's end, by a clock that nobody sets.
    pub duration: Duration,
    pub usage: Usage,
    /// Bytes written to stdout and stderr.
    pub bytes: [u64; 2],
    /// Something outlived the child and had to be ended, or still holds its output open.
    pub leaked: bool,
    pub left: Vec<LeftProcess>,
    /// Bytes that were captured but that the reader of our own output did not take.
    pub unread: [u64; 2],
    /// Why passing output on failed (`EPIPE`: its reader is gone), when that ended the run.
    pub relay_error: Option<i32>,
}

impl Keeper {
    /// Runs the command. Every failure is part of the result; nothing written before is lost.
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
    /// Set once retake ends the run, by which it differs from a child that ends by itself.
    cause: Option<Cause>,
    child: Child,
    /// Stdout and stderr.
    output: [OutputStream<'a>; 2],
    relay_error: Option<i32>,
    limit_watch: Option<LimitWatch>,
    terminals: Terminals,
    left: Vec<LeftProcess>,
    /// Nothing of the run was alive, and its pipes were still open.
    held_open: bool,
    /// The keeper died before it could report the child's end.
    lost_keeper: bool,
}

/// What is known of the child.
#[derive(Default)]
struct Child {
    pid: Option<i32>,
    /// Readable at the child's end; `None` before its start and after its end.
    pidfd: Option<OwnedFd>,
    exit: Option<Exit>,
    start_failure: Option<StartFailure>,
    usage: Usage,
}

/// The child's end.
#[derive(Clone, Copy)]
struct Exit {
    wait_status: i32,
    /// Since the beginning of the run.
    after: Duration,
}

/// The terminals of a run; most runs have none.
struct Terminals {
    /// The user's own, lent to the child.
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

    /// Sleeps until something happens, then handles all of it, control before output.
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
