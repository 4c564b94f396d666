//! `retake crash`: record, explore, tell.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::options::{Exploring, Setting};
use super::{Trouble, session};
use crate::Exit;
use retake_crash_driver::untested::Untested;
use retake_crash_driver::workload::Workload;
use retake_runner::signals;

#[derive(clap::Args)]
pub(super) struct Testing {
    /// The directory to watch; what is in it counts as durable
    // Required unless a subcommand is given, which only clap knows.
    #[arg(long, value_name = "DIR", required = true)]
    root: Option<PathBuf>,
    #[command(flatten)]
    exploring: Exploring,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(super) fn run(args: &Testing, store: Option<&Path>) -> Result<Exit, Trouble> {
    let begun = Instant::now();
    let root = args.root.clone().unwrap_or_default();
    let setting = Setting::find(store)?;
    let cancel = signals::end_descriptor()
        .map_err(|error| Untested::Refused(format!("no descriptor is left: {error}")))?;
    let workload = Workload {
        root: root.clone(),
        arguments: args.program.clone(),
        limit: args.exploring.budget,
        pass: false,
    };
    let mut session = session::Session::begin(
        &setting,
        &args.exploring,
        session::Source::Program { shown: workload.shown(), root },
        begun,
    )?;
    let tested = test(&mut session, &workload, &setting, cancel);
    drop(session);
    setting.push();
    tested
}

fn test(
    session: &mut session::Session<'_>,
    workload: &Workload,
    setting: &Setting,
    cancel: OwnedFd,
) -> Result<Exit, Trouble> {
    let id = session.chronicle.id;
    let recorded = workload.record(
        &setting.config,
        &setting.place.store,
        session.chronicle.store(),
        id,
        cancel,
    );
    let watched = session.noted(recorded)?;
    session.chronicle.recorded(&watched.recording, watched.run);
    session.explore(&watched.recording)
}
