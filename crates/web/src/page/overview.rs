//! The overview page.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Uri;
use jiff::Timestamp;
use retake_runner::html::Html;
use retake_store::{Head, Verification};
use retake_types::text;

use super::badge::loop_badge;
use super::layout::{HtmlResponse, PageError, Section, layout};
use super::run_table::{repeated_table, run_table};
use super::tests::test_table;
use crate::api::Overview;
use crate::app::App;
use crate::audit::AuditState;
use crate::chart::{Chart, Series, Shape, Unit};
use crate::figures::{Figures, TimeRange};
use crate::loops::LoopSummary;
use crate::params::{Params, address_of};
use crate::projects::State;
use crate::test_summary::{TestSummaries, TestSummary};

/// How many tests are listed.
const FLAKIEST: usize = 5;

pub(crate) async fn overview(
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<HtmlResponse, PageError> {
    let params = Params::from_uri(&uri);
    let overview = app.overview(&params).await?;
    let mut main = Html::new();
    main.markup(
        "<h1 class=\"hidden\">Overview</h1><div id=\"overview\" data-live data-every=\"5\">",
    );
    let figures = &overview.figures;
    if figures.totals.runs == 0 {
        main.markup("<p class=\"empty\">No run is recorded yet. <code>retake exec -- COMMAND</code> records one; <code>retake matrix run</code> and <code>retake agent run</code> record loops of them.</p>");
    }
    tiles(&mut main, &overview);
    main.markup("<section class=\"charts\"><div class=\"tools\"><h2>Over time</h2><nav class=\"switch\" aria-label=\"How far back\">");
    for range in TimeRange::ALL {
        main.markup("<a").attr("href", params.with("/", &[("range", range.as_str())]));
        if range == figures.range {
            main.markup(" aria-current=\"true\"");
        }
        main.markup(">").markup(range.as_str()).markup("</a>");
    }
    main.markup("</nav></div><div class=\"pair\">");
    charts(&mut main, figures);
    main.markup("</div></section>");
    let now = Timestamp::now();
    main.markup("<section><h2>Running now</h2>");
    if overview.running.is_empty() {
        main.markup("<p class=\"empty\">Nothing is running.</p>");
    } else {
        run_table(&mut main, &overview.running, now);
    }
    main.markup("</section><section><h2>Loops</h2>");
    loops(&mut main, &overview.loops, now);
    main.markup("</section><section><h2>Recent failures</h2>");
    if overview.failures.is_empty() {
        main.markup("<p class=\"empty\">No run has failed.</p>");
    } else {
        repeated_table(&mut main, &overview.failures, now);
        main.markup("<p class=\"pages\"><a href=\"/runs?status=failed\">All failures</a></p>");
    }
    main.markup("</section>");
    slowest(&mut main, figures, now);
    flakiest(&mut main, &overview.tests);
    main.markup("</div>");
    Ok(layout("Overview", Section::Overview, Some(app.frame()), &main))
}

/// The commands with the longest runs, each by its slowest run.
fn slowest(html: &mut Html, figures: &Figures, now: Timestamp) {
    // A few short runs are not worth a list.
    if figures.slowest.len() < 2 {
        return;
    }
    html.markup("<section><h2>Slowest commands</h2>");
    run_table(html, &figures.slowest, now);
    let since = figures.since.to_string();
    html.markup("<p class=\"pages\">");
    html.link(&address_of("/runs", &[("since", &since), ("sort", "slowest")]), "All by duration");
    html.markup("</p></section>");
}

/// The tests whose results change most often.
fn flakiest(html: &mut Html, tests: &TestSummaries) {
    let mut flaky: Vec<&TestSummary> = tests.tests.iter().filter(|one| one.is_flaky()).collect();
    if flaky.is_empty() {
        return;
    }
    flaky.sort_by_key(|one| Reverse((one.flaky_percent, one.flips)));
    flaky.truncate(FLAKIEST);
    html.markup("<section><h2>Flakiest tests</h2>");
    test_table(html, &flaky);
    html.markup("<p class=\"pages\"><a href=\"/tests?show=flaky&amp;sort=flaky\">All flaky tests</a></p></section>");
}

pub(super) fn loops(html: &mut Html, loops: &[LoopSummary], now: Timestamp) {
    if loops.is_empty() {
        html.markup("<p class=\"empty\">No loop has been recorded yet. <code>retake matrix run</code> compares versions and settings, <code>retake agent run</code> lets a coding agent work.</p>");
        return;
    }
    html.markup("<table class=\"loops\"><thead><tr><th scope=\"col\">State</th><th scope=\"col\">Kind</th><th scope=\"col\">Loop</th><th scope=\"col\">Started</th><th scope=\"col\" class=\"id\">Id</th></tr></thead><tbody id=\"rows\">");
    for summary in loops {
        let id = summary.id.to_string();
        html.markup("<tr").attr("data-id", &id).markup("><td class=\"how\">");
        loop_badge(html, &summary.status());
        html.markup("</td><td>").markup(summary.kind.as_str()).markup("</td><td class=\"what\">");
        let title = summary.title();
        let title = if title.is_empty() { "(no plan recorded)" } else { &title };
        html.link(&format!("/loops/{id}"), title).markup("</td><td class=\"when\">");
        html.time(summary.start_time, now).markup("</td><td class=\"id\"><code>");
        html.text(summary.id.short()).markup("</code></td></tr>");
    }
    html.markup("</tbody></table>");
}

fn tile(html: &mut Html, name: &'static str, value: &str, below: &str, class: &'static str) {
    html.markup("<div class=\"tile ")
        .markup(class)
        .markup("\"><h2>")
        .markup(name)
        .markup("</h2><p class=\"big\">");
    html.text(value).markup("</p><p class=\"faint\">").text(below).markup("</p></div>");
}

fn tiles(html: &mut Html, overview: &Overview) {
    let figures = &overview.figures;
    let finished: u64 = figures.slices.iter().map(|slice| slice.ok + slice.failed).sum();
    let failed: u64 = figures.slices.iter().map(|slice| slice.failed).sum();
    html.markup("<section class=\"tiles\">");
    let running = overview.running.len();
    let running_loops = overview.loops.iter().filter(|summary| summary.running).count();
    tile(
        html,
        "Running",
        &running.to_string(),
        &text::count(running_loops as u64, "loop"),
        if running > 0 { "live" } else { "" },
    );
    let total = figures.totals;
    tile(html, "Runs", &grouped(total.runs), &format!("{} failed", grouped(total.failed)), "");
    let rate = match finished {
        0 => "–".to_owned(),
        _ => format!("{:.1} %", failed as f64 / finished as f64 * 100.0),
    };
    let range = match figures.range {
        TimeRange::All => "all runs".to_owned(),
        range => format!("runs in {}", range.as_str()),
    };
    let below = format!("{} of {} {range}", grouped(failed), grouped(finished));
    tile(html, "Failure rate", &rate, &below, "");
    if let Some(disk) = figures.disk {
        let below = format!(
            "{} database, {} output",
            text::size(disk.database),
            text::size(disk.spool + disk.output)
        );
        tile(html, "Disk", &text::size(disk.total()), &below, "");
    }
    if let Some(head) = figures.head {
        audit(html, overview, head);
    }
    html.markup("</section>");
}

fn audit(html: &mut Html, overview: &Overview, head: Head) {
    let now = Timestamp::now();
    let (value, below, class) = match &overview.audit {
        AuditState::NotVerified => ("not verified", "since the server was started".to_owned(), ""),
        AuditState::Verifying { .. } => {
            ("verifying…", "the whole chain and all output are read".to_owned(), "")
        }
        AuditState::Failed { why, .. } => ("not verified", why.clone(), "bad"),
        AuditState::Verified { at, found: Verification::Intact(_) } => {
            ("intact", format!("verified {}", text::ago(*at, now)), "good")
        }
        AuditState::Verified { found: Verification::Broken(found), .. } => {
            let first = found.first().map_or_else(String::new, ToString::to_string);
            let more = match found.len() {
                0 | 1 => String::new(),
                many => format!("; {} more", many - 1),
            };
            ("broken", first + &more, "bad")
        }
    };
    html.markup("<div class=\"tile ")
        .markup(class)
        .markup("\"><h2>Audit</h2><p class=\"big\">")
        .text(value);
    html.markup("</p><p class=\"faint\">").text(&below).markup("</p><p class=\"faint\"");
    html.attr("title", head).markup(">").text(grouped(head.count)).markup(" entries ");
    html.markup(
        "<button class=\"small\" data-post=\"/api/v1/audit\" hidden>Verify</button></p></div>",
    );
}

/// `1 234 567`, with non-breaking spaces.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

fn charts(html: &mut Html, figures: &Figures) {
    let of = |value: fn(&retake_store::TimeSlice) -> Option<u64>| -> Vec<Option<f64>> {
        figures.slices.iter().map(|slice| value(slice).map(|value| value as f64)).collect()
    };
    let (ok, failed) = (of(|slice| Some(slice.ok)), of(|slice| Some(slice.failed)));
    let (middle, high) = (of(|slice| slice.p50_ms), of(|slice| slice.p95_ms));
    let length = figures.until.duration_since(figures.since) / figures.slices.len().max(1) as i32;
    let time = |ms: Option<u64>| {
        ms.map_or("–".to_owned(), |ms| text::duration(Duration::from_millis(ms)))
    };
    let titles: Vec<String> = figures
        .slices
        .iter()
        .enumerate()
        .map(|(at, slice)| {
            let from = figures.since + length * at as i32;
            format!(
                "from {}: {} ok, {} failed; median {}, 95th percentile {}",
                text::moment(from),
                slice.ok,
                slice.failed,
                time(slice.p50_ms),
                time(slice.p95_ms)
            )
        })
        .collect();
    let since = text::moment(figures.since);
    let day = since.get(..16).unwrap_or_default().replace('T', " ");
    let ends = (day.as_str(), "now");
    let totals: (f64, f64) = (ok.iter().flatten().sum(), failed.iter().flatten().sum());
    let says = format!("Runs over time since {since}: {} ok, {} failed", totals.0, totals.1);
    let series = [Series { class: "failed", values: &failed }, Series { class: "ok", values: &ok }];
    let (shape, unit) = (Shape::Stacked, Unit::Count);
    let links: Vec<String> = (0..figures.slices.len())
        .map(|at| {
            let [from, to] =
                [at, at + 1].map(|at| (figures.since + length * at as i32).to_string());
            address_of("/runs", &[("since", &from), ("until", &to)])
        })
        .collect();
    Chart { says: &says, series: &series, shape, unit, ends, titles: &titles, links: &links }
        .figure(html, |html| {
            html.markup(
                "Runs <span class=\"key ok\">ok</span> <span class=\"key failed\">failed</span>",
            );
        });
    let longest = high.iter().flatten().fold(0.0f64, |a, b| a.max(*b));
    let says = format!(
        "Duration of runs over time: median and 95th percentile, which was {} at most",
        time(Some(longest as u64))
    );
    let series = [Series { class: "p95", values: &high }, Series { class: "p50", values: &middle }];
    let (shape, unit) = (Shape::Lines, Unit::Milliseconds);
    Chart { says: &says, series: &series, shape, unit, ends, titles: &titles, links: &[] }
        .figure(html, |html| {
            html.markup("Duration <span class=\"key p50\">median</span> <span class=\"key p95\">95th percentile</span>");
        });
}
