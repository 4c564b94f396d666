//! Several cells combined: B compared with A over cells that are otherwise equal.

use retake_matrix::random::Random;
use retake_matrix::stats::{Combined, Comparison, Criteria, Method, Side, Verdict, compare};

use crate::documented::documented;
use crate::noise::{Noise, for_all};
use crate::rates::{percent, range, whole_percent};
use crate::{contains, in_blocks, tolerance, wrong};

/// Half of the cells belong to A, the other half to B.
fn whole(values: &[Vec<f64>], interleaved: bool) -> Comparison {
    let sides: Vec<Side<'_>> = values.iter().map(|values| in_blocks(values)).collect();
    let (a, b) = sides.split_at(values.len() / 2);
    let (a, b) = (Combined::of(a), Combined::of(b));
    // As `compare A B` does: the parts have the other half of the error probability.
    let criteria = Criteria { comparisons: 2, ..Criteria::default() };
    let (mut a, mut b) = (a.side("a"), b.side("b"));
    if !interleaved {
        (a.blocks, b.blocks) = (&[], &[]);
    }
    compare(a, b, "wall", &criteria)
}

#[test]
fn a_geometric_mean_of_several_cells_is_judged_as_surely_as_one() {
    println!("several cells as one: noise, cells, n; A/A wrong; coverage A/A, +10 %; power +10 %");
    let found = for_all(|noise| {
        let sizes = [(2, 8, true), (2, 20, true), (4, 20, true), (4, 5, false), (4, 20, false)];
        sizes.map(|(cells, n, interleaved)| {
            let trials = 400;
            let mut random = Random::new(41 + n as u64);
            let (mut lies, mut covered, mut power) = (0, [0; 2], 0);
            let mut stated: f64 = 1.0;
            for _ in 0..trials {
                // Cells have very different sizes, with the same relative noise.
                let base: Vec<f64> = (0..cells).map(|cell| 10f64.powi(cell)).collect();
                // Half of the cells lose 21 % and the others nothing: a mean of 10 %.
                let slow = base
                    .iter()
                    .enumerate()
                    .map(|(at, base)| base * if at % 2 == 0 { 1.21 } else { 1.0 });
                let same = [base.clone(), base.clone()].concat();
                let shifted = [base.clone(), slow.collect()].concat();
                let same = whole(&noise.blocks(&mut random, n, &same), interleaved);
                let shifted = whole(&noise.blocks(&mut random, n, &shifted), interleaved);
                stated = stated.min(same.confidence);
                lies += usize::from(wrong(same.verdict));
                covered[0] += usize::from(contains(&same, 1.0));
                covered[1] += usize::from(contains(&shifted, 1.1));
                power += usize::from(shifted.verdict == Verdict::Slower);
                assert!(interleaved == (same.method == Method::Blocks), "{:?}", same.method);
            }
            let rate = |count: usize| count as f64 / f64::from(trials);
            println!(
                "{:<11} {cells} {n:>3} {}   {:>4.1} %   {:>5.1} %, {:>5.1} %   {:>5.1} %",
                format!("{noise:?}"),
                if interleaved { "blocks" } else { "wholes" },
                100.0 * rate(lies),
                100.0 * rate(covered[0]),
                100.0 * rate(covered[1]),
                100.0 * rate(power)
            );
            let what = format!("{noise:?} {cells} x {n}");
            assert!(rate(lies) <= 0.025, "{what}: {}", rate(lies));
            // Rounding changes the true ratio of each cell differently.
            let known = if noise == Noise::Rounded { 1 } else { 2 };
            for covered in &covered[..known] {
                let least = 1.0 - (1.0 - stated).max(0.025);
                let bound = least - tolerance(1.0 - least, trials as usize);
                assert!(rate(*covered) >= bound, "{what}: {} of {stated}", rate(*covered));
            }
            let least = covered[..known].iter().copied().map(rate).fold(1.0, f64::min);
            (rate(lies), least, rate(power))
        })
    });
    let all = || found.iter().flat_map(|(_, sizes)| sizes);
    let (_, lies) = range(all().map(|(lies, ..)| *lies));
    let (covered, _) = range(all().map(|(_, covered, _)| *covered));
    let power = |size: usize| {
        let (least, most) = range(found.iter().map(|(_, sizes)| sizes[size].2));
        format!("{} to {} %", whole_percent(least), whole_percent(most))
    };
    documented(&format!(
        "A/A wrong in at most {} % (2.5 % allowed), coverage at least {} %, power with two cells and \
         20 blocks {}, with four cells {}.",
        percent(lies),
        percent(covered),
        power(1),
        power(2)
    ));
}
