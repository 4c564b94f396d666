//! Workers for runs: some started at the beginning, more when there are more runs at once.
//!
//! A worker is a process, so beyond a few those that are not needed any more are ended. How many
//! may be in use is the session's to say.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use retake_runner::context::RunContext;
use retake_runner::worker::Worker;

/// How many are ready before the first run, and stay ready afterwards.
const READY: usize = 4;

pub(super) struct WorkerPool {
    context: Arc<RunContext>,
    ready: Mutex<Vec<Worker>>,
}

impl WorkerPool {
    /// Starts the first workers. Call it while the program is small and has one thread.
    pub(super) fn start(context: &Arc<RunContext>) -> io::Result<Self> {
        let ready: io::Result<Vec<Worker>> =
            (0..READY).map(|_| Worker::independent(context)).collect();
        Ok(Self { context: context.clone(), ready: Mutex::new(ready?) })
    }

    pub(super) fn take(&self) -> io::Result<Worker> {
        // The one used last: its record is open.
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner).pop();
        ready.map_or_else(|| Worker::independent(&self.context), Ok)
    }

    pub(super) fn give_back(&self, worker: Worker) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if ready.len() < READY {
            ready.push(worker);
        } else {
            // RunOutcome its process takes a moment, which no other run needs to wait for.
            drop(ready);
            drop(worker);
        }
    }
}
