//! The quick starts of `docs/guides`, followed literally: their files are saved, their
//! commands typed, and the shown output is compared with the real one.

use std::path::Path;

use regex::Regex;

use crate::common::Sandbox;

/// Stands for any text within a line; alone on a line, for any lines.
const ANYTHING: &str = "…";

fn follow(guide: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides").join(guide);
    let text = std::fs::read_to_string(path).expect("the guide");
    let sandbox = Sandbox::new();
    // A reader starts in an empty directory.
    std::fs::remove_dir(sandbox.project().join(".agent")).expect("an empty directory");
    let block = Regex::new(r"(?ms)^```(\w+)([^\n]*)\n(.*?)^```$").expect("a pattern");
    let mut typed = 0;
    for block in block.captures_iter(&text) {
        let (language, file, body) = (&block[1], block[2].trim(), &block[3]);
        if language == "console" {
            typed += console(&sandbox, body);
        } else if !file.is_empty() {
            // The file name after the fence is not rendered; the text must name it, too.
            let before = &text[..block.get(0).expect("the block").start()];
            assert!(before.contains(&format!("`{file}`")), "{guide} does not say to save `{file}`");
            sandbox.file(file, body);
        }
    }
    assert!(typed > 4, "{guide} has {typed} commands");
}

/// Types the commands of a block; returns how many.
fn console(sandbox: &Sandbox, block: &str) -> usize {
    let lines = block.strip_prefix("$ ").expect("a command comes first");
    let mut typed = 0;
    for command in lines.split("\n$ ") {
        let (line, shown) = command.split_once('\n').unwrap_or((command, ""));
        let printed = sandbox.sh(&format!("exec 2>&1; {line}")).stdout;
        let (printed, shown) = (printed.trim_end(), shown.trim_end());
        assert!(pattern(shown).is_match(printed), "$ {line}\n{printed}\n\nThe guide:\n{shown}");
        typed += 1;
    }
    typed
}

fn pattern(shown: &str) -> Regex {
    let lines = shown.lines().map(|line| match line {
        ANYTHING => "(?:[^\n]*\n)*?".to_owned(),
        line => regex::escape(line).replace(ANYTHING, "[^\n]*") + "(?:\n|$)",
    });
    // A block may end with arbitrary lines; its last lines must end the output.
    let text: String = lines.collect();
    let rest = if shown.ends_with(ANYTHING) { "(?s:.*)" } else { "" };
    Regex::new(&format!("\\A{text}{rest}\\z")).expect("a pattern")
}

#[test]
fn a_guide_that_shows_something_else_is_noticed() {
    assert!(pattern("a …\n…\nz").is_match("a b\nc\nd\nz"));
    assert!(pattern("a\n…").is_match("a\nb\nc"));
    assert!(pattern("").is_match(""));
    for (shown, printed) in
        [("a", "b"), ("a", "a\nb"), ("a\n…\nz", "a\nb"), ("", "a"), ("a …", "a")]
    {
        assert!(!pattern(shown).is_match(printed), "{shown:?} {printed:?}");
    }
}

#[test]
fn commands_in_ci() {
    follow("start-ci.md");
}

#[test]
fn an_agent_that_works_alone() {
    follow("start-agents.md");
}

#[test]
fn comparing_versions() {
    follow("start-benchmarks.md");
}

#[test]
fn surviving_a_crash() {
    follow("start-storage.md");
}
