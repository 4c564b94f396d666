//! Why states fail: for every cause, a minimal set of lost operations that still makes one fail, in a
//! sentence, and one finding for all states that fail for that reason.
//!
//! It runs the check on smaller losses, always states that the profile allows, so a cause
//! costs some dozens of checks. A state can fail for several reasons, and one must not hide the others:
//!
//! - The loss of a known cause is restored in the state; if it still fails there is another cause.
//! - Equal states are checked once, at the point with the most promises, where a broken promise suffices to
//!   fail. So a failing state is also examined where it first fails, with the fewest promises.
//!
//! States that lose and keep the same in another iteration of a loop are counted without a check.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::mem::{Discriminant, discriminant};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use crate::model::explain::cause::Cause;
use crate::model::explain::description::{OperationDescriptions, OperationShape};
use crate::model::explain::minimise::{Loss, Minimiser};
use crate::model::explain::questions::Moment;
use crate::model::explore::{BadGlob, CrashState, ExploreOptions, Promises, names, volatile};
use crate::model::micro_op::{Effect, Part, Torn};
use crate::model::profile::Model;
use crate::model::replay::{Point, Replay, inside_looks, operations};
use crate::model::state_key::{Kept, StateKey};
use crate::operation::{Action, Node, Recording, WriteSync};

mod advice;
mod cause;
mod description;
mod failure_kind;
mod minimise;
mod moments;
mod name_roles;
mod proof;
mod questions;
mod sentence;

pub use cause::Circumstance;
pub use failure_kind::FailureKind;
pub use name_roles::path_shape;
pub use proof::{Proof, ProofAnswer, ProofRole, ProofState};

/// One cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Counted from 1: `F1`.
    pub id: String,
    /// What is lost, and why that fails, in words.
    pub sentence: String,
    /// The files that it concerns.
    pub files: Vec<PathBuf>,
    /// The operations lost in the smallest state that fails, in whole or in part.
    pub lost_operations: Vec<u32>,
    /// Those of them that imply the others: the ones that the sentence names as lost.
    pub named: Vec<u32>,
    /// Why that loss makes the check fail; `None` if nothing is lost, or if it was not determined.
    pub circumstance: Option<Circumstance>,
    /// How many failing states have this cause.
    pub states: usize,
    /// The smallest state that fails.
    pub key: StateKey,
    /// The number of acknowledgements with which it fails.
    pub acks: usize,
    /// The results of the check on the states that the sentence rests on.
    pub proof: Proof,
}

/// Finds the causes of failed checks, and proves each by checking further states.
pub struct Explainer<'a> {
    recording: &'a Recording,
    model: Model,
    volatile: HashSet<Node>,
    volatile_names: Vec<PathBuf>,
    /// Points without a crash state that has nothing lost.
    inside_looks: HashSet<u32>,
    /// The operations that wait for the device.
    waits: HashSet<u32>,
    promises: Arc<Promises>,
    descriptions: OperationDescriptions,
    /// By operation from 0: whether it changes anything by itself.
    acts: Vec<bool>,
    causes: Vec<Cause>,
    /// The causes of the states with this pattern.
    seen: HashMap<StatePattern, Vec<String>>,
    /// How many ids were assigned.
    count: usize,
}

/// A state without details that differ between iterations of a loop.
#[derive(PartialEq, Eq, Hash)]
struct StatePattern {
    /// The flag: something was acknowledged since.
    lost: BTreeSet<(OperationShape, bool)>,
    /// Those of which a part survives.
    half: BTreeSet<OperationShape>,
    /// Survivors after the first lost operation.
    kept: BTreeSet<OperationShape>,
    torn: Option<(OperationShape, Discriminant<Torn>)>,
    between: Option<(OperationShape, OperationShape)>,
    /// How the check fails, if known.
    kind: Option<FailureKind>,
}

/// After this many patterns, further ones are assumed to have the causes that they contain: a program whose files
/// have random names never repeats itself.
const PATTERNS: usize = 400;
/// How many operations before a crash a pattern includes.
const PATTERN_REACH: usize = 4096;

/// A state at one of the points where it can occur.
struct Occurrence {
    replay: Rc<Replay>,
    moment: Moment,
    loss: Loss,
    /// How the check fails there, if known.
    kind: Option<FailureKind>,
}

impl<'a> Explainer<'a> {
    /// Explains failures in states of this recording.
    pub fn new(
        recording: &'a Recording,
        model: Model,
        options: &ExploreOptions,
    ) -> Result<Self, BadGlob> {
        let silent = |action: &Action| {
            matches!(
                action,
                Action::Sync { .. }
                    | Action::SyncPart { .. }
                    | Action::SyncRange { .. }
                    | Action::SyncAll
                    | Action::Close { .. }
            )
        };
        let waits = |action: &Action| matches!(action, Action::Write { sync, .. } if *sync != WriteSync::None);
        let waiting = operations(recording).filter(|(_, one)| waits(&one.action));
        let volatile = volatile(recording, options)?;
        Ok(Self {
            recording,
            model,
            volatile_names: names(recording, &volatile),
            volatile,
            inside_looks: inside_looks(recording),
            waits: waiting.map(|(number, _)| number).collect(),
            promises: Arc::new(Promises::new(recording)),
            descriptions: OperationDescriptions::new(recording),
            acts: operations(recording).map(|(_, one)| !silent(&one.action)).collect(),
            causes: Vec::new(),
            seen: HashMap::new(),
            count: 0,
        })
    }

    /// The recording is that of a check: sentences call its operations those of the recovery.
    #[must_use]
    pub fn of_recovery(self) -> Self {
        Self { descriptions: self.descriptions.of_recovery(), ..self }
    }

    /// Adds a failing state, with how it fails if known. `fails` checks a state again
    /// and returns how it fails, if it does. Returns the id of a finding it belongs to.
    pub fn add(
        &mut self,
        state: &CrashState,
        kind: Option<FailureKind>,
        mut fails: impl FnMut(&CrashState) -> Option<FailureKind>,
    ) -> String {
        let pattern = self.pattern(state, kind.clone());
        let ids = match self.seen.get(&pattern) {
            Some(ids) => ids.clone(),
            None => {
                let ids = self.examine(state, kind, &mut fails);
                self.seen.insert(pattern, ids.clone());
                ids
            }
        };
        for cause in &mut self.causes {
            cause.finding.states += usize::from(ids.contains(&cause.finding.id));
        }
        ids.into_iter().next().unwrap_or_default()
    }

    /// A state whose cause is not determined: what it loses, and that the check fails.
    pub fn unexplained(&self, state: &CrashState) -> Finding {
        let point = state.key.point;
        Finding {
            id: String::new(),
            sentence: self.descriptions.of_unexplained(point.operation, &state.lost),
            files: self.files(state.lost.iter().copied()),
            lost_operations: state.lost.clone(),
            named: Vec::new(),
            circumstance: None,
            states: 1,
            key: state.key.clone(),
            acks: state.acks,
            proof: Proof::default(),
        }
    }

    /// The causes found so far.
    pub fn findings(&self) -> Vec<Finding> {
        self.causes.iter().map(|cause| cause.finding.clone()).collect()
    }

    fn pattern(&self, state: &CrashState, kind: Option<FailureKind>) -> StatePattern {
        let shape = |number: u32| self.descriptions.shape(number);
        let point = state.key.point.operation;
        let lost =
            state.lost.iter().map(|number| (shape(*number), self.is_promised(*number, state.acks)));
        let first = state.lost.first().copied().unwrap_or(point);
        let kept = (first + 1..=point)
            .rev()
            .take(PATTERN_REACH)
            .filter(|number| state.lost.binary_search(number).is_err())
            .map(shape);
        StatePattern {
            lost: lost.collect(),
            half: state.half.iter().map(|number| shape(*number)).collect(),
            kept: kept.collect(),
            torn: state.key.torn.map(|(part, torn)| (shape(part.operation), discriminant(&torn))),
            between: state.lost.is_empty().then(|| (shape(point), shape(point + 1))),
            kind,
        }
    }

    /// Whether something was acknowledged after an operation. The operation right before an acknowledgement does not
    /// count.
    fn is_promised(&self, operation: u32, acks: usize) -> bool {
        acks > self.promises.before(operation)
    }

    /// The causes of a state with a new pattern.
    fn examine(
        &mut self,
        state: &CrashState,
        kind: Option<FailureKind>,
        fails: &mut impl FnMut(&CrashState) -> Option<FailureKind>,
    ) -> Vec<String> {
        let moment = Moment { point: state.key.point, acks: state.acks };
        let Some(replay) = self.replay_at(moment.point) else { return Vec::new() };
        let loss = Loss::of(&replay, &state.key);
        let last = Occurrence { replay, moment, loss, kind };
        if state.key.kept == Kept::Everything {
            return vec![self.insert_stopped(&last, fails)];
        }
        if self.seen.len() >= PATTERNS
            && let Some(cause) = self.contained(&last, &last.loss, None)
        {
            return vec![cause.finding.id.clone()];
        }
        let mut ids = Vec::new();
        if let Some(first) = self.first(&last, &state.key, fails) {
            ids = match self.causes(&first, fails) {
                Some(ids) => ids,
                None => vec![self.insert_stopped(&first, fails)],
            };
            // With as many promises it fails for the same reasons, and therefore in the same way.
            let same = last.kind.is_some() && first.kind == last.kind;
            if first.moment.acks == last.moment.acks || same {
                return ids;
            }
        }
        match self.causes(&last, fails) {
            Some(more) => ids.extend(more),
            None => ids.push(self.insert_stopped(&last, fails)),
        }
        ids.sort();
        ids.dedup();
        ids
    }

    /// A state that fails with nothing lost.
    fn insert_stopped(
        &mut self,
        here: &Occurrence,
        fails: &mut impl FnMut(&CrashState) -> Option<FailureKind>,
    ) -> String {
        let promises = Arc::clone(&self.promises);
        let mut minimiser = here.minimiser(&promises, fails);
        let cause = self.stopped(&mut minimiser, here.moment);
        self.insert(cause)
    }

    /// The same state where it fails with the fewest promises: right after the last operation that
    /// left something in it, or after a later acknowledgement. `None` if that is the current point.
    fn first(
        &self,
        last: &Occurrence,
        key: &StateKey,
        fails: &mut impl FnMut(&CrashState) -> Option<FailureKind>,
    ) -> Option<Occurrence> {
        let lost = last.loss.operations(&last.replay);
        let micro_ops = last.replay.pending.micro_ops.iter();
        let kept = micro_ops
            .filter(|micro_op| !last.loss.parts.contains(&micro_op.id))
            .filter(|micro_op| !matches!(micro_op.effect, Effect::Flush { .. }))
            .map(|micro_op| micro_op.part.operation)
            .max();
        let Moment { point, acks: promised } = last.moment;
        let whole = (1..=point.operation)
            .rev()
            .find(|number| self.acts[*number as usize - 1] && !lost.contains(number));
        let made = kept.max(whole).unwrap_or(0);
        let before = (made, self.promises.before(made));
        let mut moments = vec![before];
        for number in made..=point.operation {
            let acks = self.promises.by(number);
            if acks <= promised && moments.last().is_none_or(|moment| acks > moment.1) {
                moments.push((number, acks));
            }
        }
        let tree = last.replay.build(key).digest();
        let gone: BTreeSet<Part> =
            last.loss.parts.iter().filter_map(|id| last.replay.part(*id)).collect();
        let mut at = |(operation, acks): (u32, usize)| {
            let point = Point { operation, during: false };
            let moment = Moment { point, acks };
            if moment >= last.moment || self.inside_looks.contains(&operation) {
                return None;
            }
            let replay = self.replay_at(point)?;
            let parts = replay.pending.micro_ops.iter().map(|micro_op| micro_op.part);
            let parts = parts.filter(|part| gone.contains(part)).collect();
            let key = StateKey { point, kept: Kept::AllBut(parts), torn: key.torn };
            let loss = Loss::of(&replay, &key);
            let one = Occurrence { replay, moment, loss, kind: None };
            // Something that became durable in between may have changed it.
            if one.replay.build(&key).digest() != tree {
                return None;
            }
            let kind = one.minimiser(&self.promises, fails).kind(&key)?;
            Some(Occurrence { kind: Some(kind), ..one })
        };
        if let Some(first) = at(moments[0]) {
            return Some(first);
        }
        // A state that fails with few promises fails with more.
        let (mut passes, mut found) = (0, None);
        let mut end = moments.len();
        while end - passes > 1 {
            let middle = passes + (end - passes) / 2;
            match at(moments[middle]) {
                Some(one) => (end, found) = (middle, Some(one)),
                None => passes = middle,
            }
        }
        found
    }

    /// The causes of a state. `None` if it fails with nothing lost as well.
    fn causes(
        &mut self,
        here: &Occurrence,
        fails: &mut impl FnMut(&CrashState) -> Option<FailureKind>,
    ) -> Option<Vec<String>> {
        let promises = Arc::clone(&self.promises);
        let mut minimiser = here.minimiser(&promises, fails);
        let inside = self.inside_looks.contains(&here.moment.point.operation);
        if !inside && minimiser.whole_fails() {
            return None;
        }
        let mut ids = Vec::new();
        let mut loss = here.loss.clone();
        loop {
            let (id, lost) = match self.contained(here, &loss, minimiser.questions.wanted.as_ref())
            {
                Some(cause) => (cause.finding.id.clone(), cause.lost.clone()),
                None => {
                    minimiser.promises_only(self.quiet(here, &loss), &loss);
                    let cause = self.explain(&mut minimiser, &loss);
                    minimiser.promises_also();
                    let lost = cause.lost.clone();
                    (self.insert(cause), lost)
                }
            };
            ids.push(id);
            let rest = loss.without(&here.replay, |operation| {
                lost.contains(&self.descriptions.shape(operation))
            });
            if rest == loss || rest.is_nothing() {
                return Some(ids);
            }
            let key = rest.key(&here.replay, here.moment);
            // The remaining loss may fail in a different way.
            let Some(kind) = minimiser.kind(&key) else { return Some(ids) };
            let wanted = &mut minimiser.questions.wanted;
            *wanted = wanted.is_some().then_some(kind);
            loss = rest;
        }
    }

    /// How many promises were made before the first lost operation.
    fn quiet(&self, here: &Occurrence, loss: &Loss) -> usize {
        let first = loss.operations(&here.replay).first().copied();
        self.promises.before(first.unwrap_or(0)).min(here.moment.acks)
    }

    /// A known cause that a loss which fails in this way may contain.
    fn contained(
        &self,
        here: &Occurrence,
        loss: &Loss,
        kind: Option<&FailureKind>,
    ) -> Option<&Cause> {
        let operations = loss.operations(&here.replay);
        let lost: BTreeSet<OperationShape> =
            operations.iter().map(|number| self.descriptions.shape(*number)).collect();
        let promised: BTreeSet<OperationShape> = operations
            .iter()
            .filter(|number| self.is_promised(**number, here.moment.acks))
            .map(|number| self.descriptions.shape(*number))
            .collect();
        let first = operations.first().copied().unwrap_or(0);
        let kept: BTreeSet<OperationShape> = (first + 1..=here.moment.point.operation)
            .rev()
            .take(PATTERN_REACH)
            .filter(|number| !operations.contains(number))
            .map(|number| self.descriptions.shape(number))
            .collect();
        let half: BTreeSet<OperationShape> = operations
            .iter()
            .filter(|number| {
                let parts = here.replay.pending.micro_ops.iter();
                let mut parts = parts.filter(|micro_op| micro_op.part.operation == **number);
                parts.any(|micro_op| !loss.parts.contains(&micro_op.id))
            })
            .map(|number| self.descriptions.shape(*number))
            .collect();
        self.causes.iter().find(|cause| {
            !cause.lost.is_empty()
                && (kind.is_none() || cause.kind.is_none() || cause.kind.as_ref() == kind)
                && (!cause.half || !cause.lost.is_disjoint(&half))
                && cause.lost.is_subset(&lost)
                && cause.survivor.is_none_or(|survivor| kept.contains(&survivor))
                && (!cause.promised || !cause.lost.is_disjoint(&promised))
                && (!cause.torn || loss.torn.is_some())
        })
    }

    /// Adds a cause, unless it is known; returns its id.
    fn insert(&mut self, mut cause: Cause) -> String {
        if let Some(known) = self.causes.iter().find(|one| one.covers(&cause)) {
            return known.finding.id.clone();
        }
        // A smaller loss may explain states of a wider known cause.
        let wider: Vec<usize> =
            (0..self.causes.len()).filter(|at| cause.covers(&self.causes[*at])).collect();
        let id = match wider.first() {
            Some(at) => self.causes[*at].finding.id.clone(),
            None => {
                self.count += 1;
                format!("F{}", self.count)
            }
        };
        cause.finding.id.clone_from(&id);
        let gone: Vec<String> =
            wider.iter().map(|at| self.causes[*at].finding.id.clone()).collect();
        for ids in self.seen.values_mut() {
            for known in ids.iter_mut().filter(|known| gone.contains(known)) {
                known.clone_from(&id);
            }
            ids.dedup();
        }
        cause.finding.states = wider.iter().map(|at| self.causes[*at].finding.states).sum();
        let position = wider.first().copied().unwrap_or(self.causes.len());
        self.causes.retain(|one| !gone.contains(&one.finding.id));
        self.causes.insert(position.min(self.causes.len()), cause);
        id
    }
}

impl Occurrence {
    fn minimiser<'a, F: FnMut(&CrashState) -> Option<FailureKind>>(
        &'a self,
        promises: &'a Promises,
        fails: &'a mut F,
    ) -> Minimiser<'a, F> {
        Minimiser::new(promises, &self.replay, self.moment, self.kind.clone(), fails)
    }
}

#[cfg(test)]
mod proof_tests;
#[cfg(test)]
mod tests;
