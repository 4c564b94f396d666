//! What a crash test came to, for programs and for people.

use retake_types::text;
use std::fmt::Write;
use std::path::PathBuf;

use retake_crash::model::{Coverage, Model};
use retake_crash::operation::Recording;
use serde::Serialize;

use super::finding::Finding;
use retake_runner::terminal;
use retake_runner::colour::Palette;
use retake_runner::colour::Shade;

/// The result of an exploration.
#[derive(Clone, Debug)]
pub struct Report {
    pub model: Model,
    pub coverage: Coverage,
    /// Distinct states that were checked.
    pub verified: u64,
    /// Whether all of them were.
    pub complete: bool,
    /// States that were to be checked elsewhere and were not.
    pub lost: u64,
    /// Of the states in [`Report::verified`].
    pub failed: u64,
    /// States during recovery that were checked.
    pub during_recovery: u64,
    pub findings: Vec<Finding>,
    /// By finding: the recording of the check in which its crash comes.
    pub recoveries: Vec<(String, Recording)>,
    /// What should be known beside the findings.
    pub notes: Vec<String>,
    pub command: String,
    pub verify: String,
    pub root: PathBuf,
}

/// What `--json` prints.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    model: &'a str,
    operations: u32,
    points: u64,
    states: u64,
    distinct: u64,
    verified: u64,
    complete: bool,
    findings: Vec<Told<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Told<'a> {
    id: &'a str,
    sentence: &'a str,
    files: &'a [String],
    lost_operations: &'a [u32],
    states: u64,
    repro: &'a str,
}

impl Report {
    pub fn document(&self) -> impl Serialize {
        let findings = self.findings.iter().map(|finding| Told {
            id: &finding.id,
            sentence: &finding.sentence,
            files: &finding.files,
            lost_operations: &finding.lost_operations,
            states: finding.states,
            repro: &finding.repro,
        });
        Document {
            model: self.model.name(),
            operations: self.coverage.operations,
            points: self.coverage.points,
            states: self.coverage.states(),
            distinct: self.coverage.distinct_states(),
            verified: self.verified,
            complete: self.complete,
            findings: findings.collect(),
        }
    }

    /// One line that says how it went.
    pub fn verdict(&self) -> String {
        let states = text::count(self.verified, "state");
        let model = self.model.name();
        match self.findings.len() as u64 {
            0 if self.verified == 0 => format!("no state of {model} was checked"),
            0 if self.complete => format!("{states} of {model} checked: every one recovers"),
            0 => format!("{states} of {model} checked: every one of them recovers"),
            count => {
                let findings = text::count(count, "finding");
                let fail = match self.failed {
                    0 => "none of them fails".to_owned(),
                    1 => "1 fails".to_owned(),
                    many => format!("{many} fail"),
                };
                let relapses = self.findings.iter().filter(|finding| finding.recovery);
                match relapses.map(|finding| finding.states).sum::<u64>() {
                    0 => format!("{findings} in {states} of {model}: {fail}"),
                    relapses => format!(
                        "{findings} in {states} of {model}: {fail}, but {relapses} of {} during \
                         recovery",
                        self.during_recovery
                    ),
                }
            }
        }
    }

    /// What was not looked at.
    pub fn incomplete(&self) -> Option<String> {
        (!self.complete).then(|| {
            let all = self.coverage.distinct_states();
            format!(
                "not complete: {} of {all} states were not checked",
                all - self.verified.min(all)
            )
        })
    }

    /// For people; lines of words are no longer than `width`.
    pub fn text(&self, palette: Palette, width: Option<usize>) -> String {
        let mut text = String::new();
        let room = width.map(|width| width.saturating_sub(INDENT.len()));
        for finding in &self.findings {
            let id = palette.paint(Shade::Bad, &finding.id);
            // The first line begins behind the id, the others further left or below it.
            let beside = width.map(|width| width.saturating_sub(finding.id.len().max(2) + 2));
            let sentence = wrapped(&text::visible(&finding.sentence), beside);
            _ = writeln!(text, "{id}  {sentence}");
            let after = finding
                .label
                .as_ref()
                .map_or_else(String::new, |label| format!(" (after `{}`)", text::visible(label)));
            let smallest = format!(
                "{}, smallest at operation {}{after}; the check {}",
                text::count(finding.states, "state"),
                finding.operation,
                text::visible(&finding.verdict)
            );
            _ = writeln!(text, "{INDENT}{}", wrapped(&smallest, room));
            for line in finding.output.lines() {
                _ = writeln!(text, "    | {}", text::visible(line));
            }
            _ = writeln!(text, "    {}", text::visible(&finding.repro));
        }
        let shade = if self.findings.is_empty() { Shade::Good } else { Shade::Bad };
        _ = writeln!(text, "{}", palette.paint(shade, &self.verdict()));
        _ = writeln!(text, "{}", wrapped(&self.coverage.to_string(), room));
        if let Some(incomplete) = self.incomplete() {
            _ = writeln!(text, "{incomplete}");
        }
        for note in &self.notes {
            _ = writeln!(text, "note: {}", text::visible(note));
        }
        text
    }
}

/// What stands before the lines below the first of a finding.
const INDENT: &str = "    ";

/// Broken at spaces so that no line is longer than `room`, unless a word is; all lines but the first
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
