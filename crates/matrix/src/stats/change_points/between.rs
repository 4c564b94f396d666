//! Changes that are visible only between sessions.
//!
//! Here the sessions are the samples: each counts once, by its median. If all sessions of a stretch
//! have also measured one commit of another stretch, they count by the ratio to that commit, which
//! cancels a machine that is slow that day. If only chance decides which session has which value,
//! the sessions can be permuted. A machine that changed permanently between two sessions is not
//! chance, and no test can distinguish it from code; so changes found here are reported as possible
//! only.

use std::collections::{BTreeMap, BTreeSet};

use super::{Point, permutations, place, rejects, split, stretch};
use crate::random::Random;
use crate::stats::student_point;
use crate::stats::summary::median;

const SEED: u64 = 2;
/// With fewer sessions on a side, a single unusual one would count as a change.
const FEWEST: usize = 2;

/// The boundaries within the stretches between sure changes.
pub(super) fn changes(
    points: &[Point],
    commits: &[usize],
    sure: &[usize],
    alpha: f64,
) -> Vec<usize> {
    let all = commits.len().saturating_sub(1).max(1) as f64;
    let ends = sure.iter().copied().chain([commits.len()]);
    let mut from = 0;
    let mut found = Vec::new();
    for to in ends {
        let level = alpha * (to - from).saturating_sub(1) as f64 / all;
        let cuts = split(to - from, level, &mut |low, high, level| {
            let sessions = Session::all(points, commits, from + low, from + high);
            clearest(&sessions, low..high, level)
        });
        found.extend(cuts.into_iter().map(|cut| from + cut));
        from = to;
    }
    found
}

/// A session with its commits of a stretch, as indexes of measured ones.
struct Session {
    first: usize,
    last: usize,
    value: f64,
}

impl Session {
    fn all(points: &[Point], commits: &[usize], from: usize, to: usize) -> Vec<Self> {
        let mut own: BTreeMap<usize, BTreeMap<usize, Vec<f64>>> = BTreeMap::new();
        for point in stretch(points, commits, from, to) {
            let cells = own.entry(point.session).or_default();
            cells.entry(point.commit).or_default().push(point.x);
        }
        let anchors = anchor(points, commits, (from, to), &own);
        let session = |(session, cells): (&usize, &BTreeMap<usize, Vec<f64>>)| {
            let medians: Vec<f64> = cells.values().filter_map(|values| median(values)).collect();
            let mean = medians.iter().sum::<f64>() / medians.len() as f64;
            let anchor = anchors.as_ref().and_then(|known| known.get(session));
            Self {
                first: cells.keys().next().map_or(0, |commit| place(commits, *commit) - from),
                last: cells.keys().last().map_or(0, |commit| place(commits, *commit) - from),
                value: mean - anchor.unwrap_or(&0.0),
            }
        };
        own.iter().map(session).collect()
    }
}

/// The values of a commit outside of the stretch in each of its sessions, if all of them have one.
/// of them have.
fn anchor(
    points: &[Point],
    commits: &[usize],
    (from, to): (usize, usize),
    own: &BTreeMap<usize, BTreeMap<usize, Vec<f64>>>,
) -> Option<BTreeMap<usize, f64>> {
    let inside = commits[from]..=commits[to - 1];
    let mut others: BTreeMap<usize, BTreeMap<usize, Vec<f64>>> = BTreeMap::new();
    for point in points.iter().filter(|point| !inside.contains(&point.commit)) {
        if own.contains_key(&point.session) {
            let sessions = others.entry(point.commit).or_default();
            sessions.entry(point.session).or_default().push(point.x);
        }
    }
    let whole = others.into_values().find(|sessions| sessions.len() == own.len())?;
    whole.into_iter().map(|(session, values)| Some((session, median(&values)?))).collect()
}

/// The boundary with the largest statistic, if that exceeds what chance allows.
fn clearest(sessions: &[Session], stretch: std::ops::Range<usize>, level: f64) -> Option<usize> {
    let mut values: Vec<f64> = sessions.iter().map(|session| session.value).collect();
    let boundaries: BTreeSet<usize> =
        sessions.iter().map(|session| session.first).filter(|first| *first > 0).collect();
    let sides: Vec<(usize, Vec<Option<bool>>)> = boundaries
        .into_iter()
        .map(|boundary| (boundary, sides(sessions, boundary)))
        .filter(|(_, sides)| {
            let count = |wanted| sides.iter().filter(|side| **side == Some(wanted)).count();
            // A session with both sides is better evidence, and has shown no change.
            sides.iter().all(Option::is_some) && count(false) >= FEWEST && count(true) >= FEWEST
        })
        .collect();
    let largest = |values: &[f64]| {
        let statistics = sides.iter().filter_map(|(boundary, sides)| {
            let two = TwoSides::of(values, sides)?;
            Some((*boundary, two.statistic()))
        });
        statistics.max_by(|(_, a), (_, b)| a.total_cmp(b))
    };
    let (boundary, seen) = largest(&values)?;
    let mut random = Random::new(SEED);
    let work = values.len() * sides.len();
    let rejected = rejects(level, permutations(level, work), || {
        random.shuffle(&mut values);
        largest(&values).is_some_and(|(_, largest)| largest >= seen * (1.0 - 1e-9))
    });
    rejected.then_some(stretch.start + boundary)
}

/// The side of a boundary that each session is on; `None` for one with both.
fn sides(sessions: &[Session], boundary: usize) -> Vec<Option<bool>> {
    let side = |session: &Session| match (session.first >= boundary, session.last < boundary) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    };
    sessions.iter().map(side).collect()
}

/// The means of two sets of sessions, and the spread of their sessions.
struct TwoSides {
    before: f64,
    after: f64,
    /// The variance of one session, and of `after - before` as a multiple of it.
    variance: f64,
    factor: f64,
    degrees: f64,
}

impl TwoSides {
    fn of(values: &[f64], sides: &[Option<bool>]) -> Option<Self> {
        let of = |wanted: bool| -> Vec<f64> {
            let both = values.iter().zip(sides);
            both.filter(|(_, side)| **side == Some(wanted)).map(|(value, _)| *value).collect()
        };
        let (left, right) = (of(false), of(true));
        let (n, m) = (left.len() as f64, right.len() as f64);
        if left.is_empty() || right.is_empty() || n + m < 3.0 {
            return None;
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let (before, after) = (mean(&left), mean(&right));
        let squares = |values: &[f64], mean: f64| -> f64 {
            values.iter().map(|value| (value - mean).powi(2)).sum()
        };
        let degrees = n + m - 2.0;
        let variance = (squares(&left, before) + squares(&right, after)) / degrees;
        Some(Self { before, after, variance, factor: 1.0 / n + 1.0 / m, degrees })
    }

    fn statistic(&self) -> f64 {
        (self.after - self.before).abs() / (self.variance * self.factor).max(1e-18).sqrt()
    }
}

/// The size of a change, with an interval that includes the spread of sessions.
pub(super) fn estimate(
    points: &[Point],
    commits: &[usize],
    from: usize,
    cut: usize,
    to: usize,
) -> Option<(f64, [f64; 2])> {
    let sessions = Session::all(points, commits, from, to);
    let values: Vec<f64> = sessions.iter().map(|session| session.value).collect();
    let two = TwoSides::of(&values, &sides(&sessions, cut - from))?;
    let centre = two.after - two.before;
    let half = student_point(0.025, two.degrees) * (two.variance * two.factor).sqrt();
    Some((centre, [centre - half, centre + half]))
}
