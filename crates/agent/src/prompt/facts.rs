//! The facts for a prompt, and the text of each.

use std::borrow::Cow;
use std::path::Path;

use crate::workspace::{Criterion, RECOMMENDED, REQUIRED};
use retake_types::TestResults;
use retake_types::loop_record::agent::Mode;

/// How much of the end of a command's output goes into a prompt.
const TAIL: usize = 16 << 10;

#[derive(Clone, Debug)]
pub struct Facts<'a> {
    pub project_root: &'a Path,
    pub workspace_path: &'a Path,
    pub mode: Mode,
    pub instructions: &'a str,
    /// A workspace's own `.status-instructions.md`.
    pub status_instructions: Option<&'a str>,
    pub iteration: Option<u32>,
    /// Remaining iterations of this run, including this one.
    pub iterations_left: Option<u32>,
    /// Remaining items, if known.
    pub remaining: Option<u64>,
    pub last_tests: Option<&'a TestResults>,
    /// The output of the failed verification.
    pub verify_output: Option<&'a str>,
    /// The error in the status file.
    pub status_problem: Option<&'a str>,
    /// Whether the previous iteration was interrupted.
    pub interrupted: bool,
    pub messages: &'a [String],
    pub report_path: Option<&'a Path>,
    pub depth: Option<&'a str>,
}

impl<'a> Facts<'a> {
    pub fn new(project_root: &'a Path, workspace_path: &'a Path, mode: Mode) -> Self {
        Self {
            project_root,
            workspace_path,
            mode,
            instructions: "",
            status_instructions: None,
            iteration: None,
            iterations_left: None,
            remaining: None,
            last_tests: None,
            verify_output: None,
            status_problem: None,
            interrupted: false,
            messages: &[],
            report_path: None,
            depth: None,
        }
    }

    /// The value of a token. Unknown facts are empty.
    pub(super) fn value<'b>(&'b self, token: &str, status: &'b str) -> Option<Cow<'b, str>> {
        let number = |value: Option<String>| Cow::Owned(value.unwrap_or_default());
        Some(match token {
            "projectRoot" => self.project_root.to_string_lossy(),
            "workspacePath" => self.workspace_path.to_string_lossy(),
            "mode" => Cow::Borrowed(self.mode.as_str()),
            "instructions" => Cow::Borrowed(self.instructions.trim_end()),
            "statusInstructions" => Cow::Borrowed(status.trim_end()),
            "facts" => Cow::Owned(self.as_text()),
            "iteration" => number(self.iteration.map(|n| n.to_string())),
            "iterationsLeft" => number(self.iterations_left.map(|n| n.to_string())),
            "remaining" => number(self.remaining.map(|n| n.to_string())),
            "lastTests" => number(self.last_tests.map(tests)),
            "verifyOutput" => Cow::Borrowed(self.verify_output.map_or("", tail)),
            "messages" => Cow::Owned(self.messages.join("\n\n")),
            "reportPath" => match self.report_path {
                Some(path) => path.to_string_lossy(),
                None => Cow::Borrowed(""),
            },
            "depth" => Cow::Borrowed(self.depth.unwrap_or("standard")),
            "depthAdvice" => Cow::Borrowed(advice(self.depth.unwrap_or("standard"))),
            "requiredCriteria" => Cow::Owned(criteria(&REQUIRED)),
            "recommendedCriteria" => Cow::Owned(criteria(&RECOMMENDED)),
            _ => return None,
        })
    }

    /// All known facts of an iteration as text.
    fn as_text(&self) -> String {
        let mut parts = Vec::new();
        if let Some(iteration) = self.iteration {
            let left = match self.iterations_left {
                Some(1) => " It is the last one of this run.".to_owned(),
                Some(left) => format!(" {left} are left in this run, this one included."),
                None => String::new(),
            };
            parts.push(format!("This is iteration {iteration}.{left}"));
        }
        if self.interrupted {
            parts.push(
                "The previous iteration was interrupted. Its work may be incomplete: check before \
                 you continue."
                    .to_owned(),
            );
        }
        if let Some(remaining) = self.remaining {
            parts.push(format!("Items left by your last count: {remaining}."));
        }
        if let Some(results) = self.last_tests {
            parts.push(format!("Last test results: {}.", tests(results)));
        }
        if let Some(problem) = self.status_problem {
            parts.push(format!(
                "The status file could not be used: {problem}. Write it as described below."
            ));
        }
        if let Some(output) = self.verify_output {
            parts.push(format!(
                "You said that the task is complete, but verification did not pass. What it \
                 printed:\n\n{}\n\nFind the cause and fix it before you report completion again.",
                tail(output)
            ));
        }
        if !self.messages.is_empty() {
            parts.push(format!(
                "From the person who gave the task, meanwhile:\n\n{}",
                self.messages.join("\n\n")
            ));
        }
        parts.join("\n\n")
    }
}

fn tests(results: &TestResults) -> String {
    let mut text = format!(
        "{} passed, {} failed, {} skipped",
        results.passed, results.failed, results.skipped
    );
    let failed: Vec<&str> = results
        .details
        .iter()
        .filter(|detail| detail.status.is_failure())
        .map(|detail| detail.name.as_str())
        .take(20)
        .collect();
    if !failed.is_empty() {
        text.push_str(&format!(" (failed: {})", failed.join(", ")));
    }
    text
}

fn tail(text: &str) -> &str {
    let text = text.trim_end();
    &text[text.ceil_char_boundary(text.len().saturating_sub(TAIL))..]
}

fn criteria(list: &[Criterion]) -> String {
    let lines: Vec<String> =
        list.iter().map(|criterion| format!("- {}: {}.", criterion.name, criterion.asks)).collect();
    lines.join("\n")
}

fn advice(depth: &str) -> &'static str {
    match depth {
        "quick" => "Look at the main results only, and run what takes a minute at most.",
        "deep" => "Look at every item of the task and run everything that can be run.",
        _ => "Look at each part of the task and run the tests that belong to it.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_facts_are_left_out_of_the_prompt() {
        let bare = Facts::new(Path::new("/p"), Path::new("/w"), Mode::Loop);
        assert_eq!(bare.as_text(), "");
        let messages = ["use $HOME".to_owned(), "and {{this}}".to_owned()];
        let long = format!("first\n{}last", "é".repeat(TAIL));
        let facts = Facts {
            iteration: Some(4),
            iterations_left: Some(2),
            remaining: Some(9),
            verify_output: Some(&long),
            interrupted: true,
            status_problem: Some("complete is missing"),
            messages: &messages,
            ..bare
        };
        let told = facts.as_text();
        for part in [
            "This is iteration 4. 2 are left",
            "was interrupted",
            "Items left by your last count: 9.",
            "complete is missing",
            "last\n\nFind the cause",
            "use $HOME\n\nand {{this}}",
        ] {
            assert!(told.contains(part), "{part}");
        }
        assert!(!told.contains("first") && told.len() < TAIL + 1000);
    }
}
