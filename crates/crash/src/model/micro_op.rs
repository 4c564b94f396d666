//! Micro-operations: the smallest parts of an operation, each of which may survive a crash without
//! the others.
//!
//! A rename is one part. A write that grows a file is two: the size and the bytes.

use std::fmt;

use crate::model::tree::Tree;
use crate::model::tree::file_content::PAGE;
use crate::operation::{Action, DirEntry, Node};
use crate::recorded_bytes::RecordedBytes;

/// The number of a part in a recording, in order.
pub(crate) type MicroOpId = u64;

/// A part of an operation, for people and for keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Part {
    /// The number of the operation, from 1.
    pub operation: u32,
    /// The index of the part, from 0.
    pub index: u8,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.operation, self.index)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct MicroOp {
    pub(crate) id: MicroOpId,
    pub(crate) part: Part,
    pub(crate) effect: Effect,
    /// Survives only if these do. They precede it, or belong to the same operation.
    pub(crate) requires: Vec<MicroOpId>,
}

#[derive(Clone, Debug)]
pub(crate) enum Effect {
    /// A change of names: a link, removal, rename or exchange.
    Name(Action),
    /// A truncation, allocation, hole, mode or attribute.
    Inode(Action),
    /// A write grows a file to at least this size.
    Size { node: Node, size: u64 },
    /// Bytes of a write; `pieces` are the ranges of the file that nothing durable has overwritten.
    Bytes { node: Node, offset: u64, data: RecordedBytes, pieces: Vec<(u64, u64)>, fresh: bool },
    /// The file system allocated delayed blocks.
    Flush { node: Node },
}

impl Effect {
    /// Zeros instead of bytes; their effect on the file follows the rules of a write.
    pub(crate) fn zeros(node: Node, from: u64, to: u64) -> Self {
        let data = vec![0; (to - from) as usize].into();
        Self::Bytes { node, offset: from, data, pieces: vec![(from, to)], fresh: false }
    }
}

/// The parts of a zeroed range that share their page with remaining bytes: the file system writes
/// zeros over them as if they were data.
pub(crate) fn edges(offset: u64, end: u64, size: u64) -> Vec<(u64, u64)> {
    let page = PAGE as u64;
    let end = end.min(size);
    let head = (offset, end.min(offset.next_multiple_of(page)));
    let tail = (head.1.max(end / page * page), end);
    // The end of the file counts as the end of a page.
    let tail = if end == size { (end, end) } else { tail };
    let head = if offset.is_multiple_of(page) { (offset, offset) } else { head };
    [head, tail].into_iter().filter(|(from, to)| from < to).collect()
}

/// A zeroed range without its [`edges`]: whole pages, and the size.
pub(crate) fn inner(action: &Action, size: u64) -> Action {
    let mut action = action.clone();
    if let Action::Zero { offset, length, .. } = &mut action {
        let end = offset.saturating_add(*length);
        let edges = edges(*offset, end, size);
        let from = edges.iter().find(|edge| edge.0 == *offset).map_or(*offset, |edge| edge.1);
        let to = edges.iter().find(|edge| edge.1 == end).map_or(end, |edge| edge.0.max(from));
        (*offset, *length) = (from, to - from);
    }
    action
}

/// An allocation that does not make the file longer for the program does not change the size on disk,
/// which may be smaller. Except on ext4, which considers the size on disk, too.
pub(crate) fn within_size(action: &Action, size: u64) -> Action {
    let mut action = action.clone();
    if let Action::Allocate { offset, length, keep_size, .. }
    | Action::Zero { offset, length, keep_size, .. } = &mut action
    {
        *keep_size |= offset.saturating_add(*length) <= size;
    }
    action
}

/// A zeroed range if the last block of a file is no exception: its edges, which are written
/// as bytes, and the remainder, if there is any.
pub(crate) fn by_whole_blocks(action: &Action, size: u64) -> (Vec<(u64, u64)>, Option<Action>) {
    let &Action::Zero { node, offset, length, keep_size, hole } = action else {
        return (Vec::new(), None);
    };
    let page = PAGE as u64;
    let end = offset.saturating_add(length);
    let first = offset.next_multiple_of(page);
    let last = (end / page * page).max(first);
    let edges = [(offset, end.min(first)), (last, end)].map(|(from, to)| (from, to.min(size)));
    let (from, to) = if keep_size { (first, last) } else { (first.min(end), end) };
    let whole = Action::Zero { node, offset: from, length: to - from, keep_size, hole };
    let edges = edges.into_iter().filter(|(from, to)| from < to).collect();
    (edges, (from < to || !keep_size).then_some(whole))
}

impl MicroOp {
    pub(crate) fn apply(&self, tree: &mut Tree) {
        self.apply_up_to(tree, None, 0);
    }

    /// Bytes past the end are on disk but invisible, unless the file grows to `reach` later.
    /// Torn new blocks bring the size of their remainder.
    fn apply_up_to(&self, tree: &mut Tree, torn: Option<Torn>, reach: u64) {
        match &self.effect {
            Effect::Name(action) | Effect::Inode(action) => tree.apply(action),
            Effect::Size { node, size } => {
                tree.bytes(*node, |bytes| bytes.resize(bytes.size().max(*size)));
            }
            Effect::Bytes { node, offset, data, pieces, fresh } => tree.bytes(*node, |bytes| {
                let whole = torn.is_none().then_some(pieces).into_iter().flatten().copied();
                let left = torn.map(|torn| pieces.iter().flat_map(move |piece| torn.keep(*piece)));
                for (from, to) in whole.chain(left.into_iter().flatten()) {
                    let limit = if torn.is_some() && *fresh { to } else { bytes.size().max(reach) };
                    let to = to.min(limit);
                    if from < to {
                        let within = (from - offset) as usize..(to - offset) as usize;
                        bytes.write_part(*offset, data, within);
                    }
                }
            }),
            Effect::Flush { .. } => {}
        }
    }

    /// The file or directory whose own content this is; a name belongs to its directory.
    pub(crate) fn node(&self) -> Option<Node> {
        match &self.effect {
            Effect::Name(_) => None,
            Effect::Inode(action) => inode_of(action),
            Effect::Size { node, .. } | Effect::Bytes { node, .. } | Effect::Flush { node } => {
                Some(*node)
            }
        }
    }

    /// The end of its bytes.
    pub(crate) fn end(&self) -> Option<u64> {
        match &self.effect {
            Effect::Bytes { pieces, .. } => pieces.iter().map(|(_, to)| *to).max(),
            _ => None,
        }
    }

    /// Something durable overwrote this range: its bytes will never be visible.
    pub(crate) fn trim(&mut self, from: u64, to: u64) {
        if let Effect::Bytes { pieces, .. } = &mut self.effect {
            *pieces = pieces
                .iter()
                .flat_map(|&(start, end)| [(start, end.min(from)), (start.max(to), end)])
                .filter(|(start, end)| start < end)
                .collect();
        }
    }
}

/// Applies the parts that survive, in order.
pub(crate) fn apply_all(tree: &mut Tree, micro_ops: &[(&MicroOp, Option<Torn>)]) {
    // From the end: how far each file will grow before it is cut.
    let mut reach: Vec<(Node, u64)> = Vec::new();
    let mut reaches = vec![0; micro_ops.len()];
    for (at, (micro_op, _)) in micro_ops.iter().enumerate().rev() {
        let Some(node) = micro_op.node() else { continue };
        let slot = match reach.iter().position(|(one, _)| *one == node) {
            Some(slot) => slot,
            None => {
                reach.push((node, 0));
                reach.len() - 1
            }
        };
        match &micro_op.effect {
            Effect::Size { size, .. } => reach[slot].1 = reach[slot].1.max(*size),
            Effect::Inode(Action::Truncate { size, .. }) => reach[slot].1 = *size,
            Effect::Inode(
                Action::Allocate { offset, length, keep_size: false, .. }
                | Action::Zero { offset, length, keep_size: false, .. },
            ) => reach[slot].1 = reach[slot].1.max(offset.saturating_add(*length)),
            _ => reaches[at] = reach[slot].1,
        }
    }
    for ((micro_op, torn), reach) in micro_ops.iter().zip(reaches) {
        micro_op.apply_up_to(tree, *torn, reach);
    }
}

/// Where a write was torn, as an offset in the file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Torn {
    /// The bytes before the offset survive.
    Head(u64),
    /// The bytes from the offset on survive.
    Tail(u64),
    /// The bytes before the first offset and from the second on survive.
    Ends(u64, u64),
}

impl Torn {
    fn keep(self, (from, to): (u64, u64)) -> impl Iterator<Item = (u64, u64)> {
        let kept = match self {
            Self::Head(cut) => [(from, to.min(cut)), (to, to)],
            Self::Tail(cut) => [(from.max(cut), to), (to, to)],
            Self::Ends(head, tail) => [(from, to.min(head)), (from.max(tail), to)],
        };
        kept.into_iter().filter(|(from, to)| from < to)
    }
}

/// The node whose contents or attributes an action changes.
pub(crate) fn inode_of(action: &Action) -> Option<Node> {
    match action {
        Action::Truncate { node, .. }
        | Action::Allocate { node, .. }
        | Action::Zero { node, .. }
        | Action::Mode { node, .. }
        | Action::Attribute { node, .. }
        | Action::Write { node, .. } => Some(*node),
        _ => None,
    }
}

/// The names an action changes, the removed one before the new one.
pub(crate) fn dir_entries(action: &Action) -> Vec<&DirEntry> {
    match action {
        Action::Create { dir_entry: Some(dir_entry), .. }
        | Action::Link { dir_entry, .. }
        | Action::Remove { dir_entry, .. } => vec![dir_entry],
        Action::Rename { from, to, .. } => vec![from, to],
        Action::Exchange { first_entry, second_entry, .. } => vec![first_entry, second_entry],
        _ => Vec::new(),
    }
}
