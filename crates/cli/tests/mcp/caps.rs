//! Limits that a client cannot raise.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::client::{Client, run_id, text};
use crate::common::{Sandbox, alive};

fn shown(sandbox: &Sandbox, run: &str) -> Value {
    sandbox.retake(&["runs", "show", run, "--json"]).json()
}

#[test]
fn memory_and_processes_are_limited_as_the_policy_says() {
    let sandbox = Sandbox::new();
    sandbox.file(
        ".agent/config.yml",
        "mcp:\n  policy:\n    max_memory_mb: 512\n    max_processes: 64\n",
    );
    let mut client = Client::new(&sandbox);
    let plain = client.tool("exec", json!({"argv": ["true"]}));
    let limits = shown(&sandbox, &run_id(&plain))["limits"].clone();
    assert_eq!((&limits["memoryBytes"], &limits["procs"]), (&json!(512 << 20), &json!(64)));
    let asked = json!({"memory_mb": 100_000, "processes": 100_000, "open_files": 100});
    let raised = client.tool("exec", json!({"argv": ["true"], "limits": asked}));
    let limits = shown(&sandbox, &run_id(&raised))["limits"].clone();
    assert_eq!((&limits["memoryBytes"], &limits["procs"]), (&json!(512 << 20), &json!(64)));
    assert_eq!(limits["files"], 100, "what is not capped is as asked for: {limits}");
    let told = text(&raised);
    assert!(told.contains("at most 512 MiB of memory") && told.contains("at most 64 "), "{told}");
    let less = client.tool("exec", json!({"argv": ["true"], "limits": {"memory_mb": 256}}));
    let limits = shown(&sandbox, &run_id(&less))["limits"].clone();
    assert_eq!((&limits["memoryBytes"], &limits["procs"]), (&json!(256 << 20), &json!(64)));
}

#[test]
fn background_runs_end_at_the_time_limit_of_the_policy() {
    let sandbox = Sandbox::new();
    sandbox.file(".agent/config.yml", "mcp:\n  policy:\n    max_running_seconds: 1\n");
    let mut client = Client::new(&sandbox);
    let started =
        client.tool("exec_start", json!({"argv": ["sleep", "1000"], "timeout_seconds": 3600}));
    assert!(text(&started).contains("The policy allows at most 1s"), "{started}");
    let ended = client.tool("exec_wait", json!({"run": run_id(&started), "seconds": 60}));
    assert_eq!(ended["structuredContent"]["outcome"], "timed_out", "{ended}");
    // No advice that cannot be followed.
    let told = text(&ended);
    assert!(told.contains("The policy allows no more time."), "{told}");
    assert!(!told.contains("exec_start") && !told.contains("Give it longer"), "{told}");
}

#[test]
fn more_calls_than_may_run_wait_for_their_turn() {
    let sandbox = Sandbox::new();
    sandbox.file(".agent/config.yml", "mcp:\n  policy:\n    max_parallel: 1\n");
    let mut client = Client::new(&sandbox);
    let calls: Vec<i64> =
        (0..3).map(|_| client.begin_tool("exec", json!({"argv": ["sleep", "0.7"]}))).collect();
    // A client whose command waits is notified, and can cancel it before it starts.
    let unwanted = client.begin(
        "tools/call",
        json!({
            "name": "exec",
            "arguments": {"argv": ["touch", "made"]},
            "_meta": {"progressToken": "waiting"},
        }),
    );
    let progress = client.wait_for(|message| message["method"] == "notifications/progress");
    assert_eq!(progress["params"]["message"], "waiting for other commands to end", "{progress}");
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": unwanted}}));
    let mut times: Vec<(Timestamp, Timestamp)> = calls
        .into_iter()
        .map(|call| {
            let run = shown(&sandbox, &run_id(&client.answer_to(call)["result"]));
            let time = |name: &str| run[name].as_str().unwrap().parse().unwrap();
            (time("startTime"), time("endTime"))
        })
        .collect();
    times.sort();
    assert!(times.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{times:?}");
    assert_eq!(client.tool("exec", json!({"argv": ["true"]}))["isError"], false);
    assert!(!sandbox.project().join("made").exists());
}

#[test]
fn progress_only_grows_from_the_queue_to_the_end() {
    let sandbox = Sandbox::new();
    sandbox.file(".agent/config.yml", "mcp:\n  policy:\n    max_parallel: 1\n");
    let mut client = Client::new(&sandbox);
    client.begin_tool("exec", json!({"argv": ["sleep", "1.5"]}));
    let second = client.begin(
        "tools/call",
        json!({"name": "exec", "arguments": {"argv": ["sleep", "1.5"]}, "_meta": {"progressToken": 7}}),
    );
    let (mut last, mut running) = (0.0, false);
    loop {
        let next = client
            .wait_for(|message| message["id"] == second || message["params"]["progressToken"] == 7);
        let Some(progress) = next["params"]["progress"].as_f64() else { break };
        assert!(progress > last, "{next} after {last}");
        last = progress;
        running |= next["params"]["message"].as_str().unwrap().starts_with("running");
    }
    assert!(running, "{last}");
}

#[test]
fn no_budget_is_larger_than_what_a_model_can_read() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let words = json!({"argv": ["seq", "200000"], "max_chars": 100_000_000});
    let shown = client.text("exec", words);
    assert!((150_000..210_000).contains(&shown.len()), "{}", shown.len());
    let logs = client
        .text("runs_logs", json!({"run": "last", "lines": "1-200000", "max_chars": 100_000_000}));
    assert!((150_000..210_000).contains(&logs.len()), "{}", logs.len());
    for most in [200, 2_000, 20_000] {
        let shown = client.text("exec", json!({"argv": ["seq", "200000"], "max_chars": most}));
        // Facts about the run are additional.
        assert!(shown.len() < most + 600, "{most}: {}", shown.len());
    }
}

#[test]
fn permitted_processes_survive_the_client() {
    let sandbox = Sandbox::new();
    sandbox.file(".agent/config.yml", "execution:\n  detach_ok: [stayer]\n");
    let stayer = sandbox.project().join("stayer");
    std::fs::copy("/bin/sleep", &stayer).unwrap();
    sandbox.file(
        "work",
        "#!/bin/sh\nsetsid ./stayer 1000 > /dev/null 2>&1 &\necho $!\nsetsid sleep 1000 > /dev/null 2>&1 &\necho $!\n",
    );
    // Nothing outlives a sandbox.
    let mut client = Client::with(&sandbox, |command| {
        command.arg("--sandbox=off");
    });
    let result = client.tool("exec", json!({"argv": ["sh", "work"]}));
    let printed = result["structuredContent"]["stdout"]["text"].as_str().unwrap();
    let pids: Vec<i32> = printed.lines().map(|pid| pid.parse().unwrap()).collect();
    assert!(alive(pids[0]) && !alive(pids[1]), "{result}");
    assert_eq!(client.leave(), 0);
    assert!(alive(pids[0]));
    // SAFETY: a process of this test.
    unsafe { libc::kill(pids[0], libc::SIGKILL) };
}
