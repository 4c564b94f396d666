//! Findings that name lines of the program.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::env::{Env, compiled};

/// The program that saves by renaming, with debug information.
fn with_lines(env: &Env) -> PathBuf {
    let program = env.sandbox.project().join("save-with-lines");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/crash/save.c");
    let mut compiler = Command::new("cc");
    assert!(compiler.arg("-g").arg(source).arg("-o").arg(&program).status().unwrap().success());
    program
}

fn line(text: &str) -> u64 {
    let source = include_str!("save.c");
    source.lines().position(|line| line.contains(text)).unwrap() as u64 + 1
}

#[test]
fn a_finding_names_the_lines_of_the_program() {
    let env = Env::new();
    let (save, check) = (with_lines(&env), compiled("check"));
    let (save, check) = (save.to_str().unwrap(), check.to_str().unwrap());
    let arguments =
        ["--root", "root", "--fresh", "--json", "--verify", check, "--", save, "file", "2"];
    let found = env.expect(1, &arguments).json();
    let finding = &found["findings"][0];
    let rename = line("if (rename(");
    let sentence =
        format!("what `save.c:{rename} main()` renames is acknowledged, and nothing has synced it");
    assert_eq!(finding["sourceSentence"], sentence.as_str(), "{finding:#}");
    assert_eq!(finding["places"][0]["line"], rename, "{finding:#}");
    assert_eq!(finding["places"][0]["operation"], finding["lostOperations"][0], "{finding:#}");

    // The log has the places of all operations, and the text the line of the finding.
    let shown = env.expect(0, &["show", "last"]);
    let write = format!("  save.c:{} main()", line("write(file, bytes"));
    let written = shown.stdout.lines().find(|line| line.contains("write `map.tmp`")).unwrap();
    assert!(written.ends_with(&write), "{}", shown.snapshot());
    let text = env.expect(1, &["explore", "last", "--verify", check]);
    assert!(text.stdout.contains(&format!("\n    {sentence}\n")), "{}", text.snapshot());

    // Another program has other lines.
    std::fs::write(save, "").unwrap();
    let text = env.expect(1, &["explore", "last", "--verify", check]);
    assert!(!text.stdout.contains("save.c:"), "{}", text.snapshot());
    assert!(text.stdout.contains("note: changed since the recording"), "{}", text.snapshot());
}

#[test]
fn without_stacks_findings_name_no_source_lines() {
    let env = Env::new();
    let (save, check) = (with_lines(&env), compiled("check"));
    let (save, check) = (save.to_str().unwrap(), check.to_str().unwrap());
    let arguments =
        ["--root", "root", "--no-stacks", "--json", "--verify", check, "--", save, "file", "2"];
    let found = env.expect(1, &arguments).json();
    assert_eq!(found["findings"][0].get("places"), None);
    assert_eq!(found["findings"][0].get("sourceSentence"), None);
}
