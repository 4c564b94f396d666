//! Changes between commits that were measured in turn.
//!
//! If the commits of a block are equal, chance decides which of them has which value, because the
//! plan draws the order of each block. So the values of each block are permuted, without
//! assumptions about the machine. Values count by their rank among all deviations from their
//! block's median, so that a single outlier does not decide.

use std::collections::BTreeMap;

use super::{Point, permutations, place, rejects, split, stretch};
use crate::random::Random;
use crate::stats::normal_point;
use crate::stats::summary::median;

/// The seed of the permutations, so that the same numbers give the same answer.
const SEED: u64 = 1;

/// The boundaries, as indexes of the first measured commit after each.
pub(super) fn changes(points: &[Point], commits: &[usize], alpha: f64) -> Vec<usize> {
    split(commits.len(), alpha, &mut |from, to, level| {
        let part = stretch(points, commits, from, to);
        let blocks = Blocks::of(&part, commits, from, to);
        blocks.clearest(level).map(|boundary| from + boundary)
    })
}

/// The blocks of a stretch with at least two of its commits, with the score of each value.
struct Blocks {
    /// Indexes within the stretch, block by block.
    places: Vec<usize>,
    /// Scores minus the mean of their block.
    scores: Vec<f64>,
    /// The start of each block, and the end.
    starts: Vec<usize>,
    count: usize,
}

/// The values of each block with at least two commits, in the order of the commits.
fn by_block(points: &[Point]) -> Vec<Vec<(usize, f64)>> {
    let mut blocks: BTreeMap<u64, Vec<(usize, f64)>> = BTreeMap::new();
    for point in points {
        if let Some(block) = point.block {
            blocks.entry(block).or_default().push((point.commit, point.x));
        }
    }
    let mut blocks: Vec<Vec<(usize, f64)>> =
        blocks.into_values().filter(|members| members.len() > 1).collect();
    for members in &mut blocks {
        members.sort_by_key(|(commit, _)| *commit);
    }
    blocks.retain(|members| members.first().map(|m| m.0) != members.last().map(|m| m.0));
    blocks
}

impl Blocks {
    fn of(points: &[Point], commits: &[usize], from: usize, to: usize) -> Self {
        let blocks = by_block(points);
        let mut all = Self { places: vec![], scores: vec![], starts: vec![0], count: to - from };
        let mut aligned = Vec::new();
        for members in &blocks {
            let values: Vec<f64> = members.iter().map(|(_, x)| *x).collect();
            let middle = median(&values).unwrap_or_default();
            aligned.extend(values.iter().map(|x| x - middle));
            all.places.extend(members.iter().map(|(commit, _)| place(commits, *commit) - from));
            all.starts.push(all.places.len());
        }
        all.scores = ranks(&aligned);
        for block in all.starts.windows(2) {
            let scores = &mut all.scores[block[0]..block[1]];
            let mean = scores.iter().sum::<f64>() / scores.len() as f64;
            scores.iter_mut().for_each(|score| *score -= mean);
        }
        all
    }

    /// The boundary with the largest statistic, if that exceeds what chance allows.
    fn clearest(mut self, level: f64) -> Option<usize> {
        let weights = self.weights();
        let (boundary, seen) = self.largest(&weights)?;
        let mut random = Random::new(SEED);
        let rejected = rejects(level, permutations(level, self.scores.len()), || {
            for block in self.starts.windows(2) {
                random.shuffle(&mut self.scores[block[0]..block[1]]);
            }
            self.largest(&weights).is_some_and(|(_, largest)| largest >= seen * (1.0 - 1e-9))
        });
        rejected.then_some(boundary)
    }

    /// The boundary with the largest statistic: the sum of the scores after it minus its
    /// expectation, divided by its standard deviation under equal scores.
    fn largest(&self, weights: &[f64]) -> Option<(usize, f64)> {
        let mut sums = vec![0.0; self.count];
        for (place, score) in self.places.iter().zip(&self.scores) {
            sums[*place] += score;
        }
        let (mut after, mut best) = (0.0, None);
        for boundary in (1..self.count).rev() {
            after += sums[boundary];
            let weight = weights[boundary];
            if weight > 0.0 {
                let statistic = after.abs() / weight.sqrt();
                if best.is_none_or(|(_, largest)| statistic > largest) {
                    best = Some((boundary, statistic));
                }
            }
        }
        best
    }

    /// The deviation of the scores after a boundary from their expectation, in standard deviations
    /// under permutation.
    fn deviation(&self, boundary: usize) -> f64 {
        let (mut sum, mut variance) = (0.0, 0.0);
        for block in self.starts.windows(2) {
            let range = block[0]..block[1];
            let scores = &self.scores[range.clone()];
            let after: Vec<f64> = (self.places[range].iter().zip(scores))
                .filter(|(place, _)| **place >= boundary)
                .map(|(_, score)| *score)
                .collect();
            let (n, m) = (scores.len() as f64, after.len() as f64);
            sum += after.iter().sum::<f64>();
            let spread = scores.iter().map(|score| score * score).sum::<f64>();
            variance += m * (n - m) / (n * (n - 1.0)) * spread;
        }
        if variance > 0.0 { sum / variance.sqrt() } else { 0.0 }
    }

    /// The weight of the blocks at each boundary: of a block with n commits before and m after it,
    /// nm / (n + m). Computed only from counts: with scores, blocks with a change would count less.
    fn weights(&self) -> Vec<f64> {
        // An addition at an index applies to all boundaries up to the next one.
        let mut steps = vec![0.0; self.count + 1];
        for block in self.starts.windows(2) {
            let places = &self.places[block[0]..block[1]];
            let n = places.len() as f64;
            for (left, pair) in places.windows(2).enumerate() {
                let left = (left + 1) as f64;
                let weight = left * (n - left) / n;
                // Boundaries after the earlier of the two, up to the later one.
                steps[pair[0] + 1] += weight;
                steps[pair[1] + 1] -= weight;
            }
        }
        let mut sum = 0.0;
        let running = steps.into_iter().take(self.count).map(|step| {
            sum += step;
            // The rounding error of steps that cancel.
            if sum < 1e-9 { 0.0 } else { sum }
        });
        running.collect()
    }
}

/// The ranks of values; equal values share theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_unstable_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut at = 0;
    while at < order.len() {
        let equal = order[at..]
            .iter()
            .take_while(|&&other| values[other] - values[order[at]] <= 1e-12)
            .count();
        let rank = at as f64 + (equal as f64 - 1.0) / 2.0;
        order[at..at + equal].iter().for_each(|&place| ranks[place] = rank);
        at += equal;
    }
    ranks
}

/// The size of a change: the shift of the commits after it that makes the two sides equal by their
/// scores, and the interval of shifts that show no difference.
pub(super) fn estimate(
    points: &[Point],
    commits: &[usize],
    from: usize,
    cut: usize,
    to: usize,
) -> Option<(f64, [f64; 2])> {
    let first_after = commits[cut];
    let part = stretch(points, commits, from, to);
    let mut sides: BTreeMap<u64, [bool; 2]> = BTreeMap::new();
    for point in &part {
        if let Some(block) = point.block {
            sides.entry(block).or_default()[usize::from(point.commit >= first_after)] = true;
        }
    }
    let straddles = |point: &Point| point.block.is_some_and(|b| sides[&b] == [true, true]);
    let part: Vec<Point> = part.into_iter().filter(straddles).collect();
    let xs = || part.iter().map(|point| point.x);
    let widest = xs().fold(f64::MIN, f64::max) - xs().fold(f64::MAX, f64::min);
    let deviation = |shift: f64| {
        let shifted: Vec<Point> = part
            .iter()
            .map(|point| match point.commit >= first_after {
                true => Point { x: point.x - shift, ..*point },
                false => *point,
            })
            .collect();
        Blocks::of(&shifted, commits, from, to).deviation(cut - from)
    };
    // The deviation decreases with the shift.
    let crossing = |wanted: f64| {
        let (mut low, mut high) = (-widest, widest);
        for _ in 0..50 {
            let middle = 0.5 * (low + high);
            if deviation(middle) > wanted {
                low = middle;
            } else {
                high = middle;
            }
        }
        0.5 * (low + high)
    };
    let quantile = normal_point(0.025);
    (!part.is_empty()).then(|| (crossing(0.0), [crossing(quantile), crossing(-quantile)]))
}
