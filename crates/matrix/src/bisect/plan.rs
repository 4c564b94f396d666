//! A bisection as the plan of a loop: one run at one point after the other.

use std::time::Instant;

use retake_runner::loop_driver::{LoopPlan, Next};

use super::{Bisect, Observation};

/// One run at one point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BisectStep {
    /// The place of the point among all, from the good end to the bad one.
    pub point: usize,
    /// The number of the run among those of its point.
    pub iteration: u64,
    /// Counts the runs of this loop, from 1.
    pub number: usize,
}

/// Asks for runs until the search is over.
#[derive(Clone, Debug)]
pub struct BisectPlan {
    bisect: Bisect,
    /// The iteration of the next run at each point.
    next_iterations: Vec<u64>,
    runs: usize,
}

impl BisectPlan {
    /// `next_iterations` are those of the points, from the good end to the bad one.
    pub fn new(bisect: Bisect, next_iterations: Vec<u64>) -> Self {
        Self { bisect, next_iterations, runs: 0 }
    }

    pub fn bisect(&self) -> &Bisect {
        &self.bisect
    }
}

impl LoopPlan for BisectPlan {
    type Step = BisectStep;
    type Report = Observation;

    fn next(&mut self, _now: Instant) -> Next<BisectStep> {
        let Some(name) = self.bisect.next_point().map(str::to_owned) else { return Next::Done };
        let Some(point) = self.bisect.points().iter().position(|known| *known == name) else {
            return Next::Done;
        };
        let iteration = self.next_iterations.get(point).copied().unwrap_or_default();
        Next::Run(BisectStep { point, iteration, number: self.runs + 1 })
    }

    fn report(&mut self, step: &BisectStep, observation: Observation) {
        // Where nothing could be run there was no run.
        if observation != Observation::Unavailable {
            self.runs += 1;
            if let Some(next) = self.next_iterations.get_mut(step.point) {
                *next = step.iteration + 1;
            }
        }
        let name = self.bisect.points()[step.point].clone();
        self.bisect.observe(&name, observation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bisect::{BisectSettings, Judge};

    fn plan(points: usize) -> BisectPlan {
        let names: Vec<String> = (0..points).map(|point| format!("p{point}")).collect();
        let (good, bad) = (names[0].clone(), names[points - 1].clone());
        let settings = BisectSettings::new(Judge::ExitCode);
        let bisect = Bisect::new(names, &good, &bad, settings).unwrap();
        BisectPlan::new(bisect, vec![3; points])
    }

    /// Runs the plan with a scripted outcome for each point.
    fn drain(plan: &mut BisectPlan, run: impl Fn(usize) -> Observation) -> Vec<BisectStep> {
        let mut steps = Vec::new();
        while let Next::Run(step) = plan.next(Instant::now()) {
            plan.report(&step, run(step.point));
            steps.push(step);
            assert!(steps.len() < 1000, "the search does not end");
        }
        steps
    }

    #[test]
    fn runs_are_counted_and_continue_the_iterations_of_their_point() {
        let mut plan = plan(16);
        let steps = drain(&mut plan, |point| Observation::Exit(i32::from(point >= 9)));
        let answer = plan.bisect().answer("code");
        assert_eq!(answer.first_bad.as_deref(), Some("p9"));
        for (at, step) in steps.iter().enumerate() {
            assert_eq!(step.number, at + 1);
            let before = steps[..at].iter().filter(|other| other.point == step.point).count();
            assert_eq!(step.iteration, 3 + before as u64);
        }
    }

    #[test]
    fn a_point_without_what_it_needs_is_no_run() {
        let mut plan = plan(4);
        let steps = drain(&mut plan, |point| match point {
            1 => Observation::Unavailable,
            point => Observation::Exit(i32::from(point >= 2)),
        });
        let numbers: Vec<usize> =
            steps.iter().filter(|step| step.point != 1).map(|step| step.number).collect();
        assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>());
        assert_eq!(plan.bisect().answer("code").skipped, ["p1"]);
    }
}
