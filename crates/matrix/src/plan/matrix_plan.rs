//! What is still to be done, whether a fixed plan says so or the numbers themselves.

use std::collections::HashSet;
use std::time::Instant;

use retake_matrix::plan::{Next, Plan, Sampler, Shot, Step, StepKind};
use retake_types::RunId;

use super::iterate::Ran;

pub enum Agenda {
    /// So many iterations of each cell.
    Fixed(Box<Plan>),
    /// As many as it takes.
    UntilSure(Box<Sampling>),
}

pub struct Sampling {
    pub sampler: Sampler,
    pub metric: String,
    /// Nothing is begun after it.
    pub deadline: Option<Instant>,
    /// Cells whose warmups are still to run.
    pub warmups: Vec<usize>,
    warming: usize,
    in_flight: usize,
    handed_out: usize,
    /// Their warmup failed.
    skipped: HashSet<usize>,
    ok: usize,
    failed: usize,
}

impl Sampling {
    pub fn new(
        sampler: Sampler,
        metric: String,
        deadline: Option<Instant>,
        warmups: Vec<usize>,
    ) -> Self {
        Self {
            sampler,
            metric,
            deadline,
            warmups,
            warming: 0,
            in_flight: 0,
            handed_out: 0,
            skipped: HashSet::new(),
            ok: 0,
            failed: 0,
        }
    }

    /// Whether nothing more may be begun.
    pub fn spent(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn next_step(&mut self) -> Next {
        if self.spent() {
            return if self.in_flight + self.warming > 0 { Next::Wait } else { Next::Done };
        }
        if let Some(cell) = self.warmups.pop() {
            self.warming += 1;
            return Next::Run(Step { cell, kind: StepKind::Warmup, iteration: 0, number: 0 });
        }
        if self.warming > 0 {
            return Next::Wait;
        }
        while let Some(Shot { cell, block }) = self.sampler.next_shot() {
            if self.skipped.contains(&cell) {
                self.sampler.done(Shot { cell, block }, None);
                continue;
            }
            self.in_flight += 1;
            self.handed_out += 1;
            let number = self.handed_out;
            return Next::Run(Step { cell, kind: StepKind::Iteration, iteration: block, number });
        }
        if self.in_flight > 0 { Next::Wait } else { Next::Done }
    }

    fn done(&mut self, step: &Step, ran: &Ran) {
        if step.kind == StepKind::Warmup {
            self.warming -= 1;
            if !ran.ok() {
                self.skipped.insert(step.cell);
            }
            return;
        }
        self.in_flight -= 1;
        if ran.ok() {
            self.ok += 1;
        } else {
            self.failed += 1;
        }
        let value = ran.metrics.get(&self.metric).map(|metric| metric.value);
        let value = value.filter(|value| ran.ok() && *value > 0.0);
        self.sampler.done(Shot { cell: step.cell, block: step.iteration }, value);
    }
}

impl Agenda {
    pub fn next_step(&mut self) -> Next {
        match self {
            Self::Fixed(plan) => plan.next_step(),
            Self::UntilSure(sampling) => sampling.next_step(),
        }
    }

    /// Tells what came of a step; gives the runs that it has replaced.
    pub fn done(&mut self, step: &Step, ran: &Ran) -> Vec<RunId> {
        match self {
            Self::Fixed(plan) => plan.done(step, ran.ok()),
            Self::UntilSure(sampling) => {
                sampling.done(step, ran);
                Vec::new()
            }
        }
    }

    /// `[ 3/12]`, or `[ 3]` where nobody knows how many there will be.
    pub fn place(&self, step: &Step) -> String {
        match self {
            Self::Fixed(plan) => {
                let total = plan.total().to_string();
                format!("[{:>width$}/{total}]", step.number, width = total.len())
            }
            Self::UntilSure(_) => format!("[{:>3}]", step.number),
        }
    }

    pub fn ok(&self) -> usize {
        match self {
            Self::Fixed(plan) => plan.ok(),
            Self::UntilSure(sampling) => sampling.ok,
        }
    }

    pub fn failed(&self) -> usize {
        match self {
            Self::Fixed(plan) => plan.failed(),
            Self::UntilSure(sampling) => sampling.failed,
        }
    }

    /// Cells that were given up because their warmup failed.
    pub fn skipped(&self) -> Vec<usize> {
        match self {
            Self::Fixed(plan) => plan.skipped().collect(),
            Self::UntilSure(sampling) => {
                let mut skipped: Vec<usize> = sampling.skipped.iter().copied().collect();
                skipped.sort_unstable();
                skipped
            }
        }
    }

    /// How many iterations of each cell there are to be; nothing where the numbers decide that.
    pub fn sizes(&self) -> Vec<u64> {
        match self {
            Self::Fixed(plan) => plan.sizes().to_vec(),
            Self::UntilSure(_) => Vec::new(),
        }
    }

    /// Iterations in all, as far as that is known.
    pub fn total(&self) -> Option<usize> {
        match self {
            Self::Fixed(plan) => Some(plan.total()),
            Self::UntilSure(_) => None,
        }
    }
}
