//! Telling what a crash test came to, in every form that was asked for.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use retake_crash::operation::Recording;

use super::Trouble;
use super::options::Exploring;
use crate::Exit;
use crate::Failure;
use crate::term;
use crate::term::Palette;
use retake_crash_driver::html;
use retake_crash_driver::junit;
use retake_crash_driver::report::Report;
use retake_crash_driver::timeline;

pub(super) fn tell(
    exploring: &Exploring,
    report: &Report,
    recording: &Recording,
    took: Duration,
) -> Result<Exit, Trouble> {
    if let Some(path) = &exploring.junit {
        write(path, &junit::render(report, took))?;
    }
    if let Some(path) = &exploring.html {
        let made = format!("retake {}", env!("CARGO_PKG_VERSION"));
        write(path, &html::render(report, &timeline::rows(recording), &made))?;
    }
    if exploring.json {
        if let Some(incomplete) = report.incomplete() {
            term::say(&incomplete);
        }
        report.notes.iter().for_each(|note| term::say(note));
        term::document(&report.document())?;
    } else {
        // What is read by a program stays on one line each.
        let width = if std::io::stdout().is_terminal() { term::width() } else { None };
        term::data(report.text(Palette::of_stdout(), width).as_bytes())?;
    }
    Ok(match report.findings.is_empty() {
        false => Exit::FAILED,
        // Nobody knows what those states are like.
        true if report.lost > 0 => Exit::REFUSED,
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
