//! How long a shell takes to start, so that it does not count for the commands that need one.
//!
//! An empty command line is measured in turn with the iterations, and not once at the start: a machine
//! that gets slower meanwhile has a slower shell too. How often depends on how long the iterations
//! take, for this must not cost much.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use retake_engine::{Command, Launch, LiveOutput};
use retake_runner::metrics::ShellCost;
use retake_runner::worker::Worker;

use crate::stats::median;

/// Starts before the first iteration.
const FIRST: usize = 10;
/// The last of them that count.
const LATEST: usize = 50;
/// The part of the time of the iterations that may be spent on it.
const PART: f64 = 0.01;

/// The starts of a shell that one worker has measured.
#[derive(Default)]
pub(super) struct ShellStart {
    latest: VecDeque<ShellCost>,
    /// The median of them.
    cost: Option<ShellCost>,
    spent: Duration,
    /// When the first iteration began.
    since: Option<Instant>,
}

impl ShellStart {
    /// Measures again, if it is time to. A shell that cannot be measured costs nothing: the command
    /// itself will say what is wrong with it.
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

    /// What to subtract; `None` if nothing is known.
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
