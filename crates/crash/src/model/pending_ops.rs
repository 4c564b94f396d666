//! What is certainly on disk, what may be, and what the program sees.
//!
//! Holds the parts of operations that are not durable yet and their requirements; a
//! profile supplies those when it adds a part. Decides nothing itself.

use std::collections::BTreeSet;

use crate::model::micro_op::{Effect, MicroOp, MicroOpId, Part, apply_all, dir_entries};
use crate::model::tree::Tree;
use crate::operation::{Action, Node};

#[derive(Clone, Debug)]
pub(crate) struct PendingOps {
    /// Survives every crash.
    pub(crate) base: Tree,
    /// What the program sees.
    pub(crate) now: Tree,
    /// `base` and the first `frozen` micro-operations.
    pub(crate) settled: Tree,
    pub(crate) micro_ops: Vec<MicroOp>,
    pub(crate) frozen: usize,
    next: MicroOpId,
    part: Part,
}

impl PendingOps {
    pub(crate) fn new(tree: Tree) -> Self {
        Self {
            base: tree.clone(),
            now: tree.clone(),
            settled: tree,
            micro_ops: Vec::new(),
            frozen: 0,
            next: 1,
            part: Part { operation: 0, index: 0 },
        }
    }

    /// Begins the next operation; its parts follow.
    pub(crate) fn begin(&mut self, operation: u32) {
        self.part = Part { operation, index: 0 };
    }

    /// Creates the inode alone, without a name: it is invisible, so it needs no rule. Returns the action that
    /// names it, which does.
    pub(crate) fn create(&mut self, action: &Action) -> Option<Action> {
        let Action::Create { node, mode, kind, dir_entry } = action else { return None };
        let unnamed =
            Action::Create { node: *node, mode: *mode, kind: kind.clone(), dir_entry: None };
        self.base.apply(&unnamed);
        self.settled.apply(&unnamed);
        Some(Action::Link { node: *node, dir_entry: dir_entry.clone()? })
    }

    /// Everything that is not durable yet.
    pub(crate) fn all(&self) -> Vec<MicroOpId> {
        self.micro_ops.iter().map(|micro_op| micro_op.id).collect()
    }

    pub(crate) fn push(&mut self, effect: Effect, mut requires: Vec<MicroOpId>) -> MicroOpId {
        requires.retain(|id| self.is_pending(*id));
        requires.sort_unstable();
        requires.dedup();
        let id = self.next;
        self.micro_ops.push(MicroOp { id, part: self.part, effect, requires });
        self.next += 1;
        self.part.index += 1;
        id
    }

    /// Adds a requirement to the newest parts, for parts of one operation that require each other.
    pub(crate) fn bind(&mut self, id: MicroOpId, needs: MicroOpId) {
        if let Some(at) = self.position(id) {
            self.micro_ops[at].requires.push(needs);
        }
    }

    pub(crate) fn is_pending(&self, id: MicroOpId) -> bool {
        self.position(id).is_some()
    }

    pub(crate) fn position(&self, id: MicroOpId) -> Option<usize> {
        self.micro_ops.binary_search_by_key(&id, |micro_op| micro_op.id).ok()
    }

    /// Everything these require, including themselves.
    pub(crate) fn with_needs(
        &self,
        ids: impl IntoIterator<Item = MicroOpId>,
    ) -> BTreeSet<MicroOpId> {
        let mut found = BTreeSet::new();
        let mut open: Vec<MicroOpId> = ids.into_iter().collect();
        while let Some(id) = open.pop() {
            if let Some(at) = self.position(id)
                && found.insert(id)
            {
                open.extend(&self.micro_ops[at].requires);
            }
        }
        found
    }

    /// Everything that requires these, including themselves.
    pub(crate) fn with_dependents(
        &self,
        ids: impl IntoIterator<Item = MicroOpId>,
    ) -> BTreeSet<MicroOpId> {
        let mut found: BTreeSet<MicroOpId> = ids.into_iter().collect();
        loop {
            let before = found.len();
            for micro_op in &self.micro_ops {
                if micro_op.requires.iter().any(|id| found.contains(id)) {
                    found.insert(micro_op.id);
                }
            }
            if found.len() == before {
                return found;
            }
        }
    }

    /// These, and what they require, survive from now on. Returns them.
    pub(crate) fn absorb(&mut self, ids: impl IntoIterator<Item = MicroOpId>) -> Vec<MicroOp> {
        let durable = self.with_needs(ids);
        if durable.is_empty() {
            return Vec::new();
        }
        let mut absorbed: Vec<MicroOp> = Vec::with_capacity(durable.len());
        let mut left = Vec::with_capacity(self.micro_ops.len() - durable.len());
        let mut frozen = 0;
        for (at, micro_op) in std::mem::take(&mut self.micro_ops).into_iter().enumerate() {
            if !durable.contains(&micro_op.id) {
                left.push(micro_op);
                continue;
            }
            overtake(&mut left, &micro_op);
            frozen += usize::from(at < self.frozen);
            absorbed.push(micro_op);
        }
        let all: Vec<_> = absorbed.iter().map(|micro_op| (micro_op, None)).collect();
        apply_all(&mut self.base, &all);
        if left.is_empty() {
            self.settled = self.base.clone();
        } else {
            apply_all(&mut self.settled, &all[frozen..]);
        }
        self.frozen -= frozen;
        self.micro_ops = left;
        absorbed
    }

    /// A sync of a directory makes entries that were moved into it durable. The removal of the old name is
    /// in another directory, and stays a separate part. A directory has only one name, so it moves
    /// as a whole. Returns the arrivals.
    pub(crate) fn split_arrivals(&mut self, directory: Node) -> Vec<MicroOpId> {
        let mut ids = Vec::new();
        for at in 0..self.micro_ops.len() {
            let Effect::Name(Action::Rename { node, from, to, replaced }) =
                &self.micro_ops[at].effect
            else {
                continue;
            };
            let arrives = to.directory == directory && from.directory != directory;
            if !arrives || self.now.entry(to) != Some(*node) {
                continue;
            }
            if self.now.is_directory(*node) {
                ids.push(self.micro_ops[at].id);
                continue;
            }
            let (node, replaced) = (*node, *replaced);
            let (from, to) = (from.clone(), to.clone());
            // Earlier operations on that name stay before it.
            let earlier = self.micro_ops[..at].iter().rev();
            let mut earlier = earlier.filter(|micro_op| {
                matches!(&micro_op.effect, Effect::Name(action) if dir_entries(action).contains(&&to))
            });
            ids.extend(earlier.next().map(|micro_op| micro_op.id));
            self.micro_ops[at].effect = Effect::Name(Action::Remove { node, dir_entry: from });
            if let Some(node) = replaced {
                let removal = Action::Remove { node, dir_entry: to.clone() };
                ids.push(self.push(Effect::Name(removal), Vec::new()));
            }
            let link = Action::Link { node, dir_entry: to };
            ids.push(self.push(Effect::Name(link), Vec::new()));
        }
        ids
    }

    /// Leaves at most `window` micro-operations variable: the older ones survive or are lost together.
    pub(crate) fn freeze(&mut self, window: usize) {
        while self.micro_ops.len() - self.frozen > window {
            let operation = self.micro_ops[self.frozen].part.operation;
            // The parts of one operation may require each other and stay together.
            while let Some(micro_op) = self.micro_ops.get(self.frozen)
                && micro_op.part.operation == operation
            {
                micro_op.apply(&mut self.settled);
                self.frozen += 1;
            }
        }
    }

    /// Whether the size of a file depends on which parts survive.
    pub(crate) fn size_is_open(&self, node: Node) -> bool {
        self.of_node(node).any(|micro_op| {
            matches!(micro_op.effect, Effect::Size { .. } | Effect::Inode(Action::Truncate { .. }))
        })
    }

    pub(crate) fn of_node(&self, node: Node) -> impl Iterator<Item = &MicroOp> {
        self.micro_ops.iter().filter(move |micro_op| micro_op.node() == Some(node))
    }
}

/// `durable` comes after the micro-operations in `left` but will be on disk before them: what it overwrites
/// must not come back when they are applied to it.
fn overtake(left: &mut [MicroOp], durable: &MicroOp) {
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
        for micro_op in left {
            match &mut micro_op.effect {
                Effect::Size { node: one, size } if *one == node => *size = 0,
                Effect::Inode(
                    Action::Truncate { node: one, .. } | Action::Allocate { node: one, .. },
                ) if *one == node => {
                    micro_op.effect = Effect::Flush { node };
                }
                Effect::Inode(Action::Zero { node: one, keep_size, .. }) if *one == node => {
                    *keep_size = true;
                }
                _ => {}
            }
        }
    }
}

fn overtake_range(left: &mut [MicroOp], node: Node, from: u64, to: u64) {
    for micro_op in left {
        if micro_op.node() == Some(node) {
            micro_op.trim(from, to);
        }
    }
}
