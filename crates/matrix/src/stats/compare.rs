//! B against A: faster, slower, the same, or not sure.

use std::collections::HashMap;

use serde::Serialize;

use super::projection::blocks_needed;
use super::rank::smallest_p;
use super::reason::Reason;
use super::scale::{Scale, step};
use super::summary::{median_of_sorted, sorted};
use super::{FEWEST, Medians, Sequence, rank_test, signed_rank_test};
use retake_types::Better;

/// The criteria of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Criteria {
    /// The probability that no comparison of the family is wrong.
    pub confidence: f64,
    /// Differences up to this fraction of A are ignored.
    pub margin: f64,
    /// The number of comparisons in the family.
    pub comparisons: usize,
    pub better: Better,
    /// Whether values are counts: equal ones are equal, however large their steps.
    pub counts: bool,
}

impl Default for Criteria {
    fn default() -> Self {
        Self {
            confidence: 0.95,
            margin: 0.02,
            comparisons: 1,
            better: Better::Lower,
            counts: false,
        }
    }
}

impl Criteria {
    /// The error probability of each single comparison. Bonferroni's correction: it holds for any
    /// dependence between the comparisons, and gives intervals as well as decisions.
    pub fn alpha(&self) -> f64 {
        (1.0 - self.confidence) / self.comparisons.max(1) as f64
    }
}

/// One side of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    pub name: &'a str,
    /// The values of successful runs.
    pub values: &'a [f64],
    /// The block (a session and an iteration of it) of each value if cells were interleaved;
    /// otherwise empty.
    pub blocks: &'a [u64],
    /// Failed runs, which are not part of the numbers.
    pub failed: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Faster,
    Slower,
    Same,
    NotSure,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Same => "same",
            Self::NotSure => "not sure",
        }
    }

    pub fn is_sure(self) -> bool {
        self != Self::NotSure
    }
}

/// What was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The two sides within each block, so that changes of the machine in between cancel.
    Blocks,
    /// The two samples as wholes.
    Independent,
    /// Block by block, valid at any number of looks.
    Sequence,
}

/// A number for each side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub a: usize,
    pub b: usize,
}

/// A value for each side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Values {
    pub a: f64,
    pub b: f64,
}

/// B minus A, in the unit of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub value: f64,
    pub interval: Option<[f64; 2]>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    pub a: String,
    pub b: String,
    /// The common values of other axes, if these have several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    pub metric: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    pub method: Method,
    pub verdict: Verdict,
    /// Of the compared values.
    pub medians: Option<Values>,
    /// B divided by A: of the medians, or the median over the blocks.
    pub ratio: Option<f64>,
    pub interval: Option<[f64; 2]>,
    /// Of a metric without ratios, since it can be 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<Difference>,
    /// The probability that the interval contains the true ratio: less than requested if there are
    /// too few samples.
    pub confidence: f64,
    pub samples: Counts,
    pub failed: Counts,
    /// Of the rank test; a sequence has none.
    pub p: Option<f64>,
    /// Why it is not sure.
    pub reason: Option<Reason>,
    /// The approximate number of further runs of each side that it takes to be sure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub more_runs: Option<u64>,
    /// Properties that differed between its sessions: name and values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<(String, Vec<String>)>,
}

/// The values of the blocks that both sides have, in the order of the blocks.
pub(crate) fn in_common(a: &Side<'_>, b: &Side<'_>) -> Vec<(u64, f64, f64)> {
    let of_a: HashMap<u64, f64> = a.blocks.iter().copied().zip(a.values.iter().copied()).collect();
    let both = b.blocks.iter().copied().zip(b.values.iter().copied());
    let mut both: Vec<(u64, f64, f64)> =
        both.filter_map(|(block, b)| Some((block, *of_a.get(&block)?, b))).collect();
    both.sort_unstable_by_key(|(block, ..)| *block);
    both
}

/// The differences within common blocks, if these are most of the values.
fn block_differences(a: &Side<'_>, b: &Side<'_>, scale: Scale) -> Option<Vec<f64>> {
    if a.blocks.len() != a.values.len() || b.blocks.len() != b.values.len() {
        return None;
    }
    let both = in_common(a, b);
    let differences: Vec<f64> = both.iter().map(|&(_, a, b)| scale.between(a, b)).collect();
    let smaller = a.values.len().min(b.values.len());
    (4 * differences.len() >= 3 * smaller).then_some(differences)
}

/// Whether this many blocks can decide at a level, with a margin for chance. Fewer are compared as
/// wholes, which needs fewer samples but more assumptions.
pub(crate) fn enough_blocks(blocks: usize, alpha: f64) -> bool {
    blocks >= FEWEST && smallest_sign_p(blocks) <= alpha / 2.0
}

fn smallest_sign_p(blocks: usize) -> f64 {
    0.5f64.powi(i32::try_from(blocks).unwrap_or(i32::MAX).saturating_sub(1))
}

fn middle(values: &[f64]) -> f64 {
    let values = sorted(values);
    if values.is_empty() { 0.0 } else { median_of_sorted(&values) }
}

/// Compares two complete samples whose size did not depend on their values.
pub fn compare(a: Side<'_>, b: Side<'_>, metric: &str, criteria: &Criteria) -> Comparison {
    let alpha = criteria.alpha();
    let mut comparison = Comparison::open(&a, &b, metric, Method::Independent);
    let scale = Scale::of(a.values, b.values);
    let at = |side: &Side<'_>| {
        Medians::of_logs(side.values.iter().map(|value| scale.at(*value)).collect())
    };
    let (Some(of_a), Some(of_b)) = (at(&a), at(&b)) else {
        return comparison;
    };
    let differences = block_differences(&a, &b, scale);
    let enough = differences.clone().filter(|blocks| enough_blocks(blocks.len(), alpha));
    let fewest = a.values.len().min(b.values.len());
    let (centre, interval, p, attainable);
    if let Some((blocks, medians)) = enough.and_then(|l| Some((l.clone(), Medians::of_logs(l)?))) {
        comparison.method = Method::Blocks;
        (centre, interval) = (medians.log_median(), medians.interval(alpha));
        p = signed_rank_test(&blocks);
        attainable = smallest_sign_p(blocks.len());
    } else {
        centre = of_b.log_median() - of_a.log_median();
        interval = of_a.interval_of_ratio(&of_b, alpha);
        p = rank_test(a.values, b.values);
        attainable = smallest_p(a.values.len(), b.values.len());
    }
    comparison.estimate(scale, centre, Some(interval));
    comparison.p = Some(p);
    comparison.confidence = 1.0 - alpha.max(attainable).min(1.0);
    if fewest < FEWEST {
        comparison.reason = Some(Reason::TooFew { samples: fewest, needed: FEWEST });
    } else if attainable > alpha {
        let mut needed = fewest + 1;
        while smallest_p(needed, needed) > alpha {
            needed += 1;
        }
        comparison.reason = Some(Reason::TooFewForFamily {
            samples: fewest,
            comparisons: criteria.comparisons,
            needed,
        });
    } else {
        comparison.decide(scale, interval, p <= alpha, (a.values, b.values), criteria);
        comparison.project(scale, &differences.unwrap_or_default(), criteria);
    }
    comparison
}

/// The verdict of an interval, on its scale.
pub(crate) fn judge(
    scale: Scale,
    [low, high]: [f64; 2],
    distinct: bool,
    criteria: &Criteria,
) -> Verdict {
    let band = scale.distance(criteria.margin) * (1.0 + 1e-12);
    if low >= -band && high <= band {
        Verdict::Same
    } else if distinct && (low > 0.0 || high < 0.0) {
        match (low > 0.0, criteria.better) {
            (true, Better::Lower) | (false, Better::Higher) => Verdict::Slower,
            (false, Better::Lower) | (true, Better::Higher) => Verdict::Faster,
        }
    } else {
        Verdict::NotSure
    }
}

/// The step size of values, if it is too coarse to call anything within the margin the same.
pub(crate) fn too_coarse(
    scale: Scale,
    (a, b): (&[f64], &[f64]),
    criteria: &Criteria,
) -> Option<Reason> {
    let step = step(a, b);
    let size = match scale {
        Scale::Ratio => middle(a).min(middle(b)),
        Scale::Difference { size } => size,
    };
    let part = if size > 0.0 { step / size } else { 0.0 };
    let coarse = !criteria.counts && part > criteria.margin * (1.0 + 1e-9);
    coarse.then_some(Reason::Coarse { step, part, margin: criteria.margin })
}

impl Comparison {
    /// An undecided comparison.
    fn open(a: &Side<'_>, b: &Side<'_>, metric: &str, method: Method) -> Self {
        let empty = [a, b].into_iter().find(|side| side.values.is_empty());
        let reason = empty
            .map(|side| Reason::NoValues { side: side.name.to_owned(), metric: metric.to_owned() });
        let medians = Values { a: middle(a.values), b: middle(b.values) };
        Self {
            a: a.name.to_owned(),
            b: b.name.to_owned(),
            at: None,
            metric: metric.to_owned(),
            unit: None,
            method,
            verdict: Verdict::NotSure,
            medians: empty.is_none().then_some(medians),
            ratio: None,
            interval: None,
            difference: None,
            confidence: 0.0,
            samples: Counts { a: a.values.len(), b: b.values.len() },
            failed: Counts { a: a.failed, b: b.failed },
            p: None,
            reason,
            more_runs: None,
            conditions: Vec::new(),
        }
    }

    /// Of two names of the same thing, such as refs of one commit. No number of samples could find
    /// a difference.
    pub fn of_one(a: Side<'_>, b: Side<'_>, metric: &str, what: &str) -> Self {
        Self {
            verdict: Verdict::Same,
            ratio: Some(1.0),
            interval: Some([1.0, 1.0]),
            confidence: 1.0,
            reason: Some(Reason::Identical { what: what.to_owned() }),
            ..Self::open(&a, &b, metric, Method::Independent)
        }
    }

    /// Of two sides of which one has no values.
    pub fn without_values(a: Side<'_>, b: Side<'_>, metric: &str) -> Self {
        Self::open(&a, &b, metric, Method::Independent)
    }

    /// Of two sides that cannot be compared as measured: an estimate without an interval, because
    /// none would include changes of the machine.
    pub fn incomparable(a: Side<'_>, b: Side<'_>, metric: &str, reason: Reason) -> Self {
        let mut comparison = Self::open(&a, &b, metric, Method::Independent);
        if comparison.reason.is_none() {
            let scale = Scale::of(a.values, b.values);
            comparison.estimate(scale, scale.between(middle(a.values), middle(b.values)), None);
            comparison.reason = Some(reason);
        }
        comparison
    }

    /// Of samples whose number depended on their values, block by block.
    pub fn in_sequence(a: Side<'_>, b: Side<'_>, metric: &str, criteria: &Criteria) -> Self {
        let mut boundary = super::Boundary::new(criteria.alpha());
        let mut sequence = Sequence::default();
        for (_, a, b) in in_common(&a, &b) {
            sequence.push(&mut boundary, a, b);
        }
        Self::of_sequence(a, b, metric, &sequence, criteria)
    }

    /// The result of a sequence, valid at any number of looks.
    pub fn of_sequence(
        a: Side<'_>,
        b: Side<'_>,
        metric: &str,
        sequence: &Sequence,
        criteria: &Criteria,
    ) -> Self {
        let mut comparison = Self::open(&a, &b, metric, Method::Sequence);
        let (of_a, of_b) = sequence.values();
        let blocks = sequence.blocks();
        if blocks > 0 {
            comparison.reason = None;
            comparison.medians = Some(Values { a: middle(&of_a), b: middle(&of_b) });
        }
        let scale = sequence.scale();
        let interval = sequence.interval_on_scale();
        comparison.confidence = 1.0 - criteria.alpha();
        if let Some(centre) = sequence.centre() {
            comparison.estimate(scale, centre, interval);
        }
        if sequence.contradictory() {
            comparison.clear_interval();
            comparison.reason = Some(Reason::Inconstant);
        } else if let Some(interval) = interval.filter(|_| blocks >= FEWEST) {
            comparison.decide(scale, interval, true, (&of_a, &of_b), criteria);
        } else if comparison.reason.is_none() {
            comparison.reason = Some(Reason::TooFewBlocks { blocks });
        }
        comparison.project(scale, sequence.differences(), criteria);
        comparison
    }

    fn estimate(&mut self, scale: Scale, centre: f64, interval: Option<[f64; 2]>) {
        match scale {
            Scale::Ratio => {
                self.ratio = Some(centre.exp());
                self.interval = interval.map(|ends| ends.map(f64::exp));
            }
            Scale::Difference { .. } => {
                self.difference = Some(Difference { value: centre, interval });
            }
        }
    }

    fn clear_interval(&mut self) {
        self.interval = None;
        if let Some(difference) = &mut self.difference {
            difference.interval = None;
        }
    }

    /// `distinct`: the rank test also finds a difference.
    fn decide(
        &mut self,
        scale: Scale,
        interval: [f64; 2],
        distinct: bool,
        values: (&[f64], &[f64]),
        criteria: &Criteria,
    ) {
        self.verdict = judge(scale, interval, distinct, criteria);
        self.reason = match self.verdict {
            Verdict::Same => too_coarse(scale, values, criteria),
            Verdict::NotSure => {
                let difference = scale != Scale::Ratio;
                let [low, high] = if difference { interval } else { interval.map(f64::exp) };
                Some(Reason::Wide { low, high, difference })
            }
            Verdict::Faster | Verdict::Slower => None,
        };
        if self.reason.is_some() {
            self.verdict = Verdict::NotSure;
        }
    }

    /// Estimates how many more runs would decide, if more runs can.
    fn project(&mut self, scale: Scale, differences: &[f64], criteria: &Criteria) {
        let wanting =
            matches!(self.reason, Some(Reason::Wide { .. } | Reason::TooFewBlocks { .. }));
        if !wanting || differences.len() < FEWEST {
            return;
        }
        let needed = blocks_needed(differences, scale.distance(criteria.margin), criteria.alpha());
        self.more_runs =
            needed.map(|needed| needed.saturating_sub(differences.len() as u64).max(1));
    }

    /// The size of the change as a fraction of A: 0.05 for 5 % more or less. Infinite if A is 0.
    pub fn size(&self) -> Option<f64> {
        // 5 % more and 5 % less are equally far from 1.
        let of_ratio = |ratio: f64| ratio.max(1.0 / ratio) - 1.0;
        match (self.ratio, self.difference, self.medians) {
            (Some(ratio), ..) => Some(of_ratio(ratio)),
            (None, Some(difference), Some(medians)) => {
                Some(part_of(difference.value.abs(), medians.a))
            }
            _ => None,
        }
    }

    /// The same for the end of the interval nearer to no change; 0 if the interval contains that.
    pub fn least_size(&self) -> Option<f64> {
        let nearer = |[low, high]: [f64; 2], none: f64| {
            if low > none { low } else { high.min(none) }
        };
        match (self.interval, self.difference, self.medians) {
            (Some(interval), ..) => {
                let ratio = nearer(interval, 1.0);
                Some(ratio.max(1.0 / ratio) - 1.0)
            }
            (None, Some(difference), Some(medians)) => {
                Some(part_of(nearer(difference.interval?, 0.0).abs(), medians.a))
            }
            _ => None,
        }
    }

    /// Whether B has more of the metric than A.
    pub fn is_more(&self) -> bool {
        match (self.ratio, self.difference) {
            (Some(ratio), _) => ratio > 1.0,
            (None, Some(difference)) => difference.value > 0.0,
            (None, None) => false,
        }
    }
}

fn part_of(difference: f64, whole: f64) -> f64 {
    match whole.abs() {
        0.0 if difference == 0.0 => 0.0,
        whole => difference / whole,
    }
}

#[cfg(test)]
mod tests;
