//! The page with problems underneath: messages instead of silence, and other requests are not affected.

use std::net::TcpStream;

use crate::common::{Sandbox, eventually};
use serde_json::json;

#[test]
fn a_run_that_is_pruned_while_it_is_followed_is_told_of_in_words() {
    for erase in [&["runs", "prune", "--older-than", "0s"][..], &["runs", "delete"]] {
        let sandbox = Sandbox::new();
        sandbox.recorded("true");
        let ui = sandbox.ui();
        // More than the connection buffers, so that the listener is not at its end yet.
        let mut child = sandbox.start("while [ ! -e go ]; do sleep 0.01; done; seq 1 4000000");
        let id = ui.running();
        let mut events = ui.listen(&format!("/api/v1/runs/{id}/events"), None);
        sandbox.file("go", "");
        events.until("output");
        assert!(child.wait().unwrap().success());
        let own = [id.as_str()];
        let words = [erase, if erase.len() == 2 { &own[..] } else { &[] }].concat();
        let erased = sandbox.retake(&words);
        assert_eq!(erased.code, 0, "{}", erased.snapshot());
        let gone = events.until("gone");
        let said = gone.data["message"].as_str().unwrap();
        assert!(said.contains("no run matches"), "{said}");
        assert!(events.next().is_none(), "nobody waits for more");
    }
}

#[test]
fn a_listener_for_the_latest_output_skips_to_the_end_if_it_falls_behind() {
    let sandbox = Sandbox::new();
    sandbox.recorded("true");
    let ui = sandbox.ui();
    let script = "echo one; while [ ! -e go1 ]; do sleep 0.01; done; seq 1 300000; \
                  while [ ! -e go2 ]; do sleep 0.01; done; echo last";
    let mut child = sandbox.start(script);
    let id = ui.running();
    let path = format!("/api/v1/runs/{id}/events?latest=1");
    let mut events = ui.listen(&path, None);
    let first = events.until("output");
    assert_eq!((&first.data["from"], &first.data["offsets"]), (&json!([0, 0]), &json!([4, 0])));
    drop(events);
    sandbox.file("go1", "");
    eventually("all of it", || {
        let window = ui.get(&format!("/api/v1/runs/{id}/logs?tail=1&limit=100")).json();
        window["length"] == 1_988_899
    });
    let mut events = ui.listen(&path, first.id.as_deref());
    let behind = events.until("behind");
    assert_eq!(behind.data["lengths"], json!([1_988_899, 0]));
    assert!(events.next().is_none());
    let mut events = ui.listen(&path, Some("1988899.0"));
    sandbox.file("go2", "");
    let told = events.until("output");
    assert_eq!(told.data["pieces"][0]["text"], "last\n");
    assert_eq!(told.data["from"], json!([1_988_899, 0]));
    events.until("end");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_loop_whose_runs_are_pruned_is_still_shown() {
    let sandbox = Sandbox::new();
    sandbox
        .agent("", &["start; say 'almost there'; progress 1 2; result", "start; complete; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&[]).code, 0);
    let ui = sandbox.ui();
    let id = ui.get("/api/v1/loops").json()["loops"][0]["id"].as_str().unwrap().to_owned();
    let pruned = sandbox.retake(&["runs", "prune", "--older-than", "0s", "--kind", "agent"]);
    assert_eq!(pruned.code, 0, "{}", pruned.snapshot());
    assert_eq!(ui.get("/api/v1/runs").json()["runs"], json!([]));
    let page = ui.get(&format!("/loops/{id}"));
    assert_eq!(page.status, 200, "{}", page.text());
    assert!(page.text().contains("The record has no run of this loop"), "{}", page.text());
    let document = ui.get(&format!("/api/v1/loops/{id}")).json();
    assert_eq!(document["agent"]["iterations"].as_array().unwrap().len(), 2, "{document}");
    ui.listen(&format!("/api/v1/loops/{id}/events"), None).until("end");
}

#[test]
fn a_page_that_finds_nothing_in_the_first_part_says_that_there_is_more() {
    let sandbox = Sandbox::new();
    // Without the script one request searches 64 MiB.
    let run = sandbox.recorded("head -c 70000000 /dev/zero | tr '\\0' x; echo; echo NEEDLE");
    let ui = sandbox.ui();
    let page = ui.get(&format!("/runs/{run}?find=needle")).text();
    let (_, rest) = page.split_once("not so far; <a href=\"").unwrap();
    let address = rest.split('"').next().unwrap().replace("&amp;", "&");
    let page = ui.get(address.split('#').next().unwrap()).text();
    assert!(page.contains(">NEEDLE</mark>"), "{address}");
    let page = ui.get(&format!("/runs/{run}?find=haystack&out=69000000")).text();
    assert!(page.contains("not found") && !page.contains("look further"));
}

#[test]
fn connections_on_which_nothing_is_asked_keep_nobody_out() {
    let sandbox = Sandbox::new();
    sandbox.recorded("true");
    let ui = sandbox.ui();
    let mut child = sandbox.start("while [ ! -e go ]; do sleep 0.01; done; echo heard");
    let mut events = ui.listen(&format!("/api/v1/runs/{}/events", ui.running()), None);
    let idle: Vec<TcpStream> =
        (0..300).map(|_| TcpStream::connect(("127.0.0.1", ui.port)).unwrap()).collect();
    for _ in 0..3 {
        assert_eq!(ui.get("/api/v1/runs").status, 200);
    }
    // A listener is not disconnected for them.
    sandbox.file("go", "");
    assert_eq!(events.until("output").data["pieces"][0]["text"], "heard\n");
    events.until("end");
    assert!(child.wait().unwrap().success());
    drop(idle);
}

#[test]
fn cached_figures_are_renewed_after_a_pause() {
    let sandbox = Sandbox::new();
    sandbox.recorded("true");
    let ui = sandbox.ui();
    assert_eq!(ui.get("/api/v1/overview").json()["runs"], 1);
    sandbox.recorded("true");
    // Longer than figures of so few runs are cached.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(ui.get("/api/v1/overview").json()["runs"], 2);
}

#[test]
fn a_match_is_marked_near_the_top_even_across_colours() {
    let sandbox = Sandbox::new();
    let script = "seq 1 9000; printf '\\033[32mserver\\033[0m ready\\n'; seq 1 9000";
    let run = sandbox.recorded(script);
    let ui = sandbox.ui();
    let page = ui.get(&format!("/runs/{run}?find=Server+Ready")).text();
    let marks = "<span class=\"f2\"><mark id=\"match\">server</mark></span><mark> ready</mark>";
    let (above, _) = page.split_once(marks).expect(&page);
    assert!(page.contains(&format!("action=\"/runs/{run}#match\"")), "{page}");
    let shown = above.rsplit_once("<ol ").unwrap().1.lines().count();
    assert!((3..100).contains(&shown), "{shown} lines above");
    let first = ui.get(&format!("/api/v1/runs/{run}/find?text=1000")).json();
    let at = first["found"][1].as_u64().unwrap();
    let next = ui.get(&format!("/api/v1/runs/{run}/find?text=1000&offset={at}&since=0")).json();
    assert_eq!(next["before"], 1, "{next}");
}

#[test]
fn an_entry_that_cannot_be_read_hides_no_other_run() {
    let sandbox = Sandbox::new();
    let runs = ["one", "two", "three"].map(|word| sandbox.recorded(&format!("echo {word}")));
    sandbox.tamper("UPDATE ledger SET body = NULL WHERE seq = 3");
    let ui = sandbox.ui();
    let page = ui.get("/runs").text();
    assert!(page.contains(&runs[0]) && page.contains(&runs[2]), "{page}");
    assert!(page.contains("A run is left out: ledger entry 3"), "{page}");
    let list = ui.get("/api/v1/runs").json();
    assert_eq!(list["runs"].as_array().unwrap().len(), 2, "{list}");
    assert_eq!(list["unreadable"].as_array().unwrap().len(), 1, "{list}");
}
