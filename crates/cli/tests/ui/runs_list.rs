//! The list of runs: loops as one row, filters as chips, sorting, and marking runs to compare them.

use std::collections::BTreeSet;

use retake_types::{Kind, LoopId};

use crate::common::gallery_env::{self as gallery, Shown};
use crate::common::{Browser, Sandbox, Ui};

fn plain<'a>(command: &'a str, ago_minutes: i64, of: Option<(Kind, LoopId, u64)>) -> Shown<'a> {
    let (labels, effects) = (Vec::new(), None);
    Shown { command, ago_minutes, ms: 10, code: 0, output: "", of, labels, effects }
}

/// The ids of the rows of a page, and the address of the next.
fn rows(page: &str) -> (Vec<String>, Option<String>) {
    let list = page.split("<tbody data-rows id=\"rows\">").nth(1).unwrap_or_default();
    let ids = list.split("data-id=\"").skip(1).map(|row| row.split('"').next().unwrap().to_owned());
    let next = page.split("rel=\"next\"").nth(1).map(|rest| {
        let address = rest.split("href=\"").nth(1).unwrap().split('"').next().unwrap();
        address.replace("&amp;", "&")
    });
    (ids.collect(), next)
}

fn all_rows(ui: &Ui, first: &str) -> Vec<String> {
    let (mut seen, mut address) = (Vec::new(), Some(first.to_owned()));
    while let Some(at) = address {
        let (ids, next) = rows(&ui.get(&at).text());
        seen.extend(ids);
        address = next;
    }
    seen
}

#[test]
fn commits_in_the_row_of_a_loop_are_short() {
    let sandbox = Sandbox::new();
    let mut store = sandbox.gallery_store();
    gallery::bisection(&mut store);
    drop(store);
    let page = sandbox.ui().get("/runs").text();
    let extent = page.split("class=\"extent faint\"").nth(1).expect("the values of the loop");
    let shown = extent.split_once('>').unwrap().1.split('<').next().unwrap();
    assert_eq!(shown, "9e3779b97f, …, d5336963ee (24)");
}

#[test]
fn the_runs_of_a_loop_are_one_row_wherever_pages_end() {
    let sandbox = Sandbox::new();
    let mut store = sandbox.gallery_store();
    let matrix = gallery::matrix(&mut store, "run");
    let broken = gallery::matrix(&mut store, "bisect code");
    let mut runs = BTreeSet::new();
    // Two loops whose runs alternate with each other and with single runs.
    let loops = [LoopId::new(), LoopId::new()];
    for n in 0..70u64 {
        runs.insert(gallery::add(&mut store, &plain("make one", n as i64 * 3, None)).to_string());
        let of = Some((Kind::Matrix, loops[(n % 2) as usize], n));
        gallery::add(&mut store, &plain("./bench", n as i64 * 3 + 1, of));
    }
    drop(store);
    let ui = sandbox.ui();
    let seen = all_rows(&ui, "/runs");
    let expected: BTreeSet<String> = runs
        .iter()
        .cloned()
        .chain([matrix, broken, loops[0], loops[1]].map(|id| id.to_string()))
        .collect();
    assert_eq!(seen.len(), expected.len(), "each once");
    assert_eq!(seen.iter().cloned().collect::<BTreeSet<_>>(), expected);
    let page = ui.get("/runs?kind=matrix").text();
    let (ids, _) = rows(&page);
    assert_eq!(ids.len(), 4, "{page}");
    for part in [
        format!("<a href=\"/runs?loop={matrix}\">96 runs</a>"),
        "v1.0, v1.1, v1.2, main × small, large".to_owned(),
        format!(
            "<a href=\"/runs?loop={broken}\">96 runs</a>, <span class=\"bad\">48 failed</span>"
        ),
    ] {
        assert!(page.contains(&part), "{part}: {page}");
    }
    // One by one, with the values of their cells.
    let page = ui.get(&format!("/runs?loop={matrix}")).text();
    assert!(
        page.contains(
            "<span class=\"beside faint\" title=\"code=main size=large\">code=main size=large</span>"
        ),
        "{page}"
    );
    assert_eq!(all_rows(&ui, &format!("/runs?loop={matrix}")).len(), 96);
    // A filter may select some runs of a loop, so it shows runs.
    let failed = ui.get("/runs?status=failed").text();
    assert!(!failed.contains("class=\"group\""), "{failed}");
}

#[test]
fn filters_are_chips_that_can_be_taken_away_one_by_one() {
    let sandbox = Sandbox::new();
    let slow = sandbox
        .retake(&["exec", "--json", "--label", "a=<b>", "--label", "c=d", "--", "sleep", "0.3"]);
    let slow = slow.json()["id"].as_str().unwrap().to_owned();
    sandbox.retake(&["exec", "--label", "a=<b>", "--", "true"]);
    let ui = sandbox.ui();
    let page =
        ui.get("/runs?label=a%3D%3Cb%3E&label=c%3Dd&status=ok&cursor=9999999999999999.1").text();
    for part in [
        "<span>label</span> a=&lt;b&gt; <a href=\"/runs?label=c%3Dd&amp;status=ok\"",
        "<span>label</span> c=d <a href=\"/runs?label=a%3D%3Cb%3E&amp;status=ok\"",
        "<span>outcome</span> ok <a href=\"/runs?label=a%3D%3Cb%3E&amp;label=c%3Dd\"",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("<b>"), "{page}");
    assert_eq!(rows(&page).0, std::slice::from_ref(&slow));
    // Active filters are visible, and stay in the form.
    assert!(page.contains("id=\"further\" open>") && page.contains("value=\"c=d\""), "{page}");
    assert!(!ui.get("/runs").text().contains("class=\"chips\""));
    // A date without a time is accepted.
    assert_eq!(rows(&ui.get("/runs?since=2020-01-31").text()).0.len(), 2);
    assert_eq!(rows(&ui.get("/runs?until=2020-01-31").text()).0.len(), 0);
    assert_eq!(ui.get("/runs?since=2020-13-31").status, 400);
    let slowest = ui.get("/runs?sort=slowest").text();
    assert_eq!(rows(&slowest).0[0], slow, "{slowest}");
    assert_eq!(rows(&ui.get("/runs?sort=fastest").text()).0[1], slow);
    assert_eq!(rows(&ui.get("/runs?sort=oldest").text()).0[0], slow);
    assert_eq!(ui.get("/runs?sort=odd").status, 400);
    let empty = Sandbox::new();
    empty.retake(&["exec", "--", "true"]);
    empty.retake(&["runs", "delete", "last"]);
    let page = empty.ui().get("/runs").text();
    assert!(page.contains("retake exec -- COMMAND"), "{page}");
}

#[test]
fn two_marked_runs_are_compared() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    for word in ["one", "two", "three"] {
        sandbox.retake(&["exec", "--", "echo", word]);
    }
    let ui = sandbox.ui();
    browser.go(&format!("http://127.0.0.1:{}/?token={}", ui.port, ui.token));
    browser.go(&format!("http://127.0.0.1:{}/runs", ui.port));
    let button = "getComputedStyle(document.querySelector('.compare-form')).display";
    browser.until(&format!("{button} === 'none'"));
    browser.click("#rows tr:nth-child(3) input");
    browser.click("#rows tr:nth-child(1) input");
    browser.until(&format!("{button} === 'block'"));
    browser.click(".compare-form button");
    browser.until("location.pathname === '/compare' && document.querySelector('h1').textContent === '2 runs compared'");
    browser.until("document.querySelector('.diff').textContent.includes('+one') && document.querySelector('.diff').textContent.includes('−three')");
    for (width, theme) in [(1280, "light"), (390, "dark")] {
        browser.look(width, theme);
        assert_eq!(
            browser.eval("document.documentElement.scrollWidth <= innerWidth"),
            true,
            "{width}"
        );
        browser.picture(&format!("compare-{width}-{theme}"));
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn the_list_is_sorted_over_all_runs_and_has_the_columns_that_were_chosen() {
    let sandbox = Sandbox::new();
    let mut store = sandbox.gallery_store();
    let mut durations = Vec::new();
    // More than a page, and the slowest are the oldest.
    for n in 0..130u64 {
        let ms = 5000 + n * 10;
        let id = gallery::add(&mut store, &Shown { ms, ..plain("make all", n as i64, None) });
        durations.push((ms, id.to_string()));
    }
    drop(store);
    let ui = sandbox.ui();
    let ids =
        |sorted: &[(u64, String)]| sorted.iter().map(|(_, id)| id.clone()).collect::<Vec<_>>();
    assert_eq!(all_rows(&ui, "/runs?sort=fastest"), ids(&durations));
    durations.reverse();
    assert_eq!(all_rows(&ui, "/runs?sort=slowest"), ids(&durations));
    assert_eq!(all_rows(&ui, "/runs?sort=oldest"), ids(&durations));
    assert_eq!(all_rows(&ui, "/runs?sort=slowest&host=analytical&command=make"), ids(&durations));
    assert_eq!(all_rows(&ui, "/runs?host=elsewhere"), [""; 0]);
    assert_eq!(all_rows(&ui, "/runs?host=analytical").len(), 130);
    // Columns are in the address and stay when the page, the order or a filter changes.
    let page = ui.get("/runs?col=host&col=memory&col=took&kind=exec").text();
    for part in [
        "<a href=\"/runs?host=analytical\" title=\"analytical\">analytical</a>",
        "data-name=\"Memory\">205 MiB</td>",
        "<input type=\"checkbox\" name=\"col\" value=\"host\" checked>",
        "<input type=\"hidden\" name=\"kind\" value=\"exec\">",
        "<input type=\"hidden\" name=\"col\" value=\"memory\">",
        "href=\"/runs?col=host&amp;col=memory&amp;col=took&amp;kind=exec&amp;sort=slowest\">Took",
        "<a href=\"/runs?kind=exec\">Default columns</a>",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let head = page.split("<thead>").nth(1).unwrap().split("</thead>").next().unwrap();
    assert!(!head.contains("Started") && !head.contains(">Id<"), "{head}");
    let (_, next) = rows(&page);
    assert!(next.unwrap().starts_with("/runs?col=host&col=memory&col=took&kind=exec&cursor="));
    // A choice of columns is not a filter.
    assert!(
        page.contains("<span>kind</span> exec") && !page.contains("<span>col</span>"),
        "{page}"
    );
    assert_eq!(ui.get("/runs?col=colour").status, 400);
    assert_eq!(ui.get("/runs?sort=slowest&cursor=x").status, 400);
}

#[test]
fn somebody_without_a_script_chooses_columns_and_sorts() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    for seconds in ["0.2", "0.01"] {
        sandbox.retake(&["exec", "--label", "a=b", "--", "sleep", seconds]);
    }
    let ui = sandbox.ui();
    browser.go(&format!("http://127.0.0.1:{}/?token={}", ui.port, ui.token));
    browser.devtools("Emulation.setScriptExecutionDisabled", &serde_json::json!({"value": true}));
    browser.go(&format!("http://127.0.0.1:{}/runs", ui.port));
    browser.click(".columns summary");
    browser.click(".columns input[value=labels]");
    browser.click(".columns button");
    browser.click(".runs th.took a");
    browser.devtools("Emulation.setScriptExecutionDisabled", &serde_json::json!({"value": false}));
    browser.until(
        "location.search.includes('col=labels') && location.search.includes('sort=slowest')",
    );
    browser.until("document.querySelector('#rows td.labels').textContent.trim() === 'a=b'");
    browser.until("document.querySelector('#rows a').textContent === 'sleep 0.2'");
    browser.until("document.querySelector('th.took').getAttribute('aria-sort') === 'descending'");
    for (width, theme) in [(1280, "light"), (390, "dark")] {
        browser.look(width, theme);
        browser.go(&format!(
            "http://127.0.0.1:{}/runs?col=started&col=took&col=kind&col=host&col=directory&col=labels&col=commit&col=tests&col=cpu&col=memory&col=output&col=id",
            ui.port
        ));
        browser.until("document.querySelectorAll('#rows tr').length === 2");
        assert_eq!(
            browser.eval("document.documentElement.scrollWidth <= innerWidth"),
            true,
            "{width}"
        );
        // However many there are, the command stays visible.
        assert_eq!(
            browser.eval("document.querySelector('#rows .what a').getBoundingClientRect().width > 50 && document.querySelector('#rows .what').clientWidth > 200"),
            true,
            "{width}"
        );
        browser.picture(&format!("columns-{width}-{theme}"));
    }
    assert_eq!(browser.violations(), [""; 0]);
}

#[test]
fn the_values_of_a_cell_and_the_counts_of_a_loop_are_seen_beside_any_command() {
    let Some(browser) = Browser::open() else { return };
    let sandbox = Sandbox::new();
    let command = "./bench --with many --options that --make the --command longer --than the --list is --wide";
    sandbox.file(
        "matrix.yml",
        &format!(
            "command: 'true {command}'\niterations: 2\naxes: {{runtime: [node-18, node-22], size: [small, large]}}\n"
        ),
    );
    assert_eq!(sandbox.retake(&["matrix", "run", "-q"]).code, 0);
    let ui = sandbox.ui();
    browser.go(&format!("http://127.0.0.1:{}/?token={}", ui.port, ui.token));
    let id = ui.get("/api/v1/loops").json()["loops"][0]["id"].as_str().unwrap().to_owned();
    // No part of them is hidden, neither by an edge nor by an ellipsis.
    let shown = "[...document.querySelectorAll('#rows tr .beside')].map((one) => {\
                     const box = one.getBoundingClientRect(), cell = one.closest('td').getBoundingClientRect();\
                     return box.left >= cell.left && box.right <= cell.right + 1 && box.right <= innerWidth\
                         && one.scrollWidth <= one.clientWidth + 1 ? one.textContent : `hidden: ${one.textContent}`; })";
    for width in [1280, 390] {
        browser.look(width, "light");
        browser.go(&format!("http://127.0.0.1:{}/runs?loop={id}", ui.port));
        browser.until("document.querySelectorAll('#rows tr').length === 8");
        let cells: BTreeSet<String> = serde_json::from_value(browser.eval(shown)).unwrap();
        let expected = ["node-18", "node-22"].iter().flat_map(|runtime| {
            ["small", "large"].map(|size| format!("runtime={runtime} size={size}"))
        });
        assert_eq!(cells, expected.collect::<BTreeSet<_>>(), "{width}");
        browser.go(&format!("http://127.0.0.1:{}/runs", ui.port));
        browser.until("document.querySelectorAll('#rows tr').length === 1");
        assert_eq!(browser.eval(shown), serde_json::json!(["8 runs"]), "{width}");
    }
    let run = ui.get("/api/v1/runs").json()["runs"][0]["id"].as_str().unwrap().to_owned();
    browser.go(&format!("http://127.0.0.1:{}/runs/{run}", ui.port));
    browser
        .until("/runtime=node-\\d\\d size=/.test(document.querySelector('.summary').textContent)");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
