//! The messages about what a sandbox denied, and about files that a confined run left.

use std::path::Path;

use retake_engine::quote;
use retake_runner::denied_text::{self, DeniedLine, Remedy, short_path};
use retake_types::{LeftFile, ReportedRuns, RunRequest, SandboxReport, text};

use crate::network_words;

/// How many are printed at the end of a run; `runs show` prints all that are recorded.
const SAID: usize = 10;

/// Everything that a sandbox reports at the end of a run, except for the promises it does not keep.
pub(crate) fn lines(report: &SandboxReport, request: &RunRequest) -> Vec<String> {
    let mut lines = left_lines(report);
    lines.extend(report.reported.as_ref().and_then(not_reported));
    lines.extend(denied_lines(report, request));
    lines.extend(network_words::refused(report));
    lines
}

/// What was denied, each with the option that allows it.
fn denied_lines(report: &SandboxReport, request: &RunRequest) -> Vec<String> {
    let (denied, unlisted) = denied_text::lines(report, request);
    let mut lines: Vec<String> = denied.iter().take(SAID).map(with_remedy).collect();
    let more = denied.len().saturating_sub(SAID) as u64 + unlisted;
    if more > 0 {
        lines.push(format!("denied: {} more", text::count(more, "time")));
    }
    lines
}

fn with_remedy(line: &DeniedLine) -> String {
    let home = std::env::var_os("HOME").map(std::path::PathBuf::from);
    let name = |path: &Path| text::visible(&short_path(path, home.as_deref())).into_owned();
    let remedy = match &line.remedy {
        None => String::new(),
        Some(Remedy::AllowWrite(path)) => format!("; allow with --allow-write {}", name(path)),
        Some(Remedy::CreateAndAllowWrite(path)) => {
            format!("; allow with --allow-write {} once it exists", name(path))
        }
        Some(Remedy::AllowSocket(path)) => format!("; allow with --allow-socket {}", name(path)),
        Some(Remedy::AllowNetwork) => "; the sandbox has no network".to_owned(),
    };
    format!("denied: {}{remedy}", line.what)
}

/// Files left by the run that this machine may execute later, and how to restore those that were moved.
fn left_lines(report: &SandboxReport) -> Vec<String> {
    let Some(left) = &report.left_for_host else { return Vec::new() };
    let mut lines: Vec<String> = left.files.iter().take(SAID).map(left_line).collect();
    let more = left.files.len().saturating_sub(SAID) as u64 + left.unlisted;
    if more > 0 {
        lines.push(format!("this machine may execute later: {more} more"));
    }
    if !left.complete {
        lines.push(
            "the project is very large: not all of it was searched for files that this machine may execute later"
                .to_owned(),
        );
    }
    lines
}

/// Runs inside of the sandbox that are missing in the record.
fn not_reported(reported: &ReportedRuns) -> Option<String> {
    let ReportedRuns { runs, refused, incomplete } = reported;
    let taken = text::count(*runs, "run");
    match (refused, incomplete) {
        (0, false) => None,
        (_, true) => Some(format!(
            "{taken} inside of the sandbox recorded; more exist than can be read or imported"
        )),
        (refused, false) => Some(format!(
            "{taken} inside of the sandbox recorded; {} refused: already recorded, or not valid",
            text::count(*refused, "other")
        )),
    }
}

pub(crate) fn left_line(file: &LeftFile) -> String {
    let names = match file.names.is_empty() {
        true => String::new(),
        false => format!(" ({})", file.names.join(", ")),
    };
    let line = match &file.moved_to {
        None => {
            format!("this machine may execute later: {} {}{names}", file.kind.as_str(), file.path)
        }
        Some(to) => {
            let words = [to, &file.path].map(|path| path.to_string_lossy().into_owned());
            // Do not keep the file that replaced it.
            let restore = quote(["mv", "-fT", "--", &words[0], &words[1]]);
            format!(
                "moved aside: {} {}{names}; restore with: {restore}",
                file.kind.as_str(),
                file.path
            )
        }
    };
    text::visible(&line).into_owned()
}
