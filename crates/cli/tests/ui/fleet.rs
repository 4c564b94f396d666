//! The page of several agents at once.
use crate::common::{RETAKE, Running, Sandbox, Ui, eventually};
use serde_json::{Value, json};
use std::process::Stdio;

/// Changes its own file and one that the others change, too, and waits in its second iteration.
const WORK: &str = r#"start
if [ $RETAKE_ITERATION = 1 ]; then
  echo $RETAKE_AGENT > own-$RETAKE_AGENT; echo $RETAKE_AGENT >> shared; progress 1 2; result; exit
fi
touch "$dir/at-$RETAKE_AGENT"; while [ ! -e "$dir/go" ]; do sleep 0.02; done; complete; result 0.5 10"#;

/// The fleet in the list of loops.
fn fleet(ui: &Ui) -> (String, Value, String) {
    let list = ui.get("/api/v1/loops?kind=agent").json();
    let loops = list["loops"].as_array().unwrap();
    let found = loops.iter().find(|one| one["plan"]["agents"].is_array()).unwrap();
    let id = found["id"].as_str().unwrap().to_owned();
    let page = ui.get(&format!("/loops/{id}"));
    assert_eq!(page.status, 200, "{}", page.text());
    let document = ui.get(&format!("/api/v1/loops/{id}")).json();
    (id, document, page.text())
}

#[test]
fn several_agents_are_shown_told_stopped_compared_and_applied() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[WORK]);
    sandbox.file(".gitignore", "/.agent\n");
    sandbox.git(&["init", "-q", "-b", "main"]);
    sandbox.git(&["add", "."]);
    sandbox.git(&["commit", "-qm", "one"]);
    for name in ["one", "two"] {
        sandbox.workspace(name, &[]);
    }
    let mut command = sandbox.command(RETAKE);
    command.args(["agent", "run", "one", "two"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Running::of(&mut command);
    sandbox.awaited("at-one");
    sandbox.awaited("at-two");
    let ui = sandbox.ui();
    eventually("the overlap", || fleet(&ui).2.contains("shared</span>"));
    let (id, document, page) = fleet(&ui);
    let agents = document["fleet"]["agents"].as_array().unwrap();
    assert_eq!(agents.len(), 2, "{document}");
    assert_eq!((&agents[0]["state"], &agents[0]["changedFiles"]), (&json!("running"), &json!(2)));
    assert_eq!(agents[0]["overlaps"][0]["paths"], json!(["shared"]), "{document}");
    let own = agents[0]["loopId"].as_str().unwrap();
    for part in [
        &format!("<a href=\"/loops/{own}\">one</a>"),
        "</span> running</span>",
        "data-action=\"stop\" data-agent=\"two\"",
        "<option>one</option>",
        "2 files",
        &format!("/loops/{id}/agents/one"),
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("/apply"), "{page}");
    // Also of a running one, in a clone that this server cannot see.
    let diff = ui.get(&format!("/loops/{id}/agents/one"));
    assert!(diff.status == 200 && diff.text().contains("own-one"), "{}", diff.text());
    assert_eq!(ui.get(&format!("/loops/{id}/agents/none")).status, 404);
    let act = |body: Value| ui.post(&format!("/api/v1/loops/{id}/actions"), &body).status;
    assert_eq!(act(json!({"action": "pause"})), 409);
    assert_eq!(act(json!({"action": "tell", "message": "x"})), 400);
    assert_eq!(act(json!({"action": "tell", "agent": "one", "message": "look at b"})), 200);
    assert_eq!(act(json!({"action": "stop", "agent": "two"})), 200);
    assert_eq!(act(json!({"action": "stop"})), 200);
    let apply = format!("/api/v1/loops/{id}/agents/one/apply");
    assert_eq!(ui.post(&apply, &json!({})).status, 403);
    std::fs::write(sandbox.agent_dir().join("go"), "").unwrap();
    running.end();
    let (_, document, page) = fleet(&ui);
    assert_eq!(document["fleet"]["agents"][0]["state"], "kept", "{document}");
    assert!(page.contains("+2</span>") && page.contains("$0.51"), "{page}");
    assert_eq!(act(json!({"action": "stop"})), 409);
    let ui = sandbox.ui_with(0, &["--allow-run"]);
    assert!(fleet(&ui).2.contains(&apply));
    let applied = ui.post(&apply, &json!({}));
    assert_eq!(applied.status, 200, "{}", applied.text());
    assert_eq!(sandbox.git(&["show", "HEAD:own-one"]), "one");
}

#[test]
fn the_list_of_loops_shows_that_an_agent_failed() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; failed 401 'no key'; exit 1"]);
    sandbox.file(".gitignore", "/.agent\n");
    sandbox.git(&["init", "-q", "-b", "main"]);
    sandbox.git(&["add", "."]);
    sandbox.git(&["commit", "-qm", "one"]);
    for name in ["one", "two"] {
        sandbox.workspace(name, &[]);
    }
    let called = sandbox.retake(&["agent", "run", "one", "two"]);
    assert_eq!(called.code, 1, "{}", called.snapshot());
    let document = sandbox.retake(&["agent", "fleet", "--json"]).json();
    assert_eq!(document["outcome"], "failed", "{document}");
    assert_eq!(document["agents"][0]["stopReason"], "failed", "{document}");
    let listed = sandbox.retake(&["agent", "fleet"]).stdout;
    assert!(listed.contains("an iteration failed"), "{listed}");
    let ui = sandbox.ui();
    let page = ui.get("/loops").text();
    let of_fleet = page.split("<tr").find(|row| row.contains("one, two")).unwrap_or_default();
    assert!(of_fleet.contains("2 agent failed"), "{page}");
    assert!(!of_fleet.contains("completed"), "{page}");
}
