//! The output of a run as a log viewer: numbered lines with addresses, downloads, times, search.

use std::io::Read;
use std::os::unix::fs::FileExt;

use serde_json::json;

use crate::common::{Browser, Sandbox, Ui};
use crate::pages::recorded;

/// The items of the first list of lines of a page: the number of the first, and the lines.
fn lines(page: &str) -> (u64, Vec<String>) {
    let list = page.split("<ol class=\"lines\" start=\"").nth(1).expect(page);
    let (start, items) = list.split_once("\">").unwrap();
    // A continued line has no number.
    let items = items.split("</ol>").next().unwrap().split("<li").skip(1);
    let items = items.filter(|item| !item.starts_with(" class=\"cont\""));
    let text = |item: &str| item.split_once('>').unwrap().1.to_owned();
    (start.parse().unwrap(), items.map(text).collect())
}

#[test]
fn lines_have_numbers_and_addresses() {
    let sandbox = Sandbox::new();
    let run = recorded(&sandbox, "seq 1 20000; printf 'no end'");
    let ui = sandbox.ui();
    let page = ui.get(&format!("/runs/{run}?stdout=12500-12502")).text();
    assert!(page.contains("<li class=\"sel\" id=\"line\">12500\n<li class=\"sel\">12501\n<li class=\"sel\">12502\n<li>12503\n"), "{page}");
    assert_eq!(page.matches("class=\"sel\"").count(), 3);
    // Every line has its own number, wherever a window begins.
    for place in ["", "?out=0", "?out=50000", "?stdout=1", "?find=15000", "?stdout=20000"] {
        let (first, lines) = lines(&ui.get(&format!("/runs/{run}{place}")).text());
        for (number, line) in (first..).zip(&lines).filter(|(number, _)| *number <= 20_000) {
            let shown = line.replace("<mark id=\"match\">", "").replace("</mark>", "");
            assert_eq!(shown, format!("{number}\n"), "{place}");
        }
    }
    let beyond = ui.get(&format!("/runs/{run}?stdout=99999")).text();
    assert!(beyond.contains("there is no line 99999; this is the last"), "{beyond}");
    assert!(beyond.contains("<li class=\"sel\" id=\"line\">no end"), "{beyond}");
    for bad in ["stdout=0", "stdout=x", "stderr=3-", "stdout=-4"] {
        let answer = ui.get(&format!("/runs/{run}?{bad}"));
        assert!(answer.status == 400 && answer.text().contains(bad), "{bad}: {}", answer.text());
    }
    // A window may begin within a line, which has no number then.
    let long = recorded(&sandbox, "head -c 300000 /dev/zero | tr '\\0' x; echo; echo second");
    let page = ui.get(&format!("/runs/{long}?out=1000")).text();
    assert!(page.contains("start=\"2\"><li class=\"cont\">xxx"), "{page}");
    let window = ui.get(&format!("/api/v1/runs/{long}/logs?offset=300001")).json();
    assert_eq!((&window["line"], &window["begun"]), (&json!(2), &json!(false)), "{window}");
}

#[test]
fn lines_far_into_a_large_output_are_counted_step_by_step() {
    let sandbox = Sandbox::new();
    let run = recorded(&sandbox, "yes | head -c 30000000; echo error: the end");
    let ui = sandbox.ui();
    let window = ui.get(&format!("/api/v1/runs/{run}/logs?offset=29000000&limit=100")).json();
    assert_eq!(window["line"], json!(null), "{window}");
    let number = ui.get(&format!("/api/v1/runs/{run}/line?offset=29000000")).json();
    assert_eq!(number["line"], json!(14_500_001), "{number}");
    let window = ui.get(&format!("/api/v1/runs/{run}/logs?offset=29000000&limit=100")).json();
    assert_eq!(window["line"], json!(14_500_001), "{window}");
    let page = ui.get(&format!("/runs/{run}?stdout=15000001")).text();
    assert!(page.contains("<li class=\"sel\" id=\"line\">error: the end"), "{page}");
    assert!(ui.memory_kb() < 64 << 10, "{} KiB", ui.memory_kb());
}

#[test]
fn output_is_found_counted_and_found_backwards() {
    let sandbox = Sandbox::new();
    let script = "for n in 1 2 3; do echo start $n; seq 1 3000; printf 'a \\033[31mnee\\033[0mdle\\n'; done; echo 'error: lost'; echo fine";
    let run = recorded(&sandbox, script);
    let ui = sandbox.ui();
    let count = ui.get(&format!("/api/v1/runs/{run}/count?text=NEEDLE")).json();
    assert_eq!((&count["matches"], &count["lookedTo"]), (&json!(3), &count["length"]));
    let first = ui.get(&format!("/api/v1/runs/{run}/find?text=needle")).json();
    let second = first["found"][1].as_u64().unwrap();
    let second = ui.get(&format!("/api/v1/runs/{run}/find?text=needle&offset={second}")).json();
    let at = second["found"][0].as_u64().unwrap();
    let back = ui.get(&format!("/api/v1/runs/{run}/find?text=needle&back=1&offset={at}")).json();
    assert_eq!(back["found"], first["found"]);
    let before = ui.get(&format!("/api/v1/runs/{run}/count?text=needle&until={at}")).json();
    assert_eq!(before["matches"], 1);
    let error = ui.get(&format!("/api/v1/runs/{run}/find?errors=1")).json();
    let place = error["found"][0].as_u64().unwrap();
    let window = ui.get(&format!("/api/v1/runs/{run}/logs?offset={place}")).json();
    assert!(window["pieces"][0]["text"].as_str().unwrap().starts_with("error: lost\n"), "{window}");
    assert_eq!(ui.get(&format!("/api/v1/runs/{run}/count?errors=1")).json()["matches"], 1);
    // Without the script the number of matches and the link to the next are on the page.
    let page = ui.get(&format!("/runs/{run}?find=needle")).text();
    assert!(page.contains("3 matches <a href="), "{page}");
    let next = page.split("3 matches <a href=\"").nth(1).unwrap().split('#').next().unwrap();
    let page = ui.get(&next.replace("&amp;", "&")).text();
    let above = page.split("id=\"match\"").next().unwrap();
    assert!(above.contains("<li>3000\n") && page.contains("start 3"), "{page}");
    for bad in ["find?text=", "count?text=", "find?errors=x", "line?offset=x"] {
        assert_eq!(ui.get(&format!("/api/v1/runs/{run}/{bad}")).status, 400, "{bad}");
    }
}

#[test]
fn a_search_opens_the_output_at_what_it_found() {
    let sandbox = Sandbox::new();
    let run = recorded(&sandbox, "seq 1 9000; echo 'the <b>Haystack</b> has it'; seq 1 9000");
    let ui = sandbox.ui();
    let page = ui.get("/runs?q=haystack").text();
    let link = format!("/runs/{run}?find=Haystack#match");
    assert!(page.contains(&format!("<a href=\"{link}\"")), "{page}");
    let page = ui.get(link.split('#').next().unwrap()).text();
    assert!(page.contains("the &lt;b&gt;<mark id=\"match\">Haystack</mark>&lt;/b&gt;"), "{page}");
}

#[test]
fn the_middle_of_a_large_output_is_searched_when_the_index_has_nothing() {
    let sandbox = Sandbox::new();
    let run = recorded(&sandbox, "seq 1 400000; echo 'the haystack has it'; seq 1 400000");
    let small = recorded(&sandbox, "echo another haystack");
    let ui = sandbox.ui();
    let hits = |address: &str| -> Vec<String> {
        let found = ui.get(address).json();
        let hits = found["hits"].as_array().unwrap().iter();
        assert_eq!(found["skippedBytes"] == json!(0), address.contains("deep"), "{found}");
        hits.map(|hit| hit["run"]["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(hits("/api/v1/search?q=haystack"), [small.as_str()]);
    assert_eq!(hits("/api/v1/search?q=haystack&deep=1"), [small.as_str(), run.as_str()]);
    let page = ui.get("/runs?q=haystack+has").text();
    assert!(page.contains("No match so far.") && page.contains("were not searched"), "{page}");
    let deeper = "/runs?q=haystack+has&amp;deep=1";
    let deeper = if page.contains(deeper) { deeper } else { "/runs?q=haystack%20has&amp;deep=1" };
    assert!(page.contains(&format!("<a href=\"{deeper}\">Search them too</a>")), "{page}");
    let page = ui.get(&deeper.replace("&amp;", "&")).text();
    assert!(page.contains(&run) && !page.contains("No match"), "{page}");
    assert!(!page.contains("Remove the filter deep"), "{page}");
    // With the script this happens automatically.
    let Some(browser) = Browser::open() else { return };
    browser.go(&format!("http://127.0.0.1:{}/?token={}", ui.port, ui.token));
    browser.go(&format!("http://127.0.0.1:{}/runs", ui.port));
    browser.write("#search", "haystack has");
    let found = "document.querySelectorAll('.hits li').length === 1 && document.querySelector('.hits mark') !== null";
    browser.until(found);
    assert_eq!(browser.eval("document.querySelector('#deeper')"), serde_json::Value::Null);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn output_can_be_downloaded_and_altered_bytes_are_not_sent() {
    let sandbox = Sandbox::new();
    let run = recorded(&sandbox, "seq 1 400000; echo '<script>' >&2");
    let ui = sandbox.ui();
    let expected: String = (1..=400_000).map(|n| format!("{n}\n")).collect();
    let answer = ui.get(&format!("/runs/{run}/raw?stream=stdout"));
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    let name = format!("attachment; filename=\"{run}.stdout.txt\"");
    assert_eq!(answer.header("content-disposition"), Some(name.as_str()));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert!(answer.body == expected.as_bytes());
    assert_eq!(ui.get(&format!("/runs/{run}/raw?stream=stderr")).text(), "<script>\n");
    let both = ui.get(&format!("/runs/{run}/raw?stream=merged"));
    assert_eq!(both.body.len(), expected.len() + 9);
    assert_eq!(ui.get(&format!("/runs/{run}/raw?stream=x")).status, 400);
    assert_eq!(ui.get("/runs/00000000/raw").status, 404);
    let spool = sandbox.project().join(format!(".agent/data/spool/{run}.stdout"));
    let file = std::fs::OpenOptions::new().write(true).open(spool).unwrap();
    file.write_all_at(b"FORGED", 1_500_000).unwrap();
    // The transfer stops before the altered bytes.
    let mut all = Vec::new();
    // A closed connection is an error here, and the bytes read before it count.
    _ = ui.stall(&format!("/runs/{run}/raw?stream=stdout")).read_to_end(&mut all);
    let text = String::from_utf8_lossy(&all);
    assert!(
        text.starts_with("HTTP/1.1 200") && text.contains("\r\n\r\n1\n2\n"),
        "{}",
        &text[..400]
    );
    assert!(!text.contains("FORGED") && all.len() < expected.len(), "{}", all.len());
    file.write_all_at(b"FORGED", 10).unwrap();
    let answer = ui.get(&format!("/runs/{run}/raw?stream=stdout"));
    assert!(answer.status == 500 && answer.text().contains("was altered"), "{}", answer.text());
}

#[test]
fn lines_say_when_they_arrived() {
    let sandbox = Sandbox::new();
    let run =
        recorded(&sandbox, "echo one; echo err >&2; sleep 0.2; printf 'tw'; sleep 0.1; echo o");
    let ui = sandbox.ui();
    assert!(!ui.get(&format!("/runs/{run}")).text().contains("data-t="));
    for view in ["", "&view=merged"] {
        let page = ui.get(&format!("/runs/{run}?times=1{view}")).text();
        let time = |line: &str| -> f64 {
            let item =
                page.split("<li").find(|item| item.contains(&format!(">{line}"))).expect(&page);
            let time = item.split("data-t=\"+").nth(1).expect(item).split('"').next().unwrap();
            time.parse().unwrap()
        };
        // A line has the time of its beginning.
        let (one, two) = (time("one"), time("tw"));
        assert!(two - one >= 0.19 && two - one < 30.0, "{one} {two}");
        assert!(page.contains("class=\"output times\""), "{page}");
    }
    let page = ui.get(&format!("/runs/{run}?wrap=0")).text();
    assert!(page.contains("class=\"output nowrap\""), "{page}");
}

fn enter(browser: &Browser, ui: &Ui, path: &str) {
    browser.go(&format!("http://127.0.0.1:{}/?token={}", ui.port, ui.token));
    browser.go(&format!("http://127.0.0.1:{}{path}", ui.port));
}

#[test]
fn a_person_chooses_lines_and_walks_through_matches() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    let script = "seq 1 4000; echo error: one; seq 4002 8000; echo the needle; seq 8002 20000; echo the needle; echo error: two >&2";
    let run = recorded(&sandbox, script);
    let ui = sandbox.ui();
    enter(&browser, &ui, &format!("/runs/{run}?stdout=4005"));
    let chosen = "[...document.querySelectorAll('.sel')].map((item) => item.textContent).join('')";
    browser.until(&format!("{chosen} === '4005\\n'"));
    // It is in view, with its own number beside it.
    browser.until("(() => { const log = document.querySelector('.log').getBoundingClientRect(), line = document.querySelector('.sel').getBoundingClientRect(); return line.top >= log.top && line.bottom <= log.bottom; })()");
    // A click on a number, and one with Shift further down.
    let press = |text: &str, shift: bool| {
        browser.eval(&format!("(() => {{ const item = [...document.querySelectorAll('.lines li')].find((item) => item.textContent === '{text}\\n'); const box = item.getBoundingClientRect(); item.dispatchEvent(new MouseEvent('click', {{bubbles: true, clientX: box.left + 5, clientY: box.top + 5, shiftKey: {shift}}})); }})()"));
    };
    press("4008", false);
    browser.until("new URLSearchParams(location.search).get('stdout') === '4008'");
    press("4010", true);
    browser.until("new URLSearchParams(location.search).get('stdout') === '4008-4010'");
    browser.until(&format!("{chosen} === '4008\\n4009\\n4010\\n'"));
    browser.until(
        "document.querySelector('#chosen').textContent.includes('Lines 4008–4010 of stdout')",
    );
    browser.picture("log-lines-1280-light");
    // The address leads there again.
    let here = browser.eval("location.href");
    browser.go(here.as_str().unwrap());
    browser.until(&format!("{chosen} === '4008\\n4009\\n4010\\n'"));
    browser.click("button[data-lines=none]");
    browser.until("!location.search.includes('stdout=') && !document.querySelector('.sel')");
    // Matches with their number, forwards and backwards.
    browser.keys("f");
    browser.write("#inside input", "NEEDLE\u{e007}");
    let found = "document.querySelector('#found').textContent";
    browser.until(&format!("{found} === '1 of 2 in stdout'"));
    let line = "document.querySelector('.here')?.closest('li')";
    browser.until(&format!("{line}?.previousElementSibling?.textContent === '8000\\n'"));
    browser.eval("document.activeElement.blur()");
    browser.keys("n");
    browser.until(&format!("{found} === '2 of 2 in stdout'"));
    browser.until(&format!("{line}?.previousElementSibling?.textContent === '20000\\n'"));
    browser.keys("N");
    browser.until(&format!("{found} === '1 of 2 in stdout'"));
    // Lines that report errors, over both streams.
    browser.keys("e");
    browser.until(&format!(
        "{found} === '1 of 2 in stdout' && {line}?.textContent === 'error: one\\n'"
    ));
    browser.keys("e");
    browser.until(&format!(
        "{found} === '2 of 2 in stderr' && {line}?.textContent === 'error: two\\n'"
    ));
    browser.picture("log-errors-1280-light");
    // Long lines are not wrapped, and the page is as wide as before.
    browser.click("#wrap");
    browser.until("location.search.includes('wrap=0') && !!document.querySelector('.nowrap')");
    assert_eq!(browser.eval("document.documentElement.scrollWidth <= innerWidth"), true);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_word_is_found_far_into_a_large_output() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    // More than one search reads.
    let script = "yes 'a line of output, as long as lines usually are, or a little longer' | head -c 70000000; echo; echo the needle; seq 1 99";
    let run = recorded(&sandbox, script);
    let ui = sandbox.ui();
    enter(&browser, &ui, &format!("/runs/{run}?find=the+needle"));
    let found = "document.querySelector('#found').textContent";
    browser.until(&format!("{found} === '1 of 1 in stdout'"));
    browser.until("document.querySelector('mark.here').textContent === 'the needle'");
    // Its line is numbered: 70,000,000 bytes of 67 each, then the rest of one.
    let number = "(() => { const item = document.querySelector('mark.here').closest('li'), list = item.parentElement; return list.classList.contains('unnumbered') ? 0 : list.start + [...list.children].indexOf(item); })()";
    let line = 70_000_000 / 67 + 2;
    browser.until(&format!("[{line}, {}].includes({number})", line - 1));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
