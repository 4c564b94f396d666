//! `retake crash explore`: checks the states of a recorded log.

use std::path::{Path, PathBuf};
use std::time::Instant;

use retake_crash_driver::error::CrashTestError;
use retake_crash_driver::source_places::SourcePlaces;
use retake_runner::signals;

use super::CrashFailure;
use super::options::{CrashProject, ExplorationArgs, log_path, read_log};
use super::progress::ScreenObserver;
use super::session::{CrashSession, Source};
use crate::Exit;

/// Check every crash state of a recorded program; it is not run again
#[derive(clap::Args)]
pub(super) struct Args {
    /// The log; last is that of the newest test in the current directory
    #[arg(value_name = "LOG")]
    log: PathBuf,
    #[command(flatten)]
    exploration: ExplorationArgs,
}

pub(super) fn explore(args: &Args, store: Option<&Path>) -> Result<Exit, CrashFailure> {
    let begun = Instant::now();
    let project = CrashProject::find(store)?;
    args.exploration.check_report_files()?;
    signals::end_descriptor().map_err(CrashTestError::NoDescriptor)?;
    let log = log_path(&args.log, &project)?;
    let recording = read_log(&log)?;
    let log = std::path::absolute(&log).unwrap_or(log);
    let source = Source::Log { log, root: recording.root.clone() };
    let observer = ScreenObserver::new();
    let mut session =
        CrashSession::begin(&project, &args.exploration, source, None, begun, &observer)?;
    let places = SourcePlaces::find(&recording);
    session.recorder.append_workload(&recording, &places, None);
    let explored = session.explore(&recording, &places, None);
    drop(session);
    project.push();
    explored
}
