//! The samples of a cell as a drawing: every one a dot, outliers hollow, the median a line.

use std::fmt::Write;

use crate::stats::summarise;

pub(super) const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 28.0;
/// More dots than this cannot be told apart.
const MOST: usize = 400;

/// The least and the largest value of all cells, so that their drawings can be compared.
pub(super) fn range<'a>(values: impl Iterator<Item = &'a f64>) -> (f64, f64) {
    let finite = values.filter(|x| x.is_finite());
    finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(*x), high.max(*x)))
}

pub(super) fn strip(values: &[f64], (low, high): (f64, f64)) -> String {
    let Some(summary) = summarise(values) else { return String::new() };
    let span = if high > low { high - low } else { 1.0 };
    let x = |value: f64| 6.0 + (value - low) / span * (WIDTH - 12.0);
    let mut text = format!(
        r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{} samples from {:.3} to {:.3}, median {:.3}">"#,
        summary.samples, summary.min, summary.max, summary.median
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
        // Writing to a string cannot fail.
        let _ =
            write!(text, r#"<circle class="{class}" cx="{:.1}" cy="{y:.1}" r="2.5"/>"#, x(*value));
    }
    let at = x(summary.median);
    let _ = write!(
        text,
        r#"<line class="m" x1="{at:.1}" x2="{at:.1}" y1="1" y2="{}"/></svg>"#,
        HEIGHT - 1.0
    );
    text
}
