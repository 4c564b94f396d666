//! The orchestrator's loop against scripted children, several at a time and in changing order.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;
use crate::orchestrator::directory_digest::DirectoryDigest;
use crate::orchestrator::plan::Goal;
use crate::orchestrator::point_trace::PointTrace;
use crate::orchestrator::verdict::Execution;

/// A workload as a table: for each point its state and the result of its check.
#[derive(Debug, Clone)]
struct Script {
    states: Vec<u64>,
    checks: Vec<Check>,
    /// The execution that fails, if any.
    breaks_at: Option<usize>,
}

impl Script {
    fn outcome(&self, step: &Step) -> PointOutcome {
        let labels: Vec<String> = (1..=self.states.len()).map(|n| format!("p{n}")).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        match step {
            Step::Execute { target } => {
                let passed = (*target).min(labels.len());
                let result = if self.breaks_at.is_some_and(|at| *target >= at) {
                    Execution::Failed { reason: "broke".into() }
                } else if *target > labels.len() {
                    Execution::Ended { filtered: 0 }
                } else {
                    Execution::Crashed { label: labels[passed - 1].into() }
                };
                let state = self.states.get(target - 1).map(|state| DirectoryDigest(*state, 0));
                PointOutcome::Executed(Executed {
                    result,
                    trace: PointTrace::scripted(&labels[..passed]),
                    state,
                })
            }
            Step::Verify { target, .. } => PointOutcome::Checked(self.checks[target - 1].clone()),
        }
    }

    /// The report with this many jobs, where each child takes as long as `pace` says.
    fn told(&self, jobs: usize, keep_going: bool, pace: &[u8]) -> (Vec<String>, Finish) {
        let mut plan = Plan::new(Goal { only: None, max_crashes: None, keep_going, jobs });
        let running = AtomicUsize::new(0);
        let started = Mutex::new(BTreeSet::new());
        let run = |step: &Step| {
            assert!(running.fetch_add(1, Ordering::SeqCst) < jobs, "more children than jobs");
            assert!(started.lock().unwrap().insert(format!("{step:?}")), "started twice");
            let turns = pace.get(step.target() % pace.len().max(1)).copied().unwrap_or(0);
            (0..turns).for_each(|_| thread::yield_now());
            running.fetch_sub(1, Ordering::SeqCst);
            self.outcome(step)
        };
        let children = ChildRunner { run: &run, end_beyond: &|_| {} };
        let mut lines = Vec::new();
        let finish = drive(&mut plan, jobs, &children, &mut |line, duration| {
            assert!(duration > Duration::ZERO);
            lines.push(format!("{line:?}"));
        });
        (lines, finish)
    }
}

fn check() -> impl Strategy<Value = Check> {
    prop_oneof![
        6 => any::<bool>().prop_map(|looked| Check::Passed { looked }),
        1 => Just(Check::Failed { reason: "lost".into() }),
    ]
}

fn script() -> impl Strategy<Value = Script> {
    (prop::collection::vec((0u64..4, check()), 0..12), prop::option::weighted(0.2, 1usize..14))
        .prop_map(|(points, breaks_at)| {
            let (states, checks) = points.into_iter().unzip();
            Script { states, checks, breaks_at }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn the_number_of_jobs_does_not_change_the_report(
        script in script(),
        jobs in 2usize..5,
        keep_going in any::<bool>(),
        pace in prop::collection::vec(0u8..20, 0..5),
    ) {
        let alone = script.told(1, keep_going, &[]);
        prop_assert_eq!(script.told(jobs, keep_going, &pace), alone);
    }
}

#[test]
fn executions_beyond_the_bound_are_ended() {
    // Target 1 fails its check while target 2 runs until it is killed.
    let (ended, wait) = mpsc::channel();
    let wait = Mutex::new(wait);
    let script = Script {
        states: vec![0, 1],
        checks: vec![Check::Failed { reason: "lost".into() }; 2],
        breaks_at: None,
    };
    let run = |step: &Step| {
        if matches!(step, Step::Execute { target: 2 }) {
            wait.lock().unwrap().recv().unwrap();
        }
        script.outcome(step)
    };
    let end_beyond = |bound: usize| {
        if bound < 2 {
            // Repeated whenever the bound is applied; the child has gone after the first time.
            _ = ended.send(());
        }
    };
    let children = ChildRunner { run: &run, end_beyond: &end_beyond };
    let goal = Goal { only: None, max_crashes: None, keep_going: false, jobs: 2 };
    let mut lines = 0;
    let finish = drive(&mut Plan::new(goal), 2, &children, &mut |_, _| lines += 1);
    assert_eq!((lines, finish), (1, Finish::Failed));
}

#[test]
fn a_panic_of_ours_does_not_hang_the_test() {
    let children = ChildRunner { run: &|_| panic!("a bug"), end_beyond: &|_| {} };
    let goal = Goal { only: None, max_crashes: None, keep_going: false, jobs: 2 };
    let driven = catch_unwind(AssertUnwindSafe(|| {
        drive(&mut Plan::new(goal), 2, &children, &mut |_, _| {})
    }));
    assert_eq!(driven.unwrap_err().downcast_ref::<&str>(), Some(&"a bug"));
}
