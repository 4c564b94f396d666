//! A machine that changes: another day, a step, a neighbour.

use retake_matrix::random::Random;
use retake_matrix::stats::{Criteria, Method, Side, Verdict, compare};

use crate::noise::Noise;
use crate::{in_blocks, side, tolerance, wrong};

/// The usual situation of a build server: the baseline was measured yesterday, and today the
/// machine is up to 20 % slower. With the baseline measured again next to the new runs, equal
/// programs are found to differ no more often than stated; with yesterday's numbers they nearly
/// always would be.
#[test]
fn the_baseline_of_another_day() {
    let trials = 400;
    let criteria = Criteria::default();
    for today in [1.0, 1.05, 1.15, 1.2] {
        let mut random = Random::new(61);
        let (mut beside, mut across, mut found) = (0, 0, 0);
        for _ in 0..trials {
            let yesterday = Noise::Normal.blocks(&mut random, 12, &[1.0]);
            let both = Noise::Normal.blocks(&mut random, 12, &[today, today, 1.1 * today]);
            let verdict = |a: Side<'_>, b: Side<'_>| compare(a, b, "wall", &criteria).verdict;
            beside += usize::from(wrong(verdict(in_blocks(&both[0]), in_blocks(&both[1]))));
            across += usize::from(wrong(verdict(side(&yesterday[0]), side(&both[1]))));
            let slower = verdict(in_blocks(&both[0]), in_blocks(&both[2]));
            found += usize::from(slower == Verdict::Slower);
        }
        let rate = |count: usize| count as f64 / trials as f64;
        println!(
            "today {today}: A/A wrong beside {:.1} %, with yesterday's {:.1} %; +10 % found {:.1} %",
            100.0 * rate(beside),
            100.0 * rate(across),
            100.0 * rate(found)
        );
        assert!(rate(beside) <= 0.05 + tolerance(0.05, trials), "{today}: {}", rate(beside));
        assert!(rate(found) > 0.6, "{today}: {}", rate(found));
        if today >= 1.15 {
            assert!(rate(across) > 0.9, "{today}: then this test proves nothing");
        }
    }
}

/// Equal programs measured in turn are found equal, however the machine changes.
#[test]
fn equal_programs_are_found_equal_while_the_machine_changes() {
    for noise in [Noise::Drift, Noise::Step, Noise::Ramp, Noise::Autocorrelated, Noise::Bimodal] {
        for n in [5, 6, 7, 12, 30] {
            let trials = 1000;
            let mut random = Random::new(62 + n as u64);
            let lies = (0..trials)
                .filter(|_| {
                    let values = noise.blocks(&mut random, n, &[1.0, 1.0]);
                    let (a, b) = (in_blocks(&values[0]), in_blocks(&values[1]));
                    let got = compare(a, b, "wall", &Criteria::default());
                    assert_eq!(got.method == Method::Blocks, n >= 7);
                    wrong(got.verdict)
                })
                .count();
            let rate = lies as f64 / f64::from(trials);
            println!("{noise:?}, {n} blocks: A/A wrong {:.1} %", 100.0 * rate);
            assert!(rate <= 0.05 + tolerance(0.05, 1000), "{noise:?} {n}: {rate}");
        }
    }
}
