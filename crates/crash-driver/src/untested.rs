//! Why nothing was tested. Every variant ends `retake crash` with 125.

use std::io;
use std::path::PathBuf;

use retake_crash::log::LogError;
use retake_crash::model::BadGlob;
use retake_crash::operation::{Action, Entry, Recording};
use retake_crash::recorder::{RecordError, WorkloadOutcome};
use retake_types::signal_name;

#[derive(Debug, thiserror::Error)]
pub enum Untested {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(
        "the program {}: there is nothing to test in a run that fails by itself{}", ended(*.how),
        .run.as_ref().map_or_else(String::new, |run| format!("; `retake runs logs {run}` shows what it said"))
    )]
    Failed { how: WorkloadOutcome, run: Option<String> },
    #[error("nothing was written below {}; is --root right?", .0.display())]
    Nothing(PathBuf),
    #[error("{}: {source}", path.display())]
    Log { path: PathBuf, source: LogError },
    #[error("cannot {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "the check fails on the directory as the program left it, without any crash: it {verdict}\n{output}"
    )]
    Uncrashed { verdict: String, output: String },
    #[error("`{}` is not a pattern: {}", .0.pattern, .0.reason)]
    Glob(BadGlob),
    #[error("{0}")]
    Refused(String),
    #[error("cancelled")]
    Cancelled,
}

impl Untested {
    pub fn unchecked(error: &io::Error) -> Self {
        Self::Refused(format!("states cannot be checked here: {error}"))
    }
}

/// Whether the program changed anything: what is only synced or closed is as it was.
pub fn changed(recording: &Recording) -> bool {
    recording.entries.iter().any(|entry| match entry {
        Entry::Operation(operation) => !matches!(
            operation.action,
            Action::Sync { .. } | Action::SyncRange { .. } | Action::SyncAll | Action::Close { .. }
        ),
        _ => false,
    })
}

pub fn ended(how: WorkloadOutcome) -> String {
    match how {
        WorkloadOutcome::Exited(code) => format!("exited with {code}"),
        WorkloadOutcome::Signaled(signal) => format!("was ended by {}", signal_name(signal)),
    }
}
