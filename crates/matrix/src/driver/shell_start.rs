//! Measures the start time of a shell, to subtract it from commands that need one.
//!
//! An empty command line is measured in turn with the iterations instead of once at the start: a
//! machine that gets slower has a slower shell too. The frequency depends on the duration of the
//! iterations, to limit the cost.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use retake_engine::{Command, Launch, LiveOutput};
use retake_runner::metrics::ShellCost;
use retake_runner::worker::Worker;

use crate::stats::median;

/// Measurements before the first iteration.
const FIRST: usize = 10;
/// How many of the latest measurements count.
const LATEST: usize = 50;
/// Maximum fraction of the iterations' time for these measurements.
const PART: f64 = 0.01;

/// One worker's measurements of a shell's start.
#[derive(Default)]
pub(super) struct ShellStart {
    latest: VecDeque<ShellCost>,
    /// Their median.
    cost: Option<ShellCost>,
    spent: Duration,
    /// When the first iteration began.
    since: Option<Instant>,
}

impl ShellStart {
    /// Measures again if due. A shell that cannot be measured costs nothing: the command itself
    /// reports the error.
    pub(super) fn measure(&mut self, worker: &mut Worker) {
        let since = *self.since.get_or_insert_with(Instant::now);
        let allowed = since.elapsed().mul_f64(PART);
        let count = match self.latest.len() {
            0 => FIRST,
            _ if self.spent <= allowed => 1,
            _ => 0,
        };
        for _ in 0..count {
            let start = Instant::now();
            let Some(cost) = start_once(worker) else { break };
            self.spent += start.elapsed();
            self.latest.push_back(cost);
            if self.latest.len() > LATEST {
                self.latest.pop_front();
            }
        }
        if count > 0 {
            self.cost = middle(&self.latest);
        }
    }

    /// What to subtract; `None` if unknown.
    pub(super) fn cost(&self) -> Option<ShellCost> {
        self.cost
    }
}

fn middle(costs: &VecDeque<ShellCost>) -> Option<ShellCost> {
    let of = |pick: fn(&ShellCost) -> f64| median(&costs.iter().map(pick).collect::<Vec<f64>>());
    Some(ShellCost { wall: of(|c| c.wall)?, user: of(|c| c.user)?, sys: of(|c| c.sys)? })
}

fn start_once(worker: &mut Worker) -> Option<ShellCost> {
    let command = Command::new(Launch::new(["/bin/sh", "-c", ""])).ok()?;
    let (keeper, cancel) = worker.parts();
    let result = keeper.run(&command, cancel, LiveOutput::default(), &mut |_| {});
    result.outcome.success().then(|| ShellCost::of(result.duration, &result.usage))
}
