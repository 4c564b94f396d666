//! The phases of a run: what is alive, what is awaited, and the transitions to its end.
//!
//! ```text
//! Starting ── Running ─┬─ Draining ─┐
//!    │           │     │            │
//!    └───────────┴─ Terminating ── Killing
//!                      │            │
//!                      └─ Emptying ─┴─ Done
//! ```

use std::time::{Duration, Instant};

use retake_types::{LeftFate, LeftProcess};

use super::{Cause, Exit, Supervision};
use crate::command::Detach;
use crate::leftovers;
use crate::limit_watch::{LimitWatch, WATCH_INTERVAL};
use crate::output_relay::OutputRelay;

/// How long leftovers may take to exit by themselves after the child's exit.
pub const DRAIN: Duration = Duration::from_millis(300);
/// Time between SIGTERM and SIGKILL for a leftover.
const LEFTOVER_GRACE: Duration = Duration::from_millis(200);
/// How long an ended run waits for the reader of its output.
const RELAY_PATIENCE: Duration = Duration::from_millis(100);
/// Coming to the foreground is not reported, so it is polled at this interval.
const FOREGROUND_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The keeper was told to start the program and has not answered.
    Starting,
    Running,
    /// The child has exited; the rest of its tree may exit by itself until then.
    Draining {
        until: Instant,
    },
    /// The tree got SIGTERM, and gets SIGKILL at this instant.
    Terminating {
        kill_at: Instant,
    },
    /// The tree gets SIGKILL until nothing of it is left.
    Killing,
    /// No process of the run is alive. The pipes are read until they close, or until this instant;
    /// without an instant they are closed, and only the reader of retake's output is awaited.
    Emptying {
        pipes_until: Option<Instant>,
    },
    Done,
}

impl Phase {
    /// When the phase ends by itself.
    fn ends(&self) -> Option<Instant> {
        match *self {
            Self::Draining { until } => Some(until),
            Self::Terminating { kill_at } => Some(kill_at),
            Self::Emptying { pipes_until } => pipes_until,
            Self::Starting | Self::Running | Self::Killing | Self::Done => None,
        }
    }

    /// Extends the phase, because the clock was stopped this long.
    pub(super) fn postpone(&mut self, by: Duration) {
        match self {
            Self::Draining { until: at }
            | Self::Terminating { kill_at: at }
            | Self::Emptying { pipes_until: Some(at) } => *at += by,
            _ => {}
        }
    }

    /// Whether no process of the run is alive.
    pub(super) fn tree_is_gone(&self) -> bool {
        matches!(self, Self::Emptying { .. } | Self::Done)
    }
}

/// The deadlines of more than one phase.
pub(super) struct Timers {
    /// When the run times out.
    pub(super) deadline: Option<Instant>,
    /// When the limits of the tree are checked next.
    pub(super) limit_check: Option<Instant>,
    /// When pending output is dropped.
    pub(super) relay_until: Option<Instant>,
    /// When the keeper's report is due; `None` if none is expected.
    pub(super) report_due: Option<ReportDue>,
}

#[derive(Clone, Copy)]
pub(super) struct ReportDue {
    pub(super) at: Instant,
    /// It was due before, and the keeper was reminded.
    pub(super) reminded: bool,
}

impl Supervision<'_> {
    pub(super) fn next_instant(&self) -> Option<Instant> {
        let keyboard = self.terminals.keyboard.as_ref().filter(|keyboard| !keyboard.foreground);
        [
            self.phase.ends(),
            self.timers.deadline,
            self.timers.limit_check,
            self.timers.relay_until,
            self.timers.report_due.map(|due| due.at),
            self.output[0].gather_until,
            self.output[1].gather_until,
            keyboard.map(|_| Instant::now() + FOREGROUND_INTERVAL),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    pub(super) fn handle_timers(&mut self, now: Instant) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        for stream in &mut self.output {
            stream.gather_until = stream.gather_until.filter(|_| !due(stream.gather_until));
        }
        if due(self.timers.deadline) {
            self.timers.deadline = None;
            if self.child.exit.is_none() {
                self.end(Cause::Timeout);
            } else if self.relay_waits() {
                // The child exited in time, but its output was not read in time.
                self.cause = Some(Cause::Timeout);
                self.abandon_rest();
            }
        }
        if due(self.timers.limit_check) {
            self.timers.limit_check = Some(now + WATCH_INTERVAL);
            let exceeded = self.limit_watch.as_mut().and_then(LimitWatch::exceeded);
            if let Some(limit) = exceeded.filter(|_| self.cause.is_none()) {
                self.end(Cause::Limit(limit));
            }
        }
        if due(self.phase.ends()) {
            self.end_phase();
        }
        if due(self.timers.relay_until) {
            self.timers.relay_until = None;
            self.give_up_relays();
        }
        if let Some(report) = self.timers.report_due
            && report.at <= now
        {
            self.remind_keeper(report);
        }
    }

    /// The time of the phase is over.
    fn end_phase(&mut self) {
        match self.phase {
            Phase::Draining { .. } => self.end_leftovers(),
            Phase::Terminating { .. } => {
                self.phase = Phase::Killing;
                self.keeper.kill();
                self.expect_report();
            }
            Phase::Emptying { .. } => {
                // A process outside the tree, or one that may keep running, holds the pipes open.
                self.held_open = self.output.iter().any(|stream| stream.pipe.is_some())
                    && !self.left.iter().any(|process| process.fate == LeftFate::Kept);
                self.close_pipes();
                self.phase = Phase::Emptying { pipes_until: None };
            }
            Phase::Starting | Phase::Running | Phase::Killing | Phase::Done => {}
        }
    }

    /// Ends the run: SIGTERM now, SIGKILL after the grace. An exceeded limit allows no grace.
    pub(super) fn end(&mut self, cause: Cause) {
        self.cause = Some(cause);
        self.timers.deadline = None;
        if self.phase == Phase::Starting {
            // The keeper may hang in the kernel while it starts a process.
            self.expect_report();
        }
        let grace = match cause {
            Cause::Limit(_) => Duration::ZERO,
            Cause::Timeout | Cause::Cancel(_) => self.command.launch.grace,
        };
        if !grace.is_zero() {
            self.keeper.signal(libc::SIGTERM);
        }
        self.phase = Phase::Terminating { kill_at: Instant::now() + grace };
    }

    /// The child has exited, but not all processes of its tree.
    pub(super) fn leave_to_drain(&mut self) {
        if self.cause.is_none() {
            self.phase = Phase::Draining { until: Instant::now() + DRAIN };
        }
    }

    /// The last process of the run has exited. Only one outside the tree can still hold a pipe.
    pub(super) fn tree_ended(&mut self) {
        self.empty_pipes(Some(Instant::now() + DRAIN));
    }

    fn empty_pipes(&mut self, pipes_until: Option<Instant>) {
        self.phase = Phase::Emptying { pipes_until };
        self.timers.limit_check = None;
        if self.cause.is_some() {
            self.timers.relay_until = Some(Instant::now() + RELAY_PATIENCE);
        }
    }

    /// Nothing was started.
    pub(super) fn not_started(&mut self) {
        self.close_pipes();
        self.phase = Phase::Emptying { pipes_until: None };
    }

    /// After the child's own exit: ends leftovers, and does not wait for a slow reader.
    pub(super) fn abandon_rest(&mut self) {
        self.give_up_relays();
        if !self.phase.tree_is_gone() && self.left.is_empty() {
            self.end_leftovers();
        }
    }

    /// The time for leftovers to exit by themselves is over.
    fn end_leftovers(&mut self) {
        let mut others = false;
        for process in self.keeper.processes() {
            let stays = match &self.command.launch.detach {
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
            // An empty list may mean that they fork faster than they can be listed.
            self.keeper.signal(libc::SIGTERM);
            self.phase = Phase::Terminating { kill_at: Instant::now() + LEFTOVER_GRACE };
        } else {
            self.stop_waiting_for_tree();
        }
    }

    /// Ends the supervision of the tree although processes are left.
    pub(super) fn stop_waiting_for_tree(&mut self) {
        self.close_pipes();
        self.note_killed();
        self.empty_pipes(None);
    }

    /// A child whose exit was not reported counts as killed by SIGKILL.
    pub(super) fn note_killed(&mut self) {
        let after = self.clock.elapsed();
        self.child.exit.get_or_insert(Exit { wait_status: libc::SIGKILL, after });
    }

    pub(super) fn note_left(&mut self, process: leftovers::LeftoverProcess, fate: LeftFate) {
        match self.left.iter_mut().find(|left| left.pid == process.pid) {
            Some(left) => left.fate = fate,
            None => {
                self.left.push(LeftProcess { pid: process.pid, command: process.command, fate })
            }
        }
    }

    pub(super) fn finish_if_over(&mut self) {
        let silent = self.output.iter().all(|stream| stream.pipe.is_none());
        if self.phase.tree_is_gone() && silent && !self.relay_waits() {
            self.phase = Phase::Done;
        }
    }

    fn close_pipes(&mut self) {
        self.output.iter_mut().for_each(|stream| stream.pipe = None);
    }

    pub(super) fn relay_waits(&self) -> bool {
        self.output.iter().filter_map(|stream| stream.relay.as_ref()).any(OutputRelay::waits)
    }

    fn give_up_relays(&mut self) {
        let relays = self.output.iter_mut().filter_map(|stream| stream.relay.as_mut());
        relays.for_each(OutputRelay::give_up);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_clock_gives_every_phase_with_an_end_more_time() {
        let (now, more) = (Instant::now(), Duration::from_secs(3));
        for mut phase in [
            Phase::Draining { until: now },
            Phase::Terminating { kill_at: now },
            Phase::Emptying { pipes_until: Some(now) },
        ] {
            assert_eq!(phase.ends(), Some(now), "{phase:?}");
            phase.postpone(more);
            assert_eq!(phase.ends(), Some(now + more), "{phase:?}");
        }
        for mut phase in [
            Phase::Starting,
            Phase::Running,
            Phase::Killing,
            Phase::Emptying { pipes_until: None },
            Phase::Done,
        ] {
            let before = phase;
            phase.postpone(more);
            assert_eq!((phase, phase.ends()), (before, None));
        }
    }

    #[test]
    fn the_tree_is_gone_only_in_the_last_phases() {
        let now = Instant::now();
        assert!(Phase::Emptying { pipes_until: Some(now) }.tree_is_gone());
        assert!(Phase::Done.tree_is_gone());
        for phase in [
            Phase::Starting,
            Phase::Running,
            Phase::Draining { until: now },
            Phase::Terminating { kill_at: now },
            Phase::Killing,
        ] {
            assert!(!phase.tree_is_gone(), "{phase:?}");
        }
    }
}
