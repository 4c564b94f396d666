//! The record of a client's commands, and a client's access to it.

use serde_json::json;

use crate::client::{Client, run_id, text};
use crate::common::{RETAKE, Sandbox, called, eventually, on_disk, own_seconds, sleeps};

#[test]
fn runs_carry_whose_they_are() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let id = client.begin(
        "tools/call",
        json!({
            "name": "exec",
            "arguments": {"argv": ["true"], "task_id": "task 7", "step_id": "2"},
            "_meta": {"claudecode/toolUseId": "toolu_1"},
        }),
    );
    let first = run_id(&client.answer_to(id)["result"]);
    let second = run_id(&client.tool("exec", json!({"argv": ["true"]})));
    let ids = |run: &str| {
        sandbox.retake(&["runs", "show", run, "--json"]).json()["correlationIds"].clone()
    };
    let (first, second) = (ids(&first), ids(&second));
    assert_eq!(first["toolCallId"], "toolu_1");
    assert_eq!((&first["taskId"], &first["stepId"]), (&json!("task 7"), &json!("2")));
    assert!(second["toolCallId"].is_string() && second["taskId"].is_null(), "{second}");
    assert!(first["sessionId"].is_string(), "{first}");
    assert_eq!(first["sessionId"], second["sessionId"]);
    let meta = json!({"name": "exec", "arguments": {"argv": ["true"]}, "_meta": {"taskId": "t", "stepId": "s"}});
    let id = client.begin("tools/call", meta);
    let told = ids(&run_id(&client.answer_to(id)["result"]));
    assert_eq!((&told["taskId"], &told["stepId"]), (&json!("t"), &json!("s")), "{told}");
    let mine = client.tool("runs_list", json!({"session_id": "this"}));
    assert_eq!(mine["structuredContent"]["runs"].as_array().unwrap().len(), 3);
    // Another connection is another session.
    let mut other = Client::new(&sandbox);
    let third = run_id(&other.tool("exec", json!({"argv": ["true"]})));
    assert_ne!(ids(&third)["sessionId"], first["sessionId"]);
}

#[test]
fn inside_a_run_its_commands_are_inside_that_run() {
    let sandbox = Sandbox::new();
    let outer = called(sandbox.command(RETAKE).args(["exec", "--json", "--", "true"])).json();
    let mut client = Client::with(&sandbox, |command| {
        command
            .env("RETAKE_PARENT_ID", outer["id"].as_str().unwrap())
            .env("RETAKE_SESSION_ID", "session 1")
            .env("RETAKE_TASK_ID", "task 1");
    });
    let run = run_id(&client.tool("exec", json!({"argv": ["true"]})));
    let shown = sandbox.retake(&["runs", "show", &run, "--json"]).json();
    assert_eq!(shown["parentId"], outer["id"]);
    assert_eq!(shown["correlationIds"]["sessionId"], "session 1");
    assert_eq!(shown["correlationIds"]["taskId"], "task 1");
    let parent = client.text("runs_show", json!({"run": outer["id"]}));
    assert!(parent.contains("Inside it: ") && parent.contains(&run[28..]), "{parent}");
}

#[test]
fn progress_is_reported_and_a_cancelled_call_ends_its_processes() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let seconds = own_seconds();
    sandbox.file("work", &format!("#!/bin/sh\nsetsid sleep {seconds} &\nwait\n"));
    let id = client.begin(
        "tools/call",
        json!({
            "name": "exec",
            "arguments": {"argv": ["sh", "work"]},
            "_meta": {"progressToken": "token 1"},
        }),
    );
    let progress = client.wait_for(|message| message["method"] == "notifications/progress");
    assert_eq!(progress["params"]["progressToken"], "token 1");
    assert!(progress["params"]["message"].as_str().unwrap().starts_with("running for "));
    assert!(sleeps(&seconds));
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
    eventually("the tree ends", || !sleeps(&seconds));
    // The server continues, and the run is recorded with its real outcome.
    let mut outcome = json!(null);
    eventually("it is recorded", || {
        outcome = sandbox.retake(&["runs", "show", "last", "--json"]).json()["outcome"].clone();
        !outcome.is_null()
    });
    assert_eq!(outcome, "cancelled");
    assert_eq!(client.tool("exec", json!({"argv": ["true"]}))["isError"], false);
}

#[test]
fn runs_are_found_shown_compared_and_repeated() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    assert!(client.text("runs_list", json!({})).contains("nothing was recorded here yet"));
    sandbox.file("text", "alpha\nbeta\n");
    let first = run_id(&client.tool("exec", json!({"argv": ["cat", "text"]})));
    sandbox.file("text", "alpha\ngamma\n");
    let again = client.tool("again", json!({"run": first}));
    let second = again["structuredContent"]["run"]["runId"].as_str().unwrap().to_owned();
    assert!(text(&again).contains("outcome ok as before"), "{again}");
    assert_eq!(again["structuredContent"]["of"], *first);
    client.tool("exec", json!({"argv": ["false"]}));
    let diff = client.tool("runs_diff", json!({"a": first, "b": second}));
    assert_eq!(
        diff["structuredContent"]["stdout"]["diff"],
        "@@ -1,2 +1,2 @@\n alpha\n-beta\n+gamma\n"
    );
    let failed = client.tool("runs_list", json!({"status": "failed"}));
    assert_eq!(failed["structuredContent"]["runs"].as_array().unwrap().len(), 1);
    assert_eq!(failed["structuredContent"]["runs"][0]["outcome"], "exit 1");
    let hits = client.tool("runs_search", json!({"text": "gamma"}));
    assert_eq!(hits["structuredContent"]["hits"][0]["run"]["runId"], *second);
    let shown = client.text("runs_show", json!({"run": &first[28..]}));
    assert!(shown.contains("beta\n"), "{shown}");
    for (tool, wrong) in [
        ("runs_show", json!({"run": "ffffffff"})),
        ("runs_list", json!({"status": "good"})),
        ("runs_logs", json!({"run": "last", "lines": "x"})),
        ("runs_logs", json!({"run": "last", "pattern": "("})),
        ("runs_search", json!({"text": "--"})),
    ] {
        assert_eq!(client.tool(tool, wrong.clone())["isError"], true, "{tool} {wrong}");
    }
}

#[test]
fn a_secret_stays_secret_when_its_run_is_repeated() {
    let sandbox = Sandbox::new();
    sandbox.file("print", "echo \"$PLAIN_NAME\" \"$DEPLOY_TOKEN\"\n");
    let then = [("PLAIN_NAME", "correcthorsebattery")];
    let options = ["--secret", "PLAIN_NAME", "--env", "DEPLOY_TOKEN=hunter2hunter2"];
    sandbox.retake_with(&then, &[&["exec", "-q"], &options[..], &["--", "sh", "print"]].concat());
    let now = [("PLAIN_NAME", "staplestaplestaple"), ("DEPLOY_TOKEN", "anothersecret")];
    let mut client = Client::with(&sandbox, |command| {
        command.envs(now);
    });
    let again = client.tool("again", json!({"run": "last"}));
    assert_eq!(
        again["structuredContent"]["run"]["stdout"]["text"],
        "[redacted:PLAIN_NAME] [redacted:DEPLOY_TOKEN]\n"
    );
    assert!(text(&again).contains("DEPLOY_TOKEN comes from the current environment"), "{again}");
    assert_eq!(client.leave(), 0);
    for secret in ["correcthorsebattery", "hunter2hunter2", "staplestaplestaple", "anothersecret"] {
        assert!(!again.to_string().contains(secret), "{again}");
        assert!(!on_disk(&sandbox.store(), secret.as_bytes()), "{secret}");
    }
    // Without its value the run cannot be repeated exactly.
    let mut client = Client::new(&sandbox);
    let refused = client.text("again", json!({"run": "last"}));
    assert!(refused.contains("DEPLOY_TOKEN was redacted in the record"), "{refused}");
}

/// The command does not get it, but may find it anyway.
#[test]
fn a_secret_of_the_server_is_in_no_answer() {
    let sandbox = Sandbox::new();
    sandbox.file("found", "correcthorsebattery\n");
    sandbox.retake(&["exec", "-q", "--no-redact", "--", "cat", "found"]);
    let mut client = Client::with(&sandbox, |command| {
        command.env("GITHUB_TOKEN_1", "correcthorsebattery");
    });
    for answer in [
        client.tool("again", json!({"run": "last"})),
        client.tool("exec", json!({"argv": ["cat", "found"], "task_id": "correcthorsebattery"})),
    ] {
        assert!(answer.to_string().contains("[redacted:GITHUB_TOKEN_1]"), "{answer}");
        assert!(!answer.to_string().contains("correcthorsebattery"), "{answer}");
    }
    assert_eq!(client.leave(), 0);
}

#[test]
fn a_run_is_repeated_with_everything_that_was_asked_for() {
    let sandbox = Sandbox::new();
    sandbox.file("input", "from a file\n");
    sandbox.file("work", "cat; nice; echo \"$PLAIN\"; echo noise >&2\n");
    let options = [
        "--stdin",
        "input",
        "--nice",
        "7",
        "--capture",
        "stdout",
        "--label",
        "suite=unit",
        "--env-mode",
        "merge",
        "--env",
        "PLAIN=yes",
        "--limit",
        "files=100",
        "--limit",
        "memory=512M",
        "--timeout",
        "20s",
        "--grace",
        "3s",
    ];
    sandbox.retake(&[&["exec", "-q"], &options[..], &["--", "sh", "work"]].concat());
    let first = sandbox.retake(&["runs", "show", "last", "--json"]).json();
    let mut client = Client::new(&sandbox);
    let again = client.tool("again", json!({"run": "last"}));
    let view = &again["structuredContent"]["run"];
    assert_eq!(view["stdout"]["text"], "from a file\n7\nyes\n", "{again}");
    assert_eq!(view["stderr"]["bytes"], 0, "{again}");
    let run = view["runId"].as_str().unwrap();
    let second = sandbox.retake(&["runs", "show", run, "--json"]).json();
    // Values of this run, or of the server.
    let own = [
        "id",
        "startTime",
        "endTime",
        "durationMs",
        "usage",
        "loopId",
        "labels",
        "correlationIds",
        "sandbox",
        "stdoutRawBytes",
        "stderrRawBytes",
        "stderrBytes",
        "effects",
        "orderBlake3",
    ];
    for (key, value) in first.as_object().unwrap() {
        if !own.contains(&key.as_str()) {
            assert_eq!(value, &second[key], "{key}");
        }
    }
    let labels = json!({"again": first["id"], "suite": "unit", "via": "mcp"});
    assert_eq!(second["labels"], labels);
    assert_ne!(first["loopId"], second["loopId"]);
}

#[test]
fn tests_have_a_history() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    sandbox.file("suite", "#!/bin/sh\ncat results\ngrep -q 'not ok' results && exit 1; exit 0\n");
    for word in ["ok", "not ok"] {
        sandbox
            .file("results", &format!("TAP version 13\n1..2\nok 1 - first\n{word} 2 - second\n"));
        client.tool("exec", json!({"argv": ["sh", "suite"]}));
    }
    let failing = client.tool("tests", json!({"failing": true}));
    let tests = failing["structuredContent"]["tests"].as_array().unwrap();
    assert_eq!(tests.len(), 1, "{failing}");
    assert_eq!((&tests[0]["last"], &tests[0]["history"]), (&json!("failed"), &json!("+x")));
    let part = client.text("tests", json!({"name": "econ"}));
    assert_eq!(
        part,
        "no recorded test is called econ; the name *econ* also finds parts of names\n"
    );
    assert_eq!(client.text("tests", json!({"name": "x*"})), "no recorded test matches\n");
    assert_eq!(
        client.tool("tests", json!({"name": "*econ*"}))["structuredContent"]["tests"][0]["name"],
        "second"
    );
}

#[test]
fn runs_are_resources() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let run = run_id(&client.tool("exec", json!({"argv": ["ls", "/no/such", "."]})));
    let listed = client.request("resources/list", json!({}));
    let uri = format!("retake://runs/{run}");
    assert_eq!(listed["result"]["resources"][0]["uri"], *uri);
    let mut read = |uri: &str| client.request("resources/read", json!({"uri": uri}));
    let document = read(&uri);
    let document: serde_json::Value =
        serde_json::from_str(document["result"]["contents"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!((&document["id"], &document["exitCode"]), (&json!(run), &json!(2)));
    let stderr = read(&format!("{uri}/stderr"));
    assert!(stderr["result"]["contents"][0]["text"].as_str().unwrap().contains("/no/such"));
    for wrong in ["retake://runs/x", "file:///etc/passwd", &format!("{uri}/../stdout")] {
        assert!(read(wrong)["error"]["code"].is_number(), "{wrong}");
    }
    let templates = client.request("resources/templates/list", json!({}));
    assert_eq!(templates["result"]["resourceTemplates"].as_array().unwrap().len(), 3);
}

#[test]
fn a_refused_call_is_on_the_record_with_every_reason() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    for (arguments, reasons) in [
        (json!({"argv": ["true"], "cwd": "no/such"}), &["there is no such directory"][..]),
        (json!({"command": " ", "timeout_seconds": 0}), &["command is empty", "timeout is 0"]),
        (json!({"command": "true | true", "shell": false}), &["needs a shell"]),
    ] {
        let answer = client.text("exec", arguments);
        let run = sandbox.retake(&["runs", "show", "last", "--json"]).json();
        assert_eq!(run["outcome"], "not_started", "{run}");
        let message = run["error"]["message"].as_str().unwrap();
        for reason in reasons {
            assert!(message.contains(reason) && answer.contains(reason), "{message}\n{answer}");
        }
        let id = run["id"].as_str().unwrap();
        assert!(answer.contains(&format!("(recorded as run {})", &id[28..])), "{answer}");
    }
    // Arguments that do not make a request are not recorded.
    let before = sandbox.listed(&[]).len();
    assert_eq!(client.tool("exec", json!({"argv": "true"}))["isError"], true);
    assert_eq!(sandbox.listed(&[]).len(), before);
}

#[test]
fn a_run_that_had_a_terminal_gets_one_again() {
    let sandbox = Sandbox::new();
    sandbox.file("work", "test -t 1 && test -t 2 && echo terminal\n");
    let ran = sandbox.retake(&["exec", "-q", "--pty", "--", "sh", "work"]);
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    let mut client = Client::new(&sandbox);
    let again = client.tool("again", json!({"run": "last"}));
    assert_eq!(again["structuredContent"]["run"]["stdout"]["text"], "terminal\n", "{again}");
    assert!(text(&again).contains("same output"), "{again}");
}

#[test]
fn a_record_that_is_moved_meanwhile_is_followed() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    client.text("exec", json!({"argv": ["echo", "before"]}));
    assert_eq!(sandbox.sh("git init -q . && retake doctor --move").code, 0);
    client.text("exec", json!({"argv": ["echo", "after"]}));
    assert_eq!(sandbox.listed(&[]), ["echo after", "echo before"]);
    assert!(client.text("runs_list", json!({})).contains("echo after"));
    let old = sandbox.project().join(".agent/data/retake.db");
    assert!(!old.exists(), "there is one record");
}

#[test]
fn an_entry_that_cannot_be_read_hides_no_other_run() {
    let sandbox = Sandbox::new();
    let runs = ["one", "two", "three"].map(|word| sandbox.recorded(&format!("echo {word}")));
    sandbox.tamper("UPDATE ledger SET body = NULL WHERE seq = 3");
    let mut client = Client::new(&sandbox);
    let listed = client.tool("runs_list", json!({}));
    assert_eq!(listed["structuredContent"]["runs"].as_array().unwrap().len(), 2, "{listed}");
    assert!(text(&listed).contains("A run is left out: ledger entry 3"), "{listed}");
    let resources = client.request("resources/list", json!({}));
    let resources = resources.to_string();
    assert!(resources.contains(&runs[0]) && resources.contains(&runs[2]), "{resources}");
}
