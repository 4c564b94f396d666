//! Writes the report of a crash test in every requested form.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use retake_crash::operation::Recording;
use retake_crash_driver::report::CrashReport;
use retake_crash_driver::source_places::SourcePlaces;
use retake_crash_driver::{html, junit, timeline};

use super::CrashFailure;
use super::options::ExplorationArgs;
use super::report_text::{note_text, report_text};
use crate::term::{self, Palette};
use crate::{Exit, Failure};

pub(super) fn write_report(
    args: &ExplorationArgs,
    report: &CrashReport,
    (recording, places): (&Recording, &SourcePlaces),
    took: Duration,
) -> Result<Exit, CrashFailure> {
    if let Some(path) = &args.junit {
        write(path, &junit::render(report, took))?;
    }
    if let Some(path) = &args.html {
        let version = format!("retake {}", env!("CARGO_PKG_VERSION"));
        let mut rows = timeline::rows(recording);
        places.add_to(&mut rows);
        write(path, &html::render(report, &rows, &version))?;
    }
    if args.json {
        if let Some(incomplete) = report.incomplete() {
            term::say(&incomplete);
        }
        report.notes.iter().for_each(|note| term::say(&note_text(note)));
        term::document(&report.json())?;
    } else {
        // Wrapped only on a terminal: programs get one line for each fact.
        let width = if std::io::stdout().is_terminal() { term::width() } else { None };
        term::data(report_text(report, Palette::of_stdout(), width).as_bytes())?;
    }
    Ok(match report.is_clean() {
        false => Exit::FAILED,
        // Whether the unchecked states recover is unknown.
        true if report.lacks_answers() => Exit::REFUSED,
        true => Exit::OK,
    })
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|source| Failure::File {
        action: "write",
        path: path.to_owned(),
        source,
    })
}
