//! `retake crash record`: the program once, and the log to explore later.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_types::LoopId;

use super::Trouble;
use super::options::{Setting, some_time, write_log};
use crate::Exit;
use crate::term;
use retake_crash_driver::finding::Findings;
use retake_crash_driver::timeline;
use retake_crash_driver::timeline::Sort;
use retake_crash_driver::untested::Untested;
use retake_crash_driver::untested::changed;
use retake_crash_driver::workload::Workload;
use retake_runner::signals;

/// Record what a program does to a directory, to explore it later
#[derive(clap::Args)]
pub(super) struct Args {
    /// The directory to watch; what is in it counts as durable
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Where the log goes
    #[arg(short, long, value_name = "LOG")]
    output: PathBuf,
    /// End the program, and the recording in an error, after this time
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    timeout: Option<Duration>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(super) fn record(args: &Args, store: Option<&Path>) -> Result<Exit, Trouble> {
    let setting = Setting::find(store)?;
    let cancel = signals::end_descriptor()
        .map_err(|error| Untested::Refused(format!("no descriptor is left: {error}")))?;
    let mut store = setting.store()?;
    let workload = Workload {
        root: args.root.clone(),
        arguments: args.program.clone(),
        limit: args.timeout,
        pass: true,
    };
    let place = &setting.place.store;
    let watched = workload.record(&setting.config, place, store.as_mut(), LoopId::new(), cancel);
    drop(store);
    setting.push();
    let watched = watched?;
    write_log(&args.output, &watched.recording)?;
    Findings::forget(&args.output).map_err(|source| Untested::File {
        action: "remove",
        path: Findings::path(&args.output),
        source,
    })?;
    let rows = timeline::rows(&watched.recording);
    let count = |sort: fn(Sort) -> bool| rows.iter().filter(|row| sort(row.sort)).count() as u64;
    term::say(&format!(
        "{}: {}, {}, {}, {}",
        args.output.display(),
        term::count(rows.iter().filter(|row| row.number.is_some()).count() as u64, "operation"),
        term::count(count(|sort| sort == Sort::Sync), "sync"),
        term::count(count(|sort| sort == Sort::Acknowledgement), "acknowledgement"),
        term::count(count(|sort| sort == Sort::Label), "label"),
    ));
    if !changed(&watched.recording) {
        term::say(&Untested::Nothing(watched.recording.root).to_string());
    }
    Ok(Exit::OK)
}
