//! An agent's iteration as a conversation.

use serde_json::Value;

use crate::common::{Browser, Sandbox, Ui};

const STEPS: [&str; 3] = [
    r#"start; say 'I will <b>fix</b> the parser.'
    tool Edit '{"file_path":"src/a.rs","old_string":"one\ntwo","new_string":"one\n<i>2"}'; returned ok false
    tool Bash '{"command":"cargo test --quiet"}'; returned 'line 1\nline 2\nline 3\nline 4\nline 5\nline 6\nline 7\n3 tests failed' true
    progress 1 2; result 0.42 12000"#,
    r#"start; tool Bash '{"command":"seq 9"}'; returned '1\n2\n3\n4\n5\n6\n7\n8\n9' false
    say 'All is well.'; complete; result 0.10 500"#,
    "exit 1",
];

fn iterations(ui: &Ui) -> (String, Vec<Value>) {
    let id =
        ui.get("/api/v1/loops?kind=agent").json()["loops"][0]["id"].as_str().unwrap().to_owned();
    let document = ui.get(&format!("/api/v1/loops/{id}")).json();
    (id, document["agent"]["iterations"].as_array().unwrap().clone())
}

fn worked(sandbox: &Sandbox) {
    sandbox.agent("", &STEPS);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["-m", "2"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
}

#[test]
fn an_iteration_reads_as_a_conversation() {
    let sandbox = Sandbox::new();
    worked(&sandbox);
    let ui = sandbox.ui();
    let (_, iterations) = iterations(&ui);
    let runs: Vec<&str> = iterations.iter().map(|one| one["runId"].as_str().unwrap()).collect();
    let page = ui.get(&format!("/runs/{}", runs[0])).text();
    for part in [
        "<h2>Transcript</h2>",
        "I will &lt;b&gt;fix&lt;/b&gt; the parser.",
        "<b>Edit</b> <code>src/a.rs</code>",
        "<td class=\"del\"><code><span class=\"sign\">−</span>two</code>",
        "<td class=\"ins\"><code><span class=\"sign\">+</span>&lt;i&gt;2</code>",
        "<b>Bash</b> <code>cargo test --quiet</code>",
        // Errors are unfolded.
        " open><summary>Failed, 8 lines</summary>",
        "<dt>cost</dt><dd>$0.42</dd>",
        "<dt>tokens</dt><dd>12000</dd>",
        "<code>retake agent diff task 1</code>",
        "The prompt",
        "Do the work for $5",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(
        !page.contains("tool_use") && !page.contains("<i>") && !page.contains("<b>fix"),
        "{page}"
    );
    assert!(
        page.contains(&format!("<a rel=\"next\" href=\"/runs/{}\">iteration 2 →</a>", runs[1])),
        "{page}"
    );
    let second = ui.get(&format!("/runs/{}", runs[1])).text();
    assert!(
        second.contains(&format!("<a rel=\"prev\" href=\"/runs/{}\">← iteration 1</a>", runs[0])),
        "{second}"
    );
    // A long successful result is folded.
    assert!(second.contains("<details id=\"r1\"><summary>Result, 9 lines</summary>"), "{second}");
    // The raw output can still be read.
    let raw = ui.get(&format!("/runs/{}?view=beside", runs[0])).text();
    assert!(raw.contains("tool_use") && raw.contains("id=\"output\""), "{raw}");
    assert!(!raw.contains("<h2>Transcript</h2>"), "{raw}");
    // A part begins with a complete event, wherever it is requested to begin.
    let part = ui.get(&format!("/runs/{}?from=10", runs[0])).text();
    assert!(part.contains("I will &lt;b&gt;fix") && !part.contains("subtype"), "{part}");
    assert_eq!(ui.get(&format!("/runs/{}?from=x", runs[0])).status, 400);
}

#[test]
fn a_loop_is_a_timeline_that_leads_to_its_iterations() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    worked(&sandbox);
    let ui = sandbox.ui();
    let (id, iterations) = iterations(&ui);
    let run = iterations[1]["runId"].as_str().unwrap();
    browser.go(&format!("http://127.0.0.1:{}/?token={}", ui.port, ui.token));
    browser.go(&format!("http://127.0.0.1:{}/loops/{id}", ui.port));
    browser.until("document.querySelectorAll('.timeline-loop a').length === 2");
    browser.until("document.querySelector('.timeline-loop a').getAttribute('aria-label').startsWith('iteration 1: completed')");
    browser.picture("agent-timeline-1280-light");
    browser.eval(&format!("document.querySelector('.timeline-loop a[href=\"/runs/{run}\"]').dispatchEvent(new MouseEvent('click', {{bubbles: true}}))"));
    browser.until(&format!("location.pathname === '/runs/{run}' && document.querySelector('.transcript').textContent.includes('All is well.')"));
    browser.click("a[rel=prev]");
    browser.until(
        "document.querySelector('.transcript .failed').textContent.includes('3 tests failed')",
    );
    for (width, theme) in [(1280, "light"), (390, "dark")] {
        browser.look(width, theme);
        assert_eq!(
            browser.eval("document.documentElement.scrollWidth <= innerWidth"),
            true,
            "{width}"
        );
        browser.picture(&format!("transcript-{width}-{theme}"));
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_long_loop_is_shown_page_by_page() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; result 0.50 100"]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["-m", "52", "--no-delay"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let ui = sandbox.ui();
    let (id, iterations) = iterations(&ui);
    assert_eq!(iterations.len(), 52);
    let numbers = |page: &str| -> Vec<u32> {
        let rows = page.split("<tr data-id=\"").skip(1);
        rows.filter_map(|row| row.split('"').next()?.parse().ok()).collect()
    };
    // The totals on each page include all iterations; the first page has rows for the newest fifty.
    let newest = ui.get(&format!("/loops/{id}")).text();
    let older = ui.get(&format!("/loops/{id}?before=3")).text();
    assert_eq!(numbers(&newest), (3..=52).rev().collect::<Vec<u32>>(), "{newest}");
    assert_eq!(numbers(&older), [2, 1], "{older}");
    for page in [&newest, &older] {
        assert!(page.contains("<h2>Cost</h2><p class=\"big\">$26.00</p>"), "{page}");
        assert!(page.contains("<h2>Iterations</h2><p class=\"big\">52</p>"), "{page}");
    }
    assert!(newest.contains(&format!("href=\"/loops/{id}?before=3\">Older</a>")), "{newest}");
    assert!(!older.contains(">Older</a>"), "{older}");
    assert!(older.contains(&format!("href=\"/loops/{id}\">Newest</a>")), "{older}");
    // The API returns all iterations, or a part.
    let part = ui.get(&format!("/api/v1/loops/{id}?limit=2&before=4")).json();
    let part = &part["agent"];
    assert_eq!(part["iterations"].as_array().unwrap().len(), 2, "{part}");
    assert_eq!((&part["iterations"][0]["number"], &part["next"]), (&2.into(), &2.into()));
    assert_eq!(part["totals"]["completed"], 52, "{part}");
    assert_eq!(ui.get(&format!("/api/v1/loops/{id}?limit=0")).status, 400);
    // The terminal shows the same totals.
    let shown = |words: &[&str]| {
        let called = sandbox.retake(&[&["agent", "show", "task"], words].concat());
        assert_eq!(called.code, 0, "{}", called.snapshot());
        called.stdout
    };
    let last = shown(&["--last", "2"]);
    assert!(last.contains("iterations  52: 52 completed\n"), "{last}");
    assert!(last.contains("spent       $26.00, 5200 tokens"), "{last}");
    assert!(last.contains("iterations 51 to 52\n"), "{last}");
    assert!(shown(&["7"]).contains("iteration"), "any of them");
    let all: Value = serde_json::from_str(&shown(&["--json"])).unwrap();
    assert_eq!(all["iterations"].as_array().unwrap().len(), 52);
    assert_eq!(all["summary"]["successfulIterations"], 52);
}

#[test]
fn changes_of_an_iteration_come_from_its_checkpoints() {
    let sandbox = Sandbox::new();
    sandbox.git(&["init", "-q", "-b", "main"]);
    sandbox.file("kept.txt", "the same\n");
    sandbox.file("changed.txt", "one\ntwo\nthree\n");
    sandbox.git(&["add", "."]);
    sandbox.git(&["commit", "-q", "-m", "start"]);
    sandbox.agent(
        "",
        &[
            "start; printf 'one\\n<b>2\\nthree\\n' > changed.txt; echo fresh > added.txt; progress 1 3; result",
            "start; rm added.txt; progress 2 3; result",
            "start; say nothing; complete; result",
        ],
    );
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["-m", "3", "--checkpoint"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let ui = sandbox.ui();
    let (_, iterations) = iterations(&ui);
    let page = |at: usize| {
        let run = iterations[at]["runId"].as_str().unwrap();
        let page = ui.get(&format!("/runs/{run}")).text();
        page.split("<section class=\"changed-files\">").nth(1).expect(&page).to_owned()
    };
    let first = page(0);
    for part in [
        "<code>changed.txt</code> <span class=\"good\">+1</span> <span class=\"bad\">−1</span>",
        "<td class=\"del\"><code><span class=\"sign\">−</span>two</code>",
        "<td class=\"ins\"><code><span class=\"sign\">+</span>&lt;b&gt;2</code>",
        "<code>added.txt</code> <span class=\"good\">+1</span>",
    ] {
        assert!(first.contains(part), "{part}: {first}");
    }
    assert!(!first.contains("kept.txt"), "{first}");
    let second = page(1);
    assert!(
        second.contains("<code>added.txt</code>") && !second.contains("changed.txt"),
        "{second}"
    );
    assert!(page(2).contains("No file differs between its checkpoints."));
    // Missing checkpoints are not an error of the page.
    sandbox.git(&["reflog", "expire", "--expire=now", "--all"]);
    let refs = sandbox.git(&["for-each-ref", "--format=%(refname)", "refs/retake"]);
    for name in refs.lines() {
        sandbox.git(&["update-ref", "-d", name]);
    }
    sandbox.git(&["gc", "-q", "--prune=now"]);
    drop(ui);
    let ui = sandbox.ui();
    let run = iterations[0]["runId"].as_str().unwrap();
    let page = ui.get(&format!("/runs/{run}"));
    assert_eq!(page.status, 200);
    assert!(page.text().contains("The checkpoints cannot be compared: git: "), "{}", page.text());
    // Nothing is left beside the record.
    let left = std::fs::read_dir(sandbox.store()).unwrap().flatten();
    let left: Vec<_> =
        left.filter(|one| one.file_name().to_string_lossy().starts_with("ui-")).collect();
    assert!(left.is_empty(), "{left:?}");
}
