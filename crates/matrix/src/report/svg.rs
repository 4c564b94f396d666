//! Charts: the samples of a cell as a histogram, and medians over commits.

use retake_runner::html::Html;
use retake_types::text;

use crate::history::{CommitRow, CommitSeries};
use crate::stats::{summarise, value_text};

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 44.0;
const EDGE: f64 = 4.0;
const BINS: usize = 36;

/// The least and the largest value of all cells, so that their charts can be compared.
pub(super) fn range<'a>(values: impl Iterator<Item = &'a f64>) -> (f64, f64) {
    let finite = values.filter(|x| x.is_finite());
    finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(*x), high.max(*x)))
}

/// Values this many times farther out than the interquartile range are not drawn to scale.
const FAR_OUT: f64 = 5.0;

/// The range of histograms of these values: all of them, except outliers that would hide the
/// others.
pub(super) fn drawn_range<'a>(values: impl Iterator<Item = &'a f64>) -> (f64, f64) {
    let mut sorted: Vec<f64> = values.copied().filter(|x| x.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let (Some(&low), Some(&high)) = (sorted.first(), sorted.last()) else {
        return (f64::INFINITY, f64::NEG_INFINITY);
    };
    let quarter = (sorted.len() - 1) / 4;
    let (first, third) = (sorted[quarter], sorted[sorted.len() - 1 - quarter]);
    let reach = FAR_OUT * (third - first);
    if reach > 0.0 { (low.max(first - reach), high.min(third + reach)) } else { (low, high) }
}

/// The number of samples in each part of the range, with a line at the median. Samples outside are
/// counted at the edge.
pub(super) fn histogram(
    html: &mut Html,
    values: &[f64],
    (low, high): (f64, f64),
    unit: Option<&str>,
) {
    let Some(summary) = summarise(values) else { return };
    let span = if high > low { high - low } else { 1.0 };
    let part = |value: f64| ((value - low) / span).clamp(0.0, 1.0);
    let mut counts = [0usize; BINS];
    for value in values.iter().filter(|value| value.is_finite()) {
        counts[((part(*value) * BINS as f64) as usize).min(BINS - 1)] += 1;
    }
    let beyond = |outside: &dyn Fn(f64) -> bool| values.iter().filter(|x| outside(**x)).count();
    let (below, above) = (beyond(&|x| x < low), beyond(&|x| x > high));
    let most = counts.iter().copied().max().unwrap_or(1).max(1) as f64;
    html.fill("<svg viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\"", &[&WIDTH, &HEIGHT, &WIDTH]);
    html.fill(
        " aria-label=\"{} from {} to {}, median {}\">",
        &[
            &text::count(summary.samples as u64, "sample"),
            &value_text(summary.min, unit),
            &value_text(summary.max, unit),
            &value_text(summary.median, unit),
        ],
    );
    let inner = WIDTH - 2.0 * EDGE;
    let width = inner / BINS as f64;
    for (bin, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let height = (*count as f64 / most * (HEIGHT - 6.0)).max(2.0);
        html.fill(
            "<rect class=\"d\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
            &[
                &fixed(EDGE + bin as f64 * width),
                &fixed(HEIGHT - 1.0 - height),
                &fixed(width - 1.0),
                &fixed(height),
            ],
        );
    }
    let at = fixed(EDGE + part(summary.median) * inner);
    html.fill(
        "<line class=\"z\" x1=\"0\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>",
        &[&WIDTH, &(HEIGHT - 0.5), &(HEIGHT - 0.5)],
    );
    html.fill("<line class=\"m\" x1=\"{}\" x2=\"{}\" y1=\"1\" y2=\"{}\"/>", &[&at, &at, &HEIGHT]);
    if below > 0 {
        html.fill("<text x=\"{}\" y=\"12\">‹ {} below</text>", &[&EDGE, &below]);
    }
    if above > 0 {
        html.fill(
            "<text x=\"{}\" y=\"12\" text-anchor=\"end\">{} above ›</text>",
            &[&(WIDTH - EDGE), &above],
        );
    }
    html.markup("</svg>");
}

fn fixed(value: f64) -> String {
    format!("{value:.1}")
}

const CHART: (f64, f64) = (720.0, 220.0);
const LEFT: f64 = 116.0;
const BOTTOM: f64 = 24.0;
const TOP: f64 = 24.0;

/// Medians over commits with their intervals; vertical lines mark changes, dashed if they may be
/// the machine's.
pub fn over_commits(html: &mut Html, series: &CommitSeries, unit: Option<&str>, says: &str) {
    let points: Vec<(usize, &CommitRow, f64)> = series
        .commits
        .iter()
        .enumerate()
        .filter_map(|(place, row)| Some((place, row, row.summary.as_ref()?.median)))
        .collect();
    let ends = points.iter().flat_map(|(_, row, median)| {
        row.interval.map_or_else(|| vec![*median], |ends| ends.to_vec())
    });
    let all: Vec<f64> = ends.collect();
    let (low, high) = range(all.iter());
    if low > high {
        return;
    }
    let span = if high > low { high - low } else { high.abs().max(1.0) };
    let (width, height) = CHART;
    let count = series.commits.len().max(2) as f64 - 1.0;
    let x = |place: usize| LEFT + place as f64 / count * (width - LEFT - 16.0);
    let y = |value: f64| TOP + (high - value) / span * (height - TOP - BOTTOM);
    html.fill(
        "<svg class=\"history\" viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\" aria-label=\"{}\">",
        &[&width, &height, &width, &says],
    );
    for value in [low, high] {
        html.fill(
            "<line class=\"z\" x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>",
            &[&LEFT, &width, &fixed(y(value)), &fixed(y(value))],
        );
        html.fill(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            &[&(LEFT - 6.0), &fixed(y(value) + 4.0), &value_text(value, unit)],
        );
    }
    let line: Vec<String> = points
        .iter()
        .map(|(place, _, median)| format!("{},{}", fixed(x(*place)), fixed(y(*median))))
        .collect();
    html.fill("<polyline class=\"l\" points=\"{}\"/>", &[&line.join(" ")]);
    for (place, row, median) in &points {
        let at = fixed(x(*place));
        if let Some([low, high]) = row.interval {
            html.fill(
                "<line class=\"i\" x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>",
                &[&at, &at, &fixed(y(low)), &fixed(y(high))],
            );
        }
        html.fill(
            "<circle class=\"d\" cx=\"{}\" cy=\"{}\" r=\"3.5\"><title>{} {}: {}</title></circle>",
            &[
                &at,
                &fixed(y(*median)),
                &&row.sha[..row.sha.len().min(7)],
                &row.subject,
                &value_text(*median, unit),
            ],
        );
        if let Some(change) = series.change_at(row) {
            let between = fixed((x(*place) + x(place.saturating_sub(1))) / 2.0);
            let class = if change.is_sure() { "m" } else { "c" };
            html.fill(
                "<line class=\"{}\" x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>",
                &[&class, &between, &between, &TOP, &(height - BOTTOM)],
            );
            html.fill(
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}{}</text>",
                &[
                    &between,
                    &(TOP - 4.0),
                    &change.size(unit),
                    &if change.is_sure() { "" } else { "?" },
                ],
            );
        }
    }
    let ends =
        [(series.commits.first(), LEFT, "start"), (series.commits.last(), width - 16.0, "end")];
    for (row, at, anchor) in ends {
        let Some(row) = row else { continue };
        html.fill(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>",
            &[&at, &(height - 6.0), &anchor, &&row.sha[..row.sha.len().min(7)]],
        );
    }
    html.markup("</svg>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outlier_does_not_hide_the_other_values() {
        let mut values: Vec<f64> = (0..20).map(|i| 100.0 + f64::from(i)).collect();
        assert_eq!(drawn_range(values.iter()), (100.0, 119.0));
        values.push(1e9);
        let range = drawn_range(values.iter());
        assert!(range.0 == 100.0 && range.1 < 200.0, "{range:?}");
        let mut html = Html::new();
        histogram(&mut html, &values, range, Some("ms"));
        let text = html.into_string();
        assert!(text.matches("<rect").count() > 5, "{text}");
        assert!(text.contains("1 above ›") && !text.contains("below"), "{text}");
        let (low, high) = drawn_range([].iter());
        assert!(low > high);
        // If most values are equal there is no interquartile range.
        assert_eq!(drawn_range([1.0, 1.0, 1.0, 1.0, 9.0].iter()), (1.0, 9.0));
    }
}
