//! The numbers of a matrix, cell by cell, as statistics take them.

use std::collections::BTreeMap;

use retake_matrix::metrics::Better;
use retake_matrix::plan::{CellKey, Matrix, Sampler, Shot};
use retake_matrix::stats::{Comparison, Criteria, Side, compare};
use retake_matrix::table::{Measured, Table};

use super::history::History;
use super::supply::{Supply, short};
use retake_matrix::config::{CODE, Config};

/// One metric of all cells.
pub(crate) struct Samples<'a> {
    pub(crate) matrix: &'a Matrix,
    pub(crate) keys: &'a [CellKey],
    pub(crate) metric: String,
    pub(crate) better: Better,
    cells: Vec<Cell>,
}

#[derive(Clone, Debug, Default)]
struct Cell {
    values: Vec<f64>,
    /// The iteration of each value.
    blocks: Vec<u64>,
    failed: Vec<u64>,
    blocked: bool,
    adaptive: bool,
}

impl<'a> Samples<'a> {
    pub(crate) fn of(
        matrix: &'a Matrix,
        keys: &'a [CellKey],
        history: &History,
        config: &Config,
        metric: &str,
    ) -> Self {
        let mut said = None;
        let cells = keys
            .iter()
            .map(|key| {
                let mut cell = Cell::default();
                for (iteration, row) in history.results(*key) {
                    let Some(row) = row else {
                        cell.failed.push(iteration);
                        continue;
                    };
                    cell.blocked |= row.blocked;
                    cell.adaptive |= row.adaptive;
                    if let Some(found) = row.metrics.get(metric) {
                        said = found.better.or(said);
                        cell.values.push(found.value);
                        cell.blocks.push(iteration);
                    }
                }
                cell
            })
            .collect();
        let better = said.unwrap_or_else(|| config.better(metric));
        Self { matrix, keys, metric: metric.to_owned(), better, cells }
    }

    /// Whether any run has it.
    pub(crate) fn any(&self) -> bool {
        self.cells.iter().any(|cell| !cell.values.is_empty())
    }

    pub(crate) fn criteria(&self, margin: f64, comparisons: usize) -> Criteria {
        Criteria { margin, comparisons, better: self.better, ..Criteria::default() }
    }

    fn side<'s>(&'s self, cell: usize, name: &'s str, blocks: bool) -> Side<'s> {
        let Cell { values, blocks: numbers, failed, .. } = &self.cells[cell];
        let blocks = if blocks { &numbers[..] } else { &[] };
        Side { name, values, blocks, failed: failed.len() }
    }

    fn interleaved(&self, cells: &[usize]) -> bool {
        cells.iter().all(|&cell| !self.cells[cell].blocked)
    }

    /// A family of comparisons, judged together.
    pub(crate) fn compare(
        &self,
        pairs: &[(usize, usize)],
        margin: f64,
        supply: &Supply,
        name: impl Fn(usize) -> String,
    ) -> Vec<Comparison> {
        let criteria = self.criteria(margin, pairs.len());
        // Samples whose number depends on them need an interval that allows for it.
        let adaptive = |&(a, b): &(usize, usize)| self.cells[a].adaptive || self.cells[b].adaptive;
        let sequences = if pairs.iter().any(adaptive) {
            self.sampler(pairs, margin, 0).comparisons(&self.metric, &name)
        } else {
            Vec::new()
        };
        pairs
            .iter()
            .enumerate()
            .map(|(place, pair)| {
                let &(a, b) = pair;
                let (a_name, b_name) = (name(a), name(b));
                let blocks = self.interleaved(&[a, b]);
                let sides = (self.side(a, &a_name, blocks), self.side(b, &b_name, blocks));
                if self.keys[a] == self.keys[b] {
                    let what = self.what(a, supply);
                    return Comparison::of_one(sides.0, sides.1, &self.metric, &what);
                }
                if adaptive(pair) {
                    return sequences[place].clone();
                }
                compare(sides.0, sides.1, &self.metric, &criteria)
            })
            .collect()
    }

    /// What two cells of one key both are.
    fn what(&self, cell: usize, supply: &Supply) -> String {
        let commit = self
            .matrix
            .axis(CODE)
            .and_then(|axis| supply.commits.get(self.matrix.value(&self.matrix.cells[cell], axis)));
        match commit {
            Some(sha) => format!("commit {}", short(sha)),
            None => "the same".to_owned(),
        }
    }

    /// All pairs as one: in each iteration the geometric mean over them.
    pub(crate) fn together(
        &self,
        pairs: &[(usize, usize)],
        margin: f64,
        (a, b): (&str, &str),
    ) -> Comparison {
        let mean = |cells: &[usize]| -> (BTreeMap<u64, f64>, usize) {
            let logs: Vec<BTreeMap<u64, f64>> = cells
                .iter()
                .map(|&cell| {
                    let Cell { values, blocks, .. } = &self.cells[cell];
                    blocks.iter().copied().zip(values.iter().map(|value| value.ln())).collect()
                })
                .collect();
            let mut means = BTreeMap::new();
            for block in logs.first().into_iter().flat_map(BTreeMap::keys) {
                let all: Option<Vec<f64>> =
                    logs.iter().map(|cell| cell.get(block).copied()).collect();
                if let Some(all) = all {
                    means.insert(*block, (all.iter().sum::<f64>() / all.len() as f64).exp());
                }
            }
            (means, cells.iter().map(|&cell| self.cells[cell].failed.len()).sum())
        };
        // A pair without numbers on one side would leave none for the rest.
        let has = |cell: usize| !self.cells[cell].values.is_empty();
        let mut known: Vec<_> = pairs.iter().copied().filter(|&(a, b)| has(a) && has(b)).collect();
        if known.is_empty() {
            known = pairs.to_vec();
        }
        let (first, second): (Vec<usize>, Vec<usize>) = known.into_iter().unzip();
        let ((of_a, a_failed), (of_b, b_failed)) = (mean(&first), mean(&second));
        let blocks = self.interleaved(&first) && self.interleaved(&second);
        let lists = [&of_a, &of_b].map(|means| {
            let numbers: Vec<u64> = means.keys().copied().filter(|_| blocks).collect();
            (means.values().copied().collect::<Vec<f64>>(), numbers)
        });
        let side = |at: usize, name, failed| Side {
            name,
            values: &lists[at].0,
            blocks: &lists[at].1,
            failed,
        };
        let criteria = self.criteria(margin, 1);
        let (one, other) = (side(0, a, a_failed), side(1, b, b_failed));
        if first.iter().chain(&second).any(|&cell| self.cells[cell].adaptive) {
            let mut sampler = Sampler::new(&[(0, 1)], criteria, 0);
            for (cell, means) in [&of_a, &of_b].into_iter().enumerate() {
                for (&block, &value) in means {
                    sampler.stored(Shot { cell, block }, Some(value));
                }
            }
            sampler.begin();
            let name = |cell: usize| [a, b][cell].to_owned();
            if let Some(comparison) = sampler.comparisons(&self.metric, name).pop() {
                return comparison;
            }
        }
        compare(one, other, &self.metric, &criteria)
    }

    /// A sampler that knows what is stored.
    pub(crate) fn sampler(&self, pairs: &[(usize, usize)], margin: f64, seed: u64) -> Sampler {
        let mut sampler = Sampler::new(pairs, self.criteria(margin, pairs.len()), seed);
        for (place, cell) in self.cells.iter().enumerate() {
            for (&block, &value) in cell.blocks.iter().zip(&cell.values) {
                let value = Some(value).filter(|value| *value > 0.0);
                sampler.stored(Shot { cell: place, block }, value);
            }
            for &block in &cell.failed {
                sampler.stored(Shot { cell: place, block }, None);
            }
        }
        sampler.begin();
        sampler
    }

    pub(crate) fn table(&self) -> Table {
        let cells = self.matrix.cells.iter().zip(&self.cells);
        let every = self.interleaved(&(0..self.cells.len()).collect::<Vec<_>>());
        Table {
            metric: self.metric.clone(),
            axes: self.matrix.axes.clone(),
            cells: cells
                .map(|(cell, samples)| Measured {
                    place: cell.0.iter().map(|at| *at as usize).collect(),
                    values: samples.values.clone(),
                    blocks: if every { samples.blocks.clone() } else { Vec::new() },
                    failed: samples.failed.len(),
                })
                .collect(),
        }
    }
}
