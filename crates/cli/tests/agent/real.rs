//! Loops with real agents, and a scripted model on loopback.
//!
//! `RETAKE_CLAUDE`, `RETAKE_CODEX`, `RETAKE_GEMINI` and `RETAKE_OPENCODE` name their programs.
//! Without one its tests are skipped; on CI, where all are installed, that is a failure.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::{Called, Detached, RETAKE, Sandbox, alive, called, eventually};
use crate::model::{Model, program};
use serde_json::{Value, json};

/// A workspace for a real agent.
fn sandbox(kind: &str, program: &Path, extra: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    let config = format!("agent:\n  kind: {kind}\n  command: {}\n{extra}", program.display());
    sandbox.file(".agent/config.yml", &config);
    sandbox.workspace("task", &[]);
    std::fs::create_dir_all(sandbox.agent_dir()).unwrap();
    std::fs::create_dir_all(sandbox.dir.path().join("home")).unwrap();
    sandbox
}

fn claude(sandbox: &Sandbox, model: &Model, options: &[&str]) -> Command {
    let mut command = sandbox.command(RETAKE);
    model
        .is_of_claude(&mut command)
        .args(["agent", "run", "task", "--dangerously-skip-permissions"])
        .args(options);
    command
}

fn bash(line: &str) -> Value {
    json!({"tools": [{"name": "Bash", "input": {"command": line, "description": "a step"}}]})
}

fn status(sandbox: &Sandbox, text: &str) -> String {
    let path = sandbox.project().join(".agent/workspaces/task/.status.json");
    format!("printf '%s' '{text}' > {}", path.display())
}

fn progress(sandbox: &Sandbox, completed: u32) -> String {
    let text =
        json!({"complete": completed == 3, "progress": {"completed": completed, "total": 3}});
    status(sandbox, &text.to_string())
}

#[test]
fn claude_in_three_iterations() {
    let Some(program) = program("RETAKE_CLAUDE") else { return };
    let sandbox = sandbox("claude", &program, "  retry:\n    first: 10ms\n");
    let file = sandbox.project().join("made.txt");
    let turns = json!([
        {"text": "I begin.", "tools": [{"name": "Write",
            "input": {"file_path": file, "content": "by the agent\n"}}]},
        bash(&progress(&sandbox, 1)),
        {"text": "## Summary\nThe first item is done."},
        bash("echo '1 failed'; echo boom >&2; exit 3"),
        bash(&progress(&sandbox, 2)),
        {"text": "Two."},
        {"status": 429, "type": "rate_limit_error", "message": "slow down"},
        bash(&progress(&sandbox, 3)),
        {"text": "All is done."},
    ]);
    let model = Model::saying(&sandbox, &turns);
    let called = called(&mut claude(&sandbox, &model, &["-v"]));
    assert_eq!(called.code, 0, "{}", called.snapshot());
    for part in [
        "🔧 Write",
        "🔧 Bash",
        "❌",
        "boom",
        "I begin.",
        "(2 items remaining)",
        "after 3 iterations",
    ] {
        assert!(called.stdout.contains(part), "{part}: {}", called.snapshot());
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "by the agent\n");
    assert_eq!(sandbox.statuses(), "1 completed, 2 completed, 3 completed");
    let shown = sandbox.shown();
    let first = &shown["iterations"][0];
    assert_eq!(first["filesCreated"], json!(["made.txt"]));
    assert_eq!(first["summary"], "The first item is done.");
    assert!(first["costUsd"].as_f64().unwrap() > 0.0 && first["tokens"].as_u64().unwrap() > 0);
    assert!(first["contextUsagePercent"].is_number() && first["sessionId"].is_string(), "{first}");
    assert_ne!(first["sessionId"], shown["iterations"][1]["sessionId"], "fresh context");
    // The instructions reached the model.
    let requests = std::fs::read_to_string(sandbox.dir.path().join("requests")).unwrap();
    assert!(requests.contains("Do the work for $5 {{now}}."));
    assert!(sandbox.logs().contains("Attempt ended: "), "{}", sandbox.logs());
}

#[test]
fn claude_with_a_key_that_is_not_valid() {
    let Some(program) = program("RETAKE_CLAUDE") else { return };
    let sandbox = sandbox("claude", &program, "");
    let turns =
        json!([{"status": 401, "type": "authentication_error", "message": "invalid x-api-key"}]);
    let model = Model::saying(&sandbox, &turns);
    let called = called(&mut claude(&sandbox, &model, &[]));
    assert_eq!(called.code, 1, "{}", called.snapshot());
    assert!(called.stderr.contains("Iteration 1 failed: "), "{}", called.snapshot());
    assert_eq!(
        (sandbox.statuses().as_str(), sandbox.stop_reason().as_str()),
        ("1 failed", "failed")
    );
}

/// Starts a loop and waits until its tool runs; returns the tool's process.
fn in_mid_tool(sandbox: &Sandbox, model: &Model) -> (Child, i32) {
    let mut command = claude(sandbox, model, &[]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = sandbox.awaited("tool").trim().parse().unwrap();
    (child, pid)
}

fn ended(mut child: Child, signal: i32) -> i32 {
    // SAFETY: to this process's child, which has not been reaped.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
    let mut status = None;
    eventually("the end of retake", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    std::os::unix::process::ExitStatusExt::signal(&status.unwrap()).unwrap()
}

#[test]
fn claude_interrupted_and_killed_in_mid_tool() {
    let Some(program) = program("RETAKE_CLAUDE") else { return };
    let sandbox = sandbox("claude", &program, "");
    let dir = sandbox.agent_dir();
    let line = format!(
        "echo $$ > {0}/tool.new; mv {0}/tool.new {0}/tool; while :; do sleep 1000; done",
        dir.display()
    );
    let hanging = json!([bash(&line)]);
    for signal in [libc::SIGINT, libc::SIGKILL] {
        let model = Model::saying(&sandbox, &hanging);
        let (child, tool) = in_mid_tool(&sandbox, &model);
        assert_eq!(ended(child, signal), signal);
        eventually("the end of the tool", || !alive(tool));
        std::fs::remove_file(dir.join("tool")).unwrap();
    }
    assert_eq!(sandbox.statuses(), "1 interrupted, 2 interrupted");

    let model = Model::saying(&sandbox, &json!([bash(&progress(&sandbox, 3)), {"text": "Done."}]));
    let called = called(&mut claude(&sandbox, &model, &[]));
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stdout.contains("Continuing the loop"), "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 interrupted, 2 interrupted, 3 completed");
    assert_eq!(sandbox.metadata()["executionIterations"], 3);
    assert!(sandbox.shown()["iterations"][1]["tokens"].as_u64().unwrap() > 0);
}

/// One loop in the background, of an agent that completes its task in its first iteration; returns its
/// log.
fn detached_loop(sandbox: &Sandbox, kind: &str, command: &mut Command) -> String {
    command.args(["agent", "run", "task", "--detach", "--dangerously-skip-permissions", "-m", "1"]);
    let (_, background) = Detached::started(called(command));
    background.ended();
    let log = sandbox.logs();
    assert_eq!(
        (sandbox.statuses().as_str(), sandbox.stop_reason().as_str()),
        ("1 completed", "completed"),
        "{log}"
    );
    let iteration = &sandbox.shown()["iterations"][0];
    assert_eq!(iteration["agent"], kind);
    assert!(iteration["tokens"].as_u64().unwrap() > 0, "{iteration}");
    assert!(iteration["sessionId"].is_string(), "{iteration}");
    assert_eq!(sandbox.listed_task()["stopReason"], "completed");
    log
}

#[test]
fn claude_in_a_detached_loop() {
    let Some(program) = program("RETAKE_CLAUDE") else { return };
    let sandbox = sandbox("claude", &program, "");
    let line = status(&sandbox, r#"{"complete":true}"#);
    let turns = json!([bash(&line), {"text": "Done."}]);
    let model = Model::saying(&sandbox, &turns);
    let mut command = sandbox.command(RETAKE);
    model.is_of_claude(&mut command);
    let log = detached_loop(&sandbox, "claude", &mut command);
    assert!(log.contains("🔧 Bash") && log.contains("Done."), "{log}");
}

#[test]
fn codex_in_a_detached_loop() {
    let Some(program) = program("RETAKE_CODEX") else { return };
    let sandbox = sandbox("codex", &program, "");
    let line = status(&sandbox, r#"{"complete":true}"#);
    let turns = json!([
        {"text": "I begin.", "tools": [{"name": "exec_command", "input": {"cmd": line}}]},
        {"text": "Done."},
    ]);
    let model = Model::saying(&sandbox, &turns);
    let mut command = sandbox.command(RETAKE);
    model.is_of_codex(&sandbox, &mut command);
    let log = detached_loop(&sandbox, "codex", &mut command);
    assert!(log.contains("I begin."), "{log}");
}

#[test]
fn gemini_in_a_detached_loop() {
    let Some(program) = program("RETAKE_GEMINI") else { return };
    let sandbox = sandbox("gemini", &program, "  args: [-m, gemini-2.5-pro]\n");
    let line = status(&sandbox, r#"{"complete":true}"#);
    let turns = json!([
        {"text": "I begin.", "tools": [{"name": "run_shell_command", "input": {"command": line}}]},
        {"text": "Done."},
    ]);
    let model = Model::saying(&sandbox, &turns);
    let mut command = sandbox.command(RETAKE);
    model.is_of_gemini(&sandbox, &mut command);
    let log = detached_loop(&sandbox, "gemini", &mut command);
    assert!(log.contains("I begin."), "{log}");
}

#[test]
fn opencode_in_a_detached_loop() {
    let Some(program) = program("RETAKE_OPENCODE") else { return };
    let sandbox = sandbox("opencode", &program, "");
    let line = status(&sandbox, r#"{"complete":true}"#);
    let turns = json!([
        {"text": "I begin.", "tools": [{"name": "bash",
            "input": {"command": line, "description": "a step"}}]},
        {"text": "Done."},
    ]);
    let model = Model::saying(&sandbox, &turns);
    model.is_of_opencode(&sandbox);
    let mut command = sandbox.command(RETAKE);
    let log = detached_loop(&sandbox, "opencode", &mut command);
    for part in ["I begin.", "🔧 bash", "✓ Command finished (exit code 0)", "Done."] {
        assert!(log.contains(part), "{part}: {log}");
    }
}

/// One iteration of an agent that cannot ask for permission and wants to run a command; returns the denied
/// tools.
fn denied(sandbox: &Sandbox, command: &mut Command) -> String {
    command.args(["agent", "run", "task", "-v", "-m", "1", "--max-failures", "2"]);
    let called = called(command);
    assert!(called.stdout.contains("permission denied: "), "{}", called.snapshot());
    let iteration = &sandbox.shown()["iterations"][0];
    assert_eq!(iteration["denials"], 1, "{iteration}");
    iteration["deniedTools"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn claude_names_the_tool_that_was_denied() {
    let Some(program) = program("RETAKE_CLAUDE") else { return };
    let sandbox = sandbox("claude", &program, "");
    let model =
        Model::saying(&sandbox, &json!([bash("curl -s http://127.0.0.1:1"), {"text": "No."}]));
    let mut command = sandbox.command(RETAKE);
    assert_eq!(denied(&sandbox, model.is_of_claude(&mut command)), "Bash");
}

#[test]
fn gemini_names_the_tool_that_was_denied() {
    let Some(program) = program("RETAKE_GEMINI") else { return };
    let sandbox = sandbox("gemini", &program, "  args: [-m, gemini-2.5-pro]\n");
    let turns = json!([
        {"text": "I begin.", "tools": [{"name": "run_shell_command", "input": {"command": "touch x"}}]},
        {"text": "No."},
    ]);
    let model = Model::saying(&sandbox, &turns);
    let mut command = sandbox.command(RETAKE);
    assert_eq!(denied(&sandbox, model.is_of_gemini(&sandbox, &mut command)), "run_shell_command");
}

#[test]
fn opencode_names_the_tool_that_was_denied() {
    let Some(program) = program("RETAKE_OPENCODE") else { return };
    let sandbox =
        sandbox("opencode", &program, "  env:\n    OPENCODE_PERMISSION: '{\"bash\":\"ask\"}'\n");
    let turns = json!([
        {"text": "I begin.", "tools": [{"name": "bash",
            "input": {"command": "touch x", "description": "a step"}}]},
        {"text": "No."},
    ]);
    let model = Model::saying(&sandbox, &turns);
    model.is_of_opencode(&sandbox);
    assert_eq!(denied(&sandbox, &mut sandbox.command(RETAKE)), "bash");
}

/// The options of a confined loop. The program may be below /tmp, which a sandbox replaces.
fn confined_options(program: &Path) -> [String; 2] {
    let package = program.ancestors().find(|dir| dir.ends_with("node_modules")).unwrap_or(program);
    ["--sandbox".to_owned(), format!("--allow-read={}", package.display())]
}

/// A workspace for an agent in a sandbox; links below /tmp do not exist inside.
fn confined_sandbox(variable: &str, kind: &str, extra: &str) -> Option<(Sandbox, PathBuf)> {
    let program = program(variable)?.canonicalize().unwrap();
    let sandbox = sandbox(kind, &program, extra);
    sandbox.can_be_confined().then_some((sandbox, program))
}

/// Works in the project, tries to write outside of it, and completes the task.
fn confined_step(sandbox: &Sandbox) -> String {
    let done = status(sandbox, r#"{"complete":true}"#);
    format!("echo made > made.txt; echo x > {}; cat /proc/1/comm; {done}", outside())
}

/// A file that could be written without a sandbox. /tmp is replaced in a sandbox.
fn outside() -> String {
    format!("/var/retake-outside-{}", std::process::id())
}

/// One loop of a confined agent; returns the output.
fn confined_loop(
    sandbox: &Sandbox,
    program: &Path,
    model: &Model,
    command: &mut Command,
) -> Called {
    command.args(["agent", "run", "task", "--dangerously-skip-permissions", "-v", "-m", "1"]);
    let called = called(command.args(confined_options(program)).env_remove("IS_SANDBOX"));
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 completed", "{}", called.snapshot());
    assert_eq!(std::fs::read_to_string(sandbox.project().join("made.txt")).unwrap(), "made\n");
    assert!(!Path::new(&outside()).exists());
    // Its API was reached through the sandbox, and the denial is reported.
    assert!(model.requests().contains("Do the work for $5"));
    let denied = format!("denied: write {} by ", outside());
    assert!(called.stdout.contains(&denied), "{}", called.snapshot());
    let run = sandbox.shown()["iterations"][0]["runId"].as_str().unwrap().to_owned();
    let report = sandbox.retake(&["runs", "show", &run, "--json"]).json()["sandbox"].clone();
    assert_eq!(report["level"], "full", "{report}");
    // Only the model was reached.
    let network = report["network"].as_array().unwrap().iter();
    let answered = network.filter(|used| used["receivedBytes"].as_u64().unwrap() > 0);
    let hosts: BTreeSet<&str> = answered.map(|used| used["host"].as_str().unwrap()).collect();
    assert_eq!(hosts, BTreeSet::from(["localhost"]), "{report}");
    called
}

#[test]
fn claude_works_inside_a_sandbox_and_not_outside_of_it() {
    let Some((sandbox, program)) = confined_sandbox("RETAKE_CLAUDE", "claude", "") else { return };
    let model =
        Model::saying(&sandbox, &json!([bash(&confined_step(&sandbox)), {"text": "Done."}]));
    let mut command = sandbox.command(RETAKE);
    model.is_of_claude(&mut command);
    let called = confined_loop(&sandbox, &program, &model, &mut command);
    assert!(called.stdout.contains("(keeper)"), "{}", called.snapshot());
}

#[test]
fn codex_works_inside_a_sandbox_and_not_outside_of_it() {
    let Some((sandbox, program)) = confined_sandbox("RETAKE_CODEX", "codex", "") else { return };
    let step = json!({"name": "exec_command", "input": {"cmd": confined_step(&sandbox)}});
    let model = Model::saying(&sandbox, &json!([{"tools": [step]}, {"text": "Done."}]));
    let mut command = sandbox.command(RETAKE);
    model.is_of_codex(&sandbox, &mut command);
    confined_loop(&sandbox, &program, &model, &mut command);
}

#[test]
fn gemini_works_inside_a_sandbox_and_not_outside_of_it() {
    let extra = "  args: [-m, gemini-2.5-pro]\n";
    let Some((sandbox, program)) = confined_sandbox("RETAKE_GEMINI", "gemini", extra) else {
        return;
    };
    let step = json!({"name": "run_shell_command", "input": {"command": confined_step(&sandbox)}});
    let turns = json!([{"text": "I begin.", "tools": [step]}, {"text": "Done."}]);
    let model = Model::saying(&sandbox, &turns);
    let mut command = sandbox.command(RETAKE);
    model.is_of_gemini(&sandbox, &mut command);
    confined_loop(&sandbox, &program, &model, &mut command);
}

#[test]
fn opencode_works_inside_a_sandbox_and_not_outside_of_it() {
    let Some((sandbox, program)) = confined_sandbox("RETAKE_OPENCODE", "opencode", "") else {
        return;
    };
    let step = json!({"name": "bash",
        "input": {"command": confined_step(&sandbox), "description": "a step"}});
    let model = Model::saying(&sandbox, &json!([{"tools": [step]}, {"text": "Done."}]));
    model.is_of_opencode(&sandbox);
    confined_loop(&sandbox, &program, &model, &mut sandbox.command(RETAKE));
}

/// Three of them in separate clones, confined, with a gate on the merged result.
#[test]
fn claude_three_at_once() {
    let Some((sandbox, program)) = confined_sandbox("RETAKE_CLAUDE", "claude", "") else { return };
    sandbox.file(".gitignore", "/.agent\n");
    sandbox.file("a", "1\n");
    sandbox.git(&["init", "-q", "-b", "main"]);
    sandbox.git(&["add", "."]);
    sandbox.git(&["commit", "-qm", "one"]);
    sandbox.git(&["checkout", "-qb", "mine"]);
    let names = ["one", "two", "three"];
    for name in names {
        sandbox.workspace(name, &[]);
    }
    let project = sandbox.project().canonicalize().unwrap();
    let before = crate::fleet::checkout(&sandbox);
    let work = format!(
        "pwd > {0}/pwd-$RETAKE_AGENT; echo $RETAKE_AGENT > made-$RETAKE_AGENT; git add -A; \
         git commit -qm made; git stash list; echo '{{\"complete\":true}}' > $RETAKE_WORKSPACE_PATH/.status.json",
        project.display()
    );
    let turns = json!([bash(&work), {"text": "Done."}]);
    let model = Model::saying_to_each(&sandbox, &turns);
    let mut command = sandbox.command(RETAKE);
    model.is_of_claude(&mut command).args(["agent", "run"]).args(names);
    command.args(["--merge-into", "main", "--dangerously-skip-permissions", "-m", "2"]);
    command.args(["--verify", "test -e a"]).args(confined_options(&program));
    let called = called(command.env_remove("IS_SANDBOX"));
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(crate::fleet::states(&sandbox), "one merged, two merged, three merged");
    assert_eq!(crate::fleet::checkout(&sandbox), before);
    for name in names {
        assert_eq!(crate::fleet::show(&sandbox, &format!("main:made-{name}")), name);
        let pwd = crate::fleet::show(&sandbox, &format!("main:pwd-{name}"));
        assert_eq!(pwd, project.to_string_lossy(), "its tree is where the project is");
    }
    crate::fleet::tidy(&sandbox);
}
