//! Events of a crash test for a person. A front end words them.

use std::time::Duration;

use retake_runner::loop_driver::remote::RemoteStatus;

/// The progress of an exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExplorationProgress {
    pub verified: u64,
    pub total: u64,
    pub failing: usize,
    pub elapsed: Duration,
}

#[derive(Debug)]
pub enum CrashEvent<'a> {
    /// The states are being determined.
    FindingStates { looked_at: u64, points: u64, elapsed: Duration },
    /// States are checked on this machine.
    Checking(ExplorationProgress),
    /// States are checked on other machines.
    CheckingRemotely {
        progress: ExplorationProgress,
        /// Shares that have answered.
        finished_shares: usize,
        shares: usize,
        status: &'a RemoteStatus,
    },
    /// Calls are made to fail, one in each run of the program.
    Faulting(ExplorationProgress),
    /// Explaining the next failing state, after `explained` of `states`.
    Explaining { explained: usize, states: usize, elapsed: Duration },
    /// The phase of the previous events has ended.
    PhaseOver,
    /// A process that died began the same exploration; its results are reused.
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
