//! The crash states worth a look at one point, by class.
//!
//! It looks at the newest parts only, at most [`WINDOW`] of them; older ones survive together or
//! are lost together. Every choice is closed under what the profile requires.

use super::atom::{Atom, Effect, Part, Torn, apply_all};
use super::key::{Kept, StateKey};
use super::machine::{Machine, Point};
use super::page::PAGE;
use super::tree::Tree;

pub(crate) const WINDOW: usize = 60;
pub const SECTOR: u64 = 512;

/// How a crash state was chosen. In order of what they yield.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Everything up to the point is there.
    Prefix,
    /// Nothing that was not synced is there.
    LoseAll,
    /// One part is lost, with what cannot be without it.
    DropOne,
    /// One part survives, with what it needs.
    KeepOne,
    /// The newest write is torn.
    Torn,
    /// Two parts are lost.
    Pair,
}

impl Class {
    pub const ALL: [Self; 6] =
        [Self::Prefix, Self::LoseAll, Self::DropOne, Self::KeepOne, Self::Torn, Self::Pair];

    pub fn name(self) -> &'static str {
        match self {
            Self::Prefix => "prefix",
            Self::LoseAll => "lose-all",
            Self::DropOne => "drop-one",
            Self::KeepOne => "keep-one",
            Self::Torn => "torn",
            Self::Pair => "pairs",
        }
    }
}

/// What survives at one point.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Choice {
    Everything,
    /// Of the window the parts in the mask, of what is older all or nothing.
    Parts {
        older: bool,
        mask: u64,
        torn: Option<(usize, Torn)>,
    },
}

/// The newest parts at a point and what they need of each other.
pub(crate) struct Window<'a> {
    machine: &'a Machine,
    atoms: &'a [Atom],
    /// By part: what it needs in the window, itself included.
    needs: Vec<u64>,
    /// By part: what needs it, itself included.
    dependents: Vec<u64>,
    /// The parts that need something older.
    rooted: u64,
    all: u64,
}

impl<'a> Window<'a> {
    /// The machine has frozen all but [`WINDOW`] parts.
    pub(crate) fn new(machine: &'a Machine) -> Self {
        let pending = &machine.pending;
        let atoms = &pending.atoms[pending.frozen..];
        let mut needs = vec![0_u64; atoms.len()];
        let mut rooted = 0_u64;
        for (at, atom) in atoms.iter().enumerate() {
            needs[at] = 1 << at;
            for id in &atom.requires {
                match pending.position(*id) {
                    Some(position) if position < pending.frozen => rooted |= 1 << at,
                    Some(position) => needs[at] |= 1 << (position - pending.frozen),
                    None => {}
                }
            }
        }
        // Needs point backwards, but for parts of one operation: two rounds reach everything.
        for _ in 0..2 {
            for at in 0..atoms.len() {
                let mut reached = needs[at];
                for other in bits(needs[at]) {
                    reached |= needs[other];
                }
                needs[at] = reached;
            }
        }
        let mut dependents = vec![0_u64; atoms.len()];
        for (at, needed) in needs.iter().enumerate() {
            for other in bits(*needed) {
                dependents[other] |= 1 << at;
            }
            if needed & rooted != 0 {
                rooted |= 1 << at;
            }
        }
        let all = if atoms.is_empty() { 0 } else { u64::MAX >> (64 - atoms.len()) };
        Self { machine, atoms, needs, dependents, rooted, all }
    }

    pub(crate) fn choices(&self, class: Class, near: usize, point: Point) -> Vec<Choice> {
        let kept = |older, mask| Choice::Parts { older, mask, torn: None };
        let first = self.atoms.len().saturating_sub(near);
        match class {
            Class::Prefix => vec![Choice::Everything],
            Class::LoseAll => vec![kept(false, 0)],
            Class::DropOne => {
                let older =
                    (self.machine.pending.frozen > 0).then(|| kept(false, self.all & !self.rooted));
                let ones =
                    (first..self.atoms.len()).map(|at| kept(true, self.all & !self.dependents[at]));
                older.into_iter().chain(ones).collect()
            }
            Class::KeepOne => (first..self.atoms.len())
                .map(|at| kept(self.rooted & self.needs[at] != 0, self.needs[at]))
                .collect(),
            Class::Torn => self.torn(point),
            Class::Pair => {
                let first = self.atoms.len().saturating_sub(near.div_ceil(2));
                (first..self.atoms.len())
                    .flat_map(|one| (one + 1..self.atoms.len()).map(move |two| (one, two)))
                    // If one takes the other along it is no pair.
                    .filter(|(one, two)| self.dependents[*one] & (1 << two) == 0)
                    .map(|(one, two)| {
                        kept(true, self.all & !self.dependents[one] & !self.dependents[two])
                    })
                    .collect()
            }
        }
    }

    /// The newest operation, if it is a write, torn at its first, middle and last bound.
    fn torn(&self, point: Point) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (at, atom) in self.atoms.iter().enumerate() {
            let Effect::Bytes { pieces, fresh, .. } = &atom.effect else { continue };
            let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { continue };
            if atom.part.operation != point.operation {
                continue;
            }
            // New blocks that grow the file are bound to their size.
            let size = bits(self.needs[at]).find(|other| {
                matches!(self.atoms[*other].effect, Effect::Size { .. })
                    && self.needs[*other] & (1 << at) != 0
            });
            let tears = self.machine.tears(*fresh, size.is_some());
            let unit = if tears.pages { PAGE as u64 } else { SECTOR };
            let lost = self.dependents[at];
            for cut in cuts(first.0, last.1, unit) {
                let torn = |torn| Choice::Parts {
                    older: true,
                    mask: self.all & !lost,
                    torn: Some((at, torn)),
                };
                choices.push(torn(Torn::Head(cut)));
                if tears.tail {
                    choices.push(torn(Torn::Tail(cut)));
                }
            }
        }
        choices
    }

    pub(crate) fn build(&self, choice: Choice) -> Tree {
        let pending = &self.machine.pending;
        let Choice::Parts { older, mask, torn } = choice else { return pending.now.clone() };
        let mut tree = if older { pending.settled.clone() } else { pending.base.clone() };
        let kept: Vec<_> = self
            .atoms
            .iter()
            .enumerate()
            .filter_map(|(at, atom)| match torn {
                Some((part, torn)) if part == at => Some((atom, Some(torn))),
                _ => (mask & (1 << at) != 0).then_some((atom, None)),
            })
            .collect();
        apply_all(&mut tree, &kept);
        tree
    }

    pub(crate) fn key(&self, choice: Choice, point: Point) -> StateKey {
        let Choice::Parts { older, mask, torn } = choice else {
            return StateKey { point, kept: Kept::Everything, torn: None };
        };
        let older_parts = self.machine.pending.atoms[..self.machine.pending.frozen].iter();
        let parts = |mask: u64| -> Vec<Part> { bits(mask).map(|at| self.atoms[at].part).collect() };
        let torn_bit = torn.map_or(0, |(at, _)| 1 << at);
        let kept = mask & !torn_bit;
        let lost = self.all & !mask & !torn_bit;
        let frozen = self.machine.pending.frozen;
        let kept_count = kept.count_ones() as usize + if older { frozen } else { 0 };
        let lost_count = lost.count_ones() as usize + if older { 0 } else { frozen };
        let kept = if kept_count < lost_count {
            let older = older_parts.filter(|_| older).map(|atom| atom.part);
            Kept::Only(older.chain(parts(kept)).collect())
        } else {
            let older = older_parts.filter(|_| !older).map(|atom| atom.part);
            Kept::AllBut(older.chain(parts(lost)).collect())
        };
        let torn = torn.map(|(at, torn)| (self.atoms[at].part, torn));
        StateKey { point, kept, torn }
    }
}

fn cuts(from: u64, to: u64, unit: u64) -> Vec<u64> {
    let first = (from / unit + 1) * unit;
    let last = (to - 1) / unit * unit;
    if first > last || last <= from {
        return Vec::new();
    }
    let middle = (first + (last - first) / 2) / unit * unit;
    let mut cuts = vec![first, middle, last];
    cuts.dedup();
    cuts
}

fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (at < 64).then_some(at)
    })
}
