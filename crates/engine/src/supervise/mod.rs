//! One run from spawn to result: a single loop over the child, its output, the clock and whoever
//! asks for the end.
//!
//! Nothing in here waits for anything but `poll`: not for the child, not for a grandchild that
//! holds a pipe open, not for the reader of our own output.

mod launch;
mod streams;

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant, SystemTime};

use retake_types::{LeftFate, LeftProcess, LimitKind, Outcome, StartFailure, Stream, Usage};

use crate::buffer::PageBuffer;
use crate::cancel::Cancel;
use crate::command::{Command, Detach};
use crate::keeper::{Keeper, Report};
use crate::leftovers;
use crate::relay::Relay;
use crate::sys;
use crate::terminal::{Pty, Raw, Terminal};
use crate::watch::{self, Watch};

/// After the child's exit, how long its leftovers may take to end by themselves.
pub const DRAIN: Duration = Duration::from_millis(300);
/// Between TERM and KILL for a leftover.
const LEFTOVER_GRACE: Duration = Duration::from_millis(200);
/// How long a run that was ended waits for the reader of its output.
const RELAY_PATIENCE: Duration = Duration::from_millis(100);
/// Nothing tells when a shell brings us to the front, so it is looked at this often.
const FRONT_EVERY: Duration = Duration::from_millis(100);
/// How long the keeper may be silent when it owes a report.
const KEEPER_PATIENCE: Duration = Duration::from_secs(2);

/// Where the child's output goes, live; `None` keeps it to the observer.
#[derive(Clone, Copy, Default)]
pub struct Attach<'a> {
    pub stdout: Option<BorrowedFd<'a>>,
    pub stderr: Option<BorrowedFd<'a>>,
}

/// What an observer sees of a run, in order.
pub enum Event<'a> {
    /// The program runs.
    Started {
        pid: i32,
    },
    /// The child, or something it left, wrote this.
    Output {
        stream: Stream,
        bytes: &'a [u8],
    },
    /// The tree is stopped and the clock stands; the run goes on when the observer returns.
    /// `by_child` says that the child was stopped at its terminal, and not we.
    Suspended {
        by_child: bool,
    },
    Finished(&'a Finished),
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct Finished {
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
    /// Runs the command. Whatever happens is in the result; nothing written before is lost.
    pub fn run(
        &mut self,
        command: &Command,
        cancel: &Cancel,
        attach: Attach<'_>,
        observer: &mut dyn FnMut(Event<'_>),
    ) -> Finished {
        let start = SystemTime::now();
        let clock = Instant::now();
        let finished = match Supervision::start(self, command, cancel, attach, observer, clock) {
            Ok(supervision) => supervision.supervise(start),
            Err(failure) => Finished {
                outcome: Outcome::NotStarted(failure),
                pid: None,
                start,
                duration: clock.elapsed(),
                usage: Usage::default(),
                bytes: [0; 2],
                leaked: false,
                left: Vec::new(),
                unread: [0; 2],
                relay_error: None,
            },
        };
        observer(Event::Finished(&finished));
        finished
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
    observer: &'a mut dyn FnMut(Event<'_>),
    clock: Instant,
    streams: [Option<OwnedFd>; 2],
    bytes: [u64; 2],
    /// A busy stream is left alone until then, so that the next read takes more.
    gather_until: [Option<Instant>; 2],
    relays: [Option<Relay<'a>>; 2],
    relay_error: Option<i32>,
    watch: Option<Watch>,
    terminal: Option<Terminal>,
    pty: Option<Pty>,
    typing: Option<Typing>,

    pid: Option<i32>,
    pidfd: Option<OwnedFd>,
    /// The wait status and the run's length, once the child has ended.
    exit: Option<(i32, Duration)>,
    failure: Option<StartFailure>,
    usage: Usage,
    /// Nothing of the run is alive.
    alone: bool,
    cause: Option<Cause>,
    left: Vec<LeftProcess>,
    held_open: bool,
    lost_keeper: bool,
    done: bool,

    deadline: Option<Instant>,
    next_look: Option<Instant>,
    kill_at: Option<Instant>,
    drain_until: Option<Instant>,
    patience_until: Option<Instant>,
    /// When the keeper must have reported, and whether it was reminded.
    owed: Option<(Instant, bool)>,
}

/// Keys on their way from the user's terminal to the pseudo-terminal.
struct Typing {
    raw: Raw,
    keys: Vec<u8>,
    in_front: bool,
}

impl Supervision<'_> {
    fn supervise(mut self, start: SystemTime) -> Finished {
        let mut buffer = PageBuffer::new();
        while !self.done {
            self.step(&mut buffer);
        }
        // The terminal first: whatever is said next goes to a sane one.
        self.terminal = None;
        self.typing = None;
        let duration = self.exit.map_or_else(|| self.clock.elapsed(), |(_, duration)| duration);
        let outcome = self.outcome();
        Finished {
            outcome,
            pid: self.pid,
            start,
            duration,
            usage: self.usage,
            bytes: self.bytes,
            leaked: self.held_open
                || self.left.iter().any(|process| process.fate != LeftFate::Kept),
            left: self.left,
            unread: self.relays.map(|relay| relay.map_or(0, |relay| relay.lost())),
            relay_error: self.relay_error,
        }
    }

    fn outcome(&mut self) -> Outcome {
        if let Some(failure) = self.failure.take() {
            return Outcome::NotStarted(failure);
        }
        let status = self.exit.map(|(status, _)| status);
        let killer = status.filter(|&s| libc::WIFSIGNALED(s)).map(|s| libc::WTERMSIG(s));
        let exhausted = self.watch.as_ref().is_some_and(|watch| watch.cgroup().out_of_memory());
        match self.cause {
            Some(Cause::Limit(limit)) => {
                Outcome::LimitExceeded(limit, killer.unwrap_or(libc::SIGKILL))
            }
            Some(Cause::Timeout) => Outcome::TimedOut,
            Some(Cause::Cancel(signal)) => Outcome::Cancelled(signal),
            None if self.lost_keeper => Outcome::Interrupted,
            None if exhausted => {
                Outcome::LimitExceeded(LimitKind::Memory, killer.unwrap_or(libc::SIGKILL))
            }
            None => match (status, killer) {
                (_, Some(libc::SIGXFSZ)) if self.command.request.limits.fsize_bytes.is_some() => {
                    Outcome::LimitExceeded(LimitKind::Fsize, libc::SIGXFSZ)
                }
                (_, Some(signal)) => Outcome::Signaled(signal),
                (Some(status), None) => Outcome::Exited(libc::WEXITSTATUS(status)),
                (None, None) => Outcome::Interrupted,
            },
        }
    }

    /// Sleeps until something happens, then deals with all of it, control before output.
    fn step(&mut self, buffer: &mut PageBuffer) {
        self.look_to_the_front();
        let entry = |fd: RawFd, events: i16| libc::pollfd { fd, events, revents: 0 };
        let mut polled = [
            entry(self.keeper.socket(), libc::POLLIN),
            entry(self.cancel.fd(), libc::POLLIN),
            entry(self.pidfd.as_ref().map_or(-1, AsRawFd::as_raw_fd), libc::POLLIN),
            entry(self.readable(Stream::Stdout), libc::POLLIN),
            entry(self.readable(Stream::Stderr), libc::POLLIN),
            entry(self.waiting_relay(Stream::Stdout), libc::POLLOUT),
            entry(self.waiting_relay(Stream::Stderr), libc::POLLOUT),
            entry(self.key_source(), libc::POLLIN),
            entry(self.key_sink(), libc::POLLOUT),
        ];
        sys::poll(&mut polled, self.next_instant());
        let ready = polled.map(|entry| entry.revents != 0);
        if ready[0] {
            self.hear();
        }
        if ready[1] {
            self.cancel.drain();
        }
        if ready[2] {
            // The child has ended; the keeper owes its report.
            self.pidfd = None;
            self.expect_report();
        }
        self.asked();
        self.timers(Instant::now());
        for (stream, ready, events) in [
            (Stream::Stdout, ready[3], polled[3].revents),
            (Stream::Stderr, ready[4], polled[4].revents),
        ] {
            if ready {
                self.read(stream, events, buffer);
            }
        }
        for (stream, ready) in [(Stream::Stdout, ready[5]), (Stream::Stderr, ready[6])] {
            if ready && let Some(relay) = &mut self.relays[stream.index()] {
                let passed = relay.resume();
                self.passed(stream, &passed);
            }
        }
        if ready[7] || ready[8] {
            self.type_on();
        }
        self.done = self.done || self.is_over();
    }

    fn next_instant(&self) -> Option<Instant> {
        [
            self.deadline,
            self.next_look,
            self.kill_at,
            self.drain_until,
            self.patience_until,
            self.owed.map(|(at, _)| at),
            self.gather_until[0],
            self.gather_until[1],
            self.typing.as_ref().filter(|t| !t.in_front).map(|_| Instant::now() + FRONT_EVERY),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn is_over(&self) -> bool {
        let ended = self.exit.is_some() && self.alone || self.failure.is_some();
        let silent = self.streams.iter().all(Option::is_none);
        ended && silent && !self.relays.iter().flatten().any(Relay::waits)
    }

    fn hear(&mut self) {
        while let Some(report) = self.keeper.report() {
            self.owed = None;
            match report {
                Report::Started { pid, pidfd } => {
                    self.pid = Some(pid);
                    self.pidfd = pidfd;
                    (self.observer)(Event::Started { pid });
                }
                Report::Failed { stage, errno } => {
                    self.failure = Some(self.explain(stage, errno));
                    self.streams = [None, None];
                }
                Report::Exited { status, usage, alone } => {
                    self.exit = Some((status, self.clock.elapsed()));
                    self.pidfd = None;
                    self.deadline =
                        self.deadline.filter(|_| self.relays.iter().any(Option::is_some));
                    self.usage = usage;
                    self.ended(alone);
                    return;
                }
                Report::Empty { usage } => {
                    self.usage.add(&usage);
                    self.ended(true);
                    return;
                }
                Report::Stopped(signal) => {
                    let by_terminal = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
                    let ours = self.terminal.is_some() || self.typing.is_some();
                    if ours && by_terminal.contains(&signal) {
                        self.suspend(true);
                    }
                }
                Report::Stuck => {
                    for process in self.keeper.processes() {
                        self.note_left(process, LeftFate::Survived);
                    }
                    self.give_up();
                }
                Report::Lost => self.keeper_lost(),
            }
        }
    }

    /// The child has ended, and possibly everything else too.
    fn ended(&mut self, alone: bool) {
        self.alone = alone;
        let now = Instant::now();
        if alone {
            self.kill_at = None;
            self.next_look = None;
            // Only a process outside the tree can still hold a pipe now.
            self.drain_until = Some(now + DRAIN);
            if self.cause.is_some() {
                self.patience_until = Some(now + RELAY_PATIENCE);
            }
        } else if self.cause.is_none() {
            self.drain_until = Some(now + DRAIN);
        }
    }

    /// Looks at what signal handlers and other threads asked for.
    fn asked(&mut self) {
        if self.cancel.take_window()
            && let Some(pty) = &self.pty
        {
            pty.copy_size();
        }
        if self.cancel.take_suspend() {
            self.suspend(false);
        }
        let Some(signal) = self.cancel.requested() else { return };
        if self.exit.is_some() && self.cause.is_none() {
            // The child has ended; what remains is not worth waiting for.
            self.cause = Some(Cause::Cancel(signal));
            self.abandon_rest();
        } else if self.cause.is_none() {
            self.end(Cause::Cancel(signal));
        }
        if self.cancel.kill_requested() && self.kill_at.is_some_and(|at| at > Instant::now()) {
            self.kill_at = Some(Instant::now());
        }
    }

    fn timers(&mut self, now: Instant) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        for until in &mut self.gather_until {
            *until = until.filter(|_| !due(*until));
        }
        if due(self.deadline) {
            self.deadline = None;
            if self.exit.is_none() {
                self.end(Cause::Timeout);
            } else if self.relays.iter().flatten().any(Relay::waits) {
                // The child made it, its output did not.
                self.cause = Some(Cause::Timeout);
                self.abandon_rest();
            }
        }
        if due(self.next_look) {
            self.next_look = Some(now + watch::EVERY);
            let exceeded = self.watch.as_mut().and_then(Watch::exceeded);
            if let Some(limit) = exceeded.filter(|_| self.cause.is_none()) {
                self.end(Cause::Limit(limit));
            }
        }
        if due(self.kill_at) {
            self.kill_at = None;
            self.keeper.kill();
            self.expect_report();
        }
        if due(self.drain_until) {
            self.drain_until = None;
            self.drained();
        }
        if due(self.patience_until) {
            self.patience_until = None;
            self.relays.iter_mut().flatten().for_each(Relay::give_up);
        }
        if let Some((at, reminded)) = self.owed
            && at <= now
        {
            self.remind(reminded);
        }
    }

    /// Starts the ending: TERM now, KILL after the grace. A limit is a wall: no grace.
    fn end(&mut self, cause: Cause) {
        self.cause = Some(cause);
        self.deadline = None;
        self.drain_until = None;
        if self.pid.is_none() && self.failure.is_none() {
            // Not even started: the keeper hangs in the kernel with it.
            self.expect_report();
        }
        let grace = match cause {
            Cause::Limit(_) => Duration::ZERO,
            Cause::Timeout | Cause::Cancel(_) => self.command.request.grace,
        };
        if !grace.is_zero() {
            self.keeper.signal(libc::SIGTERM);
        }
        self.kill_at = Some(Instant::now() + grace);
    }

    /// After the child's own end: leftovers are killed and a slow reader is left behind.
    fn abandon_rest(&mut self) {
        self.relays.iter_mut().flatten().for_each(Relay::give_up);
        if !self.alone && self.left.is_empty() {
            self.drain_until = None;
            self.drained();
        }
    }

    /// The time for leftovers to end by themselves is over.
    fn drained(&mut self) {
        if self.exit.is_none() && self.failure.is_none() {
            return;
        }
        if self.alone {
            // Nothing of ours is alive: someone else holds the pipes, or a process told to stay.
            self.held_open = self.streams.iter().any(Option::is_some)
                && !self.left.iter().any(|process| process.fate == LeftFate::Kept);
            self.streams = [None, None];
            return;
        }
        let mut others = false;
        for process in self.keeper.processes() {
            let stays = match &self.command.request.detach {
                Detach::None => false,
                Detach::All => true,
                Detach::Named(names) => process.is_named(names),
            };
            if stays {
                self.keeper.keep(process.pid);
                self.note_left(process, LeftFate::Kept);
            } else {
                others = true;
                self.note_left(process, LeftFate::Ended);
            }
        }
        if others || self.left.is_empty() {
            // Nothing to be seen may mean that it moves too fast to be seen.
            self.keeper.signal(libc::SIGTERM);
            self.kill_at = Some(Instant::now() + LEFTOVER_GRACE);
        } else {
            self.give_up();
        }
    }

    /// Ends the supervision although processes are left.
    fn give_up(&mut self) {
        self.alone = true;
        self.kill_at = None;
        self.streams = [None, None];
        self.exit.get_or_insert((libc::SIGKILL, self.clock.elapsed()));
        if self.cause.is_some() {
            self.patience_until = Some(Instant::now() + RELAY_PATIENCE);
        }
    }

    fn note_left(&mut self, process: leftovers::Process, fate: LeftFate) {
        match self.left.iter_mut().find(|left| left.pid == process.pid) {
            Some(left) => left.fate = fate,
            None => {
                self.left.push(LeftProcess { pid: process.pid, command: process.command, fate })
            }
        }
    }

    fn expect_report(&mut self) {
        self.owed.get_or_insert((Instant::now() + KEEPER_PATIENCE, false));
    }

    /// The keeper owes a report. Someone may have stopped it; if it is worse, we take over.
    fn remind(&mut self, reminded: bool) {
        if reminded {
            self.keeper.destroy();
            self.keeper_lost();
        } else {
            // SAFETY: our own child, not yet waited for.
            unsafe { libc::kill(self.keeper.pid(), libc::SIGCONT) };
            // A start may take its time, on a slow disk say, unless the run is to end.
            let last = self.pid.is_some() || self.cause.is_some();
            self.owed = Some((Instant::now() + KEEPER_PATIENCE, last));
        }
    }

    /// Without a keeper its processes are ours: end them.
    fn keeper_lost(&mut self) {
        self.owed = None;
        // With the child's own end known, nothing of the outcome is lost with it.
        self.lost_keeper = self.exit.is_none();
        leftovers::end_orphans(
            self.keeper.pid(),
            self.pid,
            &self.command.environment,
            self.keeper.owns_children(),
        );
        self.exit.get_or_insert((libc::SIGKILL, self.clock.elapsed()));
        self.ended(true);
    }

    /// Stops tree and clock until the observer returns.
    fn suspend(&mut self, by_child: bool) {
        let at = Instant::now();
        self.keeper.signal(libc::SIGSTOP);
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back();
        }
        if let Some(typing) = &self.typing {
            typing.raw.pause();
        }
        (self.observer)(Event::Suspended { by_child });
        // What stopped us is over; a stop meanwhile was part of it.
        self.cancel.take_suspend();
        if let Some(typing) = &self.typing {
            typing.raw.again();
        }
        if let (Some(terminal), Some(pid)) = (&mut self.terminal, self.pid) {
            terminal.lend(pid);
        }
        self.keeper.signal(libc::SIGCONT);
        let stood = at.elapsed();
        for instant in [&mut self.deadline, &mut self.kill_at, &mut self.drain_until] {
            *instant = instant.map(|instant| instant + stood);
        }
    }
}
