//! Decides which tool calls of an agent can be test runs. Text that only mentions tests (a search,
//! a file, a page) resembles the output of a test runner but says nothing about the project.

use std::collections::HashMap;

use retake_effects::test_results::OutputCuts;

use crate::adapters::{Payload, StreamEvent};

/// More concurrent calls than any agent makes.
const MOST_OPEN: usize = 1000;

/// Programs that only show text.
const SHOWING: [&str; 32] = [
    "grep", "egrep", "fgrep", "rg", "ag", "ack", "cat", "head", "tail", "less", "more", "sed",
    "awk", "gawk", "cut", "sort", "uniq", "wc", "tr", "find", "fd", "ls", "tree", "echo", "printf",
    "diff", "jq", "tee", "cd", "true", "file", "stat",
];
/// Subcommands of git that only show text.
const SHOWING_GIT: [&str; 6] = ["log", "show", "diff", "grep", "blame", "status"];

/// Unfinished calls, and what is missing in the output of those that can be test runs.
#[derive(Debug, Default)]
pub(super) struct OpenCalls(HashMap<String, Option<OutputCuts>>);

impl OpenCalls {
    pub(super) fn see(&mut self, event: &StreamEvent<'_>) {
        if let StreamEvent::ToolUse { id, name, input } = event {
            if self.0.len() >= MOST_OPEN {
                self.0.clear();
            }
            self.0.insert(id.to_string(), test_output(name, input));
        }
    }

    /// What may be missing in the output of a call; `None` if it cannot be a test run. An unknown
    /// call can be anything.
    pub(super) fn returned(&mut self, id: &str) -> Option<OutputCuts> {
        self.0.remove(id).unwrap_or(Some(OutputCuts::default()))
    }
}

fn test_output(tool: &str, input: &Payload<'_>) -> Option<OutputCuts> {
    let shell = matches!(tool, "Bash" | "bash" | "shell" | "run_shell_command");
    // Servers offer tools with any name; a tool with a command runs it.
    match input.field("command") {
        Some(command) if shell || tool.contains("exec") || tool.starts_with("mcp") => {
            OutputCuts::of_command_line(&command).filter(|_| !only_shows(&command))
        }
        Some(_) => Some(OutputCuts::default()),
        None => (shell || tool.starts_with("mcp") || tool.is_empty()).then(OutputCuts::default),
    }
}

/// Whether every command of a line only shows text.
fn only_shows(line: &str) -> bool {
    line.split(['\n', ';', '|', '&']).map(str::trim).filter(|one| !one.is_empty()).all(|one| {
        let mut words = one.split_whitespace().filter(|word| !word.contains('='));
        let program = words.next().unwrap_or("true");
        let program = program.rsplit('/').next().unwrap_or(program);
        match program {
            "git" => words.next().is_some_and(|word| SHOWING_GIT.contains(&word)),
            _ => SHOWING.contains(&program),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_about_tests_is_no_test_run() {
        for line in [
            "grep -rn 'test result' .",
            "rg passed | head -3",
            "cat log.txt && tail -n 5 other.log",
            "cd sub; LC_ALL=C sed -n 1,20p report.txt",
            "git log -3",
            "/usr/bin/grep ok x",
        ] {
            assert!(only_shows(line), "{line}");
        }
        for line in [
            "cargo test | tail -5",
            "cd sub && npm test",
            "make check 2>&1 | grep -c ok",
            "git stash; pytest -q",
            "sh run-tests.sh",
        ] {
            assert!(!only_shows(line), "{line}");
        }
        let json = |text| Payload::json(text);
        let can_run_tests = |tool: &str, input: &Payload<'_>| test_output(tool, input).is_some();
        assert!(can_run_tests("Bash", &json(r#"{"command":"cargo test"}"#)));
        assert!(can_run_tests("mcp__retake__exec", &json(r#"{"command":"cargo test"}"#)));
        assert!(!can_run_tests("Bash", &json(r#"{"command":"grep -r passed ."}"#)));
        assert!(!can_run_tests("Read", &json(r#"{"file_path":"results.txt"}"#)));
        let cut = json(r#"{"command":"cargo test 2>&1 | tail -5"}"#);
        assert!(test_output("Bash", &cut).is_some_and(|cuts| cuts.beginning && !cuts.end));
        assert!(!can_run_tests("WebFetch", &json(r#"{"url":"https://example.org"}"#)));
    }
}
