//! Which cells are compared with each other.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{Cell, Matrix};
use crate::config::{CHROME, CODE};
use crate::stats::{Comparison, Gate, GateRule};

/// Every value of a compared axis with the first one, all else equal, as (first, other).
pub fn baselines(matrix: &Matrix) -> Vec<(usize, usize)> {
    let places: HashMap<&Cell, usize> =
        matrix.cells.iter().enumerate().map(|(i, cell)| (cell, i)).collect();
    let mut pairs = Vec::new();
    let mut axes = matrix.compared_axes();
    axes.sort_unstable();
    for axis in axes {
        for (i, cell) in matrix.cells.iter().enumerate() {
            if cell.0[axis] == 0 {
                continue;
            }
            let mut first = cell.clone();
            first.0[axis] = 0;
            pairs.extend(places.get(&first).map(|&first| (first, i)));
        }
    }
    pairs
}

/// Pairs of cells to compare, as (baseline, other), and the gates for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedPairs {
    pub pairs: Vec<(usize, usize)>,
    /// For each gate, the indexes of its pairs.
    gated: Vec<Vec<usize>>,
}

impl ComparedPairs {
    /// Every ref with those that gates name; if a gate names none, or there is no gate, every value
    /// of a compared axis with the first one. Each further comparison would widen the intervals of
    /// all. Cells in `added` are only baselines.
    pub fn of(matrix: &Matrix, gates: &[Gate], added: &HashSet<Cell>) -> Self {
        let configured = |cell: usize| !added.contains(&matrix.cells[cell]);
        // Failures need no comparison of their own.
        let mut judging = gates.iter().filter(|gate| gate.rule != GateRule::Failed).peekable();
        let mut pairs = Vec::new();
        if judging.peek().is_none() || judging.any(|gate| gate.against.is_none()) {
            pairs = baselines(matrix);
            pairs.retain(|&(a, b)| configured(a) && configured(b));
        }
        let usual = pairs.len();
        let mut places: HashMap<(usize, usize), usize> =
            pairs.iter().enumerate().map(|(place, pair)| (*pair, place)).collect();
        let mut place = |pair: (usize, usize)| {
            *places.entry(pair).or_insert_with(|| {
                pairs.push(pair);
                pairs.len() - 1
            })
        };
        let mut judged = |gate: &Gate| match &gate.against {
            Some(reference) => {
                let others = against_ref(matrix, reference).into_iter();
                others.filter(|&(_, other)| configured(other)).map(&mut place).collect()
            }
            None => (0..usual).collect(),
        };
        let mut gated: Vec<Vec<usize>> = gates.iter().map(&mut judged).collect();
        for (judged, _) in
            gated.iter_mut().zip(gates).filter(|(_, gate)| gate.rule == GateRule::Failed)
        {
            *judged = (0..pairs.len()).collect();
        }
        Self { pairs, gated }
    }

    /// The indexes of the comparisons that trip one of their gates.
    pub fn tripped(&self, gates: &[Gate], comparisons: &[Comparison]) -> Vec<usize> {
        let trips = |(gate, places): (&Gate, &Vec<usize>)| -> Vec<usize> {
            places.iter().copied().filter(|&place| gate.trips(&comparisons[place])).collect()
        };
        let tripped: BTreeSet<usize> = gates.iter().zip(&self.gated).flat_map(trips).collect();
        tripped.into_iter().collect()
    }
}

/// Every other ref compared with this one, all else equal, as (this one, other).
fn against_ref(matrix: &Matrix, reference: &str) -> Vec<(usize, usize)> {
    let Some(code) = matrix.axis(CODE) else { return Vec::new() };
    let Some(at) = matrix.axes[code].values.iter().position(|known| known == reference) else {
        return Vec::new();
    };
    let at = u32::try_from(at).unwrap_or(u32::MAX);
    let places: HashMap<&Cell, usize> =
        matrix.cells.iter().enumerate().map(|(i, cell)| (cell, i)).collect();
    let others = matrix.cells.iter().enumerate().filter(|(_, cell)| cell.0[code] != at);
    others
        .filter_map(|(i, cell)| {
            let mut base = cell.clone();
            base.0[code] = at;
            Some((*places.get(&base)?, i))
        })
        .collect()
}

/// One side of `compare A B`: a ref, a version, or `axis=value,…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    pub text: String,
    /// By axis, the index of the value.
    pub values: BTreeMap<usize, u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error("{text} is not a value of any axis; choose from {}", .known.join(", "))]
    Unknown { text: String, known: Vec<String> },
    #[error("{text} is a value of {} ; write one of them as axis={text}", .axes.join(" and of "))]
    Ambiguous { text: String, axes: Vec<String> },
    #[error("there is no axis {0}")]
    Axis(String),
}

impl Selector {
    pub fn parse(text: &str, matrix: &Matrix) -> Result<Self, SelectorError> {
        let mut values = BTreeMap::new();
        let place = |axis: usize, value: &str| {
            let found = matrix.axes[axis].values.iter().position(|known| known == value);
            found.and_then(|at| u32::try_from(at).ok())
        };
        let unknown = |text: &str, axes: &[usize]| SelectorError::Unknown {
            text: text.to_owned(),
            known: axes.iter().flat_map(|&a| matrix.axes[a].values.clone()).collect(),
        };
        let all: Vec<usize> = (0..matrix.axes.len()).collect();
        // First tries a complete ref or version, before it interprets special characters.
        let whole: Vec<(usize, u32)> =
            all.iter().filter_map(|&axis| Some((axis, place(axis, text)?))).collect();
        match &whole[..] {
            [(axis, at)] => {
                values.insert(*axis, *at);
            }
            [] if text.contains('=') => {
                for part in text.split(',') {
                    let (name, value) = part.split_once('=').ok_or_else(|| unknown(part, &all))?;
                    let axis = matrix
                        .axis(name.trim())
                        .ok_or_else(|| SelectorError::Axis(name.trim().to_owned()))?;
                    let at =
                        place(axis, value.trim()).ok_or_else(|| unknown(value.trim(), &[axis]))?;
                    values.insert(axis, at);
                }
            }
            [] => return Err(unknown(text, &all)),
            several => {
                // A name of both a browser or ref and another value means the former.
                let usual = [CODE, CHROME].iter().find_map(|name| {
                    several.iter().find(|(axis, _)| matrix.axes[*axis].name == *name)
                });
                let (axis, at) = usual.ok_or_else(|| SelectorError::Ambiguous {
                    text: text.to_owned(),
                    axes: several.iter().map(|(a, _)| matrix.axes[*a].name.clone()).collect(),
                })?;
                values.insert(*axis, *at);
            }
        }
        Ok(Self { text: text.to_owned(), values })
    }

    fn selects(&self, cell: &Cell) -> bool {
        self.values.iter().all(|(axis, at)| cell.0[*axis] == *at)
    }

    /// The pairs of cells for A and B: equal in every axis that neither side names.
    pub fn pairs(a: &Self, b: &Self, matrix: &Matrix) -> Vec<(usize, usize)> {
        let free: Vec<usize> = (0..matrix.axes.len())
            .filter(|axis| !a.values.contains_key(axis) && !b.values.contains_key(axis))
            .collect();
        let rest = |cell: &Cell| free.iter().map(|&axis| cell.0[axis]).collect::<Vec<_>>();
        let mut of_b: HashMap<Vec<u32>, Vec<usize>> = HashMap::new();
        for (i, cell) in matrix.cells.iter().enumerate().filter(|(_, cell)| b.selects(cell)) {
            of_b.entry(rest(cell)).or_default().push(i);
        }
        let of_a = matrix.cells.iter().enumerate().filter(|(_, cell)| a.selects(cell));
        of_a.flat_map(|(i, cell)| {
            of_b.get(&rest(cell)).into_iter().flatten().map(move |&j| (i, j)).collect::<Vec<_>>()
        })
        .filter(|(i, j)| i != j)
        .collect()
    }
}
