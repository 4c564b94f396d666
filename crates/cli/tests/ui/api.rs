//! The API matches its documentation.

use std::collections::BTreeSet;

use serde_json::json;

use crate::common::Sandbox;
use crate::pages::recorded;

/// From `docs/api.md`: the path of each request, and the keys of its response.
fn described() -> Vec<(String, String, BTreeSet<String>)> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md"));
    let text = text.unwrap();
    let sections = text.split("\n### ").skip(1);
    sections
        .map(|section| {
            let heading = section.lines().next().unwrap().trim_matches('`');
            let (method, path) = heading.split_once(' ').unwrap();
            let keys =
                section.lines().filter_map(|line| line.strip_prefix("- `")?.split('`').next());
            (method.to_owned(), path.to_owned(), keys.map(str::to_owned).collect())
        })
        .collect()
}

#[test]
fn the_api_is_what_its_description_says() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&[]).code, 0);
    let run = recorded(&sandbox, "echo hello");
    let ui = sandbox.ui();
    let id = ui.get("/api/v1/loops").json()["loops"][0]["id"].as_str().unwrap().to_owned();
    let mut seen = 0;
    for (method, path, keys) in described() {
        let id = if path.contains("/loops/") { &id } else { &run };
        let mut address = path.replace("ID", id).replace("NAME", "task");
        if path.ends_with("/search") {
            address += "?q=hello";
        }
        if path.ends_with("/find") || path.ends_with("/count") {
            address += "?text=hello";
        }
        if path.ends_with("/events") {
            let mut events = ui.listen(&address, None);
            let mut names = BTreeSet::new();
            while let Some(told) = events.next() {
                names.insert(told.name);
            }
            assert!(names.contains("end") && names.is_subset(&keys), "{path}: {names:?}");
            seen += 1;
            continue;
        }
        let answer = match method.as_str() {
            "GET" => ui.get(&address),
            _ => ui.post(&address, &json!({"action": "stop"})),
        };
        if path.ends_with("/actions") {
            // This loop has ended; the browser tests control a running one.
            assert_eq!(answer.status, 409, "{}", answer.text());
        } else if path.ends_with("/again") || path.ends_with("/apply") {
            // This server may not run commands; one that may is tested elsewhere.
            assert_eq!(answer.status, 403, "{}", answer.text());
        } else {
            assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text());
            let document = answer.json();
            let given: BTreeSet<String> = document.as_object().unwrap().keys().cloned().collect();
            assert_eq!(given, keys, "{method} {path}");
        }
        seen += 1;
    }
    // Every route of the server is documented.
    let routes = include_str!("../../../web/src/server.rs");
    let described: BTreeSet<String> = described()
        .into_iter()
        .map(|(_, path, _)| path.replace("ID", "{id}").replace("NAME", "{name}"))
        .collect();
    let served: BTreeSet<String> = routes
        .match_indices("\"/api/v1")
        .map(|(at, _)| routes[at + 1..].split('"').next().unwrap().to_owned())
        .collect();
    assert_eq!(described, served);
    assert_eq!(seen, 19);
}
