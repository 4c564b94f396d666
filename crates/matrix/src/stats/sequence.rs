//! A comparison that may be checked after every sample.
//!
//! In each block both cells are measured in random order; only the logarithm of the block's ratio
//! counts. For every possible ratio there is a bet that block ratios fall on either side of it
//! equally often; a ratio whose bet has won too much is excluded permanently. The remaining set
//! contains the true ratio at *all* times together with the stated confidence (Ville's inequality),
//! so stopping at any time is valid.
//!
//! It estimates the median of the block ratios, without assumptions about the noise; if both cells
//! are the same program, the random order within a block alone makes it valid, even under drift.

use super::compare::{judge, too_coarse};
use super::projection::blocks_needed;
use super::scale::Scale;
use super::special::{beta_cdf, ln_beta};
use super::{Criteria, FEWEST, Verdict};

/// The prior of a bet is a mixture: the first wins fast on a large difference, the second wins soon
/// on a small one.
const PRIORS: [f64; 2] = [1.0, 20.0];

/// How many of n block ratios must be on one side of a ratio to exclude it.
#[derive(Clone, Debug)]
pub struct Boundary {
    /// The log wealth that a bet on one side must reach: 2/alpha, for two sides.
    target: f64,
    needed: Vec<usize>,
}

impl Boundary {
    /// `alpha` is the probability of ever being wrong, over both sides.
    pub fn new(alpha: f64) -> Self {
        Self { target: (2.0 / alpha).ln(), needed: vec![1] }
    }

    /// `None` if even all n on one side would not suffice.
    fn needed(&mut self, n: usize) -> Option<usize> {
        while self.needed.len() <= n {
            let blocks = self.needed.len();
            // One more block raises the required number by at most one.
            let mut need = self.needed[blocks - 1];
            while need <= blocks && log_wealth(need, blocks) < self.target {
                need += 1;
            }
            self.needed.push(need);
        }
        Some(self.needed[n]).filter(|&need| need <= n)
    }
}

/// The log wealth of a bet after `hits` of `n`. Fair or losing if the probability of a hit is one
/// half or less.
pub(crate) fn log_wealth(hits: usize, n: usize) -> f64 {
    let (hits, n) = (hits as f64, n as f64);
    let parts = PRIORS.map(|a| {
        let upper_half = beta_cdf(0.5, n - hits + a, hits + a);
        (n + 1.0) * std::f64::consts::LN_2 + ln_beta(hits + a, n - hits + a) - ln_beta(a, a)
            + upper_half.ln()
    });
    let most = parts[0].max(parts[1]);
    most + (parts.iter().map(|part| (part - most).exp()).sum::<f64>() / PRIORS.len() as f64).ln()
}

/// The blocks of one comparison, and the ratios that remain possible.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// The values of A and of B, in the order of the blocks.
    pairs: Vec<(f64, f64)>,
    scale: Scale,
    /// Sorted.
    differences: Vec<f64>,
    interval: Option<[f64; 2]>,
}

impl Default for Sequence {
    fn default() -> Self {
        let (pairs, differences) = (Vec::new(), Vec::new());
        Self { pairs, scale: Scale::Ratio, differences, interval: None }
    }
}

impl Sequence {
    /// Adds one block. The first value that is not above 0 turns all ratios into differences:
    /// whether a block is above or below *no change* is the same for both.
    pub fn push(&mut self, boundary: &mut Boundary, a: f64, b: f64) {
        if !(a.is_finite() && b.is_finite()) {
            return;
        }
        self.pairs.push((a, b));
        if self.scale == Scale::Ratio && (a <= 0.0 || b <= 0.0) {
            let (of_a, of_b) = self.values();
            self.scale = Scale::of(&of_a, &of_b);
            self.differences.clear();
            self.interval = None;
            let pairs = std::mem::take(&mut self.pairs);
            pairs.iter().for_each(|&(a, b)| self.count(boundary, a, b));
            self.pairs = pairs;
        } else {
            self.count(boundary, a, b);
        }
    }

    fn count(&mut self, boundary: &mut Boundary, a: f64, b: f64) {
        self.push_difference(boundary, self.scale.between(a, b));
    }

    /// A block of which only the difference is known, on the scale.
    pub(crate) fn push_difference(&mut self, boundary: &mut Boundary, difference: f64) {
        let place = self.differences.partition_point(|&x| x <= difference);
        self.differences.insert(place, difference);
        let n = self.differences.len();
        if let Some(needed) = boundary.needed(n) {
            let [low, high] = self.interval.unwrap_or([f64::NEG_INFINITY, f64::INFINITY]);
            let sorted = &self.differences;
            self.interval = Some([low.max(sorted[n - needed]), high.min(sorted[needed - 1])]);
        }
    }

    pub fn blocks(&self) -> usize {
        self.differences.len()
    }

    /// The values of both sides.
    pub(crate) fn values(&self) -> (Vec<f64>, Vec<f64>) {
        self.pairs.iter().copied().unzip()
    }

    pub(crate) fn scale(&self) -> Scale {
        match self.scale {
            Scale::Ratio => Scale::Ratio,
            Scale::Difference { .. } => {
                let (a, b) = self.values();
                Scale::of(&a, &b)
            }
        }
    }

    /// Sorted.
    pub(crate) fn differences(&self) -> &[f64] {
        &self.differences
    }

    /// The median of the blocks, on the scale.
    pub(crate) fn centre(&self) -> Option<f64> {
        let differences = &self.differences;
        (!differences.is_empty()).then(|| super::summary::median_of_sorted(differences))
    }

    /// The remaining interval on the scale; `None` while everything is possible.
    pub(crate) fn interval_on_scale(&self) -> Option<[f64; 2]> {
        self.interval
    }

    /// The remaining ratios; `None` while all are possible, or if there are none.
    pub fn interval(&self) -> Option<[f64; 2]> {
        self.interval.filter(|_| self.scale == Scale::Ratio).map(|ends| ends.map(f64::exp))
    }

    /// Whether every ratio is excluded: the true one was not constant.
    pub fn contradictory(&self) -> bool {
        self.interval.is_some_and(|[low, high]| low > high)
    }

    /// Only the verdict, for checks after every block.
    pub fn verdict(&self, criteria: &Criteria) -> SequenceVerdict {
        if self.contradictory() {
            return SequenceVerdict::Never;
        }
        let Some(interval) = self.interval.filter(|_| self.blocks() >= FEWEST) else {
            return SequenceVerdict::NotYet;
        };
        let scale = self.scale();
        match judge(scale, interval, true, criteria) {
            Verdict::NotSure => SequenceVerdict::NotYet,
            Verdict::Same => {
                let (a, b) = self.values();
                match too_coarse(scale, (&a, &b), criteria) {
                    Some(_) => SequenceVerdict::Never,
                    None => SequenceVerdict::Decided(Verdict::Same),
                }
            }
            verdict @ (Verdict::Faster | Verdict::Slower) => SequenceVerdict::Decided(verdict),
        }
    }

    /// The total number of blocks needed to decide.
    pub(crate) fn blocks_needed(&self, criteria: &Criteria) -> Option<u64> {
        let band = self.scale().distance(criteria.margin);
        blocks_needed(&self.differences, band, criteria.alpha())
    }
}

/// Whether more blocks are useful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceVerdict {
    Decided(Verdict),
    NotYet,
    /// No number of blocks decides it.
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bet_is_fair_at_every_length() {
        // The expectation under a fair coin, computed over all outcomes, is 1.
        for n in [1usize, 2, 5, 20, 60] {
            let mut ways = 1.0f64;
            let mut expectation = 0.0;
            for hits in 0..=n {
                expectation += ways * 0.5f64.powi(n as i32) * log_wealth(hits, n).exp();
                ways *= (n - hits) as f64 / (hits + 1) as f64;
            }
            assert!((0.5..=1.0 + 1e-9).contains(&expectation), "{n} {expectation}");
        }
    }

    #[test]
    fn wealth_grows_with_every_hit() {
        for n in [5, 50, 500] {
            for hits in 1..=n {
                assert!(log_wealth(hits, n) > log_wealth(hits - 1, n), "{hits} of {n}");
            }
        }
    }

    #[test]
    fn one_sided_blocks_decide_after_nine() {
        let mut boundary = Boundary::new(0.05);
        let mut sequence = Sequence::default();
        let mut decided = None;
        for block in 1..=20 {
            sequence.push(&mut boundary, 1.0, 1.1 + 0.001 * f64::from(block));
            if decided.is_none() && sequence.interval().is_some_and(|[low, _]| low > 1.0) {
                decided = Some(block);
            }
        }
        assert_eq!(decided, Some(9));
    }

    #[test]
    fn ties_with_a_ratio_never_count_against_it() {
        let mut boundary = Boundary::new(0.05);
        let mut sequence = Sequence::default();
        for _ in 0..500 {
            sequence.push(&mut boundary, 2.0, 2.0);
        }
        assert_eq!(sequence.interval(), Some([1.0, 1.0]));
        assert!(!sequence.contradictory());
    }

    #[test]
    fn a_ratio_that_changes_in_between_is_noticed() {
        let mut boundary = Boundary::new(0.05);
        let mut sequence = Sequence::default();
        for block in 0..400 {
            let b = if block < 100 { 1.5 } else { 0.8 } + 0.0001 * f64::from(block % 7);
            sequence.push(&mut boundary, 1.0, b);
        }
        assert!(sequence.contradictory());
    }
}
