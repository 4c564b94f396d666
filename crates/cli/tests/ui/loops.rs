//! Loops on the page, recorded by real loops.
use crate::common::{Sandbox, Ui, eventually};
use serde_json::{Value, json};

fn newest(ui: &Ui, kind: &str) -> (String, Value, String) {
    let list = ui.get(&format!("/api/v1/loops?kind={kind}")).json();
    let id = list["loops"][0]["id"].as_str().unwrap().to_owned();
    let page = ui.get(&format!("/loops/{id}"));
    assert_eq!(page.status, 200, "{}", page.text());
    let document = ui.get(&format!("/api/v1/loops/{id}")).json();
    (id, document, page.text())
}

#[test]
fn a_crash_test_shows_what_is_lost_and_when() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.project().join("root")).unwrap();
    // Nothing is synced before it is acknowledged.
    let program = "printf 0000 > root/map.tmp; mv root/map.tmp root/map; echo 'saved <b>'";
    let check = "test ! -s \"$FIRST_ACKS\" || test \"$(cat \"$FIRST_WORK_DIR/map\")\" = 0000";
    let options = ["crash", "--root", "root", "--verify", check, "--", "sh", "-c", program];
    let tested = sandbox.retake(&options);
    assert_eq!(tested.code, 1, "{}", tested.snapshot());
    let ui = sandbox.ui();
    let (id, document, page) = newest(&ui, "crash");
    let crash = &document["crash"];
    let finding = &crash["findings"][0];
    assert_eq!(finding["id"], "F1", "{document}");
    assert!(finding["sentence"].as_str().unwrap().contains("lost"), "{finding}");
    let lost = finding["lostOperations"][0].as_u64().unwrap();
    assert_eq!(crash["counts"]["acknowledgements"], 1, "{crash}");
    assert_eq!(crash["finished"]["complete"], true, "{crash}");
    for part in [
        "<span aria-hidden=\"true\">✗</span> findings".to_owned(),
        "<article class=\"finding\" id=\"F1\">".to_owned(),
        format!("<a href=\"#op{lost}\">{lost}</a>"),
        format!("id=\"op{lost}\""),
        "lost in F1</a>".to_owned(),
        "⚡ crash of <a href=\"#F1\">F1</a>".to_owned(),
        "“saved &lt;b&gt;”".to_owned(),
        "rename <code>map.tmp</code> to <code>map</code>".to_owned(),
        "retake crash repro".to_owned(),
    ] {
        assert!(page.contains(&part), "{part}: {page}");
    }
    // The same program, repaired.
    let program = "printf 0000 > root/map.tmp; sync root/map.tmp; mv root/map.tmp root/map; \
                   sync root; echo saved";
    let options = ["crash", "--root", "root", "--verify", check, "--", "sh", "-c", program];
    let tested = sandbox.retake(&options);
    assert_eq!(tested.code, 0, "{}", tested.snapshot());
    let (other, document, page) = newest(&ui, "crash");
    assert_ne!(other, id);
    assert_eq!(document["crash"]["counts"]["syncs"], 2, "{document}");
    assert!(page.contains("<span aria-hidden=\"true\">✓</span> clean"), "{page}");
    assert!(page.contains("every state that a crash can leave"), "{page}");
    let answer = ui.get(&format!("/api/v1/loops/{other}?after=3")).json();
    assert_eq!(answer["crash"]["timeline"][0]["seq"], 4, "{answer}");
}

fn commits(sandbox: &Sandbox, values: &[&str]) {
    sandbox.git(&["init", "-q", "-b", "main"]);
    for (at, value) in values.iter().enumerate() {
        sandbox.file("value", value);
        sandbox.git(&["add", "value"]);
        sandbox.git(&["commit", "-q", "--allow-empty", "-m", value]);
        sandbox.git(&["tag", &format!("v{}", at + 1)]);
    }
}

#[test]
fn a_matrix_shows_its_metric_over_commits() {
    let sandbox = Sandbox::new();
    commits(&sandbox, &["100", "100", "160", "160"]);
    let config = |refs: &str| {
        let command = "echo \"metric: load=$(cat value).$(( (ITERATION * 7 + 3) % 10 )) ms\"";
        let text = format!("command: '{command}'\niterations: 8\ncode: {{refs: [{refs}]}}\n");
        sandbox.file("matrix.yml", &text);
        assert_eq!(sandbox.retake(&["matrix", "run", "-q"]).code, 0);
    };
    let ui = sandbox.ui();
    config("v1");
    let (_, document, page) = newest(&ui, "matrix");
    assert_eq!(document["matrix"]["history"], Value::Null, "one commit has no history");
    assert!(!page.contains("History of"), "{page}");
    config("v2, v3, v4");
    let (_, document, page) = newest(&ui, "matrix");
    let series = &document["matrix"]["history"]["series"][0];
    let subjects = series["commits"].as_array().unwrap().iter().map(|one| one["subject"].clone());
    assert_eq!(subjects.collect::<Vec<_>>(), ["100", "100", "160", "160"]);
    assert_eq!(series["changes"][0]["commit"], sandbox.git(&["rev-parse", "v3"]), "{series}");
    for part in ["History of load", "<svg class=\"history\"", "load is slower since", "+59"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn a_matrix_is_a_heat_map_with_comparisons_and_a_bisection_has_its_answer() {
    let sandbox = Sandbox::new();
    commits(&sandbox, &["100", "100", "160", "160"]);
    sandbox.file(
        "matrix.yml",
        "command: 'echo \"metric: load=$(cat value).$(( (ITERATION * 7 + 3) % 10 )) ms\"'\n\
         iterations: 6\ncode: {refs: [v1, v4]}\n",
    );
    assert_eq!(sandbox.retake(&["matrix", "run", "-q"]).code, 0);
    let ui = sandbox.ui();
    let (_, document, page) = newest(&ui, "matrix");
    let matrix = &document["matrix"];
    assert_eq!((&matrix["metric"], &matrix["unit"]), (&json!("load"), &json!("ms")));
    let values = matrix["cells"].as_array().unwrap().iter().map(|cell| cell["values"].clone());
    assert!(values.clone().all(|values| values.as_array().unwrap().len() == 6), "{matrix}");
    let compared = &matrix["comparisons"][0];
    assert_eq!((&compared["a"], &compared["b"]), (&json!("v1"), &json!("v4")), "{compared}");
    assert_eq!(compared["verdict"], "slower", "{compared}");
    for part in ["class=\"hot c7\"", "+59", "class=\"strip\"", "slower", "Interval"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let search = ["matrix", "bisect", "--axis", "code", "--good", "v1", "--bad", "v4"];
    let metric = ["--metric", "load", "--threshold", "5%", "--json"];
    let found = sandbox.retake(&[&search[..], &metric].concat());
    assert_eq!(found.code, 0, "{}", found.snapshot());
    let (_, document, page) = newest(&ui, "matrix");
    let matrix = &document["matrix"];
    assert_eq!(matrix["searched"], "code");
    assert_eq!(matrix["answer"]["firstBad"], found.json()["firstBad"], "{matrix}");
    assert!(!matrix["steps"].as_array().unwrap().is_empty(), "{matrix}");
    let bad = sandbox.git(&["rev-parse", "v3"]);
    let sentence = format!("{} the first bad commit", &bad[..10]);
    assert!(page.contains(&sentence), "{sentence}: {page}");
    assert!(page.contains("<span class=\"ref\">first bad</span>"), "{page}");
    assert!(page.contains("class=\"failed\"") && page.contains("Bisection of code"), "{page}");
    // A second time everything is known.
    assert_eq!(sandbox.retake(&[&search[..], &metric].concat()).code, 0);
    let (_, _, page) = newest(&ui, "matrix");
    assert!(page.contains("nothing was run") && page.contains(&sentence), "{page}");
}

/// Waits in each iteration for a file `go-N`, and prints in colour.
const STEP: &str = "start; printf '%s\\n' '{\"type\":\"assistant\",\"message\":{\"id\":\"c\",\"content\":[{\"type\":\"text\",\"text\":\"\\u001b[31mred alert\\u001b[0m\"}]}}'; \
                    touch \"$dir/at-$n\"; while [ ! -e \"$dir/go-$n\" ]; do sleep 0.02; done; progress 1 9; result";

#[test]
fn an_agent_that_is_paused_says_so_and_how_far_it_is() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &[STEP]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&["-m", "7"]);
    sandbox.awaited("at-1");
    let ui = sandbox.ui();
    let (id, document, page) = newest(&ui, "agent");
    assert_eq!(document["state"], "running", "{document}");
    assert!(page.contains("0</p><p>completed, 1 running; at most 7<"), "{page}");
    assert!(page.contains("<p class=\"big\">$0.00<"), "{page}");
    assert!(page.contains("<span class=\"f1\">red alert</span>"), "{page}");
    assert!(!page.contains("u{1b}"), "{page}");
    let line = &document["agent"]["feed"][0];
    assert_eq!((&line["text"], &line["spans"][1][0]), (&json!("📝 red alert"), &json!("f1")));
    let act = |action: &str| {
        let answer = ui.post(&format!("/api/v1/loops/{id}/actions"), &json!({"action": action}));
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    act("pause");
    let (_, document, page) = newest(&ui, "agent");
    assert_eq!(document["state"], "running", "{document}");
    assert!(page.contains("It pauses after this iteration."), "{page}");
    let mut events = ui.listen(&format!("/api/v1/loops/{id}/events"), None);
    std::fs::write(sandbox.agent_dir().join("go-1"), "").unwrap();
    let state = || newest(&ui, "agent").1["state"].clone();
    eventually("the pause", || state() == "paused");
    while events.until("change").data["state"] != "paused" {}
    let (_, document, page) = newest(&ui, "agent");
    assert_eq!((&document["state"], &document["running"]), (&json!("paused"), &json!(true)));
    assert!(page.contains("</span> paused</span>") && page.contains("It is paused."), "{page}");
    assert!(page.contains("1</p><p>completed; at most 7</p>"), "{page}");
    assert_eq!(ui.get("/api/v1/overview").json()["loops"][0]["state"], "paused");
    act("resume");
    sandbox.awaited("at-2");
    assert_eq!(state(), "running");
    while events.until("change").data["state"] != "running" {}
    act("stop");
    std::fs::write(sandbox.agent_dir().join("go-2"), "").unwrap();
    events.until("end");
    running.end();
}
