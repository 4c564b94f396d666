//! The strictest interpretation: a sync of a file makes its content durable, a sync of
//! its directory its name, and any other part may be lost.
//!
//! It still guarantees: a rename is atomic until a sync of the target directory, and
//! operations on one name keep their order.

use std::collections::HashMap;

use crate::model::micro_op::{
    Effect, MicroOp, MicroOpId, by_whole_blocks, dir_entries, edges, inode_of, within_size,
};
use crate::model::pending_ops::PendingOps;
use crate::model::tree::file_content::PAGE;
use crate::operation::{Action, DirEntry, Node, WriteSync};
use crate::recorded_bytes::RecordedBytes;

/// A write over several pages may survive in some of them: at most this many pieces are distinguished.
const PIECES: usize = 4;

#[derive(Clone, Debug, Default)]
pub(crate) struct Posix {
    /// The last operation on each name.
    names: HashMap<DirEntry, MicroOpId>,
}

impl Posix {
    pub(crate) fn step(&mut self, pending: &mut PendingOps, action: &Action) {
        match action {
            Action::Create { .. } => {
                if let Some(link) = pending.create(action) {
                    self.name(pending, &link);
                }
            }
            Action::Link { .. }
            | Action::Remove { .. }
            | Action::Rename { .. }
            | Action::Exchange { .. } => self.name(pending, action),
            Action::Write { node, offset, data, .. } => write(pending, *node, *offset, data),
            Action::Truncate { node, size } => {
                let old = pending.now.file(*node).map_or(0, |file| file.size());
                zeros(pending, *node, &edges(*size, u64::MAX, old));
                pending.push(Effect::Inode(action.clone()), Vec::new());
            }
            Action::Zero { node, offset, length, keep_size, .. } => {
                let size = pending.now.file(*node).map_or(0, |file| file.size());
                let end = offset.saturating_add(*length);
                if pending.size_is_open(*node) {
                    pending.push(Effect::Size { node: *node, size: end.min(size) }, Vec::new());
                }
                if !keep_size && end > size {
                    pending.push(Effect::Size { node: *node, size: end }, Vec::new());
                }
                let (edges, whole) = by_whole_blocks(&within_size(action, u64::MAX), size);
                zeros(pending, *node, &edges);
                if let Some(whole) = whole {
                    pending.push(Effect::Inode(whole), Vec::new());
                }
            }
            Action::Allocate { .. } | Action::Mode { .. } | Action::Attribute { .. } => {
                pending.push(Effect::Inode(action.clone()), Vec::new());
            }
            Action::Sync { node, data_only } => self.sync(pending, *node, *data_only),
            Action::SyncAll => {
                pending.absorb(pending.all());
                self.names.clear();
            }
            Action::SyncPart { node, offset, length } => {
                sync_part(pending, *node, *offset, offset.saturating_add(*length));
            }
            Action::SyncRange { .. } | Action::Close { .. } => {}
        }
    }

    /// The previous write waits for the device: its own range is durable.
    pub(crate) fn wait(pending: &mut PendingOps, action: &Action) {
        let Action::Write { node, sync, data, .. } = action else { return };
        if data.is_empty() {
            return;
        }
        let Some(last) = pending.of_node(*node).last().map(|micro_op| micro_op.part) else {
            return;
        };
        // Without the truncations before it the range would not read back as written.
        let durable: Vec<MicroOpId> = pending
            .of_node(*node)
            .filter(|micro_op| {
                micro_op.part.operation == last.operation
                    || matches!(micro_op.effect, Effect::Inode(_))
            })
            .filter(|micro_op| *sync == WriteSync::Full || is_data(micro_op))
            .map(|micro_op| micro_op.id)
            .collect();
        pending.absorb(durable);
    }

    fn name(&mut self, pending: &mut PendingOps, action: &Action) {
        let dir_entries = dir_entries(action);
        let requires = dir_entries
            .iter()
            .filter_map(|dir_entry| self.names.get(*dir_entry).copied())
            .collect();
        let id = pending.push(Effect::Name(action.clone()), requires);
        for dir_entry in dir_entries {
            self.names.insert(dir_entry.clone(), id);
        }
    }

    fn sync(&mut self, pending: &mut PendingOps, node: Node, data_only: bool) {
        // The names are the data of a directory.
        let is_directory = pending.now.is_directory(node);
        let data_only = data_only && !is_directory;
        let arrived = if is_directory { pending.split_arrivals(node) } else { Vec::new() };
        let durable: Vec<MicroOpId> = pending
            .micro_ops
            .iter()
            .filter(|micro_op| match &micro_op.effect {
                Effect::Name(action) => !data_only && makes_a_name_in(action, node),
                _ => micro_op.node() == Some(node) && (!data_only || is_data(micro_op)),
            })
            .map(|micro_op| micro_op.id)
            .collect();
        pending.absorb(durable.into_iter().chain(arrived));
        self.names.retain(|dir_entry, id| {
            pending.position(*id).is_some_and(|at| match &pending.micro_ops[at].effect {
                Effect::Name(action) => dir_entries(action).contains(&dir_entry),
                _ => false,
            })
        });
    }
}

/// Bytes in these pages, and everything that is required to read them back.
fn sync_part(pending: &mut PendingOps, node: Node, from: u64, to: u64) {
    let durable: Vec<MicroOpId> = pending
        .of_node(node)
        .filter(|micro_op| match &micro_op.effect {
            Effect::Bytes { pieces, .. } => {
                pieces.iter().any(|piece| piece.0 < to && piece.1 > from)
            }
            _ => is_data(micro_op),
        })
        .map(|micro_op| micro_op.id)
        .collect();
    pending.absorb(durable);
}

fn write(pending: &mut PendingOps, node: Node, offset: u64, data: &RecordedBytes) {
    let end = offset.saturating_add(data.len() as u64);
    if data.is_empty() {
        return;
    }
    // Earlier growth of the file may be lost, so this write alone must grow it.
    let size = pending.base.file(node).map_or(0, |file| file.size());
    let open = pending.size_is_open(node);
    let mut from = offset;
    for piece in 1.. {
        let page = (from + 1).next_multiple_of(PAGE as u64);
        let to = if piece == PIECES { end } else { end.min(page) };
        if to > size || open {
            pending.push(Effect::Size { node, size: to }, Vec::new());
        }
        let data = data.clone();
        let pieces = vec![(from, to)];
        pending.push(Effect::Bytes { node, offset, data, pieces, fresh: false }, Vec::new());
        from = to;
        if from == end {
            break;
        }
    }
}

fn zeros(pending: &mut PendingOps, node: Node, ranges: &[(u64, u64)]) {
    for (from, to) in ranges {
        pending.push(Effect::zeros(node, *from, *to), Vec::new());
    }
}

/// Whether `fdatasync` covers it: everything that is required to read the bytes back.
fn is_data(micro_op: &MicroOp) -> bool {
    match &micro_op.effect {
        Effect::Size { .. } | Effect::Bytes { .. } => true,
        Effect::Inode(action) => {
            inode_of(action).is_some()
                && !matches!(action, Action::Mode { .. } | Action::Attribute { .. })
        }
        Effect::Name(_) | Effect::Flush { .. } => false,
    }
}

/// A rename is durable with its target directory, but see [`PendingOps::split_arrivals`].
fn makes_a_name_in(action: &Action, directory: Node) -> bool {
    match action {
        Action::Rename { to, .. } => to.directory == directory,
        Action::Exchange { first_entry, second_entry, .. } => {
            first_entry.directory == directory || second_entry.directory == directory
        }
        _ => dir_entries(action).iter().any(|dir_entry| dir_entry.directory == directory),
    }
}
