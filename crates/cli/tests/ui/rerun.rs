//! `--allow-run`: a page repeats a recorded run, and nothing else.

use serde_json::{Value, json};

use crate::common::{Sandbox, Ui, eventually, request};
use crate::pages::recorded;

fn finished(ui: &Ui, id: &str) -> Value {
    let mut run = Value::Null;
    eventually("the end of the run", || {
        run = ui.get(&format!("/api/v1/runs/{id}")).json();
        run["state"] == "finished"
    });
    run
}

#[test]
fn a_page_repeats_a_recorded_run_and_the_new_one_says_so() {
    let sandbox = Sandbox::new();
    let called = sandbox.retake(&[
        "exec",
        "--json",
        "--env",
        "WORD=kept",
        "--timeout",
        "50s",
        "--label",
        "own=1",
        "--",
        "sh",
        "-c",
        "echo $WORD; echo line >> made; exit 4",
    ]);
    let old = called.json()["id"].as_str().unwrap().to_owned();
    let ui = sandbox.ui_with(0, &["--allow-run"]);
    let page = ui.get(&format!("/runs/{old}")).text();
    assert!(page.contains(&format!("data-again=\"/api/v1/runs/{old}/again\"")), "{page}");
    // Other content of the request does not matter: a page cannot choose the command.
    let body = json!({"command": "touch forged", "arguments": ["touch", "forged"]});
    let answer = ui.post(&format!("/api/v1/runs/{old}/again"), &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let new = answer.json()["id"].as_str().unwrap().to_owned();
    let run = finished(&ui, &new);
    assert_eq!((&run["exitCode"], &run["timeoutMs"]), (&json!(4), &json!(50_000)), "{run}");
    let labels = json!({"again": old, "own": "1", "via": "page"});
    assert_eq!((&run["labels"], &run["arguments"][0]), (&labels, &json!("sh")), "{run}");
    let logs = ui.get(&format!("/api/v1/runs/{new}/logs")).json();
    assert_eq!(logs["pieces"][0]["text"], "kept\n");
    let made = std::fs::read_to_string(sandbox.project().join("made")).unwrap();
    assert_eq!(made, "line\nline\n", "once each");
    assert!(!sandbox.project().join("forged").exists());
    // The record is intact.
    assert_eq!(sandbox.retake(&["audit", "verify"]).code, 0);
}

#[test]
fn running_again_requires_the_option_and_the_token_of_a_page() {
    let sandbox = Sandbox::new();
    let run = recorded(&sandbox, "echo ran >> made");
    let path = format!("/api/v1/runs/{run}/again");
    let ui = sandbox.ui();
    let answer = ui.post(&path, &json!({}));
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (403, &json!("refused")));
    assert!(answer.text().contains("--allow-run"), "{}", answer.text());
    drop(ui);
    let ui = sandbox.ui_with(0, &["--allow-run"]);
    let (host, (name, token)) = (ui.host(), ui.authorised());
    let page = ui.page_token();
    let evil = "http://evil.example".to_owned();
    for headers in [
        vec![("Host", host.as_str()), (&name, &token)],
        vec![("Host", &host), (&name, &token), ("X-Retake-Page-Token", &ui.token)],
        vec![("Host", &host), ("X-Retake-Page-Token", &page)],
        vec![("Host", &host), (&name, &token), ("X-Retake-Page-Token", &page), ("Origin", &evil)],
        vec![("Host", "evil.example"), (&name, &token), ("X-Retake-Page-Token", &page)],
    ] {
        let answer = request(ui.port, "POST", &path, &headers, b"{}");
        assert!(matches!(answer.status, 401 | 403), "{headers:?}: {}", answer.status);
    }
    // A link cannot do it.
    assert_eq!(ui.get(&path).status, 404);
    let made = std::fs::read_to_string(sandbox.project().join("made")).unwrap();
    assert_eq!(made, "ran\n");
    assert_eq!(ui.get("/api/v1/runs").json()["runs"].as_array().unwrap().len(), 1);
}

#[test]
fn imported_runs_cannot_be_run_again() {
    let theirs = Sandbox::new();
    let run = recorded(&theirs, "touch planted");
    let called = theirs.retake(&["runs", "export"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let exported = theirs.file("runs.jsonl", &called.stdout).display().to_string();
    let sandbox = Sandbox::new();
    let own = recorded(&sandbox, "true");
    let called = sandbox.retake(&["runs", "import", &exported]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let ui = sandbox.ui_with(0, &["--allow-run"]);
    assert!(ui.get(&format!("/runs/{own}")).text().contains("data-again="));
    assert!(!ui.get(&format!("/runs/{run}")).text().contains("data-again="));
    let answer = ui.post(&format!("/api/v1/runs/{run}/again"), &json!({}));
    assert_eq!(answer.status, 403, "{}", answer.text());
    assert!(answer.text().contains("imported from another record"), "{}", answer.text());
    let before = ui.get("/api/v1/runs").json()["runs"].as_array().unwrap().len();
    assert_eq!(before, 2, "nothing was started");
    // A given record that does not belong to the directory is not run from at all.
    let foreign = theirs.project().join(".agent/data").display().to_string();
    let called = sandbox.retake(&["--store", &foreign, "ui", "--allow-run", "--port", "0"]);
    assert_eq!(called.code, 1, "{}", called.snapshot());
    assert!(called.stderr.contains("is not the record of this directory"), "{}", called.snapshot());
    // Nor is one that others can write.
    drop(ui);
    let database = sandbox.project().join(".agent/data/retake.db");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(database, open).unwrap();
    let called = sandbox.retake(&["ui", "--allow-run", "--port", "0"]);
    assert_eq!(called.code, 1, "{}", called.snapshot());
    assert!(called.stderr.contains("can be written by others"), "{}", called.snapshot());
}

#[test]
fn the_sandbox_of_the_project_holds_for_what_a_page_runs() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let outside = sandbox.dir.path().join("outside");
    let run = recorded(&sandbox, &format!("echo x >> {}", outside.display()));
    assert!(outside.exists());
    sandbox.file(".agent/config.yml", "sandbox:\n  exec: strict\n");
    let ui = sandbox.ui_with(0, &["--allow-run"]);
    let answer = ui.post(&format!("/api/v1/runs/{run}/again"), &json!({}));
    let new = answer.json()["id"].as_str().unwrap().to_owned();
    let run = finished(&ui, &new);
    assert_eq!(run["sandbox"]["level"], "full", "{run}");
    // It has a private /tmp.
    assert_eq!(std::fs::read_to_string(outside).unwrap(), "x\n");
}

#[test]
fn runs_that_cannot_be_repeated_are_refused_with_the_reason() {
    let sandbox = Sandbox::new();
    let called = sandbox.retake(&[
        "exec",
        "--json",
        "--env",
        "MY_TOKEN=hunter2hunter2",
        "--",
        "sh",
        "-c",
        "true",
    ]);
    let run = called.json()["id"].as_str().unwrap().to_owned();
    let gone = sandbox.project().join("gone");
    std::fs::create_dir(&gone).unwrap();
    let called = sandbox.retake(&["exec", "--json", "--cwd", "gone", "--", "true"]);
    let without_directory = called.json()["id"].as_str().unwrap().to_owned();
    std::fs::remove_dir(gone).unwrap();
    let ui = sandbox.ui_with(0, &["--allow-run"]);
    for (run, why) in [(run, "MY_TOKEN was redacted"), (without_directory, "gone")] {
        let answer = ui.post(&format!("/api/v1/runs/{run}/again"), &json!({}));
        assert_eq!(answer.status, 409, "{}", answer.text());
        assert!(answer.text().contains(why), "{}", answer.text());
        assert!(!answer.text().contains("hunter2"), "{}", answer.text());
    }
    assert_eq!(ui.post("/api/v1/runs/00000000/again", &json!({})).status, 404);
}
