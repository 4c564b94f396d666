//! Whatever a client or a command does, there is an answer, and the server continues.

use serde_json::json;

use crate::client::{Client, run_id, text};
use crate::common::{Sandbox, eventually, own_seconds, sleeps};

#[test]
fn invalid_messages_are_answered_with_an_error() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let mut refused = |bytes: &[u8]| {
        client.say(bytes);
        let answer = client.wait_for(|message| message.get("error").is_some());
        (answer["error"]["code"].as_i64().unwrap(), answer["id"].clone())
    };
    assert_eq!(refused(b"{not json").0, -32700);
    assert_eq!(refused(b"\xff\xfe\x00").0, -32700);
    assert_eq!(refused(b"[]").0, -32600);
    assert_eq!(refused(b"{\"id\": 77}"), (-32600, json!(77)));
    assert_eq!(
        refused(b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"no/such\"}"),
        (-32601, json!("a"))
    );
    let wrong = br#"{"jsonrpc":"2.0","id":78,"method":"tools/call","params":{"name":5}}"#;
    assert_eq!(refused(wrong), (-32602, json!(78)));
    let mut long = br#"{"jsonrpc":"2.0","id":79,"method":"tools/call","params":{"x":""#.to_vec();
    long.resize(20 << 20, b'x');
    long.extend_from_slice(b"\"}}");
    assert_eq!(refused(&long), (-32600, json!(79)));
    // Notifications are not answered, known or not.
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/whatever"}));
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 999}}));
    client.say(b"");
    assert_eq!(client.tool("exec", json!({"argv": ["true"]}))["isError"], false);
    assert!(client.request("ping", json!({}))["result"].is_object());
}

#[test]
fn calls_that_are_wrong_say_how() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let id = client.begin_tool("no_such_tool", json!({}));
    let answer = client.answer_to(id);
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("there is no tool no_such_tool"));
    // Wrong arguments are an answer, because models do not see protocol errors.
    for (name, arguments, expected) in [
        ("exec", json!({"argv": "ls"}), "not run: argv takes a list, not the text \"ls\""),
        (
            "exec",
            json!({"command": ["ls", "-l"]}),
            "not run: command takes a text, not a list; argv takes a program with its arguments as a list",
        ),
        ("exec", json!({"command": 5}), "not run: command takes a text, not the number 5"),
        (
            "exec",
            json!({"argv": ["ls", 1], "timeout_seconds": "x", "limits": 3}),
            "not run: argv[1] takes a text, not the number 1; limits takes an object, not the number 3; timeout_seconds takes a number, not the text \"x\"",
        ),
        (
            "exec",
            json!({"argv": ["ls"], "timeout": 5}),
            "not run: unknown argument `timeout`; did you mean timeout_seconds?",
        ),
        (
            "exec",
            json!({"argv": ["ls"], "env": {"A": 1}}),
            "not run: env.A takes a text, not the number 1",
        ),
        (
            "exec",
            json!({"argv": ["ls"], "limits": {"memory": 1}}),
            "not run: unknown argument `limits.memory`; did you mean limits.memory_mb?",
        ),
        (
            "runs_list",
            json!({"sandbox": 1}),
            "unknown argument `sandbox`; this tool takes: changed, command, cwd, limit, session_id, since, status, task_id, tests_failed",
        ),
        (
            "exec",
            json!({"argv": ["ls"], "limits": {"xyz": 1}}),
            "not run: unknown argument `limits.xyz`; limits takes: cpu_seconds, file_size_mb, memory_mb, open_files, processes",
        ),
        ("runs_show", json!({}), "run is missing"),
        ("runs_list", json!({"limit": -1}), "limit takes 0 or more, not the number -1"),
        ("runs_list", json!({"limit": 0}), "limit must be 1 or more"),
        ("tests", json!({"limit": 0}), "limit must be 1 or more"),
    ] {
        let result = client.tool(name, arguments.clone());
        assert_eq!(result["isError"], true, "{name} {arguments}: {result}");
        assert_eq!(text(&result), expected, "{name} {arguments}");
    }
    let nulls = json!({"argv": ["true"], "command": null, "env": null, "limits": null, "track_changes": null});
    assert_eq!(client.tool("exec", nulls)["isError"], false);
    let unknown = client.text("runs_show", json!({"run": "abcdef99"}));
    assert_eq!(unknown, "no run matches `abcdef99`; runs_list shows the recorded runs");
    let absent = client.request("logging/setLevel", json!({"level": "info"}));
    assert_eq!(absent["error"]["message"], "there is no method logging/setLevel", "{absent}");
    for (arguments, expected) in [
        (json!({}), "there is nothing to run"),
        (json!({"argv": []}), "the command is empty"),
        (json!({"command": "ls", "argv": ["ls"]}), "not both"),
        (json!({"argv": ["ls", "a\u{0}b"]}), "NUL"),
        (json!({"argv": ["ls", "x".repeat(200_000)]}), "; pass it in a file"),
        (json!({"argv": ["ls"], "cwd": "no/such"}), "there is no such directory"),
        (json!({"argv": ["ls"], "timeout_seconds": -1}), "is not a number of seconds"),
        (
            json!({"argv": ["ls"], "timeout_seconds": 0, "env": {"A B": "x"}}),
            "is not a valid variable name",
        ),
        (json!({"argv": ["ls"], "limits": {"memory_mb": 0}}), "not a usable limit"),
    ] {
        let result = client.tool("exec", arguments.clone());
        assert_eq!(result["isError"], true, "{arguments}: {result}");
        assert!(text(&result).contains(expected), "{expected}: {result}");
        assert!(!text(&result).contains("stdin"), "exec has none: {result}");
    }
}

#[test]
fn requests_before_initialize_get_an_error() {
    let sandbox = Sandbox::new();
    let mut client = Client::silent(&sandbox, |_| {});
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    client.say(b"nonsense");
    let early = client.request("tools/list", json!({}));
    assert!(early["error"].is_object(), "{early}");
    let greeted = client.request(
        "initialize",
        json!({"protocolVersion": "1999-01-01", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}),
    );
    assert_eq!(greeted["result"]["protocolVersion"], "2025-11-25", "{greeted}");
    assert_eq!(client.leave(), 0);
    let mut gone = Client::silent(&sandbox, |_| {});
    assert_eq!(gone.leave(), 0);
}

#[test]
fn fifty_calls_at_once() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let ids: Vec<i64> = (0..50)
        .map(|n| client.begin_tool("exec", json!({"argv": ["echo", format!("number {n}")]})))
        .collect();
    for (n, id) in ids.into_iter().enumerate() {
        let answer = client.answer_to(id);
        let facts = &answer["result"]["structuredContent"];
        assert_eq!(facts["stdout"]["text"], format!("number {n}\n"), "{answer}");
        assert_eq!(facts["recorded"], true, "{answer}");
    }
    let listed = sandbox.retake(&["runs", "list", "--json"]).json();
    assert_eq!(listed.as_array().unwrap().len(), 50);
}

#[test]
fn a_client_that_disappears_takes_its_commands_with_it() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let seconds = own_seconds();
    sandbox.file(
        "work",
        &format!("#!/bin/sh\ntrap '' TERM\nsetsid sleep {seconds} &\nwait\nsleep 1000\n"),
    );
    sandbox.file(".agent/config.yml", "");
    client.begin_tool("exec", json!({"argv": ["sh", "work"]}));
    eventually("it runs", || sleeps(&seconds));
    assert_eq!(client.leave(), 0);
    assert!(!sleeps(&seconds), "gone before the server is");
    let shown = sandbox.retake(&["runs", "show", "last", "--json"]).json();
    assert_eq!(shown["outcome"], "cancelled", "{shown}");
}

#[test]
fn a_flood_is_kept_on_disk_not_in_memory() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let result = client.tool("exec", json!({"argv": ["head", "-c", "100000000", "/dev/zero"]}));
    assert_eq!(result["structuredContent"]["stdout"]["bytes"], 100_000_000);
    assert!(result.to_string().len() < 20_000);
    let peak = field(client.server.id(), "status", "VmHWM:");
    // A debug build is larger than the released one, which the benchmark measures.
    assert!(peak < 64 << 10, "{peak} KiB");
}

#[test]
fn a_record_that_cannot_be_written_is_said_and_does_not_stop_anyone() {
    // Root may write anywhere, so the path itself is impossible.
    let sandbox = Sandbox::new();
    let blocked = sandbox.file("blocked", "no directory");
    let mut client = Client::with(&sandbox, |command| {
        command.env("RETAKE_STORE", blocked.join("store"));
    });
    let result = client.tool("exec", json!({"argv": ["echo", "hello"]}));
    assert_eq!(result["structuredContent"]["stdout"]["text"], "hello\n");
    assert_eq!(result["structuredContent"]["recorded"], false);
    assert!(text(&result).contains("This run is not in the record"), "{result}");
    let started = client.tool("exec_start", json!({"argv": ["sleep", "0.1"]}));
    assert!(!text(&started).is_empty(), "{started}");
    for (tool, arguments) in [("runs_list", json!({})), ("runs_show", json!({"run": "last"}))] {
        assert_eq!(client.tool(tool, arguments)["isError"], true, "{tool}");
    }
    let denied = client.tool("exec", json!({"argv": ["ls"], "cwd": "/"}));
    assert!(text(&denied).contains("could not be recorded"), "{denied}");
    sandbox.file(".agent/config.yml", "execution:\n  audit:\n    required: true\n");
    let mut strict = Client::with(&sandbox, |command| {
        command.env("RETAKE_STORE", blocked.join("store"));
    });
    let refused = strict.tool("exec", json!({"argv": ["touch", "made"]}));
    assert_eq!(refused["isError"], true);
    assert!(!sandbox.project().join("made").exists());
}

#[test]
fn a_record_that_comes_back_is_used_again() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    client.tool("exec", json!({"argv": ["true"]}));
    std::fs::rename(sandbox.project().join(".agent/data"), sandbox.project().join("away")).unwrap();
    client.tool("exec", json!({"argv": ["true"]}));
    let result = client.tool("exec", json!({"argv": ["true"]}));
    assert_eq!(result["structuredContent"]["recorded"], true, "{result}");
}

#[test]
fn a_keeper_that_is_killed_costs_one_run() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let seconds = own_seconds();
    let id = client.begin_tool("exec", json!({"argv": ["sleep", seconds]}));
    let server = client.server.id();
    // A keeper that confines itself has other children first.
    eventually("it runs", || sleeps(&seconds));
    // The kernel may omit a process from the list while another one of the same parent ends.
    let mut keeper = None;
    eventually("its keeper is listed", || {
        keeper = children(server).into_iter().find(|pid| !children(*pid).is_empty());
        keeper.is_some()
    });
    let keeper = keeper.expect("it is listed").cast_signed();
    // SAFETY: a signal to a process of this test.
    unsafe { libc::kill(keeper, libc::SIGKILL) };
    let answer = client.answer_to(id);
    assert_eq!(answer["result"]["structuredContent"]["outcome"], "interrupted", "{answer}");
    for _ in 0..8 {
        assert_eq!(client.tool("exec", json!({"argv": ["true"]}))["isError"], false);
    }
}

#[test]
fn a_thousand_calls_leave_nothing_behind() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let server = client.server.id();
    let mut call = |count: usize| {
        for _ in 0..count {
            let result = client.tool("exec", json!({"argv": ["true"]}));
            assert_eq!(result["structuredContent"]["success"], true, "{result}");
        }
    };
    let open = || std::fs::read_dir(format!("/proc/{server}/fd")).unwrap().count();
    let threads = || field(server, "status", "Threads:");
    let memory = || field(server, "status", "VmRSS:");
    call(200);
    let before = (open(), children(server).len(), memory());
    call(800);
    assert!(open() <= before.0 + 2, "{} descriptors, {} before", open(), before.0);
    assert_eq!(children(server).len(), before.1, "processes");
    assert!(threads() < 20, "{} threads", threads());
    assert!(memory() < before.2 + 4096, "{} KiB, {} before", memory(), before.2);
}

#[test]
fn nothing_but_messages_is_written_to_stdout() {
    // After an interrupted run the next start prints a message, on stderr.
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let run = run_id(&client.tool("exec_start", json!({"argv": ["sleep", "1000"]})));
    client.server.kill().unwrap();
    client.server.wait().unwrap();
    let mut next = Client::new(&sandbox);
    // The client fails on any line that is not a message.
    next.tool("exec", json!({"argv": ["true"]}));
    let shown = next.tool("runs_show", json!({"run": run}));
    assert_eq!(shown["structuredContent"]["outcome"], "interrupted", "{shown}");
}

/// A number in a file of a process.
fn field(pid: u32, file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let lists = tasks.into_iter().flatten().flatten().map(|task| task.path().join("children"));
    lists
        .filter_map(|list| std::fs::read_to_string(list).ok())
        .flat_map(|list| {
            list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()
        })
        .collect()
}
