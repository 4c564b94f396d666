//! `retake mcp` with real clients: the MCP Inspector, and real agents against a model on loopback.
//!
//! `RETAKE_INSPECTOR`, `RETAKE_CLAUDE`, `RETAKE_CODEX`, `RETAKE_GEMINI` and `RETAKE_OPENCODE` name
//! their programs. Without one its tests are skipped; on CI, where all are installed, that is a failure.
use std::path::Path;

use crate::common::{Called, RETAKE, Sandbox, called};
use crate::model::{Model, program};
use serde_json::{Value, json};

#[test]
fn the_inspector_lists_calls_and_reads() {
    let Some(program) = program("RETAKE_INSPECTOR") else { return };
    let sandbox = Sandbox::new();
    sandbox.file(".agent/config.yml", "mcp:\n  policy:\n    deny: [tac]\n");
    let inspect = |words: &[&str]| {
        called(
            sandbox.command(program.to_str().unwrap()).args(["--cli", RETAKE, "mcp"]).args(words),
        )
    };
    let tools = inspect(&["--method", "tools/list"]);
    assert_eq!(tools.code, 0, "{}", tools.snapshot());
    let names: Vec<_> =
        tools.json()["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone()).collect();
    assert_eq!((names.len(), &names[0]), (12, &json!("exec")));
    let call = ["--method", "tools/call", "--tool-name", "exec", "--tool-arg"];
    let ran = inspect(&[&call[..], &["command=echo hello"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    let facts = ran.json()["structuredContent"].clone();
    assert_eq!(facts["stdout"]["text"], "hello\n");
    let uri = format!("retake://runs/{}/stdout", facts["runId"].as_str().unwrap());
    let read = inspect(&["--method", "resources/read", "--uri", &uri]);
    assert_eq!(read.json()["contents"][0]["text"], "hello\n", "{}", read.snapshot());
    let listed = inspect(&["--method", "resources/list"]);
    assert_eq!(listed.json()["resources"].as_array().unwrap().len(), 1);
    // A refused command, and an unknown tool.
    let refused = inspect(&[&call[..], &["command=echo a | tac"]].concat());
    assert_eq!(refused.code, 5, "{}", refused.snapshot());
    let missing = inspect(&["--method", "tools/call", "--tool-name", "no_such_tool"]);
    assert_eq!(missing.code, 5, "{}", missing.snapshot());
}

fn uses(tool: &str, input: &Value) -> Value {
    json!({"tools": [{"name": tool, "input": input}]})
}

#[test]
fn claude_starts_what_install_wrote_and_its_model_reads_the_answers() {
    let Some(program) = program("RETAKE_CLAUDE") else { return };
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.dir.path().join("home")).unwrap();
    sandbox.file(".agent/config.yml", "mcp:\n  policy:\n    deny: [tac]\n");
    assert_eq!(sandbox.retake(&["mcp", "install", "claude"]).code, 0);
    let turns = json!([
        uses("mcp__retake__exec", &json!({"command": "ls /no/such/place"})),
        uses("mcp__retake__exec", &json!({"command": "echo a | tac"})),
        uses("mcp__retake__runs_list", &json!({"status": "failed"})),
        {"text": "Done."},
    ]);
    let model = Model::saying(&sandbox, &turns);
    let mut command = sandbox.command(program.to_str().unwrap());
    let ran = called(model.is_of_claude(&mut command).args([
        "--mcp-config",
        ".mcp.json",
        "--strict-mcp-config",
        "--allowedTools",
        "mcp__retake",
        "--print",
        "--output-format",
        "stream-json",
        "--verbose",
        "go",
    ]));
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    let connected = ran.stdout.lines().any(|line| {
        let line: Value = serde_json::from_str(line).unwrap_or_default();
        line["mcp_servers"][0]["status"] == "connected"
    });
    assert!(connected, "{}", ran.snapshot());
    let asked = model.requests();
    for part in
        ["failed: exit code 2", "No such file or directory", "refused by this project's policy"]
    {
        assert!(asked.contains(part), "{part}: {asked}");
    }
    let runs = sandbox.retake(&["runs", "list", "--json"]).json();
    assert_eq!(runs.as_array().unwrap().len(), 2);
    assert_eq!(runs[1]["command"], "ls /no/such/place");
    let call = runs[1]["correlationIds"]["toolCallId"].as_str().unwrap();
    assert!(call.starts_with("toolu_"), "{call}");
    assert_eq!(runs[0]["outcome"], "not_started");
}

/// A workspace whose agent is offered the server.
pub(crate) fn workspace(kind: &str, program: &Path, extra: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    let config =
        format!("agent:\n  kind: {kind}\n  command: {}\n  mcp: true\n{extra}", program.display());
    sandbox.file(".agent/config.yml", &config);
    sandbox.workspace("task", &[]);
    std::fs::create_dir_all(sandbox.agent_dir()).unwrap();
    std::fs::create_dir_all(sandbox.dir.path().join("home")).unwrap();
    sandbox
}

/// The tool call that completes the task, and leaves a file.
fn done(sandbox: &Sandbox) -> Value {
    let path = sandbox.project().join(".agent/workspaces/task/.status.json");
    json!({"command": format!("echo '{{\"complete\":true}}' > {}", path.display())})
}

/// The agent's command is recorded inside its iteration.
fn assert_inside(sandbox: &Sandbox, ran: &Called) {
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    assert_eq!(sandbox.statuses(), "1 completed", "{}", ran.snapshot());
    let runs = sandbox.retake(&["runs", "list", "--json"]).json();
    let runs = runs.as_array().unwrap();
    let command = runs.iter().find(|run| run["labels"]["via"] == "mcp");
    let command = command.unwrap_or_else(|| panic!("no command: {runs:?}\n{}", ran.snapshot()));
    // A failed attempt is repeated as the same iteration.
    let mut attempts = runs.iter().filter(|run| run["kind"] == "agent" && run["iteration"] == 1);
    assert!(attempts.any(|attempt| attempt["id"] == command["parentId"]), "{runs:?}");
    assert_eq!(command["correlationIds"]["taskId"], "task");
    assert_eq!(command["correlationIds"]["stepId"], "1");
    assert_eq!(command["success"], true, "{command}");
}

pub(crate) const RUN: [&str; 6] = ["agent", "run", "task", "-v", "-m", "1"];

#[test]
fn claude_is_offered_the_server() {
    let Some(program) = program("RETAKE_CLAUDE") else { return };
    let sandbox = workspace("claude", &program, "");
    let turns = json!([uses("mcp__retake__exec", &done(&sandbox)), {"text": "Done."}]);
    let model = Model::saying(&sandbox, &turns);
    let mut command = sandbox.command(RETAKE);
    // Without skipping permissions: the offer includes its own.
    let ran = called(model.is_of_claude(&mut command).args(RUN));
    assert_inside(&sandbox, &ran);
}

#[test]
fn codex_is_offered_the_server() {
    let Some(program) = program("RETAKE_CODEX") else { return };
    let sandbox = workspace("codex", &program, "");
    let tool = json!({"namespace": "mcp__retake", "name": "exec", "input": done(&sandbox)});
    let turns = json!([{"tools": [tool]}, {"text": "Done."}]);
    let model = Model::saying(&sandbox, &turns);
    let mut command = sandbox.command(RETAKE);
    let ran = called(model.is_of_codex(&sandbox, &mut command).args(RUN));
    assert_inside(&sandbox, &ran);
}

#[test]
fn gemini_is_offered_the_server() {
    let Some(program) = program("RETAKE_GEMINI") else { return };
    let sandbox = workspace("gemini", &program, "  args: [-m, gemini-2.5-pro]\n");
    let turns = json!([uses("mcp_retake_exec", &done(&sandbox)), {"text": "Done."}]);
    let model = Model::saying(&sandbox, &turns);
    let mut command = sandbox.command(RETAKE);
    model.is_of_gemini(&sandbox, &mut command);
    let ran = called(command.args(RUN));
    assert_inside(&sandbox, &ran);
    assert_eq!(sandbox.retake(&["doctor"]).code, 0, "its file is no stranger to the record");
}

#[test]
fn opencode_is_offered_the_server() {
    let Some(program) = program("RETAKE_OPENCODE") else { return };
    let sandbox = workspace("opencode", &program, "");
    let turns = json!([uses("retake_exec", &done(&sandbox)), {"text": "Done."}]);
    let model = Model::saying(&sandbox, &turns);
    model.is_of_opencode(&sandbox);
    let mut command = sandbox.command(RETAKE);
    let ran = called(command.args(RUN));
    assert_inside(&sandbox, &ran);
    // Its validator warns on stderr about unknown parts of a schema.
    assert!(!ran.snapshot().contains("ignored in schema"), "{}", ran.snapshot());
}
