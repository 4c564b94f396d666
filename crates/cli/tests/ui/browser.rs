//! The page in a real browser: what a person sees and does. Screenshots are kept in
//! `target/ui-screenshots`, for people.
use std::process::Stdio;

use crate::common::gallery_env as gallery;
use crate::common::{Browser, RETAKE, Sandbox, Ui, eventually};

fn enter(browser: &Browser, ui: &Ui) {
    browser.go(&format!("http://127.0.0.1:{}/?token={}", ui.port, ui.token));
    assert_eq!(browser.eval("location.search"), "");
}

fn address(ui: &Ui, path: &str) -> String {
    format!("http://127.0.0.1:{}{path}", ui.port)
}

fn exec(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let called = sandbox.retake(&[&["exec", "--json"], arguments].concat());
    called.json()["id"].as_str().unwrap().to_owned()
}

fn in_background(sandbox: &Sandbox, script: &str) -> std::process::Child {
    let mut command = sandbox.command(RETAKE);
    command.args(["exec", "--", "sh", "-c", script]).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// No content overflows: a page never scrolls sideways.
fn fits(browser: &Browser) {
    assert_eq!(
        browser.eval("document.documentElement.scrollWidth <= innerWidth"),
        true,
        "{} is wider than the window",
        browser.eval("location.pathname")
    );
}

#[test]
fn list_search_open_and_back() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    for n in 0..60 {
        let script = format!("echo case {n} started; echo warning {n} >&2; exit {}", n % 7 / 6);
        exec(&sandbox, &["--", "sh", "-c", &script]);
    }
    let run =
        exec(&sandbox, &["--label", "nightly=yes", "--", "echo", "the needle in the haystack"]);
    sandbox.retake(&["runs", "list"]);
    let ui = sandbox.ui();
    enter(&browser, &ui);
    browser.until("document.querySelectorAll('.tile').length === 5");
    browser.keys("r");
    browser.until(
        "location.pathname === '/runs' && document.querySelectorAll('#rows tr').length >= 50",
    );
    // Older ones load on scrolling.
    browser.eval("scrollTo(0, document.body.scrollHeight)");
    browser.until("document.querySelectorAll('#rows tr').length === 61");
    browser.eval("scrollTo(0, 0)");
    // j twice, k once, Enter: the second row.
    browser.keys("jjk");
    browser.until("document.querySelector('#rows tr').classList.contains('chosen')");
    browser.keys("/");
    browser.until("document.activeElement.id === 'search'");
    browser.write("#search", "needl");
    browser.until("document.querySelectorAll('.hits li').length === 1");
    assert_eq!(browser.eval("document.querySelector('mark').textContent"), "needle");
    assert_eq!(browser.eval("location.search"), "?q=needl");
    browser.picture("search-1280-light");
    browser.click(".hits a");
    browser.until(&format!("location.pathname === '/runs/{run}'"));
    assert!(
        browser
            .eval("document.querySelector('.log').textContent")
            .as_str()
            .unwrap()
            .contains("haystack")
    );
    browser.back();
    browser.until(
        "location.search === '?q=needl' && document.querySelectorAll('.hits li').length === 1",
    );
    browser.go(&address(&ui, "/runs?status=failed"));
    browser.until("document.querySelectorAll('#rows tr').length === 8");
    browser.keys("?");
    browser.until("document.querySelector('#help').open");
    browser.picture("help-1280-light");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn back_leads_to_the_same_row_and_new_runs_are_offered() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    let mut store = sandbox.gallery_store();
    gallery::ordinary(&mut store);
    drop(store);
    let ui = sandbox.ui();
    enter(&browser, &ui);
    browser.go(&address(&ui, "/runs"));
    let rows = "document.querySelectorAll('#rows tr')";
    for most in [100, 150, 200] {
        browser.eval("scrollTo(0, document.body.scrollHeight)");
        browser.until(&format!("{rows}.length >= {most}"));
    }
    browser.eval(&format!("{rows}[150].scrollIntoView({{block: 'center'}})"));
    let id = browser.eval(&format!("{rows}[150].dataset.id"));
    let row = format!("document.querySelector('#rows [data-id=\"{}\"]')", id.as_str().unwrap());
    let top = browser.eval(&format!("{row}.getBoundingClientRect().top"));
    browser.click(&format!("#rows [data-id=\"{}\"] a", id.as_str().unwrap()));
    browser.until(&format!("location.pathname === '/runs/{}'", id.as_str().unwrap()));
    // In the meantime the list grows above.
    exec(&sandbox, &["--", "true"]);
    browser.back();
    browser.until(&format!("location.pathname === '/runs' && !!{row}"));
    // Pages scroll by whole pixels, and rows are not whole pixels high.
    browser.until(&format!("Math.abs({row}.getBoundingClientRect().top - {top}) <= 1"));
    browser.until(&format!("{row}.classList.contains('chosen')"));
    // The link to the list itself leads to its beginning.
    browser.click("nav a[href='/runs']");
    browser.until(&format!("scrollY === 0 && {rows}.length >= 50 && !{row}"));
    let first = "document.querySelector('#rows a').textContent";
    let before = browser.eval(first);
    exec(&sandbox, &["--", "echo", "brand new"]);
    browser.until("document.querySelector('#news').textContent === '1 new run'");
    assert_eq!(browser.eval(first), before);
    browser.picture("news-1280-light");
    browser.click("#news");
    browser.until(&format!("{first}.includes('brand new')"));
    // A displayed time is updated.
    browser.until("/^[3-9]s ago$/.test(document.querySelector('#rows time').textContent)");
    // A running one is shown as ended once it is.
    let mut child = in_background(&sandbox, "while [ ! -e go ]; do sleep 0.02; done");
    ui.running();
    browser.go(&address(&ui, "/runs?kind=exec"));
    let badge = "document.querySelector('#rows .badge').textContent";
    browser.until(&format!("{badge}.includes('running')"));
    sandbox.file("go", "");
    assert!(child.wait().unwrap().success());
    browser.until(&format!("{badge}.includes('ok')"));
    browser.until("document.querySelector('#news').hidden");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_running_run_is_followed_across_a_restart_of_the_server() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    exec(&sandbox, &["--", "true"]);
    let ui = sandbox.ui();
    let script =
        "echo first; for n in 1 2; do while [ ! -e go$n ]; do sleep 0.02; done; echo after$n; done";
    let mut child = in_background(&sandbox, script);
    eventually("the run", || ui.get("/api/v1/runs?status=running").json()["runs"][0].is_object());
    let id = ui.get("/api/v1/runs?status=running").json()["runs"][0]["id"].clone();
    enter(&browser, &ui);
    browser.go(&address(&ui, &format!("/runs/{}", id.as_str().unwrap())));
    let log = "document.querySelector('[data-stream=stdout] .log').textContent";
    browser.until(&format!("{log}.includes('first')"));
    browser.until("document.querySelector('.badge').textContent.includes('running')");
    sandbox.file("go1", "");
    browser.until(&format!("{log}.includes('after1')"));
    let port = ui.port;
    drop(ui);
    browser.until("document.querySelector('#notice').textContent.includes('does not answer')");
    browser.write("#inside input", "first\u{e007}");
    browser.until("document.querySelector('#notice').textContent.includes('still running?')");
    sandbox.file("go2", "");
    assert!(child.wait().unwrap().success());
    let _ui = sandbox.ui_at(port);
    browser.until(&format!("{log}.trim() === 'first\\nafter1\\nafter2'"));
    browser.until("document.querySelector('.badge').textContent.includes('ok')");
    browser.until("!document.querySelector('#notice').textContent.includes('Trying')");
}

#[test]
fn the_page_follows_the_end_of_fast_output_unless_the_reader_scrolled_up() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    exec(&sandbox, &["--", "true"]);
    let ui = sandbox.ui();
    let script = "echo first; wait() { while [ ! -e $1 ]; do sleep 0.02; done; }; \
                  wait go1; seq 1 4000000; wait go2; seq 1 500000; wait go3; echo the very end";
    let mut child = in_background(&sandbox, script);
    eventually("the run", || ui.get("/api/v1/runs?status=running").json()["runs"][0].is_object());
    let id = ui.get("/api/v1/runs?status=running").json()["runs"][0]["id"].clone();
    enter(&browser, &ui);
    let log = "document.querySelector('[data-stream=stdout] .log')";
    browser.go(&address(&ui, &format!("/runs/{}", id.as_str().unwrap())));
    browser.until(&format!("{log}.textContent.includes('first')"));
    sandbox.file("go1", "");
    browser.until(&format!("{log}.textContent.endsWith('\\n4000000\\n')"));
    // Four windows, each with the event that filled it; not the 30 MB that were written.
    let length = browser.eval(&format!("{log}.textContent.length"));
    assert!(length.as_u64().unwrap() < 1_000_000, "{length}");
    let extent = "document.querySelector('[data-stream=stdout] .extent').textContent";
    assert!(browser.eval(extent).as_str().unwrap().starts_with("the last "));
    browser.eval(&format!("{log}.scrollTop = {log}.scrollHeight / 2"));
    let above = format!("{log}.textContent.includes('\\n3999000\\n')");
    browser.until(&above);
    sandbox.file("go2", "");
    browser.until(&format!("/ at .* of 3[0-9.]+ MiB/.test({extent})"));
    assert_eq!(browser.eval(&above), true);
    sandbox.file("go3", "");
    assert!(child.wait().unwrap().success());
    browser.until("document.querySelector('.badge').textContent.includes('ok')");
    browser.keys("G");
    browser.until(&format!("{log}.textContent.endsWith('\\nthe very end\\n')"));
    // A position in the output has an address.
    browser.eval("(() => { const slider = document.querySelector('.moves input'); slider.value = 500; slider.dispatchEvent(new Event('change')); })()");
    browser.until("new URLSearchParams(location.search).has('out')");
    let place = browser.eval("new URLSearchParams(location.search).get('out')");
    let (id, place) = (id.as_str().unwrap(), place.as_str().unwrap());
    let window = ui.get(&format!("/api/v1/runs/{id}/logs?offset={place}&limit=100")).json();
    let line = window["pieces"][0]["text"].as_str().unwrap().lines().next().unwrap().to_owned();
    let here = browser.eval("location.href");
    browser.go(here.as_str().unwrap());
    // Not at the end, as without a position: this line is visible first.
    browser.until(&format!(
        "(() => {{ const box = {log}.getBoundingClientRect(); return document.caretRangeFromPoint(box.left + 20, box.top + 14).startContainer.data.includes('{line}\\n'); }})()"
    ));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Waits in each iteration for a file `go-N`.
const STEP: &str = "start; tool Bash '{\"command\":\"cargo test\"}'; returned 'all passed' false; \
                    say 'working on it'; touch \"$dir/at-$n\"; \
                    while [ ! -e \"$dir/go-$n\" ]; do sleep 0.02; done; progress 1 9; result 0.42 12000";

#[test]
fn an_agent_is_followed_told_and_stopped() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    sandbox.agent("", &[STEP]);
    sandbox.workspace("task", &[]);
    let mut running = sandbox.start_agent(&[]);
    sandbox.awaited("at-1");
    let ui = sandbox.ui();
    enter(&browser, &ui);
    browser.go(&address(&ui, "/loops"));
    browser.click("#rows a");
    browser.until("location.pathname.startsWith('/loops/0')");
    browser.until("document.querySelector('#feed').textContent.includes('cargo test')");
    browser.until("document.querySelector('#feed').textContent.includes('working on it')");
    browser.until("document.querySelector('.steps tbody').children.length === 1");
    // The next iteration appears by itself.
    std::fs::write(sandbox.agent_dir().join("go-1"), "").unwrap();
    browser.until("document.querySelector('.steps tbody').children.length === 2");
    browser.until("document.querySelector('.steps').textContent.includes('$0.42')");
    sandbox.awaited("at-2");
    browser.until("document.querySelector('#feed').textContent.split('working on it').length >= 2");
    browser.write("#tell input", "mind <b>the gap</b>");
    browser.click("#tell button");
    browser.until("document.querySelector('#notice').textContent.includes('next prompt')");
    browser.picture("agent-live-1280-light");
    browser.click("button[data-action=pause]");
    browser.until("!!document.querySelector('button[data-action=resume]')");
    browser.click("button[data-action=resume]");
    browser.until("!!document.querySelector('button[data-action=pause]')");
    browser.click("button[data-action=stop]");
    browser.until(
        "document.querySelector('#actions').textContent.includes('stops after this iteration')",
    );
    assert!(!running.ended());
    std::fs::write(sandbox.agent_dir().join("go-2"), "").unwrap();
    let called = running.end();
    assert!(called.stdout.contains("stopped on request"), "{}", called.snapshot());
    browser.until("document.querySelector('#head').textContent.includes('stopped')");
    assert_eq!(sandbox.stop_reason(), "stopped");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn hostile_output_is_harmless() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    let script = r#"printf '<script>window.caught=1</script><img src=x onerror="window.caught=2">\n'
        printf '\033[1;31mred\033[0m \033[42mgreen ground\033[0m \033]0;title\007\033[2J\033]8;;javascript:alert(1)\033\\link\n'
        printf 'right\342\200\256left\n'
        head -c 5000000 /dev/zero | tr '\0' x; echo; echo the end"#;
    let run = exec(&sandbox, &["--", "sh", "-c", script]);
    exec(&sandbox, &["--", "echo", "<script>window.caught=3</script>"]);
    let ui = sandbox.ui();
    enter(&browser, &ui);
    for path in ["/runs", "/", &format!("/runs/{run}"), &format!("/runs/{run}?view=merged")] {
        browser.go(&address(&ui, path));
        browser.until("document.readyState === 'complete'");
        assert_eq!(browser.eval("window.caught === undefined"), true, "{path}");
        assert_eq!(
            browser.eval("document.querySelectorAll('main script, main img').length"),
            0,
            "{path}"
        );
        fits(&browser);
    }
    let text = "document.querySelector('.log').textContent";
    browser.until(&format!("{text}.includes('the end')"));
    // To the beginning of a line of five megabytes and through it, without keeping all of it.
    browser.keys("g");
    browser.until(&format!("{text}.includes('window.caught=1')"));
    assert_eq!(browser.eval(&format!("{text}.includes('<U+202E>')")), true);
    let colour = "getComputedStyle(document.querySelector('.log .f1')).color";
    assert_eq!(browser.eval(colour), "rgb(179, 38, 30)");
    browser.picture("hostile-1280-light");
    for _ in 0..12 {
        browser.eval("(() => { const log = document.querySelector('.log'); log.scrollTop = log.scrollHeight; })()");
        std::thread::yield_now();
    }
    browser.until("document.querySelectorAll('.log ol').length > 1");
    assert!(browser.eval(&format!("{text}.length")).as_u64().unwrap() < 400_000);
    browser.keys("f");
    browser.write("#inside input", "the END\u{e007}");
    browser.until("document.querySelector('#found').textContent === '1 of 1 in merged'");
    browser.until("document.querySelector('mark.here').textContent === 'the end'");
    // It is scrolled into view.
    browser.until(
        "(() => { const log = document.querySelector('.log').getBoundingClientRect(), mark = document.querySelector('mark.here').getBoundingClientRect(); return mark.top >= log.top && mark.bottom <= log.bottom; })()",
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn runs_and_logs_are_readable_without_script() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    for n in 0..55 {
        exec(&sandbox, &["--", "echo", &format!("number {n}")]);
    }
    let run = exec(&sandbox, &["--", "seq", "1", "30000"]);
    let ui = sandbox.ui();
    browser.devtools("Emulation.setScriptExecutionDisabled", &serde_json::json!({"value": true}));
    browser.go(&address(&ui, &format!("/?token={}", ui.token)));
    browser.click("nav a[href='/runs']");
    browser.click("#next");
    browser.write("#search", "number\u{e007}");
    browser.click(".hits a");
    browser.go(&address(&ui, &format!("/runs/{run}")));
    browser.click(".moves a");
    browser.devtools("Emulation.setScriptExecutionDisabled", &serde_json::json!({"value": false}));
    assert_eq!(browser.eval("new URLSearchParams(location.search).get('out')"), "0");
    let text = browser.eval("document.querySelector('.log').textContent");
    assert!(text.as_str().unwrap().starts_with("1\n2\n3\n"));
    assert_eq!(browser.eval("document.querySelectorAll('.actions:not([hidden])').length"), 0);
}

/// Steps of an agent that makes progress: tests, files, cost. They take a moment, so that the timeline has a width.
const GOOD_STEPS: [&str; 5] = [
    "start; say 'I will read the failing test first, then the header of the parser.'; \
     tool Read '{\"file_path\":\"src/parser.rs\"}'; returned 'fn parse() {}' false; sleep 0.3; \
     printf 'fn parse(input: &str) -> Header {\\n    Header::read(input)\\n}\\n' > src/parser.rs; \
     tool Edit '{\"file_path\":\"src/parser.rs\",\"old_string\":\"fn parse() {}\",\"new_string\":\"fn parse(input: &str) -> Header {\\n    Header::read(input)\\n}\"}'; \
     returned 'The file src/parser.rs has been updated.' false; \
     tool Bash '{\"command\":\"cargo test parser\",\"description\":\"Run the tests of the parser\"}'; \
     returned 'test parser::round_trip ... FAILED\\n\\ntest result: FAILED. 31 passed; 11 failed; 0 ignored' true; \
     say 'The parser reads the header now; the body is next.'; progress 2 8; result 0.31 41000",
    "start; sleep 0.4; echo 'fn plan() {}' > src/planner.rs; tool Bash '{\"command\":\"cargo test\"}'; \
     returned 'test result: FAILED. 38 passed; 4 failed; 0 ignored' true; progress 4 8; result 0.27 38000",
    "start; failed 500 'overloaded'; exit 1",
    "start; sleep 0.2; echo 'fn plan(steps: u32) {}' > src/planner.rs; tool Bash '{\"command\":\"cargo test\"}'; \
     returned 'test result: FAILED. 41 passed; 1 failed; 0 ignored' true; progress 6 8; result 0.35 47000",
    "start; sleep 0.5; tool Bash '{\"command\":\"cargo test\"}'; \
     returned 'test result: ok. 42 passed; 0 failed; 0 ignored' false; say 'All 42 tests pass.'; complete; result 0.44 52000",
];

#[test]
fn every_page_fits_both_widths_and_both_themes() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    let mut store = sandbox.gallery_store();
    gallery::ordinary(&mut store);
    let matrix = gallery::matrix(&mut store, "run");
    let bisect = gallery::bisection(&mut store);
    let crash = gallery::crash(&mut store);
    drop(store);
    sandbox.git(&["init", "-q", "-b", "main"]);
    std::fs::create_dir(sandbox.project().join("src")).unwrap();
    sandbox.file("src/parser.rs", "fn parse() {}\n");
    sandbox.git(&["add", "src"]);
    sandbox.git(&["commit", "-q", "-m", "the parser"]);
    sandbox.agent("", &GOOD_STEPS);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["-m", "8", "--checkpoint"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let failing = exec(
        &sandbox,
        &[
            "--",
            "sh",
            "-c",
            "printf 'test a ... \\033[32mok\\033[0m\\ntest b ... \\033[31mFAILED\\033[0m\\n'; echo 'error: 1 test failed' >&2; exit 101",
        ],
    );
    let long = "echo a line of a command that goes on and on\n".repeat(40);
    let long = exec(&sandbox, &["--", "sh", "-c", &long]);
    let mut live = in_background(
        &sandbox,
        "n=0; while [ ! -e go ]; do n=$((n+1)); echo step $n; sleep 0.05; done",
    );
    sandbox.retake(&["runs", "list"]);
    let ui = sandbox.ui();
    let agent = ui.get("/api/v1/loops?kind=agent").json()["loops"][0]["id"].clone();
    let agent = agent.as_str().unwrap().to_owned();
    enter(&browser, &ui);
    let suite = |failing: bool| {
        let (word, passed) = if failing { ("FAILED", 1) } else { ("ok", 2) };
        let script = format!(
            "cat <<'END'\nrunning 2 tests\ntest cart::adds ... ok\ntest cart::refunds ... {word}\n\n\
             test result: {word}. {passed} passed; {} failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\nEND\n\
             echo 'error: see above' >&2\nexit {}\n",
            2 - passed,
            2 - passed
        );
        sandbox.file("suite.sh", &script);
        exec(&sandbox, &["--tests", "--", "sh", "suite.sh"])
    };
    let (passed, broken) = (suite(false), suite(true));
    let iteration = {
        let detail = ui.get(&format!("/api/v1/loops/{agent}")).json();
        detail["agent"]["iterations"][0]["runId"].as_str().unwrap().to_owned()
    };
    let broke = ui.get("/api/v1/runs?status=failed&command=cargo%20test").json();
    let broke = broke["runs"][0]["id"].as_str().unwrap().to_owned();
    let pages = [
        ("failed", format!("/runs/{broke}")),
        ("tests", "/tests".to_owned()),
        ("test", "/test?name=cart%3A%3Arefunds".to_owned()),
        ("compare", format!("/compare?run={passed}&run={broken}")),
        ("why", format!("/runs/{broken}?times=1&stdout=2")),
        ("transcript", format!("/runs/{iteration}")),
        ("runs-filtered", "/runs?status=ok&since=2020-01-01".to_owned()),
        ("overview", "/".to_owned()),
        ("runs", "/runs".to_owned()),
        ("run", format!("/runs/{failing}")),
        ("run-merged", format!("/runs/{failing}?view=merged")),
        ("loops", "/loops".to_owned()),
        ("agent", format!("/loops/{agent}")),
        ("matrix", format!("/loops/{matrix}?metric=wall")),
        ("bisect", format!("/loops/{bisect}?metric=wall")),
        ("crash", format!("/loops/{crash}")),
        ("trouble", "/runs/00000000".to_owned()),
        ("long", format!("/runs/{long}")),
    ];
    for (width, theme) in [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")] {
        browser.look(width, theme);
        for (name, path) in &pages {
            browser.go(&address(&ui, path));
            browser.until("document.readyState === 'complete'");
            if *name == "transcript" {
                // Its changes, from the checkpoints around it.
                browser.until("document.querySelector('.changed-files .ins').textContent.includes('input: &str')");
            }
            if *name == "long" {
                browser.click(".whole summary");
                let whole = browser.eval("document.querySelector('.whole pre').innerText");
                assert_eq!(whole.as_str().unwrap().matches("goes on and on").count(), 40);
            }
            fits(&browser);
            readable(&browser, name);
            // It tests the content, which is the same in both widths.
            if width == 1280 {
                assert_eq!(browser.violations(), [""; 0], "{name}, {theme}");
            }
            browser.picture(&format!("{name}-{width}-{theme}"));
        }
    }
    sandbox.file("go", "");
    assert!(live.wait().unwrap().success());
}

/// Every control has a name, and every text has enough contrast.
fn readable(browser: &Browser, page: &str) {
    let wrong = browser.eval(
        r#"(() => {
            const wrong = [];
            const name = (e) => e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.textContent.trim() || e.title;
            for (const e of document.querySelectorAll('a, button, input:not([type=hidden]), select, [role=img], [role=region]'))
                if (!name(e)) wrong.push(`no name: ${e.outerHTML.slice(0, 80)}`);
            const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
            const rgb = (text) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
            const over = (top, under) => top.slice(0, 3).map((part, i) => part * top[3] / 255 + under[i] * (1 - top[3] / 255)).concat(255);
            const ground = (e) => { const chain = []; for (; e; e = e.parentElement) chain.unshift(rgb(getComputedStyle(e).backgroundColor)); return chain.reduce((under, top) => over(top, under), [255, 255, 255, 255]); };
            const light = (c) => { const [r, g, b] = c.map((p) => { p /= 255; return p <= .03928 ? p / 12.92 : ((p + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
            const walk = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
            const seen = new Set();
            for (let node; (node = walk.nextNode()) && seen.size < 400;) {
                const e = node.parentElement;
                if (!node.data.trim() || seen.has(e) || e.closest('svg, [hidden], option')) continue;
                seen.add(e);
                const under = ground(e), text = over(rgb(getComputedStyle(e).color), under);
                const [a, b] = [light(text), light(under)].sort((x, y) => y - x);
                const ratio = (a + .05) / (b + .05);
                if (ratio < 4.5) wrong.push(`${ratio.toFixed(1)}: ${e.className} ${node.data.trim().slice(0, 40)}`);
            }
            return wrong;
        })()"#,
    );
    assert_eq!(wrong, serde_json::json!([]), "{page}");
}

#[test]
fn an_empty_record_says_what_to_type_on_every_page() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    exec(&sandbox, &["--", "true"]);
    assert_eq!(sandbox.retake(&["runs", "delete", "last"]).code, 0);
    let ui = sandbox.ui();
    enter(&browser, &ui);
    for (width, theme) in [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")] {
        browser.look(width, theme);
        for (path, says) in [
            ("/", "retake exec -- COMMAND"),
            ("/runs", "retake exec -- COMMAND"),
            ("/tests", "retake exec --tests -- cargo test"),
            ("/loops", "retake matrix run"),
        ] {
            browser.go(&address(&ui, path));
            browser.until("document.readyState === 'complete'");
            let codes = "[...document.querySelectorAll('main .empty code')].map((code) => code.textContent)";
            browser.until(&format!("{codes}.includes('{says}')"));
            fits(&browser);
            readable(&browser, path);
            assert_eq!(browser.violations(), [""; 0], "{path}, {theme}");
            let name = path.trim_start_matches('/');
            browser.picture(&format!("empty-{name}-{width}-{theme}"));
        }
    }
}

#[test]
fn wide_characters_and_emoji_fit_and_are_found() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    let words = "👩‍👩‍👧 家族の写真 naïve e\u{301} \u{1f1e9}\u{1f1ea}";
    let long = "漢字".repeat(80);
    let script = format!("echo '{words}'; echo '{long}'; exit 3");
    let run = exec(&sandbox, &["--label", "名前=値👍", "--", "sh", "-c", &script]);
    let ui = sandbox.ui();
    enter(&browser, &ui);
    for (width, theme) in [(1280, "light"), (390, "dark")] {
        browser.look(width, theme);
        for path in ["/", "/runs?col=labels&col=took", &format!("/runs/{run}")] {
            browser.go(&address(&ui, path));
            browser.until("document.querySelector('main').textContent.includes('👩‍👩‍👧 家族の写真')");
            fits(&browser);
        }
        browser.picture(&format!("wide-{width}-{theme}"));
    }
    browser.write("#inside input", "写真\u{e007}");
    browser.until("document.querySelector('mark.here')?.textContent === '写真'");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn keys_move_the_focus_through_every_list() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    let mut store = sandbox.gallery_store();
    gallery::ordinary(&mut store);
    gallery::matrix(&mut store, "run");
    drop(store);
    let ui = sandbox.ui();
    enter(&browser, &ui);
    // The overview has several lists; j goes through all of them in order.
    for path in ["/", "/runs", "/loops"] {
        browser.go(&address(&ui, path));
        browser.until("document.readyState === 'complete'");
        let focused = "document.activeElement.closest('tr')?.classList.contains('chosen')";
        let place = "[...document.querySelectorAll('#rows > *, [data-rows] > *')].findIndex((row) => row.contains(document.activeElement))";
        browser.keys("j");
        browser.until(&format!("{focused} && {place} === 0"));
        if path != "/loops" {
            browser.keys("jj");
            browser.until(&format!("{focused} && {place} === 2"));
            browser.keys("k");
            browser.until(&format!("{focused} && {place} === 1"));
        }
        if path == "/" {
            // New entries do not take the focus.
            let runs = "document.querySelectorAll('.tile .big')[1].textContent";
            let before = browser.eval(runs);
            exec(&sandbox, &["--", "true"]);
            browser.until(&format!("{runs} !== {before} && {focused} && {place} === 1"));
        }
        let target = browser.eval("document.activeElement.getAttribute('href')");
        browser.keys("\u{e007}");
        browser.until(&format!("location.pathname + location.search === {target}"));
    }
    // No animation if the user asked for none.
    browser.devtools(
        "Emulation.setEmulatedMedia",
        &serde_json::json!({"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}),
    );
    let mut live = in_background(&sandbox, "while [ ! -e go ]; do sleep 0.02; done");
    ui.running();
    browser.go(&address(&ui, "/runs"));
    browser.until("!!document.querySelector('.badge.live')");
    let moving = "getComputedStyle(document.querySelector('.badge.live span')).animationName";
    assert_eq!(browser.eval(moving), "none");
    sandbox.file("go", "");
    assert!(live.wait().unwrap().success());
}

#[test]
fn the_report_of_a_matrix_fits_both_widths_and_both_themes() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    sandbox.git(&["init", "-q", "-b", "main"]);
    for (at, value) in ["100", "101", "130", "131"].iter().enumerate() {
        sandbox.file("value", value);
        sandbox.git(&["add", "value"]);
        sandbox.git(&[
            "commit",
            "-q",
            "-m",
            "a subject that is longer than a narrow screen is wide",
        ]);
        sandbox.git(&["tag", &format!("v{}", at + 1)]);
    }
    sandbox.file(
        "matrix.yml",
        "command: 'echo \"metric: load=$(( $(cat value) * 10 + ITERATION * 7 % 10 )) ms\"'\n\
         iterations: 8\naxes: {mode: [quick, thorough]}\ncode: {refs: [v1, v2, v3, v4]}\n",
    );
    assert_eq!(sandbox.retake(&["matrix", "run", "-q"]).code, 0);
    assert_eq!(sandbox.retake(&["matrix", "report", "-o", "report.html"]).code, 0);
    let address = format!("file://{}", sandbox.project().join("report.html").display());
    for (width, theme) in [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")] {
        browser.look(width, theme);
        browser.go(&address);
        browser.eval("document.querySelectorAll('details').forEach(one => one.open = true)");
        fits(&browser);
        // No card or drawing is wider than the screen, not even inside of scrolling areas.
        let wide = "[...document.querySelectorAll('table.cards, svg')]\
                    .filter(one => one.getBoundingClientRect().right > innerWidth).length";
        if width < 640 {
            assert_eq!(browser.eval(wide), 0, "{theme}");
        }
        browser.picture(&format!("matrix-report-{width}-{theme}"));
    }
    assert_eq!(browser.eval("document.querySelectorAll('svg.history').length >= 2"), true);
    assert_eq!(browser.complaints(), [""; 0]);
}
