//! `--until-sure`: blocks of runs until every comparison is decided.
//!
//! A block is one run of every cell that an undecided comparison needs, in random order. Blocks
//! count in their own order, not in the order they end: a slow run ends late, and dropping late
//! ones would bias the result.

use std::collections::{BTreeSet, HashMap};

use crate::random::Random;
use crate::stats::{Boundary, Comparison, Criteria, FEWEST, Sequence, SequenceVerdict, Side};

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

/// After this many blocks without a complete pair of values a comparison is given up.
const BARREN: u64 = 2 * FEWEST as u64;

/// A comparison that is estimated to need more blocks than this is given up.
pub const MOST_BLOCKS: u64 = 20_000;
const FIRST_ESTIMATE: u64 = 50;

/// The state of an adaptive measurement.
#[derive(Clone, Debug)]
pub struct Sampler {
    pairs: Vec<Pair>,
    criteria: Criteria,
    boundary: Boundary,
    seed: u64,
    first: u64,
    /// The current block and its remaining runs.
    block: u64,
    queue: Vec<usize>,
    /// Values by block and cell; `None` for a failed run.
    results: HashMap<(u64, usize), Option<f64>>,
    in_flight: usize,
}

impl Sampler {
    /// `pairs` are (A, B) by cell index; `criteria.comparisons` is raised to at least their number.
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

    /// Adds the values of an earlier block for the pair with this index. Add all of them before the
    /// first call of [`Sampler::next_shot`], oldest first.
    pub fn stored(&mut self, pair: usize, a: f64, b: f64) {
        self.pairs[pair].sequence.push(&mut self.boundary, a, b);
    }

    /// Sets the number of the first new block.
    pub fn begin(&mut self, first: u64) {
        (self.first, self.block) = (first, first);
        for pair in &mut self.pairs {
            pair.next = first;
            pair.open = pair.sequence.verdict(&self.criteria) == SequenceVerdict::NotYet;
        }
        self.fill();
    }

    /// The next run; `None` while others must end first, or when everything is decided.
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

    /// At most one block starts before the last one is counted.
    fn caught_up(&self) -> bool {
        self.pairs.iter().filter(|pair| pair.open).all(|pair| pair.next >= self.block)
    }

    fn fill(&mut self) {
        let open = self.pairs.iter().filter(|pair| pair.open);
        let cells: BTreeSet<usize> = open.flat_map(|pair| [pair.a, pair.b]).collect();
        self.queue = cells.into_iter().collect();
        Random::for_part(self.seed, self.block).shuffle(&mut self.queue);
    }

    /// Processes the value of a run; `None` if it failed.
    pub fn done(&mut self, shot: Shot, value: Option<f64>) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.results.insert((shot.block, shot.cell), value);
        self.count();
        // Cells whose comparisons are all decided are skipped for the rest of the block.
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
                let tried = pair.next.saturating_sub(*first);
                let barren = pair.sequence.blocks() == 0 && tried >= BARREN;
                let decided = pair.sequence.verdict(criteria) != SequenceVerdict::NotYet;
                if decided || barren || is_hopeless(&pair.sequence, criteria) {
                    pair.open = false;
                    break;
                }
            }
        }
    }

    /// The numbers of decided comparisons, and of all.
    pub fn progress(&self) -> (usize, usize) {
        (self.pairs.iter().filter(|pair| !pair.open).count(), self.pairs.len())
    }

    /// How many comparisons were given up, because deciding them would take too many iterations.
    pub fn given_up(&self) -> usize {
        let undecided = |pair: &&Pair| {
            !pair.open
                && pair.sequence.blocks() > 0
                && pair.sequence.verdict(&self.criteria) == SequenceVerdict::NotYet
        };
        self.pairs.iter().filter(undecided).count()
    }

    pub fn criteria(&self) -> &Criteria {
        &self.criteria
    }

    /// The state of each comparison, with the caller's names of the cells.
    pub fn comparisons(&self, metric: &str, name: impl Fn(usize) -> String) -> Vec<Comparison> {
        let failed = |cell: usize| {
            self.results.iter().filter(|((_, c), value)| *c == cell && value.is_none()).count()
        };
        self.pairs
            .iter()
            .map(|pair| {
                let (a, b) = (name(pair.a), name(pair.b));
                let (of_a, of_b) = pair.sequence.values();
                Comparison::of_sequence(
                    Side { name: &a, values: &of_a, blocks: &[], failed: failed(pair.a) },
                    Side { name: &b, values: &of_b, blocks: &[], failed: failed(pair.b) },
                    metric,
                    &pair.sequence,
                    &self.criteria,
                )
            })
            .collect()
    }
}

/// Whether a decision would take impractically long for this noise and margin. Checked
/// occasionally, because the estimate changes slowly.
fn is_hopeless(sequence: &Sequence, criteria: &Criteria) -> bool {
    let blocks = sequence.blocks() as u64;
    blocks >= FIRST_ESTIMATE
        && blocks.is_multiple_of(FIRST_ESTIMATE)
        && sequence.blocks_needed(criteria).is_none_or(|needed| needed > MOST_BLOCKS)
}
