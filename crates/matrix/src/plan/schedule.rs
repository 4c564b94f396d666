//! The remaining runs, handed out step by step to any number of workers.

use std::collections::{HashMap, HashSet};

use retake_runner::loop_driver::Next;
use retake_types::loop_record::matrix::CellKey;
use retake_types::{LoopId, RunId};

use crate::config::Order;
use crate::random::Random;

/// An earlier run in the record. Excludes warmups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastRun {
    pub key: CellKey,
    pub iteration: u64,
    pub id: RunId,
    /// The loop that ran it: runs in turn in one loop can be compared.
    pub session: LoopId,
    pub ok: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScheduleMode {
    /// Iterations without a successful run.
    #[default]
    Pending,
    /// This many additional iterations of every cell.
    Append(u64),
    /// Everything again, replacing each old run once its new one is recorded.
    Replace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleOptions {
    pub iterations: u64,
    pub warmup: u64,
    pub mode: ScheduleMode,
    pub order: Order,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CellStepKind {
    Warmup,
    Iteration,
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellStep {
    /// The index of the cell in the plan's list.
    pub cell: usize,
    pub kind: CellStepKind,
    /// 0 in a warmup.
    pub iteration: u64,
    /// The round of all cells that it belongs to.
    pub block: u64,
    /// The k of k/N, counted from 1. 0 in a warmup.
    pub number: usize,
}

#[derive(Clone, Debug)]
struct CellState {
    warmups_left: u64,
    /// Iterations neither done nor failed.
    open: usize,
    /// Open iterations not handed out yet.
    waiting: usize,
    ok_this_time: usize,
    skipped: bool,
}

/// The plan of one run of a matrix.
#[derive(Clone, Debug)]
pub struct CellSchedule {
    cells: Vec<CellState>,
    warmups: Vec<u32>,
    /// Cell, iteration and block.
    slots: Vec<(u32, u64, u64)>,
    next_warmup: usize,
    next_slot: usize,
    warmups_in_flight: usize,
    slots_in_flight: usize,
    handed_out: usize,
    /// Runs to erase once their slot, or their cell, is replaced.
    replaced: HashMap<(usize, u64), Vec<RunId>>,
    surplus: HashMap<usize, Vec<RunId>>,
    /// The final number of iterations of each cell.
    sizes: Vec<u64>,
    total: usize,
    ok: usize,
    failed: usize,
}

impl CellSchedule {
    /// Two cells with the same key are one cell: only the first is planned. `together` are pairs of
    /// cells to compare: if an iteration of the two was not run in one session, both run again.
    pub fn new(
        cells: &[CellKey],
        past: &[PastRun],
        together: &[(usize, usize)],
        options: &ScheduleOptions,
    ) -> Self {
        let mut indices: HashMap<CellKey, usize> = HashMap::with_capacity(cells.len());
        let mut first = vec![false; cells.len()];
        for (index, key) in cells.iter().enumerate() {
            first[index] = !indices.contains_key(key);
            indices.entry(*key).or_insert(index);
        }
        let mut done: Vec<Vec<u64>> = vec![Vec::new(); cells.len()];
        let mut after = vec![0u64; cells.len()];
        let mut replaced: HashMap<(usize, u64), Vec<RunId>> = HashMap::new();
        let mut surplus: HashMap<usize, Vec<RunId>> = HashMap::new();
        for run in past {
            let Some(&index) = indices.get(&run.key) else { continue };
            after[index] = after[index].max(run.iteration + 1);
            if run.ok {
                done[index].push(run.iteration);
            }
            if options.mode == ScheduleMode::Replace {
                if run.iteration < options.iterations {
                    replaced.entry((index, run.iteration)).or_default().push(run.id);
                } else {
                    surplus.entry(index).or_default().push(run.id);
                }
            }
        }
        done.iter_mut().for_each(|iterations| iterations.sort_unstable());
        let again = apart(cells, past, together, options.iterations);
        let rounds = match options.mode {
            ScheduleMode::Append(more) => more,
            ScheduleMode::Pending | ScheduleMode::Replace => options.iterations,
        };
        let sizes = match options.mode {
            ScheduleMode::Append(more) => after.iter().map(|after| after + more).collect(),
            ScheduleMode::Pending | ScheduleMode::Replace => vec![options.iterations; cells.len()],
        };
        let slot = |index: usize, round: u64| match options.mode {
            ScheduleMode::Append(_) => Some(after[index] + round),
            ScheduleMode::Replace => Some(round),
            ScheduleMode::Pending => {
                let missing = done[index].binary_search(&round).is_err();
                (missing || again.contains(&(cells[index], round))).then_some(round)
            }
        };
        let planned: Vec<usize> = (0..cells.len()).filter(|&index| first[index]).collect();
        let narrow = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
        let mut slots = Vec::new();
        match options.order {
            Order::Blocked => {
                for &index in &planned {
                    let of_cell =
                        (0..rounds).filter_map(|r| Some((narrow(index), slot(index, r)?, r)));
                    slots.extend(of_cell);
                }
            }
            Order::Interleaved => {
                for round in 0..rounds {
                    let start = slots.len();
                    let of_round =
                        planned.iter().filter_map(|&p| Some((narrow(p), slot(p, round)?, round)));
                    slots.extend(of_round);
                    Random::for_part(options.seed, round).shuffle(&mut slots[start..]);
                }
            }
        }
        let mut states =
            vec![
                CellState { warmups_left: 0, open: 0, waiting: 0, ok_this_time: 0, skipped: false };
                cells.len()
            ];
        for (index, ..) in &slots {
            let state = &mut states[*index as usize];
            (state.open, state.waiting) = (state.open + 1, state.waiting + 1);
        }
        let mut warmups = Vec::new();
        for round in 0..options.warmup {
            let start = warmups.len();
            warmups.extend(planned.iter().filter(|&&p| states[p].open > 0).map(|&p| narrow(p)));
            if options.order == Order::Interleaved {
                Random::for_part(options.seed, u64::MAX - round).shuffle(&mut warmups[start..]);
            }
        }
        warmups.iter().for_each(|index| states[*index as usize].warmups_left += 1);
        Self {
            cells: states,
            warmups,
            total: slots.len(),
            slots,
            next_warmup: 0,
            next_slot: 0,
            warmups_in_flight: 0,
            slots_in_flight: 0,
            handed_out: 0,
            replaced,
            surplus,
            sizes,
            ok: 0,
            failed: 0,
        }
    }

    /// The final number of iterations of each cell: its sample size, fixed before any is measured.
    pub fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// The next step for a free worker.
    pub fn next_step(&mut self) -> Next<CellStep> {
        while let Some(&index) = self.warmups.get(self.next_warmup) {
            self.next_warmup += 1;
            let cell = index as usize;
            if !self.cells[cell].skipped {
                self.warmups_in_flight += 1;
                return Next::Run(CellStep {
                    cell,
                    kind: CellStepKind::Warmup,
                    iteration: 0,
                    block: 0,
                    number: 0,
                });
            }
        }
        if self.warmups_in_flight > 0 {
            return Next::Wait;
        }
        while let Some(&(index, iteration, block)) = self.slots.get(self.next_slot) {
            self.next_slot += 1;
            let cell = index as usize;
            if !self.cells[cell].skipped {
                self.cells[cell].waiting -= 1;
                self.slots_in_flight += 1;
                self.handed_out += 1;
                let number = self.handed_out;
                return Next::Run(CellStep {
                    cell,
                    kind: CellStepKind::Iteration,
                    iteration,
                    block,
                    number,
                });
            }
        }
        if self.slots_in_flight > 0 { Next::Wait } else { Next::Done }
    }

    /// Processes the outcome of a step; returns the replaced runs, which can be erased now.
    pub fn done(&mut self, step: &CellStep, ok: bool) -> Vec<RunId> {
        match step.kind {
            CellStepKind::Warmup => {
                self.warmups_in_flight = self.warmups_in_flight.saturating_sub(1);
                let state = &mut self.cells[step.cell];
                state.warmups_left = state.warmups_left.saturating_sub(1);
                if !ok {
                    self.skip(step.cell);
                }
                Vec::new()
            }
            CellStepKind::Iteration => {
                self.slots_in_flight = self.slots_in_flight.saturating_sub(1);
                let state = &mut self.cells[step.cell];
                state.open = state.open.saturating_sub(1);
                if !ok {
                    self.failed += 1;
                    return Vec::new();
                }
                self.ok += 1;
                state.ok_this_time += 1;
                let mut gone =
                    self.replaced.remove(&(step.cell, step.iteration)).unwrap_or_default();
                if state.open == 0 {
                    gone.extend(self.surplus.remove(&step.cell).unwrap_or_default());
                }
                gone
            }
        }
    }

    /// Drops a step that will have no outcome because the loop ends.
    pub fn abandon(&mut self, step: &CellStep) {
        match step.kind {
            CellStepKind::Warmup => {
                self.warmups_in_flight = self.warmups_in_flight.saturating_sub(1)
            }
            CellStepKind::Iteration => {
                self.slots_in_flight = self.slots_in_flight.saturating_sub(1)
            }
        }
    }

    /// Removes a cell, because its warmup failed or its resources are unavailable.
    pub fn skip(&mut self, cell: usize) {
        let state = &mut self.cells[cell];
        if !state.skipped {
            state.skipped = true;
            self.total -= state.waiting;
        }
    }

    pub fn skipped(&self) -> impl Iterator<Item = usize> {
        self.cells.iter().enumerate().filter(|(_, cell)| cell.skipped).map(|(index, _)| index)
    }

    /// Total iterations to run without skipped cells: the N of k/N.
    pub fn total(&self) -> usize {
        self.total
    }

    pub fn ok(&self) -> usize {
        self.ok
    }

    pub fn failed(&self) -> usize {
        self.failed
    }

    pub fn warmups(&self) -> usize {
        self.warmups.len()
    }
}

/// Iterations of cells without a common session with their baseline.
fn apart(
    cells: &[CellKey],
    past: &[PastRun],
    together: &[(usize, usize)],
    iterations: u64,
) -> HashSet<(CellKey, u64)> {
    let mut sessions: HashMap<(CellKey, u64), HashSet<LoopId>> = HashMap::new();
    if !together.is_empty() {
        for run in past.iter().filter(|run| run.ok) {
            sessions.entry((run.key, run.iteration)).or_default().insert(run.session);
        }
    }
    let mut again = HashSet::new();
    for &(a, b) in together {
        for iteration in (0..iterations).filter(|_| cells[a] != cells[b]) {
            let of = |cell: usize| sessions.get(&(cells[cell], iteration));
            let common = of(a).zip(of(b)).is_some_and(|(a, b)| !a.is_disjoint(b));
            if !common {
                again.extend([(cells[a], iteration), (cells[b], iteration)]);
            }
        }
    }
    again
}
