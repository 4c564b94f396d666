//! One crash test, and what its children share.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Duration;

use retake_crash::model::Model;
use retake_crash::recorder::{LINGER, RecordError};
use retake_crash::scratch::ignore_missing;

use super::child_process::ChildCommand;
use super::plan::FailedPhase;
use super::recorded_workload::RecordedWorkload;
use super::report::say;
use super::run_directories::RunDirectories;
use crate::invocation::Invocation;
use crate::options::Options;
use crate::variables::{self, Variables};

/// One FIRST test of a test function.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    pub(crate) invocation: &'a Invocation,
    pub(crate) index: usize,
    pub(crate) seed: u64,
    pub(crate) options: &'a Options,
    pub(crate) variables: &'a Variables,
}

impl<'a> Session<'a> {
    /// The command that runs this test in a child, in this phase.
    pub(crate) fn child_command(
        &self,
        dirs: &RunDirectories,
        target: usize,
        phase: FailedPhase,
        directory: &Path,
        mut set: Vec<(&'static str, OsString)>,
    ) -> ChildCommand<'a> {
        set.extend([
            (variables::PHASE, phase.word().into()),
            (variables::CRASH_TARGET, target.to_string().into()),
            (variables::WORK_DIR, directory.into()),
            (variables::SEED, self.seed.to_string().into()),
            (variables::TEST_NAME, self.invocation.test.as_str().into()),
            (variables::TEST_INDEX, self.index.to_string().into()),
        ]);
        ChildCommand {
            target,
            program: &self.invocation.program,
            arguments: &self.invocation.arguments,
            set,
            log: dirs.log(target, phase),
            timeout: self.options.timeout,
            namespace: None,
            inherit: None,
        }
    }
}

/// Records the workload, unless that is disabled.
pub(super) fn record_workload(
    session: &Session<'_>,
    dirs: &RunDirectories,
) -> Result<Option<RecordedWorkload>, RecordError> {
    if session.variables.record == Some(false) {
        return Ok(None);
    }
    let log = dirs.recording_log();
    let command = |root: &Path| {
        let mut command = session.child_command(dirs, 1, FailedPhase::Execution, root, Vec::new());
        // No workload has that many points.
        command.set.push((variables::CRASH_TARGET, usize::MAX.to_string().into()));
        command.log = log.clone();
        command
    };
    // A kill ends all processes at once, and so does a recording that stands in for one.
    let linger = match session.options.model {
        Model::Kill => Duration::ZERO,
        _ => LINGER,
    };
    let parent = session.variables.work_dir.as_deref();
    let recorded = RecordedWorkload::record(parent, linger, command);
    if recorded.is_err() {
        report_error(ignore_missing(std::fs::remove_file(&log)), &log.display().to_string());
    }
    recorded.map(Some)
}

/// Reports an error in writing or removing a file. It does not change the verdict.
pub(super) fn report_error(result: io::Result<()>, what: &str) {
    if let Err(error) = result {
        say(&format!("{what}: {error}"));
    }
}
