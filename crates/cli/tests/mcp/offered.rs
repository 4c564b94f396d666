//! `agent.mcp: true`: the agent that a loop starts finds the server in its own arguments, and its commands
//! are recorded inside its iteration.

use crate::common::Sandbox;

/// Starts the server that its arguments name and calls `exec` once, as an agent does.
const CALLS: &str = r#"start
python3 - "$@" <<'END'
import json, os, subprocess, sys
words = sys.argv[1:]
server = json.loads(words[words.index("--mcp-config") + 1])["mcpServers"]["retake"]
assert words[words.index("--allowedTools") + 1] == "mcp__retake"
process = subprocess.Popen([server["command"], *server["args"]], env={**os.environ, **server["env"]},
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def say(message):
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    process.stdin.flush()
def ask(id, method, params):
    say({"id": id, "method": method, "params": params})
    while True:
        answer = json.loads(process.stdout.readline())
        if answer.get("id") == id:
            return answer["result"]
ask(1, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {},
                      "clientInfo": {"name": "agent", "version": "1"}})
say({"method": "notifications/initialized"})
if os.environ.get("LISTS", "1") == "1":
    ask(3, "tools/list", {})
ask(2, "tools/call", {"name": "exec", "arguments": {"argv": ["echo", "from the agent"]}})
process.stdin.close()
process.wait()
END
complete; result"#;

#[test]
fn an_agents_commands_are_inside_its_iteration() {
    let sandbox = Sandbox::new();
    sandbox.agent("mcp: true", &[CALLS]);
    sandbox.workspace("task", &[]);
    let ran = sandbox.run_agent(&["-v"]);
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    let runs = sandbox.retake(&["runs", "list", "--json"]).json();
    let runs = runs.as_array().unwrap();
    let of = |wanted: &dyn Fn(&serde_json::Value) -> bool| {
        runs.iter().find(|run| wanted(run)).unwrap_or_else(|| panic!("{runs:?}"))
    };
    let command = of(&|run| run["labels"]["via"] == "mcp");
    let iteration = of(&|run| run["kind"] == "agent");
    assert_eq!(command["command"], "echo 'from the agent'");
    assert_eq!(command["parentId"], iteration["id"]);
    assert_eq!(command["correlationIds"]["taskId"], "task");
    assert_eq!(command["correlationIds"]["stepId"], "1");
}

#[test]
fn an_agent_that_does_not_list_the_tools_is_reported() {
    let told = "the agent was offered retake's MCP server and did not ask for its tools";
    for (script, is_told) in [
        (CALLS.to_owned(), false),
        (CALLS.replace("start\n", "start\nexport LISTS=0\n"), true),
        ("start; complete; result".to_owned(), true),
        // An agent that fails at its start has other problems.
        ("exit 3".to_owned(), false),
    ] {
        let sandbox = Sandbox::new();
        sandbox.agent("mcp: true", &[&script]);
        sandbox.workspace("task", &[]);
        let ran = sandbox.run_agent(&["-m", "1"]);
        assert_eq!(ran.snapshot().contains(told), is_told, "{script}: {}", ran.snapshot());
        let left = sandbox.project().join(".agent/workspaces/task/.mcp-listed");
        assert!(!left.exists());
    }
}

#[test]
fn an_agent_is_offered_nothing_unless_told() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&[]).code, 0);
    let words = std::fs::read_to_string(sandbox.agent_dir().join("argv-1")).unwrap();
    assert!(!words.contains("mcp"), "{words}");
}
