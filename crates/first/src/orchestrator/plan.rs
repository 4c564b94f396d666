//! The plan of a crash test, pure: which child to start next, given the results so far, and what to
//! report.
//!
//! It has no process, clock or directory. Children may finish in any order; the report and its
//! order depend on their results and never on timing. So outcomes are *admitted* in the
//! order of their targets, checks of equal states wait for each other, and nothing is reported
//! before everything that precedes it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::directory_digest::DirectoryDigest;
use super::point_trace::PointTrace;
use super::verdict::{Check, Execution};
use retake_crash::text::count;

#[derive(Debug, Clone)]
pub(crate) struct Goal {
    /// Only this crash point.
    pub(crate) only: Option<usize>,
    /// No crash point after this one.
    pub(crate) max_crashes: Option<usize>,
    /// Continue after a failed check.
    pub(crate) keep_going: bool,
    /// Maximum number of simultaneous children.
    pub(crate) jobs: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Execute { target: usize },
    Verify { target: usize, label: String },
}

impl Step {
    pub(crate) fn target(&self) -> usize {
        match self {
            Self::Execute { target } | Self::Verify { target, .. } => *target,
        }
    }
}

/// The result of an EXECUTION child.
#[derive(Debug, Clone)]
pub(crate) struct Executed {
    pub(crate) result: Execution,
    pub(crate) trace: PointTrace,
    /// The state of the directory, if it could be read.
    pub(crate) state: Option<DirectoryDigest>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailedPhase {
    Execution,
    Verify,
}

impl FailedPhase {
    /// The value of `FIRST_PHASE`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Execution => "EXECUTION",
            Self::Verify => "VERIFY",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) target: usize,
    pub(crate) label: Option<String>,
    pub(crate) phase: FailedPhase,
    pub(crate) reason: String,
}

/// One crash point's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    Passed {
        target: usize,
        label: String,
    },
    /// Not checked: an earlier target left the same state, and its check passed without using
    /// its crash info.
    Same {
        target: usize,
        label: String,
        earlier: usize,
    },
    Failed(Failure),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finish {
    /// Every crash point was tried.
    Exhausted,
    /// The requested number was tried.
    Limited,
    /// The only requested one does not exist: the workload has this many.
    PastTheEnd {
        points: usize,
    },
    Failed,
}

#[derive(Debug)]
enum Cell {
    Executing,
    Arrived(Executed),
    Ready {
        label: String,
        state: Option<DirectoryDigest>,
    },
    Verifying {
        label: String,
        state: Option<DirectoryDigest>,
    },
    Done(Line),
    /// The workload returned in this run.
    Over {
        points: usize,
    },
    /// It did so again in this run.
    Confirmed,
}

#[derive(Debug)]
pub(crate) struct Plan {
    goal: Goal,
    cells: BTreeMap<usize, Cell>,
    issued: usize,
    admitted: usize,
    told: usize,
    /// Targets beyond this one are not needed any more.
    bound: usize,
    /// The longest run so far: all others must have begun like it.
    reference: PointTrace,
    verified: HashMap<DirectoryDigest, usize>,
    lines: VecDeque<Line>,
    failed: bool,
    finish: Option<Finish>,
}

impl Plan {
    pub(crate) fn new(goal: Goal) -> Self {
        let before = goal.only.map_or(0, |only| only - 1);
        Self {
            cells: BTreeMap::new(),
            issued: before,
            admitted: before,
            told: before,
            bound: goal.only.or(goal.max_crashes).unwrap_or(usize::MAX),
            reference: PointTrace::default(),
            verified: HashMap::new(),
            lines: VecDeque::new(),
            failed: false,
            finish: None,
            goal,
        }
    }

    /// What to start now, if anything. Checks come before new work, so that a single job alternates
    /// between execute and verify.
    pub(crate) fn next(&mut self) -> Option<Step> {
        if self.finish.is_some() {
            return None;
        }
        if let Some(target) = self.checkable() {
            let cell = self.cells.get_mut(&target)?;
            let Cell::Ready { label, state } = cell else { return None };
            let (label, state) = (label.clone(), *state);
            *cell = Cell::Verifying { label: label.clone(), state };
            return Some(Step::Verify { target, label });
        }
        let target = self.issued + 1;
        // The distance is limited: every target ahead occupies a directory.
        if target > self.bound || target > self.told + 2 * self.goal.jobs {
            return None;
        }
        self.issued = target;
        self.cells.insert(target, Cell::Executing);
        Some(Step::Execute { target })
    }

    /// The targets that were started but not reported: run ahead, or to confirm the end.
    pub(crate) fn untold(&self) -> std::ops::RangeInclusive<usize> {
        self.told + 1..=self.issued
    }

    /// The lowest target whose check can start: no lower one will still show whether the same
    /// state passes.
    fn checkable(&self) -> Option<usize> {
        let mut pending = Vec::new();
        for (target, cell) in self.cells.range(..=self.bound) {
            match cell {
                Cell::Ready { state, .. } if state.is_none() || !pending.contains(state) => {
                    return Some(*target);
                }
                Cell::Verifying { state, .. } => pending.push(*state),
                _ => {}
            }
        }
        None
    }

    pub(crate) fn executed(&mut self, target: usize, executed: Executed) {
        match &executed.result {
            // The next one is run to confirm that the workload ends here.
            Execution::Ended { .. } => self.lower(target.saturating_add(1)),
            Execution::Failed { .. } => self.lower(target),
            Execution::Crashed { .. } => {}
        }
        self.cells.insert(target, Cell::Arrived(executed));
        self.admit();
        self.tell();
    }

    pub(crate) fn checked(&mut self, target: usize, check: Check) {
        let Some(Cell::Verifying { label, state }) = self.cells.remove(&target) else { return };
        let line = match check {
            Check::Passed { looked } => {
                if let Some(state) = state.filter(|_| !looked) {
                    self.verified.entry(state).or_insert(target);
                }
                Line::Passed { target, label }
            }
            Check::Failed { reason } => {
                if !self.goal.keep_going {
                    self.lower(target);
                }
                let phase = FailedPhase::Verify;
                Line::Failed(Failure { target, label: Some(label), phase, reason })
            }
        };
        self.cells.insert(target, Cell::Done(line));
        self.tell();
    }

    /// Targets beyond this one need not be finished.
    pub(crate) fn bound(&self) -> usize {
        self.bound
    }

    pub(crate) fn line(&mut self) -> Option<Line> {
        self.lines.pop_front()
    }

    pub(crate) fn finish(&self) -> Option<&Finish> {
        self.finish.as_ref()
    }

    fn lower(&mut self, bound: usize) {
        self.bound = self.bound.min(bound);
    }

    fn admit(&mut self) {
        loop {
            let target = self.admitted + 1;
            match self.cells.get(&target) {
                Some(Cell::Arrived(_)) if target <= self.bound => {}
                _ => return,
            }
            let Some(Cell::Arrived(executed)) = self.cells.remove(&target) else { return };
            let cell = match self.cells.get(&self.admitted) {
                Some(Cell::Over { points }) => self.confirm(target, *points, executed),
                _ => self.admission(target, executed),
            };
            if matches!(cell, Cell::Done(_)) {
                self.lower(target);
            }
            self.cells.insert(target, cell);
            self.admitted = target;
        }
    }

    fn admission(&mut self, target: usize, executed: Executed) -> Cell {
        let Executed { result, trace, state } = executed;
        let difference = self.reference.difference(&trace);
        let before = self.reference.len();
        let points = trace.len();
        match result {
            Execution::Failed { reason } => failed(target, None, reason),
            Execution::Crashed { label } => match difference {
                Some(difference) => failed(target, Some(label), not_deterministic(&difference)),
                None => {
                    self.reference = trace;
                    Cell::Ready { label, state }
                }
            },
            Execution::Ended { .. } if self.goal.only.is_some() => Cell::Over { points },
            Execution::Ended { filtered: 0 } if points == 0 && before == 0 => failed(
                target,
                None,
                "the workload returned without reaching a crash point: nothing was tested".into(),
            ),
            Execution::Ended { filtered } if points == 0 && before == 0 => failed(
                target,
                None,
                format!(
                    "no label matches the label filter, though the workload reached {filtered} crash \
                     points: nothing was tested"
                ),
            ),
            Execution::Ended { .. } => match difference {
                Some(difference) => failed(target, None, not_deterministic(&difference)),
                None if points != before => failed(
                    target,
                    None,
                    not_deterministic(&format!(
                        "it returned after {} in one run and reached {before} in another",
                        count(points as u64, "crash point")
                    )),
                ),
                None => Cell::Over { points },
            },
        }
    }

    fn confirm(&self, target: usize, points: usize, executed: Executed) -> Cell {
        let counted = |n: usize| {
            let points = count(points as u64, "crash point");
            format!("it returned after {points} in one run and reached {n} in another")
        };
        match executed.result {
            Execution::Failed { reason } => failed(target, None, reason),
            Execution::Crashed { label } => {
                failed(target, Some(label), not_deterministic(&counted(target)))
            }
            Execution::Ended { .. } => match self.reference.difference(&executed.trace) {
                Some(difference) => failed(target, None, not_deterministic(&difference)),
                None if executed.trace.len() != points => {
                    failed(target, None, not_deterministic(&counted(executed.trace.len())))
                }
                None => Cell::Confirmed,
            },
        }
    }

    fn tell(&mut self) {
        self.prune();
        while self.finish.is_none() {
            let target = self.told + 1;
            match self.cells.get(&target) {
                Some(Cell::Done(line)) => {
                    let line = line.clone();
                    let fatal = match &line {
                        Line::Failed(failure) => {
                            self.failed = true;
                            failure.phase == FailedPhase::Execution || !self.goal.keep_going
                        }
                        _ => false,
                    };
                    self.lines.push_back(line);
                    self.told = target;
                    if fatal {
                        self.finish = Some(Finish::Failed);
                    } else if self.goal.only.or(self.goal.max_crashes) == Some(target) {
                        self.end(Finish::Limited);
                    }
                }
                Some(Cell::Over { points }) => {
                    if self.goal.only.is_some() {
                        self.finish = Some(Finish::PastTheEnd { points: *points });
                        return;
                    }
                    match self.cells.get(&(target + 1)) {
                        Some(Cell::Confirmed) => self.end(Finish::Exhausted),
                        // Reported next, as a failure. A limit cannot come first: nothing
                        // is run beyond it.
                        Some(Cell::Done(_)) => self.told = target,
                        _ if target == self.goal.max_crashes.unwrap_or(0) => {
                            self.end(Finish::Exhausted);
                        }
                        _ => return,
                    }
                }
                _ => return,
            }
        }
    }

    fn end(&mut self, finish: Finish) {
        self.finish = Some(if self.failed { Finish::Failed } else { finish });
    }

    fn prune(&mut self) {
        for (&target, cell) in &mut self.cells {
            if let Cell::Ready { label, state: Some(state) } = cell
                && let Some(&earlier) = self.verified.get(state)
            {
                let label = std::mem::take(label);
                *cell = Cell::Done(Line::Same { target, label, earlier });
            }
        }
    }
}

fn failed(target: usize, label: Option<String>, reason: String) -> Cell {
    let phase = FailedPhase::Execution;
    Cell::Done(Line::Failed(Failure { target, label, phase, reason }))
}

fn not_deterministic(how: &str) -> String {
    format!("the workload is not deterministic: {how}")
}

#[cfg(test)]
mod tests;
