//! What a person should know besides the result. The runner reports it; each front end finds the
//! words.

use std::path::PathBuf;
use std::sync::Arc;

use retake_types::{Kind, LoopId, Run, RunId};

use crate::record_location::RecordLocation;

/// One thing to know.
#[derive(Debug)]
pub enum Notice {
    /// A run takes place, but nothing of it will be in the record.
    NotRecorded(retake_store::Error),
    /// The record is in the user's data directory, and not in the repository.
    RecordElsewhere(RecordLocation),
    /// A record that was just made has runs from now on that were recorded elsewhere before.
    TakenOver {
        runs: u64,
        /// Those that could not be taken over and stay where they are.
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
    /// Runs that were recorded inside of a sandbox could not be taken into the record.
    NestedRunsNotRecorded(retake_store::Error),
    /// A run of an earlier retake that died.
    RunnerDied(Box<Run>),
    /// A loop of an earlier retake that died.
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
    /// A pattern of `tests.reports` that means nothing.
    ReportPattern(String),
    /// Changed files could not be found out.
    ChangesUnknown(String),
    /// File tracking went on without something it could not use.
    TrackingImpaired(String),
    /// About runs on other machines.
    Remote(RemoteNotice),
}

impl Notice {
    /// Whether it is about runs that have nothing to do with what the user asked for: who starts a
    /// command is not told about the end of another. The record has it, and the commands that show
    /// the record tell it.
    pub fn is_about_other_runs(&self) -> bool {
        matches!(self, Self::RunnerDied(_) | Self::LoopRunnerDied { .. } | Self::Leftover { .. })
    }
}

/// What happened to runs on other machines, or to their results.
#[derive(Debug)]
pub enum RemoteNotice {
    /// The scheduler does not do what it is asked to, for the time being. Reported once for as long
    /// as that lasts.
    SchedulerFails(String),
    SchedulerAnswersAgain,
    /// The scheduler's queue is full: its limit if that is known, and how many runs wait
    /// for that. Reported once for as long as that lasts.
    QueueFull {
        waiting: u64,
        limit: Option<u64>,
        said: String,
    },
    QueueAccepts,
    /// A signal asked for the end and the scheduler does not answer: this many runs end by
    /// themselves, or are collected later.
    LeftRunning {
        runs: u64,
    },
    /// What is in the shared directory cannot be used for the time being. Reported once for as long
    /// as that lasts.
    DirectoryNotReachable {
        dir: PathBuf,
        why: String,
    },
    /// The shared directory has no room.
    DirectoryFull(PathBuf),
    DirectoryUsable(PathBuf),
    /// It was lost, and there may be another try.
    SubmittedAgain {
        run: RunId,
        why: String,
    },
    /// A result that cannot be read; it was moved to this path.
    ResultDamaged {
        path: PathBuf,
        why: String,
    },
    /// Output of a run that its result will not have.
    OutputNotKept {
        bytes: u64,
        why: String,
    },
    /// The results of a batch could not be collected.
    NotCollected {
        batch: String,
        why: String,
    },
    /// It is not known whether there are results to collect.
    BatchesUnknown(String),
    /// What is no longer needed could not be removed from the shared directory.
    NotRemoved(String),
}

/// Receives notices, from any thread.
pub type Notify = Arc<dyn Fn(Notice) + Send + Sync>;

/// For tests and programs that show nothing.
pub fn ignore() -> Notify {
    Arc::new(|_| {})
}
