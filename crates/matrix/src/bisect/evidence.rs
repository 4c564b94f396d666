//! How well each explanation fits the runs: a change as stated, none, or the opposite one.

use super::{Bisect, ENOUGH_ODDS, Judge, Point};
use crate::stats::{ln_beta, normal_tail};

/// The prior of failure rates: mostly never on the good side and always on the bad one, but easily
/// changed by observations.
pub(super) const GOOD_PRIOR: [f64; 2] = [0.3, 1.0];
pub(super) const BAD_PRIOR: [f64; 2] = [1.0, 0.3];

/// Log probabilities of the runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hypotheses {
    /// Good before some place and bad after it.
    changed: f64,
    /// One unknown rate everywhere.
    same: f64,
    /// The one rate that explains the runs best. Compared with it, chance passes for a change no
    /// more often than the required certainty allows, however often one looks.
    best_same: f64,
    /// Bad before some place and good after it.
    reversed: f64,
}

impl Hypotheses {
    fn share(&self, one: f64) -> f64 {
        let all = [self.changed, self.best_same, self.reversed];
        1.0 / all.iter().map(|other| (other - one).exp()).sum::<f64>()
    }

    /// The probability of a change in the stated direction.
    pub(super) fn changed(&self) -> f64 {
        self.share(self.changed)
    }

    /// The probability of a change in the opposite direction.
    pub(super) fn reversed(&self) -> f64 {
        self.share(self.reversed)
    }

    /// The log odds of a change in the stated direction, for deciding what to run next.
    pub(super) fn odds(&self) -> f64 {
        self.changed - self.same.max(self.reversed)
    }
}

impl Bisect {
    pub(super) fn hypotheses(&self) -> Hypotheses {
        let last = &self.points[self.points.len() - 1];
        match self.settings.judge {
            Judge::ExitCode => explanations_by_exit_code(&self.points.iter().collect::<Vec<_>>()),
            // Only the ends are compared directly.
            Judge::Metric { threshold: Some(_) } => Hypotheses {
                changed: evidence(BAD_PRIOR, last.bad, last.good),
                same: evidence(GOOD_PRIOR, last.bad, last.good),
                // Without a change of that size at most half of the ratios exceed it.
                best_same: likelihood(last.bad, last.good, 0.5),
                reversed: f64::NEG_INFINITY,
            },
            // Half of the runs always exceed half of the distance; only the direction counts. Of
            // equal ends it is the toss of a coin, and either side would have been taken for bad.
            Judge::Metric { threshold: None } => {
                let above = last.ratios.iter().filter(|ratio| **ratio > 0.0).count();
                let below = last.ratios.iter().filter(|ratio| **ratio < 0.0).count();
                let above = above + last.timeouts;
                let runs = last.ratios.len() + last.timeouts;
                let most = above.max(below);
                Hypotheses {
                    changed: evidence(BAD_PRIOR, most, runs - most) - std::f64::consts::LN_2,
                    same: -(runs as f64) * std::f64::consts::LN_2,
                    best_same: -(runs as f64) * std::f64::consts::LN_2,
                    reversed: f64::NEG_INFINITY,
                }
            }
        }
    }

    /// The explanations of the runs of the ends alone: what happens between them does not make them
    /// differ.
    pub(super) fn hypotheses_of_ends(&self) -> Hypotheses {
        let ends = [&self.points[0], &self.points[self.points.len() - 1]];
        match self.settings.judge {
            Judge::ExitCode => explanations_by_exit_code(&ends),
            Judge::Metric { .. } => self.hypotheses(),
        }
    }

    /// The log odds that the ends differ as stated, for deciding what to run next.
    pub(super) fn odds_of_ends(&self) -> f64 {
        let odds = self.hypotheses().odds().min(self.hypotheses_of_ends().odds());
        // Where single runs scatter around the threshold, their median may still be beyond it.
        if self.exceeds_threshold() { odds.max(ENOUGH_ODDS) } else { odds }
    }

    /// The probability that one point is good and the other bad, from their own runs.
    pub(super) fn differ(&self, good: usize, bad: usize) -> f64 {
        let [good, bad] = [good, bad].map(|index| &self.points[index]);
        let [of_good, of_bad] = [good, bad].map(|point| (point.bad, point.good));
        let two = Hypotheses {
            changed: rising(of_good, of_bad),
            same: f64::NEG_INFINITY,
            best_same: likelihood(good.bad + bad.bad, good.good + bad.good, 1.0),
            reversed: rising(of_bad, of_good),
        };
        self.doubted(two.changed())
    }
}

fn explanations_by_exit_code(points: &[&Point]) -> Hypotheses {
    let all = points.iter().fold((0, 0), |sum, p| (sum.0 + p.bad, sum.1 + p.good));
    let (mut fails, mut passes) = (0, 0);
    let (mut changed, mut reversed) = (Vec::new(), Vec::new());
    for point in &points[..points.len() - 1] {
        fails += point.bad;
        passes += point.good;
        let later = (all.0 - fails, all.1 - passes);
        changed.push(rising((fails, passes), later));
        reversed.push(rising(later, (fails, passes)));
    }
    Hypotheses {
        changed: log_mean(&changed),
        same: [GOOD_PRIOR, BAD_PRIOR, [1.0, 1.0]]
            .map(|prior| evidence(prior, all.0, all.1))
            .into_iter()
            .fold(f64::NEG_INFINITY, f64::max),
        best_same: likelihood(all.0, all.1, 1.0),
        reversed: log_mean(&reversed),
    }
}

/// The log probability of these results with an unknown rate.
pub(super) fn evidence(prior: [f64; 2], fails: usize, passes: usize) -> f64 {
    ln_beta(prior[0] + fails as f64, prior[1] + passes as f64) - ln_beta(prior[0], prior[1])
}

/// The log probability of these fails and passes of two sides, if the first fails more rarely.
fn rising(good: (usize, usize), bad: (usize, usize)) -> f64 {
    let rate = |prior: [f64; 2], (fails, passes): (usize, usize)| {
        let (a, b) = (prior[0] + fails as f64, prior[1] + passes as f64);
        let mean = a / (a + b);
        (mean, mean * (1.0 - mean) / (a + b + 1.0))
    };
    // The rates as normal distributions: near enough, since it decides only which is larger.
    let rises = |good, bad| {
        let ((low, a), (high, b)) = (rate(GOOD_PRIOR, good), rate(BAD_PRIOR, bad));
        normal_tail((low - high) / (a + b).sqrt()).ln()
    };
    evidence(GOOD_PRIOR, good.0, good.1) + evidence(BAD_PRIOR, bad.0, bad.1) + rises(good, bad)
        - rises((0, 0), (0, 0))
}

/// The log probability of these results with the rate that explains them best, up to `most`.
fn likelihood(fails: usize, passes: usize, most: f64) -> f64 {
    let rate = (fails as f64 / (fails + passes).max(1) as f64).min(most);
    let part = |count: usize, rate: f64| if count == 0 { 0.0 } else { count as f64 * rate.ln() };
    part(fails, rate) + part(passes, 1.0 - rate)
}

fn log_mean(logs: &[f64]) -> f64 {
    let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logs.iter().map(|log| (log - most).exp()).sum();
    most + (sum / logs.len() as f64).ln()
}

pub(super) fn entropy(p: f64) -> f64 {
    let part = |p: f64| if p > 0.0 { -p * p.ln() } else { 0.0 };
    part(p) + part(1.0 - p)
}
