//! Commands that outlive their call.

use serde_json::json;

use crate::client::{Client, run_id, text};
use crate::common::{Sandbox, eventually, own_seconds, sleeps};

#[test]
fn a_started_command_is_fed_watched_and_stopped() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let started = client.tool("exec_start", json!({"argv": ["cat"]}));
    assert_eq!(started["structuredContent"]["state"], "running");
    let run = run_id(&started);
    client.tool("exec_input", json!({"run": run, "text": "one\n"}));
    let seen = client.tool("exec_wait", json!({"run": run, "pattern": "on[e]", "seconds": 30}));
    assert_eq!(seen["structuredContent"]["stdout"]["text"], "one\n");
    assert!(text(&seen).contains("The pattern was found."), "{seen}");
    // Only new output.
    client.tool("exec_input", json!({"run": &run[28..], "text": "two\n"}));
    let seen = client.tool("exec_wait", json!({"run": run, "pattern": "two", "seconds": 30}));
    assert_eq!(seen["structuredContent"]["stdout"]["text"], "two\n");
    assert!(text(&seen).contains("The pattern was found."), "{seen}");
    let none = client.text("exec_wait", json!({"run": run, "pattern": "three", "seconds": 0.05}));
    assert!(none.contains("The pattern was not found yet"), "{none}");
    let stopped = client.tool("exec_stop", json!({"run": run}));
    assert_eq!(stopped["structuredContent"]["outcome"], "cancelled");
    let again = client.tool("exec_stop", json!({"run": run}));
    assert_eq!(again["structuredContent"]["outcome"], "cancelled", "once more does no harm");
    let late = client.tool("exec_input", json!({"run": run, "text": "x"}));
    assert_eq!(late["isError"], true);
    assert!(text(&late).contains("it has ended"), "{late}");
}

#[test]
fn closing_its_input_lets_it_end() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let run = run_id(&client.tool("exec_start", json!({"argv": ["sort"]})));
    client.tool("exec_input", json!({"run": run, "text": "b\na\n", "close": true}));
    let ended = client.tool("exec_wait", json!({"run": run, "seconds": 30}));
    assert_eq!(ended["structuredContent"]["outcome"], "exited");
    assert_eq!(ended["structuredContent"]["stdout"]["text"], "a\nb\n");
}

#[test]
fn a_background_run_that_ends_immediately_is_reported_immediately() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    // On a busy machine even these may take a while.
    eventually("it has ended", || {
        let failed = client.tool("exec_start", json!({"argv": ["ls", "/no/such/place"]}));
        failed["structuredContent"]["exitCode"] == 2 && text(&failed).contains("No such file")
    });
    eventually("it is not there", || {
        client.tool("exec_start", json!({"argv": ["no-such-program"]}))["isError"] == true
    });
    let unknown = client.tool("exec_wait", json!({"run": "deadbeef"}));
    assert_eq!(unknown["isError"], true);
}

#[test]
fn it_ends_with_the_server_however_that_ends() {
    let endings = ["leave", "terminate", "kill"];
    let confined = [&["--sandbox=off"][..], &[]];
    for (how, options) in endings.into_iter().flat_map(|how| confined.map(|options| (how, options)))
    {
        let sandbox = Sandbox::new();
        let mut client = Client::with(&sandbox, |command| {
            command.args(options);
        });
        // A grandchild in its own session, which is easily missed.
        let seconds = own_seconds();
        sandbox.file("serve", &format!("#!/bin/sh\nsetsid sleep {seconds} &\necho begun\nwait\n"));
        let run = run_id(&client.tool("exec_start", json!({"argv": ["sh", "serve"]})));
        let seen =
            client.tool("exec_wait", json!({"run": run, "pattern": "^begun$", "seconds": 30}));
        assert!(text(&seen).contains("The pattern was found."), "{seen}");
        eventually("it sleeps", || sleeps(&seconds));
        match how {
            "leave" => assert_eq!(client.leave(), 0),
            "terminate" => {
                // SAFETY: a signal to a child of ours.
                unsafe { libc::kill(client.server.id() as i32, libc::SIGTERM) };
                client.server.wait().unwrap();
            }
            _ => {
                client.server.kill().unwrap();
                client.server.wait().unwrap();
            }
        }
        eventually("everything it started ends", || !sleeps(&seconds));
        // The next command cleans up after a killed server.
        sandbox.retake(&["exec", "--quiet", "--", "true"]);
        let shown = sandbox.retake(&["runs", "show", &run, "--json"]).json();
        let outcome = if how == "kill" { "interrupted" } else { "cancelled" };
        assert_eq!(shown["outcome"], outcome, "{how}: {shown}");
    }
}

#[test]
fn as_many_as_the_policy_allows() {
    let sandbox = Sandbox::new();
    sandbox.file(".agent/config.yml", "mcp:\n  policy:\n    max_running: 2\n");
    let mut client = Client::new(&sandbox);
    let first = run_id(&client.tool("exec_start", json!({"argv": ["sleep", "1000"]})));
    client.tool("exec_start", json!({"argv": ["sleep", "1000"]}));
    let third = client.tool("exec_start", json!({"argv": ["sleep", "1000"]}));
    assert!(text(&third).contains("2 commands run in the background already"), "{third}");
    // Background runs do not block calls.
    assert_eq!(client.tool("exec", json!({"argv": ["true"]}))["isError"], false);
    client.tool("exec_stop", json!({"run": first, "kill": true}));
    let mut started = false;
    eventually("there is room again", || {
        started = client.tool("exec_start", json!({"argv": ["sleep", "1000"]}))["isError"] == false;
        started
    });
}

#[test]
fn a_running_run_is_not_compared_with_its_repetition() {
    let sandbox = Sandbox::new();
    sandbox.file("ask", "read answer\n");
    let mut client = Client::new(&sandbox);
    let run = run_id(&client.tool("exec_start", json!({"argv": ["sh", "ask"]})));
    let repeated = client.text("again", json!({"run": run}));
    assert!(repeated.contains("is still running") && !repeated.contains("was 0ms"), "{repeated}");
}
