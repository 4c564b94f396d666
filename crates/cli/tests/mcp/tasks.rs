//! Real agents that work through the server, with its defaults: what their models see of it, and one
//! task from build to commit. The model is a script; agents, commands and sandbox are real.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::{Called, RETAKE, Sandbox, called};
use crate::model::{Model, program};
use crate::real::{RUN, workspace};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Agent {
    Claude,
    Codex,
    Gemini,
    Opencode,
}

impl Agent {
    fn program(self) -> Option<PathBuf> {
        program(match self {
            Self::Claude => "RETAKE_CLAUDE",
            Self::Codex => "RETAKE_CODEX",
            Self::Gemini => "RETAKE_GEMINI",
            Self::Opencode => "RETAKE_OPENCODE",
        })
    }

    fn workspace(self) -> Option<Sandbox> {
        let program = self.program()?;
        Some(match self {
            Self::Claude => workspace("claude", &program, ""),
            Self::Codex => workspace("codex", &program, ""),
            Self::Gemini => workspace("gemini", &program, "  args: [-m, gemini-2.5-pro]\n"),
            Self::Opencode => workspace("opencode", &program, ""),
        })
    }

    /// A turn in which the model uses one of the server's tools.
    fn uses(self, tool: &str, input: Value) -> Value {
        let call = match self {
            Self::Claude => json!({"name": format!("mcp__retake__{tool}"), "input": input}),
            Self::Codex => json!({"namespace": "mcp__retake", "name": tool, "input": input}),
            Self::Gemini => json!({"name": format!("mcp_retake_{tool}"), "input": input}),
            Self::Opencode => json!({"name": format!("retake_{tool}"), "input": input}),
        };
        json!({"tools": [call]})
    }

    /// Runs one iteration with a model that makes these calls, and then completes the task.
    fn run(self, sandbox: &Sandbox, calls: &[(&str, Value)]) -> (Called, Vec<String>) {
        let status = sandbox.project().join(".agent/workspaces/task/.status.json");
        let done = format!("echo '{{\"complete\":true}}' > {}", status.display());
        let last = [("exec", json!({"command": done}))];
        let calls = calls.iter().chain(&last);
        let mut turns: Vec<Value> =
            calls.map(|(tool, input)| self.uses(tool, input.clone())).collect();
        turns.push(json!({"text": "Done."}));
        let model = Model::saying(sandbox, &json!(turns));
        let mut command = sandbox.command(RETAKE);
        match self {
            Self::Claude => _ = model.is_of_claude(&mut command),
            Self::Codex => _ = model.is_of_codex(sandbox, &mut command),
            Self::Gemini => _ = model.is_of_gemini(sandbox, &mut command),
            Self::Opencode => model.is_of_opencode(sandbox),
        }
        let ran = called(command.args(RUN));
        assert_eq!(ran.code, 0, "{}", ran.snapshot());
        assert_eq!(sandbox.statuses(), "1 completed", "{}", ran.snapshot());
        assert!(!ran.snapshot().contains("did not ask for its tools"), "{}", ran.snapshot());
        let results = model.tool_results();
        assert_eq!(results.len(), turns.len() - 1, "{results:#?}");
        (ran, results)
    }
}

/// 446 bytes of `ls -la`.
const LISTING: &str = "total 28
drwxr-xr-x 4 user user 4096 Nov 17 12:00 .
drwxr-xr-x 9 user user 4096 Nov 17 11:58 ..
-rw-r--r-- 1 user user  512 Nov 17 12:00 Cargo.toml
-rw-r--r-- 1 user user 9021 Nov 17 12:00 README.md
-rw-r--r-- 1 user user   87 Nov 17 12:00 build.rs
-rw-r--r-- 1 user user 1070 Nov 17 12:00 LICENSE-MIT
drwxr-xr-x 3 user user 4096 Nov 17 12:00 benchmarks
drwxr-xr-x 3 user user 4096 Nov 17 12:00 src
drwxr-xr-x 2 user user 4096 Nov 17 12:00 tests
";

fn the_model_sees_output_once(agent: Agent) {
    let Some(sandbox) = agent.workspace() else { return };
    assert_eq!(LISTING.len(), 446);
    sandbox.file("listing", LISTING);
    let (_, results) = agent.run(&sandbox, &[("exec", json!({"command": "cat listing"}))]);
    let seen = &results[0];
    for line in LISTING.lines() {
        assert_eq!(seen.matches(line.trim_end()).count(), 1, "{line}: {seen}");
    }
    let (seen_chars, chars) = (seen.chars().count(), LISTING.len());
    assert!(seen_chars * 10 <= chars * 12, "{seen_chars} characters for {chars}: {seen}");
    assert!(seen.contains("ok: exit code 0 after "), "{seen}");
}

#[test]
fn claude_shows_its_model_the_output_once() {
    the_model_sees_output_once(Agent::Claude);
}

#[test]
fn codex_shows_its_model_the_output_once() {
    the_model_sees_output_once(Agent::Codex);
}

#[test]
fn gemini_shows_its_model_the_output_once() {
    the_model_sees_output_once(Agent::Gemini);
}

#[test]
fn opencode_shows_its_model_the_output_once() {
    the_model_sees_output_once(Agent::Opencode);
}

/// A project with a build, a failing test, a long log, and a server.
fn project(sandbox: &Sandbox) {
    sandbox.file("app.c", "#include <stdio.h>\nint main(void) { puts(\"built\"); return 0; }\n");
    sandbox.file("Makefile", "app: app.c\n\tcc -Wall -o app app.c\n");
    sandbox.file(
        "test_cart.py",
        "import unittest\nclass Cart(unittest.TestCase):\n    def test_adds(self): self.assertEqual(1 + 1, 2)\n    def test_refunds(self): self.assertEqual(3 - 1, 3)\n",
    );
    sandbox.file(
        "noise.py",
        "import sys\nfor n in range(400000):\n    print(f'[{n}] retry: connection refused')\n    if n == 200000: print('src/cart.c:17:3: error: the needle')\nsys.exit(1)\n",
    );
    sandbox.file(".gitignore", ".agent\napp\n__pycache__\n");
    let made = sandbox.sh(
        "git init -q -b main && git config user.name n && git config user.email n@example.com && git add . && git commit -qm first",
    );
    assert_eq!(made.code, 0, "{}", made.snapshot());
}

const COMMIT: &str = "git add -A && git commit -q -m \"$(cat <<'EOF'
Fix the cart

It's done; see `refunds`.
EOF
)\" && git log --oneline | head -1";

const ASK: &str = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8123/app.c', timeout=20).read().decode())";

fn a_task_from_build_to_commit(agent: Agent) {
    let Some(sandbox) = agent.workspace() else { return };
    if !sandbox.can_be_confined() {
        return;
    }
    project(&sandbox);
    let serve = json!(["python3", "-u", "-m", "http.server", "8123", "--bind", "127.0.0.1"]);
    let (ran, results) = agent.run(
        &sandbox,
        &[
            ("exec", json!({"command": "make 2>&1 | tail -5 && ./app"})),
            ("exec", json!({"command": "python3 -m unittest -v test_cart"})),
            ("exec", json!({"argv": ["python3", "noise.py"]})),
            ("runs_logs", json!({"run": "last", "pattern": "needle", "context": 1})),
            ("exec_start", json!({"argv": serve})),
            ("exec_wait", json!({"run": "last", "pattern": "Serving HTTP", "seconds": 60})),
            ("exec", json!({"argv": ["python3", "-c", ASK]})),
            ("exec_stop", json!({"run": "last"})),
            ("exec", json!({"command": "sed -i 's/built/shipped/' app.c && make && ./app"})),
            ("exec", json!({"command": COMMIT})),
            ("exec", json!({"command": "touch .git/hooks/pre-commit .git/config; echo $?"})),
        ],
    );
    for (at, expected) in [
        (0, "built"),
        (1, "FAILED test_cart.Cart.test_refunds"),
        (2, "[the first error]"),
        (2, "src/cart.c:17:3: error: the needle"),
        (3, "1 match"),
        (3, "[200000] retry"),
        (4, "It is still running."),
        (5, "The pattern was found."),
        (6, "int main(void)"),
        (7, "cancelled after"),
        (8, "shipped"),
        (9, "Fix the cart"),
        (10, "denied by the sandbox: "),
    ] {
        assert!(results[at].contains(expected), "{at}: {expected}: {}", results[at]);
    }
    assert_eq!(sandbox.sh("git log --format=%s").stdout, "Fix the cart\nfirst\n");
    // Everything is recorded, confined, and no process of the server is left.
    let runs = sandbox.retake(&["runs", "list", "--json", "--label", "via=mcp", "-n", "50"]).json();
    let runs = runs.as_array().unwrap();
    assert_eq!(runs.len(), 9, "{}", ran.snapshot());
    for run in runs {
        let shown = sandbox.retake(&["runs", "show", run["id"].as_str().unwrap(), "--json"]).json();
        assert_eq!(shown["sandbox"]["level"], "full", "{shown}");
    }
}

#[test]
fn claude_does_a_task() {
    a_task_from_build_to_commit(Agent::Claude);
}

#[test]
fn codex_does_a_task() {
    a_task_from_build_to_commit(Agent::Codex);
}

#[test]
fn gemini_does_a_task() {
    a_task_from_build_to_commit(Agent::Gemini);
}

#[test]
fn opencode_does_a_task() {
    a_task_from_build_to_commit(Agent::Opencode);
}
