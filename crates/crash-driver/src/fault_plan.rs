//! The plan of a test with faults: which call fails next and how, and the results. Starts no
//! process and reads no clock.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use retake_crash::fault::Fault;
use retake_crash::model::path_shape;
use retake_crash::operation::Recording;
use retake_runner::loop_driver::{LoopPlan, Next};
use retake_types::loop_record::crash::{CrashFaultState, TestedFaults};

use crate::check::FailedCheck;
use crate::fault_run::{FaultCall, FaultOutcome};

/// How many calls of one kind are tried: the same call on files of the same role.
pub(crate) const EACH: usize = 6;

/// A call and its fault.
#[derive(Clone, Debug)]
pub(crate) struct PlannedFault {
    /// From 1, in a reproducible order.
    pub(crate) number: u64,
    pub(crate) call: FaultCall,
    pub(crate) fault: Fault,
}

/// The result of one fault.
#[derive(Debug)]
pub(crate) enum FaultReport {
    /// Everything acknowledged is there.
    Handled,
    /// The same, but the program reported success and left other files than without the fault.
    Ignored(FaultCall),
    Fails(Box<FailedFault>),
    /// A power loss at this moment fails without the fault, too.
    FailsWithoutFault,
    NotReached,
    NotChecked(String),
}

/// A fault after which the check fails.
#[derive(Debug)]
pub(crate) struct FailedFault {
    /// The call as it was made in this run.
    pub(crate) call: FaultCall,
    pub(crate) state: CrashFaultState,
    pub(crate) outcome: FaultOutcome,
    pub(crate) said: String,
    /// The key of the state in the recording.
    pub(crate) key: String,
    /// How many lines were acknowledged at the time of the checked state.
    pub(crate) acks: usize,
    pub(crate) check: FailedCheck,
    /// A kill at this moment fails without the fault, too.
    pub(crate) after_kill: bool,
    pub(crate) recording: Recording,
}

/// The faults of one kind that fail in the same way.
#[derive(Debug)]
pub(crate) struct FailingFaults {
    /// Their numbers.
    pub(crate) numbers: Vec<u64>,
    pub(crate) faults: Vec<Fault>,
    /// The one with the lowest number.
    pub(crate) first: (u64, Box<FailedFault>),
}

/// Every planned fault until a deadline.
pub(crate) struct FaultPlan {
    faults: std::vec::IntoIter<PlannedFault>,
    deadline: Option<Instant>,
    begun: u64,
    exhausted: bool,
    pub(crate) tested: TestedFaults,
    /// By finding.
    pub(crate) failing: BTreeMap<(String, String), FailingFaults>,
    pub(crate) ignored: Vec<(u64, FaultCall, Fault)>,
    pub(crate) fail_without_fault: u64,
    /// Why runs were not checked: the first reason.
    pub(crate) not_checked: Option<String>,
}

impl FaultPlan {
    pub(crate) fn new(calls: &[FaultCall], seed: u64, deadline: Option<Instant>) -> Self {
        let faults = planned(calls, seed);
        let tested = TestedFaults {
            calls: calls.len() as u64,
            faults: calls.iter().map(|call| call.faults.len() as u64).sum(),
            planned: faults.len() as u64,
            ..TestedFaults::default()
        };
        Self {
            faults: faults.into_iter(),
            deadline,
            begun: 0,
            exhausted: false,
            tested,
            failing: BTreeMap::new(),
            ignored: Vec::new(),
            fail_without_fault: 0,
            not_checked: None,
        }
    }

    /// Ends the plan; notes whether all of it was done.
    pub(crate) fn finish(&mut self) {
        self.tested.complete = self.exhausted && self.begun == self.tested.tried;
        self.ignored.sort_unstable_by_key(|(number, ..)| *number);
        for failing in self.failing.values_mut() {
            failing.numbers.sort_unstable();
            failing.faults.sort_unstable();
            failing.faults.dedup();
        }
    }

    fn add_failing(&mut self, step: &PlannedFault, failed: Box<FailedFault>) {
        self.tested.failing += 1;
        let success = failed.outcome == FaultOutcome::Exited(0);
        let kind = format!("{:?} {success} {:?}", failed.state, failed.check.kind());
        let number = step.number;
        match self.failing.entry((kind_of(&failed.call), kind)) {
            std::collections::btree_map::Entry::Vacant(vacant) => {
                vacant.insert(FailingFaults {
                    numbers: vec![number],
                    faults: vec![step.fault],
                    first: (number, failed),
                });
            }
            std::collections::btree_map::Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.numbers.push(number);
                known.faults.push(step.fault);
                // Workers finish in any order; findings must not depend on it.
                if number < known.first.0 {
                    known.first = (number, failed);
                }
            }
        }
    }
}

impl LoopPlan for FaultPlan {
    type Step = PlannedFault;
    type Report = FaultReport;

    fn next(&mut self, now: Instant) -> Next<PlannedFault> {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return Next::Done;
        }
        match self.faults.next() {
            Some(fault) => {
                self.begun += 1;
                Next::Run(fault)
            }
            None => {
                self.exhausted = true;
                Next::Done
            }
        }
    }

    fn report(&mut self, step: &PlannedFault, report: FaultReport) {
        self.tested.tried += 1;
        match report {
            FaultReport::Handled => {}
            FaultReport::Ignored(call) => self.ignored.push((step.number, call, step.fault)),
            FaultReport::Fails(failed) => self.add_failing(step, failed),
            FaultReport::FailsWithoutFault => self.fail_without_fault += 1,
            FaultReport::NotReached => self.tested.not_reached += 1,
            FaultReport::NotChecked(why) => {
                self.tested.not_checked += 1;
                self.not_checked.get_or_insert(why);
            }
        }
    }
}

/// Equal for the same call on files of the same role.
fn kind_of(call: &FaultCall) -> String {
    let shape = |file: &str| path_shape(Path::new(file));
    let to = call.to.as_deref().map(shape).unwrap_or_default();
    format!("{} {} {to}", call.call, shape(&call.file))
}

/// The faults in order: first one call of each kind, then another, so that an exhausted budget
/// has covered every kind. Of repeated calls the first two, the last, and some between, which
/// the seed selects.
fn planned(calls: &[FaultCall], seed: u64) -> Vec<PlannedFault> {
    let mut kinds: BTreeMap<String, Vec<&FaultCall>> = BTreeMap::new();
    for call in calls {
        kinds.entry(kind_of(call)).or_default().push(call);
    }
    let mut kinds: Vec<Vec<&FaultCall>> = kinds.into_values().collect();
    // In the order in which the program first makes them.
    kinds.sort_by_key(|kind| kind.first().map(|call| (call.operations, call.occurrence)));
    let chosen: Vec<Vec<&FaultCall>> =
        kinds.iter().zip(0..).map(|(kind, at)| chosen(kind, seed.wrapping_add(at))).collect();
    let mut planned = Vec::new();
    for round in 0..EACH {
        for kind in &chosen {
            let Some(call) = kind.get(round) else { continue };
            // This release cannot inject a fault that only a later one knows.
            for fault in call.faults.iter().filter_map(|name| name.parse().ok()) {
                let number = planned.len() as u64 + 1;
                planned.push(PlannedFault { number, call: (*call).clone(), fault });
            }
        }
    }
    planned
}

fn chosen<'a>(calls: &[&'a FaultCall], seed: u64) -> Vec<&'a FaultCall> {
    if calls.len() <= EACH {
        return calls.to_vec();
    }
    let last = calls.len() - 1;
    let mut between: Vec<usize> = (2..last).collect();
    let mut state = seed;
    let mut chosen = vec![0, last, 1];
    while chosen.len() < EACH && !between.is_empty() {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut random = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random = (random ^ (random >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let at = ((random ^ (random >> 31)) % between.len() as u64) as usize;
        chosen.push(between.swap_remove(at));
    }
    chosen.into_iter().map(|at| calls[at]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, file: &str, occurrence: u32) -> FaultCall {
        FaultCall {
            call: name.to_owned(),
            occurrence,
            file: file.to_owned(),
            to: None,
            operations: occurrence,
            acknowledgements: 0,
            faults: vec!["EIO".to_owned(), "ENOSPC".to_owned()],
        }
    }

    #[test]
    fn every_call_is_tried_in_every_way_unless_it_repeats() {
        let calls = [call("write", "a", 1), call("fsync", "a", 1), call("write", "b", 2)];
        let plan = FaultPlan::new(&calls, 0, None);
        assert_eq!((plan.tested.calls, plan.tested.faults, plan.tested.planned), (3, 6, 6));
        let many: Vec<FaultCall> =
            (1..=50).map(|number| call("write", &format!("segment-{number}"), number)).collect();
        let plan = |seed| planned(&many, seed);
        let occurrences = |seed| -> Vec<u32> {
            let of_first = plan(seed).into_iter().filter(|one| one.fault == Fault::Eio);
            of_first.map(|one| one.call.occurrence).collect()
        };
        assert_eq!(plan(0).len(), 2 * EACH);
        assert_eq!(occurrences(0)[..3], [1, 50, 2]);
        assert_eq!(occurrences(7), occurrences(7));
        assert_ne!(occurrences(7), occurrences(8));
    }

    #[test]
    fn a_fault_without_a_report_leaves_it_incomplete() {
        let calls = [call("write", "a", 1)];
        let now = Instant::now();
        for left_out in [false, true] {
            let mut plan = FaultPlan::new(&calls, 0, None);
            while let Next::Run(step) = plan.next(now) {
                if !left_out {
                    plan.report(&step, FaultReport::Handled);
                }
            }
            plan.finish();
            assert_eq!(plan.tested.complete, !left_out);
        }
        let mut plan = FaultPlan::new(&calls, 0, Some(now));
        assert!(matches!(plan.next(now), Next::Done));
        plan.finish();
        assert!(!plan.tested.complete);
    }
}
