//! A thread that repeats an action until dropped.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Ticker {
    done: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Ticker {
    /// Calls `each` at this interval, and once with `true` at the end.
    pub(crate) fn start(
        name: &str,
        every: Duration,
        mut each: impl FnMut(bool) + Send + 'static,
    ) -> io::Result<Self> {
        let done = Arc::new(AtomicBool::new(false));
        let stop = done.clone();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                std::thread::park_timeout(every);
                each(stop.load(Ordering::Relaxed));
            }
        })?;
        Ok(Self { done, thread: Some(thread) })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic in the thread was reported when it happened.
            drop(thread.join());
        }
    }
}
