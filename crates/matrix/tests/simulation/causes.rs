//! Explanations of tables with a known cause.

use retake_matrix::explain::explain;
use retake_matrix::random::Random;
use retake_matrix::table::{Axis, Measured, Table};

use crate::documented::documented;
use crate::noise::{Noise, for_all};

fn table(noise: Noise, random: &mut Random, n: usize, factors: &[Vec<f64>]) -> Table {
    let flat: Vec<f64> = factors.iter().flatten().copied().collect();
    of(&noise.blocks(random, n, &flat), factors[0].len())
}

/// A table with rows of this width.
pub(crate) fn of(values: &[Vec<f64>], width: usize) -> Table {
    let axis = |name: &str, n: usize| Axis {
        name: name.into(),
        values: (0..n).map(|i| format!("{name}{i}")).collect(),
    };
    let cell = |(i, values): (usize, &Vec<f64>)| Measured {
        place: vec![i / width, i % width],
        values: values.clone(),
        blocks: (0..values.len() as u64).collect(),
        failed: 0,
    };
    Table {
        metric: "wall".into(),
        axes: vec![axis("chrome", values.len() / width), axis("code", width)],
        cells: values.iter().enumerate().map(cell).collect(),
        looked_at: false,
    }
}

#[test]
fn no_cause_is_named_if_nothing_differs() {
    let found = for_all(|noise| {
        [(2, 5), (2, 12), (3, 20)].map(|(side, n)| {
            let trials = 100;
            let mut random = Random::new(51);
            let blamed = (0..trials)
                .filter(|seed| {
                    let table = table(noise, &mut random, n, &vec![vec![1.0; side]; side]);
                    let cause = explain(&table, &[], 0.02, 0.95, *seed).cause;
                    cause != "none" && cause != "not_sure"
                })
                .count();
            println!("explain A/A, {noise:?}, {side} x {side}, n {n}: {blamed} of {trials} blamed");
            assert!(blamed as u64 * 20 <= trials, "{noise:?} {side} {n}: {blamed} of {trials}");
            blamed
        })
    });
    let most = found.into_iter().flat_map(|(_, blamed)| blamed).max().unwrap_or(0);
    documented(&format!("a cause was named in at most {most} of 100 experiments"));
}

#[test]
fn the_guilty_one_is_found() {
    let cases = [
        ("code", vec![vec![1.0, 1.1], vec![1.0, 1.1]]),
        ("chrome", vec![vec![1.0, 1.0], vec![1.1, 1.1]]),
        ("interaction", vec![vec![1.0, 1.0], vec![1.0, 1.1]]),
    ];
    let mut least = (100, 0);
    for (guilty, factors) in cases {
        let mut random = Random::new(52);
        let causes: Vec<String> = (0..100)
            .map(|seed| {
                explain(&table(Noise::Normal, &mut random, 40, &factors), &[], 0.02, 0.95, seed)
                    .cause
            })
            .collect();
        let found = causes.iter().filter(|cause| *cause == guilty).count();
        let unsure = causes.iter().filter(|cause| *cause == "not_sure").count();
        println!("10 %, {guilty}, n 40: found {found}, not sure {unsure} of 100");
        assert!(found >= 50 && found + unsure >= 85, "{guilty}: {causes:?}");
        least = (least.0.min(found), least.1.max(found));
    }
    documented(&format!("was attributed to the right cause in {} to {} of 100", least.0, least.1));
}
