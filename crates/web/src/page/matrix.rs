//! A matrix: its heat map, the samples of each cell, comparisons, and the steps of a bisection.

use std::sync::LazyLock;

use regex::Regex;
use retake_matrix::history::{CommitHistory, CommitSeries};
use retake_matrix::report;
use retake_matrix::stats::{self, Comparison, Verdict};
use retake_runner::html::Html;
use retake_types::LoopId;
use retake_types::loop_record::matrix::{BisectAnswer, PointVerdict};
use retake_types::text;

use super::layout::cell;
use crate::chart;
use crate::loops::matrix::{BisectStep, Cell, MatrixDetail};
use crate::params::Params;

/// Runs of a bisection that are drawn; the table has all.
const MAX_DRAWN_STEPS: usize = 60;
/// Dots of all cells together, so that the page loads fast.
const MAX_DOTS: usize = 1500;

pub(super) fn write(html: &mut Html, matrix: &MatrixDetail, params: &Params, id: LoopId) {
    html.markup("<div class=\"tools\"><p class=\"faint\">")
        .text(text::count(matrix.runs as u64, "run"));
    if matrix.running > 0 {
        html.markup(", ").text(matrix.running).markup(" under way");
    }
    if matrix.cut {
        html.markup("; older ones were not searched");
    }
    html.markup("</p><nav class=\"switch\" aria-label=\"Metric\">");
    for metric in &matrix.metrics {
        html.markup("<a").attr("href", params.with(&format!("/loops/{id}"), &[("metric", metric)]));
        if *metric == matrix.metric {
            html.markup(" aria-current=\"true\"");
        }
        html.markup(">").text(metric).markup("</a>");
    }
    html.markup("</nav></div>");
    if matrix.searched.is_some() {
        bisection(html, matrix);
    }
    if matrix.cells.is_empty() {
        if matrix.searched.is_none() {
            html.markup("<p class=\"empty\">No cell has a result yet.</p>");
        }
        return;
    }
    if matrix.searched.is_none() {
        differences(html, &matrix.comparisons);
        heat_map(html, matrix);
    }
    distributions(html, matrix);
    if !matrix.comparisons.is_empty() {
        comparisons(html, &matrix.comparisons);
    }
    if let Some(history) = &matrix.history {
        over_commits(html, history);
    }
}

/// Differences that are listed before everything else.
const MAX_DIFFERENCES: usize = 8;

/// Comparisons with those that are sure first, and the largest differences first among those alike.
fn by_significance(comparisons: &[Comparison]) -> Vec<&Comparison> {
    let rank = |one: &Comparison| match one.verdict {
        Verdict::Faster | Verdict::Slower => 0,
        Verdict::NotSure => 1,
        Verdict::Same => 2,
    };
    let size = |one: &Comparison| one.size().unwrap_or(0.0).abs();
    let mut sorted: Vec<&Comparison> = comparisons.iter().collect();
    sorted.sort_by(|a, b| rank(a).cmp(&rank(b)).then(size(b).total_cmp(&size(a))));
    sorted
}

/// What differs for sure, in sentences.
fn differences(html: &mut Html, comparisons: &[Comparison]) {
    if comparisons.is_empty() {
        return;
    }
    html.markup("<section><h2>What differs</h2>");
    let is_different = |one: &&Comparison| matches!(one.verdict, Verdict::Faster | Verdict::Slower);
    let sure: Vec<&Comparison> =
        by_significance(comparisons).into_iter().filter(is_different).collect();
    if sure.is_empty() {
        html.markup("<p class=\"empty\">No difference is sure.</p></section>");
        return;
    }
    html.markup("<ul class=\"plain differences\">");
    for one in sure.iter().take(MAX_DIFFERENCES) {
        html.markup("<li>").element("span", verdict_class(one), mark_of(one)).markup(" ");
        html.text(shorten_commits(&one.sentence())).markup("</li>");
    }
    html.markup("</ul>");
    if sure.len() > MAX_DIFFERENCES {
        html.markup("<p class=\"faint\">").text(sure.len() - MAX_DIFFERENCES);
        html.markup(" more are in the table of comparisons.</p>");
    }
    html.markup("</section>");
}

fn verdict_class(one: &Comparison) -> &'static str {
    match one.verdict {
        Verdict::Faster => "good",
        Verdict::Slower => "bad",
        Verdict::Same | Verdict::NotSure => "",
    }
}

/// A sign beside the colour.
fn mark_of(one: &Comparison) -> &'static str {
    if one.is_more() { "▲" } else { "▼" }
}

/// The metric over commits, as `retake matrix history` shows it.
fn over_commits(html: &mut Html, history: &CommitHistory) {
    let unit = history.unit.as_deref();
    for series in history.series.iter().filter(|series| series.commits.len() > 1) {
        html.markup("<section><h2>History of ").text(&history.metric);
        if let Some(cell) = &series.cell {
            html.markup(" with ").text(cell);
        }
        html.markup("</h2><p class=\"faint legend\">");
        html.text(text::count(series.commits.len() as u64, "commit"));
        html.markup(" of ").text(&history.reference).markup(", ");
        html.text(text::count(history.sessions.len() as u64, "session"));
        html.markup(", the oldest first; bars are 95 % intervals</p>");
        let sentences: Vec<String> =
            series.changes.iter().map(|one| one.sentence(&history.metric, unit)).collect();
        let says = match &sentences[..] {
            [] => format!("{}: no change is sure", history.metric),
            sentences => sentences.join("; "),
        };
        report::over_commits(html, series, unit, &says);
        if sentences.is_empty() {
            html.element("p", "faint", "No change is sure.");
        }
        for (change, sentence) in series.changes.iter().zip(&sentences) {
            html.element("p", if change.is_sure() { "" } else { "faint" }, sentence);
        }
        for session in history.sessions.iter().filter(|session| !session.differs.is_empty()) {
            let differs: Vec<String> =
                session.differs.iter().map(|(name, value)| format!("{name} {value}")).collect();
            let text =
                format!("Session {} ran with another {}", session.number, differs.join(", "));
            html.element("p", "faint", text);
        }
        commits(html, series, unit);
        html.markup("</section>");
    }
}

fn commits(html: &mut Html, series: &CommitSeries, unit: Option<&str>) {
    html.markup("<details><summary>Commits</summary><div class=\"scroll tall\" tabindex=\"0\" role=\"region\" aria-label=\"Commits\"><table class=\"stack\"><thead><tr><th scope=\"col\">Commit</th><th scope=\"col\">Subject</th><th scope=\"col\" class=\"n\">Median</th><th scope=\"col\" class=\"n\">Interval</th><th scope=\"col\" class=\"n\">Runs</th><th scope=\"col\" class=\"n\">Change</th></tr></thead><tbody>");
    let value = |value: f64| stats::value_text(value, unit);
    for row in &series.commits {
        html.markup("<tr><th scope=\"row\"><code").attr("title", &row.sha).markup(">");
        html.text(shorten_commits(&row.sha)).markup("</code></th>");
        cell(html, "subject", "");
        html.text(&row.subject).markup("</td>");
        cell(html, "median", "n");
        html.text(row.summary.as_ref().map(|summary| value(summary.median)).unwrap_or_default());
        html.markup("</td>");
        cell(html, "interval", "n");
        if let Some([low, high]) = row.interval {
            html.text(format!("{} to {}", value(low), value(high)));
        }
        html.markup("</td>");
        cell(html, "runs", "n");
        html.text(row.summary.as_ref().map_or(0, |summary| summary.samples)).markup("</td>");
        cell(html, "change", "n");
        if let Some(change) = series.change_at(row) {
            html.text(change.size(unit)).markup(if change.is_sure() { "" } else { "?" });
        }
        html.markup("</td></tr>");
    }
    html.markup("</tbody></table></div></details>");
}

/// A number with as many digits as tell something.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        x if x >= 1000.0 => 0,
        x if x >= 100.0 => 1,
        x if x >= 1.0 => 2,
        _ => 4,
    };
    format!("{value:.digits$}")
}

/// How far a median is from the first one: from `c0`, far below, over `c4`, alike, to `c8`.
fn heat(ratio: f64) -> &'static str {
    const CLASSES: [&str; 9] = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"];
    let step = (ratio.max(1e-9).ln() / 0.5f64.ln().abs() * 4.0).round().clamp(-4.0, 4.0);
    CLASSES[(step + 4.0) as usize]
}

/// One axis down, the others across.
fn heat_map(html: &mut Html, matrix: &MatrixDetail) {
    let Some(down) = matrix.axes.first() else { return };
    let mut columns: Vec<&[usize]> = Vec::new();
    for cell in &matrix.cells {
        if !columns.contains(&&cell.indices[1..]) {
            columns.push(&cell.indices[1..]);
        }
    }
    html.markup("<section><h2>Medians of ")
        .text(&matrix.metric)
        .markup("</h2><p class=\"faint legend\" id=\"heat-legend\">");
    html.text(metric_with_unit(matrix)).markup(", down: ").text(&down.name);
    html.markup(". Below each: the change against the first of its column, and the samples. <span class=\"swatch c1\"></span> less <span class=\"swatch c7\"></span> more</p>");
    html.markup("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Medians\"><table class=\"heat stack\" aria-describedby=\"heat-legend\"><thead>");
    let across: Vec<&str> = matrix.axes[1..].iter().map(|axis| axis.name.as_str()).collect();
    if !across.is_empty() {
        html.markup("<tr><td></td><th scope=\"colgroup\" class=\"axis\"");
        html.attr("colspan", columns.len())
            .markup(">")
            .text(across.join(", "))
            .markup("</th></tr>");
    }
    html.markup("<tr><th scope=\"col\">").text(&down.name).markup("</th>");
    for column in &columns {
        let labels = matrix.axes[1..].iter().zip(*column);
        let label: Vec<&str> = labels.map(|(axis, &at)| axis.values[at].as_str()).collect();
        let label = if label.is_empty() { &matrix.metric } else { &label.join(" ") };
        html.markup("<th scope=\"col\">").text(shorten_commits(label)).markup("</th>");
    }
    html.markup("</tr></thead><tbody>");
    let base = |column: &&[usize]| in_column(matrix, column).find_map(|cell| cell.median);
    let bases: Vec<_> = columns.iter().map(|column| base(column).filter(|b| *b > 0.0)).collect();
    for (row, value) in down.values.iter().enumerate() {
        if !matrix.cells.iter().any(|cell| cell.indices[0] == row) {
            continue;
        }
        html.markup("<tr><th scope=\"row\">").text(shorten_commits(value)).markup("</th>");
        for (column, base) in columns.iter().zip(&bases) {
            let cell = in_column(matrix, column).find(|cell| cell.indices[0] == row);
            let across = matrix.axes[1..].iter().zip(*column);
            let across: Vec<String> = across
                .map(|(axis, &at)| format!("{} {}", axis.name, shorten_commits(&axis.values[at])))
                .collect();
            let change = cell.and_then(|cell| down_change(matrix, cell));
            heat_cell(html, cell, *base, change, (&across.join(", "), &matrix.unit));
        }
        html.markup("</tr>");
    }
    html.markup("</tbody></table></div></section>");
}

/// The cells that differ in the first axis only.
fn in_column<'a>(matrix: &'a MatrixDetail, column: &'a [usize]) -> impl Iterator<Item = &'a Cell> {
    matrix.cells.iter().filter(move |cell| cell.indices[1..] == *column)
}

/// The comparison of a cell with the first of its column, which has the percentage: a ratio of the
/// medians shown would be another number.
fn down_change<'a>(matrix: &'a MatrixDetail, cell: &Cell) -> Option<&'a Comparison> {
    let mut first = cell.indices.clone();
    *first.first_mut()? = 0;
    let base = matrix.cells.iter().find(|other| other.indices == first)?;
    matrix.comparisons.iter().find(|one| one.a == base.name && one.b == cell.name)
}

fn heat_cell(
    html: &mut Html,
    cell: Option<&Cell>,
    base: Option<f64>,
    change: Option<&Comparison>,
    (name, unit): (&str, &str),
) {
    html.markup("<td").attr("data-name", name);
    let Some(cell) = cell else {
        html.markup(" class=\"faint\">–</td>");
        return;
    };
    let Some(median) = cell.median else {
        html.markup(" class=\"bad\">✗ ").text(cell.failed).markup(" failed</td>");
        return;
    };
    let ratio = base.map_or(1.0, |base| median / base);
    html.markup(" class=\"hot ").markup(heat(ratio)).markup("\"><a");
    html.attr("href", cell.run.map_or_else(|| "#".to_owned(), |run| format!("/runs/{run}")))
        .markup(">");
    html.text(value_text(median, unit)).markup("</a><br><small>");
    if let Some(one) = change
        && let Some(size) = one.change_text()
    {
        // What is not sure is no finding.
        let sure = matches!(one.verdict, Verdict::Faster | Verdict::Slower);
        html.text(size).markup(if sure { ", " } else { " not sure, " });
    }
    html.markup("n=").text(cell.values.len());
    if cell.failed > 0 {
        html.markup(", ").text(cell.failed).markup(" failed");
    }
    html.markup("</small></td>");
}

/// A value with its unit.
fn value_text(value: f64, unit: &str) -> String {
    stats::value_text(value, Some(unit).filter(|unit| !unit.is_empty()))
}

fn distributions(html: &mut Html, matrix: &MatrixDetail) {
    let all = matrix.cells.iter().flat_map(|cell| &cell.values).filter(|value| value.is_finite());
    let range = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(*value), high.max(*value))
    });
    let text_of = |value| value_text(value, &matrix.unit);
    html.markup("<section><h2>Samples</h2><p class=\"faint legend\">");
    html.text(metric_with_unit(matrix));
    html.markup(": each dot is a run, the line is the median</p><table class=\"samples stack\"><thead><tr><th scope=\"col\">");
    let names: Vec<&str> = matrix.axes.iter().map(|axis| axis.name.as_str()).collect();
    html.text(names.join(", ")).markup("</th><th scope=\"col\"><span class=\"ends\">");
    if range.0 <= range.1 {
        html.element("span", "", text_of(range.0)).element("span", "", &matrix.metric);
        html.element("span", "", text_of(range.1));
    }
    html.markup("</span></th><th scope=\"col\" class=\"n\">Median</th><th scope=\"col\" class=\"n\"><abbr title=\"median of the distances from the median\">MAD</abbr></th><th scope=\"col\" class=\"n\">Runs</th></tr></thead><tbody>");
    let most = (MAX_DOTS / matrix.cells.len().max(1)).clamp(12, 300);
    for one in &matrix.cells {
        let (Some(median), Some(mad)) = (one.median, one.mad) else { continue };
        html.markup("<tr><th scope=\"row\">").text(shorten_commits(&one.name)).markup("</th>");
        cell(html, "", "strip-of");
        let says = format!(
            "{} of {}, median {}",
            text::count(one.values.len() as u64, "sample"),
            one.name,
            text_of(median)
        );
        chart::strip(html, &one.values, median, range, most, &says);
        html.markup("</td>");
        cell(html, "median", "n");
        html.text(text_of(median)).markup("</td>");
        cell(html, "MAD", "n");
        html.text(text_of(mad)).markup("</td>");
        cell(html, "runs", "n");
        html.text(one.values.len()).markup("</td></tr>");
    }
    html.markup("</tbody></table></section>");
}

fn comparisons(html: &mut Html, comparisons: &[Comparison]) {
    let ends = comparisons.iter().filter_map(|one| one.interval).flatten();
    let reach = ends.map(|end| end.max(1.0 / end.max(1e-9))).fold(1.0, f64::max);
    html.markup("<section><h2>Comparisons</h2><p class=\"faint legend\">What is sure comes first, the largest difference before the others</p><table class=\"stack\"><thead><tr><th scope=\"col\">Of</th><th scope=\"col\">Against</th><th scope=\"col\">Verdict</th><th scope=\"col\" class=\"n\">Difference</th><th scope=\"col\" class=\"n\">Interval</th><th scope=\"col\">Less or more</th><th scope=\"col\" class=\"n\">Samples</th></tr></thead><tbody>");
    for one in by_significance(comparisons) {
        let class = verdict_class(one);
        html.markup("<tr><th scope=\"row\">").text(shorten_commits(&one.b)).markup("</th>");
        cell(html, "against", "");
        html.text(shorten_commits(&one.a)).markup("</td>");
        cell(html, "verdict", "");
        html.element("span", class, one.verdict_word()).markup("</td>");
        cell(html, "difference", "n");
        html.text(one.change_text().unwrap_or_default()).markup("</td>");
        cell(html, "interval", "n");
        html.text(one.interval_text().unwrap_or_default()).markup("</td>");
        cell(html, "", "span-of");
        if let (Some(ratio), Some(interval)) = (one.ratio, one.interval) {
            chart::span(html, ratio, interval, reach, class, &one.sentence());
        }
        html.markup("</td>");
        cell(html, "samples", "n");
        html.text(format_args!("{} / {}", one.samples.b, one.samples.a)).markup("</td></tr>");
    }
    html.markup("</tbody></table></section>");
}

/// The answer, the runs along the axis, and how each point was judged.
fn bisection(html: &mut Html, matrix: &MatrixDetail) {
    html.markup("<section><h2>Bisection of ").text(matrix.searched.as_deref().unwrap_or_default());
    html.markup("</h2>");
    if let Some(answer) = &matrix.answer {
        let class = if answer.first_bad.is_some() { "answer" } else { "answer bad" };
        html.element("p", class, shorten_commits(&answer.sentence));
    }
    if matrix.steps.is_empty() {
        html.markup("<p class=\"empty\">").markup(match matrix.answer {
            Some(_) => "Earlier runs answered everything; nothing had to run.",
            None => "No measurement has ended yet.",
        });
        html.markup("</p>");
    } else {
        bisect_steps(html, matrix);
    }
    if let Some(answer) = &matrix.answer {
        judged_points(html, matrix, answer);
    }
    html.markup("</section>");
}

/// The verdict of the answer about the point of a run, else how the run ended.
fn verdict(matrix: &MatrixDetail, step: &BisectStep) -> PointVerdict {
    let judged = matrix.answer.iter().flat_map(|answer| &answer.steps);
    let mut judged = judged.filter(|judged| judged.point == step.point);
    judged.next().map_or(
        match step.exit_code {
            _ if step.ok => PointVerdict::Good,
            125 => PointVerdict::Skip,
            _ => PointVerdict::Bad,
        },
        |judged| judged.verdict,
    )
}

fn bisect_steps(html: &mut Html, matrix: &MatrixDetail) {
    const LEFT: f64 = 10.0;
    const WIDTH: f64 = 460.0;
    let points = matrix.points();
    let count = points.len().max(2);
    let rows = matrix.steps.len().min(MAX_DRAWN_STEPS);
    let bottom = 14 + rows * 12;
    html.markup("<svg class=\"bisect\" role=\"img\"")
        .attr("viewBox", format!("0 0 480 {}", bottom + 20));
    let looks = text::count(matrix.steps.len() as u64, "look");
    let all = text::count(count as u64, "point");
    html.attr("aria-label", format!("{looks} at {all}")).markup(">");
    let x = |index: usize| format!("{:.1}", LEFT + index as f64 / (count - 1) as f64 * WIDTH);
    for index in (0..count).step_by(count.div_ceil(60)) {
        html.markup("<line class=\"grid\" y1=\"2\"").attr("x1", x(index)).attr("x2", x(index));
        html.attr("y2", bottom).markup("/>");
    }
    // The verdict of a point is drawn behind its runs, which may belong to earlier loops.
    for one in matrix.answer.iter().flat_map(|answer| &answer.steps) {
        let Some(index) = points.iter().position(|point| *point == one.point) else { continue };
        let (word, class, _) = words(one.verdict);
        html.markup("<rect y=\"2\" width=\"3\"").attr("class", class).attr("height", bottom - 2);
        html.attr("x", format!("{:.1}", LEFT + index as f64 / (count - 1) as f64 * WIDTH - 1.5));
        html.markup("><title>").text(shorten_commits(&one.point)).markup(": ").markup(word);
        html.markup("</title></rect>");
    }
    for (at, step) in matrix.steps.iter().enumerate().take(MAX_DRAWN_STEPS) {
        let Some(index) = step.index else { continue };
        let (word, class, _) = words(verdict(matrix, step));
        html.markup("<circle r=\"4\"")
            .attr("class", class)
            .attr("cx", x(index))
            .attr("cy", 10 + at * 12);
        html.markup("><title>")
            .text(step_title(step))
            .markup(": ")
            .markup(word)
            .markup("</title></circle>");
    }
    let ends = [(points.first(), "start", LEFT), (points.last(), "end", LEFT + WIDTH)];
    for (point, anchor, x) in ends {
        html.markup("<text class=\"tick\"").attr("text-anchor", anchor).attr("x", x);
        html.attr("y", bottom + 14).markup(">");
        html.text(point.map(|point| shorten_commits(point)).unwrap_or_default()).markup("</text>");
    }
    html.markup("</svg><h3>Looks</h3><div class=\"scroll tall\" tabindex=\"0\" role=\"region\" aria-label=\"Looks\"><table class=\"stack\"><thead><tr><th scope=\"col\" class=\"n\">#</th><th scope=\"col\">Point</th><th scope=\"col\" class=\"n\">Place</th><th scope=\"col\">Run</th><th scope=\"col\" class=\"n\">");
    html.text(metric_with_unit(matrix)).markup("</th></tr></thead><tbody>");
    for (at, step) in matrix.steps.iter().enumerate() {
        html.markup("<tr>");
        cell(html, "look", "n");
        html.link(&format!("/runs/{}", step.run), (at + 1).to_string()).markup("</td>");
        cell(html, "point", "");
        html.markup("<code").attr("title", &step.point).markup(">");
        html.text(shorten_commits(&step.point)).markup("</code></td>");
        cell(html, "place", "n");
        if let Some(index) = step.index {
            html.text(format_args!("{} of {count}", index + 1));
        }
        html.markup("</td>");
        cell(html, "run", "");
        let (word, class) = if step.ok {
            ("ok".to_owned(), "good")
        } else {
            (format!("exit {}", step.exit_code), "bad")
        };
        html.element("span", class, &word).markup("</td>");
        cell(html, &matrix.metric, "n");
        html.text(step.value.map(|value| value_text(value, &matrix.unit)).unwrap_or_default());
        html.markup("</td></tr>");
    }
    html.markup("</tbody></table></div>");
}

/// Every point that was judged, in the order of the axis.
fn judged_points(html: &mut Html, matrix: &MatrixDetail, answer: &BisectAnswer) {
    let points = matrix.points();
    let mut judged: Vec<_> = answer.steps.iter().collect();
    judged.sort_by_key(|judged| points.iter().position(|point| *point == judged.point));
    html.markup("<h3>Points</h3><div class=\"scroll tall\" tabindex=\"0\" role=\"region\" aria-label=\"Points\"><table class=\"stack\"><thead><tr><th scope=\"col\">Point</th><th scope=\"col\">Verdict</th><th scope=\"col\" class=\"n\">Runs</th></tr></thead><tbody>");
    for one in judged {
        html.markup("<tr>");
        cell(html, "point", "");
        html.markup("<code")
            .attr("title", &one.point)
            .markup(">")
            .text(shorten_commits(&one.point));
        html.markup("</code>");
        for (end, name) in [(&answer.last_good, "last good"), (&answer.first_bad, "first bad")] {
            if end.as_ref() == Some(&one.point) {
                html.markup(" <span class=\"ref\">").markup(name).markup("</span>");
            }
        }
        let (word, _, class) = words(one.verdict);
        html.markup("</td>");
        cell(html, "verdict", "");
        html.element("span", class, word).markup("</td>");
        cell(html, "runs", "n");
        html.text(one.samples).markup("</td></tr>");
    }
    html.markup("</tbody></table></div>");
}

/// The word, the class of a mark and the class of a text.
fn words(verdict: PointVerdict) -> (&'static str, &'static str, &'static str) {
    match verdict {
        PointVerdict::Good => ("good", "ok", "good"),
        PointVerdict::Bad => ("bad", "failed", "bad"),
        PointVerdict::Skip => ("cannot be judged", "skip", "open"),
    }
}

/// The metric with its unit.
fn metric_with_unit(matrix: &MatrixDetail) -> String {
    match matrix.unit.as_str() {
        "" => matrix.metric.clone(),
        unit => format!("{} ({unit})", matrix.metric),
    }
}

/// Commits as people write them.
pub(super) fn shorten_commits(text: &str) -> String {
    static COMMIT: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\b([0-9a-f]{10})[0-9a-f]{30}\b").expect("a pattern"));
    COMMIT.replace_all(text, "$1").into_owned()
}

fn step_title(step: &BisectStep) -> String {
    let value = step.value.map(|value| format!(", {}", number(value))).unwrap_or_default();
    format!("{}: exit {}{value}", shorten_commits(&step.point), step.exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_goes_from_half_to_double() {
        assert_eq!(
            [heat(0.4), heat(0.5), heat(1.0), heat(2.0), heat(9.0)],
            ["c0", "c0", "c4", "c8", "c8"]
        );
        assert_eq!(heat(0.0), "c0");
        assert_eq!(heat(1.2), "c5");
    }
}
