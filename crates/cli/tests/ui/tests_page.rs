//! The list of tests, and the page of one.

use serde_json::{Value, json};

use crate::common::{Sandbox, Ui, eventually};

/// Runs a suite that prints what `cargo test` prints; a letter for each test: `.` passes, `x` fails.
fn suite(sandbox: &Sandbox, names: &[&str], letters: &str) -> String {
    let mut text = format!("running {} tests\n", names.len());
    let mut failed = Vec::new();
    for (name, letter) in names.iter().zip(letters.chars()) {
        let word = if letter == 'x' { "FAILED" } else { "ok" };
        text += &format!("test {name} ... {word}\n");
        failed.extend((letter == 'x').then_some(*name));
    }
    if !failed.is_empty() {
        text += "\nfailures:\n";
        for name in &failed {
            text += &format!(
                "\n---- {name} stdout ----\nthread '{name}' panicked at src/lib.rs:1:1:\n{name} is <b>wrong\n"
            );
        }
        text += &format!("\nfailures:\n    {}\n", failed.join("\n    "));
    }
    let (word, passed) =
        (if failed.is_empty() { "ok" } else { "FAILED" }, names.len() - failed.len());
    text += &format!(
        "\ntest result: {word}. {passed} passed; {} failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\n",
        failed.len()
    );
    sandbox.file("out.txt", &text);
    let script = format!("cat out.txt; exit {}", i32::from(!failed.is_empty()));
    let called = sandbox.retake(&["exec", "--json", "--tests", "--", "sh", "-c", &script]);
    called.json()["id"].as_str().unwrap().to_owned()
}

const NAMES: [&str; 4] = ["cart::adds", "cart::<i>refunds", "net::retries", "z::steady"];

/// Waits until the list has counted this many results of the first test.
fn counted(ui: &Ui, runs: usize) {
    eventually("the count", || {
        let tests = ui.get("/api/v1/tests?sort=name").json();
        tests["tests"][0]["runs"] == json!(runs)
    });
}

fn names(list: &Value) -> Vec<&str> {
    list["tests"].as_array().unwrap().iter().map(|test| test["name"].as_str().unwrap()).collect()
}

#[test]
fn tests_are_listed_with_their_history_and_lead_to_what_changed() {
    let sandbox = Sandbox::new();
    let runs: Vec<String> = ["....", "..x.", "....", "..x.", ".xx.", ".x.."]
        .map(|now| suite(&sandbox, &NAMES, now))
        .into();
    let ui = sandbox.ui();
    let list = ui.get("/api/v1/tests").json();
    // Failing tests come first, then flaky ones.
    assert_eq!(names(&list), ["cart::<i>refunds", "net::retries", "cart::adds", "z::steady"]);
    let (refunds, retries) = (&list["tests"][0], &list["tests"][1]);
    assert_eq!(refunds["failingSince"]["runId"], json!(runs[4]), "{refunds}");
    assert_eq!(refunds["lastPassed"]["runId"], json!(runs[3]), "{refunds}");
    assert_eq!((&refunds["status"], &refunds["failed"]), (&json!("failed"), &json!(2)));
    assert_eq!((&refunds["flakyPercent"], &refunds["flips"]), (&json!(0), &json!(1)));
    assert_eq!((&retries["flips"], &retries["flakyPercent"]), (&json!(4), &json!(80)), "{retries}");
    let page = ui.get("/tests").text();
    assert!(page.contains("cart::&lt;i&gt;refunds") && !page.contains("<i>"), "{page}");
    let changed = format!("/compare?run={}&amp;run={}", runs[3], runs[4]);
    assert!(page.contains(&changed), "{changed}: {page}");
    assert!(page.contains("aria-label=\"2 of the last 6 results are failures\""), "{page}");
    assert_eq!(page.matches("class=\"r-failed\"").count(), 5, "{page}");
    for (query, expected) in [
        ("show=failing", vec!["cart::<i>refunds"]),
        ("show=flaky", vec!["net::retries"]),
        ("name=CART", vec!["cart::<i>refunds", "cart::adds"]),
        ("sort=name&name=a", vec!["cart::<i>refunds", "cart::adds", "z::steady"]),
        ("skip=3", vec!["z::steady"]),
        ("show=slower", vec![]),
    ] {
        let list = ui.get(&format!("/api/v1/tests?{query}")).json();
        assert_eq!(names(&list), expected, "{query}");
    }
    assert!(ui.get("/tests?show=slower").text().contains("No slower test among 4"));
    for bad in ["show=odd", "sort=odd", "skip=x"] {
        let answer = ui.get(&format!("/tests?{bad}"));
        assert!(answer.status == 400 && answer.text().contains(bad), "{bad}");
    }
    // A new run is counted.
    suite(&sandbox, &NAMES, "....");
    counted(&ui, 7);
    assert_eq!(names(&ui.get("/api/v1/tests?show=failing").json()), [""; 0]);
}

#[test]
fn a_test_has_a_page_with_its_results_and_how_it_failed() {
    let sandbox = Sandbox::new();
    let runs: Vec<String> = ["....", ".x..", ".x.."].map(|now| suite(&sandbox, &NAMES, now)).into();
    let ui = sandbox.ui();
    let page = ui.get("/test?name=cart%3A%3A%3Ci%3Erefunds").text();
    for part in [
        "cart::&lt;i&gt;refunds",
        "Last failure",
        "is &lt;b&gt;wrong",
        "failing since",
        "3, of which 2 failed",
        &format!("/compare?run={}&amp;run={}", runs[0], runs[1]),
        &format!("<a href=\"/runs/{}\"", runs[2]),
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("<i>") && !page.contains("<b>"), "{page}");
    let rows = page.split("class=\"results-table\"").nth(1).unwrap();
    assert_eq!(rows.matches("<tr>").count(), 4, "{rows}");
    let steady = ui.get("/test?name=z%3A%3Asteady").text();
    assert!(!steady.contains("How it failed last"), "{steady}");
    let missing = ui.get("/test?name=nothing");
    assert!(missing.status == 404 && missing.text().contains("no recorded run names a test"));
    assert_eq!(ui.get("/test").status, 404);
}

#[test]
fn where_there_is_no_test_the_page_says_how_to_get_some() {
    let sandbox = Sandbox::new();
    sandbox.retake(&["exec", "--", "true"]);
    let ui = sandbox.ui();
    let page = ui.get("/tests").text();
    assert!(page.contains("retake exec --tests --"), "{page}");
}

#[test]
fn lists_count_the_tests_of_a_run_and_the_run_names_them() {
    let sandbox = Sandbox::new();
    let run = suite(&sandbox, &NAMES, ".x..");
    let ui = sandbox.ui();
    let own = ui.get(&format!("/api/v1/runs/{run}")).json();
    assert_eq!(own["effects"]["testResults"]["details"].as_array().unwrap().len(), 4);
    let (list, overview) = (ui.get("/api/v1/runs").json(), ui.get("/api/v1/overview").json());
    let search = ui.get("/api/v1/search?q=running").json();
    for listed in [&list["runs"][0], &overview["recentFailures"][0], &search["hits"][0]["run"]] {
        // A thousand tests of each run would make a list of megabytes.
        let mut expected = own.clone();
        expected["effects"]["testResults"].as_object_mut().unwrap().remove("details");
        expected.as_object_mut().unwrap().remove("children");
        assert_eq!(*listed, expected);
    }
    for address in
        ["/runs?col=tests", "/runs?col=tests&status=failed", "/runs?col=tests&sort=slowest"]
    {
        let page = ui.get(address).text();
        assert!(page.contains(">3 of 4<"), "{address}: {page}");
    }
}
