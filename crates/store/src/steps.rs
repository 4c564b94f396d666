//! Named instants between the effects of writing, so that a test can crash at each of them.

use std::sync::OnceLock;

static WATCHER: OnceLock<fn(&'static str)> = OnceLock::new();

/// Calls this at every step from now on. For tests; without it a step costs one load.
#[doc(hidden)]
pub fn watch_steps(watcher: fn(&'static str)) {
    // The first one stays: a test has one.
    _ = WATCHER.set(watcher);
}

pub(crate) fn step(name: &'static str) {
    if let Some(watcher) = WATCHER.get() {
        watcher(name);
    }
}
