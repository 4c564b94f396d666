//! The samples of a matrix, cell by cell, for statistics.

use std::collections::{BTreeSet, HashMap};

use retake_runner::metrics::SHELL_START;
use retake_types::Better;
use retake_types::loop_record::matrix::{CellKey, MatrixLoopPlan};
use serde::Serialize;

use super::recorded_results::{Block, RecordedResults};
use super::resources::{Resources, short_sha};
use crate::config::{CODE, COMMAND, Config};
use crate::export::{CellResults, MetricResults};
use crate::plan::{Matrix, Sampler};
use crate::stats::{
    Combined, Comparison, Criteria, FEWEST, Reason, Side, Summary, compare, median,
    median_interval, summarise,
};
use crate::table::{Measured, Table};

/// One metric of all cells.
pub struct Samples<'a> {
    pub matrix: &'a Matrix,
    pub keys: &'a [CellKey],
    pub metric: String,
    pub better: Better,
    /// As the runs report it, or as configured.
    pub unit: Option<String>,
    cells: Vec<CellSamples>,
    recorded: &'a RecordedResults,
    /// The axes with several values.
    varying: Vec<usize>,
    /// The sessions that measured every cell, if only some did: only their numbers are shown side
    /// by side.
    shared_sessions: Option<BTreeSet<usize>>,
}

/// One cell in a table of results.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CellRow {
    pub name: String,
    /// `None` without a successful run.
    pub summary: Option<Summary>,
    /// Of the median, at 95 %.
    pub interval: Option<[f64; 2]>,
    pub failed: usize,
    /// Compared with its baseline; `None` for the baseline.
    pub change: Option<Comparison>,
    /// The name of the baseline, if the rows of the table have different ones.
    #[serde(skip)]
    pub against: Option<String>,
}

/// The comparison in the row of a cell.
#[derive(Clone, Copy)]
struct ShownPair {
    place: usize,
    axis: usize,
    /// The index of the baseline's value of the axis.
    baseline: u32,
    /// The rank of the axis; the least is the most important.
    order: usize,
}

#[derive(Clone, Debug, Default)]
struct CellSamples {
    values: Vec<f64>,
    /// The block of each value, in ascending order.
    blocks: Vec<Block>,
    failed: BTreeSet<u64>,
    blocked: bool,
    adaptive: bool,
    /// The successively planned sizes: more than one means that the sample was enlarged after
    /// results were visible.
    sizes: BTreeSet<u64>,
}

impl CellSamples {
    /// How often its size may have depended on its results.
    fn looks(&self) -> usize {
        if self.adaptive { self.values.len().max(1) } else { self.sizes.len().max(1) }
    }

    fn sessions(&self) -> BTreeSet<usize> {
        self.blocks.iter().map(|block| block.session).collect()
    }
}

/// The sessions that measured every non-empty cell, if those are not all sessions.
fn shared_sessions(cells: &[CellSamples]) -> Option<BTreeSet<usize>> {
    let mut sessions = cells.iter().map(CellSamples::sessions).filter(|known| !known.is_empty());
    let first = sessions.next()?;
    let (mut shared, mut all) = (first.clone(), first);
    for other in sessions {
        shared.retain(|session| other.contains(session));
        all.extend(other);
    }
    (!shared.is_empty() && shared != all).then_some(shared)
}

/// A unique, ordered number for each block.
fn number(block: Block) -> u64 {
    (block.session as u64) << 40 | block.round
}

/// The values of two cells in common blocks.
struct Common {
    a: Vec<f64>,
    b: Vec<f64>,
    blocks: Vec<Block>,
}

/// Properties of a session's environment that may affect a measurement.
pub(super) const CONDITIONS: [&str; 6] =
    [MatrixLoopPlan::HOST, "cpu", "cpus", "kernel", "governor", "turbo off"];

impl<'a> Samples<'a> {
    pub fn of(
        matrix: &'a Matrix,
        keys: &'a [CellKey],
        recorded: &'a RecordedResults,
        config: &Config,
        metric: &str,
    ) -> Self {
        let (mut reported, mut unit) = (None, None);
        let cells: Vec<CellSamples> = keys
            .iter()
            .map(|key| {
                let (results, failed) = recorded.results(*key);
                let mut cell = CellSamples { failed, ..CellSamples::default() };
                for (block, row) in results {
                    cell.blocked |= row.blocked;
                    cell.adaptive |= row.adaptive;
                    cell.sizes.extend(row.planned);
                    if let Some(found) = row.metrics.get(metric) {
                        reported = found.better.or(reported);
                        if unit.is_none() {
                            unit.clone_from(&found.unit);
                        }
                        cell.values.push(found.value);
                        cell.blocks.push(block);
                    }
                }
                cell
            })
            .collect();
        let better = reported.unwrap_or_else(|| config.better(metric));
        let configured = config.metrics.iter().find(|known| known.name == metric);
        let unit = unit.map(Into::into).or_else(|| configured?.unit.clone());
        let varying = matrix.varying_axes();
        let shared_sessions = shared_sessions(&cells);
        let metric = metric.to_owned();
        Self { matrix, keys, metric, better, unit, cells, recorded, varying, shared_sessions }
    }

    /// Whether numbers of a session are shown next to those of other cells.
    fn is_shown(&self, session: usize) -> bool {
        self.shared_sessions.as_ref().is_none_or(|shared| shared.contains(&session))
    }

    /// The values of a cell that are shown next to those of other cells, with their blocks.
    fn shown(&self, cell: usize) -> (Vec<f64>, Vec<Block>) {
        let CellSamples { values, blocks, .. } = &self.cells[cell];
        let both = values.iter().copied().zip(blocks.iter().copied());
        both.filter(|(_, block)| self.is_shown(block.session)).unzip()
    }

    /// Whether cells were measured in different sessions and none measured all: then numbers side
    /// by side may differ because of the machine.
    pub fn is_mixed(&self) -> bool {
        let mut sessions = self.cells.iter().map(CellSamples::sessions).filter(|s| !s.is_empty());
        let first = sessions.next();
        self.shared_sessions.is_none() && sessions.any(|sessions| Some(sessions) != first)
    }

    /// Whether any run has the metric.
    pub fn any(&self) -> bool {
        self.cells.iter().any(|cell| !cell.values.is_empty())
    }

    pub fn criteria(&self, margin: f64, comparisons: usize) -> Criteria {
        let counts = self.unit.is_none();
        Criteria { margin, comparisons, better: self.better, counts, ..Criteria::default() }
    }

    fn interleaved(&self, cells: &[usize]) -> bool {
        cells.iter().all(|&cell| !self.cells[cell].blocked)
    }

    /// The values of both cells in common blocks.
    fn common(&self, a: usize, b: usize) -> Common {
        let of_a = &self.cells[a];
        let mut common = Common { a: Vec::new(), b: Vec::new(), blocks: Vec::new() };
        for (block, value) in self.cells[b].blocks.iter().zip(&self.cells[b].values) {
            if let Ok(at) = of_a.blocks.binary_search(block) {
                common.a.push(of_a.values[at]);
                common.b.push(*value);
                common.blocks.push(*block);
            }
        }
        common
    }

    /// Why two cells cannot be compared as measured.
    fn obstacle(&self, a: usize, b: usize, together: usize) -> Option<Reason> {
        let (of_a, of_b) = (&self.cells[a], &self.cells[b]);
        if !self.interleaved(&[a, b]) {
            return Some(Reason::NotInterleaved);
        }
        let alone = of_a.values.len().min(of_b.values.len());
        let apart = of_a.sessions() != of_b.sessions() || of_a.sessions().len() > 1;
        (together < FEWEST && together < alone && apart)
            .then_some(Reason::DifferentSessions { together })
    }

    /// Properties that differ between the sessions of these cells.
    fn conditions(
        &self,
        cells: &[usize],
        sessions: &BTreeSet<usize>,
    ) -> Vec<(String, Vec<String>)> {
        let keys: Vec<CellKey> = cells.iter().map(|&cell| self.keys[cell]).collect();
        // Nearly every comparison is of one session on one machine, which has one environment.
        let is_here = |key: &CellKey| self.recorded.of(*key).iter().all(|row| row.node.is_none());
        if sessions.len() < 2 && keys.iter().all(is_here) {
            return Vec::new();
        }
        let environments = self.recorded.environments(&keys, sessions);
        let differing = |name: &&str| {
            let values = environments.iter().filter_map(|known| known.get(*name));
            let values: BTreeSet<&String> = values.collect();
            let values: Vec<String> = values.into_iter().cloned().collect();
            (values.len() > 1).then(|| ((*name).to_owned(), values))
        };
        CONDITIONS.iter().filter_map(differing).collect()
    }

    /// A family of comparisons, judged together. Pairs of two names for one cell are excluded.
    pub fn compare(
        &self,
        pairs: &[(usize, usize)],
        margin: f64,
        resources: &Resources,
    ) -> Vec<Comparison> {
        let real = pairs.iter().filter(|(a, b)| self.keys[*a] != self.keys[*b]).count();
        self.judge(pairs, &self.criteria(margin, real), resources)
    }

    /// Several pairs, and all of them combined. Half of the error probability is for the
    /// combination, the parts share the other half.
    pub fn compare_with_whole(
        &self,
        pairs: &[(usize, usize)],
        margin: f64,
        resources: &Resources,
        sides: (&str, &str),
    ) -> (Comparison, Vec<Comparison>) {
        let parts = self.judge(pairs, &self.criteria(margin, 2 * pairs.len()), resources);
        (self.together(pairs, &self.criteria(margin, 2), sides), parts)
    }

    fn judge(
        &self,
        pairs: &[(usize, usize)],
        criteria: &Criteria,
        resources: &Resources,
    ) -> Vec<Comparison> {
        pairs.iter().map(|&(a, b)| self.judge_pair(a, b, criteria, resources)).collect()
    }

    fn judge_pair(
        &self,
        a: usize,
        b: usize,
        criteria: &Criteria,
        resources: &Resources,
    ) -> Comparison {
        let names = self.matrix.pair_names(a, b, &self.varying);
        let common = self.common(a, b);
        let blocks: Vec<u64> = common.blocks.iter().copied().map(number).collect();
        let failed = |cell: usize| self.cells[cell].failed.len();
        let whole = |cell: usize, name| {
            let (values, failed) = (&self.cells[cell].values[..], failed(cell));
            Side { name, values, blocks: &[], failed }
        };
        let (whole_a, whole_b) = (whole(a, &names.a), whole(b, &names.b));
        let side_a = Side { values: &common.a, blocks: &blocks, ..whole_a };
        let side_b = Side { values: &common.b, blocks: &blocks, ..whole_b };
        let metric = &self.metric;
        let mut sessions: BTreeSet<usize> = common.blocks.iter().map(|b| b.session).collect();
        let mut comparison = if self.keys[a] == self.keys[b] {
            Comparison::of_one(whole_a, whole_b, metric, &self.what(a, resources))
        } else if whole_a.values.is_empty() || whole_b.values.is_empty() {
            Comparison::without_values(whole_a, whole_b, metric)
        } else if let Some(reason) = self.obstacle(a, b, common.blocks.len()) {
            sessions = [a, b].iter().flat_map(|&cell| self.cells[cell].sessions()).collect();
            Comparison::incomparable(whole_a, whole_b, metric, reason)
        } else if self.sequential(&[a, b]) {
            Comparison::in_sequence(side_a, side_b, metric, criteria)
        } else {
            compare(side_a, side_b, metric, criteria)
        };
        comparison.at = names.at;
        comparison.unit.clone_from(&self.unit);
        comparison.conditions = self.conditions(&[a, b], &sessions);
        comparison
    }

    /// Samples whose number depends on them need a wider interval.
    fn sequential(&self, cells: &[usize]) -> bool {
        cells.iter().any(|&cell| self.cells[cell].looks() > 1)
    }

    /// What two cells with the same key have in common.
    fn what(&self, cell: usize, resources: &Resources) -> String {
        let commit = self.matrix.axis(CODE).and_then(|axis| {
            resources.commits.get(self.matrix.value(&self.matrix.cells[cell], axis))
        });
        match commit {
            Some(sha) => format!("commit {}", short_sha(sha)),
            None => "the same".to_owned(),
        }
    }

    /// All pairs combined: in each iteration the geometric mean over them.
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
        let parts: Vec<Common> = known.iter().map(|&(a, b)| self.common(a, b)).collect();
        let (first, second): (Vec<usize>, Vec<usize>) = known.into_iter().unzip();
        let all = [first.clone(), second.clone()].concat();
        let numbers: Vec<Vec<u64>> = self
            .cells
            .iter()
            .map(|cell| cell.blocks.iter().copied().map(number).collect())
            .collect();
        let combined = |cells: &[usize]| {
            let side = |&cell: &usize| {
                let CellSamples { values, failed, .. } = &self.cells[cell];
                Side { name: "", values, blocks: &numbers[cell], failed: failed.len() }
            };
            Combined::of(&cells.iter().map(side).collect::<Vec<_>>())
        };
        let (of_a, of_b) = (combined(&first), combined(&second));
        let mut common = of_a.in_common(&of_b);
        let together = parts.iter().map(|part| part.blocks.len()).min().unwrap_or(0);
        if together > common.0.values.len() {
            // Each pair in sessions of its own: the blocks of every pair count in their order.
            let side = |of: fn(&Common) -> &[f64], failed| {
                let values: Vec<&[f64]> = parts.iter().map(of).collect();
                Combined { failed, ..Combined::in_order(&values) }
            };
            common = (side(|part| &part.a, of_a.failed), side(|part| &part.b, of_b.failed));
        }
        let apart = |cells: &[usize], failed| {
            let values: Vec<&[f64]> =
                cells.iter().map(|&cell| &self.cells[cell].values[..]).collect();
            Combined { failed, ..Combined::in_order(&values) }
        };
        let metric = &self.metric;
        let fewest = all.iter().map(|&cell| self.cells[cell].values.len()).min().unwrap_or(0);
        let mut comparison = if !self.interleaved(&all) {
            let reason = Reason::NotInterleaved;
            Comparison::incomparable(of_a.side(a), of_b.side(b), metric, reason)
        } else if common.0.values.len() < FEWEST.min(fewest) {
            let reason = Reason::DifferentSessions { together: common.0.values.len() };
            let (of_a, of_b) = (apart(&first, of_a.failed), apart(&second, of_b.failed));
            Comparison::incomparable(of_a.side(a), of_b.side(b), metric, reason)
        } else if self.sequential(&all) {
            Comparison::in_sequence(common.0.side(a), common.1.side(b), metric, criteria)
        } else {
            compare(common.0.side(a), common.1.side(b), metric, criteria)
        };
        comparison.unit.clone_from(&self.unit);
        let sessions = all.iter().flat_map(|&cell| self.cells[cell].sessions()).collect();
        comparison.conditions = self.conditions(&all, &sessions);
        comparison
    }

    /// A sampler that knows earlier paired measurements.
    pub fn sampler(&self, pairs: &[(usize, usize)], criteria: Criteria, seed: u64) -> Sampler {
        let mut sampler = Sampler::new(pairs, criteria, seed);
        for (index, &(a, b)) in
            pairs.iter().enumerate().filter(|(_, (a, b))| self.interleaved(&[*a, *b]))
        {
            let common = self.common(a, b);
            common.a.iter().zip(&common.b).for_each(|(a, b)| sampler.stored(index, *a, *b));
        }
        let next = self.keys.iter().map(|key| self.recorded.next_iteration(*key));
        sampler.begin(next.max().unwrap_or(0));
        sampler
    }

    /// The cells, each with its comparison to its baseline.
    pub fn rows(&self, pairs: &[(usize, usize)], comparisons: &[Comparison]) -> Vec<CellRow> {
        let changes = self.changes(pairs);
        let baseline = |change: &ShownPair| (change.axis, change.baseline);
        let mut along: Vec<(usize, u32)> = changes.values().map(baseline).collect();
        along.sort_unstable();
        along.dedup();
        let row = |cell: usize| {
            let (values, _) = self.shown(cell);
            let change = changes.get(&cell).and_then(|change| comparisons.get(change.place));
            CellRow {
                name: self.matrix.varying_name(cell, &self.varying),
                summary: summarise(&values),
                interval: median_interval(&values),
                failed: self.cells[cell].failed.len(),
                against: change.filter(|_| along.len() > 1).map(|change| change.a.clone()),
                change: change.cloned(),
            }
        };
        (0..self.cells.len()).map(row).collect()
    }

    /// The pair that is shown for each cell: along the most important axis, and of several such the
    /// last one, which a gate may have added.
    fn changes(&self, pairs: &[(usize, usize)]) -> HashMap<usize, ShownPair> {
        let compared = self.matrix.compared_axes();
        let rank = |axis: usize| compared.iter().position(|&known| known == axis);
        let mut changes: HashMap<usize, ShownPair> = HashMap::new();
        for (place, &(a, b)) in pairs.iter().enumerate() {
            let [of_a, of_b] = [a, b].map(|cell| &self.matrix.cells[cell].0);
            let axis = (0..of_a.len()).find(|&axis| of_a[axis] != of_b[axis]).unwrap_or(0);
            let order = rank(axis).unwrap_or(compared.len());
            let baseline = of_a.get(axis).copied().unwrap_or_default();
            let pair = ShownPair { place, axis, baseline, order };
            let known = changes.entry(b).or_insert(pair);
            if order <= known.order {
                *known = pair;
            }
        }
        changes
    }

    /// The start time of a shell that was subtracted from these numbers, in milliseconds.
    pub fn shell_start(&self) -> Option<f64> {
        let without_shell = ["wall", "cpu", "user", "sys"].contains(&self.metric.as_str());
        let rows = self.keys.iter().flat_map(|key| self.recorded.of(*key));
        let starts = rows.filter_map(|row| Some(row.metrics.get(SHELL_START)?.value));
        median(&starts.filter(|_| without_shell).collect::<Vec<f64>>())
    }

    /// All measurements, for other programs.
    pub fn results(&self, rows: &[CellRow]) -> MetricResults {
        let cell = |index: usize| {
            let place = &self.matrix.cells[index];
            let parameters = (0..self.matrix.axes.len())
                .filter(|&axis| {
                    self.matrix.commands.is_empty() || self.matrix.axes[axis].name != COMMAND
                })
                .map(|axis| {
                    let value = self.matrix.value(place, axis).to_owned();
                    (self.matrix.axes[axis].name.clone(), value)
                })
                .collect();
            let (results, _) = self.recorded.results(self.keys[index]);
            let shown = results.into_iter().filter(|(block, _)| self.is_shown(block.session));
            let row = rows.get(index);
            CellResults {
                name: row.map_or_else(String::new, |row| row.name.clone()),
                parameters,
                values: self.shown(index).0,
                failed: self.cells[index].failed.len(),
                change: row.and_then(|row| row.change.clone()),
                runs: shown.map(|(_, row)| row.to_results()).collect(),
            }
        };
        let cells = (0..self.cells.len()).map(cell).collect();
        MetricResults {
            metric: self.metric.clone(),
            unit: self.unit.clone(),
            shell_start: self.shell_start(),
            cells,
        }
    }

    pub fn table(&self) -> Table {
        let all: Vec<usize> = (0..self.cells.len()).collect();
        let every = self.interleaved(&all);
        let cell = |index: usize| {
            let (values, blocks) = self.shown(index);
            Measured {
                place: self.matrix.cells[index].0.iter().map(|at| *at as usize).collect(),
                values,
                blocks: blocks.into_iter().filter(|_| every).map(number).collect(),
                failed: self.cells[index].failed.len(),
            }
        };
        Table {
            metric: self.metric.clone(),
            axes: self.matrix.axes.clone(),
            looked_at: self.sequential(&all),
            cells: all.iter().map(|&index| cell(index)).collect(),
        }
    }
}
