//! The numbers of a matrix, cell by cell, as statistics take them.

use std::collections::{BTreeMap, BTreeSet};

use retake_types::Better;
use retake_types::loop_record::matrix::CellKey;

use super::history::History;
use super::resources::{Resources, short_sha};
use crate::config::{CODE, Config};
use crate::plan::{Matrix, Sampler, Shot};
use crate::stats::{Boundary, Combined, Comparison, Criteria, Sequence, Side, compare};
use crate::table::{Measured, Table};

/// One metric of all cells.
pub struct Samples<'a> {
    pub matrix: &'a Matrix,
    pub keys: &'a [CellKey],
    pub metric: String,
    pub better: Better,
    /// As the runs say it, or the configuration.
    pub unit: Option<String>,
    cells: Vec<CellSamples>,
}

#[derive(Clone, Debug, Default)]
struct CellSamples {
    values: Vec<f64>,
    /// The iteration of each value.
    blocks: Vec<u64>,
    failed: Vec<u64>,
    blocked: bool,
    adaptive: bool,
    /// The sizes that were planned one after the other: more than one means that the sample was
    /// made larger when there were results to look at.
    sizes: BTreeSet<u64>,
}

impl CellSamples {
    /// How often its size may have been decided by looking at it.
    fn looks(&self) -> usize {
        if self.adaptive { self.values.len().max(1) } else { self.sizes.len().max(1) }
    }
}

impl<'a> Samples<'a> {
    pub fn of(
        matrix: &'a Matrix,
        keys: &'a [CellKey],
        history: &History,
        config: &Config,
        metric: &str,
    ) -> Self {
        let (mut reported, mut unit) = (None, None);
        let cells = keys
            .iter()
            .map(|key| {
                let mut cell = CellSamples::default();
                for (iteration, row) in history.results(*key) {
                    let Some(row) = row else {
                        cell.failed.push(iteration);
                        continue;
                    };
                    cell.blocked |= row.blocked;
                    cell.adaptive |= row.adaptive;
                    cell.sizes.extend(row.planned);
                    if let Some(found) = row.metrics.get(metric) {
                        reported = found.better.or(reported);
                        if unit.is_none() {
                            unit.clone_from(&found.unit);
                        }
                        cell.values.push(found.value);
                        cell.blocks.push(iteration);
                    }
                }
                cell
            })
            .collect();
        let better = reported.unwrap_or_else(|| config.better(metric));
        let configured = config.metrics.iter().find(|known| known.name == metric);
        let unit = unit.or_else(|| configured?.unit.clone());
        Self { matrix, keys, metric: metric.to_owned(), better, unit, cells }
    }

    /// Whether any run has it.
    pub fn any(&self) -> bool {
        self.cells.iter().any(|cell| !cell.values.is_empty())
    }

    pub fn criteria(&self, margin: f64, comparisons: usize) -> Criteria {
        Criteria { margin, comparisons, better: self.better, ..Criteria::default() }
    }

    /// Where there is no sequence the k-th look gets a share of 1/(k(k+1)), and all of them together
    /// what one would have.
    fn shared(&self, criteria: &Criteria, cells: &[usize]) -> Criteria {
        Criteria { comparisons: criteria.comparisons * self.share(cells), ..*criteria }
    }

    fn share(&self, cells: &[usize]) -> usize {
        let looks = cells.iter().map(|&cell| self.cells[cell].looks()).max().unwrap_or(1);
        if looks > 1 { looks * (looks + 1) } else { 1 }
    }

    /// How sure statements over all cells at once can be.
    pub fn confidence(&self) -> f64 {
        let all: Vec<usize> = (0..self.cells.len()).collect();
        1.0 - (1.0 - Criteria::default().confidence) / self.share(&all) as f64
    }

    fn side<'s>(&'s self, cell: usize, name: &'s str, blocks: bool) -> Side<'s> {
        let CellSamples { values, blocks: numbers, failed, .. } = &self.cells[cell];
        let blocks = if blocks { &numbers[..] } else { &[] };
        Side { name, values, blocks, failed: failed.len() }
    }

    fn interleaved(&self, cells: &[usize]) -> bool {
        cells.iter().all(|&cell| !self.cells[cell].blocked)
    }

    /// A family of comparisons, judged together.
    pub fn compare(
        &self,
        pairs: &[(usize, usize)],
        margin: f64,
        resources: &Resources,
        name: impl Fn(usize) -> String,
    ) -> Vec<Comparison> {
        self.judge(pairs, &self.criteria(margin, pairs.len()), resources, name)
    }

    /// Several pairs and all of them as one. Half of what may be wrong is the whole's, the other
    /// half is shared by the parts.
    pub fn compare_with_whole(
        &self,
        pairs: &[(usize, usize)],
        margin: f64,
        resources: &Resources,
        name: impl Fn(usize) -> String,
        sides: (&str, &str),
    ) -> (Comparison, Vec<Comparison>) {
        let parts = self.judge(pairs, &self.criteria(margin, 2 * pairs.len()), resources, name);
        (self.together(pairs, &self.criteria(margin, 2), sides), parts)
    }

    fn judge(
        &self,
        pairs: &[(usize, usize)],
        criteria: &Criteria,
        resources: &Resources,
        name: impl Fn(usize) -> String,
    ) -> Vec<Comparison> {
        let sequences = if pairs.iter().any(|&(a, b)| self.sequential(&[a, b])) {
            self.sampler(pairs, *criteria, 0).comparisons(&self.metric, &name)
        } else {
            Vec::new()
        };
        pairs
            .iter()
            .enumerate()
            .map(|(at, &(a, b))| {
                let (a_name, b_name) = (name(a), name(b));
                let blocks = self.interleaved(&[a, b]);
                let sides = (self.side(a, &a_name, blocks), self.side(b, &b_name, blocks));
                if self.keys[a] == self.keys[b] {
                    let what = self.what(a, resources);
                    return Comparison::of_one(sides.0, sides.1, &self.metric, &what);
                }
                if self.sequential(&[a, b]) {
                    return sequences[at].clone();
                }
                compare(sides.0, sides.1, &self.metric, &self.shared(criteria, &[a, b]))
            })
            .collect()
    }

    /// Samples whose number depends on them need an interval that allows for it.
    fn sequential(&self, cells: &[usize]) -> bool {
        self.interleaved(cells) && cells.iter().any(|&cell| self.cells[cell].looks() > 1)
    }

    /// What two cells of one key both are.
    fn what(&self, cell: usize, resources: &Resources) -> String {
        let commit = self.matrix.axis(CODE).and_then(|axis| {
            resources.commits.get(self.matrix.value(&self.matrix.cells[cell], axis))
        });
        match commit {
            Some(sha) => format!("commit {}", short_sha(sha)),
            None => "the same".to_owned(),
        }
    }

    /// All pairs as one: in each iteration the geometric mean over them.
    fn together(
        &self,
        pairs: &[(usize, usize)],
        criteria: &Criteria,
        (a, b): (&str, &str),
    ) -> Comparison {
        // A pair without numbers on one side would leave none for the rest.
        let has = |cell: usize| !self.cells[cell].values.is_empty();
        let mut known: Vec<_> = pairs.iter().copied().filter(|&(a, b)| has(a) && has(b)).collect();
        if known.is_empty() {
            known = pairs.to_vec();
        }
        let (first, second): (Vec<usize>, Vec<usize>) = known.into_iter().unzip();
        let combined = |cells: &[usize]| {
            let sides: Vec<Side<'_>> =
                cells.iter().map(|&cell| self.side(cell, "", true)).collect();
            Combined::of(&sides)
        };
        let (of_a, of_b) = (combined(&first), combined(&second));
        let all = [first, second].concat();
        let interleaved = self.interleaved(&all);
        let sides = (of_a.side(a, interleaved), of_b.side(b, interleaved));
        if !self.sequential(&all) {
            return compare(sides.0, sides.1, &self.metric, &self.shared(criteria, &all));
        }
        let mut boundary = Boundary::new(criteria.alpha());
        let mut sequence = Sequence::default();
        let other: BTreeMap<u64, f64> =
            of_b.blocks.iter().copied().zip(of_b.values.iter().copied()).collect();
        for (block, value) in of_a.blocks.iter().zip(&of_a.values) {
            if let Some(other) = other.get(block) {
                sequence.push(&mut boundary, *value, *other);
            }
        }
        Comparison::of_sequence(sides.0, sides.1, &self.metric, &sequence, criteria)
    }

    /// A sampler that knows what is stored.
    pub fn sampler(&self, pairs: &[(usize, usize)], criteria: Criteria, seed: u64) -> Sampler {
        let mut sampler = Sampler::new(pairs, criteria, seed);
        for (index, cell) in self.cells.iter().enumerate() {
            for (&block, &value) in cell.blocks.iter().zip(&cell.values) {
                let value = Some(value).filter(|value| *value > 0.0);
                sampler.stored(Shot { cell: index, block }, value);
            }
            for &block in &cell.failed {
                sampler.stored(Shot { cell: index, block }, None);
            }
        }
        sampler.begin();
        sampler
    }

    pub fn table(&self) -> Table {
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
