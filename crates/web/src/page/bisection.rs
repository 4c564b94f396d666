//! A bisection: its answer, each measurement along the axis, and the verdict on each point.

use retake_runner::html::Html;
use retake_types::loop_record::matrix::{BisectAnswer, PointVerdict};
use retake_types::text;

use super::layout::cell;
use super::matrix::{ValueScale, shorten_commits};
use crate::loops::matrix::{BisectStep, MatrixDetail};

/// Maximum number of drawn measurements; the table has all.
const MAX_DRAWN_STEPS: usize = 60;

/// The answer, the runs along the axis, and how each point was judged.
pub(super) fn write(html: &mut Html, matrix: &MatrixDetail) {
    html.markup("<section><h2>Bisection of ").text(matrix.searched.as_deref().unwrap_or_default());
    html.markup("</h2>");
    if let Some(answer) = &matrix.answer {
        let class = if answer.first_bad.is_some() { "answer" } else { "answer bad" };
        html.element("p", class, shorten_commits(&answer.sentence));
        if let Some(subject) = &answer.subject {
            html.element("p", "faint", subject);
        }
    }
    if matrix.steps.is_empty() {
        html.markup("<p class=\"empty\">").markup(match matrix.answer {
            Some(_) => "Recorded runs had all measurements; nothing was run.",
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

/// The answer's verdict on the point of a run, otherwise the outcome of the run.
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
    let values = ValueScale::of(matrix);
    const LEFT: f64 = 10.0;
    const WIDTH: f64 = 460.0;
    // Below the labels of the ends.
    const TOP: usize = 18;
    let points = matrix.points();
    let count = points.len().max(2);
    let rows = matrix.steps.len().min(MAX_DRAWN_STEPS);
    let bottom = TOP + 12 + rows * 12;
    html.markup("<svg class=\"bisect\" role=\"img\"")
        .attr("viewBox", format!("0 0 480 {}", bottom + 4));
    let looks = text::count(matrix.steps.len() as u64, "measurement");
    let all = text::count(count as u64, "point");
    html.attr("aria-label", format!("{looks} of {all}")).markup(">");
    let x = |index: usize| format!("{:.1}", LEFT + index as f64 / (count - 1) as f64 * WIDTH);
    for index in (0..count).step_by(count.div_ceil(60)) {
        html.markup("<line class=\"grid\"").attr("x1", x(index)).attr("x2", x(index));
        html.attr("y1", TOP).attr("y2", bottom).markup("/>");
    }
    // The verdict on a point is drawn behind its runs, which may belong to earlier loops.
    for one in matrix.answer.iter().flat_map(|answer| &answer.steps) {
        let Some(index) = points.iter().position(|point| *point == one.point) else { continue };
        let (word, class, _) = words(one.verdict);
        html.markup("<rect width=\"3\"").attr("class", class).attr("y", TOP);
        html.attr("height", bottom - TOP);
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
            .attr("cy", TOP + 8 + at * 12);
        html.markup("><title>")
            .text(step_title(step, &values))
            .markup(": ")
            .markup(word)
            .markup("</title></circle>");
    }
    let ends = [(points.first(), "start", LEFT), (points.last(), "end", LEFT + WIDTH)];
    for (point, anchor, x) in ends {
        html.markup("<text class=\"tick\"").attr("text-anchor", anchor).attr("x", x);
        html.markup(" y=\"12\">");
        html.text(point.map(|point| shorten_commits(point)).unwrap_or_default()).markup("</text>");
    }
    html.markup("</svg><h3>Measurements</h3><div class=\"scroll tall\" tabindex=\"0\" role=\"region\" aria-label=\"Measurements\"><table class=\"stack\"><thead><tr><th scope=\"col\" class=\"n\">#</th><th scope=\"col\">Point</th><th scope=\"col\" class=\"n\">Place</th><th scope=\"col\">Run</th><th scope=\"col\" class=\"n\">");
    html.text(values.name()).markup("</th></tr></thead><tbody>");
    for (at, step) in matrix.steps.iter().enumerate() {
        html.markup("<tr>");
        cell(html, "number", "n");
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
        html.text(step.value.map(|value| values.text(value)).unwrap_or_default());
        html.markup("</td></tr>");
    }
    html.markup("</tbody></table></div>");
}

/// Every judged point, in the order of the axis.
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
        if let Some(name) = answer.part(&one.point) {
            html.markup(" <span class=\"ref\">").markup(name).markup("</span>");
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

fn step_title(step: &BisectStep, values: &ValueScale) -> String {
    let value = step.value.map(|value| format!(", {}", values.text(value))).unwrap_or_default();
    format!("{}: exit {}{value}", shorten_commits(&step.point), step.exit_code)
}
