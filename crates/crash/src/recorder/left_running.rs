//! The end of a workload. Processes that outlive its first one, such as a server in the
//! background, get some time to end by themselves, while everything they do is recorded; the
//! rest are terminated and counted.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use libc::pid_t;

use super::cpu_pinning::CpuPin;
use super::error::RecordError;
use super::ptrace::{self, Event, Polled};
use super::tracer::{Tracer, WorkloadOutcome};
use crate::operation::Entry;

/// Default time for processes that outlive the workload's first one to end.
pub const LINGER: Duration = Duration::from_secs(5);

/// How often to yield before sleeping: a busy task stops again soon, an idle one costs little.
const YIELDS: u32 = 50;
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(5);

impl Tracer {
    /// Traces until no process of the workload is alive. `first` is the started process; processes
    /// that it leaves running are terminated if they do not end by themselves within the limits.
    pub(super) fn run(
        &mut self,
        first: pid_t,
        limits: LingerLimits<'_>,
    ) -> Result<WorkloadOutcome, RecordError> {
        let mut ended = None;
        let mut failed = None;
        let mut kills = false;
        let mut linger: Option<LingerWait<'_>> = None;
        let mut entries_before = 0;
        self.appear(first);
        self.pin = CpuPin::new(first);
        loop {
            let waited = match &linger {
                Some(linger) => linger.wait(),
                None => ptrace::wait().map(|next| {
                    next.map_or(Waited::NoTasks, |(pid, event)| Waited::Event(pid, event))
                }),
            };
            let (pid, event) = match waited.map_err(|s| RecordError::system("waitpid", s))? {
                Waited::Event(pid, event) => (pid, event),
                Waited::NoTasks => break,
                over @ (Waited::TimeIsUp | Waited::Cancelled) => {
                    if matches!(over, Waited::Cancelled) {
                        failed = failed.or(Some(RecordError::Cancelled));
                    }
                    (linger, kills) = (None, true);
                    self.kill_all();
                    continue;
                }
            };
            match event {
                Event::Exited(code) if pid == first => ended = Some(WorkloadOutcome::Exited(code)),
                Event::Killed(signal) if pid == first => {
                    ended = Some(WorkloadOutcome::Signaled(signal))
                }
                Event::Killed(libc::SIGKILL) if kills && self.process(pid) == pid => {
                    self.left_running.ended += 1;
                }
                _ => {}
            }
            let step = self.step(pid, event);
            if failed.is_none()
                && let Err(error) = step
            {
                failed = Some(error);
            }
            if pid == first && ended.is_some() && !self.tasks.is_empty() {
                self.left_running.processes = self.processes().len() as u32;
                entries_before = self.entries.len();
                linger = Some(limits.begin());
            }
            let killed = matches!(ended, Some(WorkloadOutcome::Signaled(_)));
            if kills || killed || failed.is_some() {
                (linger, kills) = (None, true);
                self.kill_all();
            }
        }
        self.pin = None;
        if let Some(failed) = failed {
            return Err(failed);
        }
        if self.left_running.ended == 0 && self.entries.len() == entries_before {
            self.left_running.processes = 0;
        }
        self.record_mapped_writes(first, true)?;
        if !self.line.is_empty() {
            let line = std::mem::take(&mut self.line);
            self.entries.push(Entry::Acknowledgement(line));
        }
        ended.ok_or_else(|| {
            RecordError::system("waitpid", io::Error::from_raw_os_error(libc::ECHILD))
        })
    }

    fn kill_all(&self) {
        for (pid, task) in &self.tasks {
            // SAFETY: plain numbers. Neither has been waited for, so both ids are still valid.
            unsafe { libc::syscall(libc::SYS_tgkill, task.process, *pid, libc::SIGKILL) };
        }
    }
}

/// How long to wait for processes that the first one leaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct LingerLimits<'a> {
    pub(super) linger: Duration,
    /// When the workload must have ended, if there is a limit.
    pub(super) deadline: Option<Instant>,
    pub(super) cancel: Option<&'a OwnedFd>,
}

/// The result of a wait.
#[derive(Debug)]
enum Waited {
    Event(pid_t, Event),
    NoTasks,
    TimeIsUp,
    Cancelled,
}

/// A wait in progress, after the first process has ended.
#[derive(Debug)]
struct LingerWait<'a> {
    until: Instant,
    cancel: Option<&'a OwnedFd>,
}

impl<'a> LingerLimits<'a> {
    fn begin(self) -> LingerWait<'a> {
        let now = Instant::now();
        // Without a reachable deadline, a day.
        let until = now.checked_add(self.linger).unwrap_or(now + Duration::from_secs(86_400));
        let until = self.deadline.map_or(until, |deadline| until.min(deadline));
        LingerWait { until, cancel: self.cancel }
    }
}

impl LingerWait<'_> {
    /// Waits for the next event. The kernel has no wait for tasks with a time limit, so it is polled
    /// repeatedly.
    fn wait(&self) -> io::Result<Waited> {
        let (mut asked, mut pause) = (0, SHORTEST);
        loop {
            // Checked first: a task that never rests always has an event.
            if self.is_cancelled() {
                return Ok(Waited::Cancelled);
            }
            if Instant::now() >= self.until {
                return Ok(Waited::TimeIsUp);
            }
            match ptrace::poll()? {
                Polled::Event(pid, event) => return Ok(Waited::Event(pid, event)),
                Polled::NoTasks => return Ok(Waited::NoTasks),
                Polled::Nothing => {}
            }
            if asked < YIELDS {
                asked += 1;
                thread::yield_now();
            } else {
                thread::sleep(pause);
                pause = (pause * 2).min(LONGEST);
            }
        }
    }

    fn is_cancelled(&self) -> bool {
        let Some(cancel) = self.cancel else { return false };
        let mut poll = libc::pollfd { fd: cancel.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor that lives as long as the call.
        unsafe { libc::poll(&raw mut poll, 1, 0) };
        poll.revents != 0
    }
}
