//! A matrix: conclusive differences, heat map, samples of each cell, and comparisons.

use std::sync::LazyLock;

use regex::Regex;
use retake_matrix::history::{CommitHistory, CommitSeries};
use retake_matrix::report;
use retake_matrix::stats::{self, Comparison, Verdict};
use retake_runner::html::Html;
use retake_types::LoopId;
use retake_types::text;

use super::bisection;
use super::layout::cell;
use crate::chart;
use crate::loops::matrix::{Cell, MatrixDetail};
use crate::params::Params;

/// Maximum number of dots of all cells together, so that the page loads fast.
const MAX_DOTS: usize = 1500;

pub(super) fn write(html: &mut Html, matrix: &MatrixDetail, params: &Params, id: LoopId) {
    html.markup("<div class=\"tools\"><p class=\"faint\">")
        .text(text::count(matrix.runs as u64, "run"));
    if matrix.running > 0 {
        html.markup(", ").text(matrix.running).markup(" running");
    }
    if matrix.cut {
        html.markup("; older ones were not searched");
    }
    html.markup("</p>");
    // Without measurements there are no metrics to choose from.
    if matrix.cells.is_empty() && matrix.steps.is_empty() {
        html.markup("</div>");
    } else {
        metrics(html, matrix, params, id);
    }

    if matrix.searched.is_some() {
        bisection::write(html, matrix);
    }
    if matrix.cells.is_empty() {
        if matrix.searched.is_none() {
            html.markup("<p class=\"empty\">No cell has a result yet.</p>");
        }
        return;
    }
    if matrix.searched.is_none() {
        differences(html, matrix);
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

fn metrics(html: &mut Html, matrix: &MatrixDetail, params: &Params, id: LoopId) {
    html.markup("<nav class=\"switch\" aria-label=\"Metric\">");
    for metric in &matrix.metrics {
        html.markup("<a").attr("href", params.with(&format!("/loops/{id}"), &[("metric", metric)]));
        if *metric == matrix.metric {
            html.markup(" aria-current=\"true\"");
        }
        html.markup(">").text(metric).markup("</a>");
    }
    html.markup("</nav></div>");
}

/// How many differences are listed above everything else.
const MAX_DIFFERENCES: usize = 8;

/// Conclusive comparisons first, larger differences before smaller ones.
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

/// Conclusive differences of the same kind: one value of an axis against the first, in the same direction.
struct AxisDifference<'a> {
    axis: &'a str,
    from: &'a str,
    to: &'a str,
    /// The largest first.
    found: Vec<&'a Comparison>,
    /// All comparisons of these two values, conclusive or not.
    compared: usize,
    /// The names of the other axes.
    others: Vec<&'a str>,
}

impl<'a> AxisDifference<'a> {
    fn all(matrix: &'a MatrixDetail) -> Vec<Self> {
        let cell = |name: &str| matrix.cells.iter().find(|cell| cell.name == name);
        let place = |one: &Comparison| {
            let (a, b) = (cell(&one.a)?, cell(&one.b)?);
            let at = (0..matrix.axes.len()).find(|at| a.indices[*at] != b.indices[*at])?;
            Some((at, a.indices[at], b.indices[at]))
        };
        let is_different =
            |one: &&Comparison| matches!(one.verdict, Verdict::Faster | Verdict::Slower);
        let mut all: Vec<((usize, usize, usize), Verdict, Self)> = Vec::new();
        for one in by_significance(&matrix.comparisons).into_iter().filter(is_different) {
            let Some(key) = place(one) else { continue };
            let known =
                all.iter_mut().find(|(at, verdict, _)| *at == key && *verdict == one.verdict);
            if let Some((.., difference)) = known {
                difference.found.push(one);
                continue;
            }
            let (axis, from, to) = key;
            let others = matrix.axes.iter().enumerate().filter(|(at, _)| *at != axis);
            let compared = matrix.comparisons.iter().filter(|one| place(one) == Some(key));
            let difference = Self {
                axis: &matrix.axes[axis].name,
                from: &matrix.axes[axis].values[from],
                to: &matrix.axes[axis].values[to],
                found: vec![one],
                compared: compared.count(),
                others: others.map(|(_, axis)| axis.name.as_str()).collect(),
            };
            all.push((key, one.verdict, difference));
        }
        all.into_iter().map(|(.., difference)| difference).collect()
    }

    fn sentence(&self) -> String {
        let Self { axis, from, to, found, compared, others } = self;
        let [first, .., last] = &found[..] else { return found[0].sentence() };
        let (word, metric) = (first.verdict_word(), &first.metric);
        let what = match stats::is_time(metric, first.unit.as_deref()) {
            true => format!("{axis}={to} is {word} than {axis}={from} in {metric}"),
            false => format!("{axis}={to} has {word} {metric} than {axis}={from}"),
        };
        let count = match found.len() == *compared {
            true => format!("all {compared}"),
            false => format!("{} of {compared}", found.len()),
        };
        let others = others.join(" and ");
        let size = |one: &Comparison| one.change_text().unwrap_or_default();
        let sizes = match (size(last), size(first)) {
            (least, most) if least == most => most,
            (least, most) => format!("{least} to {most}"),
        };
        format!("{what}, in {count} combinations with {others}: {sizes}")
    }
}

/// Conclusive differences, in sentences.
fn differences(html: &mut Html, matrix: &MatrixDetail) {
    if matrix.comparisons.is_empty() {
        return;
    }
    html.markup("<section><h2>What differs</h2>");
    let all = AxisDifference::all(matrix);
    if all.is_empty() {
        html.markup("<p class=\"empty\">No difference is conclusive.</p></section>");
        return;
    }
    html.markup("<ul class=\"plain differences\">");
    for one in all.iter().take(MAX_DIFFERENCES) {
        let largest = one.found[0];
        html.markup("<li>").element("span", verdict_class(largest), mark_of(largest)).markup(" ");
        html.text(shorten_commits(&one.sentence())).markup("</li>");
    }
    html.markup("</ul>");
    if all.len() > MAX_DIFFERENCES {
        html.markup("<p class=\"faint\">").text(all.len() - MAX_DIFFERENCES);
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

/// A symbol besides the colour.
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
            [] => format!("{}: no conclusive change", history.metric),
            sentences => sentences.join("; "),
        };
        report::over_commits(html, series, unit, &says);
        if sentences.is_empty() {
            html.element("p", "faint", "No change is conclusive.");
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

/// How far a median is from the first one: from `c0` (far below) over `c4` (equal) to `c8`.
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
    let values = ValueScale::of(matrix);
    html.text(values.name()).markup(" for each ").text(&down.name);
    html.markup(", with the change against the first row and the number of runs. <span class=\"swatch c1\"></span> less <span class=\"swatch c7\"></span> more</p>");
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
            heat_cell(html, cell, *base, change, (&across.join(", "), &values));
        }
        html.markup("</tr>");
    }
    html.markup("</tbody></table></div></section>");
}

/// The cells that differ in the first axis only.
fn in_column<'a>(matrix: &'a MatrixDetail, column: &'a [usize]) -> impl Iterator<Item = &'a Cell> {
    matrix.cells.iter().filter(move |cell| cell.indices[1..] == *column)
}

/// The comparison of a cell with the first one of its column. Its percentage is shown, because a ratio of
/// the displayed medians would be a different number.
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
    (name, values): (&str, &ValueScale),
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
    html.text(values.text(median)).markup("</a><br><small>");
    if let Some(one) = change
        && let Some(size) = one.change_text()
    {
        // An inconclusive difference is not highlighted.
        let sure = matches!(one.verdict, Verdict::Faster | Verdict::Slower);
        html.text(size).markup(if sure { ", " } else { " (not sure), " });
    }
    html.markup("n=").text(cell.values.len());
    if cell.failed > 0 {
        html.markup(", ").text(cell.failed).markup(" failed");
    }
    html.markup("</small></td>");
}

fn distributions(html: &mut Html, matrix: &MatrixDetail) {
    let all = matrix.cells.iter().flat_map(|cell| &cell.values).filter(|value| value.is_finite());
    let range = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(*value), high.max(*value))
    });
    let values = ValueScale::of(matrix);
    let text_of = |value| values.text(value);
    let unit = Some(matrix.unit.as_str()).filter(|unit| !unit.is_empty());
    html.markup("<section><h2>Samples</h2><p class=\"faint legend\">");
    html.text(values.name());
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
        // Much smaller than the values, so it has its own unit.
        html.text(stats::value_text(mad, unit)).markup("</td>");
        cell(html, "runs", "n");
        html.text(one.values.len()).markup("</td></tr>");
    }
    html.markup("</tbody></table></section>");
}

fn comparisons(html: &mut Html, comparisons: &[Comparison]) {
    let ends = comparisons.iter().filter_map(|one| one.interval).flatten();
    let reach = ends.map(|end| end.max(1.0 / end.max(1e-9))).fold(1.0, f64::max);
    html.markup("<section><h2>Comparisons</h2><p class=\"faint legend\">Conclusive differences first, the largest first</p><table class=\"stack\"><thead><tr><th scope=\"col\">Of</th><th scope=\"col\">Against</th><th scope=\"col\">Verdict</th><th scope=\"col\" class=\"n\">Difference</th><th scope=\"col\" class=\"n\">Interval</th><th scope=\"col\">Less or more</th><th scope=\"col\" class=\"n\">Samples</th></tr></thead><tbody>");
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

/// The format of the values on a page: all in the same unit and with the same digits, so that they can be
/// compared at a glance.
pub(super) struct ValueScale {
    metric: String,
    unit: String,
    factor: f64,
    digits: usize,
}

impl ValueScale {
    pub(super) fn of(matrix: &MatrixDetail) -> Self {
        let cells = matrix.cells.iter().flat_map(|cell| cell.values.iter().copied());
        let all = cells.chain(matrix.steps.iter().filter_map(|step| step.value));
        Self::new(&matrix.metric, &matrix.unit, all)
    }

    fn new(metric: &str, unit: &str, all: impl Iterator<Item = f64>) -> Self {
        let (mut most, mut whole) = (0.0f64, true);
        for value in all.filter(|value| value.is_finite()) {
            most = most.max(value.abs());
            whole &= value.fract() == 0.0;
        }
        let (factor, shown) = match unit {
            "ms" if most >= 1000.0 => (1e-3, "s"),
            "ms" if most < 1.0 && most > 0.0 => (1e3, "µs"),
            "KB" if most >= 10_240.0 => (1.0 / 1024.0, "MB"),
            unit => (1.0, unit),
        };
        let digits = match most * factor {
            _ if whole && factor == 1.0 => 0,
            x if x >= 1000.0 => 0,
            x if x >= 100.0 => 1,
            x if x >= 10.0 => 2,
            x if x >= 1.0 => 3,
            _ => 4,
        };
        Self { metric: metric.to_owned(), unit: shown.to_owned(), factor, digits }
    }

    /// A value with its unit.
    pub(super) fn text(&self, value: f64) -> String {
        let number = format!("{:.*}", self.digits, value * self.factor);
        if self.unit.is_empty() { number } else { format!("{number} {}", self.unit) }
    }

    /// The metric with its unit.
    pub(super) fn name(&self) -> String {
        match self.unit.as_str() {
            "" => self.metric.clone(),
            unit => format!("{} ({unit})", self.metric),
        }
    }
}

/// Abbreviates commits.
pub(super) fn shorten_commits(text: &str) -> String {
    static COMMIT: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\b([0-9a-f]{10})[0-9a-f]{30}\b").expect("a pattern"));
    COMMIT.replace_all(text, "$1").into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_ranges_from_half_to_double() {
        assert_eq!(
            [heat(0.4), heat(0.5), heat(1.0), heat(2.0), heat(9.0)],
            ["c0", "c0", "c4", "c8", "c8"]
        );
        assert_eq!(heat(0.0), "c0");
        assert_eq!(heat(1.2), "c5");
    }

    #[test]
    fn values_beside_each_other_have_one_unit_and_as_many_digits() {
        let texts = |unit: &str, values: &[f64]| {
            let scale = ValueScale::new("load", unit, values.iter().copied());
            (scale.name(), values.iter().map(|value| scale.text(*value)).collect::<Vec<_>>())
        };
        let shown = |name: &str, values: &[&str]| {
            (name.to_owned(), values.iter().map(|&value| value.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(texts("ms", &[989.5, 1319.0]), shown("load (s)", &["0.990 s", "1.319 s"]));
        assert_eq!(texts("ms", &[2.4, 31.0]), shown("load (ms)", &["2.40 ms", "31.00 ms"]));
        assert_eq!(texts("ms", &[0.25]), shown("load (µs)", &["250.0 µs"]));
        assert_eq!(texts("", &[172.0, 9.0]), shown("load", &["172", "9"]));
        assert_eq!(texts("KB", &[20480.0]), shown("load (MB)", &["20.00 MB"]));
    }
}
