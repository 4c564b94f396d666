//! File systems that write metadata to a journal and bytes directly: ext4 and XFS.
//!
//! Everything in the journal is a chain: a part survives only with all before it.
//! Bytes are independent of it. Bytes in blocks that are already on disk may be lost or kept freely;
//! bytes that need a new block come after everything the journal contained when they were written.
//! ext4, by default with data=ordered, delayed allocation, `auto_da_alloc`, `dioread_nolock` and no
//! fast commits: block and size may come without the bytes, and then there are zeros; not
//! with `dioread_lock`. XFS: the size comes after the bytes that it exposes.
//!
//! A timer may write back or commit at any moment, so nothing is ever known *not* to be on disk.

use std::collections::{BTreeSet, HashMap};

use crate::model::micro_op::{Effect, MicroOp, MicroOpId, edges, inner, within_size};
use crate::model::pending_ops::PendingOps;
use crate::model::profile::Tears;
use crate::model::tree::file_content::PAGE;
use crate::operation::{Action, Node, WriteSync};
use crate::recorded_bytes::RecordedBytes;

mod inode;
mod xfs;

use inode::{Inode, block};

/// Variants by file system or mount option.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum JournalRules {
    /// New blocks are allocated as unwritten extents when their pages are written back: a commit
    /// does not wait for the bytes.
    #[default]
    Default,
    /// New blocks are allocated when their pages are written back, and a commit waits for the bytes.
    DioreadLock,
    /// New blocks are allocated by the write itself, and a commit waits for the bytes.
    NoDelayedAllocation,
    /// Bytes go through the journal like everything else.
    DataJournal,
    /// XFS: new blocks are allocated when their pages are written back, and the size on disk
    /// follows when the bytes are there. Nothing is flushed by a rename or a close.
    Xfs,
}

impl JournalRules {
    /// Whether the blocks of new bytes are allocated later than the call that writes them.
    fn delays(self) -> bool {
        matches!(self, Self::Default | Self::DioreadLock | Self::Xfs)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Journalled {
    mount: JournalRules,
    /// Journal entries that are not committed, in order.
    journal: Vec<MicroOpId>,
    inodes: HashMap<Node, Inode>,
}

impl Journalled {
    pub(crate) fn new(pending: &PendingOps, mount: JournalRules) -> Self {
        let mut inodes = HashMap::new();
        for found in pending.base.walk() {
            if let Some(file) = pending.base.file(found.node) {
                let mapped = file.extents().map(|(offset, _)| block(offset)).collect();
                inodes.insert(found.node, Inode { mapped, ..Inode::default() });
            }
        }
        Self { mount, journal: Vec::new(), inodes }
    }

    pub(crate) fn step(&mut self, pending: &mut PendingOps, action: &Action) {
        match action {
            Action::Create { node, .. } => {
                if let Some(link) = pending.create(action) {
                    self.step(pending, &link);
                    let inode = self.inode(*node);
                    inode.resized = inode.changed;
                }
            }
            Action::Link { node, dir_entry } | Action::Remove { node, dir_entry } => {
                let id = self.log(pending, Effect::Name(action.clone()), Vec::new());
                self.touch(id, &[*node, dir_entry.directory]);
            }
            Action::Rename { node, from, to, replaced } => {
                let flushed = match replaced {
                    Some(_) if self.mount != JournalRules::Xfs => self.delayed(pending, *node),
                    _ => Vec::new(),
                };
                let id = self.log(pending, Effect::Name(action.clone()), flushed);
                self.touch(id, &[*node, from.directory, to.directory]);
                if let Some(replaced) = replaced {
                    self.touch(id, &[*replaced]);
                }
            }
            Action::Exchange { first, first_entry, second, second_entry } => {
                let id = self.log(pending, Effect::Name(action.clone()), Vec::new());
                let nodes = [*first, *second, first_entry.directory, second_entry.directory];
                self.touch(id, &nodes);
            }
            Action::Write { node, offset, data, mapped, .. } => {
                if self.mount == JournalRules::DataJournal && !mapped {
                    self.write_journalled(pending, *node, *offset, data);
                } else {
                    self.write(pending, *node, *offset, data);
                }
            }
            Action::Truncate { node, size } => {
                let old = pending.now.file(*node).map_or(0, |file| file.size());
                let cut = self.zeros(pending, *node, &edges(*size, u64::MAX, old));
                let id = self.change(pending, *node, action);
                let inode = self.inode(*node);
                // A page that has no block yet reads as zeros by itself.
                let on_disk = inode.mapped.contains(&block(*size));
                inode.cut = cut.filter(|_| on_disk).or(inode.cut);
                inode.resized = Some(id);
                inode.emptied |= *size == 0;
                inode.forget(size.div_ceil(PAGE as u64)..u64::MAX);
            }
            Action::Allocate { node, offset, length, .. } => {
                let size = pending.now.file(*node).map_or(0, |file| file.size());
                let id = match self.mount {
                    JournalRules::Xfs => self.change(pending, *node, &within_size(action, size)),
                    _ => self.change(pending, *node, action),
                };
                let inode = self.inode(*node);
                inode.resized = Some(id);
                inode.allocate(*offset, offset.saturating_add(*length));
            }
            Action::Zero { node, offset, length, hole, keep_size } => {
                let end = offset.saturating_add(*length);
                let size = pending.now.file(*node).map_or(0, |file| file.size());
                if *hole && *offset >= size {
                    return;
                }
                if self.mount == JournalRules::Xfs {
                    self.zero_on_xfs(pending, &within_size(action, size));
                    return;
                }
                if pending.size_is_open(*node) && *offset <= size {
                    // The size up to its end is in the journal before the blocks are freed, whether or
                    // not the bytes before it are on disk.
                    let size = Effect::Size { node: *node, size: end.min(size) };
                    self.log(pending, size, Vec::new());
                }
                if self.mount == JournalRules::DataJournal && !keep_size && end > size {
                    // The new size is logged first, the zeros as data after it.
                    self.log(pending, Effect::Size { node: *node, size: end }, Vec::new());
                }
                self.zeros(pending, *node, &edges(*offset, end, size));
                let id = self.change(pending, *node, &inner(action, size));
                let inode = self.inode(*node);
                inode.resized = Some(id);
                // The last block of a file is freed although the hole ends inside it.
                let last = if end >= size { size.div_ceil(PAGE as u64) } else { block(end) };
                inode.forget(offset.div_ceil(PAGE as u64)..last);
                if !*hole {
                    inode.allocate(*offset, end);
                }
            }
            Action::Mode { node, .. } | Action::Attribute { node, .. } => {
                self.change(pending, *node, action);
            }
            Action::Sync { node, data_only } => self.sync(pending, *node, *data_only),
            Action::SyncPart { node, offset, length } => {
                self.sync_part(pending, *node, *offset, *length, true);
            }
            Action::SyncAll => {
                self.durable(pending, pending.all());
            }
            Action::Close { node } => {
                let emptied = std::mem::take(&mut self.inode(*node).emptied);
                if emptied && self.mount != JournalRules::Xfs {
                    let flushed = self.delayed(pending, *node);
                    if !flushed.is_empty() {
                        self.log(pending, Effect::Flush { node: *node }, flushed);
                    }
                }
            }
            Action::SyncRange { .. } => {}
        }
    }

    /// Appends to the journal.
    fn log(
        &mut self,
        pending: &mut PendingOps,
        effect: Effect,
        mut requires: Vec<MicroOpId>,
    ) -> MicroOpId {
        requires.extend(self.journal.last());
        let id = pending.push(effect, requires);
        self.journal.push(id);
        id
    }

    fn change(&mut self, pending: &mut PendingOps, node: Node, action: &Action) -> MicroOpId {
        self.change_after(pending, node, action, Vec::new())
    }

    /// A change of an inode that is logged after these parts.
    fn change_after(
        &mut self,
        pending: &mut PendingOps,
        node: Node,
        action: &Action,
        mut before: Vec<MicroOpId>,
    ) -> MicroOpId {
        let size = pending.now.file(node).map_or(0, |file| file.size());
        let grows = match action {
            // On disk the file may be shorter than the program sees it.
            Action::Truncate { size: new, .. } => *new > size || pending.size_is_open(node),
            Action::Allocate { keep_size, .. } | Action::Zero { keep_size, .. } => !keep_size,
            _ => false,
        };
        let inode = self.inodes.entry(node).or_default();
        before.extend(inode.cut.filter(|_| grows));
        // XFS writes the range between the size on disk and a new one before it logs that.
        let to = match action {
            Action::Truncate { size, .. } => *size,
            Action::Allocate { offset, length, keep_size: false, .. } => offset + length,
            _ => 0,
        };
        let flushed = inode.grown.filter(|(_, size)| *size <= to);
        before.extend(flushed.filter(|_| self.mount == JournalRules::Xfs).map(|(id, _)| id));
        let id = self.log(pending, Effect::Inode(action.clone()), before);
        self.touch(id, &[node]);
        id
    }

    /// Zeros in remaining pages. Holes are zeros already.
    fn zeros(
        &mut self,
        pending: &mut PendingOps,
        node: Node,
        ranges: &[(u64, u64)],
    ) -> Option<MicroOpId> {
        if self.mount == JournalRules::DataJournal {
            let zeros = ranges.iter().map(|(from, to)| Effect::zeros(node, *from, *to));
            return zeros.map(|zeros| self.log(pending, zeros, Vec::new())).last();
        }
        let inode = self.inodes.entry(node).or_default();
        let mut last = None;
        for (from, to) in ranges {
            for piece in inode.pieces(*from, *to).0 {
                let requires = inode.last_writes(&[piece]);
                let id = pending.push(Effect::zeros(node, piece.0, piece.1), requires);
                inode.dirtied(&[piece], id);
                last = Some(id);
            }
        }
        last
    }

    fn touch(&mut self, id: MicroOpId, nodes: &[Node]) {
        for node in nodes {
            self.inode(*node).changed = Some(id);
        }
    }

    fn write(&mut self, pending: &mut PendingOps, node: Node, offset: u64, data: &RecordedBytes) {
        if data.is_empty() {
            return;
        }
        let end = offset.saturating_add(data.len() as u64);
        let size = pending.now.file(node).map_or(0, |file| file.size());
        let inode = self.inodes.entry(node).or_default();
        let (known, fresh) = inode.pieces(offset, end);
        let bytes = |pieces: Vec<(u64, u64)>, fresh| Effect::Bytes {
            node,
            offset,
            data: data.clone(),
            pieces,
            fresh,
        };
        if let Some(&(_, known_end)) = known.last() {
            let requires = inode.last_writes(&known);
            if known_end > size {
                // Growth inside an existing block: the journal contains the size immediately, and nothing
                // makes the bytes come first.
                let growth = Effect::Size { node, size: known_end };
                let tail = block(known_end - 1);
                let before = self.journal.last().copied();
                // The sizes of XFS follow the bytes, in any order.
                let xfs = self.mount == JournalRules::Xfs;
                let grown = inode.grown.filter(|_| !xfs).map(|(id, _)| id);
                let before = before.into_iter().chain(grown).chain(inode.cut);
                let at_once = !xfs && (inode.mapped.contains(&tail) || !self.mount.delays());
                // The block may or may not be written back by now: if not, the size comes later.
                let block = inode.dirty.get(&tail).filter(|_| !inode.is_allocated(tail));
                let waits =
                    !xfs && self.mount != JournalRules::Default && !inode.mapped.contains(&tail);
                let block = block.filter(|_| waits).map(|dirty| dirty.first);
                let id = pending.push(growth, before.chain(block).collect());
                if at_once {
                    self.journal.push(id);
                    inode.changed = Some(id);
                    inode.resized = Some(id);
                }
                inode.grown = Some((id, known_end));
            }
            let delayed = known.iter().any(|piece| !inode.is_mapped(*piece));
            let id = pending.push(bytes(known.clone(), delayed), requires);
            if let Some((growth, _)) = inode.grown.filter(|_| known_end > size)
                && self.mount == JournalRules::Xfs
            {
                pending.bind(growth, id);
            }
            inode.dirtied(&known, id);
        }
        let (ahead, fresh) = inode.allocated_ahead(fresh);
        for (fresh, ahead) in [(ahead, true), (fresh, false)] {
            let Some(&(_, fresh_end)) = fresh.last() else { continue };
            let journal = self.journal.last().copied();
            let growth = (fresh_end > size).then(|| {
                let before = journal.into_iter().chain(inode.cut).collect();
                pending.push(Effect::Size { node, size: fresh_end }, before)
            });
            let requires = journal.into_iter().chain(growth).collect();
            let id = pending.push(bytes(fresh.clone(), true), requires);
            if let Some(growth) = growth {
                // A block allocated before is empty if the size comes first.
                let waits = !ahead && self.mount != JournalRules::Default;
                if waits || self.mount == JournalRules::Xfs {
                    pending.bind(growth, id);
                }
                inode.grown = Some((growth, fresh_end));
            }
            inode.dirtied(&fresh, id);
            if !ahead && !self.mount.delays() {
                self.journal.extend(growth.into_iter().chain([id]));
                inode.changed = Some(id);
                inode.resized = Some(id);
            }
        }
    }

    /// Bytes and size in the journal, page by page.
    fn write_journalled(
        &mut self,
        pending: &mut PendingOps,
        node: Node,
        offset: u64,
        data: &RecordedBytes,
    ) {
        if data.is_empty() {
            return;
        }
        let end = offset.saturating_add(data.len() as u64);
        let size = pending.now.file(node).map_or(0, |file| file.size());
        // A page is written whole, including stores through a mapping.
        let stored = self.inode(node).last_writes(&[(offset, end)]);
        let growth = (end > size || pending.size_is_open(node))
            .then(|| self.log(pending, Effect::Size { node, size: end }, Vec::new()));
        let pieces = vec![(offset, end)];
        let bytes = Effect::Bytes { node, offset, data: data.clone(), pieces, fresh: true };
        let id = self.log(pending, bytes, stored);
        if let Some(growth) = growth {
            pending.bind(growth, id);
        }
        self.touch(id, &[node]);
        self.inode(node).resized = Some(id);
    }

    /// The previous write waits for the device: a sync of its own range.
    pub(crate) fn wait(&mut self, pending: &mut PendingOps, action: &Action) {
        if let Action::Write { node, offset, data, sync, .. } = action {
            let data_only = *sync != WriteSync::Full;
            self.sync_part(pending, *node, *offset, data.len() as u64, data_only);
        }
    }

    fn sync_part(
        &mut self,
        pending: &mut PendingOps,
        node: Node,
        offset: u64,
        length: u64,
        data_only: bool,
    ) {
        if length == 0 {
            return;
        }
        let inode = self.inodes.entry(node).or_default();
        let pages = block(offset)..=block(offset.saturating_add(length) - 1);
        let commit = inode.commit(data_only && self.mount != JournalRules::Xfs);
        let mut ids: Vec<MicroOpId> =
            inode.dirty.range(pages.clone()).map(|(_, dirty)| dirty.last).collect();
        // An included write may reach into the last page: then its size is included, too.
        let written = pending.with_needs(ids.iter().copied());
        let size = inode.grown.filter(|(_, size)| {
            let tail = block(size - 1);
            let last = inode.dirty.get(&tail).map(|dirty| dirty.last);
            pages.contains(&tail) || last.is_some_and(|last| written.contains(&last))
        });
        ids.extend(covered(pending, node, &written, &self.journal));
        ids.extend(commit.into_iter().chain(size.map(|(id, _)| id)));
        self.durable(pending, ids);
    }

    /// A sync writes the file's pages, then waits for the transaction that last changed the inode.
    /// Blocks for those pages may have been allocated and committed at any time since they were
    /// written, so nothing is promised for later names.
    fn sync(&mut self, pending: &mut PendingOps, node: Node, data_only: bool) {
        // For anything but a regular file either call forces a commit.
        let data_only = data_only && !pending.now.is_directory(node);
        let inode = self.inodes.entry(node).or_default();
        let commit = inode.commit(data_only && self.mount != JournalRules::Xfs);
        let bytes = pending
            .of_node(node)
            .filter(|micro_op| {
                matches!(micro_op.effect, Effect::Bytes { .. } | Effect::Size { .. })
            })
            .map(|micro_op| micro_op.id);
        let ids: Vec<MicroOpId> = bytes.chain(commit).collect();
        self.durable(pending, ids);
    }

    fn durable(&mut self, pending: &mut PendingOps, ids: Vec<MicroOpId>) {
        for micro_op in pending.absorb(ids) {
            self.written(&micro_op);
        }
        self.journal.retain(|id| pending.is_pending(*id));
    }

    /// The blocks of durable parts exist from now on, unless they were freed since.
    fn written(&mut self, micro_op: &MicroOp) {
        if let Effect::Bytes { node, pieces, .. } = &micro_op.effect {
            let inode = self.inodes.entry(*node).or_default();
            for (from, to) in pieces {
                for page in block(*from)..=block(to - 1) {
                    if let Some(dirty) = inode.dirty.get(&page) {
                        inode.mapped.insert(page);
                        if dirty.last == micro_op.id {
                            inode.dirty.remove(&page);
                        }
                    }
                }
            }
        }
    }

    /// What a flush of a file adds to the journal: the sizes of writes to blocks that do not
    /// exist yet, and those writes themselves if a commit waits for them.
    fn delayed(&mut self, pending: &PendingOps, node: Node) -> Vec<MicroOpId> {
        if !self.mount.delays() {
            return Vec::new();
        }
        let inode = self.inodes.entry(node).or_default();
        let mut ids: Vec<MicroOpId> = inode
            .dirty
            .iter()
            .filter(|(page, _)| !inode.mapped.contains(page))
            .filter(|(page, _)| !inode.is_allocated(**page))
            .map(|(_, dirty)| dirty.last)
            .collect();
        ids.dedup();
        let written = pending.with_needs(ids.iter().copied());
        if self.mount == JournalRules::Default {
            let sizes = pending.of_node(node).filter(|micro_op| written.contains(&micro_op.id));
            let sizes = sizes.filter(|one| matches!(one.effect, Effect::Size { .. }));
            ids = sizes.map(|micro_op| micro_op.id).collect();
        }
        ids.extend(covered(pending, node, &written, &self.journal));
        ids
    }

    /// Which torn states of a part are possible.
    pub(crate) fn tears(&self, fresh: bool, grows: bool) -> Tears {
        match self.mount {
            JournalRules::DataJournal => Tears { pages: true, tail: false },
            JournalRules::NoDelayedAllocation if fresh => Tears { pages: true, tail: false },
            JournalRules::Xfs if fresh => Tears { pages: true, tail: true },
            _ if fresh => Tears { pages: true, tail: !grows },
            _ => Tears { pages: false, tail: true },
        }
    }

    fn inode(&mut self, node: Node) -> &mut Inode {
        self.inodes.entry(node).or_default()
    }
}

/// Whole pages are written, and the size on disk follows to the end of those: bytes of earlier
/// writes in the same pages are inside the file. Bytes in other pages are not included, even if the
/// file was shorter when they were written: then there is a hole before the new bytes. But bytes
/// that the journal waits for are, because the size is in the journal, too.
fn covered(
    pending: &PendingOps,
    node: Node,
    written: &BTreeSet<MicroOpId>,
    journal: &[MicroOpId],
) -> Vec<MicroOpId> {
    let bytes = pending.of_node(node).filter(|micro_op| written.contains(&micro_op.id));
    let end = bytes.filter_map(MicroOp::end).max().unwrap_or(0);
    pending
        .of_node(node)
        .filter(|micro_op| matches!(micro_op.effect, Effect::Size { size, .. } if size <= end))
        .filter(|micro_op| bytes_needed(pending, micro_op, journal).is_subset(written))
        .map(|micro_op| micro_op.id)
        .collect()
}

/// The bytes that a size requires by itself, not those that the journal waits for.
fn bytes_needed(
    pending: &PendingOps,
    size: &MicroOp,
    journal: &[MicroOpId],
) -> BTreeSet<MicroOpId> {
    let (mut bytes, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let mut open = vec![size.id];
    while let Some(id) = open.pop() {
        if let Some(at) = pending.position(id)
            && seen.insert(id)
            && journal.binary_search(&id).is_err()
        {
            let micro_op = &pending.micro_ops[at];
            if matches!(micro_op.effect, Effect::Bytes { .. }) {
                bytes.insert(id);
            }
            open.extend(&micro_op.requires);
        }
    }
    bytes
}
