//! Workers for runs: some started at the beginning, more when there are more runs at once.
//!
//! A worker is a process, so beyond a few those that are not needed any more are ended. How many
//! may be in use is the session's to say.
//!
//! A confined worker has temporary files of its own, and a client whose calls follow each other must
//! find those of the call before. So calls take the first worker that is free, and what stays in the
//! background takes the last.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use retake_policy::RunMode;
use retake_runner::context::RunContext;
use retake_runner::worker::Worker;

/// How many are ready before the first run, and stay ready afterwards.
const READY: usize = 4;

pub(super) struct WorkerPool {
    context: Arc<RunContext>,
    workers: Mutex<Workers>,
}

struct Workers {
    ready: BTreeMap<usize, Worker>,
    /// How many there ever were.
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
        // To end its process takes a moment, which no other run needs to wait for.
        drop(spare);
    }

    fn workers(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
