//! `retake mcp --sandbox`: every command of a client is confined.

use serde_json::json;

use crate::client::{Client, text};
use crate::common::Sandbox;

#[test]
fn every_way_to_run_something_is_confined() {
    let sandbox = Sandbox::new();
    let outside = sandbox.dir.path().canonicalize().unwrap().join("outside");
    let possible = sandbox.retake(&["exec", "--sandbox", "--", "true"]);
    if possible.code != 0 {
        eprintln!("SKIP: {}", possible.stderr);
        return;
    }
    // Recorded unconfined; repeated by the client it is confined.
    let path = outside.to_str().unwrap();
    assert_eq!(sandbox.retake(&["exec", "--", "touch", path]).code, 0);
    std::fs::remove_file(&outside).unwrap();
    let mut client = Client::with(&sandbox, |command| {
        command.arg("--sandbox");
    });
    let again = client.tool("again", json!({"run": "last"}));
    let made = client.tool("exec", json!({"argv": ["touch", "made"]}));
    client.tool("exec", json!({"argv": ["touch", path]}));
    client.tool("exec_start", json!({"argv": ["touch", path]}));
    assert!(sandbox.project().join("made").exists(), "{}", text(&made));
    client.leave();
    assert!(!outside.exists(), "{}", text(&again));
    let listed = sandbox.retake(&["runs", "list", "--json"]).json();
    let run = listed[0]["id"].as_str().unwrap();
    let shown = sandbox.retake(&["runs", "show", run, "--json"]).json();
    assert_eq!(shown["sandbox"]["level"], "full", "{shown}");
}

/// A server keeps its sandboxes for further commands; each command reports the runs inside it, once.
#[test]
fn runs_that_a_command_records_inside_are_reported_once() {
    let sandbox = Sandbox::new();
    let possible = sandbox.retake(&["exec", "--sandbox", "--", "true"]);
    if possible.code != 0 {
        eprintln!("SKIP: {}", possible.stderr);
        return;
    }
    let mut client = Client::with(&sandbox, |command| {
        command.arg("--sandbox");
    });
    let mut ids = Vec::new();
    for word in ["one", "two"] {
        let called =
            client.tool("exec", json!({"argv": ["retake", "exec", "-q", "--", "echo", word]}));
        assert!(
            text(&called).contains("exit 0") || text(&called).contains("ok"),
            "{}",
            text(&called)
        );
        ids.push(called["result"]["structuredContent"]["runId"].as_str().unwrap().to_owned());
    }
    client.leave();
    let listed = sandbox.retake(&["runs", "list", "--json"]).json();
    for (word, id) in ["one", "two"].iter().zip(&ids) {
        let of = |command: &str| {
            let mut runs = listed.as_array().unwrap().iter();
            runs.find(|run| run["command"] == command).unwrap_or_else(|| panic!("{listed:#}"))
        };
        assert_eq!(of(&format!("echo {word}"))["reportedBy"], id.as_str());
        let outer = of(&format!("retake exec -q -- echo {word}"));
        assert_eq!(outer["sandbox"]["reported"], json!({"runs": 1}), "{outer:#}");
    }
}
