//! Handles the keeper's reports, and missing ones.

use std::time::{Duration, Instant};

use retake_types::LeftFate;
use rustix::process::Signal;

use super::phase::{Phase, ReportDue};
use super::{Exit, ProcessEvent, Supervision};
use crate::keeper::KeeperReport;
use crate::leftovers;

/// How long the keeper may take for an expected report.
pub(super) const KEEPER_PATIENCE: Duration = Duration::from_secs(2);

impl Supervision<'_> {
    pub(super) fn read_reports(&mut self) {
        while let Some(report) = self.keeper.report() {
            self.timers.report_due = None;
            match report {
                KeeperReport::Started { pid, pidfd } => {
                    self.child.pid = Some(pid);
                    self.child.pidfd = pidfd;
                    if self.phase == Phase::Starting {
                        self.phase = Phase::Running;
                    }
                    (self.observer)(ProcessEvent::Started { pid });
                }
                KeeperReport::Failed { stage, errno } => {
                    self.child.start_failure = Some(self.explain(stage, errno));
                    self.not_started();
                }
                KeeperReport::Exited { status, usage, alone } => {
                    let after = self.clock.elapsed();
                    self.child.exit = Some(Exit { wait_status: status, after });
                    self.child.pidfd = None;
                    self.child.usage = usage;
                    // Data for a reader of retake's output is still pending.
                    let relayed = self.output.iter().any(|stream| stream.relay.is_some());
                    self.timers.deadline = self.timers.deadline.filter(|_| relayed);
                    if alone {
                        self.tree_ended();
                    } else {
                        self.leave_to_drain();
                    }
                    return;
                }
                KeeperReport::Empty { usage } => {
                    self.child.usage.add(&usage);
                    self.tree_ended();
                    return;
                }
                KeeperReport::Stopped(signal) => {
                    let by_terminal = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
                    if self.terminals.in_use() && by_terminal.contains(&signal) {
                        self.suspend(true);
                    }
                }
                KeeperReport::Stuck => {
                    for process in self.keeper.processes() {
                        self.note_left(process, LeftFate::Survived);
                    }
                    self.stop_waiting_for_tree();
                }
                KeeperReport::Lost => self.replace_lost_keeper(),
            }
        }
    }

    pub(super) fn expect_report(&mut self) {
        let at = Instant::now() + KEEPER_PATIENCE;
        self.timers.report_due.get_or_insert(ReportDue { at, reminded: false });
    }

    /// A report is overdue. The keeper may have been stopped and is continued; if that does not
    /// help, it is killed and its processes are ended here.
    pub(super) fn remind_keeper(&mut self, due: ReportDue) {
        if due.reminded {
            self.keeper.destroy();
            self.replace_lost_keeper();
            return;
        }
        self.keeper.signal_keeper(Signal::CONT);
        // A start may take long, on a slow disk for example, unless the run is to end.
        let reminded = self.child.pid.is_some() || self.cause.is_some();
        self.timers.report_due = Some(ReportDue { at: Instant::now() + KEEPER_PATIENCE, reminded });
    }

    /// Without a keeper its processes are retake's children: ends them.
    fn replace_lost_keeper(&mut self) {
        self.timers.report_due = None;
        // If the child's exit is known, the outcome is complete without the keeper.
        self.lost_keeper = self.child.exit.is_none();
        leftovers::end_orphans(
            self.keeper.pid(),
            self.child.pid,
            &self.command.launch.environment,
            self.keeper.owns_children(),
        );
        self.note_killed();
        self.tree_ended();
    }
}
