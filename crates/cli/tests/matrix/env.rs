//! A project that is a git repository with a few commits, and a matrix over it.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;

use crate::common::{Called, Sandbox, called};

pub(crate) struct Env {
    pub(crate) sandbox: Sandbox,
}

impl Env {
    /// Commits with these contents of the file `value`, tagged v1, v2 and so on; `main` is the last one.
    pub(crate) fn with_commits(values: &[&str]) -> Self {
        let env = Self { sandbox: Sandbox::new() };
        env.git(&["init", "-q", "-b", "main"]);
        for (at, value) in values.iter().enumerate() {
            env.sandbox.file("value", value);
            env.git(&["add", "value"]);
            env.git(&["commit", "-q", "--allow-empty", "-m", value]);
            env.git(&["tag", &format!("v{}", at + 1)]);
        }
        env
    }

    /// No repository at all.
    pub(crate) fn bare() -> Self {
        Self { sandbox: Sandbox::new() }
    }

    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        let mut command = self.sandbox.command("git");
        command.args(["-c", "user.name=t", "-c", "user.email=t@example.org"]).args(arguments);
        let called = called(&mut command);
        assert_eq!(called.code, 0, "{}", called.snapshot());
        called.stdout.trim().to_owned()
    }

    pub(crate) fn config(&self, text: &str) {
        self.sandbox.file("matrix.yml", text);
    }

    pub(crate) fn matrix(&self, arguments: &[&str]) -> Called {
        let all: Vec<&str> = ["matrix"].iter().chain(arguments).copied().collect();
        self.sandbox.retake(&all)
    }

    /// A call that must end with this code.
    pub(crate) fn expect(&self, code: i32, arguments: &[&str]) -> Called {
        let called = self.matrix(arguments);
        assert_eq!(called.code, code, "{arguments:?}: {}", called.snapshot());
        called
    }

    pub(crate) fn status(&self) -> Value {
        self.expect(0, &["status", "--json"]).json()
    }

    /// ok, failed and pending of each cell.
    pub(crate) fn counts(&self) -> Vec<(u64, u64, u64)> {
        let number = |cell: &Value, key: &str| cell[key].as_u64().expect("a number");
        let status = self.status();
        let cells = status["cells"].as_array().expect("cells");
        cells.iter().map(|c| (number(c, "ok"), number(c, "failed"), number(c, "pending"))).collect()
    }

    /// The ids of all runs that count.
    pub(crate) fn ids(&self) -> BTreeSet<String> {
        let status = self.status();
        let cells = status["cells"].as_array().expect("cells").clone();
        let runs = cells.iter().flat_map(|cell| cell["runs"].as_array().expect("runs").clone());
        runs.map(|run| run["id"].as_str().expect("an id").to_owned()).collect()
    }

    /// A path outside of the project, where commands leave files.
    pub(crate) fn outside(&self, name: &str) -> PathBuf {
        self.sandbox.dir.path().canonicalize().expect("it exists").join(name)
    }
}
