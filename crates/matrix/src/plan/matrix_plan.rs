//! The plan of a matrix run: a fixed number of iterations of each cell, or until the numbers are
//! conclusive.

use std::collections::HashSet;
use std::time::Instant;

use retake_runner::loop_driver::{LoopPlan, Next};
use retake_types::loop_record::matrix::CellHook;
use retake_types::{Disturbance, Metrics, NodeDisturbances, RunId, SeenDisturbance};

use super::{CellSchedule, CellStep, CellStepKind, Sampler, Shot};

/// The result of one run of a cell.
#[derive(Clone, Debug)]
pub struct CellResult {
    pub id: RunId,
    pub ok: bool,
    pub timed_out: bool,
    pub exit_code: i32,
    pub duration_ms: u64,
    pub metrics: Metrics,
    /// What the command reported but could not be parsed.
    pub notes: Vec<String>,
    /// The machine, if another one.
    pub node: Option<String>,
    /// What disturbed it there.
    pub disturbances: Vec<Disturbance>,
    /// A failed hook. After it further iterations are meaningless. If it comes before the command,
    /// the command did not run, and this is the result.
    pub failed_hook: Option<FailedHook>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedHook {
    pub hook: CellHook,
    pub exit_code: i32,
    pub run: RunId,
}

/// A step whose result the plan has processed.
#[derive(Debug)]
pub struct FinishedStep {
    pub step: CellStep,
    pub result: CellResult,
    /// Total iterations, if known in advance.
    pub total: Option<usize>,
    /// Runs that this result replaces.
    pub replaced: Vec<RunId>,
}

/// The progress of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixProgress {
    pub ok: usize,
    pub failed: usize,
    pub kind: PlanKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanKind {
    Fixed {
        total: usize,
    },
    UntilSure {
        decided: usize,
        comparisons: usize,
        /// No step starts after it.
        deadline: Option<Instant>,
    },
}

/// The remaining steps.
pub struct MatrixPlan {
    source: StepSource,
    finished: Option<FinishedStep>,
    /// What disturbed runs on other machines.
    nodes: NodeDisturbances,
}

enum StepSource {
    /// A fixed number of iterations of each cell.
    Fixed(Box<CellSchedule>),
    UntilSure(Box<SamplingPlan>),
}

/// Samples cells until every comparison is decided or time runs out.
pub struct SamplingPlan {
    sampler: Sampler,
    metric: String,
    deadline: Option<Instant>,
    /// Remaining warmups, by cell.
    warmups: Vec<usize>,
    warmups_under_way: usize,
    iterations_under_way: usize,
    handed_out: usize,
    /// Cells whose warmup failed.
    skipped: HashSet<usize>,
    ok: usize,
    failed: usize,
}

impl SamplingPlan {
    /// No step starts after the deadline. `warmups` names a cell once for each of its warmups.
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
            warmups_under_way: 0,
            iterations_under_way: 0,
            handed_out: 0,
            skipped: HashSet::new(),
            ok: 0,
            failed: 0,
        }
    }

    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// Whether the deadline has passed.
    pub fn is_over(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    fn next_step(&mut self, now: Instant) -> Next<CellStep> {
        if self.is_over(now) {
            let under_way = self.iterations_under_way + self.warmups_under_way;
            return if under_way > 0 { Next::Wait } else { Next::Done };
        }
        if let Some(cell) = self.warmups.pop() {
            self.warmups_under_way += 1;
            let kind = CellStepKind::Warmup;
            return Next::Run(CellStep { cell, kind, iteration: 0, block: 0, number: 0 });
        }
        if self.warmups_under_way > 0 {
            return Next::Wait;
        }
        while let Some(Shot { cell, block }) = self.sampler.next_shot() {
            if self.skipped.contains(&cell) {
                self.sampler.done(Shot { cell, block }, None);
                continue;
            }
            self.iterations_under_way += 1;
            self.handed_out += 1;
            let (kind, number) = (CellStepKind::Iteration, self.handed_out);
            return Next::Run(CellStep { cell, kind, iteration: block, block, number });
        }
        if self.iterations_under_way > 0 { Next::Wait } else { Next::Done }
    }

    fn done(&mut self, step: &CellStep, result: &CellResult) {
        if step.kind == CellStepKind::Warmup {
            self.warmups_under_way -= 1;
            if !result.ok {
                self.skipped.insert(step.cell);
            }
            return;
        }
        self.iterations_under_way -= 1;
        if result.ok {
            self.ok += 1;
        } else {
            self.failed += 1;
        }
        if result.failed_hook.is_some() {
            self.skipped.insert(step.cell);
        }
        let value = result.metrics.get(self.metric.as_str()).map(|metric| metric.value);
        let value = value.filter(|value| result.ok && value.is_finite());
        self.sampler.done(Shot { cell: step.cell, block: step.iteration }, value);
    }
}

impl MatrixPlan {
    pub fn fixed(schedule: CellSchedule) -> Self {
        Self::new(StepSource::Fixed(Box::new(schedule)))
    }

    pub fn until_sure(sampling: SamplingPlan) -> Self {
        Self::new(StepSource::UntilSure(Box::new(sampling)))
    }

    fn new(source: StepSource) -> Self {
        Self { source, finished: None, nodes: NodeDisturbances::default() }
    }

    /// What disturbed the runs on other machines.
    pub fn disturbances(&self) -> Vec<SeenDisturbance> {
        self.nodes.list()
    }

    /// The last reported step, returned once.
    pub fn take_finished(&mut self) -> Option<FinishedStep> {
        self.finished.take()
    }

    /// The sampling, if the numbers decide how many iterations there are.
    pub fn sampling(&self) -> Option<&SamplingPlan> {
        match &self.source {
            StepSource::Fixed(_) => None,
            StepSource::UntilSure(sampling) => Some(sampling),
        }
    }

    pub fn progress(&self) -> MatrixProgress {
        match &self.source {
            StepSource::Fixed(schedule) => MatrixProgress {
                ok: schedule.ok(),
                failed: schedule.failed(),
                kind: PlanKind::Fixed { total: schedule.total() },
            },
            StepSource::UntilSure(sampling) => {
                let (decided, comparisons) = sampling.sampler.progress();
                let deadline = sampling.deadline;
                MatrixProgress {
                    ok: sampling.ok,
                    failed: sampling.failed,
                    kind: PlanKind::UntilSure { decided, comparisons, deadline },
                }
            }
        }
    }

    /// Cells that were skipped because their warmup failed.
    pub fn skipped(&self) -> Vec<usize> {
        match &self.source {
            StepSource::Fixed(schedule) => schedule.skipped().collect(),
            StepSource::UntilSure(sampling) => {
                let mut skipped: Vec<usize> = sampling.skipped.iter().copied().collect();
                skipped.sort_unstable();
                skipped
            }
        }
    }

    /// Whether there was nothing to do from the start.
    pub fn is_done(&self) -> bool {
        match &self.source {
            StepSource::Fixed(schedule) => schedule.total() == 0,
            StepSource::UntilSure(sampling) => sampling.sampler.finished(),
        }
    }

    /// How many iterations each cell will have; empty if the numbers decide.
    pub fn sizes(&self) -> Vec<u64> {
        match &self.source {
            StepSource::Fixed(schedule) => schedule.sizes().to_vec(),
            StepSource::UntilSure(_) => Vec::new(),
        }
    }

    /// Total iterations, if known in advance.
    pub fn total(&self) -> Option<usize> {
        match &self.source {
            StepSource::Fixed(schedule) => Some(schedule.total()),
            StepSource::UntilSure(_) => None,
        }
    }
}

impl LoopPlan for MatrixPlan {
    type Step = CellStep;
    type Report = CellResult;

    fn next(&mut self, now: Instant) -> Next<CellStep> {
        match &mut self.source {
            StepSource::Fixed(schedule) => schedule.next_step(),
            StepSource::UntilSure(sampling) => sampling.next_step(now),
        }
    }

    fn report(&mut self, step: &CellStep, result: CellResult) {
        if let Some(node) = &result.node {
            self.nodes.add(node, &result.disturbances);
        }
        let total = self.total();
        let replaced = match &mut self.source {
            StepSource::Fixed(schedule) => {
                let replaced = schedule.done(step, result.ok);
                if result.failed_hook.is_some() {
                    schedule.skip(step.cell);
                }
                replaced
            }
            StepSource::UntilSure(sampling) => {
                sampling.done(step, &result);
                Vec::new()
            }
        };
        self.finished = Some(FinishedStep { step: *step, result, total, replaced });
    }
}

#[cfg(test)]
mod tests {
    use retake_types::loop_record::matrix::CellKey;
    use retake_types::{LoopId, Metric};

    use std::time::Duration;

    use super::*;
    use crate::config::Order;
    use crate::plan::{PastRun, ScheduleMode, ScheduleOptions};
    use crate::stats::Criteria;

    fn result(ok: bool, value: f64) -> CellResult {
        let metric = Metric { value, unit: None, better: None };
        CellResult {
            id: RunId::new(),
            ok,
            timed_out: false,
            exit_code: i32::from(!ok),
            duration_ms: 1,
            metrics: [("wall".into(), metric)].into(),
            notes: Vec::new(),
            node: None,
            disturbances: Vec::new(),
            failed_hook: None,
        }
    }

    fn sampling(deadline: Option<Instant>, warmups: Vec<usize>) -> MatrixPlan {
        let mut sampler = Sampler::new(&[(0, 1)], Criteria::default(), 1);
        sampler.begin(0);
        MatrixPlan::until_sure(SamplingPlan::new(sampler, "wall".to_owned(), deadline, warmups))
    }

    /// Runs the plan step by step; returns the steps.
    fn drain(plan: &mut MatrixPlan, mut run: impl FnMut(&CellStep) -> CellResult) -> Vec<CellStep> {
        let mut steps = Vec::new();
        while let Next::Run(step) = plan.next(Instant::now()) {
            let result = run(&step);
            plan.report(&step, result);
            steps.push(step);
            assert!(steps.len() < 5000, "the plan does not end");
        }
        assert_eq!(plan.next(Instant::now()), Next::Done);
        steps
    }

    #[test]
    fn a_clear_difference_is_decided_after_a_few_iterations() {
        let mut plan = sampling(None, Vec::new());
        let steps = drain(&mut plan, |step| {
            let noise = step.iteration as f64 % 3.0 / 100.0;
            result(true, if step.cell == 0 { 100.0 } else { 200.0 } + noise)
        });
        assert!(steps.len() < 200, "{} steps", steps.len());
        let progress = plan.progress();
        assert_eq!((progress.ok, progress.failed), (steps.len(), 0));
        let PlanKind::UntilSure { decided, comparisons, .. } = progress.kind else { panic!() };
        assert_eq!((decided, comparisons), (1, 1));
    }

    #[test]
    fn no_run_starts_after_the_deadline_and_running_ones_are_awaited() {
        let now = Instant::now();
        let deadline = now + Duration::from_secs(10);
        let mut plan = sampling(Some(deadline), Vec::new());
        let Next::Run(step) = plan.next(now) else { panic!("the time is not over") };
        assert_eq!(plan.next(deadline), Next::Wait);
        plan.report(&step, result(true, 1.0));
        assert_eq!(plan.next(deadline), Next::Done);
    }

    #[test]
    fn iterations_wait_for_warmups_and_a_cell_whose_warmup_failed_is_skipped() {
        let mut plan = sampling(None, vec![0, 1]);
        let now = Instant::now();
        let (Next::Run(a), Next::Run(b)) = (plan.next(now), plan.next(now)) else { panic!() };
        assert_eq!((a.kind, b.kind), (CellStepKind::Warmup, CellStepKind::Warmup));
        assert_eq!(plan.next(now), Next::Wait);
        plan.report(&a, result(true, 1.0));
        plan.report(&b, result(false, 1.0));
        assert_eq!(plan.skipped(), [b.cell]);
        let steps = drain(&mut plan, |_| result(true, 1.0));
        assert!(steps.iter().all(|step| step.cell == a.cell), "{steps:?}");
    }

    #[test]
    fn a_result_names_the_runs_it_replaces_and_its_place_among_all() {
        let key = CellKey::from_bytes([1; 16]);
        let old = PastRun { key, iteration: 0, id: RunId::new(), session: LoopId::new(), ok: true };
        let options = ScheduleOptions {
            iterations: 1,
            warmup: 0,
            mode: ScheduleMode::Replace,
            order: Order::Interleaved,
            seed: 1,
        };
        let mut plan = MatrixPlan::fixed(CellSchedule::new(&[key], &[old], &[], &options));
        assert_eq!(plan.sizes(), [1]);
        let steps = drain(&mut plan, |_| result(true, 1.0));
        let finished = plan.take_finished().unwrap();
        assert_eq!((finished.step, finished.total), (steps[0], Some(1)));
        assert_eq!(finished.replaced, [old.id]);
        assert!(plan.take_finished().is_none());
    }
}
