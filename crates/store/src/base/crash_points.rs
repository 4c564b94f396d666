//! Named instants between the effects of writing, so that a test can crash at each of them.

use std::sync::OnceLock;

static WATCHER: OnceLock<fn(&'static str)> = OnceLock::new();

/// Calls `watcher` at every crash point from now on. For tests; without a watcher a crash point
/// costs one load.
#[doc(hidden)]
pub fn watch_crash_points(watcher: fn(&'static str)) {
    // A test sets one watcher; later ones are ignored.
    _ = WATCHER.set(watcher);
}

/// An instant at which a test may end the process. Those of loops begin with `loop: `.
#[doc(hidden)]
pub fn crash_point(name: &'static str) {
    if let Some(watcher) = WATCHER.get() {
        watcher(name);
    }
}
