//! Requests of signal handlers and other threads to a run: to end, to pause, to adopt the
//! terminal's size.

use std::time::Instant;

use super::phase::Phase;
use super::{Cause, ProcessEvent, Supervision, Terminals};

impl Supervision<'_> {
    pub(super) fn handle_requests(&mut self) {
        if self.cancel.take_window()
            && let Some(pty) = &self.terminals.pty
        {
            pty.copy_size();
        }
        if self.cancel.take_suspend() {
            self.suspend(false);
        }
        let Some(signal) = self.cancel.requested() else { return };
        if self.cause.is_none() && self.child.start_failure.is_none() {
            if self.child.exit.is_some() {
                // The child has exited; the rest is not awaited.
                self.cause = Some(Cause::Cancel(signal));
                self.abandon_rest();
            } else {
                self.end(Cause::Cancel(signal));
            }
        }
        let now = Instant::now();
        if self.cancel.kill_requested()
            && let Phase::Terminating { kill_at } = &mut self.phase
            && *kill_at > now
        {
            *kill_at = now;
        }
    }

    /// Stops tree and clock until the observer returns.
    pub(super) fn suspend(&mut self, by_child: bool) {
        let at = Instant::now();
        self.keeper.signal(libc::SIGSTOP);
        if let Some(terminal) = &mut self.terminals.lent {
            terminal.take_back();
        }
        if let Some(keyboard) = &self.terminals.keyboard {
            keyboard.raw.pause();
        }
        (self.observer)(ProcessEvent::Suspended { by_child });
        // Continued: a stop request that arrived meanwhile was part of it.
        self.cancel.take_suspend();
        if let Some(keyboard) = &self.terminals.keyboard {
            keyboard.raw.resume();
        }
        if let (Some(terminal), Some(pid)) = (&mut self.terminals.lent, self.child.pid) {
            terminal.lend(pid);
        }
        self.keeper.signal(libc::SIGCONT);
        let stopped = at.elapsed();
        self.phase.postpone(stopped);
        self.timers.deadline = self.timers.deadline.map(|deadline| deadline + stopped);
    }
}

impl Terminals {
    /// Whether the child can be stopped at the user's terminal or one connected to it.
    pub(super) fn in_use(&self) -> bool {
        self.lent.is_some() || self.keyboard.is_some()
    }

    /// Restores the user's terminal.
    pub(super) fn restore(&mut self) {
        self.lent = None;
        self.keyboard = None;
    }
}
