//! The samples of a cell as a drawing: every one a dot, outliers hollow, the median a line.

use retake_runner::html::Html;

use crate::stats::summarise;
use retake_types::text;

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 28.0;
/// More dots than this cannot be distinguished.
const MOST: usize = 400;

/// The least and the largest value of all cells, so that their drawings can be compared.
pub(super) fn range<'a>(values: impl Iterator<Item = &'a f64>) -> (f64, f64) {
    let finite = values.filter(|x| x.is_finite());
    finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(*x), high.max(*x)))
}

/// Draws the samples of one cell.
pub(super) fn strip(html: &mut Html, values: &[f64], (low, high): (f64, f64)) {
    let Some(summary) = summarise(values) else { return };
    let span = if high > low { high - low } else { 1.0 };
    let x = |value: f64| format!("{:.1}", 6.0 + (value - low) / span * (WIDTH - 12.0));
    let fixed = |value: f64| format!("{value:.3}");
    html.fill(
        "<svg viewBox=\"0 0 {} {}\" width=\"{}\" height=\"{}\" role=\"img\"",
        &[&WIDTH, &HEIGHT, &WIDTH, &HEIGHT],
    );
    html.fill(
        " aria-label=\"{} from {} to {}, median {}\">",
        &[
            &text::count(summary.samples as u64, "sample"),
            &fixed(summary.min),
            &fixed(summary.max),
            &fixed(summary.median),
        ],
    );
    let step = values.len().div_ceil(MOST).max(1);
    for (place, value) in values.iter().enumerate() {
        let outlier = summary.outliers.contains(&place);
        if !value.is_finite() || (place % step != 0 && !outlier) {
            continue;
        }
        // Spread over the height so that equal values do not hide each other; the same every time.
        let y = 6.0 + (place as f64 * 0.618_034).fract() * (HEIGHT - 12.0);
        let class = if outlier { "o" } else { "d" };
        html.fill(
            "<circle class=\"{}\" cx=\"{}\" cy=\"{}\" r=\"2.5\"/>",
            &[&class, &x(*value), &format_args!("{y:.1}")],
        );
    }
    let at = x(summary.median);
    html.fill(
        "<line class=\"m\" x1=\"{}\" x2=\"{}\" y1=\"1\" y2=\"{}\"/></svg>",
        &[&at, &at, &(HEIGHT - 1.0)],
    );
}
