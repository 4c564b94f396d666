//! The report of a crash test for a person at a terminal.

use std::fmt::Write;

use retake_crash_driver::report::{CrashReport, ReportNote};
use retake_types::loop_record::crash::CrashFinding;

use crate::term::{self, Palette, Shade};

/// Indentation of the lines below the first line of a finding.
const INDENT: &str = "    ";

/// Marks a sentence that may name too much, or too little.
const UNPROVEN: &str = "not proven: it would take too many checks to see that nothing less fails";

/// Text is wrapped at `width`.
pub(super) fn report_text(report: &CrashReport, palette: Palette, width: Option<usize>) -> String {
    let mut text = String::new();
    let room = width.map(|width| width.saturating_sub(INDENT.len()));
    for finding in &report.findings {
        add_finding(&mut text, finding, palette, width, room);
    }
    let clean = report.is_clean() && !report.lacks_answers();
    let shade = if clean { Shade::Good } else { Shade::Bad };
    // Writing to a string cannot fail.
    _ = writeln!(text, "{}", palette.paint(shade, &report.verdict()));
    if report.crashes {
        _ = writeln!(text, "{}", wrapped(&report.coverage.to_string(), room));
    }
    if let Some(faults) = report.fault_coverage() {
        _ = writeln!(text, "{}", wrapped(&faults, room));
    }
    if let Some(incomplete) = report.incomplete() {
        _ = writeln!(text, "{incomplete}");
    }
    for note in &report.notes {
        _ = writeln!(text, "note: {}", term::visible(&note_text(note)));
    }
    text
}

/// A note, with the option that helps.
pub(super) fn note_text(note: &ReportNote) -> String {
    match note {
        ReportNote::RootNotEmpty { .. } => format!("{note}; --fresh begins with an empty one"),
        other => other.to_string(),
    }
}

fn add_finding(
    text: &mut String,
    finding: &CrashFinding,
    palette: Palette,
    width: Option<usize>,
    room: Option<usize>,
) {
    let id = palette.paint(Shade::Bad, &finding.id);
    // The first line begins after the id; the others are indented.
    let beside = width.map(|width| width.saturating_sub(finding.id.len().max(2) + 2));
    let sentence = wrapped(&term::visible(&finding.sentence), beside);
    _ = writeln!(text, "{id}  {sentence}");
    if !finding.source_sentence.is_empty() {
        let source = term::visible(&finding.source_sentence);
        _ = writeln!(text, "{INDENT}{}", wrapped(&source, room));
    }
    let after = finding
        .label
        .as_ref()
        .map_or_else(String::new, |label| format!(" (after `{}`)", term::visible(label)));
    let crash = match (finding.operation, finding.operation_text.as_str()) {
        (0, _) => "before the first operation".to_owned(),
        (number, "") => format!("after op {number}"),
        (number, text) => format!("after op {number} ({})", term::visible(text)),
    };
    let verdict = term::visible(&finding.verdict);
    let smallest = match &finding.fault {
        Some(fault) => format!(
            "{}, the first {crash}; the program {}, the check {verdict}",
            term::count(finding.states, "fault"),
            fault.outcome
        ),
        None => {
            let states = term::count(finding.states, "state");
            format!("{states}, smallest {crash}{after}; the check {verdict}")
        }
    };
    _ = writeln!(text, "{INDENT}{}", wrapped(&smallest, room));
    if !finding.proven && !finding.unexplained {
        _ = writeln!(text, "{INDENT}{}", wrapped(UNPROVEN, room));
    }
    let said = finding.fault.as_ref().map_or("", |fault| fault.said.as_str());
    for line in said.lines() {
        _ = writeln!(text, "    program | {}", term::visible(line));
    }
    for line in finding.output.lines() {
        _ = writeln!(text, "    | {}", term::visible(line));
    }
    _ = writeln!(text, "    {}", term::visible(&finding.repro));
}

/// Wrapped at spaces to lines of at most `room`, except for longer words; all lines but the first
/// are indented.
fn wrapped(text: &str, room: Option<usize>) -> String {
    let Some(room) = room else { return text.to_owned() };
    let mut lines = String::new();
    let mut taken = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if taken > 0 && taken + 1 + length > room {
            lines.push('\n');
            lines.push_str(INDENT);
            taken = 0;
        } else if taken > 0 {
            lines.push(' ');
            taken += 1;
        }
        lines.push_str(word);
        taken += length;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_broken_at_spaces_only_where_there_is_a_width() {
        let text = "one two three a-very-long-word four";
        assert_eq!(wrapped(text, None), text);
        assert_eq!(wrapped(text, Some(9)), "one two\n    three\n    a-very-long-word\n    four");
    }
}
