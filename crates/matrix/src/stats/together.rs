//! Several comparisons combined: B compared with A over all cells that are otherwise equal.
//!
//! In every block each side counts as the geometric mean of its cells, so that a slow cell does not
//! outweigh the others; then the two series of means are compared like two cells.

use std::collections::BTreeMap;

use super::{Side, in_common};

/// One side over several cells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Combined {
    pub values: Vec<f64>,
    /// Only blocks that every cell has.
    pub blocks: Vec<u64>,
    pub failed: usize,
}

impl Combined {
    /// The sides must have blocks.
    pub fn of(cells: &[Side<'_>]) -> Self {
        let logs: Vec<BTreeMap<u64, f64>> = cells
            .iter()
            .map(|cell| {
                let logs = cell.values.iter().map(|value| value.ln());
                cell.blocks.iter().copied().zip(logs).collect()
            })
            .collect();
        let mut combined =
            Self { failed: cells.iter().map(|cell| cell.failed).sum(), ..Self::default() };
        for block in logs.first().into_iter().flat_map(BTreeMap::keys) {
            let all: Option<Vec<f64>> = logs.iter().map(|cell| cell.get(block).copied()).collect();
            if let Some(all) = all {
                combined.blocks.push(*block);
                combined.values.push((all.iter().sum::<f64>() / all.len() as f64).exp());
            }
        }
        combined
    }

    /// The first values of each cell, the next ones, and so on: for cells without common blocks.
    pub fn in_order(cells: &[&[f64]]) -> Self {
        let count = cells.iter().map(|values| values.len()).min().unwrap_or(0);
        let mean = |at: usize| {
            let logs: f64 = cells.iter().map(|values| values[at].ln()).sum();
            (logs / cells.len() as f64).exp()
        };
        let values = (0..count).map(mean).collect();
        Self { values, blocks: (0..count as u64).collect(), failed: 0 }
    }

    /// The values of both in common blocks.
    pub fn in_common(&self, other: &Self) -> (Self, Self) {
        let (mut of_a, mut of_b) = (
            Self { failed: self.failed, ..Self::default() },
            Self { failed: other.failed, ..Self::default() },
        );
        for (block, a, b) in in_common(&self.side(""), &other.side("")) {
            of_a.blocks.push(block);
            of_a.values.push(a);
            of_b.blocks.push(block);
            of_b.values.push(b);
        }
        (of_a, of_b)
    }

    pub fn side<'a>(&'a self, name: &'a str) -> Side<'a> {
        Side { name, values: &self.values, blocks: &self.blocks, failed: self.failed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_counts_alike_and_only_where_all_have_a_value() {
        let side = |values, blocks, failed| Side { name: "", values, blocks, failed };
        let combined = Combined::of(&[
            side(&[1.0, 4.0, 9.0], &[0, 1, 2], 1),
            side(&[100.0, 16.0], &[0, 1], 2),
        ]);
        assert_eq!((combined.blocks, combined.failed), (vec![0, 1], 3));
        let near = combined.values.iter().zip([10.0, 8.0]).all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(near, "{:?}", combined.values);
        assert_eq!(Combined::of(&[]), Combined::default());
        let ordered = Combined::in_order(&[&[1.0, 4.0, 9.0], &[100.0, 16.0]]);
        assert_eq!((ordered.blocks, ordered.values.len()), (vec![0, 1], 2));
        assert!((ordered.values[1] - 8.0).abs() < 1e-9);
        assert_eq!(Combined::in_order(&[]), Combined::default());
    }
}
