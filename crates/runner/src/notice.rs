//! Information for people besides the result. The runner reports it; each front end writes the
//! text.

use std::path::PathBuf;
use std::sync::Arc;

use retake_types::{Kind, LoopId, Run, RunId};

use crate::record_location::RecordLocation;

/// One notice.
#[derive(Debug)]
pub enum Notice {
    /// A run takes place without being recorded.
    NotRecorded(retake_store::Error),
    /// The record is in the user's data directory instead of the repository.
    RecordElsewhere(RecordLocation),
    /// A new record has taken over runs that were recorded elsewhere before.
    TakenOver {
        runs: u64,
        /// Runs that could not be taken over and stay in the other record.
        left: u64,
        from: PathBuf,
        store: PathBuf,
    },
    NotTakenOver(retake_store::Error),
    /// The outcome could not be committed.
    OutcomeNotRecorded(retake_store::Error),
    OutputLost {
        bytes: u64,
        error: retake_store::Error,
    },
    /// Runs recorded inside a sandbox could not be imported.
    NestedRunsNotRecorded(retake_store::Error),
    /// A run whose runner died.
    RunnerDied(Box<Run>),
    /// A loop whose runner died.
    LoopRunnerDied {
        kind: Kind,
        id: LoopId,
    },
    DeadRunsNotMarked(retake_store::Error),
    /// A process of a dead run.
    Leftover {
        pid: i32,
        run: RunId,
        command: String,
        killed: bool,
    },
    /// Runs older than the retention were erased.
    Erased {
        runs: u64,
        days: u32,
    },
    NotErased(retake_store::Error),
    /// A test report that could not be read.
    ReportUnreadable {
        path: PathBuf,
        error: String,
    },
    /// An invalid pattern in `tests.reports`.
    ReportPattern(String),
    /// Changed files could not be determined.
    ChangesUnknown(String),
    /// File tracking continued without something that it could not use.
    TrackingImpaired(String),
    /// About runs on other machines.
    Remote(RemoteNotice),
}

impl Notice {
    /// Whether it is about runs other than the requested one: starting a command does not report
    /// the end of another. The record and the commands that show it do.
    pub fn is_about_other_runs(&self) -> bool {
        matches!(self, Self::RunnerDied(_) | Self::LoopRunnerDied { .. } | Self::Leftover { .. })
    }
}

/// Events of runs on other machines, or of their results.
#[derive(Debug)]
pub enum RemoteNotice {
    /// The scheduler currently fails. Reported once per outage.
    SchedulerFails(String),
    SchedulerAnswersAgain,
    /// The scheduler's queue is full: its limit if known, and how many runs wait for it. Reported
    /// once per outage.
    QueueFull {
        waiting: u64,
        limit: Option<u64>,
        said: String,
    },
    QueueAccepts,
    /// A signal asked for the end and the scheduler does not respond: this many runs end by
    /// themselves, or are collected later.
    LeftRunning {
        runs: u64,
    },
    /// The shared directory is currently unusable. Reported once per outage.
    DirectoryNotReachable {
        dir: PathBuf,
        why: String,
    },
    /// The shared directory is full.
    DirectoryFull(PathBuf),
    DirectoryUsable(PathBuf),
    /// It was lost, and may be retried.
    SubmittedAgain {
        run: RunId,
        why: String,
    },
    /// A result cannot be read; it was moved to this path.
    ResultDamaged {
        path: PathBuf,
        why: String,
    },
    /// Output of a run that is missing from its result.
    OutputNotKept {
        bytes: u64,
        why: String,
    },
    /// The results of a batch could not be collected.
    NotCollected {
        batch: String,
        why: String,
    },
    /// It is unknown whether there are results to collect.
    BatchesUnknown(String),
    /// Obsolete files could not be removed from the shared directory.
    NotRemoved(String),
}

/// Receives notices, from any thread.
pub type Notify = Arc<dyn Fn(Notice) + Send + Sync>;

/// For tests and programs that show no notices.
pub fn ignore() -> Notify {
    Arc::new(|_| {})
}
