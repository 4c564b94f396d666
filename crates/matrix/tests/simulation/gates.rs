//! Gates against a branch whose tip is measured in turn with new code: how often does a build fail
//! without a cause?

use retake_matrix::random::Random;
use retake_matrix::stats::{Criteria, Gate, compare};

use crate::documented::documented;
use crate::noise::{Noise, for_all, normal};
use crate::rates::{percent, range, whole_percent};
use crate::{in_blocks, tolerance};

/// Trips of `slower:5%@main` and `slower:5%!@main` for a true factor, on a machine that is up to
/// about 20 % slower or faster than on other days.
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
    let found = for_all(|noise| {
        [5, 8, 10, 20].map(|blocks| {
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
            (estimate, whole, found)
        })
    });
    let all = || found.iter().flat_map(|(_, sizes)| sizes);
    let (_, estimate) = range(all().map(|(estimate, ..)| *estimate));
    let (_, whole) = range(all().map(|(_, whole, _)| *whole));
    documented(&format!(
        "equal code fails in at most {} %, with `slower:5%!` in at most {} %",
        percent(estimate),
        percent(whole)
    ));
    let power = |noise: Noise| {
        let sizes = found.iter().find(|(known, _)| *known == noise).map(|(_, sizes)| sizes);
        let [_, _, ten, twenty] = sizes.expect("every kind was simulated");
        format!("{} and {} %", whole_percent(ten.2), whole_percent(twenty.2))
    };
    documented(&format!(
        "Code that is 15 % slower fails, with 10 and 20 blocks, in {} (normal 5 %), {} \
         (lognormal 10 %), {} (two modes)",
        power(Noise::Normal),
        power(Noise::Lognormal),
        power(Noise::Bimodal)
    ));
}
