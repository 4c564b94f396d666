//! Builds the result of a run.

use std::time::{Duration, SystemTime};

use retake_types::{LeftFate, LimitKind, Outcome, StartFailure, Usage};

use super::{Cause, ProcessResult, Supervision};

impl ProcessResult {
    /// Nothing was started or attempted.
    pub fn not_started(failure: StartFailure) -> Self {
        Self::start_failed(failure, SystemTime::now(), Duration::ZERO)
    }

    pub(super) fn start_failed(failure: StartFailure, start: SystemTime, took: Duration) -> Self {
        Self {
            outcome: Outcome::NotStarted(failure),
            pid: None,
            start,
            duration: took,
            usage: Usage::default(),
            bytes: [0; 2],
            leaked: false,
            left: Vec::new(),
            unread: [0; 2],
            relay_error: None,
        }
    }
}

impl Supervision<'_> {
    pub(super) fn into_result(mut self, start: SystemTime) -> ProcessResult {
        // Restores the terminal first, for output that follows.
        self.terminals.restore();
        let duration = self.child.exit.map_or_else(|| self.clock.elapsed(), |exit| exit.after);
        let outcome = self.outcome();
        let bytes = self.output.each_ref().map(|stream| stream.bytes);
        let unread = self.output.each_ref().map(|stream| stream.lost());
        ProcessResult {
            outcome,
            pid: self.child.pid,
            start,
            duration,
            usage: self.child.usage,
            bytes,
            leaked: self.held_open
                || self.left.iter().any(|process| process.fate != LeftFate::Kept),
            left: self.left,
            unread,
            relay_error: self.relay_error,
        }
    }

    fn outcome(&mut self) -> Outcome {
        if let Some(failure) = self.child.start_failure.take() {
            return Outcome::NotStarted(failure);
        }
        let status = self.child.exit.map(|exit| exit.wait_status);
        let signal = status.filter(|&s| libc::WIFSIGNALED(s)).map(|s| libc::WTERMSIG(s));
        let out_of_memory =
            self.limit_watch.as_ref().is_some_and(|watch| watch.cgroup().out_of_memory());
        let limit_signal = signal.unwrap_or(libc::SIGKILL);
        match self.cause {
            Some(Cause::Limit(limit)) => Outcome::LimitExceeded(limit, limit_signal),
            Some(Cause::Timeout) => Outcome::TimedOut,
            Some(Cause::Cancel(signal)) => Outcome::Cancelled(signal),
            None if self.lost_keeper => Outcome::Interrupted,
            None if out_of_memory => Outcome::LimitExceeded(LimitKind::Memory, limit_signal),
            None => match (status, signal) {
                (_, Some(libc::SIGXFSZ)) if self.command.launch.limits.fsize_bytes.is_some() => {
                    Outcome::LimitExceeded(LimitKind::Fsize, libc::SIGXFSZ)
                }
                (_, Some(signal)) => Outcome::Signaled(signal),
                (Some(status), None) => Outcome::Exited(libc::WEXITSTATUS(status)),
                (None, None) => Outcome::Interrupted,
            },
        }
    }
}
