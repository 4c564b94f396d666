//! Whether the scheduler cancelled a run on a node, and on whose behalf.
//!
//! A scheduler signals every process of a task, the innermost first. A shell whose child was killed
//! that way can continue, and exit with 0, before the runner receives its own signal: an outcome is
//! final only once it is known that no signal follows. Slurm announces one: it sends CONT to all
//! processes, because some may be stopped, and then TERM to all. So the runner waits for a signal only
//! after such an announcement.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use retake_engine::Cancel;
use retake_types::Outcome;
use rustix::time::{ClockId, clock_gettime};

use crate::batch_dir::BatchDir;
use crate::cancelled_by::CancelledBy;

/// Maximum delay between the command's and the runner's signal.
const SIGNAL_DELAY: Duration = Duration::from_millis(500);
/// How long after an announcement a signal may follow: a busy machine takes its time.
const ANNOUNCEMENT_VALID: Duration = Duration::from_secs(10);

/// When the last CONT arrived, in milliseconds of the monotonic clock; 0 for never.
static CONTINUED: AtomicI64 = AtomicI64::new(0);

extern "C" fn on_continue(_: i32) {
    CONTINUED.store(now(), Ordering::SeqCst);
}

fn now() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}

/// Starts to watch for announcements.
pub(crate) fn watch_for_announcements() {
    // SAFETY: the handler reads a clock and writes an atomic. SA_RESTART keeps waiting calls undisturbed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_continue as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGCONT, &raw const action, std::ptr::null_mut());
    }
}

fn announced() -> bool {
    let at = CONTINUED.load(Ordering::SeqCst);
    at != 0 && u128::try_from(now() - at).is_ok_and(|ago| ago < ANNOUNCEMENT_VALID.as_millis())
}

/// Who cancelled the run, if it ended because of that, or after it.
pub(crate) fn cancelled_by(
    outcome: &Outcome,
    cancel: &Cancel,
    batch_dir: &BatchDir,
) -> Option<CancelledBy> {
    const BY_SIGNAL: [i32; 2] = [128 + libc::SIGTERM, 128 + libc::SIGKILL];
    let wait = match outcome {
        Outcome::Cancelled(_) => {
            return Some(batch_dir.cancelled_by().unwrap_or(CancelledBy::SomeoneElse));
        }
        Outcome::Exited(_) | Outcome::Signaled(_) if announced() => SIGNAL_DELAY,
        Outcome::Signaled(libc::SIGTERM | libc::SIGKILL) => SIGNAL_DELAY,
        Outcome::Exited(code) if BY_SIGNAL.contains(code) => SIGNAL_DELAY,
        Outcome::Exited(_) | Outcome::Signaled(_) => Duration::ZERO,
        _ => return None,
    };
    let until = Instant::now() + wait;
    while cancel.requested().is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let submitter = batch_dir.cancelled_by();
    if cancel.requested().is_some() {
        submitter.or(Some(CancelledBy::SomeoneElse))
    } else {
        submitter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_was_announced_is_waited_for_and_one_that_was_not_is_not() {
        let (_dir, batch_dir) = BatchDir::for_test();
        let well = Outcome::Exited(0);
        let quiet = Cancel::new().unwrap();
        assert_eq!(cancelled_by(&well, &quiet, &batch_dir), None);
        watch_for_announcements();
        // SAFETY: a signal to this process, which has a handler.
        unsafe { libc::raise(libc::SIGCONT) };
        assert!(announced());
        let late = Cancel::new().unwrap();
        let by = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                late.cancel(libc::SIGTERM);
            });
            cancelled_by(&well, &late, &batch_dir)
        });
        assert_eq!(by, Some(CancelledBy::SomeoneElse));
        // Announced, but no signal followed.
        assert_eq!(cancelled_by(&well, &quiet, &batch_dir), None);
        assert_eq!(cancelled_by(&Outcome::TimedOut, &late, &batch_dir), None);
    }

    #[test]
    fn a_run_that_ends_after_its_batch_was_cancelled_is_cancelled() {
        let (_dir, batch_dir) = BatchDir::for_test();
        let quiet = Cancel::new().unwrap();
        batch_dir.mark_cancelled(Some(libc::SIGINT)).unwrap();
        let by = cancelled_by(&Outcome::Exited(0), &quiet, &batch_dir).unwrap();
        assert_eq!(by, CancelledBy::Submitter(Some(libc::SIGINT)));
        batch_dir.mark_cancelled(None).unwrap();
        assert_eq!(
            cancelled_by(&Outcome::Exited(3), &quiet, &batch_dir),
            Some(CancelledBy::Submitter(None))
        );
    }
}
