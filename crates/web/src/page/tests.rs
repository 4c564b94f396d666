//! All named tests of all runs, and the page of one test.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Uri;
use jiff::Timestamp;
use retake_runner::html::Html;
use retake_store::{TestHistory, TestResult};
use retake_types::{Effects, Run, RunId, TestStatus, text};

use super::badge::{test_badge, test_word};
use super::failure::compare_address;
use super::layout::{HtmlResponse, PageError, Section, layout};
use super::runs::choice;
use crate::app::App;
use crate::chart::{Chart, Series, Shape, Unit};
use crate::error::RequestError;
use crate::params::{Params, address_of};
use crate::projects::State;
use crate::store_pool::Store;
use crate::test_summary::{
    DRAWN, DrawnResult, Order, RunPlace, Shown, TestQuery, TestSummaries, TestSummary,
};

const PAGE: usize = 50;
/// How many results of a test its page reads, and how many it lists.
const RESULTS: usize = 500;
const ROWS: usize = 100;

pub(crate) async fn tests(
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<HtmlResponse, PageError> {
    let params = Params::from_uri(&uri);
    let query = TestQuery::from_params(&params)?;
    let all = app.tests.get(&app.store, (), TestSummaries::count).await?;
    let (found, count) = query.page(&all, PAGE);
    let mut main = Html::new();
    main.markup("<h1>Tests</h1>");
    form(&mut main, &params, query.order);
    main.markup("<div id=\"results\" data-live data-every=\"5\">");
    if app.shared.as_ref().is_some_and(|scope| scope.project.is_none()) {
        main.markup("<p class=\"empty\">Choose a project above: tests of two projects may have the same name, and are not mixed.</p>");
    } else if found.is_empty() {
        nothing(&mut main, &all, &query);
    } else {
        test_table(&mut main, &found);
        pages(&mut main, &params, &query, count);
    }
    main.markup("<p class=\"faint\">Counted ").time(all.counted_at, Timestamp::now());
    main.markup(".</p></div>");
    Ok(layout("Tests", Section::Tests, Some(app.frame()), &main))
}

fn form(html: &mut Html, params: &Params, order: Order) {
    html.markup("<form class=\"filters\" id=\"tests-form\" action=\"/tests\" role=\"search\"><label class=\"wide\">Name has<input type=\"search\" name=\"name\" id=\"search\" autocomplete=\"off\" placeholder=\"a part of the name  /\"");
    html.attr("value", params.get("name").unwrap_or_default()).markup("></label>");
    let shown = Shown::ALL.map(|one| match one {
        Shown::All => ("", "all tests"),
        Shown::Failing => ("failing", "failing now"),
        Shown::Flaky => ("flaky", "flaky"),
        Shown::Slower => ("slower", "slower lately"),
    });
    choice(html, "Show", "show", &shown, params.get("show").unwrap_or_default());
    let orders = Order::ALL.map(|(_, word, name)| (word, name));
    let chosen = Order::ALL.into_iter().find(|(one, ..)| *one == order);
    choice(html, "Sort by", "sort", &orders, chosen.map_or("", |(_, word, _)| word));
    html.markup("<button>Show</button></form>");
}

fn nothing(html: &mut Html, all: &TestSummaries, query: &TestQuery) {
    html.markup("<div class=\"empty\">");
    if !all.tests.is_empty() {
        html.markup("<p>No ").markup(match query.shown {
            Shown::All => "",
            Shown::Failing => "failing ",
            Shown::Flaky => "flaky ",
            Shown::Slower => "slower ",
        });
        html.markup("test among ").text(all.tests.len());
        html.markup(if query.name.is_empty() { ".</p>" } else { " has this in its name.</p>" });
    } else if all.runs > 0 {
        html.markup("<p>").text(text::count(all.runs, "run"));
        html.markup(" had tests but named none; most test runners name passing tests with <code>-v</code>.</p>");
    } else {
        html.markup("<p>No test was recorded yet. <code>retake exec --tests -- cargo test</code> records the results of a run; 15 test frameworks are known.</p>");
    }
    html.markup("</div>");
}

/// A table of tests: last result, name, newest results, start of failures, duration.
pub(super) fn test_table(html: &mut Html, tests: &[&TestSummary]) {
    html.markup("<table class=\"tests\"><thead><tr><th scope=\"col\">Last</th><th scope=\"col\">Test</th><th scope=\"col\">Last ");
    html.text(DRAWN).markup(" results</th><th scope=\"col\" class=\"n\">Flaky</th><th scope=\"col\">Failing since</th><th scope=\"col\" class=\"n\">Took</th></tr></thead><tbody data-rows>");
    let now = Timestamp::now();
    for test in tests {
        html.markup("<tr").attr("data-id", &test.name).markup("><td class=\"how\">");
        test_badge(html, test.status);
        html.markup("</td><td class=\"what\"><a").attr("href", test_address(&test.name));
        html.attr("title", &test.name)
            .markup(">")
            .text(&test.name)
            .markup("</a></td><td class=\"strip-cell\">");
        strip(html, &test.results);
        html.markup("</td><td class=\"n\">");
        if test.is_flaky() {
            html.element("span", "open", format!("{} %", test.flaky_percent));
            html.markup("<span class=\"only-narrow\"> flaky</span>");
        }
        html.markup("</td><td class=\"since\">");
        if let Some(since) = test.failing_since {
            failing_since(html, since, test.last_passed, now);
        }
        html.markup("</td><td class=\"n\">");
        html.text(test.p50_ms.map(duration).unwrap_or_default());
        if let Some(percent) = test.trend_percent.filter(|percent| percent.abs() >= 10) {
            let class = if percent > 0 { "bad" } else { "good" };
            html.markup(" ").element("span", class, format!("{percent:+} %"));
        }
        html.markup("</td></tr>");
    }
    html.markup("</tbody></table>");
}

fn failing_since(html: &mut Html, since: RunPlace, passed: Option<RunPlace>, now: Timestamp) {
    html.link(&format!("/runs/{}", since.run_id), since.run_id.short()).markup(" ");
    html.time(since.at, now);
    if let Some(passed) = passed {
        html.markup(", ").link(&compare_address(&[passed.run_id, since.run_id]), "what changed");
    }
}

pub(super) fn test_address(name: &str) -> String {
    address_of("/test", &[("name", name)])
}

fn duration(ms: u64) -> String {
    text::duration(Duration::from_millis(ms))
}

/// Results as a row of marks, oldest first, with a description for screen readers.
fn strip(html: &mut Html, results: &[DrawnResult]) {
    let failed = results.iter().filter(|result| result.status.is_failure()).count();
    html.markup("<span class=\"results\" role=\"img\"")
        .attr("aria-label", format!("{failed} of the last {} results are failures", results.len()));
    html.markup(">");
    for result in results {
        html.markup("<i class=\"").markup(mark_class(result)).markup("\"></i>");
    }
    html.markup("</span>");
}

fn mark_class(result: &DrawnResult) -> &'static str {
    match result.status {
        _ if result.inferred => "r-inferred",
        TestStatus::Passed => "r-passed",
        TestStatus::Failed => "r-failed",
        TestStatus::Error => "r-error",
        TestStatus::Skipped => "r-skipped",
    }
}

fn pages(html: &mut Html, params: &Params, query: &TestQuery, count: usize) {
    html.markup("<p class=\"pages\"><span class=\"faint\">").text(query.skip + 1).markup(" to ");
    html.text((query.skip + PAGE).min(count)).markup(" of ").text(count).markup("</span>");
    if query.skip > 0 {
        let before = query.skip.saturating_sub(PAGE);
        let skip = if before == 0 { String::new() } else { before.to_string() };
        html.markup(" ").link(&params.with("/tests", &[("skip", &skip)]), "Earlier");
    }
    if query.skip + PAGE < count {
        let skip = (query.skip + PAGE).to_string();
        html.markup(" <a rel=\"next\"").attr("href", params.with("/tests", &[("skip", &skip)]));
        html.markup(">More</a>");
    }
    html.markup("</p>");
}

/// A test, with the run in which it last failed.
struct TestView {
    history: TestHistory,
    failure: Option<(RunId, Option<String>)>,
}

impl TestView {
    fn read(store: &Store, name: &str) -> Result<Self, RequestError> {
        let history = store.test_named(name, RESULTS)?.ok_or_else(|| {
            RequestError::not_found(format!("no recorded run names a test `{name}`"))
        })?;
        let failure = history.results.iter().rev().find(|result| result.status.is_failure());
        let failure = match failure {
            Some(result) => {
                let run = store.get(result.run)?;
                Some((result.run, error_text(&run, name)))
            }
            None => None,
        };
        Ok(Self { history, failure })
    }
}

/// The error that a run recorded for a test.
fn error_text(run: &Run, name: &str) -> Option<String> {
    let effects = run.outcome.as_ref()?.effects.as_ref()?;
    let results = Effects::observations(effects)?.test_results.as_ref()?;
    results.failing().find(|test| test.name == name)?.error.clone()
}

pub(crate) async fn test(State(app): State<Arc<App>>, uri: Uri) -> Result<HtmlResponse, PageError> {
    let params = Params::from_uri(&uri);
    let name = params.get("name").unwrap_or_default().to_owned();
    let view = app.store.read(move |store| TestView::read(store, &name)).await?;
    let history = &view.history;
    let missing = || RequestError::not_found("this test has no results any more");
    let summary = TestSummary::of(history).ok_or_else(missing)?;
    let mut main = Html::new();
    main.markup("<div class=\"head\"><p class=\"crumbs\"><a href=\"/tests\">Tests</a></p><h1 class=\"command\">");
    main.text(&summary.name).markup("</h1><p class=\"summary\">");
    test_badge(&mut main, summary.status);
    main.markup(" <span>ran ").time(summary.last.at, Timestamp::now()).markup("</span></p></div>");
    facts(&mut main, &summary);
    if let Some((run, error)) = &view.failure {
        main.markup("<section><h2>Last failure</h2><p>in ");
        main.link(&format!("/runs/{run}"), run.short()).markup(" · ");
        let found = address_of(&format!("/runs/{run}"), &[("find", &summary.name)]);
        main.link(&format!("{found}#match"), "find it in the output").markup("</p>");
        if let Some(error) = error {
            main.markup("<pre class=\"snippet\">").lines(error).markup("</pre>");
        }
        main.markup("</section>");
    }
    trend_chart(&mut main, &history.results);
    rows(&mut main, &history.results);
    Ok(layout(&summary.name, Section::Tests, Some(app.frame()), &main))
}

fn facts(html: &mut Html, test: &TestSummary) {
    let now = Timestamp::now();
    html.markup("<section class=\"card\"><h2>Summary</h2><dl>");
    html.definition("results", &format!("{}, of which {} failed", test.runs, test.failed));
    if test.is_flaky() {
        let words = format!(
            "{} % of the newest results differ from the one before; {} changes in all",
            test.flaky_percent, test.flips
        );
        html.definition("flaky", &words);
    }
    let mut place = |name: &'static str, place: Option<RunPlace>| {
        if let Some(RunPlace { run_id, at }) = place {
            html.markup("<dt>").markup(name).markup("</dt><dd>");
            html.link(&format!("/runs/{run_id}"), run_id.short()).markup(" ").time(at, now);
            html.markup("</dd>");
        }
    };
    place("first failure", test.first_failure);
    place("last passed", test.last_passed);
    place("failing since", test.failing_since);
    if let (Some(since), Some(passed)) = (test.failing_since, test.last_passed) {
        html.markup("<dt>what changed</dt><dd>");
        let address = compare_address(&[passed.run_id, since.run_id]);
        html.link(&address, "between the run that last passed and the first that failed");
        html.markup("</dd>");
    }
    html.definition("median duration", &test.p50_ms.map(duration).unwrap_or_default());
    if let Some(percent) = test.trend_percent.filter(|percent| *percent != 0) {
        html.definition("latest durations", &format!("{percent:+} % against those before"));
    }
    html.markup("</dl></section>");
}

fn trend_chart(html: &mut Html, results: &[TestResult]) {
    let timed: Vec<&TestResult> = results.iter().filter(|r| r.duration_ms.is_some()).collect();
    let timed = &timed[timed.len().saturating_sub(ROWS)..];
    if timed.len() < 3 {
        return;
    }
    let values: Vec<Option<f64>> =
        timed.iter().map(|result| result.duration_ms.map(|ms| ms as f64)).collect();
    let titles: Vec<String> = timed
        .iter()
        .map(|result| {
            let took = result.duration_ms.map(duration).unwrap_or_default();
            format!("{}: {} in {took}", text::moment(result.at), test_word(result.status))
        })
        .collect();
    let first = timed.first().map(|result| text::moment(result.at)).unwrap_or_default();
    let ends = (first.get(..10).unwrap_or_default(), "now");
    html.markup("<section class=\"charts\"><div class=\"pair\">");
    let says = format!("Duration in the last {} runs", timed.len());
    Chart {
        says: &says,
        series: &[Series { class: "p50", values: &values }],
        shape: Shape::Lines,
        unit: Unit::Milliseconds,
        ends,
        titles: &titles,
        links: &[],
    }
    .figure(html, |html| _ = html.text(&says));
    html.markup("</div></section>");
}

fn rows(html: &mut Html, results: &[TestResult]) {
    html.markup("<section><h2>Results</h2><table class=\"results-table\"><thead><tr><th scope=\"col\">Result</th><th scope=\"col\">Run</th><th scope=\"col\">When</th><th scope=\"col\" class=\"n\">Took</th></tr></thead><tbody id=\"rows\">");
    let now = Timestamp::now();
    for result in results.iter().rev().take(ROWS) {
        html.markup("<tr><td>");
        if result.inferred {
            html.markup("<span class=\"faint\" title=\"a complete run of the same command that does not name it among those that failed\">did not fail</span>");
        } else {
            test_badge(html, result.status);
        }
        html.markup("</td><td>").link(&format!("/runs/{}", result.run), result.run.short());
        html.markup("</td><td class=\"when\">")
            .time(result.at, now)
            .markup("</td><td class=\"n\">");
        html.text(result.duration_ms.map(duration).unwrap_or_default()).markup("</td></tr>");
    }
    html.markup("</tbody></table>");
    if results.len() > ROWS {
        html.markup("<p class=\"faint\">").text(results.len() - ROWS);
        html.markup(
            " older results are not listed; <code>retake tests</code> has all of them.</p>",
        );
    }
    html.markup("</section>");
}
