//! A bisection as the plan of a loop: runs one point after another.

use std::time::Instant;

use retake_runner::loop_driver::{LoopPlan, Next};

use super::{Bisect, Observation};
use crate::random::Random;

/// One run at one point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BisectStep {
    /// The index of the point, from the good end to the bad one.
    pub point: usize,
    /// The number of the run at its point.
    pub iteration: u64,
    /// Its probe: the runs of one probe are compared with each other.
    pub block: u64,
    /// Counts the runs of this loop, from 1.
    pub number: usize,
}

/// The result of a run at a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PointResult {
    /// The metric of a successful run.
    Value(f64),
    Exit(i32),
    TimedOut,
    /// Nothing could run at this point.
    Unavailable,
}

impl PointResult {
    /// The observation without a paired run of the good end.
    fn alone(self) -> Observation {
        match self {
            // In a search by exit code the measurement is ignored.
            Self::Value(_) => Observation::Exit(0),
            Self::Exit(code) => Observation::Exit(code),
            Self::TimedOut => Observation::TimedOut,
            Self::Unavailable => Observation::Unavailable,
        }
    }
}

/// How often the good end may fail during probes before the search gives up.
const MOST_FAILED_ENDS: usize = 5;

/// Requests runs until the search is over.
#[derive(Clone, Debug)]
pub struct BisectPlan {
    bisect: Bisect,
    /// The iteration number of the next run at each point.
    next_iterations: Vec<u64>,
    runs: usize,
    /// The current probe: its point, its remaining runs, its results so far.
    probe: usize,
    left: Vec<usize>,
    results: Vec<(usize, PointResult)>,
    blocks: u64,
    failed_ends: usize,
    random: Random,
}

impl BisectPlan {
    /// `next_iterations` is indexed by point, from the good end to the bad one.
    pub fn new(bisect: Bisect, next_iterations: Vec<u64>, seed: u64) -> Self {
        Self {
            bisect,
            next_iterations,
            runs: 0,
            probe: 0,
            left: Vec::new(),
            results: Vec::new(),
            blocks: 0,
            failed_ends: 0,
            random: Random::new(seed),
        }
    }

    pub fn bisect(&self) -> &Bisect {
        &self.bisect
    }

    pub fn bisect_mut(&mut self) -> &mut Bisect {
        &mut self.bisect
    }

    /// Processes the results of a complete probe.
    fn end_probe(&mut self) {
        let results = std::mem::take(&mut self.results);
        let of = |point: usize| {
            results.iter().find(|(known, _)| *known == point).map(|(_, result)| *result)
        };
        let Some(result) = of(self.probe) else { return };
        let name = |point: usize| self.bisect.points()[point].clone();
        let observed = match (result, of(0)) {
            (PointResult::Value(value), Some(PointResult::Value(beside)))
                if self.bisect.needs_pairs() =>
            {
                (name(self.probe), Observation::Value { value, beside })
            }
            // The point succeeded, but the paired good end failed.
            (PointResult::Value(_), Some(end)) if self.bisect.needs_pairs() => {
                self.failed_ends += 1;
                let given_up = self.failed_ends >= MOST_FAILED_ENDS;
                (name(0), if given_up { Observation::Unavailable } else { end.alone() })
            }
            (result, _) => (name(self.probe), result.alone()),
        };
        self.bisect.observe(&observed.0, observed.1);
    }
}

impl LoopPlan for BisectPlan {
    type Step = BisectStep;
    type Report = PointResult;

    fn next(&mut self, _now: Instant) -> Next<BisectStep> {
        if self.left.is_empty() {
            let Some(name) = self.bisect.next_point().map(str::to_owned) else { return Next::Done };
            let found = self.bisect.points().iter().position(|known| *known == name);
            let Some(point) = found else { return Next::Done };
            self.probe = point;
            self.left = if self.bisect.needs_pairs() { vec![0, point] } else { vec![point] };
            self.random.shuffle(&mut self.left);
            self.blocks += 1;
        }
        let point = self.left[self.left.len() - 1];
        let iteration = self.next_iterations.get(point).copied().unwrap_or_default();
        Next::Run(BisectStep { point, iteration, block: self.blocks, number: self.runs + 1 })
    }

    fn report(&mut self, step: &BisectStep, result: PointResult) {
        // Without a run the counters stay unchanged.
        if result != PointResult::Unavailable {
            self.runs += 1;
            if let Some(next) = self.next_iterations.get_mut(step.point) {
                *next = step.iteration + 1;
            }
        }
        self.left.retain(|point| *point != step.point);
        self.results.push((step.point, result));
        // A point that cannot run needs no paired run.
        if result == PointResult::Unavailable {
            self.left.clear();
        }
        if self.left.is_empty() {
            self.end_probe();
        }
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
        BisectPlan::new(bisect, vec![3; points], 1)
    }

    /// Runs the plan with a scripted outcome for each point.
    fn drain(plan: &mut BisectPlan, run: impl Fn(usize) -> PointResult) -> Vec<BisectStep> {
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
        let steps = drain(&mut plan, |point| PointResult::Exit(i32::from(point >= 9)));
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
            1 => PointResult::Unavailable,
            point => PointResult::Exit(i32::from(point >= 2)),
        });
        let numbers: Vec<usize> =
            steps.iter().filter(|step| step.point != 1).map(|step| step.number).collect();
        assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>());
        assert_eq!(plan.bisect().answer("code").skipped, ["p1"]);
    }

    #[test]
    fn a_metric_is_measured_beside_the_good_end() {
        let names: Vec<String> = (0..16).map(|point| format!("p{point}")).collect();
        let settings = BisectSettings::new(Judge::Metric { threshold: Some(0.05) });
        let bisect = Bisect::new(names, "p0", "p15", settings).unwrap();
        let mut plan = BisectPlan::new(bisect, vec![0; 16], 1);
        let steps =
            drain(&mut plan, |point| PointResult::Value(if point >= 5 { 120.0 } else { 100.0 }));
        for block in steps.chunks(2) {
            let [a, b] = block else { panic!("half a probe: {steps:?}") };
            assert_eq!(a.block, b.block);
            assert!((a.point == 0) != (b.point == 0), "{a:?} {b:?}");
        }
        assert_eq!(plan.bisect().answer("code").first_bad.as_deref(), Some("p5"));
    }

    #[test]
    fn a_good_end_that_fails_ends_the_search() {
        let names: Vec<String> = (0..4).map(|point| format!("p{point}")).collect();
        let settings = BisectSettings::new(Judge::Metric { threshold: None });
        let bisect = Bisect::new(names, "p0", "p3", settings).unwrap();
        let mut plan = BisectPlan::new(bisect, vec![0; 4], 1);
        let result =
            |point| if point == 0 { PointResult::Exit(1) } else { PointResult::Value(1.0) };
        assert!(drain(&mut plan, result).len() < 20);
        assert!(plan.bisect().answer("code").sentence.contains("p0 cannot be judged"));
    }
}
