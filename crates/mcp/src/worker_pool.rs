//! Workers for runs: some are started at the beginning, more when more runs are in progress.
//!
//! A worker is a process, so all but a few are ended once they are idle. The session limits how many
//! are in use.
//!
//! A confined worker has its own temporary files, and a client's consecutive calls must find those of the
//! previous call. So calls take the first idle worker, and background runs take the
//! last one.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use retake_policy::RunMode;
use retake_runner::context::RunContext;
use retake_runner::worker::Worker;

/// How many workers are ready before the first run, and stay ready afterwards.
const READY: usize = 4;

pub(super) struct WorkerPool {
    context: Arc<RunContext>,
    workers: Mutex<Workers>,
}

struct Workers {
    ready: BTreeMap<usize, Worker>,
    /// Number of workers ever started.
    made: usize,
}

/// A worker in use, and its number.
pub(super) struct TakenWorker {
    number: usize,
    pub(super) worker: Worker,
}

impl WorkerPool {
    /// Starts the first workers. Call it while the program is small and has one thread.
    pub(super) fn start(context: &Arc<RunContext>) -> io::Result<Self> {
        let ready: io::Result<BTreeMap<usize, Worker>> =
            (0..READY).map(|number| Ok((number, Worker::independent(context)?))).collect();
        let workers = Mutex::new(Workers { ready: ready?, made: READY });
        Ok(Self { context: context.clone(), workers })
    }

    pub(super) fn take(&self, mode: RunMode) -> io::Result<TakenWorker> {
        let number = {
            let mut workers = self.workers();
            let ready = match mode {
                RunMode::Foreground => workers.ready.pop_first(),
                RunMode::Background => workers.ready.pop_last(),
            };
            if let Some((number, worker)) = ready {
                return Ok(TakenWorker { number, worker });
            }
            workers.made += 1;
            workers.made - 1
        };
        Ok(TakenWorker { number, worker: Worker::independent(&self.context)? })
    }

    pub(super) fn give_back(&self, taken: TakenWorker) {
        let mut workers = self.workers();
        workers.ready.insert(taken.number, taken.worker);
        let spare = (workers.ready.len() > READY).then(|| workers.ready.pop_last());
        drop(workers);
        // Ending its process takes a moment, for which no other run should wait.
        drop(spare);
    }

    fn workers(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
