//! The crash states worth checking at one point, by class.
//!
//! Only the newest parts are lost or kept individually, at most [`WINDOW`] of them; older ones survive together or
//! are lost together. Every choice is closed under what the profile requires.

use crate::model::micro_op::{Effect, MicroOp, Part, Torn, apply_all};
use crate::model::replay::{Point, Replay};
use crate::model::state_key::{Kept, StateKey};
use crate::model::tree::Tree;
use crate::model::tree::file_content::PAGE;

pub(crate) const WINDOW: usize = 60;
/// The unit that a device writes atomically, in bytes.
pub const SECTOR: u64 = 512;

/// How a crash state was chosen, ordered by how many failures they find.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StateClass {
    /// Everything up to the point survives.
    Prefix,
    /// Nothing that was not synced survives.
    LoseAll,
    /// One part is lost, with everything that requires it.
    DropOne,
    /// One part survives, with everything it requires.
    KeepOne,
    /// A write is torn: the newest, or the last one to a file before a name or a sync.
    Torn,
    /// Two parts are lost.
    Pair,
}

impl StateClass {
    /// Every class, in the order in which they are built.
    pub const ALL: [Self; 6] =
        [Self::Prefix, Self::LoseAll, Self::DropOne, Self::KeepOne, Self::Torn, Self::Pair];

    /// Its name in logs and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefix => "nothing lost",
            Self::LoseAll => "everything lost",
            Self::DropOne => "one lost",
            Self::KeepOne => "one kept",
            Self::Torn => "a torn write",
            Self::Pair => "two lost",
        }
    }
}

/// What survives at one point.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Survivors {
    Everything,
    /// Of the window the parts in the mask; of the older parts all or none.
    Parts {
        older: bool,
        mask: u64,
        torn: Option<(usize, Torn)>,
    },
}

/// The newest parts at a point and their requirements among each other.
pub(crate) struct Window<'a> {
    replay: &'a Replay,
    micro_ops: &'a [MicroOp],
    /// By part: the parts of the window that it requires, including itself.
    needs: Vec<u64>,
    /// By part: the parts that require it, including itself.
    dependents: Vec<u64>,
    /// The parts that require something older.
    rooted: u64,
    all: u64,
}

impl<'a> Window<'a> {
    /// All but [`WINDOW`] parts of the replay are frozen.
    pub(crate) fn new(replay: &'a Replay) -> Self {
        let pending = &replay.pending;
        let micro_ops = &pending.micro_ops[pending.frozen..];
        let mut needs = vec![0_u64; micro_ops.len()];
        let mut rooted = 0_u64;
        for (at, micro_op) in micro_ops.iter().enumerate() {
            needs[at] = 1 << at;
            for id in &micro_op.requires {
                match pending.position(*id) {
                    Some(position) if position < pending.frozen => rooted |= 1 << at,
                    Some(position) => needs[at] |= 1 << (position - pending.frozen),
                    None => {}
                }
            }
        }
        // Requirements point backwards, except between parts of one operation: two rounds find everything.
        for _ in 0..2 {
            for at in 0..micro_ops.len() {
                let mut reached = needs[at];
                for other in bits(needs[at]) {
                    reached |= needs[other];
                }
                needs[at] = reached;
            }
        }
        let mut dependents = vec![0_u64; micro_ops.len()];
        for (at, needed) in needs.iter().enumerate() {
            for other in bits(*needed) {
                dependents[other] |= 1 << at;
            }
            if needed & rooted != 0 {
                rooted |= 1 << at;
            }
        }
        let all = if micro_ops.is_empty() { 0 } else { u64::MAX >> (64 - micro_ops.len()) };
        Self { replay, micro_ops, needs, dependents, rooted, all }
    }

    pub(crate) fn choices(&self, class: StateClass, near: usize, point: Point) -> Vec<Survivors> {
        let kept = |older, mask| Survivors::Parts { older, mask, torn: None };
        let first = self.micro_ops.len().saturating_sub(near);
        match class {
            StateClass::Prefix => vec![Survivors::Everything],
            StateClass::LoseAll => vec![kept(false, 0)],
            StateClass::DropOne => {
                let older =
                    (self.replay.pending.frozen > 0).then(|| kept(false, self.all & !self.rooted));
                let ones = (first..self.micro_ops.len())
                    .map(|at| kept(true, self.all & !self.dependents[at]));
                older.into_iter().chain(ones).collect()
            }
            StateClass::KeepOne => (first..self.micro_ops.len())
                .map(|at| kept(self.rooted & self.needs[at] != 0, self.needs[at]))
                .collect(),
            StateClass::Torn => self.torn(near, point),
            StateClass::Pair => {
                let first = self.micro_ops.len().saturating_sub(near.div_ceil(2));
                (first..self.micro_ops.len())
                    .flat_map(|one| (one + 1..self.micro_ops.len()).map(move |two| (one, two)))
                    // If one implies the other they are not a pair.
                    .filter(|(one, two)| self.dependents[*one] & (1 << two) == 0)
                    .map(|(one, two)| {
                        kept(true, self.all & !self.dependents[one] & !self.dependents[two])
                    })
                    .collect()
            }
        }
    }

    /// The newest operation, if it is a write, torn. After a name, a sync or any other operation without
    /// bytes: the last write of each file, a part of which may survive with the name that leads to it.
    fn torn(&self, near: usize, point: Point) -> Vec<Survivors> {
        let bytes = self
            .micro_ops
            .iter()
            .enumerate()
            .filter(|(_, micro_op)| matches!(micro_op.effect, Effect::Bytes { .. }));
        let newest = |micro_op: &MicroOp| micro_op.part.operation == point.operation;
        let own: Vec<usize> =
            bytes.clone().filter(|(_, micro_op)| newest(micro_op)).map(|(at, _)| at).collect();
        if !own.is_empty() {
            return own.into_iter().flat_map(|at| self.tears(at, true)).collect();
        }
        let mut seen = Vec::new();
        let last = bytes.rev().filter(|(_, micro_op)| {
            let node = micro_op.node();
            let is_new = !seen.contains(&node);
            seen.push(node);
            is_new
        });
        let first = self.micro_ops.len().saturating_sub(near);
        let last: Vec<usize> = last.map(|(at, _)| at).filter(|at| *at >= first).collect();
        last.into_iter().flat_map(|at| self.tears(at, false)).collect()
    }

    /// Some bytes, torn at their middle and without all but their ends, or also at their first and
    /// last bound.
    fn tears(&self, at: usize, all: bool) -> Vec<Survivors> {
        let micro_op = &self.micro_ops[at];
        let Effect::Bytes { pieces, fresh, .. } = &micro_op.effect else { return Vec::new() };
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Vec::new() };
        // New blocks that grow the file are tied to their size.
        let size = bits(self.needs[at]).find(|other| {
            matches!(self.micro_ops[*other].effect, Effect::Size { .. })
                && self.needs[*other] & (1 << at) != 0
        });
        let tears = self.replay.tears(*fresh, size.is_some());
        let unit = if tears.pages { PAGE as u64 } else { SECTOR };
        let lost = self.dependents[at];
        // Or the size is separate and comes before the bytes: then it may be the size of the remainder.
        let beside = bits(self.needs[at] & !(1 << at)).filter(|other: &usize| {
            let part = self.micro_ops[*other].part;
            part.operation == micro_op.part.operation
                && matches!(self.micro_ops[*other].effect, Effect::Size { .. })
        });
        let shorter = beside.last().filter(|_| *fresh && size.is_none());
        let torn = |lost: u64, torn| Survivors::Parts {
            older: true,
            mask: self.all & !lost,
            torn: Some((at, torn)),
        };
        let bounds = Bounds::new(first.0, last.1, unit);
        let mut choices = Vec::new();
        for cut in bounds.cuts(all) {
            choices.push(torn(lost, Torn::Head(cut)));
            if let Some(grown) = shorter {
                choices.push(torn(lost | self.dependents[grown], Torn::Head(cut)));
            }
            if tears.tail {
                choices.push(torn(lost, Torn::Tail(cut)));
            }
        }
        if let Some((head, tail)) = bounds.ends().filter(|_| tears.tail) {
            choices.push(torn(lost, Torn::Ends(head, tail)));
        }
        choices
    }

    pub(crate) fn build(&self, choice: Survivors) -> Tree {
        let pending = &self.replay.pending;
        let Survivors::Parts { older, mask, torn } = choice else { return pending.now.clone() };
        let mut tree = if older { pending.settled.clone() } else { pending.base.clone() };
        let kept: Vec<_> = self
            .micro_ops
            .iter()
            .enumerate()
            .filter_map(|(at, micro_op)| match torn {
                Some((part, torn)) if part == at => Some((micro_op, Some(torn))),
                _ => (mask & (1 << at) != 0).then_some((micro_op, None)),
            })
            .collect();
        apply_all(&mut tree, &kept);
        tree
    }

    pub(crate) fn key(&self, choice: Survivors, point: Point) -> StateKey {
        let Survivors::Parts { older, mask, torn } = choice else {
            return StateKey { point, kept: Kept::Everything, torn: None };
        };
        let older_parts = self.replay.pending.micro_ops[..self.replay.pending.frozen].iter();
        let parts =
            |mask: u64| -> Vec<Part> { bits(mask).map(|at| self.micro_ops[at].part).collect() };
        let torn_bit = torn.map_or(0, |(at, _)| 1 << at);
        let kept = mask & !torn_bit;
        let lost = self.all & !mask & !torn_bit;
        let frozen = self.replay.pending.frozen;
        let kept_count = kept.count_ones() as usize + if older { frozen } else { 0 };
        let lost_count = lost.count_ones() as usize + if older { 0 } else { frozen };
        let kept = if kept_count < lost_count {
            let older = older_parts.filter(|_| older).map(|micro_op| micro_op.part);
            Kept::Only(older.chain(parts(kept)).collect())
        } else {
            let older = older_parts.filter(|_| !older).map(|micro_op| micro_op.part);
            Kept::AllBut(older.chain(parts(lost)).collect())
        };
        let torn = torn.map(|(at, torn)| (self.micro_ops[at].part, torn));
        StateKey { point, kept, torn }
    }
}

/// Where a write may be torn: the first bound inside it and the last.
#[derive(Clone, Copy)]
struct Bounds {
    first: u64,
    last: u64,
    unit: u64,
    any: bool,
}

impl Bounds {
    fn new(from: u64, to: u64, unit: u64) -> Self {
        let first = (from / unit + 1) * unit;
        let last = (to - 1) / unit * unit;
        Self { first, last, unit, any: first <= last && last > from }
    }

    fn cuts(self, all: bool) -> Vec<u64> {
        if !self.any {
            return Vec::new();
        }
        let middle = (self.first + (self.last - self.first) / 2) / self.unit * self.unit;
        let mut cuts = if all { vec![self.first, middle, self.last] } else { vec![middle] };
        cuts.dedup();
        cuts
    }

    /// The range between the first bound and the last.
    fn ends(self) -> Option<(u64, u64)> {
        (self.any && self.first < self.last).then_some((self.first, self.last))
    }
}

fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (at < 64).then_some(at)
    })
}
