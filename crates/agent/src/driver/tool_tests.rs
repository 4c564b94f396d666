//! Which tool calls of an agent can be test runs. Text that merely mentions tests (a search, a file, a
//! page) looks like the output of a test runner and says nothing about the project.

use std::collections::HashMap;
use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use aho_corasick::packed::Searcher;
use memchr::memmem;

use retake_effects::test_results::OutputCuts;

use crate::adapters::{Payload, StreamEvent};

/// More calls at once than any agent makes.
const MOST_OPEN: usize = 1000;

/// Programs that show text and run nothing.
const SHOWING: [&str; 32] = [
    "grep", "egrep", "fgrep", "rg", "ag", "ack", "cat", "head", "tail", "less", "more", "sed",
    "awk", "gawk", "cut", "sort", "uniq", "wc", "tr", "find", "fd", "ls", "tree", "echo", "printf",
    "diff", "jq", "tee", "cd", "true", "file", "stat",
];
/// The same of git.
const SHOWING_GIT: [&str; 6] = ["log", "show", "diff", "grep", "blame", "status"];

/// Every test runner has a line with a number and one of these words in it.
const WORDS: [&str; 9] = ["pass", "PASS", "Pass", "fail", "FAIL", "ok", "OK", "test", "Test"];

/// Looks at many bytes at once, where the processor can.
static FIND_WORDS: LazyLock<Option<Searcher>> = LazyLock::new(|| Searcher::new(WORDS));
static FIND_WORDS_ANYWHERE: LazyLock<AhoCorasick> =
    LazyLock::new(|| AhoCorasick::new(WORDS).expect("a few short words"));

/// Where the next of the words begins.
fn next_word(bytes: &[u8]) -> Option<usize> {
    match &*FIND_WORDS {
        Some(searcher) => searcher.find(bytes).map(|word| word.start()),
        None => FIND_WORDS_ANYWHERE.find(bytes).map(|word| word.start()),
    }
}

/// Whether a tool's result, still as JSON, can be what a test runner prints. Most are not, and
/// reading one as such costs more than all the rest that is done with it.
pub(super) fn may_hold_tests(json: &str) -> bool {
    let bytes = json.as_bytes();
    let mut from = 0;
    while let Some(word) = next_word(&bytes[from..]) {
        let at = from + word;
        // Line feeds are escapes here. One behind an escaped backslash is none, which does no harm.
        let line = LINE_FEED_BEFORE.rfind(&bytes[..at]).map_or(0, |end| end + 2);
        let end = LINE_FEED.find(&bytes[at..]).map_or(bytes.len(), |end| at + end);
        if bytes[line..end].iter().any(u8::is_ascii_digit) {
            return true;
        }
        from = end;
    }
    false
}

static LINE_FEED: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(b"\\n"));
static LINE_FEED_BEFORE: LazyLock<memmem::FinderRev<'static>> =
    LazyLock::new(|| memmem::FinderRev::new(b"\\n"));

/// The calls that have not returned yet, and what is missing of the output of those that can be test
/// runs.
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

    /// What may be missing of what a call returned; `None` if it cannot be a test run. A call that
    /// was not seen can be anything.
    pub(super) fn returned(&mut self, id: &str) -> Option<OutputCuts> {
        self.0.remove(id).unwrap_or(Some(OutputCuts::default()))
    }
}

fn test_output(tool: &str, input: &Payload<'_>) -> Option<OutputCuts> {
    let shell = matches!(tool, "Bash" | "bash" | "shell" | "run_shell_command");
    // Servers offer tools of any name; one that takes a command runs it.
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
        assert!(!may_hold_tests(r#""fn passes() {\n    1\n}\nok\n""#));
        assert!(may_hold_tests(r#""x\ntest result: ok. 5 passed; 0 failed\ny""#));
        assert!(may_hold_tests(r#"[{"type":"text","text":"a\nRan 3 tests in 0.1s\n\nOK"}]"#));
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
