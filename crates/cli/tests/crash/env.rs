//! A project with a directory to crash in, and the small programs that do it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::common::{Called, RETAKE, Sandbox, called};

pub(crate) struct Env {
    pub(crate) sandbox: Sandbox,
}

/// Compiled once for all tests.
pub(crate) fn compiled(name: &str) -> PathBuf {
    static PLACE: OnceLock<tempfile::TempDir> = OnceLock::new();
    static BUILT: OnceLock<()> = OnceLock::new();
    let place = PLACE.get_or_init(|| tempfile::tempdir().unwrap());
    BUILT.get_or_init(|| {
        for name in ["save", "check", "handle"] {
            let source =
                Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/crash/{name}.c"));
            let mut compiler = Command::new("cc");
            compiler.args(["-O1", "-Wall", "-o"]).arg(place.path().join(name)).arg(source);
            assert!(compiler.status().unwrap().success());
        }
    });
    place.path().join(name)
}

impl Env {
    pub(crate) fn new() -> Self {
        let env = Self { sandbox: Sandbox::new() };
        std::fs::create_dir(env.root()).unwrap();
        env
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.sandbox.project().join("root")
    }

    /// `retake crash` with these arguments, to be started.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.command(RETAKE);
        command.arg("crash").args(arguments).stdin(Stdio::null());
        command
    }

    pub(crate) fn crash(&self, arguments: &[&str]) -> Called {
        called(&mut self.command(arguments))
    }

    /// A call that must end with this code.
    pub(crate) fn expect(&self, code: i32, arguments: &[&str]) -> Called {
        let called = self.crash(arguments);
        assert_eq!(called.code, code, "{arguments:?}: {}", called.snapshot());
        called
    }

    /// The answer of a test of `save`, which must end with this code.
    pub(crate) fn save(&self, code: i32, synced: &str, options: &[&str]) -> Value {
        let (save, check) = (compiled("save"), compiled("check"));
        let mut arguments = vec!["--root", "root", "--json", "--verify", check.to_str().unwrap()];
        arguments.extend(options);
        arguments.extend(["--", save.to_str().unwrap(), synced, "2"]);
        self.expect(code, &arguments).json()
    }

    /// The recorded stop reason and events of the only loop.
    pub(crate) fn loop_record(&self) -> (Option<String>, Vec<Value>) {
        let database = self.sandbox.project().join(".agent/data/retake.db");
        let record = rusqlite::Connection::open(database).unwrap();
        let (id, reason): (Vec<u8>, Option<String>) = record
            .query_row("SELECT id, stop_reason FROM loops", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .unwrap();
        let mut events =
            record.prepare("SELECT body FROM events WHERE loop = ?1 ORDER BY seq").unwrap();
        let events = events.query_map([id], |row| row.get::<_, String>(0)).unwrap();
        (reason, events.map(|body| serde_json::from_str(&body.unwrap()).unwrap()).collect())
    }
}

/// The sentences of all findings.
pub(crate) fn sentences(answer: &Value) -> Vec<String> {
    let findings = answer["findings"].as_array().unwrap().iter();
    findings.map(|finding| finding["sentence"].as_str().unwrap().to_owned()).collect()
}
