//! Gates against a branch whose tip is measured in turn with what is new: how often is a build failed
//! for nothing?

use retake_matrix::random::Random;
use retake_matrix::stats::{Criteria, Gate, compare};

use crate::noise::{Noise, for_all, normal};
use crate::{in_blocks, tolerance};

/// Trips of `slower:5%@main` and `slower:5%!@main` for a true factor, on a machine that is up to some
/// 20 % slower or faster than on any other day.
fn trips(noise: Noise, blocks: usize, factor: f64, trials: usize) -> [f64; 2] {
    let gates =
        ["slower:5%@main", "slower:5%!@main"].map(|text| text.parse::<Gate>().expect("a gate"));
    let mut random = Random::new(4200 + blocks as u64);
    let mut tripped = [0; 2];
    for _ in 0..trials {
        let today = (0.1 * normal(&mut random)).exp();
        let values = noise.blocks(&mut random, blocks, &[today, factor * today]);
        let (tip, new) = (in_blocks(&values[0]), in_blocks(&values[1]));
        let comparison = compare(tip, new, "wall", &Criteria::default());
        for (count, gate) in tripped.iter_mut().zip(&gates) {
            *count += usize::from(gate.trips(&comparison));
        }
    }
    tripped.map(|count| count as f64 / trials as f64)
}

#[test]
fn a_gate_against_a_branch_fails_equal_code_in_five_of_a_hundred_at_most() {
    let trials = 1000;
    for_all(|noise| {
        for blocks in [8, 10, 20] {
            let [estimate, whole] = trips(noise, blocks, 1.0, trials);
            let [found, surely] = trips(noise, blocks, 1.15, trials);
            println!(
                "gate {noise:?}, {blocks} blocks: equal code fails {:.1} % and with ! {:.1} %; \
                 +15 % fails {:.1} % and {:.1} %",
                100.0 * estimate,
                100.0 * whole,
                100.0 * found,
                100.0 * surely
            );
            let most = 0.05 + tolerance(0.05, trials);
            assert!(estimate <= most, "{noise:?} {blocks}: {estimate}");
            assert!(whole <= estimate, "{noise:?} {blocks}: {whole}");
            assert!(surely <= found, "{noise:?} {blocks}: {surely}");
        }
    });
}
