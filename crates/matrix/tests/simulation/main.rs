//! Thousands of simulated experiments with a known truth: do the statistics keep their promises?
//!
//! Seeds are fixed, so a failure is a change of the code and never bad luck. `--nocapture` prints
//! the tables of `docs/design/statistics.md`.

#![expect(clippy::print_stdout, reason = "the tables are for people")]

mod appending;
mod causes;
#[path = "../documented/mod.rs"]
mod documented;
mod gates;
mod history;
mod machine;
mod noise;
mod peeking;
mod rates;
mod wholes;

use documented::documented;
use noise::{Noise, for_all};
use rates::{percent, range, whole_percent};
use retake_matrix::explain::explain;
use retake_matrix::random::Random;
use retake_matrix::stats::{Comparison, Criteria, Method, Side, Verdict, compare, summarise};

/// A rate of p in n trials exceeds p by more than this once in ten thousand experiments.
fn tolerance(p: f64, n: usize) -> f64 {
    3.7 * (p * (1.0 - p) / n as f64).sqrt()
}

const BLOCKS: [u64; 100] = {
    let mut blocks = [0; 100];
    let mut i = 0;
    while i < 100 {
        blocks[i] = i as u64;
        i += 1;
    }
    blocks
};

/// Samples as wholes.
fn side(values: &[f64]) -> Side<'_> {
    Side { name: "x", values, blocks: &[], failed: 0 }
}

/// Samples block by block.
fn in_blocks(values: &[f64]) -> Side<'_> {
    Side { blocks: &BLOCKS[..values.len()], ..side(values) }
}

fn wrong(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Faster | Verdict::Slower)
}

fn contains(comparison: &Comparison, truth: f64) -> bool {
    // Rounding errors of logarithms are not tested.
    comparison
        .interval
        .is_none_or(|[low, high]| low <= truth * (1.0 + 1e-9) && truth <= high * (1.0 + 1e-9))
}

#[test]
fn in_interleaved_blocks() {
    println!("method     {HEADER}");
    let found = for_all(|noise| {
        let all = [5, 8, 10, 20, 40].map(|n| (n, fixed_size(noise, n, in_blocks))).to_vec();
        let mut shown = all.clone();
        shown.retain(|(n, _)| [8, 20, 40].contains(n));
        documented(&table_row(noise, &shown));
        all
    });
    let (_, same) = range(found.iter().flat_map(|(_, all)| all.iter().map(|(_, r)| r.false_same)));
    documented(&format!("`same` for a true 3 % difference: in blocks at most {} %", percent(same)));
}

/// The results of comparisons of one size with one kind of noise.
#[derive(Clone)]
struct Rates {
    wrong: f64,
    /// Coverage for equal code, and for 10 %, if the truth is known.
    covered: [Option<f64>; 2],
    power: f64,
    /// For 3 %, which exceeds the margin: the rate of `same` verdicts.
    false_same: f64,
}

/// A row of the table in the documentation.
fn table_row(noise: Noise, rates: &[(usize, Rates)]) -> String {
    let join = |part: &dyn Fn(&Rates) -> String| {
        rates.iter().map(|(_, rates)| part(rates)).collect::<Vec<_>>().join(" / ")
    };
    let sizes: Vec<String> = rates.iter().map(|(n, _)| n.to_string()).collect();
    let covered = join(&|rates| {
        let one = |covered: Option<f64>| covered.map_or_else(|| "-".to_owned(), percent);
        rates.covered.map(one).join(", ")
    });
    let wrong = join(&|rates| format!("{:.1}", 100.0 * rates.wrong));
    let power = join(&|rates| whole_percent(rates.power));
    let (name, sizes) = (noise.name(), sizes.join(" / "));
    format!("| {name} | {sizes} | {wrong} % | {covered} % | {power} % |")
}

#[test]
fn as_wholes() {
    let found = for_all(|noise| [5, 8, 20].map(|n| fixed_size(noise, n, side)));
    let five = || found.iter().map(|(noise, rates)| (*noise, &rates[0]));
    let (_, wrong) = range(five().map(|(_, rates)| rates.wrong));
    let (covered, _) = range(five().flat_map(|(_, rates)| rates.covered.into_iter().flatten()));
    let drifting = |noise: Noise| noise == Noise::Drift;
    let power = |drift: bool| {
        range(five().filter(|(noise, _)| drifting(*noise) == drift).map(|(_, rates)| rates.power))
    };
    let (least, most) = power(false);
    documented(&format!(
        "As wholes, five samples: A/A wrong at most {} %, coverage at least {} %, power {} to {} % \
         ({} under drift, which is the reason for blocks).",
        percent(wrong),
        percent(covered),
        whole_percent(least),
        whole_percent(most),
        whole_percent(power(true).1)
    ));
    let (_, same) = range(found.iter().flat_map(|(_, all)| all.iter().map(|r| r.false_same)));
    documented(&format!("as wholes at most {} %", percent(same)));
}

const HEADER: &str = "noise        n   A/A wrong  coverage A/A, +10 %  false same  power +10 %";

fn fixed_size(noise: Noise, n: usize, side: for<'a> fn(&'a [f64]) -> Side<'a>) -> Rates {
    let trials = 1000;
    let mut random = Random::new(1000 + n as u64);
    let (mut lies, mut covered, mut false_same, mut power) = (0, [0; 2], 0, 0);
    let (mut stated, mut method) = (1.0, Method::Independent);
    for _ in 0..trials {
        // The last factor is outside the margin: `same` would be wrong.
        let values = noise.blocks(&mut random, n, &[1.0, 1.0, 1.1, 1.03]);
        let criteria = Criteria::default();
        let against = |i: usize| compare(side(&values[0]), side(&values[i]), "wall", &criteria);
        let (same, shifted, far) = (against(1), against(2), against(3));
        (stated, method) = (same.confidence, same.method);
        lies += usize::from(wrong(same.verdict));
        covered[0] += usize::from(contains(&same, 1.0));
        covered[1] += usize::from(contains(&shifted, noise.truth(1.1)));
        power += usize::from(shifted.verdict == Verdict::Slower);
        let lie = far.verdict == Verdict::Same && noise.truth(1.03) > 1.02;
        false_same += usize::from(lie);
    }
    let rate = |count: usize| count as f64 / trials as f64;
    println!(
        "{:<11} {:<11} {n:>3}   {:>5.1} %   {:>5.1} %, {:>5.1} %   {:>5.1} %   {:>5.1} %",
        format!("{method:?}"),
        format!("{noise:?}"),
        100.0 * rate(lies),
        100.0 * rate(covered[0]),
        100.0 * rate(covered[1]),
        100.0 * rate(false_same),
        100.0 * rate(power)
    );
    let what = format!("{noise:?} {n}");
    assert!(rate(lies) <= 0.05, "{what}: {}", rate(lies));
    assert!(rate(false_same) <= 0.05, "{what}: {}", rate(false_same));
    // Ratios of values rounded within a block have a different median.
    let known = if noise == Noise::Rounded && method == Method::Blocks { 1 } else { 2 };
    for &covered in &covered[..known] {
        let least = stated.min(0.95);
        let rate = rate(covered);
        assert!(rate >= least - tolerance(1.0 - least, trials), "{what}: {rate}");
    }
    let second = (known == 2).then(|| rate(covered[1]));
    Rates {
        wrong: rate(lies),
        covered: [Some(rate(covered[0])), second],
        power: rate(power),
        false_same: rate(false_same),
    }
}

/// Each cell of a 5 x 5 matrix with the first of its row and of its column.
fn pairs(side: usize) -> Vec<(usize, usize)> {
    let cells = (0..side * side).map(|i| (i / side, i % side));
    cells
        .flat_map(|(row, column)| {
            let at = row * side + column;
            [(row > 0).then_some((column, at)), (column > 0).then_some((row * side, at))]
        })
        .flatten()
        .collect()
}

/// How often is any comparison of a whole matrix wrong?
#[test]
fn a_matrix_at_once() {
    let pairs = pairs(5);
    let found = for_all(|noise| {
        [8, 20].map(|n| {
            let trials = 200;
            let mut random = Random::new(2000 + n as u64);
            let mut families = 0;
            let mut uncovered = 0;
            for _ in 0..trials {
                let values = noise.blocks(&mut random, n, &[1.0; 25]);
                let criteria = Criteria { comparisons: pairs.len(), ..Criteria::default() };
                let against = |&(a, b): &(usize, usize)| {
                    compare(in_blocks(&values[a]), in_blocks(&values[b]), "wall", &criteria)
                };
                let all: Vec<_> = pairs.iter().map(against).collect();
                families += usize::from(all.iter().any(|c| wrong(c.verdict)));
                uncovered += usize::from(all.iter().any(|c| !contains(c, 1.0)));
            }
            let rate = |count: usize| count as f64 / trials as f64;
            println!(
                "5 x 5, {:<11} n {n:>3}: any wrong {:.1} %, any uncovered {:.1} %",
                format!("{noise:?}"),
                100.0 * rate(families),
                100.0 * rate(uncovered)
            );
            assert!(rate(families) <= 0.05, "{noise:?} {n}: {}", rate(families));
            assert!(rate(uncovered) <= 0.05 + tolerance(0.05, trials), "{noise:?} {n}");
            rate(families)
        })
    });
    let (_, most) = range(found.into_iter().flat_map(|(_, families)| families));
    documented(&format!(
        "A 5 x 5 matrix, all {} comparisons: any of them wrong in at most {} % of the matrices.",
        pairs.len(),
        percent(most)
    ));
}

/// 10 x 10 x 100: everything that `compare` and the report compute.
#[test]
fn a_large_matrix() {
    let mut random = Random::new(9);
    let values = Noise::Lognormal.blocks(&mut random, 100, &[1.0; 100]);
    let start = std::time::Instant::now();
    let summaries: Vec<_> = values.iter().filter_map(|values| summarise(values)).collect();
    let pairs = pairs(10);
    let criteria = Criteria { comparisons: pairs.len(), ..Criteria::default() };
    let all: Vec<_> = pairs
        .iter()
        .map(|&(a, b)| compare(in_blocks(&values[a]), in_blocks(&values[b]), "wall", &criteria))
        .collect();
    let table = causes::of(&values, 10);
    let explanation = explain(&table, &[], 0.02, 0.95, 1);
    println!("10 x 10 x 100: {:?}", start.elapsed());
    assert_eq!((summaries.len(), all.len(), explanation.effects.len()), (100, 180, 99));
    assert!(!all.iter().any(|c| wrong(c.verdict)));
}
