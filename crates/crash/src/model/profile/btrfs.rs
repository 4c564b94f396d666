//! btrfs with its default mount options: copy on write, checksums, no holes in its trees.
//!
//! A commit of a transaction is a chain like a journal: a part survives only with all before it.
//! Bytes are never overwritten: they become part of the file once they are on disk, by a change of the
//! tree, so they come after everything that existed when they were written, together with the size.
//! An `fsync` is not a commit: it writes the file, or the directory, into a separate log tree,
//! and other earlier changes may be lost.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::model::micro_op::{
    Effect, MicroOp, MicroOpId, by_whole_blocks, dir_entries, edges, within_size,
};
use crate::model::pending_ops::PendingOps;
use crate::model::tree::file_content::PAGE;
use crate::operation::{Action, DirEntry, Node};
use crate::recorded_bytes::RecordedBytes;

/// The size of a file may come with the bytes of this many earlier writes that are not on disk.
const COMPANIONS: usize = 3;

#[derive(Clone, Debug, Default)]
pub(crate) struct Btrfs {
    /// The end of the running transaction: later parts come after each of these. More than one
    /// if a part may be in a log without the parts before it.
    last: Vec<MicroOpId>,
    /// The last operation on each name. It is included with a later one even if the log is written.
    names: HashMap<DirEntry, MicroOpId>,
    /// By file and page: the last write, which includes the earlier ones to its page.
    dirty: HashMap<Node, BTreeMap<u64, MicroOpId>>,
}

impl Btrfs {
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
            Action::Write { node, offset, data, .. } => self.write(pending, *node, *offset, data),
            Action::Truncate { node, size } => {
                let old = pending.now.file(*node).map_or(0, |file| file.size());
                self.zeros(pending, *node, &edges(*size, u64::MAX, old));
                self.change(pending, Effect::Inode(action.clone()));
                self.forget(*node, size.div_ceil(PAGE as u64)..u64::MAX);
            }
            Action::Zero { node, offset, length, hole, .. } => {
                let size = pending.now.file(*node).map_or(0, |file| file.size());
                let end = offset.saturating_add(*length);
                if *hole && *offset >= size {
                    return;
                }
                if pending.size_is_open(*node) && *offset <= size {
                    self.change(pending, Effect::Size { node: *node, size: end.min(size) });
                }
                let (edges, whole) = by_whole_blocks(&within_size(action, size), size);
                self.zeros(pending, *node, &edges);
                if let Some(whole) = whole {
                    self.change(pending, Effect::Inode(whole));
                }
                self.forget(*node, offset.div_ceil(PAGE as u64)..end / PAGE as u64);
            }
            Action::Allocate { node, .. } => {
                let size = pending.now.file(*node).map_or(0, |file| file.size());
                self.change(pending, Effect::Inode(within_size(action, size)));
            }
            Action::Mode { .. } | Action::Attribute { .. } => {
                self.change(pending, Effect::Inode(action.clone()));
            }
            Action::Sync { node, .. } => self.sync(pending, *node),
            Action::SyncAll => {
                pending.absorb(pending.all());
                self.settle(pending);
            }
            Action::SyncPart { node, offset, length } => {
                self.sync_part(pending, *node, *offset, offset.saturating_add(*length));
            }
            Action::SyncRange { .. } | Action::Close { .. } => {}
        }
    }

    /// The previous write waits for the device: a sync of its own range.
    pub(crate) fn wait(&mut self, pending: &mut PendingOps, action: &Action) {
        if let Action::Write { node, offset, data, .. } = action
            && !data.is_empty()
        {
            let end = offset.saturating_add(data.len() as u64);
            self.sync_part(pending, *node, *offset, end);
        }
    }

    /// Adds to the running transaction.
    fn change(&mut self, pending: &mut PendingOps, effect: Effect) -> MicroOpId {
        let id = pending.push(effect, std::mem::take(&mut self.last));
        self.last.push(id);
        id
    }

    fn name(&mut self, pending: &mut PendingOps, action: &Action) {
        let id = self.change(pending, Effect::Name(action.clone()));
        for dir_entry in dir_entries(action) {
            if let Some(before) = self.names.insert(dir_entry.clone(), id) {
                pending.bind(id, before);
            }
        }
    }

    fn write(&mut self, pending: &mut PendingOps, node: Node, offset: u64, data: &RecordedBytes) {
        if data.is_empty() {
            return;
        }
        let end = offset.saturating_add(data.len() as u64);
        let size = pending.now.file(node).map_or(0, |file| file.size());
        let dirty = self.dirty.entry(node).or_default();
        let pages = offset / PAGE as u64..=(end - 1) / PAGE as u64;
        let mut requires: Vec<MicroOpId> = dirty.range(pages.clone()).map(|(_, id)| *id).collect();
        let before: BTreeSet<MicroOpId> =
            dirty.values().copied().filter(|id| pending.is_pending(*id)).collect();
        let growth = (end > size || pending.size_is_open(node)).then(|| {
            // The current size of the file is written with the first bytes that complete.
            for other in before.iter().rev().take(COMPANIONS).filter(|_| end > size) {
                let needs = self.last.iter().copied().chain([*other]).collect();
                pending.push(Effect::Size { node, size: end }, needs);
            }
            pending.push(Effect::Size { node, size: end }, self.last.clone())
        });
        requires.extend(self.last.iter().copied().chain(growth));
        let pieces = vec![(offset, end)];
        let bytes = Effect::Bytes { node, offset, data: data.clone(), pieces, fresh: true };
        let id = pending.push(bytes, requires);
        if let Some(growth) = growth {
            pending.bind(growth, id);
        }
        for page in pages {
            dirty.insert(page, id);
        }
    }

    /// Zeros in remaining pages are written like bytes.
    fn zeros(&mut self, pending: &mut PendingOps, node: Node, ranges: &[(u64, u64)]) {
        let dirty = self.dirty.entry(node).or_default();
        for (from, to) in ranges {
            let page = from / PAGE as u64;
            let requires = self.last.iter().copied().chain(dirty.get(&page).copied()).collect();
            let id = pending.push(Effect::zeros(node, *from, *to), requires);
            dirty.insert(page, id);
        }
    }

    fn forget(&mut self, node: Node, pages: std::ops::Range<u64>) {
        if let Some(dirty) = self.dirty.get_mut(&node) {
            dirty.retain(|page, _| !pages.contains(page));
        }
    }

    /// Of a file: all its content, and its names. Of a directory: the names in it.
    fn sync(&mut self, pending: &mut PendingOps, node: Node) {
        let is_directory = pending.now.is_directory(node);
        let ids = pending.micro_ops.iter().filter(|micro_op| match &micro_op.effect {
            Effect::Name(action) if is_directory => names_in(action, node),
            Effect::Name(action) => is_name_of(action, node),
            _ => micro_op.node() == Some(node),
        });
        let mut ids: Vec<MicroOpId> = ids.map(|micro_op| micro_op.id).collect();
        if is_directory {
            ids.extend(pending.split_arrivals(node));
        } else {
            self.free_removals(pending, node);
        }
        self.write_log(pending, ids);
    }

    fn sync_part(&mut self, pending: &mut PendingOps, node: Node, from: u64, to: u64) {
        let ids = pending.micro_ops.iter().filter(|micro_op| match &micro_op.effect {
            Effect::Name(action) => is_name_of(action, node),
            Effect::Bytes { node: other, pieces, .. } => {
                let page = PAGE as u64;
                let (from, to) = (from / page * page, to.next_multiple_of(page));
                *other == node && pieces.iter().any(|piece| piece.0 < to && piece.1 > from)
            }
            _ => micro_op.node() == Some(node),
        });
        let ids: Vec<MicroOpId> = ids.map(|micro_op| micro_op.id).collect();
        // Other bytes of the file may be included: dirty ranges next to the synced one
        // are written with it. Then they are in the log, without the parts before them.
        let own: BTreeSet<MicroOpId> = pending.of_node(node).map(|micro_op| micro_op.id).collect();
        for micro_op in &mut pending.micro_ops {
            if own.contains(&micro_op.id) {
                micro_op.requires.retain(|id| own.contains(id));
            }
        }
        self.write_log(pending, ids);
    }

    /// The log of a file may contain the removal of its names, without the parts before that.
    fn free_removals(&mut self, pending: &mut PendingOps, node: Node) {
        let removals = pending.micro_ops.iter().filter(|micro_op| {
            matches!(&micro_op.effect,
                Effect::Name(Action::Remove { node: other, .. }) if *other == node)
        });
        let removals: Vec<MicroOpId> = removals.map(|micro_op| micro_op.id).collect();
        for id in removals {
            let needed = self.needed_by(pending, id);
            let Some(at) = pending.position(id) else { continue };
            let requires = &mut pending.micro_ops[at].requires;
            let before: Vec<MicroOpId> =
                requires.extract_if(.., |one| !needed.contains(one)).collect();
            // Later parts of the transaction still come after that.
            for micro_op in &mut pending.micro_ops {
                if micro_op.requires.contains(&id) {
                    micro_op.requires.extend(&before);
                }
            }
            if self.last.contains(&id) {
                self.last.extend(&before);
            }
        }
    }

    /// The log makes these durable, without the earlier parts of the transaction.
    fn write_log(&mut self, pending: &mut PendingOps, ids: Vec<MicroOpId>) {
        let mut durable: BTreeSet<MicroOpId> = ids.into_iter().collect();
        loop {
            let more: Vec<MicroOpId> =
                durable.iter().flat_map(|id| self.needed_by(pending, *id)).collect();
            let before = durable.len();
            durable.extend(more);
            if durable.len() == before {
                break;
            }
        }
        // Parts that required one of these in the transaction require what that one required.
        for id in &durable {
            let Some(at) = pending.position(*id) else { continue };
            let needed = std::mem::take(&mut pending.micro_ops[at].requires);
            if let Some(at) = self.last.iter().position(|last| last == id) {
                self.last.remove(at);
                self.last.extend(needed.iter().filter(|one| !durable.contains(one)));
            }
            for micro_op in &mut pending.micro_ops {
                if micro_op.requires.contains(id) && micro_op.id != *id {
                    micro_op.requires.extend(&needed);
                    micro_op.requires.sort_unstable();
                    micro_op.requires.dedup();
                }
            }
        }
        pending.absorb(durable);
        self.settle(pending);
    }

    /// What the log must contain besides a part: earlier operations on its names, and the
    /// directories that they are in; for bytes, the earlier ones in the same pages, because
    /// a page is written whole, and adjacent dirty pages.
    fn needed_by(&self, pending: &PendingOps, id: MicroOpId) -> Vec<MicroOpId> {
        let Some(at) = pending.position(id) else { return Vec::new() };
        let part = &pending.micro_ops[at];
        if let Effect::Bytes { node, .. } = &part.effect {
            let shares = |other: &MicroOp| {
                matches!(&other.effect, Effect::Bytes { node: one, .. } if one == node)
                    && part.requires.contains(&other.id)
            };
            return pending.micro_ops.iter().filter(|other| shares(other)).map(|o| o.id).collect();
        }
        let Effect::Name(action) = &part.effect else { return Vec::new() };
        let entries = dir_entries(action);
        let earlier = pending.micro_ops[..at].iter().filter(|other| {
            let Effect::Name(other) = &other.effect else { return false };
            let same = dir_entries(other).iter().any(|entry| entries.contains(entry));
            same || entries.iter().any(|entry| is_name_of(other, entry.directory))
        });
        earlier.map(|other| other.id).collect()
    }

    fn settle(&mut self, pending: &PendingOps) {
        self.last.retain(|id| pending.is_pending(*id));
        self.names.retain(|_, id| pending.is_pending(*id));
        for dirty in self.dirty.values_mut() {
            dirty.retain(|_, id| pending.is_pending(*id));
        }
    }
}

/// Whether an action gives a node a name.
fn is_name_of(action: &Action, node: Node) -> bool {
    match action {
        Action::Link { node: named, .. } | Action::Rename { node: named, .. } => *named == node,
        Action::Exchange { first, second, .. } => *first == node || *second == node,
        _ => false,
    }
}

/// Whether the log of a directory contains all of an action.
fn names_in(action: &Action, directory: Node) -> bool {
    dir_entries(action).iter().all(|dir_entry| dir_entry.directory == directory)
}
