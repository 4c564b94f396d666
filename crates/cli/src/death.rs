//! Kills this program at a step of a loop's record, for tests: `RETAKE_DIE_AT=7` at the seventh. Builds for
//! users do not have it.

use std::sync::atomic::{AtomicU32, Ordering};

/// How many steps are left before the kill.
static LEFT: AtomicU32 = AtomicU32::new(0);

pub(crate) fn plan() {
    let number = std::env::var("RETAKE_DIE_AT").ok().and_then(|text| text.parse().ok());
    if let Some(number) = number {
        LEFT.store(number, Ordering::Relaxed);
        retake_store::watch_crash_points(pass);
    }
}

fn pass(point: &'static str) {
    // After the last step the counter wraps around, and never gets here again.
    if point.starts_with("loop: ") && LEFT.fetch_sub(1, Ordering::Relaxed) == 1 {
        // SAFETY: a signal to this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}
