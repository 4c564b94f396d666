//! Runs as rows of a table.

use jiff::Timestamp;
use retake_runner::html::Html;
use retake_store::LoopRuns;
use retake_types::loop_record::matrix::CellLabels;
use retake_types::{Intent, Run, text};

use super::badge::{loop_runs_badge, run_badge};
use super::matrix;
use super::run_columns::RunColumns;
use crate::loops::RecordedPlan;

/// Whether rows can be marked for a comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Marking {
    None,
    Compare,
}

/// A table of runs: outcome, command, start, duration.
pub(super) fn run_table(html: &mut Html, runs: &[Run], now: Timestamp) {
    let columns = RunColumns::default();
    let longest = longest(runs.iter());
    columns.begin_table(html, None);
    for run in runs {
        run_row(html, run, &columns, (longest, now), Marking::None);
    }
    RunColumns::end_table(html);
}

/// A table of runs that each stand for several.
pub(super) fn repeated_table(html: &mut Html, runs: &[(Run, usize)], now: Timestamp) {
    let columns = RunColumns::default();
    let longest = longest(runs.iter().map(|(run, _)| run));
    columns.begin_table(html, None);
    for (run, count) in runs {
        row(html, run, &columns, (longest, now), Marking::None, *count);
    }
    RunColumns::end_table(html);
}

/// The longest duration, which sets the scale of the bars of a table.
pub(super) fn longest<'a>(runs: impl Iterator<Item = &'a Run>) -> Option<u64> {
    runs.filter_map(|run| Some(run.outcome.as_ref()?.duration_ms)).max()
}

pub(super) fn run_row(
    html: &mut Html,
    run: &Run,
    columns: &RunColumns,
    scale: (Option<u64>, Timestamp),
    marking: Marking,
) {
    row(html, run, columns, scale, marking, 1);
}

/// A row for a run, or for `count` equal ones.
fn row(
    html: &mut Html,
    run: &Run,
    columns: &RunColumns,
    scale: (Option<u64>, Timestamp),
    marking: Marking,
    count: usize,
) {
    let intent = &run.intent;
    html.markup("<tr").attr("data-id", intent.id()).markup("><td class=\"how\">");
    run_badge(html, run);
    // The command may be cut; the values beside it are not.
    html.markup("</td><td class=\"what\"><div class=\"line\"><a");
    html.attr("href", format!("/runs/{}", intent.id()));
    html.attr("title", intent.command()).markup(">").text(intent.command()).markup("</a>");
    if count > 1 {
        html.markup(" <span class=\"beside bad\">× ").text(count);
        html.markup("<span class=\"hidden\"> times lately</span></span>");
    }
    // The command of a matrix is the same in all of its cells.
    let values = cell_values(intent);
    if !values.is_empty() {
        html.markup(" <span class=\"beside faint\"").attr("title", &values).markup(">");
        html.text(&values).markup("</span>");
    }
    html.markup("</div></td>");
    columns.cells(html, run, scale, |html| match marking {
        Marking::None => _ = html.element("code", "", intent.id().short()),
        Marking::Compare => {
            html.markup("<label><input type=\"checkbox\" name=\"run\" form=\"compare\"");
            html.attr("value", intent.id());
            html.attr("aria-label", format!("Mark {} to compare it", intent.id().short()));
            html.markup("> <code>").text(intent.id().short()).markup("</code></label>");
        }
    });
    html.markup("</tr>\n");
}

/// The axis values of the cell that a run measured; empty for any other run.
pub(super) fn cell_values(intent: &Intent) -> String {
    let axes = CellLabels::axes(&intent.request.labels);
    let values = axes.map(|(axis, value)| format!("{axis}={}", matrix::shorten_commits(value)));
    values.collect::<Vec<_>>().join(" ")
}

/// All runs of a loop as one row.
pub(super) fn loop_row(
    html: &mut Html,
    runs: &LoopRuns,
    plan: &RecordedPlan,
    columns: &RunColumns,
    now: Timestamp,
) {
    let newest = &runs.newest.intent;
    html.markup("<tr class=\"group\"").attr("data-id", runs.id).markup("><td class=\"how\">");
    loop_runs_badge(html, runs);
    html.markup("</td><td class=\"what\"><div class=\"line\"><a");
    html.attr("href", format!("/loops/{}", runs.id));
    let title = plan.title();
    let title = if title.is_empty() { newest.command().to_owned() } else { title };
    html.attr("title", &title).markup(">").text(&title).markup("</a> ");
    let extent = plan.extent();
    if !extent.is_empty() {
        html.markup("<span class=\"extent faint\"").attr("title", &extent).markup(">");
        html.text(matrix::shorten_commits(&extent)).markup("</span> ");
    }
    html.markup("<span class=\"beside\">");
    let count = match runs.more {
        true => format!("more than {} runs", runs.runs),
        false => text::count(runs.runs, "run"),
    };
    html.link(&format!("/runs?loop={}", runs.id), count);
    if runs.failed > 0 {
        html.markup(", ").element("span", "bad", format!("{} failed", runs.failed));
    }
    html.markup("</span></div></td>");
    columns.loop_cells(html, runs, now);
    html.markup("</tr>\n");
}

/// The time since a start; the script updates it.
pub(super) fn elapsed(html: &mut Html, since: Timestamp, now: Timestamp) {
    let seconds = now.duration_since(since).as_secs().max(0);
    html.markup("<span").attr("data-since", since).markup(">");
    match seconds {
        0..60 => html.text(format!("{seconds}s")),
        60..3600 => html.text(format!("{}m{:02}s", seconds / 60, seconds % 60)),
        _ => html.text(format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60)),
    };
    html.markup("</span>");
}

/// A duration relative to the longest one, on a logarithmic scale.
pub(super) fn bar(html: &mut Html, ms: u64, longest: u64) {
    let magnitude = |ms: u64| (ms.max(1) as f64).ln() + 1.0;
    let width = magnitude(ms) / magnitude(longest) * 100.0;
    html.markup("<svg class=\"bar\" viewBox=\"0 0 100 4\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect height=\"4\"");
    html.attr("width", format!("{width:.0}")).markup("/></svg>");
}
