//! Minimises a loss at one moment by running the check on smaller losses.
//!
//! Every state that it checks is allowed by the profile.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::model::explain::failure_kind::FailureKind;
use crate::model::explain::questions::{Moment, Questions};
use crate::model::explore::{CrashState, Promises};
use crate::model::micro_op::{MicroOpId, Part, Torn};
use crate::model::replay::Replay;
use crate::model::state_key::{Kept, StateKey};

/// Lost parts, and a torn write. Parts that require them are lost, too.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Loss {
    pub(super) parts: BTreeSet<MicroOpId>,
    pub(super) torn: Option<(Part, Torn)>,
}

impl Loss {
    /// The loss of a key, at the replay's current point.
    pub(super) fn of(replay: &Replay, key: &StateKey) -> Self {
        let micro_ops = replay.pending.micro_ops.iter();
        let lost = micro_ops.filter(|micro_op| match &key.kept {
            _ if key.torn.is_some_and(|(part, _)| part == micro_op.part) => false,
            Kept::Everything => false,
            Kept::AllBut(parts) => parts.binary_search(&micro_op.part).is_ok(),
            Kept::Only(parts) => parts.binary_search(&micro_op.part).is_err(),
        });
        Self { parts: lost.map(|micro_op| micro_op.id).collect(), torn: key.torn }
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.parts.is_empty() && self.torn.is_none()
    }

    /// The part of it that can be lost at another point.
    pub(super) fn at(&self, replay: &Replay) -> Self {
        let parts = self.parts.iter().copied().filter(|id| replay.pending.is_pending(*id));
        Self {
            parts: parts.collect(),
            torn: self.torn.filter(|(part, _)| replay.id(*part).is_some()),
        }
    }

    /// The state in which this is lost, with everything that requires it.
    pub(super) fn key(&self, replay: &Replay, moment: Moment) -> StateKey {
        let torn_id = self.torn.and_then(|(part, _)| replay.id(part));
        let lost = self.parts.iter().copied().chain(torn_id);
        let mut gone = replay.pending.with_dependents(lost);
        if let Some(id) = torn_id {
            gone.remove(&id);
        }
        let parts = gone.into_iter().filter_map(|id| replay.part(id)).collect();
        StateKey { point: moment.point, kept: Kept::AllBut(parts), torn: self.torn }
    }

    /// The operations it concerns.
    pub(super) fn operations(&self, replay: &Replay) -> BTreeSet<u32> {
        let parts = self.parts.iter().filter_map(|id| replay.part(*id));
        parts.chain(self.torn.map(|(part, _)| part)).map(|part| part.operation).collect()
    }

    /// The remaining loss if some operations survive after all, with everything they require.
    pub(super) fn without(&self, replay: &Replay, survives: impl Fn(u32) -> bool) -> Self {
        let torn_id = self.torn.and_then(|(part, _)| replay.id(part));
        let back = self.parts.iter().copied().chain(torn_id).filter(|id| {
            let part = replay.part(*id);
            part.is_some_and(|part| survives(part.operation))
        });
        let needed = replay.pending.with_needs(back);
        let whole = torn_id.is_some_and(|id| needed.contains(&id));
        Self {
            parts: self.parts.difference(&needed).copied().collect(),
            torn: self.torn.filter(|_| !whole),
        }
    }

    /// Everything that is lost with it.
    fn closed(&self, replay: &Replay) -> BTreeSet<MicroOpId> {
        replay.pending.with_dependents(self.parts.iter().copied())
    }

    /// Of a set closed under dependency, the parts that imply the rest. Of parts of
    /// one operation that require each other, the first stands for all.
    fn roots(replay: &Replay, closed: &BTreeSet<MicroOpId>, torn: Option<(Part, Torn)>) -> Self {
        let (mut roots, mut taken) = (BTreeSet::new(), BTreeSet::new());
        for id in closed {
            if !taken.contains(id) {
                roots.insert(*id);
                taken.extend(replay.pending.with_dependents([*id]));
            }
        }
        Self { parts: roots, torn }
    }
}

/// Examines the losses of one moment.
pub(super) struct Minimiser<'a, F> {
    pub(super) questions: Questions<'a, F>,
    pub(super) replay: Rc<Replay>,
    pub(super) moment: Moment,
}

impl<'a, F: FnMut(&CrashState) -> Option<FailureKind>> Minimiser<'a, F> {
    pub(super) fn new(
        promises: &'a Promises,
        replay: &Rc<Replay>,
        moment: Moment,
        wanted: Option<FailureKind>,
        fails: &'a mut F,
    ) -> Self {
        let questions = Questions::new(promises, wanted, fails);
        Self { questions, replay: Rc::clone(replay), moment }
    }

    /// If a loss fails only because of a promise, states that fail without a promise are a separate
    /// matter and do not count.
    pub(super) fn promises_only(&mut self, fewer: usize, loss: &Loss) {
        if fewer >= self.moment.acks {
            return;
        }
        let key = loss.key(&self.replay, self.moment);
        let without = self.questions.is_wanted(&self.replay, &key, fewer);
        self.questions.passes_with = (!without).then_some(fewer);
    }

    pub(super) fn promises_also(&mut self) {
        self.questions.passes_with = None;
    }

    pub(super) fn fails(&mut self, key: &StateKey) -> bool {
        self.questions.fails(&self.replay, key, self.moment.acks)
    }

    /// How a state fails, in any way.
    pub(super) fn kind(&mut self, key: &StateKey) -> Option<FailureKind> {
        self.questions.kind(&self.replay, key, self.moment.acks)
    }

    /// Whether the check fails with nothing lost at the point.
    pub(super) fn whole_fails(&mut self) -> bool {
        self.fails(&StateKey { point: self.moment.point, kept: Kept::Everything, torn: None })
    }

    pub(super) fn fails_without(&mut self, loss: &Loss) -> bool {
        let key = loss.key(&self.replay, self.moment);
        self.fails(&key)
    }

    fn fails_without_parts(
        &mut self,
        lost: impl IntoIterator<Item = MicroOpId>,
        torn: Option<(Part, Torn)>,
    ) -> bool {
        self.fails_without(&Loss { parts: lost.into_iter().collect(), torn })
    }

    /// A minimal set of lost parts that still fails: restoring any one of them is enough to pass. Parts that
    /// require them are lost with them and are not listed.
    pub(super) fn smallest(&mut self, loss: &Loss) -> Loss {
        let mut elements: Vec<MicroOpId> = loss.parts.iter().copied().collect();
        let torn_id = loss.torn.and_then(|(part, _)| self.replay.id(part));
        // A torn write is often equivalent to a lost one, or irrelevant.
        let torn = loss.torn.filter(|_| {
            let all: Vec<MicroOpId> = elements.iter().copied().chain(torn_id).collect();
            !self.fails_without_parts(all, None)
        });
        if torn.is_none() {
            elements.extend(torn_id);
            elements.sort_unstable();
        }
        let smallest = self.minimise(elements, torn);
        let smallest = self.latest(smallest, torn);
        let parts = smallest.into_iter().collect();
        self.given_back(&Loss { parts, torn })
    }

    /// Parts that require the lost ones are lost with them. If one of those alone is enough, it is the
    /// better answer; the last one implies the fewest. Of the parts of one operation the bytes tell
    /// more than the size.
    fn latest(&mut self, smallest: Vec<MicroOpId>, torn: Option<(Part, Torn)>) -> Vec<MicroOpId> {
        let replay = Rc::clone(&self.replay);
        let mut all = replay.pending.with_dependents(smallest.iter().copied());
        let operations: BTreeSet<u32> =
            smallest.iter().filter_map(|id| Some(replay.part(*id)?.operation)).collect();
        let micro_ops = replay.pending.micro_ops.iter();
        let beside = micro_ops.filter(|micro_op| operations.contains(&micro_op.part.operation));
        all.extend(beside.map(|micro_op| micro_op.id));
        let alone = all.iter().rev().filter(|id| smallest != [**id]).take(16).copied();
        let found =
            alone.collect::<Vec<_>>().into_iter().find(|id| self.fails_without_parts([*id], torn));
        found.map_or(smallest, |id| vec![id])
    }

    /// Restores parts, the first ones first and without those that require them, as long as the rest still
    /// fails.
    fn given_back(&mut self, loss: &Loss) -> Loss {
        let replay = Rc::clone(&self.replay);
        let torn = loss.torn;
        let mut closed = loss.closed(&replay);
        // Parts of later operations are never required by earlier ones.
        let operation = |id: &MicroOpId| replay.part(*id).map_or(0, |part| part.operation);
        let mut operations: Vec<u32> = closed.iter().map(operation).collect();
        operations.dedup();
        // All of them together fail; none of them would pass.
        let (mut fails, mut passes) = (0, operations.len());
        while passes - fails > 1 {
            let middle = fails + (passes - fails) / 2;
            let rest = closed.iter().copied().filter(|id| operation(id) >= operations[middle]);
            let rest: Vec<MicroOpId> = rest.collect();
            if self.fails_without_parts(rest, torn) { fails = middle } else { passes = middle }
        }
        if let Some(first) = operations.get(fails) {
            closed.retain(|id| operation(id) >= *first);
        }
        'again: loop {
            let roots = Loss::roots(&replay, &closed, torn);
            for root in &roots.parts {
                let back = replay.pending.with_needs([*root]);
                let rest: BTreeSet<MicroOpId> = closed.difference(&back).copied().collect();
                if self.fails_without_parts(rest.iter().copied(), torn) {
                    closed = rest;
                    continue 'again;
                }
            }
            return roots;
        }
    }

    /// Delta debugging: a minimal subset whose loss still fails.
    fn minimise(&mut self, mut lost: Vec<MicroOpId>, torn: Option<(Part, Torn)>) -> Vec<MicroOpId> {
        if self.fails_without_parts([], torn) {
            return Vec::new();
        }
        let mut pieces = 2;
        while lost.len() > 1 {
            let length = lost.len().div_ceil(pieces);
            let chunks: Vec<Vec<MicroOpId>> =
                lost.chunks(length).map(<[MicroOpId]>::to_vec).collect();
            let alone = chunks
                .iter()
                .position(|chunk| self.fails_without_parts(chunk.iter().copied(), torn));
            if let Some(at) = alone {
                lost = chunks[at].clone();
                pieces = 2;
                continue;
            }
            let rest = (0..chunks.len()).find_map(|at| {
                let rest: Vec<MicroOpId> =
                    lost.iter().copied().filter(|id| !chunks[at].contains(id)).collect();
                self.fails_without_parts(rest.iter().copied(), torn).then_some(rest)
            });
            match rest {
                Some(rest) if chunks.len() > 2 => {
                    lost = rest;
                    pieces = pieces.saturating_sub(1).max(2);
                }
                _ if length == 1 => break,
                _ => pieces = (pieces * 2).min(lost.len()),
            }
        }
        lost
    }
}
