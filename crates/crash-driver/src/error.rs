//! Why nothing was tested. No variant names an option or a command: a front end adds advice.

use std::io;
use std::path::PathBuf;

use retake_crash::log::LogError;
use retake_crash::model::BadGlob;
use retake_crash::recorder::{RecordError, WorkloadOutcome};
use retake_types::{RefusalReason, RunId, signal_name};

use crate::check::{Check, CheckError, FailedCheck};
use crate::finding::FindingsError;
use crate::fresh_root::FreshRootError;
use crate::share_failure::ShareFailure;
use crate::state_range::StateRange;

#[derive(Debug, thiserror::Error)]
pub enum CrashTestError {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("the program {}: there is nothing to test in a run that fails by itself", outcome_text(*.outcome))]
    ProgramFailed { outcome: WorkloadOutcome, run: Option<RunId> },
    #[error("nothing was written below {}", .0.display())]
    NothingWritten(PathBuf),
    #[error("{}: {source}", path.display())]
    Log { path: PathBuf, source: LogError },
    #[error("cannot {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    /// `files` is how many earlier runs may have left in the directory.
    #[error(
        "the check fails on the directory as the program left it, without any crash: it {}\n{}",
        failed.verdict(), failed.output
    )]
    UncrashedFails { failed: FailedCheck, root: PathBuf, files: u64 },
    #[error(
        "the check `{command}` could not be run in {}: it exited with {code}{}",
        directory.display(), said(output)
    )]
    CheckNotRun { command: String, directory: PathBuf, code: i32, output: String },
    #[error("`{}` is not a pattern: {}", .0.pattern, .0.reason)]
    Glob(BadGlob),
    #[error("states cannot be checked here: {0}")]
    Check(#[from] CheckError),
    #[error("no check can be started: {0}")]
    NoWorkers(io::Error),
    #[error("no descriptor is left: {0}")]
    NoDescriptor(io::Error),
    #[error("{}", RefusalReason::listed(.0))]
    Refused(Vec<RefusalReason>),
    /// The configuration requires a record.
    #[error("it cannot be recorded, and execution.audit.required is set: {0}")]
    RecordRequired(retake_store::Error),
    #[error(transparent)]
    FreshRoot(#[from] FreshRootError),
    #[error(transparent)]
    Findings(#[from] FindingsError),
    #[error(transparent)]
    Store(#[from] retake_store::Error),
    #[error("results from other machines need the record")]
    RemoteNeedsRecord,
    /// Nothing was submitted.
    #[error("{0}")]
    Remote(String),
    /// Shares run on other machines, and this process no longer waits for them.
    #[error("the shares continue and cannot be followed: {0}; the same command collects them")]
    NotFollowed(String),
    #[error("no state could be checked; {range}: {failure}")]
    NoShareAnswered { range: StateRange, failure: ShareFailure },
    #[error("cancelled")]
    Cancelled,
}

impl CrashTestError {
    /// Why a check that failed did not run: its command is missing, or is not executable.
    pub fn not_run(check: &Check, failed: &FailedCheck) -> Option<Self> {
        Some(Self::CheckNotRun {
            code: failed.not_run()?,
            command: check.command().to_owned(),
            directory: check.directory().to_owned(),
            output: failed.output.clone(),
        })
    }
}

/// The output of a check in a sentence.
fn said(output: &str) -> String {
    if output.is_empty() { String::new() } else { format!(": {output}") }
}

/// How the program ended, such as `exited with 3`.
pub(crate) fn outcome_text(outcome: WorkloadOutcome) -> String {
    match outcome {
        WorkloadOutcome::Exited(code) => format!("exited with {code}"),
        WorkloadOutcome::Signaled(signal) => format!("was terminated by {}", signal_name(signal)),
    }
}
