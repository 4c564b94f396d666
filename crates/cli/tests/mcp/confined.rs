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
