//! `retake crash record`: runs the program once, and writes a log to explore later.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_crash::log::LogError;
use retake_crash::recorded_bytes::ByteStore;
use retake_crash_driver::changes::changes_anything;
use retake_crash_driver::error::CrashTestError;
use retake_crash_driver::finding::Findings;
use retake_crash_driver::report::ReportNote;
use retake_crash_driver::timeline;
use retake_crash_driver::workload::Workload;
use retake_runner::signals;
use retake_types::loop_record::crash::TimelineRowKind;
use retake_types::{LoopId, Stream};

use super::options::{CrashProject, FreshArgs, RecordingArgs, some_time, write_log};
use super::progress::ScreenObserver;
use super::{CrashFailure, error_text};
use crate::{Exit, term};

/// Record what a program does to a directory, to explore it later
#[derive(clap::Args)]
pub(super) struct Args {
    /// The directory to watch; what is in it counts as durable
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    #[command(flatten)]
    fresh: FreshArgs,
    #[command(flatten)]
    recording: RecordingArgs,
    /// The log to write
    #[arg(short, long, value_name = "LOG")]
    output: PathBuf,
    /// Terminate the program after this time; the recording then fails
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    timeout: Option<Duration>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(super) fn record(args: &Args, store: Option<&Path>) -> Result<Exit, CrashFailure> {
    let project = CrashProject::find(store)?;
    check_output(&args.output)?;
    let cancel = signals::end_descriptor().map_err(CrashTestError::NoDescriptor)?;
    let prepared = args.fresh.prepare(&args.root)?;
    let mut store = project.store()?;
    let workload = Workload {
        root: args.root.clone(),
        request: Workload::request(&args.program, project.here.as_path(), args.timeout),
        forward: Some(forward),
        stacks: args.recording.stacks(),
        root_is_copy: args.fresh.copies(),
    };
    let observer = ScreenObserver::new();
    let recorded =
        workload.record(LoopId::new(), &project.context, store.as_mut(), &observer, cancel);
    drop(store);
    project.push();
    if recorded.is_err() {
        prepared.remove_unused();
    }
    let recording = recorded?.recording;
    write_log(&args.output, &recording)?;
    Findings::remove(&args.output).map_err(|source| CrashTestError::File {
        action: "remove",
        path: Findings::path(&args.output),
        source,
    })?;
    let rows = timeline::rows(&recording);
    let count = |kind: TimelineRowKind| rows.iter().filter(|row| row.kind == kind).count() as u64;
    term::say(&format!(
        "{}: {}, {}, {}, {}",
        args.output.display(),
        term::count(rows.iter().filter(|row| row.number.is_some()).count() as u64, "operation"),
        term::count(count(TimelineRowKind::Sync), "sync"),
        term::count(count(TimelineRowKind::Acknowledgement), "acknowledgement"),
        term::count(count(TimelineRowKind::Label), "label"),
    ));
    if recording.left_running.processes > 0 {
        term::say(&ReportNote::LeftRunning(recording.left_running).to_string());
    }
    if !changes_anything(&recording) {
        term::say(&error_text(&CrashTestError::NothingWritten(recording.root)));
    }
    Ok(Exit::OK)
}

/// A log may replace a log; any other file was surely not meant.
fn check_output(path: &Path) -> Result<(), CrashFailure> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let shown = path.display();
    if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
        return Err(CrashFailure::Refused(format!(
            "-o {shown} cannot be written: {} is not a directory; create it, or give another path",
            parent.display()
        )));
    }
    let Ok(metadata) = path.metadata() else { return Ok(()) };
    let is_log = || {
        let file = std::fs::File::open(path).ok();
        file.is_some_and(|file| {
            let read = retake_crash::log::Reader::new(file, ByteStore::default());
            !matches!(read, Err(LogError::Foreign | LogError::Io { .. }))
        })
    };
    if metadata.is_file() && (metadata.len() == 0 || is_log()) {
        return Ok(());
    }
    Err(CrashFailure::Refused(format!(
        "-o {shown} is not overwritten: it exists and is not a crash log; remove it, or give another path"
    )))
}

/// Forwards the program's output. A closed stdout or stderr does not stop the program.
fn forward(stream: Stream, bytes: &[u8]) {
    match stream {
        Stream::Stdout => drop(term::data(bytes)),
        Stream::Stderr => drop(std::io::stderr().write_all(bytes)),
    }
}
