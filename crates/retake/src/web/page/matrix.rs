//! A matrix: its heat map, the samples of each cell, comparisons, and the steps of a bisection.

use retake_event::LoopId;
use retake_matrix::stats::{Comparison, Verdict};

use super::super::chart;
use super::super::html::Html;
use super::super::loops::matrix::{Cell, Matrix, Step};
use super::super::params::Params;
use crate::term;

pub(super) fn show(html: &mut Html, matrix: &Matrix, params: &Params, id: LoopId) {
    html.lit("<div class=\"tools\"><p class=\"faint\">")
        .text(&term::count(matrix.runs as u64, "run"));
    if matrix.running > 0 {
        html.lit(", ").show(matrix.running).lit(" under way");
    }
    if matrix.cut {
        html.lit("; older ones were not looked at");
    }
    html.lit("</p><nav class=\"switch\" aria-label=\"Metric\">");
    for metric in &matrix.metrics {
        html.lit("<a").at("href", &params.with(&format!("/loops/{id}"), &[("metric", metric)]));
        if *metric == matrix.metric {
            html.lit(" aria-current=\"true\"");
        }
        html.lit(">").text(metric).lit("</a>");
    }
    html.lit("</nav></div>");
    if matrix.cells.is_empty() {
        html.lit("<p class=\"empty\">No cell has a result yet.</p>");
        return;
    }
    if !matrix.steps.is_empty() {
        bisection(html, matrix);
    }
    heat_map(html, matrix);
    distributions(html, matrix);
    if !matrix.comparisons.is_empty() {
        comparisons(html, &matrix.comparisons);
    }
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

fn percent(ratio: f64) -> String {
    format!("{:+.1} %", (ratio - 1.0) * 100.0)
}

/// How far a median is from the first one: from `c0`, far below, over `c4`, alike, to `c8`.
fn heat(ratio: f64) -> &'static str {
    const CLASSES: [&str; 9] = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"];
    let step = (ratio.max(1e-9).ln() / 0.5f64.ln().abs() * 4.0).round().clamp(-4.0, 4.0);
    CLASSES[(step + 4.0) as usize]
}

/// One axis down, the others across.
fn heat_map(html: &mut Html, matrix: &Matrix) {
    let Some(down) = matrix.axes.first() else { return };
    let base = matrix.cells.iter().find_map(|cell| cell.median).filter(|base| *base > 0.0);
    let mut columns: Vec<&[usize]> = Vec::new();
    for cell in &matrix.cells {
        if !columns.contains(&&cell.place[1..]) {
            columns.push(&cell.place[1..]);
        }
    }
    html.lit("<section><h2>Medians of ")
        .text(&matrix.metric)
        .lit("</h2><div class=\"scroll\"><table class=\"heat\"><caption class=\"faint\">");
    html.text(&matrix.unit).lit(" and the difference to the first cell; blue is less, orange is more</caption><thead><tr><th scope=\"col\">");
    html.text(&down.name).lit("</th>");
    for column in &columns {
        let labels = matrix.axes[1..].iter().zip(*column);
        let label: Vec<&str> = labels.map(|(axis, &at)| axis.values[at].as_str()).collect();
        html.tag("th", "", &label.join(" "));
    }
    html.lit("</tr></thead><tbody>");
    for (row, value) in down.values.iter().enumerate() {
        if !matrix.cells.iter().any(|cell| cell.place[0] == row) {
            continue;
        }
        html.lit("<tr><th scope=\"row\">").text(value).lit("</th>");
        for column in &columns {
            let cell = matrix.cells.iter().find(|c| c.place[0] == row && &c.place[1..] == *column);
            heat_cell(html, cell, base);
        }
        html.lit("</tr>");
    }
    html.lit("</tbody></table></div></section>");
}

fn heat_cell(html: &mut Html, cell: Option<&Cell>, base: Option<f64>) {
    let Some(cell) = cell else {
        html.lit("<td class=\"faint\">–</td>");
        return;
    };
    let Some(median) = cell.median else {
        html.lit("<td class=\"bad\">✗ ").show(cell.failed).lit(" failed</td>");
        return;
    };
    let ratio = base.map_or(1.0, |base| median / base);
    html.lit("<td class=\"hot ").lit(heat(ratio)).lit("\"><a");
    html.at("href", &cell.run.map_or_else(|| "#".to_owned(), |run| format!("/runs/{run}")))
        .lit(">");
    html.text(&number(median)).lit("</a><br><small>").text(&percent(ratio)).lit(", n=");
    html.show(cell.values.len());
    if cell.failed > 0 {
        html.lit(", ").show(cell.failed).lit(" failed");
    }
    html.lit("</small></td>");
}

fn distributions(html: &mut Html, matrix: &Matrix) {
    let all = matrix.cells.iter().flat_map(|cell| &cell.values).filter(|value| value.is_finite());
    let range = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(*value), high.max(*value))
    });
    html.lit("<section><h2>Samples</h2><div class=\"scroll\"><table class=\"samples\"><thead><tr><th scope=\"col\">Cell</th><th scope=\"col\">");
    if range.0 <= range.1 {
        html.text(&format!("{} … {} {}", number(range.0), number(range.1), matrix.unit));
    }
    html.lit("</th><th scope=\"col\">Median</th><th scope=\"col\">MAD</th><th scope=\"col\">n</th></tr></thead><tbody>");
    for cell in &matrix.cells {
        let (Some(median), Some(mad)) = (cell.median, cell.mad) else { continue };
        html.lit("<tr><th scope=\"row\">").text(&cell.name).lit("</th><td>");
        let says =
            format!("{} samples of {}, median {}", cell.values.len(), cell.name, number(median));
        chart::strip(html, &cell.values, median, range, &says);
        html.lit("</td><td class=\"n\">").text(&number(median)).lit("</td><td class=\"n\">");
        html.text(&number(mad))
            .lit("</td><td class=\"n\">")
            .show(cell.values.len())
            .lit("</td></tr>");
    }
    html.lit("</tbody></table></div></section>");
}

fn comparisons(html: &mut Html, comparisons: &[Comparison]) {
    html.lit("<section><h2>Comparisons</h2><div class=\"scroll\"><table><thead><tr><th scope=\"col\">Of</th><th scope=\"col\">Against</th><th scope=\"col\">Verdict</th><th scope=\"col\">Difference</th><th scope=\"col\">Interval</th><th scope=\"col\">Samples</th></tr></thead><tbody>");
    for one in comparisons {
        let class = match one.verdict {
            Verdict::Faster => "good",
            Verdict::Slower => "bad",
            Verdict::Same | Verdict::NotSure => "",
        };
        html.lit("<tr><td>").text(&one.b).lit("</td><td>").text(&one.a).lit("</td><td");
        html.at("title", &one.sentence()).lit(">").tag("span", class, one.verdict.as_str());
        html.lit("</td><td class=\"n\">").text(&one.ratio.map(percent).unwrap_or_default());
        html.lit("</td><td class=\"n\">");
        if let Some([low, high]) = one.interval {
            html.text(&format!("{} to {}", percent(low), percent(high)));
        }
        html.lit("</td><td class=\"n\">");
        html.show(format_args!("{} / {}", one.samples.b, one.samples.a)).lit("</td></tr>");
    }
    html.lit("</tbody></table></div></section>");
}

/// Where each look was along the axis, and what came of it.
fn bisection(html: &mut Html, matrix: &Matrix) {
    let axis = matrix.axes.iter().max_by_key(|axis| axis.values.len());
    let points = axis.map_or(1, |axis| axis.values.len()).max(2);
    html.lit("<section><h2>Bisection</h2>");
    let height = 12 + matrix.steps.len().min(60) * 9;
    html.lit("<svg class=\"bisect\" role=\"img\"").at("viewBox", &format!("0 0 480 {height}"));
    html.at("aria-label", &format!("{} looks at {points} points", matrix.steps.len())).lit(">");
    for (at, step) in matrix.steps.iter().enumerate().take(60) {
        let Some(place) = step.place else { continue };
        let x = 8.0 + place as f64 / (points - 1) as f64 * 464.0;
        html.lit("<circle r=\"3.5\"").at("class", if step.ok { "ok" } else { "failed" });
        html.num("cx", format!("{x:.1}")).num("cy", 9 + at * 9).lit("><title>");
        html.text(&told(step)).lit("</title></circle>");
    }
    html.lit("</svg><div class=\"scroll\"><table><thead><tr><th scope=\"col\">#</th><th scope=\"col\">Point</th><th scope=\"col\">Place</th><th scope=\"col\">Result</th><th scope=\"col\">").text(&matrix.metric).lit("</th></tr></thead><tbody>");
    for (at, step) in matrix.steps.iter().enumerate() {
        html.lit("<tr><td class=\"n\">")
            .link(&format!("/runs/{}", step.run), &(at + 1).to_string());
        html.lit("</td><td><code>").text(&step.point).lit("</code></td><td class=\"n\">");
        if let Some(place) = step.place {
            html.show(format_args!("{} of {points}", place + 1));
        }
        html.lit("</td><td>");
        let (word, class) = if step.ok { ("ok", "good") } else { ("failed", "bad") };
        html.tag("span", class, word).lit("</td><td class=\"n\">");
        html.text(&step.value.map(number).unwrap_or_default()).lit("</td></tr>");
    }
    html.lit("</tbody></table></div></section>");
}

fn told(step: &Step) -> String {
    let value = step.value.map(|value| format!(", {}", number(value))).unwrap_or_default();
    format!("{}: exit {}{value}", step.point, step.exit_code)
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
