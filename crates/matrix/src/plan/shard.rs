//! A matrix split into parts for several machines: every machine computes the same parts.
//!
//! Pure. The parts depend only on the configuration, the number of parts and a file of durations
//! that every machine gets. Cells that are compared with each other stay in one part, because
//! numbers of two machines cannot be compared.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Cell, Matrix};
use crate::config::Config;

/// More machines than anyone uses for one matrix.
const MOST_SHARDS: usize = 10_000;

/// One part: the K of K/N, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    pub number: usize,
    pub of: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not K/N with K from 1 to N, and N at most 10000")]
pub struct BadShard;

impl FromStr for Shard {
    type Err = BadShard;

    fn from_str(text: &str) -> Result<Self, BadShard> {
        let (number, of) = text.split_once('/').ok_or(BadShard)?;
        let (number, of) = (number.parse(), of.parse());
        match (number, of) {
            (Ok(number), Ok(of)) if (1..=of).contains(&number) && of <= MOST_SHARDS => {
                Ok(Self { number, of })
            }
            _ => Err(BadShard),
        }
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

/// The duration of one iteration of each cell, by the name of the cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Durations {
    pub cells_ms: BTreeMap<String, f64>,
}

impl Durations {
    /// The weight of a cell; an unknown one has the average weight.
    fn weight(&self, name: &str) -> f64 {
        let usable = |value: &f64| value.is_finite() && *value > 0.0;
        let known: Vec<f64> = self.cells_ms.values().copied().filter(usable).collect();
        let mean = match known.is_empty() {
            true => 1.0,
            false => known.iter().sum::<f64>() / known.len() as f64,
        };
        self.cells_ms.get(name).copied().filter(usable).unwrap_or(mean)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no axis {0}")]
pub struct UnknownAxis(pub String);

/// A matrix in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPlan {
    /// The names of all cells, and the part of each, from 1.
    pub cells: Vec<(String, usize)>,
    /// A hash of everything that the parts depend on: parts of one plan fit together.
    pub hash: String,
}

impl Matrix {
    /// Splits the cells into parts. `together` names the axes whose values are compared with each
    /// other; by default refs, browsers and commands.
    pub fn split(
        &self,
        config: &Config,
        of: usize,
        durations: &Durations,
        together: &[String],
    ) -> Result<ShardPlan, UnknownAxis> {
        let mut compared = Vec::new();
        for name in together {
            compared.push(self.axis(name).ok_or_else(|| UnknownAxis(name.clone()))?);
        }
        if together.is_empty() {
            compared = self.measured_axes();
        }
        // Cells that differ only in compared axes form a unit.
        let mut units: BTreeMap<Vec<u32>, (f64, Vec<usize>)> = BTreeMap::new();
        for (index, cell) in self.cells.iter().enumerate() {
            let unit = units.entry(self.unit(cell, &compared)).or_default();
            unit.0 += durations.weight(&self.name(cell));
            unit.1.push(index);
        }
        // Longest first, each to the part with the least work, so that the parts are balanced.
        let mut units: Vec<(f64, Vec<usize>)> = units.into_values().collect();
        units.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let mut loads = vec![0.0f64; of];
        let mut parts = vec![0; self.cells.len()];
        for (weight, cells) in units {
            let mut least = 0;
            for part in 1..of {
                if loads[part] < loads[least] {
                    least = part;
                }
            }
            loads[least] += weight;
            cells.into_iter().for_each(|cell| parts[cell] = least + 1);
        }
        let names = self.cells.iter().map(|cell| self.name(cell));
        let cells: Vec<(String, usize)> = names.zip(parts).collect();
        let commands: Vec<String> =
            self.cells.iter().map(|cell| self.command_text(cell, config)).collect();
        let described = serde_json::json!([
            1,
            of,
            cells,
            commands,
            config.setup,
            config.iterations,
            config.warmup
        ]);
        let hash = blake3::hash(described.to_string().as_bytes()).to_hex().to_string();
        Ok(ShardPlan { cells, hash })
    }

    /// What a cell has in common with the cells it is compared with.
    fn unit(&self, cell: &Cell, compared: &[usize]) -> Vec<u32> {
        let place = |axis: usize| if compared.contains(&axis) { 0 } else { cell.0[axis] };
        (0..self.axes.len()).map(place).collect()
    }

    /// Keeps the cells of one part.
    pub fn keep_shard(&mut self, plan: &ShardPlan, number: usize) {
        let mut parts = plan.cells.iter().map(|(_, part)| *part);
        self.cells.retain(|_| parts.next() == Some(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_written_as_k_of_n() {
        assert_eq!("2/3".parse(), Ok(Shard { number: 2, of: 3 }));
        for wrong in ["", "1", "0/3", "4/3", "1/0", "-1/2", "1/10001", "1/2/3", "a/b"] {
            assert_eq!(wrong.parse::<Shard>(), Err(BadShard), "{wrong}");
        }
    }

    #[test]
    fn a_cell_of_unknown_duration_gets_the_average_weight() {
        let known = [("a".to_owned(), 100.0), ("b".to_owned(), 300.0), ("c".to_owned(), f64::NAN)];
        let durations = Durations { cells_ms: known.into() };
        assert_eq!(durations.weight("a"), 100.0);
        assert_eq!((durations.weight("c"), durations.weight("new")), (200.0, 200.0));
        assert_eq!(Durations::default().weight("x"), 1.0);
    }
}
