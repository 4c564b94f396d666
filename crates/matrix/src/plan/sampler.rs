//! `--until-sure`: blocks of runs until every comparison is decided.
//!
//! A block is one run of every cell that some open comparison needs, in random order. Blocks count
//! in their own order and not in that of their ends: a slow run ends late, and what ends late must
//! not be what is left out.

use std::collections::{BTreeSet, HashMap};

use crate::random::Random;
use crate::stats::{Boundary, Comparison, Criteria, FEWEST, Sequence, Side, Verdict};

/// One run of one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shot {
    pub cell: usize,
    /// The number of the block, which is the iteration of the run.
    pub block: u64,
}

#[derive(Clone, Debug)]
struct Pair {
    a: usize,
    b: usize,
    sequence: Sequence,
    /// Blocks before this one are counted.
    next: u64,
    open: bool,
}

/// After this many blocks without a single pair of values a comparison is given up.
const BARREN: u64 = 2 * FEWEST as u64;

/// The state of an adaptive measurement.
#[derive(Clone, Debug)]
pub struct Sampler {
    pairs: Vec<Pair>,
    criteria: Criteria,
    boundary: Boundary,
    seed: u64,
    first: u64,
    /// The block being handed out, and what is left of it.
    block: u64,
    queue: Vec<usize>,
    /// Values by block and cell; `None` for a run that failed.
    results: HashMap<(u64, usize), Option<f64>>,
    in_flight: usize,
}

impl Sampler {
    /// `pairs` are (A, B) by the places of their cells; `criteria.comparisons` counts
    /// them at least.
    pub fn new(pairs: &[(usize, usize)], mut criteria: Criteria, seed: u64) -> Self {
        criteria.comparisons = criteria.comparisons.max(pairs.len()).max(1);
        let pair = |&(a, b): &(usize, usize)| {
            let sequence = Sequence::default();
            Pair { a, b, sequence, next: 0, open: true }
        };
        Self {
            pairs: pairs.iter().map(pair).collect(),
            boundary: Boundary::new(criteria.alpha()),
            criteria,
            seed,
            first: 0,
            block: 0,
            queue: Vec::new(),
            results: HashMap::new(),
            in_flight: 0,
        }
    }

    /// Stored runs come first; new blocks begin after the last of them. Give all of them before
    /// the first call of [`Sampler::next_shot`].
    pub fn stored(&mut self, shot: Shot, value: Option<f64>) {
        self.results.insert((shot.block, shot.cell), value);
        self.first = self.first.max(shot.block + 1);
    }

    /// Counts what was stored. A block that one side never ran says nothing and is passed over.
    pub fn begin(&mut self) {
        for block in 0..self.first {
            for pair in &self.pairs {
                for cell in [pair.a, pair.b] {
                    self.results.entry((block, cell)).or_insert(None);
                }
            }
        }
        self.block = self.first;
        self.count();
        // Stored results say nothing about whether a cell works now.
        for pair in self.pairs.iter_mut().filter(|pair| pair.sequence.blocks() == 0) {
            pair.open = true;
        }
        self.fill();
    }

    /// The next run; `None` while others must end first, or when all is decided.
    pub fn next_shot(&mut self) -> Option<Shot> {
        if self.queue.is_empty() && self.caught_up() {
            self.block += 1;
            self.fill();
        }
        let cell = self.queue.pop()?;
        self.in_flight += 1;
        Some(Shot { cell, block: self.block })
    }

    pub fn finished(&self) -> bool {
        self.in_flight == 0 && self.pairs.iter().all(|pair| !pair.open)
    }

    /// At most one block is begun before the last one is counted.
    fn caught_up(&self) -> bool {
        self.pairs.iter().filter(|pair| pair.open).all(|pair| pair.next >= self.block)
    }

    fn fill(&mut self) {
        let open = self.pairs.iter().filter(|pair| pair.open);
        let cells: BTreeSet<usize> = open.flat_map(|pair| [pair.a, pair.b]).collect();
        self.queue = cells.into_iter().collect();
        Random::for_part(self.seed, self.block).shuffle(&mut self.queue);
    }

    /// Takes the value of a run; `None` if it failed.
    pub fn done(&mut self, shot: Shot, value: Option<f64>) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.results.insert((shot.block, shot.cell), value);
        self.count();
        // Cells whose comparisons are all decided are not run for the rest of the block.
        let needed: BTreeSet<usize> =
            self.pairs.iter().filter(|p| p.open).flat_map(|p| [p.a, p.b]).collect();
        self.queue.retain(|cell| needed.contains(cell));
    }

    fn count(&mut self) {
        let Self { pairs, results, boundary, criteria, first, .. } = self;
        for pair in pairs.iter_mut().filter(|pair| pair.open) {
            while let (Some(a), Some(b)) =
                (results.get(&(pair.next, pair.a)), results.get(&(pair.next, pair.b)))
            {
                pair.next += 1;
                if let (Some(a), Some(b)) = (a, b) {
                    pair.sequence.push(boundary, *a, *b);
                }
                let none = Side { name: "", values: &[], blocks: &[], failed: 0 };
                let sure = Comparison::of_sequence(none, none, "", &pair.sequence, criteria);
                let tried = pair.next.saturating_sub(*first);
                let barren = pair.sequence.blocks() == 0 && tried >= BARREN;
                if sure.verdict != Verdict::NotSure || pair.sequence.contradictory() || barren {
                    pair.open = false;
                    break;
                }
            }
        }
    }

    /// How many comparisons are decided, and of how many.
    pub fn progress(&self) -> (usize, usize) {
        (self.pairs.iter().filter(|pair| !pair.open).count(), self.pairs.len())
    }

    pub fn criteria(&self) -> &Criteria {
        &self.criteria
    }

    /// The state of each comparison, with what the caller knows of the cells.
    pub fn comparisons(&self, metric: &str, name: impl Fn(usize) -> String) -> Vec<Comparison> {
        let side = |cell: usize| -> (String, Vec<f64>, usize) {
            let mut runs: Vec<_> = self.results.iter().filter(|((_, c), _)| *c == cell).collect();
            runs.sort_unstable_by_key(|((block, _), _)| *block);
            let values = runs.iter().filter_map(|(_, value)| **value).collect();
            let failed = runs.iter().filter(|((b, _), v)| v.is_none() && *b >= self.first).count();
            (name(cell), values, failed)
        };
        self.pairs
            .iter()
            .map(|pair| {
                let (a, of_a, a_failed) = side(pair.a);
                let (b, of_b, b_failed) = side(pair.b);
                Comparison::of_sequence(
                    Side { name: &a, values: &of_a, blocks: &[], failed: a_failed },
                    Side { name: &b, values: &of_b, blocks: &[], failed: b_failed },
                    metric,
                    &pair.sequence,
                    &self.criteria,
                )
            })
            .collect()
    }
}
