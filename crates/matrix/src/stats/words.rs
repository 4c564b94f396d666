//! Comparisons and values as text: the same on a terminal, in a report and on the page.

use super::{Comparison, Counts, Reason, Verdict, percent};

/// Whether lower values are called faster.
pub fn is_time(metric: &str, unit: Option<&str>) -> bool {
    match unit {
        Some(unit) => matches!(unit, "ns" | "us" | "µs" | "ms" | "s" | "min"),
        None => matches!(metric, "wall" | "cpu" | "user" | "sys"),
    }
}

/// An approximate count: `about 40 more runs`. A projection from a few runs has at most two
/// significant digits.
fn more_runs(count: u64) -> String {
    let unit = 10u64.pow(count.checked_ilog10().unwrap_or(0).saturating_sub(1));
    match count.div_ceil(unit) * unit {
        1 => "about 1 more run".to_owned(),
        count => format!("about {count} more runs"),
    }
}

/// A number with its significant digits.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        x if x >= 1000.0 => 0,
        x if x >= 100.0 => 1,
        x if x >= 10.0 => 2,
        x if x >= 1.0 => 3,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A value with a unit that keeps it short: `1.234 s`, `812 µs`, `4.1 MB`.
pub fn value_text(value: f64, unit: Option<&str>) -> String {
    let (value, unit) = match (unit, value.abs()) {
        (Some("ms"), x) if x >= 1000.0 => (value / 1000.0, Some("s")),
        (Some("ms"), x) if x < 1.0 && x > 0.0 => (value * 1000.0, Some("µs")),
        (Some("KB"), x) if x >= 10_240.0 => (value / 1024.0, Some("MB")),
        (unit, _) => (value, unit),
    };
    match unit {
        Some(unit) => format!("{} {unit}", number(value)),
        None => number(value),
    }
}

/// A longer name of a baseline does not fit above a column.
const BASELINE: usize = 24;

/// The heading of a column of changes: the baseline that all have in common. The first cell of a
/// table is usually the baseline of others, and needs no name.
pub fn changes_heading<'a>(changes: impl IntoIterator<Item = Option<&'a Comparison>>) -> String {
    let mut changes = changes.into_iter();
    let first = changes.next().flatten();
    let mut names = first.into_iter().chain(changes.flatten()).map(|change| change.a.as_str());
    let name = names.next().unwrap_or_default();
    let common = names.all(|other| other == name);
    match (common, first) {
        (true, _) if name.chars().count() <= BASELINE => format!("against {name}"),
        (_, None) => "against the first".to_owned(),
        (true, Some(_)) => {
            let start: String = name.chars().take(BASELINE - 1).collect();
            format!("against {start}…")
        }
        (false, Some(_)) => "change".to_owned(),
    }
}

impl Comparison {
    /// The verdict in one or two words: `slower` for a time, `higher` for anything else.
    pub fn verdict_word(&self) -> &'static str {
        let time = is_time(&self.metric, self.unit.as_deref());
        match (self.verdict, time, self.is_more()) {
            (Verdict::Faster | Verdict::Slower, false, true) => "higher",
            (Verdict::Faster | Verdict::Slower, false, false) => "lower",
            (verdict, ..) => verdict.as_str(),
        }
    }

    /// The size of the change, without its interval: `+4.2 %`, or `+3` if there is no ratio.
    pub fn change_text(&self) -> Option<String> {
        let unit = self.unit.as_deref();
        match (self.ratio, self.difference) {
            (Some(ratio), _) => Some(percent(ratio)),
            (None, Some(difference)) => Some(signed(difference.value, unit)),
            (None, None) => None,
        }
    }

    /// The interval of the change: `+3.1 % to +5.3 %`. `None` for too few samples for the required
    /// confidence.
    pub fn interval_text(&self) -> Option<String> {
        let few =
            |why: &Reason| matches!(why, Reason::TooFew { .. } | Reason::TooFewForFamily { .. });
        if self.reason.as_ref().is_some_and(few) {
            return None;
        }
        let unit = self.unit.as_deref();
        match (self.interval, self.difference) {
            (Some([low, high]), _) => Some(format!("{} to {}", percent(low), percent(high))),
            (None, Some(difference)) => {
                let [low, high] = difference.interval?;
                Some(format!("{} to {}", signed(low, unit), signed(high, unit)))
            }
            (None, None) => None,
        }
    }

    /// How many more runs an undecided comparison needs: `about 40 more runs` projected from the
    /// runs so far, `at least 2 more runs` if those are too few.
    pub fn more_runs_text(&self) -> Option<String> {
        if self.verdict != Verdict::NotSure {
            return None;
        }
        match self.reason {
            Some(
                Reason::TooFew { samples, needed }
                | Reason::TooFewForFamily { samples, needed, .. },
            ) => {
                let more = needed.saturating_sub(samples).max(1);
                let runs = if more == 1 { "run" } else { "runs" };
                Some(format!("at least {more} more {runs}"))
            }
            _ => self.more_runs.map(more_runs),
        }
    }

    /// The comparison in one line, for people.
    pub fn sentence(&self) -> String {
        let Self { a, b, metric, .. } = self;
        let time = is_time(metric, self.unit.as_deref());
        let mut text = match self.verdict {
            Verdict::Same => format!("{b} is the same as {a} in {metric}"),
            Verdict::NotSure => format!("not sure whether {b} differs from {a} in {metric}"),
            _ if time => format!("{b} is {} than {a} in {metric}", self.verdict_word()),
            _ => format!("{b} has {} {metric} than {a}", self.verdict_word()),
        };
        if let Some(at) = &self.at {
            text += &format!(" with {at}");
        }
        let unit = self.unit.as_deref();
        let mut parts = Vec::new();
        if let Some(medians) = self.medians {
            let [of_a, of_b] = [medians.a, medians.b].map(|value| value_text(value, unit));
            parts.push(format!("{of_b} against {of_a}"));
        }
        parts.extend(match (self.change_text(), self.interval_text()) {
            (Some(change), Some(interval)) => Some(format!("{change} ({interval})")),
            (change, interval) => change.or(interval),
        });
        if !parts.is_empty() {
            text += &format!(": {}", parts.join(", "));
        }
        // The interval was shown already.
        let reason = self.reason.as_ref().filter(|reason| !matches!(reason, Reason::Wide { .. }));
        if let Some(reason) = reason {
            text += &format!(" ({reason})");
        }
        if let Some(more) = self.more_runs {
            text += &format!("; {} of each would decide", more_runs(more));
        }
        for (what, values) in &self.conditions {
            text += &format!("; {what} was not the same all the time: {}", values.join(", "));
        }
        if self.failed != Counts::default() {
            text += &format!("; failed: {} and {}", self.failed.a, self.failed.b);
        }
        text
    }
}

fn signed(value: f64, unit: Option<&str>) -> String {
    let sign = if value < 0.0 { "-" } else { "+" };
    format!("{sign}{}", value_text(value.abs(), unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Criteria, Side, compare};

    #[test]
    fn a_column_of_changes_names_their_baseline() {
        let values: Vec<f64> = (0..12).map(|i| 100.0 + f64::from(i)).collect();
        let blocks: Vec<u64> = (0..12).collect();
        let side = |name| Side { name, values: &values, blocks: &blocks, failed: 0 };
        let with = |a| compare(side(a), side("x"), "wall", &Criteria::default());
        let (v1, v2) = (with("v1"), with("v2"));
        let long = with("a/branch/with/a/rather/long/name");
        assert_eq!(changes_heading([None, Some(&v1)]), "against v1");
        assert_eq!(changes_heading([Some(&v2), None, Some(&v2)]), "against v2");
        assert_eq!(changes_heading([None, Some(&long)]), "against the first");
        assert_eq!(changes_heading([Some(&long), None]), "against a/branch/with/a/rather/…");
        assert_eq!(changes_heading([None, Some(&v1), Some(&v2)]), "against the first");
        assert_eq!(changes_heading([Some(&v2), Some(&v1)]), "change");
    }

    #[test]
    fn values_have_units_that_fit() {
        assert_eq!(value_text(1234.0, Some("ms")), "1.234 s");
        assert_eq!(value_text(12.3456, Some("ms")), "12.35 ms");
        assert_eq!(value_text(0.8125, Some("ms")), "812.5 µs");
        assert_eq!(value_text(204_800.0, Some("KB")), "200 MB");
        assert_eq!(value_text(1500.0, Some("KB")), "1500 KB");
        assert_eq!(value_text(7.0, None), "7");
    }

    #[test]
    fn a_projection_has_two_digits() {
        let said = [1, 7, 42, 143, 12_345].map(more_runs);
        let expected =
            ["1 more run", "7 more runs", "42 more runs", "150 more runs", "13000 more runs"];
        assert_eq!(said, expected.map(|text| format!("about {text}")));
    }

    #[test]
    fn too_few_samples_say_how_many_are_missing() {
        let side = |name, values| Side { name, values, blocks: &[], failed: 0 };
        let few = [1.0, 1.1, 1.05];
        let got = compare(side("a", &few), side("b", &few), "wall", &Criteria::default());
        assert_eq!(got.more_runs_text().as_deref(), Some("at least 2 more runs"));
    }

    #[test]
    fn too_few_samples_have_no_interval_in_words() {
        let side = |name, values| Side { name, values, blocks: &[], failed: 0 };
        let (a, b) = ([10.0, 11.0, 12.0], [20.0, 21.0, 22.0]);
        let few = compare(side("a", &a), side("b", &b), "wall", &Criteria::default());
        assert!(few.confidence < 0.95 && few.interval.is_some());
        assert_eq!(few.interval_text(), None);
        assert!(few.sentence().contains("+90.9 % (only 3 samples"), "{}", few.sentence());
    }

    #[test]
    fn only_time_is_fast_or_slow() {
        let a = [10.0, 10.1, 10.2, 9.9, 9.8, 10.05, 9.95, 10.15];
        let b = a.map(|x| x * 2.0);
        let side = |name, values| Side { name, values, blocks: &[], failed: 0 };
        let of = |metric: &str, unit: &str| {
            let mut c = compare(side("old", &a), side("new", &b), metric, &Criteria::default());
            c.unit = Some(unit.to_owned());
            c.sentence()
        };
        let wall = of("wall", "ms");
        assert!(wall.starts_with("new is slower than old in wall: 20.05 ms against "), "{wall}");
        assert!(
            of("rss", "KB").starts_with("new has higher rss than old: "),
            "{}",
            of("rss", "KB")
        );
    }
}
