//! Whether a scheduler told us to stop, and who wanted that.
//!
//! A scheduler signals every process of a task, the innermost first. A shell whose child was ended
//! so can go on, and end well, before anyone else hears of it: an ending is believed only once it is
//! known that no signal follows. Slurm announces one: it sends CONT to all processes, for some may be
//! stopped, and only when all have it TERM to all. So nothing waits that was not announced.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use retake_engine::Cancel;
use retake_types::{Ending, ErrorCode, Outcome, RunError, Word, signal_name};

use super::batch::Layout;

/// The command can die of a signal before we hear it.
const HEARING: Duration = Duration::from_millis(500);
/// How long ago an announcement can have been: a busy machine takes its time for what follows.
const ANNOUNCED: Duration = Duration::from_secs(10);

/// When the last CONT came, in milliseconds of the clock that never goes back; 0 for never.
static CONTINUED: AtomicI64 = AtomicI64::new(0);

extern "C" fn on_continue(_: i32) {
    CONTINUED.store(now(), Ordering::SeqCst);
}

fn now() -> i64 {
    // SAFETY: zero is a valid time, and the call is one that a signal handler may make.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time);
        time.tv_sec * 1000 + time.tv_nsec / 1_000_000
    }
}

/// Listens for announcements from now on.
pub(super) fn listen() {
    // SAFETY: the handler reads a clock and writes an atomic. Nothing that waits is disturbed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_continue as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGCONT, &raw const action, std::ptr::null_mut());
    }
}

fn announced() -> bool {
    let at = CONTINUED.load(Ordering::SeqCst);
    at != 0 && u128::try_from(now() - at).is_ok_and(|ago| ago < ANNOUNCED.as_millis())
}

/// Who wanted the end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// Whoever submitted it; because of this signal, if it was one.
    Submitter(Option<i32>),
    /// Not the submitter.
    SomeoneElse,
}

impl By {
    pub fn message(&self) -> String {
        match self {
            Self::Submitter(Some(signal)) => {
                format!("cancelled by its submitter ({})", signal_name(*signal))
            }
            Self::Submitter(None) => "cancelled by its submitter".to_owned(),
            Self::SomeoneElse => "cancelled in Slurm by someone else".to_owned(),
        }
    }

    pub fn error(&self) -> RunError {
        RunError {
            code: ErrorCode::Cancelled,
            message: self.message(),
            hint: None,
            problems: Vec::new(),
        }
    }

    /// The signal that ended it, or would have.
    pub(super) fn signal(&self) -> i32 {
        match self {
            Self::Submitter(Some(signal)) => *signal,
            Self::Submitter(None) | Self::SomeoneElse => libc::SIGTERM,
        }
    }

    /// Makes it the ending of a run that was cancelled.
    pub(super) fn end(&self, ending: &mut Ending) {
        let signal = self.signal();
        ending.outcome = Word::Cancelled;
        ending.exit_code = Some(128 + signal);
        ending.signal = Some(signal_name(signal));
        ending.error = Some(self.error());
    }
}

/// Who told us to stop, if that is why the run ended, or if it ended only after that.
pub(super) fn told(outcome: &Outcome, cancel: &Cancel, layout: &Layout) -> Option<By> {
    const BY_SIGNAL: [i32; 2] = [128 + libc::SIGTERM, 128 + libc::SIGKILL];
    let patience = match outcome {
        Outcome::Cancelled(_) => return Some(layout.unwanted_by().unwrap_or(By::SomeoneElse)),
        Outcome::Exited(_) | Outcome::Signaled(_) if announced() => HEARING,
        Outcome::Signaled(libc::SIGTERM | libc::SIGKILL) => HEARING,
        Outcome::Exited(code) if BY_SIGNAL.contains(code) => HEARING,
        Outcome::Exited(_) | Outcome::Signaled(_) => Duration::ZERO,
        _ => return None,
    };
    let until = Instant::now() + patience;
    while cancel.requested().is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let submitter = layout.unwanted_by();
    if cancel.requested().is_some() { submitter.or(Some(By::SomeoneElse)) } else { submitter }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_was_announced_is_waited_for_and_one_that_was_not_is_not() {
        let (_dir, layout) = Layout::in_a_test();
        let well = Outcome::Exited(0);
        let quiet = Cancel::new().unwrap();
        assert_eq!(told(&well, &quiet, &layout), None);
        listen();
        // SAFETY: to ourselves; it is handled.
        unsafe { libc::raise(libc::SIGCONT) };
        assert!(announced());
        let late = Cancel::new().unwrap();
        let by = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                late.cancel(libc::SIGTERM);
            });
            told(&well, &late, &layout)
        });
        assert_eq!(by, Some(By::SomeoneElse));
        // Announced, and nothing came of it.
        assert_eq!(told(&well, &quiet, &layout), None);
        assert_eq!(told(&Outcome::TimedOut, &late, &layout), None);
    }

    #[test]
    fn what_ends_after_its_batch_was_cancelled_is_cancelled() {
        let (_dir, layout) = Layout::in_a_test();
        let quiet = Cancel::new().unwrap();
        layout.mark_unwanted(Some(libc::SIGINT)).unwrap();
        let by = told(&Outcome::Exited(0), &quiet, &layout).unwrap();
        assert_eq!(by, By::Submitter(Some(libc::SIGINT)));
        assert_eq!(by.message(), "cancelled by its submitter (SIGINT)");
        layout.mark_unwanted(None).unwrap();
        assert_eq!(told(&Outcome::Exited(3), &quiet, &layout), Some(By::Submitter(None)));
    }
}
