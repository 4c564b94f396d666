//! Checking, appending iterations, checking again: the typical use of `run --append`.

use retake_matrix::random::Random;
use retake_matrix::stats::{Boundary, Comparison, Criteria, Sequence, Verdict, compare};

use crate::documented::documented;
use crate::noise::{Noise, for_all};
use crate::rates::whole_percent;
use crate::{contains, in_blocks, side, wrong};

const FIRST: usize = 10;
const MORE: usize = 10;
const LOOKS: usize = 8;

/// Appends until a decision, and reports each check.
fn until_content(
    noise: Noise,
    random: &mut Random,
    factor: f64,
    judge: impl Fn(usize, &[f64], &[f64]) -> Comparison,
) -> Vec<Comparison> {
    let values = noise.blocks(random, FIRST + (LOOKS - 1) * MORE, &[1.0, factor]);
    let mut looks = Vec::new();
    for look in 1..=LOOKS {
        let n = FIRST + (look - 1) * MORE;
        let comparison = judge(look, &values[0][..n], &values[1][..n]);
        let content = comparison.verdict != Verdict::NotSure;
        looks.push(comparison);
        if content {
            break;
        }
    }
    looks
}

fn as_if_never_looked(_: usize, a: &[f64], b: &[f64]) -> Comparison {
    compare(in_blocks(a), in_blocks(b), "wall", &Criteria::default())
}

/// The method of `compare`: the first size was fixed, all later ones were not.
fn in_sequence(look: usize, a: &[f64], b: &[f64]) -> Comparison {
    if look == 1 {
        return as_if_never_looked(look, a, b);
    }
    let criteria = Criteria::default();
    let mut boundary = Boundary::new(criteria.alpha());
    let mut sequence = Sequence::default();
    a.iter().zip(b).for_each(|(a, b)| sequence.push(&mut boundary, *a, *b));
    Comparison::of_sequence(side(a), side(b), "wall", &sequence, &criteria)
}

/// Its method for blocked order.
fn with_a_share(look: usize, a: &[f64], b: &[f64]) -> Comparison {
    let comparisons = if look > 1 { look * (look + 1) } else { 1 };
    compare(side(a), side(b), "wall", &Criteria { comparisons, ..Criteria::default() })
}

#[test]
fn looking_before_each_append_makes_no_more_false_verdicts() {
    println!(
        "noise: A/A wrong after up to {LOOKS} looks, as if fixed, in sequence, by shares; power +10 %"
    );
    for_all(|noise| {
        let trials = 600;
        let mut random = Random::new(61);
        let mut lies = [0; 3];
        let (mut uncovered, mut power) = (0, 0);
        for _ in 0..trials {
            let said = until_content(noise, &mut random, 1.0, as_if_never_looked);
            lies[0] += usize::from(said.iter().any(|c| wrong(c.verdict)));
            let said = until_content(noise, &mut random, 1.0, in_sequence);
            lies[1] += usize::from(said.iter().any(|c| wrong(c.verdict)));
            uncovered += usize::from(said.iter().skip(1).any(|c| !contains(c, 1.0)));
            // Blocks are the remedy for drift, regardless of the number of checks.
            if noise != Noise::Drift {
                let said = until_content(noise, &mut random, 1.0, with_a_share);
                lies[2] += usize::from(said.iter().any(|c| wrong(c.verdict)));
            }
            let said = until_content(noise, &mut random, 1.1, in_sequence);
            power += usize::from(said.last().is_some_and(|c| c.verdict == Verdict::Slower));
        }
        let rate = |count: usize| count as f64 / f64::from(trials);
        println!(
            "{:<11} {:>4.1} %, {:>4.1} %, {:>4.1} %; {:>5.1} %",
            format!("{noise:?}"),
            100.0 * rate(lies[0]),
            100.0 * rate(lies[1]),
            100.0 * rate(lies[2]),
            100.0 * rate(power)
        );
        let by_shares = match noise {
            Noise::Drift => "-".to_owned(),
            _ => format!("{:.1} %", 100.0 * rate(lies[2])),
        };
        documented(&format!(
            "| {} | {:.1} % | {:.1} % | {by_shares} | {} % |",
            noise.name(),
            100.0 * rate(lies[0]),
            100.0 * rate(lies[1]),
            whole_percent(rate(power))
        ));
        assert!(rate(lies[1]) <= 0.05 && rate(lies[2]) <= 0.05, "{noise:?}: {lies:?}");
        assert!(rate(uncovered) <= 0.05, "{noise:?}: {uncovered}");
        assert!(rate(power) > 0.5, "{noise:?}: {}", rate(power));
        // Otherwise this would prove nothing.
        assert!(noise != Noise::Normal || rate(lies[0]) > 0.05, "{lies:?}");
    });
}
