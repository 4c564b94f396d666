//! A matrix: its heat map, the samples of each cell, comparisons, and the steps of a bisection.

use retake_types::text;
use std::sync::LazyLock;

use regex::Regex;
use retake_matrix::stats::{self, Comparison};
use retake_types::LoopId;

use super::super::chart;
use super::super::html::Html;
use super::super::loops::matrix::{Answer, Cell, Matrix, Step, Verdict};
use super::super::params::Params;

/// Looks of a bisection that are drawn; the table has all.
const MOST_LOOKS: usize = 60;
/// Dots of all cells together: the page is to be there soon.
const MOST_DOTS: usize = 1500;

pub(super) fn show(html: &mut Html, matrix: &Matrix, params: &Params, id: LoopId) {
    html.lit("<div class=\"tools\"><p class=\"faint\">")
        .text(&text::count(matrix.runs as u64, "run"));
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
    if matrix.searched.is_some() {
        bisection(html, matrix);
    }
    if matrix.cells.is_empty() {
        if matrix.searched.is_none() {
            html.lit("<p class=\"empty\">No cell has a result yet.</p>");
        }
        return;
    }
    if matrix.searched.is_none() {
        heat_map(html, matrix);
    }
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
    let mut columns: Vec<&[usize]> = Vec::new();
    for cell in &matrix.cells {
        if !columns.contains(&&cell.place[1..]) {
            columns.push(&cell.place[1..]);
        }
    }
    html.lit("<section><h2>Medians of ")
        .text(&matrix.metric)
        .lit("</h2><p class=\"faint legend\" id=\"heat-legend\">");
    html.text(&matrix.unit);
    html.lit(" and the difference to the first of its column; blue is less, orange is more</p>");
    html.lit(
        "<div class=\"scroll\"><table class=\"heat\" aria-describedby=\"heat-legend\"><thead>",
    );
    let across: Vec<&str> = matrix.axes[1..].iter().map(|axis| axis.name.as_str()).collect();
    if !across.is_empty() {
        html.lit("<tr><td></td><th scope=\"colgroup\" class=\"axis\"");
        html.num("colspan", columns.len()).lit(">").text(&across.join(", ")).lit("</th></tr>");
    }
    html.lit("<tr><th scope=\"col\">").text(&down.name).lit("</th>");
    for column in &columns {
        let labels = matrix.axes[1..].iter().zip(*column);
        let label: Vec<&str> = labels.map(|(axis, &at)| axis.values[at].as_str()).collect();
        html.tag("th", "", &shortened(&label.join(" ")));
    }
    html.lit("</tr></thead><tbody>");
    let base = |column: &&[usize]| in_column(matrix, column).find_map(|cell| cell.median);
    let bases: Vec<_> = columns.iter().map(|column| base(column).filter(|b| *b > 0.0)).collect();
    for (row, value) in down.values.iter().enumerate() {
        if !matrix.cells.iter().any(|cell| cell.place[0] == row) {
            continue;
        }
        html.lit("<tr><th scope=\"row\">").text(&shortened(value)).lit("</th>");
        for (column, base) in columns.iter().zip(&bases) {
            let cell = in_column(matrix, column).find(|cell| cell.place[0] == row);
            heat_cell(html, cell, *base);
        }
        html.lit("</tr>");
    }
    html.lit("</tbody></table></div></section>");
}

/// The cells that differ in the first axis only.
fn in_column<'a>(matrix: &'a Matrix, column: &'a [usize]) -> impl Iterator<Item = &'a Cell> {
    matrix.cells.iter().filter(move |cell| cell.place[1..] == *column)
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
    let most = (MOST_DOTS / matrix.cells.len().max(1)).clamp(12, 300);
    for cell in &matrix.cells {
        let (Some(median), Some(mad)) = (cell.median, cell.mad) else { continue };
        html.lit("<tr><th scope=\"row\">").text(&shortened(&cell.name)).lit("</th><td>");
        let says =
            format!("{} samples of {}, median {}", cell.values.len(), cell.name, number(median));
        chart::strip(html, &cell.values, median, range, most, &says);
        html.lit("</td><td class=\"n\">").text(&number(median)).lit("</td><td class=\"n\">");
        html.text(&number(mad))
            .lit("</td><td class=\"n\">")
            .show(cell.values.len())
            .lit("</td></tr>");
    }
    html.lit("</tbody></table></div></section>");
}

fn comparisons(html: &mut Html, comparisons: &[Comparison]) {
    let ends = comparisons.iter().filter_map(|one| one.interval).flatten();
    let reach = ends.map(|end| end.max(1.0 / end.max(1e-9))).fold(1.0, f64::max);
    html.lit("<section><h2>Comparisons</h2><div class=\"scroll\"><table><thead><tr><th scope=\"col\">Of</th><th scope=\"col\">Against</th><th scope=\"col\">Verdict</th><th scope=\"col\" class=\"n\">Difference</th><th scope=\"col\" class=\"n\">Interval</th><th scope=\"col\">Less or more</th><th scope=\"col\" class=\"n\">Samples</th></tr></thead><tbody>");
    for one in comparisons {
        let class = match one.verdict {
            stats::Verdict::Faster => "good",
            stats::Verdict::Slower => "bad",
            stats::Verdict::Same | stats::Verdict::NotSure => "",
        };
        html.lit("<tr><td>").text(&shortened(&one.b)).lit("</td><td>").text(&shortened(&one.a));
        html.lit("</td><td>").tag("span", class, one.verdict.as_str());
        html.lit("</td><td class=\"n\">").text(&one.ratio.map(percent).unwrap_or_default());
        html.lit("</td><td class=\"n\">");
        if let Some([low, high]) = one.interval {
            html.text(&format!("{} to {}", percent(low), percent(high)));
        }
        html.lit("</td><td>");
        if let (Some(ratio), Some(interval)) = (one.ratio, one.interval) {
            chart::span(html, ratio, interval, reach, class, &one.sentence());
        }
        html.lit("</td><td class=\"n\">");
        html.show(format_args!("{} / {}", one.samples.b, one.samples.a)).lit("</td></tr>");
    }
    html.lit("</tbody></table></div></section>");
}

/// What was found, where each look was along the axis, and what came of it.
fn bisection(html: &mut Html, matrix: &Matrix) {
    html.lit("<section><h2>Bisection of ").text(matrix.searched.as_deref().unwrap_or_default());
    html.lit("</h2>");
    if let Some(answer) = &matrix.answer {
        let class = if answer.first_bad.is_some() { "answer" } else { "answer bad" };
        html.tag("p", class, &shortened(&answer.sentence));
    }
    if matrix.steps.is_empty() {
        html.lit("<p class=\"empty\">").lit(match matrix.answer {
            Some(_) => "Everything was known from earlier runs; nothing had to run.",
            None => "No look has ended yet.",
        });
        html.lit("</p>");
    } else {
        looks(html, matrix);
    }
    if let Some(answer) = &matrix.answer {
        judged(html, matrix, answer);
    }
    html.lit("</section>");
}

/// What a look says: what was concluded about its point, else how its run ended.
fn verdict(matrix: &Matrix, step: &Step) -> Verdict {
    let concluded = matrix.answer.as_ref().and_then(|answer| answer.verdict(&step.point));
    concluded.unwrap_or(match step.exit_code {
        _ if step.ok => Verdict::Good,
        125 => Verdict::Skip,
        _ => Verdict::Bad,
    })
}

fn looks(html: &mut Html, matrix: &Matrix) {
    const LEFT: f64 = 10.0;
    const WIDTH: f64 = 460.0;
    let points = matrix.points();
    let count = points.len().max(2);
    let rows = matrix.steps.len().min(MOST_LOOKS);
    let bottom = 14 + rows * 12;
    html.lit("<svg class=\"bisect\" role=\"img\"")
        .at("viewBox", &format!("0 0 480 {}", bottom + 20));
    html.at("aria-label", &format!("{} looks at {count} points", matrix.steps.len())).lit(">");
    let x = |place: usize| format!("{:.1}", LEFT + place as f64 / (count - 1) as f64 * WIDTH);
    for place in (0..count).step_by(count.div_ceil(60)) {
        html.lit("<line class=\"grid\" y1=\"2\"").num("x1", x(place)).num("x2", x(place));
        html.num("y2", bottom).lit("/>");
    }
    // What is known of a point stands behind its looks, which may have been in earlier loops.
    for one in matrix.answer.iter().flat_map(|answer| &answer.points) {
        let Some(place) = points.iter().position(|point| *point == one.point) else { continue };
        let (word, class, _) = words(one.verdict);
        html.lit("<rect y=\"2\" width=\"3\"").at("class", class).num("height", bottom - 2);
        html.num("x", format!("{:.1}", LEFT + place as f64 / (count - 1) as f64 * WIDTH - 1.5));
        html.lit("><title>").text(&shortened(&one.point)).lit(": ").lit(word);
        html.lit("</title></rect>");
    }
    for (at, step) in matrix.steps.iter().enumerate().take(MOST_LOOKS) {
        let Some(place) = step.place else { continue };
        let (word, class, _) = words(verdict(matrix, step));
        html.lit("<circle r=\"4\"").at("class", class).num("cx", x(place)).num("cy", 10 + at * 12);
        html.lit("><title>").text(&told(step)).lit(": ").lit(word).lit("</title></circle>");
    }
    let ends = [(points.first(), "start", LEFT), (points.last(), "end", LEFT + WIDTH)];
    for (point, anchor, x) in ends {
        html.lit("<text class=\"tick\"").at("text-anchor", anchor).num("x", x);
        html.num("y", bottom + 14).lit(">");
        html.text(&point.map(|point| shortened(point)).unwrap_or_default()).lit("</text>");
    }
    html.lit("</svg><h3>Looks</h3><div class=\"scroll tall\"><table><thead><tr><th scope=\"col\" class=\"n\">#</th><th scope=\"col\">Point</th><th scope=\"col\" class=\"n\">Place</th><th scope=\"col\">Run</th><th scope=\"col\" class=\"n\">");
    html.text(&headed(matrix)).lit("</th></tr></thead><tbody>");
    for (at, step) in matrix.steps.iter().enumerate() {
        html.lit("<tr><td class=\"n\">")
            .link(&format!("/runs/{}", step.run), &(at + 1).to_string());
        html.lit("</td><td><code").at("title", &step.point).lit(">");
        html.text(&shortened(&step.point)).lit("</code></td><td class=\"n\">");
        if let Some(place) = step.place {
            html.show(format_args!("{} of {count}", place + 1));
        }
        html.lit("</td><td>");
        let (word, class) = if step.ok {
            ("ok".to_owned(), "good")
        } else {
            (format!("exit {}", step.exit_code), "bad")
        };
        html.tag("span", class, &word).lit("</td><td class=\"n\">");
        html.text(&step.value.map(number).unwrap_or_default()).lit("</td></tr>");
    }
    html.lit("</tbody></table></div>");
}

/// Every point that was judged, in the order of the axis.
fn judged(html: &mut Html, matrix: &Matrix, answer: &Answer) {
    let points = matrix.points();
    let mut judged: Vec<_> = answer.points.iter().collect();
    judged.sort_by_key(|judged| points.iter().position(|point| *point == judged.point));
    html.lit("<h3>Points</h3><div class=\"scroll tall\"><table><thead><tr><th scope=\"col\">Point</th><th scope=\"col\">Verdict</th><th scope=\"col\" class=\"n\">Runs</th></tr></thead><tbody>");
    for one in judged {
        html.lit("<tr><td><code").at("title", &one.point).lit(">").text(&shortened(&one.point));
        html.lit("</code>");
        for (end, name) in [(&answer.last_good, "last good"), (&answer.first_bad, "first bad")] {
            if end.as_ref() == Some(&one.point) {
                html.lit(" <span class=\"ref\">").lit(name).lit("</span>");
            }
        }
        let (word, _, class) = words(one.verdict);
        html.lit("</td><td>").tag("span", class, word).lit("</td><td class=\"n\">");
        html.show(one.samples).lit("</td></tr>");
    }
    html.lit("</tbody></table></div>");
}

/// The word, the class of a mark and the class of a text.
fn words(verdict: Verdict) -> (&'static str, &'static str, &'static str) {
    match verdict {
        Verdict::Good => ("good", "ok", "good"),
        Verdict::Bad => ("bad", "failed", "bad"),
        Verdict::Skip => ("cannot be judged", "skip", "open"),
    }
}

/// The metric with its unit.
fn headed(matrix: &Matrix) -> String {
    match matrix.unit.as_str() {
        "" => matrix.metric.clone(),
        unit => format!("{} ({unit})", matrix.metric),
    }
}

/// Commits as people write them.
pub(super) fn shortened(text: &str) -> String {
    static COMMIT: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\b([0-9a-f]{10})[0-9a-f]{30}\b").expect("a pattern"));
    COMMIT.replace_all(text, "$1").into_owned()
}

fn told(step: &Step) -> String {
    let value = step.value.map(|value| format!(", {}", number(value))).unwrap_or_default();
    format!("{}: exit {}{value}", shortened(&step.point), step.exit_code)
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
