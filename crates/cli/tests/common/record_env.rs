//! Helpers for tests of the record: recorded runs, texts without varying
//! parts, and the database itself.

use std::path::PathBuf;

use regex::Regex;

use super::{Called, RETAKE, Sandbox, called};

impl Sandbox {
    /// Runs a shell script on the record and returns the run's id.
    pub(crate) fn recorded(&self, script: &str) -> String {
        self.recorded_with(&[], script)
    }

    pub(crate) fn recorded_with(&self, options: &[&str], script: &str) -> String {
        let fixed = ["exec", "--json"];
        let script = ["--", "sh", "-c", script];
        let arguments: Vec<_> = fixed.iter().chain(options).chain(&script).copied().collect();
        let called = self.retake(&arguments);
        let run = called.json();
        assert_eq!(run["recorded"], true, "{}", called.snapshot());
        run["id"].as_str().expect("an id").to_owned()
    }

    pub(crate) fn retake_with(&self, variables: &[(&str, &str)], arguments: &[&str]) -> Called {
        called(self.command(RETAKE).envs(variables.iter().copied()).args(arguments))
    }

    /// The commands that a list shows, newest first.
    pub(crate) fn listed(&self, filter: &[&str]) -> Vec<String> {
        let arguments: Vec<_> = ["runs", "list", "--json"].iter().chain(filter).copied().collect();
        let called = self.retake(&arguments);
        assert_eq!(called.code, 0, "{}", called.snapshot());
        let list = called.json();
        let commands = list.as_array().expect("an array").iter();
        commands.map(|run| run["command"].as_str().expect("a command").to_owned()).collect()
    }

    /// The path of the record, once it exists.
    pub(crate) fn store(&self) -> PathBuf {
        let in_git = self.project().join(".git/retake");
        if in_git.exists() { in_git } else { self.project().join(".agent/data") }
    }

    /// Changes the database directly.
    pub(crate) fn tamper(&self, sql: &str) {
        let database = rusqlite::Connection::open(self.store().join("retake.db")).expect("opened");
        database.execute_batch(sql).expect("changed");
    }

    /// A text without parts that differ from one run to the next.
    pub(crate) fn settled(&self, text: &str) -> String {
        let mut text = text.replace(&*self.project().to_string_lossy(), "PROJECT");
        for (pattern, replacement) in [
            (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "RUN"),
            (r"\b[0-9a-f]{64}\b", "HASH"),
            (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
            (r"(just now|\d+[smhd] ago)", "AGO"),
            (r"(?m)(^|[ `])[0-9a-f]{8}\b", "${1}ID"),
            (r"\b\d+(\.\d+)?(ms|s)\b", "TOOK"),
            (r"\b\d+(\.\d+)? [KMGT]iB", "SIZE"),
            (r"\b[\w.-]+@[\w.-]+, retake [\w.]+", "SOMEONE"),
            (r" {2,}", "  "),
        ] {
            let pattern = Regex::new(pattern).expect("a pattern");
            text = pattern.replace_all(&text, replacement).into_owned();
        }
        text
    }

    /// A call as one text to compare, settled.
    pub(crate) fn settled_call(&self, arguments: &[&str]) -> String {
        self.settled(&self.retake(arguments).snapshot())
    }
}

/// Whether any file below a directory contains these bytes.
pub(crate) fn on_disk(directory: &std::path::Path, wanted: &[u8]) -> bool {
    std::fs::read_dir(directory).expect("readable").any(|entry| {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            return on_disk(&path, wanted);
        }
        std::fs::read(&path).expect("readable").windows(wanted.len()).any(|window| window == wanted)
    })
}
