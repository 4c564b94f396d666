//! What a person comes to the page for, from the first click to the answer.

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
    // It is what is seen first.
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
        "location.pathname === '/tests' && document.querySelectorAll('#rows tr').length === 2",
    );
    // What fails comes first; j and Enter open it.
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
    let text = "document.querySelector('main').textContent";
    browser.until(&format!(
        "{text}.includes('main') && {text}.includes('v1.0') && document.querySelectorAll('.span').length > 0"
    ));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
