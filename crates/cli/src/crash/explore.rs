//! `retake crash explore`: a log instead of a program.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::options::{Exploring, Setting, read_log};
use super::{Trouble, session};
use crate::Exit;
use retake_crash_driver::untested::Untested;
use retake_runner::signals;

/// Check every crash state of a recorded program; it is not run again
#[derive(clap::Args)]
pub(super) struct Args {
    /// The log
    #[arg(value_name = "LOG")]
    log: PathBuf,
    #[command(flatten)]
    exploring: Exploring,
}

pub(super) fn explore(args: &Args, store: Option<&Path>) -> Result<Exit, Trouble> {
    let begun = Instant::now();
    let setting = Setting::find(store)?;
    signals::end_descriptor()
        .map_err(|error| Untested::Refused(format!("no descriptor is left: {error}")))?;
    let recording = read_log(&args.log)?;
    let log = std::path::absolute(&args.log).unwrap_or_else(|_| args.log.clone());
    let source = session::Source::Log { log, root: recording.root.clone() };
    let mut session = session::Session::begin(&setting, &args.exploring, source, begun)?;
    session.chronicle.recorded(&recording, None);
    let explored = session.explore(&recording);
    drop(session);
    setting.push();
    explored
}
