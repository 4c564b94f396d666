//! `retake crash show`: prints the content of a log.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use retake_crash_driver::finding::{Findings, recovery_log};
use retake_crash_driver::report::ReportNote;
use retake_crash_driver::source_places::SourcePlaces;
use retake_crash_driver::timeline;
use retake_types::loop_record::crash::{CrashFinding, TimelineRow, TimelineRowKind};
use serde::Serialize;

use super::CrashFailure;
use super::options::{CrashProject, log_path, read_log};
use crate::term::{self, Palette, Shade};
use crate::{Exit, Failure};

/// Show a log: every operation, sync, label and acknowledgement, and the findings, if any
#[derive(clap::Args)]
pub(super) struct Args {
    /// The log; last is that of the newest test in the current directory
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LogJson<'a> {
    root: String,
    /// Files and directories that existed before.
    initial: usize,
    operations: usize,
    /// Processes that were still running after the program ended, and were terminated.
    #[serde(skip_serializing_if = "Option::is_none")]
    processes_ended: Option<u32>,
    entries: &'a [TimelineRow],
    /// `None` before the log was explored.
    findings: Option<&'a [CrashFinding]>,
    /// By finding: the operations of the check before the crash during recovery.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    recoveries: BTreeMap<&'a str, Vec<TimelineRow>>,
    /// By finding: the operations of the program in the run with the fault.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    faulted: BTreeMap<&'a str, Vec<TimelineRow>>,
}

pub(super) fn show(args: &Args, store: Option<&Path>) -> Result<Exit, CrashFailure> {
    let log = log_path(&args.log, &CrashProject::find(store)?)?;
    let recording = read_log(&log)?;
    let mut rows = timeline::rows(&recording);
    let places = SourcePlaces::find(&recording);
    places.add_to(&mut rows);
    if !places.changed.is_empty() {
        term::say(&ReportNote::SourceChanged(places.changed).to_string());
    }
    if recording.left_running.processes > 0 {
        term::say(&ReportNote::LeftRunning(recording.left_running).to_string());
    }
    let found = Findings::read(&log).map_err(|error| Failure::Refused(error.to_string()))?;
    let findings = found.as_ref().map(|found| &found.findings[..]);
    let mut recoveries = BTreeMap::new();
    let mut faulted = BTreeMap::new();
    for finding in findings.unwrap_or_default() {
        let rows = match (finding.recovery, &finding.fault) {
            (true, _) => &mut recoveries,
            (_, Some(_)) => &mut faulted,
            _ => continue,
        };
        let other = read_log(&recovery_log(&log, &finding.id))?;
        rows.insert(finding.id.as_str(), timeline::rows(&other));
    }
    if args.json {
        term::document(&LogJson {
            root: recording.root.to_string_lossy().into_owned(),
            // The root itself always exists.
            initial: recording.initial.len().saturating_sub(1),
            operations: rows.iter().filter(|row| row.number.is_some()).count(),
            processes_ended: Some(recording.left_running.ended).filter(|ended| *ended > 0),
            entries: &rows,
            findings,
            recoveries,
            faulted,
        })?;
        return Ok(Exit::OK);
    }
    let mut text = format!("{}\n", term::visible(&recording.root.to_string_lossy()));
    table(&mut text, &rows, findings.unwrap_or_default(), Palette::of_stdout());
    for (id, rows) in &recoveries {
        // Writing to a string cannot fail.
        _ = writeln!(text, "\noperations of the recovery in {id}:");
        table(&mut text, rows, &[], Palette::of_stdout());
    }
    for (id, rows) in &faulted {
        // Writing to a string cannot fail.
        _ = writeln!(text, "\noperations of the run with the fault in {id}:");
        table(&mut text, rows, &[], Palette::of_stdout());
    }
    term::page(&text)?;
    Ok(Exit::OK)
}

fn table(text: &mut String, rows: &[TimelineRow], findings: &[CrashFinding], palette: Palette) {
    let mut crashes: BTreeMap<usize, Vec<&CrashFinding>> = BTreeMap::new();
    for finding in findings {
        let before = finding.rows_before_crash(rows.iter().map(TimelineRow::place));
        crashes.entry(before).or_default().push(finding);
    }
    let width = rows.len().to_string().len().max(3);
    for (at, row) in rows.iter().enumerate() {
        add_crashes(text, crashes.remove(&at), width, palette);
        let number = row.number.map_or_else(String::new, |number| number.to_string());
        let words = term::visible(&row.text);
        let (call, words) = match row.kind {
            TimelineRowKind::Label => ("label", palette.paint(Shade::Heading, &words)),
            TimelineRowKind::Acknowledgement => {
                ("acknowledged", palette.paint(Shade::Good, &words))
            }
            TimelineRowKind::Sync => (row.call.as_str(), palette.paint(Shade::Match, &words)),
            _ => (row.call.as_str(), words.into_owned()),
        };
        let source = row.source.as_ref().map(|source| format!("  {source}"));
        let source = source.unwrap_or_default();
        let source = term::visible(&source);
        // Writing to a string cannot fail.
        _ = writeln!(text, "{number:>width$}  {:<16} {words}{source}", term::visible(call));
    }
    add_crashes(text, crashes.remove(&rows.len()), width, palette);
}

fn add_crashes(
    text: &mut String,
    findings: Option<Vec<&CrashFinding>>,
    width: usize,
    palette: Palette,
) {
    for finding in findings.into_iter().flatten() {
        let sentence = term::visible(&finding.sentence);
        let what = if finding.fault.is_some() { "fault" } else { "crash" };
        let crash = format!("{what}: {} {sentence}", finding.id);
        // Writing to a string cannot fail.
        _ = writeln!(text, "{:>width$}  {}", "", palette.paint(Shade::Bad, &crash));
    }
}
