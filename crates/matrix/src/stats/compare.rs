//! B against A: faster, slower, the same, or not sure.

use std::collections::HashMap;

use serde::Serialize;

use super::rank::smallest_p;
use super::{FEWEST, Medians, Sequence, rank_test, signed_rank_test};
use retake_types::{Better, text};

/// What decides a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Criteria {
    /// The probability that no comparison of the family is wrong.
    pub confidence: f64,
    /// Differences up to this part of A are none worth naming.
    pub margin: f64,
    /// How many comparisons the family has.
    pub comparisons: usize,
    pub better: Better,
}

impl Default for Criteria {
    fn default() -> Self {
        Self { confidence: 0.95, margin: 0.02, comparisons: 1, better: Better::Lower }
    }
}

impl Criteria {
    /// What each single comparison may err. Bonferroni's correction: it holds whatever the
    /// comparisons have to do with each other, and it gives intervals and not only decisions.
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
    /// The block (the iteration) each value was measured in, where cells were interleaved; empty
    /// where they were not.
    pub blocks: &'a [u64],
    /// Runs that failed; they have no part in the numbers.
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
}

/// What was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The two sides within each block, so that what changed in between does not matter.
    Blocks,
    /// The two sets as wholes.
    Independent,
    /// Block by block, valid however often it was looked at.
    Sequence,
}

/// A number for each side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub a: usize,
    pub b: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    pub a: String,
    pub b: String,
    pub metric: String,
    pub method: Method,
    pub verdict: Verdict,
    /// B divided by A: of the medians, or the median over the blocks.
    pub ratio: Option<f64>,
    pub interval: Option<[f64; 2]>,
    /// How surely the interval contains the true ratio: less than asked for where there are too few
    /// samples for more.
    pub confidence: f64,
    pub samples: Counts,
    pub failed: Counts,
    /// Of the rank test; a sequence has none.
    pub p: Option<f64>,
    /// Why it is not sure.
    pub reason: Option<String>,
}

/// The differences of logarithms within the blocks both sides have, as long as these are most of
/// what there is.
fn block_logs(a: &Side<'_>, b: &Side<'_>) -> Option<Vec<f64>> {
    if a.blocks.len() != a.values.len() || b.blocks.len() != b.values.len() {
        return None;
    }
    let of_a: HashMap<u64, f64> = a.blocks.iter().copied().zip(a.values.iter().copied()).collect();
    let pairs = b.blocks.iter().zip(b.values).filter_map(|(block, b)| Some((of_a.get(block)?, b)));
    let logs: Vec<f64> = pairs.map(|(a, b)| b.ln() - a.ln()).collect();
    let smaller = a.values.len().min(b.values.len());
    (4 * logs.len() >= 3 * smaller).then_some(logs)
}

/// Whether this many blocks can decide at a level at all, with room for chance. Fewer are compared
/// as wholes, which needs fewer samples and more faith.
pub(crate) fn enough_blocks(blocks: usize, alpha: f64) -> bool {
    blocks >= FEWEST && smallest_sign_p(blocks) <= alpha / 2.0
}

fn smallest_sign_p(blocks: usize) -> f64 {
    0.5f64.powi(i32::try_from(blocks).unwrap_or(i32::MAX).saturating_sub(1))
}

/// Compares two finished sets of samples whose size was not chosen by looking at them.
pub fn compare(a: Side<'_>, b: Side<'_>, metric: &str, criteria: &Criteria) -> Comparison {
    let alpha = criteria.alpha();
    let mut comparison = Comparison::open(&a, &b, metric, Method::Independent);
    let (Some(of_a), Some(of_b)) = (Medians::of(a.values), Medians::of(b.values)) else {
        comparison.confidence = 0.0;
        let empty = [&a, &b].into_iter().find(|side| side.values.is_empty());
        comparison.reason = Some(match empty {
            Some(side) => format!("{} has no successful run that reports {metric}", side.name),
            None => format!("a ratio needs values above 0, and {metric} has others"),
        });
        return comparison;
    };
    let logs = block_logs(&a, &b).filter(|logs| enough_blocks(logs.len(), alpha));
    let fewest = a.values.len().min(b.values.len());
    let attainable;
    if let Some((logs, medians)) = logs.and_then(|l| Some((l.clone(), Medians::of_logs(l)?))) {
        comparison.method = Method::Blocks;
        comparison.ratio = Some(medians.log_median().exp());
        comparison.interval = Some(medians.interval(alpha).map(f64::exp));
        comparison.p = Some(signed_rank_test(&logs));
        attainable = smallest_sign_p(logs.len());
    } else {
        comparison.ratio = Some((of_b.log_median() - of_a.log_median()).exp());
        comparison.interval = Some(of_a.interval_of_ratio(&of_b, alpha).map(f64::exp));
        comparison.p = Some(rank_test(a.values, b.values));
        attainable = smallest_p(a.values.len(), b.values.len());
    }
    comparison.confidence = 1.0 - alpha.max(attainable).min(1.0);
    let samples = text::count(fewest as u64, "sample");
    if fewest < FEWEST {
        comparison.reason =
            Some(format!("{samples} of a side are too few; at least {FEWEST} are needed"));
    } else if attainable > alpha {
        let mut n = fewest + 1;
        while smallest_p(n, n) > alpha {
            n += 1;
        }
        comparison.reason = Some(format!(
            "{samples} of a side are too few for {} at once; {n} would do",
            text::count(criteria.comparisons as u64, "comparison")
        ));
    } else if let (Some(interval), Some(p)) = (comparison.interval, comparison.p) {
        comparison.decide(interval, p <= alpha, criteria);
    }
    comparison
}

impl Comparison {
    /// Nothing decided yet.
    fn open(a: &Side<'_>, b: &Side<'_>, metric: &str, method: Method) -> Self {
        Self {
            a: a.name.to_owned(),
            b: b.name.to_owned(),
            metric: metric.to_owned(),
            method,
            verdict: Verdict::NotSure,
            ratio: None,
            interval: None,
            confidence: 0.0,
            samples: Counts { a: a.values.len(), b: b.values.len() },
            failed: Counts { a: a.failed, b: b.failed },
            p: None,
            reason: None,
        }
    }

    /// Of two names for one and the same thing: refs on one commit, say. There is nothing to find
    /// out, however many samples there are.
    pub fn of_one(a: Side<'_>, b: Side<'_>, metric: &str, what: &str) -> Self {
        Self {
            verdict: Verdict::Same,
            ratio: Some(1.0),
            interval: Some([1.0, 1.0]),
            confidence: 1.0,
            reason: Some(format!("both are {what}")),
            ..Self::open(&a, &b, metric, Method::Independent)
        }
    }

    /// What a sequence says, however often it was looked at.
    pub fn of_sequence(
        a: Side<'_>,
        b: Side<'_>,
        metric: &str,
        sequence: &Sequence,
        criteria: &Criteria,
    ) -> Self {
        let mut comparison = Self::open(&a, &b, metric, Method::Sequence);
        comparison.ratio = sequence.ratio();
        comparison.interval = sequence.interval();
        comparison.confidence = 1.0 - criteria.alpha();
        let blocks = sequence.blocks();
        if sequence.contradictory() {
            comparison.interval = None;
            comparison.reason =
                Some("the ratio was not the same all the time this was measured".to_owned());
        } else if let Some(interval) = sequence.interval().filter(|_| blocks >= FEWEST) {
            comparison.decide(interval, true, criteria);
        } else {
            comparison.reason = Some(format!(
                "{} are too few to say anything",
                text::count(blocks as u64, "block")
            ));
        }
        comparison
    }

    /// `distinct`: the rank test agrees that there is a difference.
    fn decide(&mut self, [low, high]: [f64; 2], distinct: bool, criteria: &Criteria) {
        let band = 1.0 + criteria.margin;
        self.verdict = if low >= 1.0 / band && high <= band {
            Verdict::Same
        } else if distinct && (low > 1.0 || high < 1.0) {
            match (low > 1.0, criteria.better) {
                (true, Better::Lower) | (false, Better::Higher) => Verdict::Slower,
                (false, Better::Lower) | (true, Better::Higher) => Verdict::Faster,
            }
        } else {
            let percent = |x: f64| format!("{:+.1} %", (x - 1.0) * 100.0);
            self.reason = Some(format!(
                "anything from {} to {} is possible; more samples would narrow it",
                percent(low),
                percent(high)
            ));
            Verdict::NotSure
        };
    }

    /// The comparison in one line, for people.
    pub fn sentence(&self) -> String {
        let percent = |x: f64| format!("{:+.1} %", (x - 1.0) * 100.0);
        let Self { a, b, metric, .. } = self;
        let mut text = match (self.verdict, self.ratio) {
            (Verdict::Same, _) => format!("{b} is the same as {a} in {metric}"),
            (Verdict::NotSure, _) => format!("not sure whether {b} differs from {a} in {metric}"),
            (verdict, _) => format!("{b} is {} than {a} in {metric}", verdict.as_str()),
        };
        if let (Some(ratio), Some([low, high])) = (self.ratio, self.interval) {
            text += &format!(": {}, {} to {}", percent(ratio), percent(low), percent(high));
        }
        if let Some(reason) = &self.reason {
            text += &format!(" ({reason})");
        }
        if self.failed != Counts::default() {
            text += &format!("; failed: {} and {}", self.failed.a, self.failed.b);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side<'a>(name: &'a str, values: &'a [f64]) -> Side<'a> {
        Side { name, values, blocks: &[], failed: 0 }
    }

    const FAST: [f64; 8] = [10.0, 10.1, 10.2, 9.9, 9.8, 10.05, 9.95, 10.15];

    fn scaled(factor: f64) -> Vec<f64> {
        FAST.iter().map(|x| x * factor).collect()
    }

    fn verdict(factor: f64, criteria: &Criteria) -> Verdict {
        compare(side("a", &FAST), side("b", &scaled(factor)), "wall", criteria).verdict
    }

    #[test]
    fn all_four_verdicts() {
        let criteria = Criteria::default();
        assert_eq!(verdict(1.5, &criteria), Verdict::Slower);
        assert_eq!(verdict(0.5, &criteria), Verdict::Faster);
        assert_eq!(verdict(1.0, &Criteria { margin: 0.1, ..criteria }), Verdict::Same);
        assert_eq!(verdict(1.0, &criteria), Verdict::NotSure);
    }

    #[test]
    fn where_more_is_better_more_is_faster() {
        let criteria = Criteria { better: Better::Higher, ..Criteria::default() };
        assert_eq!(verdict(1.5, &criteria), Verdict::Faster);
        assert_eq!(verdict(0.5, &criteria), Verdict::Slower);
    }

    #[test]
    fn under_five_samples_nothing_is_sure() {
        let got =
            compare(side("a", &FAST[..4]), side("b", &scaled(9.0)), "wall", &Criteria::default());
        assert_eq!(got.verdict, Verdict::NotSure);
        assert!(got.reason.unwrap().contains("at least 5"));
        let got = compare(side("a", &[]), side("b", &FAST), "wall", &Criteria::default());
        assert_eq!((got.ratio, got.interval, got.verdict), (None, None, Verdict::NotSure));
        assert!(got.sentence().contains("a has no successful run"), "{}", got.sentence());
    }

    #[test]
    fn many_comparisons_need_more_samples() {
        let criteria = Criteria { comparisons: 24, ..Criteria::default() };
        let five = scaled(1.5);
        let got = compare(side("a", &FAST[..5]), side("b", &five[..5]), "wall", &criteria);
        assert_eq!(got.verdict, Verdict::NotSure);
        assert!(got.reason.as_ref().unwrap().contains("7 would do"), "{got:?}");
        assert!(got.confidence < 1.0 - criteria.alpha());
        assert_eq!(verdict(1.5, &criteria), Verdict::Slower);
    }

    #[test]
    fn blocks_see_through_drift() {
        let a: Vec<f64> = (0..12).map(|i| 10.0 + f64::from(i) + 0.01 * f64::from(i % 3)).collect();
        let b: Vec<f64> = a.iter().map(|x| x * 1.05).collect();
        let blocks: Vec<u64> = (0..12).collect();
        let with = |blocks| {
            let side = |name, values| Side { name, values, blocks, failed: 0 };
            compare(side("a", &a), side("b", &b), "wall", &Criteria::default())
        };
        let paired = with(&blocks);
        assert_eq!((paired.method, paired.verdict), (Method::Blocks, Verdict::Slower));
        let unpaired = with(&[]);
        assert_eq!((unpaired.method, unpaired.verdict), (Method::Independent, Verdict::NotSure));
    }

    #[test]
    fn blocks_that_hardly_meet_are_compared_as_wholes() {
        let slow = scaled(1.5);
        let a = Side { name: "a", values: &FAST, blocks: &[0, 1, 2, 3, 4, 5, 6, 7], failed: 0 };
        let b =
            Side { name: "b", values: &slow, blocks: &[7, 8, 9, 10, 11, 12, 13, 14], failed: 0 };
        assert_eq!(compare(a, b, "wall", &Criteria::default()).method, Method::Independent);
    }

    #[test]
    fn zero_has_no_ratio() {
        let got = compare(side("a", &[0.0; 6]), side("b", &FAST), "cpu", &Criteria::default());
        assert_eq!((got.verdict, got.ratio), (Verdict::NotSure, None));
        assert!(got.reason.unwrap().contains("above 0"));
    }

    #[test]
    fn two_names_of_one_commit_are_the_same_without_a_sample() {
        let got = Comparison::of_one(side("main", &[]), side("v1", &[]), "wall", "commit abc");
        assert_eq!((got.verdict, got.interval), (Verdict::Same, Some([1.0, 1.0])));
        assert!(got.sentence().ends_with("(both are commit abc)"), "{}", got.sentence());
    }

    #[test]
    fn the_json_has_the_promised_keys() {
        let got = compare(side("a", &FAST), side("b", &FAST), "wall", &Criteria::default());
        let json = serde_json::to_value(&got).unwrap();
        for key in ["a", "b", "metric", "verdict", "ratio", "interval", "samples", "failed"] {
            assert!(json.get(key).is_some_and(|value| !value.is_null()), "{key}");
        }
        assert_eq!(json["verdict"], "not_sure");
    }
}
