//! The check asked again about smaller losses at one point: what of a loss makes a state fail.
//!
//! Every state it asks about is one that the profile allows, and none is asked about twice.

use std::collections::{BTreeSet, HashMap};

use crate::model::explain::failure_kind::FailureKind;
use crate::model::explore::state_class::StateClass;
use crate::model::explore::{CrashState, Promises};
use crate::model::micro_op::{MicroOpId, Part, Torn};
use crate::model::replay::{Point, Replay};
use crate::model::state_key::{Kept, StateKey};

/// More checks than this at one point are not worth a shorter sentence.
pub(super) const CHECKS: usize = 80;

/// Parts that are lost, and a write that is torn. What needs them is lost, too.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Loss {
    pub(super) parts: BTreeSet<MicroOpId>,
    pub(super) torn: Option<(Part, Torn)>,
}

impl Loss {
    /// What a key loses, at the point that the replay is at.
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

    /// The operations it concerns.
    pub(super) fn operations(&self, replay: &Replay) -> BTreeSet<u32> {
        let parts = self.parts.iter().filter_map(|id| replay.part(*id));
        parts.chain(self.torn.map(|(part, _)| part)).map(|part| part.operation).collect()
    }

    /// What is still lost if some operations survive after all, with everything they need.
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
}

pub(super) struct Minimiser<'a, F> {
    promises: &'a Promises,
    pub(super) replay: &'a Replay,
    pub(super) point: Point,
    /// How many promises the check hears of.
    pub(super) acks: usize,
    /// Only what passes with so few is of interest.
    passes_with: Option<usize>,
    /// By state and promises.
    known: HashMap<(u128, usize), Option<FailureKind>>,
    /// Only what fails in this way counts; without it, what fails in any.
    pub(super) wanted: Option<FailureKind>,
    left: usize,
    fails: &'a mut F,
}

impl<'a, F: FnMut(&CrashState) -> Option<FailureKind>> Minimiser<'a, F> {
    pub(super) fn new(
        promises: &'a Promises,
        replay: &'a Replay,
        (point, acks): (Point, usize),
        wanted: Option<FailureKind>,
        fails: &'a mut F,
    ) -> Self {
        Self {
            promises,
            replay,
            point,
            acks,
            passes_with: None,
            known: HashMap::new(),
            wanted,
            left: CHECKS,
            fails,
        }
    }

    /// If a loss fails only because of what was promised, what fails without a promise is another
    /// matter and does not count.
    pub(super) fn promises_only(&mut self, fewer: usize, loss: &Loss) {
        if fewer >= self.acks {
            return;
        }
        let parts: Vec<MicroOpId> = loss.parts.iter().copied().collect();
        let key = self.key(&parts, loss.torn);
        self.passes_with = (!self.is_wanted(self.replay, &key, fewer)).then_some(fewer);
    }

    pub(super) fn promises_also(&mut self) {
        self.passes_with = None;
    }

    pub(super) fn fails(&mut self, key: &StateKey) -> bool {
        let (replay, acks) = (self.replay, self.acks);
        let fewer = self.passes_with.filter(|fewer| *fewer < acks);
        self.is_wanted(replay, key, acks)
            && fewer.is_none_or(|fewer| !self.is_wanted(replay, key, fewer))
    }

    /// Whether it fails at another point with nothing lost.
    pub(super) fn moment_fails(&mut self, replay: &Replay, point: Point) -> bool {
        let key = StateKey { point, kept: Kept::Everything, torn: None };
        self.is_wanted(replay, &key, self.acks)
    }

    /// How a state fails, in whatever way.
    pub(super) fn kind(&mut self, key: &StateKey) -> Option<FailureKind> {
        self.asked(self.replay, key, self.acks)
    }

    fn is_wanted(&mut self, replay: &Replay, key: &StateKey, acks: usize) -> bool {
        let kind = self.asked(replay, key, acks);
        kind.is_some() && (self.wanted.is_none() || kind == self.wanted)
    }

    fn asked(&mut self, replay: &Replay, key: &StateKey, acks: usize) -> Option<FailureKind> {
        let tree = replay.build(key);
        let asked = (tree.digest(), acks);
        if let Some(known) = self.known.get(&asked) {
            return known.clone();
        }
        // Without checks left nothing is taken to fail, so that what is known to fail stays.
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let state = self.promises.state(replay, key.clone(), StateClass::DropOne, tree);
        let fails = (self.fails)(&CrashState { acks, ..state });
        self.known.insert(asked, fails.clone());
        fails
    }

    /// Whether everything up to the point is too little.
    pub(super) fn whole_fails(&mut self) -> bool {
        self.fails(&StateKey { point: self.point, kept: Kept::Everything, torn: None })
    }

    pub(super) fn fails_without(&mut self, lost: &[MicroOpId], torn: Option<(Part, Torn)>) -> bool {
        let key = self.key(lost, torn);
        self.fails(&key)
    }

    /// These are lost, with everything that needs them.
    pub(super) fn key(&self, lost: &[MicroOpId], torn: Option<(Part, Torn)>) -> StateKey {
        let pending = &self.replay.pending;
        let torn_id = torn.and_then(|(part, _)| self.replay.id(part));
        let mut gone = pending.with_dependents(lost.iter().copied().chain(torn_id));
        if let Some(id) = torn_id {
            gone.remove(&id);
        }
        let parts = gone.into_iter().filter_map(|id| self.replay.part(id)).collect();
        StateKey { point: self.point, kept: Kept::AllBut(parts), torn }
    }

    /// The fewest lost parts that still fail, and whether the tear matters.
    pub(super) fn smallest(&mut self, loss: &Loss) -> (Vec<MicroOpId>, Option<(Part, Torn)>) {
        let mut elements: Vec<MicroOpId> = loss.parts.iter().copied().collect();
        let torn_id = loss.torn.and_then(|(part, _)| self.replay.id(part));
        // A torn write is often just a lost one, or beside the point.
        let torn = loss.torn.filter(|_| {
            let all: Vec<MicroOpId> = elements.iter().copied().chain(torn_id).collect();
            !self.fails_without(&all, None)
        });
        if torn.is_none() {
            elements.extend(torn_id);
            elements.sort_unstable();
        }
        let smallest = self.minimise(elements, torn);
        (self.latest(smallest, torn), torn)
    }

    /// What needs the lost parts is lost with them. If one of those alone is enough it is the
    /// better answer; the last one takes least along. Of the parts of one operation the bytes say
    /// more than the size.
    fn latest(&mut self, smallest: Vec<MicroOpId>, torn: Option<(Part, Torn)>) -> Vec<MicroOpId> {
        let replay = self.replay;
        let mut all = replay.pending.with_dependents(smallest.iter().copied());
        let operations: BTreeSet<u32> =
            smallest.iter().filter_map(|id| Some(replay.part(*id)?.operation)).collect();
        let micro_ops = replay.pending.micro_ops.iter();
        let beside = micro_ops.filter(|micro_op| operations.contains(&micro_op.part.operation));
        all.extend(beside.map(|micro_op| micro_op.id));
        let alone = all.iter().rev().filter(|id| smallest != [**id]).take(16).copied();
        let found =
            alone.collect::<Vec<_>>().into_iter().find(|id| self.fails_without(&[*id], torn));
        found.map_or(smallest, |id| vec![id])
    }

    /// Delta debugging: the fewest of these whose loss still fails.
    fn minimise(&mut self, mut lost: Vec<MicroOpId>, torn: Option<(Part, Torn)>) -> Vec<MicroOpId> {
        if self.fails_without(&[], torn) {
            return Vec::new();
        }
        let mut pieces = 2;
        while lost.len() > 1 {
            let length = lost.len().div_ceil(pieces);
            let chunks: Vec<Vec<MicroOpId>> =
                lost.chunks(length).map(<[MicroOpId]>::to_vec).collect();
            let alone = chunks.iter().position(|chunk| self.fails_without(chunk, torn));
            if let Some(at) = alone {
                lost = chunks[at].clone();
                pieces = 2;
                continue;
            }
            let rest = (0..chunks.len()).find_map(|at| {
                let rest: Vec<MicroOpId> =
                    lost.iter().copied().filter(|id| !chunks[at].contains(id)).collect();
                self.fails_without(&rest, torn).then_some(rest)
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
