//! The plan of an exploration: which state comes next, which were checked, and which fail. Starts no
//! process and reads no clock.

use std::sync::Arc;
use std::time::Instant;

use retake_crash::model::{CrashState, Tree};
use retake_runner::loop_driver::{LoopPlan, Next};

use crate::check::FailedCheck;
use crate::state_range::StateRange;

/// A state to check. States are numbered from 1, in an order that is the same on every machine.
pub struct NumberedState {
    pub number: u64,
    pub state: CrashState,
}

/// Whether a state recovers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateReport {
    Recovers,
    Fails(FailedCheck),
}

/// A state that fails.
#[derive(Clone, Debug)]
pub struct FailingState {
    pub number: u64,
    /// Without its tree.
    pub state: CrashState,
    /// How its check failed; `None` if another machine checked it.
    pub failure: Option<Arc<FailedCheck>>,
}

/// The states of an iterator, or those in a range, until a deadline.
pub struct ExplorationPlan<I> {
    states: I,
    range: StateRange,
    deadline: Option<Instant>,
    /// The number of the last state.
    number: u64,
    begun: u64,
    verified: u64,
    failing: Vec<FailingState>,
    exhausted: bool,
}

/// The results of a plan.
#[derive(Default)]
pub struct ExploredRange {
    pub verified: u64,
    /// Every state that fails, in the order of their numbers.
    pub failing: Vec<FailingState>,
    /// Whether every state was checked.
    pub complete: bool,
}

impl<I: Iterator<Item = CrashState>> ExplorationPlan<I> {
    pub fn new(states: I, range: Option<StateRange>, deadline: Option<Instant>) -> Self {
        Self {
            states,
            range: range.unwrap_or(StateRange::ALL),
            deadline,
            number: 0,
            begun: 0,
            verified: 0,
            failing: Vec::new(),
            exhausted: false,
        }
    }

    pub fn verified(&self) -> u64 {
        self.verified
    }

    pub fn failing(&self) -> usize {
        self.failing.len()
    }

    pub fn finish(self) -> ExploredRange {
        let mut failing = self.failing;
        // Workers finish in any order; findings must not depend on it.
        failing.sort_unstable_by_key(|state| state.number);
        ExploredRange {
            verified: self.verified,
            failing,
            complete: self.exhausted && self.verified == self.begun,
        }
    }
}

impl<I: Iterator<Item = CrashState>> LoopPlan for ExplorationPlan<I> {
    type Step = NumberedState;
    type Report = StateReport;

    fn next(&mut self, now: Instant) -> Next<NumberedState> {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return Next::Done;
        }
        while self.number < self.range.to {
            let Some(state) = self.states.next() else { break };
            self.number += 1;
            if self.number >= self.range.from {
                self.begun += 1;
                return Next::Run(NumberedState { number: self.number, state });
            }
        }
        self.exhausted = true;
        Next::Done
    }

    fn report(&mut self, step: &NumberedState, report: StateReport) {
        self.verified += 1;
        if let StateReport::Fails(failure) = report {
            let NumberedState { number, state } = step;
            let failure = Some(self.shared(failure));
            let state = without_tree(state);
            self.failing.push(FailingState { number: *number, state, failure });
        }
    }
}

impl<I> ExplorationPlan<I> {
    /// Thousands of states fail in the same few ways: each is kept once.
    fn shared(&self, failure: FailedCheck) -> Arc<FailedCheck> {
        let recent = self.failing.iter().rev().take(RECENT).filter_map(|one| one.failure.as_ref());
        let same = recent.into_iter().find(|one| ***one == failure).cloned();
        same.unwrap_or_else(|| Arc::new(failure))
    }
}

/// How many recent failures a new one is compared with.
const RECENT: usize = 32;

/// Thousands of trees would take too much memory, and a key suffices to rebuild one.
pub(crate) fn without_tree(state: &CrashState) -> CrashState {
    CrashState {
        key: state.key.clone(),
        class: state.class,
        acks: state.acks,
        label: state.label.clone(),
        lost: state.lost.clone(),
        half: state.half.clone(),
        tree: Tree::new(&[]),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use retake_crash::model::{CrashStates, ExploreOptions, Model};
    use retake_crash::operation::{
        Action, DirEntry, Entry, Kind, Node, Operation, Recording, WriteSync,
    };

    use super::*;

    /// A file that is created and written in ten parts.
    fn recording() -> Recording {
        let node = Node(1);
        let operation = |call: &str, action| {
            Entry::Operation(Operation { task: 1, call: call.to_owned(), action })
        };
        let dir_entry = DirEntry { directory: Node::ROOT, name: "a".into() };
        let create =
            Action::Create { node, mode: 0o644, kind: Kind::File, dir_entry: Some(dir_entry) };
        let mut entries = vec![operation("openat", create)];
        for part in 0..10 {
            let write = Action::Write {
                node,
                offset: part,
                data: [part as u8].as_slice().into(),
                sync: WriteSync::None,
                mapped: false,
            };
            entries.push(operation("write", write));
        }
        Recording {
            root: "/r".into(),
            initial: Vec::new(),
            entries,
            stacks: Default::default(),
            left_running: Default::default(),
            outside: Default::default(),
            initial_is_copy: false,
        }
    }

    fn states(recording: &Recording) -> CrashStates<'_> {
        CrashStates::new(recording, Model::Kill, ExploreOptions::default()).unwrap()
    }

    fn report(fails: bool) -> StateReport {
        let failed = FailedCheck {
            outcome: retake_types::Outcome::Exited(1),
            timeout: Duration::from_secs(1),
            output: "lost".to_owned(),
        };
        if fails { StateReport::Fails(failed) } else { StateReport::Recovers }
    }

    /// Runs the plan; every state whose number is a multiple of three fails. Returns the numbers.
    fn run<I: Iterator<Item = CrashState>>(
        plan: &mut ExplorationPlan<I>,
        now: Instant,
        most: usize,
    ) -> Vec<u64> {
        let mut numbers = Vec::new();
        while numbers.len() < most
            && let Next::Run(step) = plan.next(now)
        {
            let fails = step.number.is_multiple_of(3);
            plan.report(&step, report(fails));
            numbers.push(step.number);
        }
        numbers
    }

    #[test]
    fn every_state_is_checked_once_and_failures_are_in_order() {
        let recording = recording();
        let total = states(&recording).coverage().distinct_states();
        assert!(total > 9, "{total}");
        let mut plan = ExplorationPlan::new(states(&recording), None, None);
        // Two workers that report in reverse order.
        let now = Instant::now();
        let steps: Vec<_> = std::iter::from_fn(|| match plan.next(now) {
            Next::Run(step) => Some(step),
            _ => None,
        })
        .collect();
        assert_eq!(steps.len() as u64, total);
        for step in steps.iter().rev() {
            let fails = step.number.is_multiple_of(3);
            plan.report(step, report(fails));
        }
        let explored = plan.finish();
        assert_eq!((explored.verified, explored.complete), (total, true));
        let numbers: Vec<_> = explored.failing.iter().map(|state| state.number).collect();
        assert_eq!(numbers, (1..=total).filter(|n| n.is_multiple_of(3)).collect::<Vec<_>>());
    }

    #[test]
    fn an_exploration_of_a_range_checks_only_its_states() {
        let recording = recording();
        let range = StateRange { from: 3, to: 6 };
        let mut plan = ExplorationPlan::new(states(&recording), Some(range), None);
        assert_eq!(run(&mut plan, Instant::now(), usize::MAX), [3, 4, 5, 6]);
        let explored = plan.finish();
        assert_eq!((explored.verified, explored.complete), (4, true));
        let failures: Vec<_> = explored.failing.iter().map(|one| one.failure.clone()).collect();
        let [Some(one), Some(two)] = &failures[..] else { panic!("{failures:?}") };
        assert!(Arc::ptr_eq(one, two), "the same failure is kept once");
    }

    #[test]
    fn no_check_starts_after_the_deadline() {
        let recording = recording();
        let now = Instant::now();
        let deadline = now + Duration::from_secs(1);
        let mut plan = ExplorationPlan::new(states(&recording), None, Some(deadline));
        assert_eq!(run(&mut plan, now, 2), [1, 2]);
        assert!(matches!(plan.next(deadline), Next::Done));
        let explored = plan.finish();
        assert_eq!((explored.verified, explored.complete), (2, false));
    }

    #[test]
    fn a_state_without_a_report_leaves_it_incomplete() {
        let recording = recording();
        let mut plan = ExplorationPlan::new(states(&recording), None, None);
        let now = Instant::now();
        assert!(matches!(plan.next(now), Next::Run(_)));
        run(&mut plan, now, usize::MAX);
        assert!(!plan.finish().complete);
    }
}
