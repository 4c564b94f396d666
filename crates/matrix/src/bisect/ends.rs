//! Why a search has no answer: what the ends and the points showed.

use super::{Bisect, Judge};
use crate::stats::{median, median_interval, percent};

/// An end contradicts what is stated if this part of its runs does, or more.
const WRONG: f64 = 0.8;

impl Bisect {
    /// Whether the good end is certainly the bad one, and the other way round.
    pub(super) fn is_reversed(&self) -> bool {
        self.hypotheses_of_ends().reversed() >= self.settings.confidence
    }

    /// A point that is on the other side of this change by most of its runs. A quick search does
    /// not measure points again, but there may be earlier runs.
    pub(super) fn contradicted(&self, good: usize, bad: usize) -> Option<usize> {
        (0..self.points.len()).find(|&index| {
            let point = &self.points[index];
            // With a metric, the good end is not measured against itself.
            let counts = point.samples() > 0 && !(self.needs_pairs() && index == 0);
            let against = match index {
                index if index <= good => point.bad,
                index if index >= bad => point.good,
                _ => 0,
            };
            counts && 2 * against >= point.samples()
        })
    }

    /// The answer of a quick search, and the point that contradicts it.
    pub(super) fn why_contradicted(&self, point: usize, answer: &str) -> String {
        format!(
            "the recorded runs contradict a quick answer: {answer}, but {} {}; search without --quick",
            self.names[point],
            self.counts(point),
        )
    }

    /// The likeliest place, which is not likely enough.
    pub(super) fn why_unsure(&self, answer: &str) -> String {
        format!(
            "not sure where it changes: {answer} is the likeliest, and {} % are required; {}",
            (self.settings.confidence * 1000.0).round() / 10.0,
            self.more()
        )
    }

    pub(super) fn why_ends_do_not_differ(&self) -> String {
        let last = self.points.len() - 1;
        if let Some(end) = [0, last].into_iter().find(|&end| self.points[end].skipped) {
            return format!(
                "{} cannot be judged: it could not run, failed or exited with 125; the search needs \
                 a result at both ends",
                self.end(end)
            );
        }
        let [good, bad] = [0, last].map(|end| self.end(end));
        if self.improved {
            let size = median(&self.points[last].ratios)
                .map_or_else(String::new, |middle| format!(" ({})", percent(middle.exp())));
            return format!(
                "{bad} is given as bad and is better than {good}{size}; exchange --good and --bad to \
                 search for that change"
            );
        }
        if matches!(self.settings.judge, Judge::Metric { .. }) && self.points[last].samples() > 0 {
            return self.ends_alike();
        }
        if self.points[0].samples() == 0 || self.points[last].samples() == 0 {
            return "the ends are not judged yet".to_owned();
        }
        let mostly =
            |part: usize, end: usize| part as f64 >= WRONG * self.points[end].samples() as f64;
        let good_fails = format!("{good} is given as good and {}", self.counts(0));
        let bad_passes = format!("{bad} is given as bad and {}", self.counts(last));
        match (mostly(self.points[0].bad, 0), mostly(self.points[last].good, last)) {
            (true, true) => format!("{good_fails}; {bad_passes}: exchange --good and --bad"),
            (true, false) => good_fails + &self.change_between(),
            (false, true) => bad_passes + &self.change_between(),
            (false, false) => format!(
                "not sure whether {bad} differs from {good}: {bad} {}, and {good} {}; {}",
                self.counts(last),
                self.counts(0),
                self.more()
            ),
        }
    }

    /// A change between ends that are alike, as far as recorded runs show it.
    fn change_between(&self) -> String {
        let judged = |index: &usize| {
            let point = &self.points[*index];
            !point.skipped && point.good != point.bad
        };
        let judged: Vec<usize> = (0..self.points.len()).filter(judged).collect();
        let is_bad = |index: usize| self.points[index].bad > self.points[index].good;
        let change = judged.windows(2).find(|pair| !is_bad(pair[0]) && is_bad(pair[1]));
        let Some(&[good, bad]) = change else { return String::new() };
        let name = |index: usize| match index {
            0 => self.end(0),
            index if index + 1 == self.points.len() => self.end(index),
            index => self.names[index].clone(),
        };
        format!(
            "; between the two it changes: {} {}, and {} {}: search between these",
            name(good),
            self.counts(good),
            name(bad),
            self.counts(bad)
        )
    }

    /// An end as the user calls it, with its exact value.
    fn end(&self, index: usize) -> String {
        let given = if index == 0 { &self.given[0] } else { &self.given[1] };
        let is_commit =
            |name: &str| name.len() >= 40 && name.bytes().all(|b| b.is_ascii_hexdigit());
        match &self.names[index] {
            name if name == given => given.clone(),
            // An abbreviated commit.
            name if is_commit(name) && name.starts_with(given.as_str()) => name.clone(),
            name => format!("{given} ({name})"),
        }
    }

    /// `failed 3 of 4 runs`, or `passed …` where most did.
    fn counts(&self, index: usize) -> String {
        let point = &self.points[index];
        let (word, part) = match point.bad >= point.good {
            true => (if self.needs_pairs() { "was bad in" } else { "failed" }, point.bad),
            false => (if self.needs_pairs() { "was good in" } else { "passed" }, point.good),
        };
        let plural = if point.samples() == 1 { "" } else { "s" };
        format!("{word} {part} of {} run{plural}", point.samples())
    }

    /// Why a metric is not found to differ, with what was measured.
    pub(super) fn ends_alike(&self) -> String {
        let last = self.points.len() - 1;
        let [good, bad] = [0, last].map(|at| self.end(at));
        let ratios = &self.points[last].ratios;
        let size = median(ratios).filter(|middle| middle.is_finite()).map_or_else(
            || format!("{bad} was measured against {good}"),
            |middle| format!("{bad} measures {} against {good}", percent(middle.exp())),
        );
        let count = match ratios.len() {
            1 => "1 pair of runs".to_owned(),
            count => format!("{count} pairs of runs"),
        };
        let interval = match median_interval(ratios) {
            Some([low, high]) if low.is_finite() && high.is_finite() => {
                format!("95 % interval {} to {}, ", percent(low.exp()), percent(high.exp()))
            }
            _ => String::new(),
        };
        let measured = format!("{size} ({interval}{count})");
        let Judge::Metric { threshold: Some(threshold) } = self.settings.judge else {
            return format!(
                "not sure whether {bad} differs from {good}: {measured}; {}",
                self.more()
            );
        };
        let limit = format!("--threshold is {} %", (threshold * 1e4).round() / 100.0);
        if self.exceeds_threshold()
            && let Some(middle) = median(ratios)
        {
            return format!(
                "{measured}, more than --threshold {percents} %, but single runs scatter too much \
                 around {percents} % to find where it changes; --threshold {}% is easier to decide, \
                 and {}",
                easier_threshold(middle.exp_m1().abs()),
                self.more(),
                percents = (threshold * 1e4).round() / 100.0
            );
        }
        let exceeds = median(ratios).zip(self.cut).is_some_and(|(middle, cut)| match cut < 0.0 {
            true => middle < cut,
            false => middle > cut,
        });
        match exceeds || self.covers_threshold() {
            true => format!(
                "not sure whether {bad} differs from {good} by as much: {measured}, and {limit}; {}",
                self.more()
            ),
            false => {
                format!("{good} and {bad} do not differ by as much: {measured}, and {limit}")
            }
        }
    }

    /// The option for more values than there are.
    fn more(&self) -> String {
        let runs = (0..self.points.len()).map(|index| self.runs_at(index)).max().unwrap_or(0);
        format!("--samples {} measures more", 4 * self.settings.most_samples.max(runs))
    }
}

/// Half of a difference, in percent: single runs of equal points and of different ones scatter
/// around it equally often.
fn easier_threshold(difference: f64) -> f64 {
    let half = 50.0 * difference;
    let digits = 10f64.powf(half.log10().floor().min(0.0));
    (half / digits).floor() * digits
}
