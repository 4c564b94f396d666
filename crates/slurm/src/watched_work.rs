//! Work that is cancelled early if its result is no longer wanted.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use retake_engine::Cancel;

/// Runs `work`. In parallel, checks at this interval whether it is no longer wanted, and then
/// cancels it through its token.
pub(crate) fn cancelled_when<T>(
    unwanted: impl Fn() -> bool + Sync,
    pause: Duration,
    cancel: &Cancel,
    work: impl FnOnce() -> T,
) -> T {
    let over = (Mutex::new(false), Condvar::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut done = over.0.lock().unwrap_or_else(PoisonError::into_inner);
            while !*done {
                let waited = over.1.wait_timeout(done, pause);
                done = waited.unwrap_or_else(PoisonError::into_inner).0;
                if !*done && unwanted() {
                    cancel.cancel(libc::SIGTERM);
                    return;
                }
            }
        });
        let worked = work();
        *over.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        over.1.notify_all();
        worked
    })
}
