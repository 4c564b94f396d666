//! Checking after every block, and stopping at any time.

use retake_matrix::random::Random;
use retake_matrix::stats::{
    Boundary, Comparison, Criteria, Sequence, SequenceVerdict, Verdict, compare,
};

use crate::documented::documented;
use crate::noise::{Noise, for_all};
use crate::rates::{percent, whole_percent};
use crate::{side, tolerance, wrong};

/// Longer than any real measurement.
const BLOCKS: usize = 400;

/// Runs until the comparison is decided or the blocks are used up.
fn until_sure(
    noise: Noise,
    random: &mut Random,
    factor: f64,
    blocks: usize,
    boundary: &mut Boundary,
    criteria: &Criteria,
) -> (Comparison, usize, bool) {
    let values = noise.blocks(random, blocks, &[1.0, factor]);
    let mut sequence = Sequence::default();
    let mut always_covered = true;
    for (block, (a, b)) in values[0].iter().zip(&values[1]).enumerate() {
        sequence.push(boundary, *a, *b);
        let truth = noise.truth(factor);
        always_covered &= sequence
            .interval()
            .is_none_or(|[low, high]| low <= truth * (1.0 + 1e-9) && truth <= high * (1.0 + 1e-9));
        if sequence.verdict(criteria) != SequenceVerdict::NotYet || block + 1 == blocks {
            let none = side(&[]);
            let comparison = Comparison::of_sequence(none, none, "wall", &sequence, criteria);
            return (comparison, block + 1, always_covered);
        }
    }
    unreachable!()
}

#[test]
fn one_comparison() {
    println!(
        "noise        A/A wrong  covered at all times  +10 %: power, median blocks; 2 % sure of same after"
    );
    for_all(|noise| {
        let trials = 400;
        let criteria = Criteria::default();
        let mut boundary = Boundary::new(criteria.alpha());
        let mut random = Random::new(31);
        let (mut lies, mut uncovered, mut power) = (0, 0, 0);
        let (mut spent, mut spent_same) = (Vec::new(), Vec::new());
        for _ in 0..trials {
            let (same, blocks, covered) =
                until_sure(noise, &mut random, 1.0, BLOCKS, &mut boundary, &criteria);
            lies += usize::from(wrong(same.verdict));
            uncovered += usize::from(!covered);
            spent_same.push(blocks);
            let (shifted, blocks, covered) =
                until_sure(noise, &mut random, 1.1, BLOCKS, &mut boundary, &criteria);
            uncovered += usize::from(!covered);
            power += usize::from(shifted.verdict == Verdict::Slower);
            spent.push(blocks);
        }
        spent.sort_unstable();
        spent_same.sort_unstable();
        let rate = |count: usize| count as f64 / trials as f64;
        println!(
            "{:<11}  {:>5.1} %   {:>5.1} %   {:>5.1} %, {}; {}",
            format!("{noise:?}"),
            100.0 * rate(lies),
            100.0 - 50.0 * rate(uncovered),
            100.0 * rate(power),
            spent[trials / 2],
            spent_same[trials / 2]
        );
        let same = match spent_same[trials / 2] {
            BLOCKS => format!("over {BLOCKS}"),
            blocks => blocks.to_string(),
        };
        documented(&format!(
            "| {} | {:.1} % | {} % | {} %, {} | {same} |",
            noise.name(),
            100.0 * rate(lies),
            percent(1.0 - rate(uncovered) / 2.0),
            whole_percent(rate(power)),
            spent[trials / 2],
        ));
        assert!(rate(lies) <= 0.05, "{noise:?}: {}", rate(lies));
        // Block ratios of rounded values have a different median than the ratio of the medians.
        if noise != Noise::Rounded {
            let limit = 0.05 + tolerance(0.05, 2 * trials);
            assert!(rate(uncovered) / 2.0 <= limit, "{noise:?}: {}", rate(uncovered));
        }
        assert!(rate(power) > 0.5, "{noise:?}: {}", rate(power));
    });
}

/// The motivation: the same checks with an interval for a single check.
#[test]
fn repeated_looks_at_a_fixed_interval_give_wrong_verdicts() {
    let trials = 300;
    let mut random = Random::new(32);
    let criteria = Criteria::default();
    let lies = (0..trials)
        .filter(|_| {
            let values = Noise::Normal.blocks(&mut random, 60, &[1.0, 1.0]);
            (5..=60).any(|n| {
                let [a, b] = [&values[0][..n], &values[1][..n]];
                wrong(compare(side(a), side(b), "wall", &criteria).verdict)
            })
        })
        .count();
    println!("fixed-size interval, looked at after every block up to 60: {lies} of {trials} wrong");
    assert!(lies * 100 > trials * 8, "{lies} of {trials}: then this test proves nothing");
    let mut random = Random::new(32);
    let with_t = (0..trials)
        .filter(|_| {
            let values = Noise::Normal.blocks(&mut random, 60, &[1.0, 1.0]);
            (5..=60).any(|n| differ_by_t(&values[0][..n], &values[1][..n]))
        })
        .count();
    let part = |count: usize| whole_percent(count as f64 / trials as f64);
    documented(&format!(
        "looked at after each of 60 blocks, the interval above is wrong in {} % of A/A experiments \
         (t intervals of the means in {} %)",
        part(lies),
        part(with_t)
    ));
}

/// Whether a 95 % interval for the difference of two means excludes 0, the method of most tools.
fn differ_by_t(a: &[f64], b: &[f64]) -> bool {
    let n = a.len() as f64;
    let moments = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        (mean, squares / (n - 1.0))
    };
    let ((mean_a, variance_a), (mean_b, variance_b)) = (moments(a), moments(b));
    // Student's quantile for this many degrees of freedom, within a thousandth.
    let degrees = 2.0 * n - 2.0;
    let point = 1.96 + 2.372 / degrees + 2.82 / degrees.powi(2);
    (mean_b - mean_a).abs() > point * ((variance_a + variance_b) / n).sqrt()
}

/// A 5 x 5 matrix, each comparison stopped as soon as it is decided.
#[test]
fn a_matrix() {
    let found = for_all(|noise| {
        let trials = 60;
        let pairs = crate::pairs(5);
        let criteria = Criteria { comparisons: pairs.len(), ..Criteria::default() };
        let mut boundary = Boundary::new(criteria.alpha());
        let mut random = Random::new(33);
        let families = (0..trials)
            .filter(|_| {
                let values = noise.blocks(&mut random, 150, &[1.0; 25]);
                pairs.iter().any(|&(a, b)| {
                    let mut sequence = Sequence::default();
                    (0..150).any(|block| {
                        sequence.push(&mut boundary, values[a][block], values[b][block]);
                        let verdict = sequence.verdict(&criteria);
                        matches!(verdict, SequenceVerdict::Decided(verdict) if wrong(verdict))
                    })
                })
            })
            .count();
        println!("5 x 5 with peeking, {noise:?}: any wrong in {families} of {trials}");
        let rate = families as f64 / f64::from(trials);
        assert!(rate <= 0.05, "{noise:?}: {families} of {trials}");
        families
    });
    let most = found.iter().map(|(_, families)| *families).max().unwrap_or(0);
    documented(&format!(
        "A 5 x 5 matrix with peeking (40 comparisons): any wrong in at most {most} of 60 matrices \
         for each noise."
    ));
}
