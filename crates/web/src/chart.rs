//! Charts as SVG: axes with units, colours by class, and a description for screen readers.

use std::fmt::Write;

use retake_runner::html::Html;

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 6.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 20.0;

/// A chart over consecutive slices of time.
pub(super) struct Chart<'a> {
    /// The description for screen readers.
    pub(super) says: &'a str,
    pub(super) series: &'a [Series<'a>],
    pub(super) shape: Shape,
    /// The unit of the vertical axis.
    pub(super) unit: Unit,
    /// Labels below the first and the last slice.
    pub(super) ends: (&'a str, &'a str),
    /// The title of each slice, shown on hover.
    pub(super) titles: &'a [String],
    /// The link of each slice; empty for none.
    pub(super) links: &'a [String],
}

pub(super) struct Series<'a> {
    pub(super) class: &'static str,
    /// One value for each slice.
    pub(super) values: &'a [Option<f64>],
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// On top of each other.
    Stacked,
    Lines,
}

/// The unit of a vertical axis: the positions of its lines and the format of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// A count; only whole numbers.
    Count,
    Milliseconds,
    Dollars,
    Percent,
}

/// Maximum number of lines above zero.
const LINES: f64 = 4.0;

impl Unit {
    /// The distance between two lines: a round number of which a few reach the largest value.
    fn step(self, most: f64) -> f64 {
        const SECOND: f64 = 1000.0;
        const MINUTE: f64 = 60.0 * SECOND;
        const HOUR: f64 = 60.0 * MINUTE;
        // Times are not counted in tens and hundreds of seconds.
        const TIMES: [f64; 15] = [
            10.0 * SECOND,
            15.0 * SECOND,
            30.0 * SECOND,
            MINUTE,
            2.0 * MINUTE,
            5.0 * MINUTE,
            10.0 * MINUTE,
            15.0 * MINUTE,
            30.0 * MINUTE,
            HOUR,
            2.0 * HOUR,
            3.0 * HOUR,
            6.0 * HOUR,
            12.0 * HOUR,
            24.0 * HOUR,
        ];
        let smallest = match self {
            Self::Count | Self::Milliseconds | Self::Percent => 1.0,
            Self::Dollars => 0.001,
        };
        if !most.is_finite() || most <= 0.0 {
            return smallest;
        }
        // A value that rounding put just above a line still ends there.
        let reaches = |step: f64| step * LINES >= most * 0.999_999;
        let times = if self == Self::Milliseconds { &TIMES[..] } else { &[] };
        if most > SECOND * LINES * 5.0
            && let Some(step) = times.iter().copied().find(|step| reaches(*step))
        {
            return step;
        }
        let power = 10f64.powf((most / LINES).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        steps.into_iter().find(|step| reaches(*step)).unwrap_or(power * 10.0).max(smallest)
    }

    fn text(self, value: f64) -> String {
        match self {
            Self::Count if value >= 10_000.0 => format!("{:.0}k", value / 1000.0),
            Self::Count => format!("{value:.0}"),
            Self::Percent => format!("{value:.0} %"),
            Self::Dollars if value > 0.0 && value < 0.1 => format!("${value:.3}"),
            Self::Dollars => format!("${value:.2}"),
            Self::Milliseconds => match value {
                0.0 => "0".to_owned(),
                ms if ms < 1000.0 => format!("{ms:.0}ms"),
                ms if ms < 60_000.0 && ms % 1000.0 != 0.0 => format!("{:.1}s", ms / 1000.0),
                ms => {
                    let seconds = (ms / 1000.0) as u64;
                    let parts =
                        [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
                    let parts = parts.iter().filter(|(count, _)| *count > 0);
                    parts.map(|(count, name)| format!("{count}{name}")).collect()
                }
            },
        }
    }
}

impl Chart<'_> {
    fn count(&self) -> usize {
        self.series.iter().map(|series| series.values.len()).max().unwrap_or(0)
    }

    /// The largest value; of stacked series the largest sum of a slice.
    fn most(&self) -> f64 {
        let value = |series: &Series<'_>, at: usize| series.values.get(at).copied().flatten();
        let each = (0..self.count()).map(|at| {
            let values = self.series.iter().filter_map(|series| value(series, at));
            match self.shape {
                Shape::Stacked => values.sum::<f64>(),
                Shape::Lines => values.fold(0.0, f64::max),
            }
        });
        each.fold(0.0, f64::max)
    }

    /// The chart with its caption.
    pub(super) fn figure(&self, html: &mut Html, caption: impl FnOnce(&mut Html)) {
        html.markup("<figure><figcaption>");
        caption(html);
        html.markup("</figcaption>");
        self.draw(html);
        html.markup("</figure>");
    }

    fn draw(&self, html: &mut Html) {
        let (count, most) = (self.count().max(1), self.most());
        let step = self.unit.step(most);
        let lines = (most / step - 1e-6).ceil().max(1.0) as u32;
        let top = step * f64::from(lines);
        let (inner, height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
        let y = |value: f64| TOP + height * (1.0 - value / top);
        let x = |at: usize| LEFT + inner * at as f64 / count as f64;
        // Links inside an element with the role `img` cannot be reached.
        let role = if self.links.is_empty() { "img" } else { "group" };
        html.markup("<svg class=\"chart\"").attr("role", role);
        html.attr("viewBox", format!("0 0 {WIDTH} {HEIGHT}"));
        html.attr("aria-label", self.says).markup(">");
        for line in 0..=lines {
            let value = step * f64::from(line);
            html.markup("<line class=\"grid\"").attr("x1", LEFT).attr("x2", WIDTH - RIGHT);
            html.attr("y1", number(y(value))).attr("y2", number(y(value))).markup("/>");
            html.markup("<text class=\"tick\" text-anchor=\"end\"").attr("x", LEFT - 5.0);
            html.attr("y", number(y(value) + 4.0))
                .markup(">")
                .text(self.unit.text(value))
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
        // A few slices do not become wide walls.
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

/// The samples of a cell: a dot for each one (or for every second, third, … of more than `most`), and a
/// line for the median.
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

/// A difference as a factor with its interval, on a scale whose centre is no difference. `reach` is the
/// largest factor of all charts below each other.
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

    fn lines(unit: Unit, most: f64) -> Vec<String> {
        let step = unit.step(most);
        let lines = (most / step - 1e-6).ceil().max(1.0) as u32;
        (0..=lines).map(|line| unit.text(step * f64::from(line))).collect()
    }

    #[test]
    fn the_axis_has_lines_at_round_numbers() {
        assert_eq!(lines(Unit::Count, 0.0), ["0", "1"]);
        assert_eq!(lines(Unit::Count, f64::NAN), ["0", "1"]);
        assert_eq!(lines(Unit::Count, 3.0), ["0", "1", "2", "3"]);
        // Little space is left above the highest bar.
        assert_eq!(lines(Unit::Count, 24.0), ["0", "10", "20", "30"]);
        assert_eq!(lines(Unit::Count, 205.0), ["0", "100", "200", "300"]);
        assert_eq!(lines(Unit::Count, 40_000.0), ["0", "10k", "20k", "30k", "40k"]);
        assert_eq!(lines(Unit::Milliseconds, 3.0), ["0", "1ms", "2ms", "3ms"]);
        assert_eq!(lines(Unit::Milliseconds, 1700.0), ["0", "500ms", "1s", "1.5s", "2s"]);
        assert_eq!(lines(Unit::Milliseconds, 149_000.0), ["0", "1m", "2m", "3m"]);
        assert_eq!(lines(Unit::Milliseconds, 100_000.0), ["0", "30s", "1m", "1m30s", "2m"]);
        assert_eq!(lines(Unit::Milliseconds, 6_000_000.0), ["0", "30m", "1h", "1h30m", "2h"]);
        assert_eq!(lines(Unit::Milliseconds, 8.0 * 3_600_000.0), ["0", "2h", "4h", "6h", "8h"]);
        assert_eq!(lines(Unit::Dollars, 1.54), ["$0.00", "$0.50", "$1.00", "$1.50", "$2.00"]);
        assert_eq!(lines(Unit::Dollars, 0.03), ["$0.00", "$0.010", "$0.020", "$0.030"]);
        assert_eq!(lines(Unit::Percent, 100.0), ["0 %", "50 %", "100 %"]);
        // The number of lines is limited for any duration.
        for most in [1.0, 19_999.0, 20_001.0, 5e8, 3e12] {
            assert!(lines(Unit::Milliseconds, most).len() <= 6, "{most}");
        }
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
                unit: Unit::Milliseconds,
                ends: ("then", "now"),
                titles: &titles,
                links: &[],
            }
            .figure(&mut html, |html| _ = html.text("<i>"));
            let text = html.as_str();
            assert!(text.contains("aria-label=\"runs &lt;b&gt;\"") && text.contains(">4ms<"));
            assert!(text.starts_with("<figure><figcaption>&lt;i&gt;</figcaption><svg"), "{text}");
            assert!(text.contains(">then<") && text.contains(">now<") && !text.contains("NaN"));
        }
    }
}
