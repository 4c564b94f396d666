//! What happens during a crash test that a person may want to see. A front end finds the words.

use std::time::Duration;

use retake_runner::loop_driver::remote::RemoteStatus;

/// How far an exploration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExplorationProgress {
    pub verified: u64,
    pub total: u64,
    pub failing: usize,
    pub elapsed: Duration,
}

#[derive(Debug)]
pub enum CrashEvent<'a> {
    /// Which states there are is being found out.
    FindingStates { looked_at: u64, points: u64, elapsed: Duration },
    /// States are checked on this machine.
    Checking(ExplorationProgress),
    /// States are checked on other machines.
    CheckingRemotely {
        progress: ExplorationProgress,
        /// Shares that have come back.
        finished_shares: usize,
        shares: usize,
        status: &'a RemoteStatus,
    },
    /// Calls are made to fail, one in each run of the program.
    Faulting(ExplorationProgress),
    /// Explaining the next failing state, after `explained` of `states`.
    Explaining { explained: usize, states: usize, elapsed: Duration },
    /// What the last events reported is over.
    PhaseOver,
    /// The same exploration was begun by a process that died; what it has is taken over.
    TakenOver,
    /// The loop could not be recorded, and will not be.
    LoopNotRecorded(&'a retake_store::Error),
    /// The record could not be opened again.
    RestNotRecorded(&'a retake_store::Error),
    /// The program runs, but is not recorded.
    RunNotRecorded(&'a retake_store::Error),
    /// The outcome of the program could not be recorded.
    OutcomeNotRecorded(&'a retake_store::Error),
}

/// Receives events, from any thread.
pub trait CrashObserver: Sync {
    fn event(&self, event: CrashEvent<'_>);
}

/// Ignores them.
impl CrashObserver for () {
    fn event(&self, _event: CrashEvent<'_>) {}
}
