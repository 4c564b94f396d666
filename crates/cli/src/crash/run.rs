//! `retake crash`: records, explores, reports.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use retake_crash_driver::error::CrashTestError;
use retake_crash_driver::source_places::SourcePlaces;
use retake_crash_driver::workload::Workload;
use retake_runner::signals;
use retake_types::loop_record::crash::CrashFaults;

use super::CrashFailure;
use super::options::{CrashProject, ExplorationArgs, FreshArgs, RecordingArgs};
use super::progress::ScreenObserver;
use super::session::{CrashSession, Source};
use crate::Exit;

#[derive(clap::Args)]
pub(super) struct TestArgs {
    /// The directory to watch; what is in it counts as durable
    // Required unless a subcommand is given, which only clap knows.
    #[arg(long, value_name = "DIR", required = true)]
    root: Option<PathBuf>,
    #[command(flatten)]
    fresh: FreshArgs,
    #[command(flatten)]
    recording: RecordingArgs,
    #[command(flatten)]
    exploration: ExplorationArgs,
    /// Also make file operations fail, one in each further run of the program, with the errors that
    /// their manual pages list (ENOSPC, EIO, …); =only skips crash states
    #[arg(long, value_name = "only", num_args = 0..=1, require_equals = true, default_missing_value = "too")]
    faults: Option<FaultsArg>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum FaultsArg {
    #[value(hide = true)]
    Too,
    Only,
}

impl From<FaultsArg> for CrashFaults {
    fn from(arg: FaultsArg) -> Self {
        match arg {
            FaultsArg::Too => Self::Too,
            FaultsArg::Only => Self::Only,
        }
    }
}

pub(super) fn run(args: &TestArgs, store: Option<&Path>) -> Result<Exit, CrashFailure> {
    let begun = Instant::now();
    let root = args.root.clone().unwrap_or_default();
    let project = CrashProject::find(store)?;
    args.exploration.check_report_files()?;
    let cancel = signals::end_descriptor().map_err(CrashTestError::NoDescriptor)?;
    let prepared = args.fresh.prepare(&root)?;
    let budget = args.exploration.budget;
    let workload = Workload {
        root: root.clone(),
        request: Workload::request(&args.program, project.here.as_path(), budget),
        forward: None,
        stacks: args.recording.stacks(),
        root_is_copy: args.fresh.copies(),
    };
    let source = Source::Program { command: workload.command_text().to_owned(), root };
    let observer = ScreenObserver::new();
    let faults = args.faults.map(CrashFaults::from);
    let mut session =
        CrashSession::begin(&project, &args.exploration, source, faults, begun, &observer)?;
    let tested = test(&mut session, &workload, &observer, cancel);
    drop(session);
    if tested.is_err() {
        prepared.remove_unused();
    }
    project.push();
    tested
}

fn test(
    session: &mut CrashSession<'_>,
    workload: &Workload,
    observer: &ScreenObserver,
    cancel: OwnedFd,
) -> Result<Exit, CrashFailure> {
    let (id, context) = (session.recorder.id(), session.project.context.clone());
    let recorded = workload.record(id, &context, session.recorder.store(), observer, cancel);
    let program = session.end_if_failed(recorded)?;
    let places = SourcePlaces::find(&program.recording);
    session.recorder.append_workload(&program.recording, &places, program.run);
    let launch = session.faults.map(|_| workload.launch(&context)).transpose();
    let launch = session.end_if_failed(launch)?;
    session.explore(&program.recording, &places, launch)
}
