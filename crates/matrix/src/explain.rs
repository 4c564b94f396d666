//! Explains differences by the browser, the code, or the two together.
//!
//! Every value of an axis is compared with the first one, all else equal, averaged over the other
//! axes (the effect), and the effect of one axis is compared between the values of another (the
//! interaction). Computed on the logarithmic scale, so that effects are factors. All intervals hold
//! simultaneously.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use crate::random::Random;
use crate::stats::{
    Boundary, Comparison, FEWEST, Medians, Sequence, Verdict, enough_blocks, normal_point,
    signed_rank_test, student_point,
};
use crate::table::Table;
use retake_types::text;

/// How often medians are drawn if blocks cannot be used.
const DRAWS: usize = 2000;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    pub metric: String,
    /// The name of an axis, `interaction`, `none` or `not_sure`.
    pub cause: String,
    pub effects: Vec<Effect>,
    pub sentence: String,
}

/// How much a value changes the metric, as a factor.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Effect {
    /// The name of an axis, or `interaction`.
    pub axis: String,
    pub value: String,
    pub baseline: String,
    pub ratio: f64,
    pub interval: [f64; 2],
    /// Whether the interval excludes 1.
    pub sure: bool,
}

/// Cells with their weights, which add up to 0.
struct Contrast {
    axis: String,
    value: String,
    baseline: String,
    terms: Vec<(usize, f64)>,
}

/// Explains the differences within a table, ignoring those up to `margin`. `comparisons` are those
/// of every value with the first of its axis: with a single axis they are the explanation.
pub fn explain(
    table: &Table,
    comparisons: &[Comparison],
    margin: f64,
    confidence: f64,
    seed: u64,
) -> Explanation {
    let contrasts = contrasts(table);
    let not_sure = |sentence: String| Explanation {
        metric: table.metric.clone(),
        cause: "not_sure".into(),
        effects: Vec::new(),
        sentence,
    };
    if contrasts.is_empty() {
        return not_sure("there are no two cells that differ in one value only".into());
    }
    let used = |c: &Contrast| c.terms.iter().map(|(cell, _)| *cell).collect::<Vec<_>>();
    let poorest = contrasts.iter().flat_map(used).min_by_key(|&i| table.cells[i].values.len());
    if let Some(cell) = poorest.map(|i| &table.cells[i])
        && cell.values.len() < FEWEST
    {
        return not_sure(format!(
            "{} has {}; at least {FEWEST} of every cell are needed",
            table.name(&cell.place),
            text::count(cell.values.len() as u64, "sample")
        ));
    }
    let alpha = 1.0 - confidence;
    let estimates = if table.axes.len() == 1 && comparisons.len() == contrasts.len() {
        let undecided =
            comparisons.iter().find(|one| one.ratio.is_none() || one.interval.is_none());
        if let Some(comparison) = undecided {
            return not_sure(comparison.sentence());
        }
        comparisons.iter().map(of_comparison).collect()
    } else {
        in_blocks(table, &contrasts, alpha).or_else(|| {
            let common = in_common_blocks(table)?;
            as_wholes(&common, &contrasts, alpha, seed)
        })
    };
    let Some(estimates) = estimates else {
        return not_sure(format!(
            "the cells have too few values of {} above 0 that were measured in turn in one session",
            table.metric
        ));
    };
    let effects: Vec<Effect> = contrasts
        .into_iter()
        .zip(estimates)
        .map(|(contrast, (log, [low, high]))| Effect {
            axis: contrast.axis,
            value: contrast.value,
            baseline: contrast.baseline,
            ratio: log.exp(),
            interval: [low.exp(), high.exp()],
            sure: low > 0.0 || high < 0.0,
        })
        .collect();
    judge(table, effects, margin)
}

fn judge(table: &Table, effects: Vec<Effect>, margin: f64) -> Explanation {
    let size = |effect: &Effect| effect.ratio.ln().abs();
    let band = 1.0 + margin;
    let negligible = |e: &Effect| e.interval[0] >= 1.0 / band && e.interval[1] <= band;
    let largest = |interaction: bool| {
        effects
            .iter()
            .filter(|e| e.sure && !negligible(e) && (e.axis == INTERACTION) == interaction)
            .max_by(|x, y| size(x).total_cmp(&size(y)))
    };
    let percent = |x: f64| format!("{:+.1} %", (x - 1.0) * 100.0);
    let tell = |e: &Effect| {
        format!("{} ({} to {})", percent(e.ratio), percent(e.interval[0]), percent(e.interval[1]))
    };
    let metric = &table.metric;
    let (cause, sentence) = match (largest(false), largest(true)) {
        // An effect smaller than the interaction holds only for some values.
        (main, Some(both)) if main.is_none_or(|main| size(both) >= size(main)) => (
            INTERACTION.to_owned(),
            format!(
                "{metric} differs by an interaction: {} together change it by {} more than each alone does",
                both.value,
                tell(both)
            ),
        ),
        (Some(main), both) => {
            let mut sentence = format!(
                "{metric} differs by {}: {} against {} is {}",
                main.axis,
                main.value,
                main.baseline,
                tell(main)
            );
            let other = effects
                .iter()
                .filter(|e| {
                    e.sure && !negligible(e) && e.axis != main.axis && e.axis != INTERACTION
                })
                .max_by(|x, y| size(x).total_cmp(&size(y)));
            if let Some(other) = other {
                sentence +=
                    &format!("; less so by {}: {} is {}", other.axis, other.value, tell(other));
            }
            if let Some(both) = both {
                sentence +=
                    &format!("; how much depends on the rest: {} {}", both.value, tell(both));
            }
            (main.axis.clone(), sentence)
        }
        (None, _) if effects.iter().all(negligible) => (
            "none".to_owned(),
            format!("{metric} is the same everywhere, within {}", percent(band)),
        ),
        (None, _) => {
            let widest = effects.iter().max_by(|x, y| {
                (x.interval[1] / x.interval[0]).total_cmp(&(y.interval[1] / y.interval[0]))
            });
            let open = widest.map(|e| format!("; {} {} may be {}", e.axis, e.value, tell(e)));
            (
                "not_sure".to_owned(),
                format!(
                    "no conclusive difference of {metric} was found, and none is ruled out{}",
                    open.unwrap_or_default()
                ),
            )
        }
    };
    Explanation { metric: metric.clone(), cause, effects, sentence }
}

const INTERACTION: &str = "interaction";

fn contrasts(table: &Table) -> Vec<Contrast> {
    let places: HashMap<&[usize], usize> =
        table.cells.iter().enumerate().map(|(i, cell)| (&cell.place[..], i)).collect();
    let moved = |place: &[usize], changes: &[(usize, usize)]| {
        let mut place = place.to_vec();
        changes.iter().for_each(|&(axis, value)| place[axis] = value);
        places.get(&place[..]).copied()
    };
    let mut contrasts = Vec::new();
    for (x, axis) in table.axes.iter().enumerate() {
        let mut by_value: BTreeMap<usize, Vec<[usize; 2]>> = BTreeMap::new();
        for (i, cell) in table.cells.iter().enumerate().filter(|(_, c)| c.place[x] > 0) {
            if let Some(first) = moved(&cell.place, &[(x, 0)]) {
                by_value.entry(cell.place[x]).or_default().push([i, first]);
            }
        }
        for (value, pairs) in by_value {
            let weight = 1.0 / pairs.len() as f64;
            contrasts.push(Contrast {
                axis: axis.name.clone(),
                value: axis.values[value].clone(),
                baseline: axis.values[0].clone(),
                terms: pairs
                    .iter()
                    .flat_map(|&[i, first]| [(i, weight), (first, -weight)])
                    .collect(),
            });
        }
    }
    for (x, across) in table.axes.iter().enumerate() {
        for (y, down) in table.axes.iter().enumerate().skip(x + 1) {
            let mut by_values: BTreeMap<(usize, usize), Vec<[usize; 4]>> = BTreeMap::new();
            for (both, cell) in table.cells.iter().enumerate() {
                let (i, j) = (cell.place[x], cell.place[y]);
                let at = |changes: &[_]| moved(&cell.place, changes);
                let quad = || Some([both, at(&[(x, 0), (y, 0)])?, at(&[(x, 0)])?, at(&[(y, 0)])?]);
                if let Some(quad) = (i > 0 && j > 0).then(quad).flatten() {
                    by_values.entry((i, j)).or_default().push(quad);
                }
            }
            let name = |i: usize, j: usize| {
                let (first, second) = (&across.values[i], &down.values[j]);
                format!("{}={first} and {}={second}", across.name, down.name)
            };
            for ((i, j), quads) in by_values {
                let weight = 1.0 / quads.len() as f64;
                let signs = [weight, weight, -weight, -weight];
                contrasts.push(Contrast {
                    axis: INTERACTION.to_owned(),
                    value: name(i, j),
                    baseline: name(0, 0),
                    terms: quads.iter().flat_map(|quad| quad.iter().copied().zip(signs)).collect(),
                });
            }
        }
    }
    contrasts
}

type Estimate = (f64, [f64; 2]);

/// A comparison along the only axis. If it is not sure, no difference remains possible.
fn of_comparison(comparison: &Comparison) -> Option<Estimate> {
    let [low, high] = comparison.interval?.map(f64::ln);
    let interval = match comparison.verdict {
        Verdict::NotSure => [low.min(0.0), high.max(0.0)],
        Verdict::Faster | Verdict::Slower | Verdict::Same => [low, high],
    };
    Some((comparison.ratio?.ln(), interval))
}

/// Only values in blocks that all cells have; `None` if those are too few.
fn in_common_blocks(table: &Table) -> Option<Table> {
    let mut cells = table.cells.iter();
    let mut common: HashSet<u64> = cells.next()?.blocks.iter().copied().collect();
    for cell in cells {
        let blocks: HashSet<u64> = cell.blocks.iter().copied().collect();
        common.retain(|block| blocks.contains(block));
    }
    if common.len() < FEWEST {
        return None;
    }
    let mut table = table.clone();
    for cell in &mut table.cells {
        let both = cell.blocks.iter().copied().zip(cell.values.iter().copied());
        let kept = both.filter(|(block, _)| common.contains(block));
        (cell.blocks, cell.values) = kept.unzip();
    }
    Some(table)
}

/// Each block gives one value of every contrast, which cancels changes of the machine.
fn in_blocks(table: &Table, contrasts: &[Contrast], alpha: f64) -> Option<Vec<Estimate>> {
    let alpha = alpha / contrasts.len() as f64;
    let logs: Vec<HashMap<u64, f64>> = table
        .cells
        .iter()
        .map(|cell| cell.blocks.iter().copied().zip(cell.values.iter().map(|x| x.ln())).collect())
        .collect();
    let usable = table.cells.iter().all(|c| c.blocks.len() == c.values.len());
    if !usable || table.cells.iter().flat_map(|c| &c.values).any(|x| *x <= 0.0) {
        return None;
    }
    contrasts
        .iter()
        .map(|contrast| {
            let blocks = table.cells[contrast.terms[0].0].blocks.iter();
            let values: Vec<f64> = blocks
                .filter_map(|block| {
                    contrast
                        .terms
                        .iter()
                        .map(|(cell, weight)| Some(weight * logs[*cell].get(block)?))
                        .sum::<Option<f64>>()
                })
                .collect();
            if table.looked_at {
                return in_sequence(&values, alpha);
            }
            if !enough_blocks(values.len(), alpha) {
                return None;
            }
            let p = signed_rank_test(&values);
            let medians = Medians::of_logs(values)?;
            let [low, high] = medians.interval(alpha);
            // If the rank test disagrees, a difference of 0 remains possible.
            let interval = if p <= alpha { [low, high] } else { [low.min(0.0), high.max(0.0)] };
            Some((medians.log_median(), interval))
        })
        .collect()
}

/// The same if the number of blocks depended on the results.
fn in_sequence(values: &[f64], alpha: f64) -> Option<Estimate> {
    let mut boundary = Boundary::new(alpha);
    let mut sequence = Sequence::default();
    values.iter().for_each(|value| sequence.push_difference(&mut boundary, *value));
    let everything = [f64::NEG_INFINITY, f64::INFINITY];
    let interval = match sequence.interval_on_scale() {
        Some(interval) if !sequence.contradictory() => interval,
        _ => everything,
    };
    Some((sequence.centre()?, interval))
}

/// Medians drawn from each cell's bootstrap distribution; the largest deviation of all contrasts
/// determines the width of all intervals.
fn as_wholes(
    table: &Table,
    contrasts: &[Contrast],
    alpha: f64,
    seed: u64,
) -> Option<Vec<Estimate>> {
    let medians: Vec<Option<Medians>> =
        table.cells.iter().map(|c| Medians::of(&c.values)).collect();
    let needed = |c: &Contrast| c.terms.iter().all(|(cell, _)| medians[*cell].is_some());
    if !contrasts.iter().all(needed) {
        return None;
    }
    let value = |contrast: &Contrast, logs: &[f64]| -> f64 {
        contrast.terms.iter().map(|(cell, weight)| weight * logs[*cell]).sum()
    };
    let of = |m: &Option<Medians>| m.as_ref().map_or(0.0, Medians::log_median);
    let centre: Vec<f64> = medians.iter().map(of).collect();
    let estimates: Vec<f64> = contrasts.iter().map(|c| value(c, &centre)).collect();
    let mut random = Random::new(seed);
    let draws: Vec<Vec<f64>> = (0..DRAWS)
        .map(|_| {
            let logs: Vec<f64> =
                medians.iter().map(|m| m.as_ref().map_or(0.0, |m| m.draw(&mut random))).collect();
            contrasts.iter().zip(&estimates).map(|(c, e)| value(c, &logs) - e).collect()
        })
        .collect();
    let spread: Vec<f64> = (0..contrasts.len())
        .map(|i| (draws.iter().map(|d| d[i] * d[i]).sum::<f64>() / DRAWS as f64).sqrt())
        .collect();
    let mut largest: Vec<f64> = draws
        .iter()
        .map(|draw| {
            let scaled =
                draw.iter().zip(&spread).map(|(d, s)| if *s > 0.0 { d.abs() / s } else { 0.0 });
            scaled.fold(0.0, f64::max)
        })
        .collect();
    largest.sort_unstable_by(f64::total_cmp);
    let quantile = largest[((1.0 - alpha) * DRAWS as f64) as usize];
    let n = medians.iter().flatten().map(Medians::len).min()? as f64;
    // Small samples underestimate their spread; the tail is that of one of many comparisons.
    let tail = 0.5 * alpha / contrasts.len() as f64;
    let small = (n / (n - 1.0)).sqrt() * student_point(tail, n - 1.0) / normal_point(tail);
    let width = quantile * small;
    Some(estimates.iter().zip(&spread).map(|(e, s)| (*e, [e - width * s, e + width * s])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Axis, Measured};

    /// Two browsers and two commits, with a factor for each cell and 12 blocks.
    fn table(factors: [[f64; 2]; 2], blocks: usize) -> Table {
        let mut random = Random::new(5);
        let axis = |name: &str, values: [&str; 2]| Axis {
            name: name.into(),
            values: values.map(String::from).to_vec(),
        };
        let mut cells = Vec::new();
        for (i, row) in factors.iter().enumerate() {
            for (j, factor) in row.iter().enumerate() {
                cells.push(Measured {
                    place: vec![i, j],
                    values: (0..blocks).map(|_| factor * (100.0 + 4.0 * random.unit())).collect(),
                    blocks: (0..blocks as u64).collect(),
                    failed: 0,
                });
            }
        }
        Table {
            metric: "wall".into(),
            axes: vec![axis("chrome", ["114", "150"]), axis("code", ["old", "new"])],
            cells,
            looked_at: false,
        }
    }

    fn cause(factors: [[f64; 2]; 2], blocks: usize) -> String {
        explain(&table(factors, blocks), &[], 0.05, 0.95, 1).cause
    }

    #[test]
    fn finds_the_axis_the_interaction_and_nothing() {
        for blocks in [5, 15] {
            assert_eq!(cause([[1.0, 1.3], [1.0, 1.3]], blocks), "code");
            assert_eq!(cause([[1.0, 1.0], [1.4, 1.4]], blocks), "chrome");
            assert_eq!(cause([[1.0, 1.0], [1.0, 1.5]], blocks), "interaction");
        }
        assert_eq!(cause([[1.0, 1.0], [1.0, 1.0]], 15), "none");
        assert_eq!(cause([[1.0, 1.0], [1.0, 1.0]], 4), "not_sure");
    }

    #[test]
    fn the_sentence_names_value_baseline_and_size() {
        let got = explain(&table([[1.0, 1.3], [1.1, 1.43]], 15), &[], 0.02, 0.95, 1);
        assert_eq!(got.cause, "code");
        for part in ["wall differs by code: new against old is +", "less so by chrome: 150 is +"] {
            assert!(got.sentence.contains(part), "{}", got.sentence);
        }
        assert_eq!(got.effects.len(), 3);
        assert_eq!(got.effects[2].axis, "interaction");
        assert!(!got.effects[2].sure, "{:?}", got.effects[2]);
    }

    #[test]
    fn missing_cells_and_single_values_are_survived() {
        let mut table = table([[1.0, 1.3], [1.0, 1.3]], 15);
        table.cells.pop();
        let got = explain(&table, &[], 0.02, 0.95, 1);
        assert_eq!(got.cause, "code", "{}", got.sentence);
        table.cells.truncate(1);
        let got = explain(&table, &[], 0.02, 0.95, 1);
        assert_eq!((got.cause.as_str(), got.effects.len()), ("not_sure", 0));
    }
}
