//! Lines that agents write all day, and what becomes of them: without rules none is refused, with two
//! rules that deny only those that do that, with a list of 20 programs only those that use others.
//!
//! `agent-lines.txt` has the lines: each begins with what is expected without rules, with the deny
//! list and with the allow list.

use std::path::Path;
use std::time::Duration;

use retake_policy::{InvalidRule, Policy};
use retake_types::EnvMode;
use retake_types::config::{PolicyConfig, PolicyPreset};

const LINES: &str = include_str!("agent-lines.txt");

const ALLOWED: [&str; 20] = [
    "cargo", "git", "ls", "cat", "grep", "head", "tail", "wc", "sort", "sed", "awk", "find",
    "make", "python3", "npm", "node", "mkdir", "diff", "rg", "jq",
];

fn policy(project: &Path, allow: &[&str], deny: &[&str]) -> Result<Policy, Vec<InvalidRule>> {
    let words = |rules: &[&str]| rules.iter().map(|&rule| rule.to_owned()).collect();
    let config = PolicyConfig {
        preset: PolicyPreset::None,
        allow: words(allow),
        deny: words(deny),
        directories: Vec::new(),
        shell: Some(true),
        private_temp: true,
        environment: EnvMode::Merge,
        max_timeout: Duration::from_secs(60),
        max_running_time: Duration::from_secs(60),
        max_memory_bytes: None,
        max_processes: None,
        max_parallel: 1,
        max_running: 1,
    };
    Policy::new(&config, &[], project)
}

#[test]
fn ordinary_lines_are_refused_only_for_what_they_do() {
    let project = tempfile::tempdir().unwrap();
    let policies = [
        policy(project.path(), &[], &[]).unwrap(),
        policy(project.path(), &[], &["git push", "rm -rf"]).unwrap(),
        policy(project.path(), &ALLOWED, &[]).unwrap(),
    ];
    let path = std::env::var_os("PATH");
    let mut wrong = Vec::new();
    let mut count = 0;
    for block in LINES.split("\n---\n") {
        let (expected, line) = block.split_once('\n').unwrap();
        let line = line.trim_end_matches('\n');
        let judged = policies
            .each_ref()
            .map(|policy| policy.judge_line(line, project.path(), path.as_deref()));
        let found = judged.each_ref().map(|judged| match judged {
            Ok(()) => "allowed",
            Err(_) => "refused",
        });
        if found.join(" ") != expected {
            wrong.push(format!("{}\n{line}\n{judged:?}", found.join(" ")));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n---\n"));
    assert!(count >= 150, "{count} lines");
}
