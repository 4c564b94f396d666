//! Charts as SVG: axes with units, colours by class, and a description for screen readers.

use std::fmt::Write;
use std::time::Duration;

use retake_runner::html::Html;
use retake_types::text;

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 6.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 20.0;

/// A chart over a row of slices.
pub(super) struct Chart<'a> {
    /// What it shows, in words.
    pub(super) says: &'a str,
    pub(super) series: &'a [Series<'a>],
    pub(super) shape: Shape,
    /// How a value of the vertical axis is written.
    pub(super) unit: fn(f64) -> String,
    /// What stands under the first and the last slice.
    pub(super) ends: (&'a str, &'a str),
    /// What each slice is, on hover.
    pub(super) titles: &'a [String],
    /// Where each slice leads; none where it is empty.
    pub(super) links: &'a [String],
}

pub(super) struct Series<'a> {
    pub(super) class: &'static str,
    /// One for each slice.
    pub(super) values: &'a [Option<f64>],
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// One on the other.
    Stacked,
    Lines,
}

impl Chart<'_> {
    fn count(&self) -> usize {
        self.series.iter().map(|series| series.values.len()).max().unwrap_or(0)
    }

    fn top(&self) -> f64 {
        let value = |series: &Series<'_>, at: usize| series.values.get(at).copied().flatten();
        let each = (0..self.count()).map(|at| {
            let values = self.series.iter().filter_map(|series| value(series, at));
            match self.shape {
                Shape::Stacked => values.sum::<f64>(),
                Shape::Lines => values.fold(0.0, f64::max),
            }
        });
        round_up(each.fold(0.0, f64::max))
    }

    /// The chart below what it is called.
    pub(super) fn figure(&self, html: &mut Html, caption: impl FnOnce(&mut Html)) {
        html.markup("<figure><figcaption>");
        caption(html);
        html.markup("</figcaption>");
        self.draw(html);
        html.markup("</figure>");
    }

    fn draw(&self, html: &mut Html) {
        let (count, top) = (self.count().max(1), self.top());
        let (inner, height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
        let y = |value: f64| TOP + height * (1.0 - value / top);
        let x = |at: usize| LEFT + inner * at as f64 / count as f64;
        // What is inside of an image cannot be reached.
        let role = if self.links.is_empty() { "img" } else { "group" };
        html.markup("<svg class=\"chart\"").attr("role", role);
        html.attr("viewBox", format!("0 0 {WIDTH} {HEIGHT}"));
        html.attr("aria-label", self.says).markup(">");
        for part in [0.0, 0.5, 1.0] {
            let value = top * part;
            html.markup("<line class=\"grid\"").attr("x1", LEFT).attr("x2", WIDTH - RIGHT);
            html.attr("y1", number(y(value))).attr("y2", number(y(value))).markup("/>");
            html.markup("<text class=\"tick\" text-anchor=\"end\"").attr("x", LEFT - 5.0);
            html.attr("y", number(y(value) + 4.0))
                .markup(">")
                .text((self.unit)(value))
                .markup("</text>");
        }
        match self.shape {
            Shape::Stacked => self.bars(html, x, y, inner / count as f64),
            Shape::Lines => self.lines(html, |at| x(at) + inner / count as f64 / 2.0, y),
        }
        for (x, anchor, text) in [(LEFT, "start", self.ends.0), (WIDTH - RIGHT, "end", self.ends.1)]
        {
            html.markup("<text class=\"tick\"").attr("x", x).attr("y", HEIGHT - 5.0);
            html.attr("text-anchor", anchor).markup(">").text(text).markup("</text>");
        }
        html.markup("</svg>");
    }

    fn bars(&self, html: &mut Html, x: impl Fn(usize) -> f64, y: impl Fn(f64) -> f64, width: f64) {
        // A few slices do not become walls.
        let bar = (width * 0.8).min(36.0);
        for at in 0..self.count() {
            let mut under = 0.0;
            let has = |series: &Series<'_>| series.values.get(at).copied().flatten() > Some(0.0);
            let link = self.links.get(at).filter(|_| self.series.iter().any(has));
            if let Some(link) = link {
                html.markup("<a").attr("href", link);
                html.attr("aria-label", self.titles.get(at).map_or("", String::as_str)).markup(">");
            }
            html.markup("<g>");
            for series in self.series {
                let Some(value) = series.values.get(at).copied().flatten() else { continue };
                if value > 0.0 {
                    let (high, low) = (y(under + value), y(under));
                    html.markup("<rect")
                        .attr("class", series.class)
                        .attr("x", number(x(at) + (width - bar) / 2.0));
                    html.attr("y", number(high)).attr("width", number(bar));
                    html.attr("height", number((low - high).max(0.8))).markup("/>");
                    under += value;
                }
            }
            if let Some(title) = self.titles.get(at) {
                html.markup("<title>").text(title).markup("</title>");
            }
            html.markup(if link.is_some() { "</g></a>" } else { "</g>" });
        }
    }

    fn lines(&self, html: &mut Html, x: impl Fn(usize) -> f64, y: impl Fn(f64) -> f64) {
        for series in self.series {
            let mut path = String::new();
            let mut apart = true;
            for (at, value) in series.values.iter().enumerate() {
                let Some(value) = value else {
                    apart = true;
                    continue;
                };
                let verb = if std::mem::take(&mut apart) { 'M' } else { 'L' };
                // Writing to a string cannot fail.
                _ = write!(path, "{verb}{} {}", number(x(at)), number(y(*value)));
            }
            html.markup("<path").attr("class", series.class).attr("d", &path).markup("/>");
            for (at, value) in series.values.iter().enumerate() {
                let Some(value) = value else { continue };
                html.markup("<circle").attr("class", series.class).attr("cx", number(x(at)));
                html.attr("cy", number(y(*value))).markup(" r=\"2\"><title>");
                html.text(self.titles.get(at).map_or("", String::as_str))
                    .markup("</title></circle>");
            }
        }
    }
}

fn number(value: f64) -> String {
    format!("{value:.1}")
}

/// A number of things on an axis; nothing between two of them.
pub(super) fn count(value: f64) -> String {
    match value {
        v if v >= 10_000.0 => format!("{:.0}k", v / 1000.0),
        v if v.fract() == 0.0 => format!("{v:.0}"),
        _ => String::new(),
    }
}

/// Milliseconds on an axis.
pub(super) fn milliseconds(ms: f64) -> String {
    match ms {
        0.0 => "0".to_owned(),
        // A run is never said to take less.
        ms if ms < 1.0 => String::new(),
        ms => text::duration(Duration::from_micros((ms * 1000.0) as u64)),
    }
}

/// US dollars on an axis.
pub(super) fn dollars(value: f64) -> String {
    match value {
        v if v > 0.0 && v < 0.1 => format!("${v:.3}"),
        v => format!("${v:.2}"),
    }
}

/// The next number that is easy to read: 1, 2 or 5 of a power of ten.
fn round_up(value: f64) -> f64 {
    if !value.is_finite() || value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|step| *step >= value * 0.999).unwrap_or(value)
}

/// The samples of a cell: every one a dot, or every second or third of more than `most`; the median
/// a line.
pub(super) fn strip(
    html: &mut Html,
    values: &[f64],
    median: f64,
    (low, high): (f64, f64),
    most: usize,
    says: &str,
) {
    let span = if high > low { high - low } else { 1.0 };
    let x = |value: f64| 4.0 + (value - low) / span * 472.0;
    html.markup(
        "<svg class=\"strip\" viewBox=\"0 0 480 24\" preserveAspectRatio=\"none\" role=\"img\"",
    )
    .attr("aria-label", says)
    .markup(">");
    for (at, value) in values.iter().enumerate().step_by(values.len().div_ceil(most).max(1)) {
        // Spread over the height so that equal values do not hide each other.
        let y = 5.0 + (at as f64 * 0.618_034).fract() * 14.0;
        html.markup("<circle r=\"2.2\"")
            .attr("cx", number(x(*value)))
            .attr("cy", number(y))
            .markup("/>");
    }
    html.markup("<line y1=\"1\" y2=\"23\"")
        .attr("x1", number(x(median)))
        .attr("x2", number(x(median)));
    html.markup("/></svg>");
}

/// A difference as a factor with its interval, beside no difference. `reach` is the largest factor
/// of all that stand below each other.
pub(super) fn span(
    html: &mut Html,
    ratio: f64,
    [low, high]: [f64; 2],
    reach: f64,
    class: &'static str,
    says: &str,
) {
    let reach = reach.max(1.01).ln();
    let x = |ratio: f64| 80.0 + (ratio.max(1e-9).ln() / reach).clamp(-1.0, 1.0) * 76.0;
    html.markup("<svg class=\"span\" viewBox=\"0 0 160 16\" role=\"img\"").attr("aria-label", says);
    html.markup("><line x1=\"80\" x2=\"80\" y1=\"0\" y2=\"16\"/><rect y=\"6\" height=\"4\"");
    html.attr("class", class).attr("x", number(x(low)));
    html.attr("width", number((x(high) - x(low)).max(1.0))).markup("/><rect y=\"3\" height=\"10\"");
    html.attr("class", class).attr("x", number(x(ratio) - 1.0)).markup(" width=\"2\"/></svg>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_ends_at_a_number_that_is_easy_to_read() {
        for (value, top) in [(0.0, 1.0), (3.0, 5.0), (10.0, 10.0), (11.0, 20.0), (0.03, 0.05)] {
            assert!((round_up(value) - top).abs() < 1e-9, "{value}");
        }
        assert_eq!(round_up(f64::NAN), 1.0);
    }

    #[test]
    fn a_chart_says_what_it_shows_and_has_its_units() {
        let values = [Some(1.0), None, Some(4.0)];
        for shape in [Shape::Stacked, Shape::Lines] {
            let mut html = Html::new();
            let series = [Series { class: "ok", values: &values }];
            let titles = ["a".to_owned()];
            Chart {
                says: "runs <b>",
                series: &series,
                shape,
                unit: |value| format!("{value} ms"),
                ends: ("then", "now"),
                titles: &titles,
                links: &[],
            }
            .figure(&mut html, |html| _ = html.text("<i>"));
            let text = html.as_str();
            assert!(text.contains("aria-label=\"runs &lt;b&gt;\"") && text.contains(">5 ms<"));
            assert!(text.starts_with("<figure><figcaption>&lt;i&gt;</figcaption><svg"), "{text}");
            assert!(text.contains(">then<") && text.contains(">now<") && !text.contains("NaN"));
        }
    }
}
