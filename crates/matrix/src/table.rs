//! The measurements, cell by cell: the numbers behind `explain` and the report.

use serde::Serialize;

/// A named list of values that a matrix varies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Axis {
    pub name: String,
    pub values: Vec<String>,
}

/// The samples of one metric in one cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// One index in each axis, in the order of the axes.
    pub place: Vec<usize>,
    /// Of successful runs.
    pub values: Vec<f64>,
    /// The block of each value; empty if cells were not interleaved.
    pub blocks: Vec<u64>,
    pub failed: usize,
}

/// One metric over the whole matrix. Cells may be missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    pub metric: String,
    pub axes: Vec<Axis>,
    pub cells: Vec<Measured>,
    /// Whether the number of samples depended on their values.
    pub looked_at: bool,
}

impl Table {
    /// `chrome=120.0.6099.109 code=main`, or only the value if there is one axis.
    pub fn name(&self, place: &[usize]) -> String {
        let value = |axis: &Axis, at: usize| axis.values.get(at).cloned().unwrap_or_default();
        match &self.axes[..] {
            [only] => place.first().map(|&at| value(only, at)).unwrap_or_default(),
            axes => axes
                .iter()
                .zip(place)
                .map(|(axis, &at)| format!("{}={}", axis.name, value(axis, at)))
                .collect::<Vec<_>>()
                .join(" "),
        }
    }
}
