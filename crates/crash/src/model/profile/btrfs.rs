//! btrfs with its default mount options: copy on write, checksums, no holes in its trees.
//!
//! A commit of a transaction is a chain like a journal: a part survives only with all before it.
//! Bytes never overwrite: they become part of the file when they are on disk, by a change of the
//! tree, so that they come after everything that was there when they were written, and the size
//! comes with them. An `fsync` is no commit: it writes the file, or the directory, into a log tree
//! of its own, and what else happened before may be lost.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::model::micro_op::{Effect, MicroOp, MicroOpId, dir_entries, edges, inner};
use crate::model::pending_ops::PendingOps;
use crate::model::tree::file_content::PAGE;
use crate::operation::{Action, DirEntry, Node};
use crate::recorded_bytes::RecordedBytes;

/// The size of a file may come with the bytes of this many earlier writes that are not on disk.
const COMPANIONS: usize = 3;

#[derive(Clone, Debug, Default)]
pub(crate) struct Btrfs {
    /// The last part of the running transaction.
    last: Option<MicroOpId>,
    /// The last operation on each name. It comes along with a later one even if the log is written.
    names: HashMap<DirEntry, MicroOpId>,
    /// By file and page: the last write, which brings the earlier ones to its page along.
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
                if pending.size_is_open(*node) {
                    self.change(pending, Effect::Size { node: *node, size: end.min(size) });
                }
                self.zeros(pending, *node, &edges(*offset, end, size));
                self.change(pending, Effect::Inode(inner(action, size)));
                self.forget(*node, offset.div_ceil(PAGE as u64)..end / PAGE as u64);
            }
            Action::Allocate { .. } | Action::Mode { .. } | Action::Attribute { .. } => {
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

    /// The write before this one waits for the device: a sync of its own range.
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
        let id = pending.push(effect, self.last.into_iter().collect());
        self.last = Some(id);
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
            // The size of the file at that moment is written with whatever bytes are done first.
            for other in before.iter().rev().take(COMPANIONS).filter(|_| end > size) {
                let needs = self.last.into_iter().chain([*other]).collect();
                pending.push(Effect::Size { node, size: end }, needs);
            }
            pending.push(Effect::Size { node, size: end }, self.last.into_iter().collect())
        });
        requires.extend(self.last.into_iter().chain(growth));
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

    /// Zeros in pages that stay are written like bytes.
    fn zeros(&mut self, pending: &mut PendingOps, node: Node, ranges: &[(u64, u64)]) {
        let dirty = self.dirty.entry(node).or_default();
        for (from, to) in ranges {
            let page = from / PAGE as u64;
            let requires = self.last.into_iter().chain(dirty.get(&page).copied()).collect();
            let id = pending.push(Effect::zeros(node, *from, *to), requires);
            dirty.insert(page, id);
        }
    }

    fn forget(&mut self, node: Node, pages: std::ops::Range<u64>) {
        if let Some(dirty) = self.dirty.get_mut(&node) {
            dirty.retain(|page, _| !pages.contains(page));
        }
    }

    /// Of a file: all that is in it, and its names. Of a directory: the names in it.
    fn sync(&mut self, pending: &mut PendingOps, node: Node) {
        let is_directory = pending.now.is_directory(node);
        let ids = pending.micro_ops.iter().filter(|micro_op| match &micro_op.effect {
            Effect::Name(action) if is_directory => names_in(action, node),
            Effect::Name(action) => is_name_of(action, node),
            _ => micro_op.node() == Some(node),
        });
        let mut ids: Vec<MicroOpId> = ids.map(|micro_op| micro_op.id).collect();
        if is_directory {
            ids.extend(arrivals(pending, node));
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
        // The other bytes of the file may come along: those that wait to be written beside the range
        // are written with it. Then they are in the log, without what came before them.
        let own: BTreeSet<MicroOpId> = pending.of_node(node).map(|micro_op| micro_op.id).collect();
        for micro_op in &mut pending.micro_ops {
            if own.contains(&micro_op.id) {
                micro_op.requires.retain(|id| own.contains(id));
            }
        }
        self.write_log(pending, ids);
    }

    /// The log of a file may have that names of it are gone, without what came before that.
    fn free_removals(&self, pending: &mut PendingOps, node: Node) {
        let removals = pending.micro_ops.iter().filter(|micro_op| {
            matches!(&micro_op.effect,
                Effect::Name(Action::Remove { node: other, .. }) if *other == node)
        });
        let removals: Vec<MicroOpId> = removals.map(|micro_op| micro_op.id).collect();
        for id in removals {
            let needed = self.needed_by(pending, id);
            if let Some(at) = pending.position(id) {
                pending.micro_ops[at].requires.retain(|one| needed.contains(one));
            }
        }
    }

    /// These are durable by the log, without what came before them in the transaction.
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
        // What needed one of these in the transaction needs what that needed.
        for id in &durable {
            let Some(at) = pending.position(*id) else { continue };
            let needed = std::mem::take(&mut pending.micro_ops[at].requires);
            if self.last == Some(*id) {
                self.last = needed.iter().copied().filter(|one| !durable.contains(one)).max();
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

    /// What the log has to have besides a part: earlier operations on its names, and the
    /// directories that they are in; of bytes, the earlier ones in the pages that they share, since
    /// a page is written whole, and the pages beside it that wait along with it.
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
        self.last = self.last.filter(|id| pending.is_pending(*id));
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

/// Whether the log of a directory has all of an action.
fn names_in(action: &Action, directory: Node) -> bool {
    dir_entries(action).iter().all(|dir_entry| dir_entry.directory == directory)
}

/// What was moved into a directory has its new name in the log; that the old one is gone is in the
/// log of another directory, and may be lost.
fn arrivals(pending: &mut PendingOps, directory: Node) -> Vec<MicroOpId> {
    let mut ids = Vec::new();
    for at in 0..pending.micro_ops.len() {
        let Effect::Name(Action::Rename { node, from, to, replaced }) =
            &pending.micro_ops[at].effect
        else {
            continue;
        };
        let arrives = to.directory == directory && from.directory != directory;
        if !arrives || pending.now.entry(to) != Some(*node) {
            continue;
        }
        let (node, replaced) = (*node, *replaced);
        let (from, to) = (from.clone(), to.clone());
        pending.micro_ops[at].effect = Effect::Name(Action::Remove { node, dir_entry: from });
        if let Some(node) = replaced {
            let removal = Action::Remove { node, dir_entry: to.clone() };
            ids.push(pending.push(Effect::Name(removal), Vec::new()));
        }
        let link = Action::Link { node, dir_entry: to };
        ids.push(pending.push(Effect::Name(link), Vec::new()));
    }
    ids
}
