//! Finds the commits of a history at which a metric changed.
//!
//! Two kinds of evidence are kept apart. Commits that were measured in turn, in blocks of one
//! session, are compared within those blocks: changes of the machine between or during sessions
//! affect both sides alike, so that a difference is a change of the code. A difference between
//! sessions may be the machine's; it is judged by the usual spread of sessions, and reported as
//! such.
//!
//! Both are found by splitting: the clearest boundary of a stretch of commits is accepted if a
//! permutation test of the largest statistic over all boundaries rejects that there is none, and
//! both parts are searched in turn, each with its share of the error probability.

mod between;
mod within;

use std::collections::{BTreeMap, BTreeSet};

use super::scale::Scale;
use super::student_point;
use super::summary::median;

/// One value of one commit.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// The index of the commit in its history.
    pub commit: usize,
    pub session: usize,
    /// Values measured in turn have the same one; `None` for a value that was not measured in turn
    /// with others.
    pub block: Option<u64>,
    pub value: f64,
}

/// The criteria for a change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChangeCriteria {
    /// The probability that no change is reported if there is none.
    pub confidence: f64,
    /// Changes up to this fraction are ignored.
    pub margin: f64,
    /// How many histories are examined together.
    pub histories: usize,
}

impl Default for ChangeCriteria {
    fn default() -> Self {
        Self { confidence: 0.95, margin: 0.02, histories: 1 }
    }
}

impl ChangeCriteria {
    /// The number of blocks in which even the clearest difference of two commits is conclusive: the
    /// permutation test knows only the signs of n differences, so its least value is 2^(1-n).
    pub fn fewest_blocks(&self) -> usize {
        1 + (1.0 / self.alpha()).log2().ceil() as usize
    }

    /// One half for each kind of evidence.
    fn alpha(&self) -> f64 {
        0.5 * (1.0 - self.confidence) / self.histories.max(1) as f64
    }
}

/// The evidence of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// Both sides were measured in turn, in the same sessions.
    SameSessions,
    /// The sides were measured in different sessions: it may be the machine.
    DifferentSessions,
}

impl Evidence {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SameSessions => "same_sessions",
            Self::DifferentSessions => "different_sessions",
        }
    }
}

/// A boundary between two consecutive measured commits.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangePoint {
    /// The first commit after the change.
    pub commit: usize,
    /// The last measured commit before it.
    pub before: usize,
    pub evidence: Evidence,
    /// The change on its scale: the logarithm of a ratio, or a difference.
    centre: f64,
    ends: [f64; 2],
    ratio: bool,
}

impl ChangePoint {
    /// After divided by before; `None` for a metric without ratios.
    pub fn ratio(&self) -> Option<f64> {
        self.ratio.then(|| self.centre.exp())
    }

    pub fn ratio_interval(&self) -> Option<[f64; 2]> {
        self.ratio.then(|| self.ends.map(f64::exp))
    }

    /// After minus before, if there is no ratio.
    pub fn difference(&self) -> Option<f64> {
        (!self.ratio).then_some(self.centre)
    }

    pub fn difference_interval(&self) -> Option<[f64; 2]> {
        (!self.ratio).then_some(self.ends)
    }

    pub fn is_more(&self) -> bool {
        self.centre > 0.0
    }
}

/// The changes of a metric over commits, in order.
pub fn change_points(observations: &[Observation], criteria: &ChangeCriteria) -> Vec<ChangePoint> {
    let values: Vec<f64> = observations.iter().map(|one| one.value).collect();
    let scale = Scale::of(&values, &[]);
    let points: Vec<Point> = observations
        .iter()
        .map(|one| Point {
            commit: one.commit,
            session: one.session,
            block: one.block,
            x: scale.at(one.value),
        })
        .filter(|point| point.x.is_finite())
        .collect();
    let commits: Vec<usize> =
        points.iter().map(|point| point.commit).collect::<BTreeSet<_>>().into_iter().collect();
    let margin = scale.distance(criteria.margin);
    let sure = within::changes(&points, &commits, criteria.alpha());
    let mut cuts: Vec<usize> = sure.clone();
    let possible = between::changes(&points, &commits, &sure, criteria.alpha());
    cuts.extend(&possible);
    cuts.sort_unstable();
    let mut found = Vec::new();
    for (place, &cut) in cuts.iter().enumerate() {
        let from = place.checked_sub(1).map_or(0, |before| cuts[before]);
        let to = cuts.get(place + 1).copied().unwrap_or(commits.len());
        let (evidence, estimate) = match sure.contains(&cut) {
            true => (Evidence::SameSessions, within::estimate(&points, &commits, from, cut, to)),
            false => {
                let estimate = between::estimate(&points, &commits, from, cut, to);
                (Evidence::DifferentSessions, estimate)
            }
        };
        let Some((centre, ends)) = estimate.filter(|(centre, _)| centre.abs() >= margin) else {
            continue;
        };
        let (commit, before) = (commits[cut], commits[cut - 1]);
        let ratio = scale == Scale::Ratio;
        found.push(ChangePoint { commit, before, evidence, centre, ends, ratio });
    }
    found
}

/// An observation on the scale of the comparison.
#[derive(Clone, Copy, Debug)]
struct Point {
    commit: usize,
    session: usize,
    block: Option<u64>,
    x: f64,
}

/// The commits of a stretch: `from..to` among the measured ones.
fn stretch(points: &[Point], commits: &[usize], from: usize, to: usize) -> Vec<Point> {
    let Some(&first) = commits.get(from) else { return Vec::new() };
    let last = commits[to - 1];
    points.iter().copied().filter(|point| (first..=last).contains(&point.commit)).collect()
}

/// The index of a commit among the measured ones.
fn place(commits: &[usize], commit: usize) -> usize {
    commits.partition_point(|known| *known < commit)
}

/// Splits a stretch of commits while boundaries are found; each part is searched with its share of
/// `alpha`, so that the total error probability stays the same.
fn split(
    count: usize,
    alpha: f64,
    clearest: &mut dyn FnMut(usize, usize, f64) -> Option<usize>,
) -> Vec<usize> {
    let boundaries = count.saturating_sub(1).max(1) as f64;
    let mut cuts = Vec::new();
    let mut open = vec![(0, count)];
    while let Some((from, to)) = open.pop() {
        if to - from < 2 {
            continue;
        }
        let level = alpha * (to - from - 1) as f64 / boundaries;
        if let Some(cut) = clearest(from, to, level) {
            cuts.push(cut);
            open.extend([(from, cut), (cut, to)]);
        }
    }
    cuts.sort_unstable();
    cuts
}

/// The number of permutations for a level; limited so that at most `work` numbers are shuffled in
/// total.
fn permutations(level: f64, values: usize) -> usize {
    const WORK: usize = 200_000_000;
    let wanted = (20.0 / level).ceil() as usize;
    wanted.clamp(1000, (WORK / values.max(1)).max(1000))
}

/// Whether the largest statistic of a permutation reaches the observed one no more often than
/// `level`. Stops as soon as that is decided.
fn rejects(level: f64, permutations: usize, mut reaches: impl FnMut() -> bool) -> bool {
    // The observed order is one of the permutations.
    let most = level * (permutations + 1) as f64 - 1.0;
    let mut reached = 0.0;
    for _ in 0..permutations {
        if reaches() {
            reached += 1.0;
            if reached > most {
                return false;
            }
        }
    }
    most >= 0.0
}

/// How much the medians of one commit differ between sessions, on the scale of ratios: the standard
/// deviation, and the number of differences. `None` if no commit was measured in two sessions.
pub fn session_spread(observations: &[Observation]) -> Option<SessionSpread> {
    let values: Vec<f64> = observations.iter().map(|one| one.value).collect();
    let scale = Scale::of(&values, &[]);
    let mut cells: BTreeMap<usize, BTreeMap<usize, Vec<f64>>> = BTreeMap::new();
    for one in observations {
        let sessions = cells.entry(one.commit).or_default();
        sessions.entry(one.session).or_default().push(scale.at(one.value));
    }
    let (mut squares, mut degrees) = (0.0, 0);
    for sessions in cells.values() {
        let medians: Vec<f64> = sessions.values().filter_map(|values| median(values)).collect();
        let mean = medians.iter().sum::<f64>() / medians.len().max(1) as f64;
        squares += medians.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
        degrees += medians.len().saturating_sub(1);
    }
    let deviation = (degrees > 0).then(|| (squares / degrees as f64).sqrt())?;
    Some(SessionSpread { deviation, degrees, ratio: scale == Scale::Ratio })
}

/// The spread of sessions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SessionSpread {
    deviation: f64,
    degrees: usize,
    ratio: bool,
}

impl SessionSpread {
    /// As a fraction of a value: 0.03 for 3 %. `None` for a metric without ratios.
    pub fn part(&self) -> Option<f64> {
        self.ratio.then(|| self.deviation.exp_m1())
    }

    /// The interval of a median that was measured in this many sessions, widened by their spread.
    pub fn widen(&self, median: f64, interval: [f64; 2], sessions: usize) -> [f64; 2] {
        let quantile = student_point(0.025, self.degrees as f64);
        let variance = (quantile * self.deviation).powi(2) / sessions.max(1) as f64;
        let scale = if self.ratio { Scale::Ratio } else { Scale::Difference { size: 1.0 } };
        let centre = scale.at(median);
        let away = |end: f64| (variance + (scale.at(end) - centre).powi(2)).sqrt();
        let ends = [centre - away(interval[0]), centre + away(interval[1])];
        if self.ratio { ends.map(f64::exp) } else { ends }
    }
}

#[cfg(test)]
mod tests;
