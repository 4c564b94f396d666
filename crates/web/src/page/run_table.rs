//! Runs as rows of a table.

use jiff::Timestamp;
use retake_runner::html::Html;
use retake_runner::run_text;
use retake_types::Run;
use retake_types::loop_record::matrix::CellLabels;

use super::badge::run_badge;
use super::matrix;

pub(super) const RUN_TABLE_HEAD: &str = "<thead><tr><th scope=\"col\">Outcome</th><th scope=\"col\">Command</th>\
                        <th scope=\"col\">Started</th><th scope=\"col\" class=\"took\">Took</th>\
                        <th scope=\"col\" class=\"kind\">Kind</th><th scope=\"col\" class=\"id\">Id</th></tr></thead>";

/// Rows of runs: how, what, when, how long.
pub(super) fn run_rows(html: &mut Html, runs: &[Run], now: Timestamp) {
    let longest = runs.iter().filter_map(|run| Some(run.outcome.as_ref()?.duration_ms)).max();
    for run in runs {
        let intent = &run.intent;
        html.markup("<tr").attr("data-id", intent.id()).markup("><td class=\"how\">");
        run_badge(html, run);
        html.markup("</td><td class=\"what\"><a").attr("href", format!("/runs/{}", intent.id()));
        html.attr("title", intent.command()).markup(">").text(intent.command()).markup("</a>");
        // The command of a matrix is the same in all of its cells.
        for (axis, value) in CellLabels::axes(&intent.request.labels) {
            let value = format!("{axis}={}", matrix::shorten_commits(value));
            html.markup(" ").element("span", "faint", value);
        }
        html.markup("</td><td class=\"when\">");
        html.time(intent.start_time, now).markup("</td><td class=\"took\">");
        html.text(run_text::duration(run));
        if let (Some(outcome), Some(longest)) = (&run.outcome, longest) {
            bar(html, outcome.duration_ms, longest);
        }
        html.markup("</td><td class=\"kind\">").markup(intent.kind().as_str());
        html.markup("</td><td class=\"id\"><code>")
            .text(intent.id().short())
            .markup("</code></td></tr>\n");
    }
}

/// A duration beside the longest one, on a logarithmic scale.
fn bar(html: &mut Html, ms: u64, longest: u64) {
    let magnitude = |ms: u64| (ms.max(1) as f64).ln() + 1.0;
    let width = magnitude(ms) / magnitude(longest) * 100.0;
    html.markup("<svg class=\"bar\" viewBox=\"0 0 100 4\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect height=\"4\"");
    html.attr("width", format!("{width:.0}")).markup("/></svg>");
}
