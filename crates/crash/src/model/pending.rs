//! What is surely on disk, what may be, and what the program sees.
//!
//! It holds the parts of operations that nothing made durable so far and knows which need which; a
//! profile says so when it adds them. It decides nothing itself.

use std::collections::BTreeSet;

use super::atom::{Atom, Effect, Id, Part, apply_all};
use super::tree::Tree;
use crate::operation::{Action, Node};

#[derive(Clone, Debug)]
pub(crate) struct Pending {
    /// Survives every crash.
    pub(crate) base: Tree,
    /// What the program sees.
    pub(crate) now: Tree,
    /// `base` and the first `frozen` atoms.
    pub(crate) settled: Tree,
    pub(crate) atoms: Vec<Atom>,
    pub(crate) frozen: usize,
    next: Id,
    part: Part,
}

impl Pending {
    pub(crate) fn new(tree: Tree) -> Self {
        Self {
            base: tree.clone(),
            now: tree.clone(),
            settled: tree,
            atoms: Vec::new(),
            frozen: 0,
            next: 1,
            part: Part { operation: 0, index: 0 },
        }
    }

    /// The next operation; its parts follow.
    pub(crate) fn begin(&mut self, operation: u32) {
        self.part = Part { operation, index: 0 };
    }

    /// The inode alone, without a name: nobody sees it, so it needs no rule.
    pub(crate) fn create(&mut self, action: &Action) {
        if let Action::Create { node, mode, kind, .. } = action {
            let unnamed =
                Action::Create { node: *node, mode: *mode, kind: kind.clone(), place: None };
            self.base.apply(&unnamed);
            self.settled.apply(&unnamed);
        }
    }

    pub(crate) fn push(&mut self, effect: Effect, mut requires: Vec<Id>) -> Id {
        requires.retain(|id| self.is_pending(*id));
        requires.sort_unstable();
        requires.dedup();
        let id = self.next;
        self.atoms.push(Atom { id, part: self.part, effect, requires });
        self.next += 1;
        self.part.index += 1;
        id
    }

    /// Adds a need to the newest parts, for parts of one operation that need each other.
    pub(crate) fn bind(&mut self, id: Id, needs: Id) {
        if let Some(at) = self.position(id) {
            self.atoms[at].requires.push(needs);
        }
    }

    pub(crate) fn is_pending(&self, id: Id) -> bool {
        self.position(id).is_some()
    }

    pub(crate) fn position(&self, id: Id) -> Option<usize> {
        self.atoms.binary_search_by_key(&id, |atom| atom.id).ok()
    }

    /// Everything these need, they included.
    pub(crate) fn with_needs(&self, ids: impl IntoIterator<Item = Id>) -> BTreeSet<Id> {
        let mut found = BTreeSet::new();
        let mut open: Vec<Id> = ids.into_iter().collect();
        while let Some(id) = open.pop() {
            if let Some(at) = self.position(id)
                && found.insert(id)
            {
                open.extend(&self.atoms[at].requires);
            }
        }
        found
    }

    /// Everything that needs these, they included.
    pub(crate) fn with_dependents(&self, ids: impl IntoIterator<Item = Id>) -> BTreeSet<Id> {
        let mut found: BTreeSet<Id> = ids.into_iter().collect();
        loop {
            let before = found.len();
            for atom in &self.atoms {
                if atom.requires.iter().any(|id| found.contains(id)) {
                    found.insert(atom.id);
                }
            }
            if found.len() == before {
                return found;
            }
        }
    }

    /// These, and what they need, survive from now on. Gives back what they were.
    pub(crate) fn absorb(&mut self, ids: impl IntoIterator<Item = Id>) -> Vec<Atom> {
        let durable = self.with_needs(ids);
        if durable.is_empty() {
            return Vec::new();
        }
        let mut absorbed: Vec<Atom> = Vec::with_capacity(durable.len());
        let mut left = Vec::with_capacity(self.atoms.len() - durable.len());
        let mut frozen = 0;
        for (at, atom) in std::mem::take(&mut self.atoms).into_iter().enumerate() {
            if !durable.contains(&atom.id) {
                left.push(atom);
                continue;
            }
            overtake(&mut left, &atom);
            frozen += usize::from(at < self.frozen);
            absorbed.push(atom);
        }
        let all: Vec<_> = absorbed.iter().map(|atom| (atom, None)).collect();
        apply_all(&mut self.base, &all);
        if left.is_empty() {
            self.settled = self.base.clone();
        } else {
            apply_all(&mut self.settled, &all[frozen..]);
        }
        self.frozen -= frozen;
        self.atoms = left;
        absorbed
    }

    /// Leaves at most `window` atoms to play with: the older ones survive or are lost together.
    pub(crate) fn freeze(&mut self, window: usize) {
        while self.atoms.len() - self.frozen > window {
            let operation = self.atoms[self.frozen].part.operation;
            // The parts of one operation may need each other and stay together.
            while let Some(atom) = self.atoms.get(self.frozen)
                && atom.part.operation == operation
            {
                atom.apply(&mut self.settled);
                self.frozen += 1;
            }
        }
    }

    /// Whether the size of a file depends on what survives.
    pub(crate) fn size_is_open(&self, node: Node) -> bool {
        self.of_node(node).any(|atom| {
            matches!(atom.effect, Effect::Size { .. } | Effect::Inode(Action::Truncate { .. }))
        })
    }

    pub(crate) fn of_node(&self, node: Node) -> impl Iterator<Item = &Atom> {
        self.atoms.iter().filter(move |atom| atom.node() == Some(node))
    }
}

/// `durable` comes after the atoms in `left` and will be on disk before them: what it wipes out
/// must not come back when they are applied to it.
fn overtake(left: &mut [Atom], durable: &Atom) {
    let (node, from, to, shrinks) = match &durable.effect {
        Effect::Inode(Action::Truncate { node, size }) => (*node, *size, u64::MAX, true),
        Effect::Inode(Action::Zero { node, offset, length, .. }) => {
            (*node, *offset, offset.saturating_add(*length), false)
        }
        Effect::Bytes { node, pieces, .. } => {
            for (from, to) in pieces.clone() {
                overtake_range(left, *node, from, to);
            }
            return;
        }
        _ => return,
    };
    overtake_range(left, node, from, to);
    if shrinks {
        for atom in left {
            match &mut atom.effect {
                Effect::Size { node: one, size } if *one == node => *size = 0,
                Effect::Inode(
                    Action::Truncate { node: one, .. } | Action::Allocate { node: one, .. },
                ) if *one == node => {
                    atom.effect = Effect::Flush { node };
                }
                Effect::Inode(Action::Zero { node: one, keep_size, .. }) if *one == node => {
                    *keep_size = true;
                }
                _ => {}
            }
        }
    }
}

fn overtake_range(left: &mut [Atom], node: Node, from: u64, to: u64) {
    for atom in left {
        if atom.node() == Some(node) {
            atom.trim(from, to);
        }
    }
}
