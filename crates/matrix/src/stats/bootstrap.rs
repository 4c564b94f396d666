//! The exact interval of a median, and the bootstrap interval of a ratio of medians, computed
//! instead of simulated.
//!
//! A resample's median is one of the samples, and the probability of each follows from counting. So
//! the bootstrap distribution of the ratio is known exactly: there is no Monte Carlo error, no
//! seed, and no resampling.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::special::{beta_cdf, normal_tail, student_point};
use super::summary::{median_of_sorted, sorted};
use crate::random::Random;

/// The bootstrap distribution of the median of one sample, on the logarithmic scale.
#[derive(Clone, Debug)]
pub(crate) struct Medians {
    /// Sorted logarithms.
    logs: Vec<f64>,
    /// The probability that a resample's median is at most the value with the same index.
    below: Rc<[f64]>,
}

thread_local! {
    /// Depends only on the number of samples, which is the same for most cells of a matrix.
    static PLACES: RefCell<HashMap<usize, Rc<[f64]>>> = RefCell::default();
    static TAILS: RefCell<HashMap<(u64, usize), f64>> = RefCell::default();
    static LEFT_OUT: RefCell<HashMap<(u64, usize), Option<usize>>> = RefCell::default();
}

/// For each index of n, the probability that the median of a resample comes from there or before.
fn places(n: usize) -> Rc<[f64]> {
    if let Some(known) = PLACES.with_borrow(|places| places.get(&n).cloned()) {
        return known;
    }
    // The middle index of a resample; for an even number one of two, equally likely.
    let middles = [n.div_ceil(2), n / 2 + 1];
    let below = |k: usize| {
        let x = k as f64 / n as f64;
        let each = middles.iter().map(|&r| beta_cdf(x, r as f64, (n - r + 1) as f64));
        each.sum::<f64>() / 2.0
    };
    let below: Rc<[f64]> = (1..=n).map(below).collect();
    PLACES.with_borrow_mut(|places| places.insert(n, Rc::clone(&below)));
    below
}

impl Medians {
    /// `None` unless there are samples and all are above 0.
    pub(crate) fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|&x| x <= 0.0) {
            return None;
        }
        Self::of_logs(samples.iter().map(|x| x.ln()).collect())
    }

    /// From logarithms. `None` without a finite number.
    pub(crate) fn of_logs(logs: Vec<f64>) -> Option<Self> {
        let logs = sorted(&logs);
        let n = logs.len();
        if n == 0 {
            return None;
        }
        Some(Self { logs, below: places(n) })
    }

    pub(crate) fn len(&self) -> usize {
        self.logs.len()
    }

    pub(crate) fn log_median(&self) -> f64 {
        median_of_sorted(&self.logs)
    }

    /// The logarithm of the median of one resample.
    pub(crate) fn draw(&self, random: &mut Random) -> f64 {
        let u = random.unit();
        let place = self.below.partition_point(|&p| p <= u);
        self.logs[place.min(self.logs.len() - 1)]
    }

    /// An interval that excludes the true median with a probability of at most `alpha`, for any
    /// distribution. With too few samples it is the whole range.
    pub(crate) fn interval(&self, alpha: f64) -> [f64; 2] {
        let outside = left_out(self.len(), alpha).unwrap_or(0);
        [self.logs[outside], self.logs[self.len() - 1 - outside]]
    }

    /// The interval of `ln(other / self)` that excludes less than `alpha` in both tails together,
    /// widened for small samples.
    pub(crate) fn interval_of_ratio(&self, other: &Self, alpha: f64) -> [f64; 2] {
        let tail = widened(alpha, self.len().min(other.len()));
        [lower(self, other, tail), -lower(other, self, tail)]
    }
}

/// The interval of the median, at 95 % or more; `None` for fewer than six samples, which have none.
pub fn median_interval(samples: &[f64]) -> Option<[f64; 2]> {
    let alpha = 0.05;
    let medians = Medians::of_logs(samples.to_vec())?;
    left_out(medians.len(), alpha).map(|_| medians.interval(alpha))
}

/// How many of n samples may be cut off on each side of an interval so that it excludes the median
/// with a probability of at most `alpha`. Each sample is above or below the median like a coin
/// toss, so this is counting, as in a sign test.
fn left_out(n: usize, alpha: f64) -> Option<usize> {
    let find = || {
        // The probability that more than this many are on one side or the other.
        let misses = |k: usize| 2.0 * beta_cdf(0.5, (n - k) as f64, (k + 1) as f64);
        let fitting = (0..n / 2).collect::<Vec<_>>().partition_point(|&k| misses(k) <= alpha);
        fitting.checked_sub(1)
    };
    LEFT_OUT.with_borrow_mut(|known| *known.entry((alpha.to_bits(), n)).or_insert_with(find))
}

/// The tail to cut off for two tails of `alpha` together. A percentile interval is too short for
/// small samples, like a normal one compared with Student's; this is Hesterberg's correction.
fn widened(alpha: f64, n: usize) -> f64 {
    if n < 2 {
        return 0.0;
    }
    let tail = || {
        let n = n as f64;
        normal_tail((n / (n - 1.0)).sqrt() * student_point(alpha / 2.0, n - 1.0))
    };
    TAILS.with_borrow_mut(|tails| *tails.entry((alpha.to_bits(), n)).or_insert_with(tail))
}

/// The smallest t with P(b* − a* ≤ t) above `tail`.
fn lower(a: &Medians, b: &Medians, tail: f64) -> f64 {
    let weight = |places: &[f64], i: usize| places[i] - if i == 0 { 0.0 } else { places[i - 1] };
    let reaches = |t: f64| {
        let mut probability = 0.0;
        let mut count = 0;
        for (i, x) in a.logs.iter().enumerate() {
            while count < b.logs.len() && b.logs[count] <= x + t {
                count += 1;
            }
            if count > 0 {
                probability += weight(&a.below, i) * b.below[count - 1];
            }
        }
        probability > tail
    };
    let least = b.logs[0] - a.logs[a.logs.len() - 1];
    let most = b.logs[b.logs.len() - 1] - a.logs[0];
    let (mut low, mut high) = (least, most);
    if reaches(low) {
        return low;
    }
    while high - low > 1e-12 * (1.0 + high.abs()) {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            break;
        }
        if reaches(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    // Finds the exact step: a bound that is off by one bit would find equal samples different.
    let candidates = a.logs.iter().filter_map(|x| {
        let count = b.logs.partition_point(|y| *y <= x + high);
        Some(b.logs.get(count.checked_sub(1)?)? - x).filter(|t| *t > low)
    });
    candidates.reduce(f64::min).unwrap_or(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same interval by resampling, the usual method.
    fn simulated(a: &[f64], b: &[f64], alpha: f64) -> [f64; 2] {
        let mut random = Random::new(3);
        let mut median = |x: &[f64]| {
            let resample: Vec<f64> = (0..x.len()).map(|_| x[random.below(x.len())]).collect();
            median_of_sorted(&sorted(&resample))
        };
        let mut ratios: Vec<f64> = (0..40_000).map(|_| (median(b) / median(a)).ln()).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        let tail = widened(alpha, a.len().min(b.len()));
        let cut = (tail * ratios.len() as f64) as usize;
        [ratios[cut], ratios[ratios.len() - 1 - cut]]
    }

    #[test]
    fn agrees_with_drawn_resamples() {
        let mut random = Random::new(9);
        for (n, m) in [(9, 9), (21, 15), (51, 51)] {
            let mut draw = |n| (0..n).map(|_| 10.0 + random.unit()).collect::<Vec<f64>>();
            let (a, b) = (draw(n), draw(m));
            let [a_medians, b_medians] = [&a, &b].map(|x| Medians::of(x).unwrap());
            let got = a_medians.interval_of_ratio(&b_medians, 0.05);
            let expected = simulated(&a, &b, 0.05);
            for (got, expected) in got.iter().zip(expected) {
                assert!((got - expected).abs() < 0.004, "{n} {got} {expected}");
            }
        }
    }

    #[test]
    fn equal_medians_are_exactly_equal() {
        let [a, b] = [[20.0, 21.0, 21.0, 21.0, 22.0, 23.0], [20.0, 20.0, 21.0, 21.0, 22.0, 24.0]]
            .map(|x| Medians::of(&x).unwrap());
        for alpha in [0.2, 0.5, 0.9] {
            let [low, high] = a.interval_of_ratio(&b, alpha);
            assert!(low <= 0.0 && high >= 0.0, "{alpha} {low} {high}");
        }
    }

    #[test]
    fn the_median_of_one_set_lies_between_order_statistics() {
        let logs: Vec<f64> = (1..=21).map(f64::from).collect();
        let [low, high] = Medians::of_logs(logs).unwrap().interval(0.05);
        assert_eq!((low, high), (6.0, 16.0));
    }

    /// The exact probability of at most this many heads in n tosses.
    fn at_most(heads: usize, n: usize) -> f64 {
        let mut term = 0.5f64.powi(i32::try_from(n).unwrap());
        let mut sum = term;
        for k in 0..heads {
            term *= (n - k) as f64 / (k + 1) as f64;
            sum += term;
        }
        sum
    }

    #[test]
    fn an_interval_of_a_median_is_as_sure_as_it_says_for_every_number_of_samples() {
        for alpha in [0.05, 0.025, 0.001] {
            for n in 1..300 {
                let Some(outside) = left_out(n, alpha) else {
                    assert!(2.0 * at_most(0, n) > alpha, "{n}");
                    continue;
                };
                assert!(2.0 * at_most(outside, n) <= alpha, "{n} {outside}");
                assert!(2.0 * at_most(outside + 1, n) > alpha, "{n} {outside}: too wide");
            }
        }
    }

    #[test]
    fn fewer_than_six_samples_have_no_interval() {
        assert_eq!(median_interval(&[1.0, 2.0, 3.0, 4.0, 5.0]), None);
        assert_eq!(median_interval(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), Some([1.0, 6.0]));
        assert_eq!(median_interval(&[]), None);
    }

    #[test]
    fn turning_the_ratio_round_turns_the_interval_round() {
        let [a, b] = [[1.0, 2.0, 3.0, 4.0, 5.0, 7.0], [2.0, 2.5, 3.0, 3.5, 9.0, 9.5]]
            .map(|x| Medians::of(&x).unwrap());
        let forth = a.interval_of_ratio(&b, 0.1);
        let back = b.interval_of_ratio(&a, 0.1);
        assert_eq!(forth, [-back[1], -back[0]]);
    }

    #[test]
    fn medians_need_positive_values() {
        assert!(Medians::of(&[1.0, 0.0]).is_none());
        assert!(Medians::of(&[]).is_none());
        assert!(Medians::of(&[-1.0]).is_none());
    }
}
