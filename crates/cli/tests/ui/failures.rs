//! A failed run first says why, and the page that compares runs.

use serde_json::json;

use crate::common::Sandbox;

/// What `cargo test` prints, with a test that fails and an error on stderr.
const FAILING: &str = r#"cat <<'END'
running 2 tests
test cart::adds ... ok
test cart::<b>refunds ... FAILED

failures:

---- cart::<b>refunds stdout ----
thread 'cart::<b>refunds' panicked at src/cart.rs:3:5:
refund of 3 is 2

failures:
    cart::<b>refunds

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

END
echo starting >&2; echo 'error: test failed, to rerun pass `--lib` <script>' >&2; exit 101
"#;

const PASSING: &str = r#"cat <<'END'
running 2 tests
test cart::adds ... ok
test cart::<b>refunds ... ok

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

END
"#;

/// Runs the current suite.
fn suite(sandbox: &Sandbox, script: &str, more: &[&str]) -> String {
    sandbox.file("suite.sh", script);
    let called = sandbox.retake(
        &[&["exec", "--json", "--tests", "--track"], more, &["--", "sh", "suite.sh"]].concat(),
    );
    called.json()["id"].as_str().unwrap().to_owned()
}

/// The addresses that a page links to, as a browser reads them.
fn links(page: &str) -> Vec<String> {
    let parts = page.split(" href=\"").skip(1).filter_map(|part| part.split('"').next());
    parts.map(|address| address.replace("&amp;", "&").replace("&#39;", "'")).collect()
}

#[test]
fn a_failed_run_says_why_before_anything_else() {
    let sandbox = Sandbox::new();
    let passed = suite(&sandbox, PASSING, &["--env", "LEVEL=1"]);
    sandbox.retake(&["exec", "--track", "--", "sh", "-c", "echo changed > part.txt"]);
    let failed = suite(&sandbox, FAILING, &["--env", "LEVEL=2"]);
    let ui = sandbox.ui();
    let page = ui.get(&format!("/runs/{failed}")).text();
    let (why, rest) = page.split_once("id=\"output\"").unwrap();
    let (_, why) = why.split_once("Why it failed").expect("it says why");
    assert!(!rest.contains("Why it failed"));
    // The test, with its most relevant line; escaped, and linked to its page and into the log.
    assert!(why.contains("1 of 2 tests failed"), "{why}");
    assert!(why.contains("refund of 3 is 2"), "{why}");
    assert!(why.contains("cart::&lt;b&gt;refunds") && !page.contains("<b>"), "{why}");
    let links = links(why);
    assert!(links.contains(&"/test?name=cart%3A%3A%3Cb%3Erefunds".to_owned()), "{links:?}");
    let found = links.iter().find(|link| link.contains("find=cart")).unwrap();
    let shown = ui.get(found.split('#').next().unwrap()).text();
    assert!(shown.contains("<mark id=\"match\">cart::&lt;b&gt;refunds</mark>"), "{shown}");
    // The first errors, each with its position.
    assert!(why.contains("error: test failed, to rerun pass `--lib` &lt;script&gt;"), "{why}");
    let place = links.iter().find(|link| link.contains("stderr=2#line")).unwrap();
    let shown = ui.get(place.split('#').next().unwrap()).text();
    let line = "<li class=\"sel\" id=\"line\">error: test failed, to rerun pass";
    assert!(shown.contains(line), "{shown}");
    // The last success, and the changes since.
    assert!(why.contains("Last passed") && links.contains(&format!("/runs/{passed}")), "{why}");
    for changed in ["environment LEVEL", "<del>1</del> → <ins>2</ins>", "part.txt"] {
        assert!(why.contains(changed), "{changed}: {why}");
    }
    // The neighbouring runs, and the command that repeats it.
    let earlier = format!("<a rel=\"prev\" href=\"/runs/{passed}\"");
    assert!(page.contains(&earlier), "{page}");
    assert!(page.contains(&format!("retake again {}", &failed[failed.len() - 8..])), "{page}");
    assert!(!page.contains("data-again"), "nothing is run by a server that may not");
    let page = ui.get(&format!("/runs/{passed}")).text();
    assert!(page.contains(&format!("<a rel=\"next\" href=\"/runs/{failed}\"")), "{page}");
    assert!(!page.contains("Why it failed"), "{page}");
}

#[test]
fn a_failure_without_an_earlier_pass_or_a_reported_error_says_so() {
    let sandbox = Sandbox::new();
    // Another command, and the same one in another directory, do not matter here.
    sandbox.retake(&["exec", "--", "true"]);
    std::fs::create_dir(sandbox.project().join("below")).unwrap();
    sandbox.file("below/suite.sh", "exit 0");
    sandbox.retake(&["exec", "--cwd", "below", "--", "sh", "suite.sh"]);
    let run = suite(&sandbox, "echo one; echo two; exit 3", &[]);
    let ui = sandbox.ui();
    let page = ui.get(&format!("/runs/{run}")).text();
    assert!(page.contains("No earlier run of this command in this directory passed"), "{page}");
    assert!(page.contains("The output ends with"), "{page}");
    assert!(!page.contains("rel=\"prev\"") && !page.contains("rel=\"next\""), "{page}");
    // Of a large output only the ends are searched, and the page says so.
    let large =
        "seq 1 300000; echo 'error: in the middle'; seq 1 300000; echo 'fatal: at the end'; exit 1";
    let run = suite(&sandbox, large, &[]);
    let page = ui.get(&format!("/runs/{run}")).text();
    let why = page.split("Why it failed").nth(1).unwrap().split("id=\"output\"").next().unwrap();
    assert!(why.contains("fatal: at the end") && !why.contains("in the middle"), "{why}");
    assert!(why.contains("only its beginning and its end"), "{why}");
}

#[test]
fn two_runs_are_compared_with_their_output_and_several_in_a_table() {
    let sandbox = Sandbox::new();
    let passed = suite(&sandbox, PASSING, &["--label", "at=one"]);
    let failed = suite(&sandbox, FAILING, &["--label", "at=two"]);
    let third = suite(&sandbox, FAILING, &["--label", "at=two"]);
    let ui = sandbox.ui();
    let page = ui.get(&format!("/compare?run={passed}&run={failed}")).text();
    assert!(page.contains("2 runs compared"), "{page}");
    for part in [
        "<th scope=\"row\">outcome <span class=\"hidden\">(differs)</span></th>",
        "exit 101",
        "2 passed, 0 failed, 0 skipped",
        "1 passed, 1 failed, 0 skipped",
        "<th scope=\"row\">label at <span class=\"hidden\">(differs)</span></th>",
        "<span class=\"faint\">passed → </span><span>failed</span>",
        "<td class=\"ins\"><code><span class=\"sign\">+</span>test cart::&lt;b&gt;refunds ... FAILED",
        "<td class=\"del\"><code><span class=\"sign\">−</span>test cart::&lt;b&gt;refunds ... ok",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("<b>") && !page.contains("<script>"), "{page}");
    let same = ui.get(&format!("/compare?run={failed}&run={third}")).text();
    assert!(!same.contains("<th scope=\"row\">outcome <span"), "{same}");
    assert_eq!(same.matches("<p class=\"faint\">The same.</p>").count(), 2, "{same}");
    let several = ui.get(&format!("/compare?run={passed}&run={failed}&run={third}")).text();
    assert!(several.contains("3 runs compared"), "{several}");
    assert_eq!(several.matches("exit 101").count(), 2, "{several}");
    assert!(several.contains(&format!("/compare?run={passed}&amp;run={third}")), "{several}");
    // A message says what cannot be compared.
    assert!(ui.get("/compare").text().contains("Compare runs"));
    assert_eq!(ui.get("/compare?run=last&run=00000000").status, 404);
    let many = format!("/compare?{}", vec![format!("run={passed}"); 13].join("&"));
    assert_eq!(ui.get(&many).status, 400);
}

#[test]
fn outputs_that_are_lost_or_too_large_do_not_hide_the_rest() {
    let sandbox = Sandbox::new();
    let large = suite(&sandbox, "seq 1 900000", &[]);
    let small = suite(&sandbox, "seq 1 10; exit 1", &[]);
    let ui = sandbox.ui();
    let page = ui.get(&format!("/compare?run={large}&run={small}")).text();
    assert!(page.contains("too large to compare here"), "{page}");
    let spool = sandbox.project().join(format!(".agent/data/spool/{large}.stdout"));
    std::fs::remove_file(spool).unwrap();
    let answer = ui.get(&format!("/compare?run={large}&run={small}"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.text().contains("2 runs compared") && answer.text().contains("note bad"));
    assert_eq!(ui.get("/api/v1/runs?limit=1").json()["runs"][0]["id"], json!(small));
}
