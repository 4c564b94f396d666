//! What people use the page for, from the first click to the answer.

use crate::common::gallery_env as gallery;
use crate::common::{Browser, Sandbox, Ui};

fn enter(ui: &Ui) -> Option<Browser> {
    let browser = Browser::open()?;
    browser.go(&format!("http://127.0.0.1:{}/?token={}", ui.port, ui.token));
    Some(browser)
}

/// A suite of two tests, of which one fails from a level on.
fn suite(sandbox: &Sandbox, level: u32) -> String {
    let script = r#"fails=$([ "$LEVEL" -gt 2 ] && echo 1 || echo 0)
word=$([ $fails = 1 ] && echo FAILED || echo ok)
cat <<END
running 2 tests
test cart::adds ... ok
test cart::refunds ... $word

test result: $word. $((2 - fails)) passed; $fails failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

END
[ $fails = 0 ] || echo 'error: refund of 3 is 2' >&2
exit $fails
"#;
    sandbox.file("suite.sh", script);
    let level = format!("LEVEL={level}");
    let called =
        sandbox.retake(&["exec", "--json", "--tests", "--env", &level, "--", "sh", "suite.sh"]);
    called.json()["id"].as_str().unwrap().to_owned()
}

#[test]
fn somebody_finds_why_the_run_of_last_night_failed() {
    let sandbox = Sandbox::new();
    suite(&sandbox, 1);
    let failed = suite(&sandbox, 3);
    for n in 0..5 {
        sandbox.retake(&["exec", "--", "echo", &n.to_string()]);
    }
    let ui = sandbox.ui();
    let Some(browser) = enter(&ui) else { return };
    browser.click(&format!("#overview a[href='/runs/{failed}']"));
    let why = "document.querySelector('.why').textContent";
    browser.until(&format!(
        "{why}.includes('cart::refunds') && {why}.includes('error: refund of 3 is 2')"
    ));
    // It is visible first.
    assert_eq!(
        browser.eval("document.querySelector('.why').getBoundingClientRect().top < 500"),
        true
    );
    browser.until(&format!("{why}.includes('environment LEVEL') && {why}.includes('Last passed')"));
    browser.click(".errors a");
    browser.until("document.querySelector('.sel').textContent === 'error: refund of 3 is 2\\n'");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn somebody_finds_which_run_broke_a_test() {
    let sandbox = Sandbox::new();
    let runs: Vec<String> = [1, 2, 3, 4].map(|level| suite(&sandbox, level)).into();
    let ui = sandbox.ui();
    let Some(browser) = enter(&ui) else { return };
    browser.keys("t");
    browser.until(
        "location.pathname === '/tests' && document.querySelectorAll('[data-rows] tr').length === 2",
    );
    // Failing tests come first; j and Enter open the first one.
    browser.keys("j\u{e007}");
    browser.until("location.pathname === '/test' && document.querySelector('h1').textContent === 'cart::refunds'");
    browser
        .until(&format!("document.querySelector('dl').textContent.includes('{}')", &runs[2][28..]));
    browser.click(".card a[href^='/compare']");
    browser
        .until("document.querySelector('.changes').textContent.includes('environment LEVEL2 → 3')");
    browser.until("document.querySelector('main').textContent.includes('passed → failed')");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn somebody_compares_two_refs_of_a_matrix() {
    let sandbox = Sandbox::new();
    let mut store = sandbox.gallery_store();
    let matrix = gallery::matrix(&mut store, "run");
    drop(store);
    let ui = sandbox.ui();
    let Some(browser) = enter(&ui) else { return };
    browser.keys("gr");
    browser.until(
        "location.pathname === '/runs' && document.querySelectorAll('#rows tr').length === 1",
    );
    browser.until("document.querySelector('#rows').textContent.includes('96 runs')");
    browser.click("#rows .what a");
    browser.until(&format!("location.pathname === '/loops/{matrix}'"));
    // Conclusive differences come first, in words.
    let said = "[...document.querySelectorAll('.differences li')].map((one) => one.textContent)";
    browser.until(&format!("{said}.some((line) => /code=main is slower than code=v1\\.0 in \\w+, in all 2 combinations with size: \\+3/.test(line))"));
    // A ref against the first one, with its interval; conclusive comparisons come before others.
    let verdicts =
        "[...document.querySelectorAll('td[data-name=verdict]')].map((one) => one.textContent)";
    browser.until(&format!("{verdicts}.length > 4 && {verdicts}[0] === 'slower'"));
    assert_eq!(
        browser.eval(&format!(
            "(() => {{ const all = {verdicts}.map((word) => word === 'same' ? 2 : word === 'not sure' ? 1 : 0); \
             return all.every((rank, at) => at === 0 || all[at - 1] <= rank); }})()"
        )),
        true
    );
    browser.until("document.querySelectorAll('.span').length > 0");
    let heads =
        "[...document.querySelector('.span').closest('table').querySelectorAll('th[scope=col]')]";
    assert_eq!(
        browser.eval(&format!("{heads}.map((one) => one.textContent).join(' | ')")),
        "Of | Against | Verdict | Difference | Interval | Less or more | Samples"
    );
    // On a phone nothing of it is cut off.
    browser.look(390, "light");
    let cut = "[...document.querySelectorAll('main td, main th')].filter((one) => {\
                   const box = one.getBoundingClientRect(); return box.width && (box.right > innerWidth || box.left < 0); }).length";
    assert_eq!(browser.eval(cut), 0);
    browser.picture("task-matrix-390-light");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn somebody_follows_a_running_agent_and_stops_it() {
    let sandbox = Sandbox::new();
    let wait = |n: u32| {
        format!(
            "start; say 'step {n} has begun'; while [ ! -e go{n} ]; do sleep 0.02; done; say 'step {n} is done'; progress {n} 9; result 0.10 500"
        )
    };
    let steps = [wait(1), wait(2), wait(3)];
    sandbox.agent("", &steps.each_ref().map(String::as_str));
    sandbox.workspace("task", &[]);
    let agent = sandbox.start_agent(&["-m", "9"]);
    let ui = sandbox.ui();
    let Some(browser) = enter(&ui) else {
        for n in 1..=9 {
            sandbox.file(&format!("go{n}"), "");
        }
        agent.end();
        return;
    };
    browser.until("document.querySelector('.loops .badge').textContent.includes('running')");
    // It is running, and its elapsed time is updated.
    let moving = "document.querySelector('[data-since]').textContent";
    let before = browser.eval(moving);
    browser.until(&format!("{moving} !== {before}"));
    browser.click(".loops .what a");
    browser.until("location.pathname.startsWith('/loops/')");
    let feed = "document.querySelector('#feed').textContent";
    browser.until(&format!("{feed}.includes('step 1 has begun') && !{feed}.includes('is done')"));
    sandbox.file("go1", "");
    // Without a reload: the next iteration, and its output.
    browser.until(&format!("{feed}.includes('step 2 has begun')"));
    browser.until("document.querySelectorAll('.steps tbody tr').length === 2");
    browser.click("button[data-action=stop]");
    browser.until(
        "document.querySelector('#actions').textContent.includes('It stops after this iteration.')",
    );
    sandbox.file("go2", "");
    browser.until("document.querySelector('#head .badge').textContent.includes('stopped')");
    let called = agent.end();
    assert_eq!(sandbox.stop_reason(), "stopped", "{}", called.snapshot());
    assert_eq!(sandbox.calls(), 2);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// 96 MiB here; `RETAKE_TEST_LOG_BYTES` makes it larger.
#[test]
fn somebody_finds_a_word_in_a_large_log() {
    let sandbox = Sandbox::new();
    let size = std::env::var("RETAKE_TEST_LOG_BYTES").unwrap_or_else(|_| "100663296".to_owned());
    let script = format!(
        "yes 'a line of output, as long as lines usually are' | head -c {size}; echo; echo 'the needle is here'; seq 1000"
    );
    let called = sandbox.retake(&["exec", "--json", "--", "sh", "-c", &script]);
    let id = called.json()["id"].as_str().unwrap().to_owned();
    let ui = sandbox.ui();
    let Some(browser) = enter(&ui) else { return };
    browser.keys("gr");
    browser.until(
        "location.pathname === '/runs' && document.querySelectorAll('#rows tr').length === 1",
    );
    browser.keys("j\u{e007}");
    browser.until(&format!("location.pathname === '/runs/{id}'"));
    browser.keys("f");
    browser.until("document.activeElement === document.querySelector('#inside input')");
    browser.write("#inside input", "needle\u{e007}");
    browser.until("document.querySelector('mark.here')?.textContent === 'needle'");
    browser.until("document.querySelector('#inside').textContent.includes('1 of 1')");
    let line = "document.querySelector('mark.here').closest('li').textContent";
    assert_eq!(browser.eval(line), "the needle is here\n");
    // It is visible.
    assert_eq!(
        browser.eval("(() => { const box = document.querySelector('mark.here').getBoundingClientRect(); return box.top > 0 && box.bottom < innerHeight; })()"),
        true
    );
    // The page contains only a part of it.
    assert_eq!(browser.eval("document.querySelector('main').textContent.length < 2000000"), true);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
