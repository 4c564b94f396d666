//! The state of one file in such a file system: its blocks, its dirty pages, and what a sync of it waits for.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::micro_op::MicroOpId;
use crate::model::tree::file_content::PAGE;

/// Ranges as (from, to), in order.
pub(super) type Ranges = Vec<(u64, u64)>;

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    /// Blocks that are certainly allocated and written.
    pub(super) mapped: BTreeSet<u64>,
    /// Pages whose blocks were allocated before their bytes were written: nothing about them is delayed.
    pub(super) allocated: Vec<std::ops::Range<u64>>,
    /// The pages with writes that are not durable.
    pub(super) dirty: BTreeMap<u64, Dirty>,
    /// The last growth by a write, and the new size.
    pub(super) grown: Option<(MicroOpId, u64)>,
    /// The zeros after the last cut inside a page: they become visible once the file grows past them.
    pub(super) cut: Option<MicroOpId>,
    /// Truncated to 0 since it was last closed: data written next is allocated at close.
    pub(super) emptied: bool,
    /// The last part of the journal that `fsync` waits for.
    pub(super) changed: Option<MicroOpId>,
    /// The last part of the journal that `fdatasync` waits for.
    pub(super) resized: Option<MicroOpId>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Dirty {
    /// The write that needed the block, if it was missing.
    pub(super) first: MicroOpId,
    /// A page is written whole, so it includes the writes before it.
    pub(super) last: MicroOpId,
}

impl Inode {
    /// What a sync waits for, besides the bytes. XFS distinguishes data from the rest by time stamps alone.
    pub(super) fn commit(&self, data_only: bool) -> Option<MicroOpId> {
        if data_only { self.resized } else { self.changed }
    }

    /// Splits the range into pages that have a block, on disk or in memory, and pages that have none.
    pub(super) fn pieces(&self, from: u64, to: u64) -> (Ranges, Ranges) {
        let (mut known, mut fresh) = (Vec::new(), Vec::new());
        let mut at = from;
        while at < to {
            let page = block(at);
            let end = to.min((page + 1).saturating_mul(PAGE as u64));
            let is_known = self.mapped.contains(&page) || self.dirty.contains_key(&page);
            let pieces: &mut Ranges = if is_known { &mut known } else { &mut fresh };
            match pieces.last_mut() {
                Some(last) if last.1 == at => last.1 = end,
                _ => pieces.push((at, end)),
            }
            at = end;
        }
        (known, fresh)
    }

    pub(super) fn is_allocated(&self, page: u64) -> bool {
        self.allocated.iter().any(|pages| pages.contains(&page))
    }

    /// Those in blocks that were allocated before their bytes were written, and the others.
    pub(super) fn allocated_ahead(&self, pieces: Ranges) -> (Ranges, Ranges) {
        if self.allocated.is_empty() {
            return (Vec::new(), pieces);
        }
        let page = PAGE as u64;
        let single = pieces.into_iter().flat_map(|(from, to)| {
            (block(from)..=block(to - 1))
                .map(move |at| (from.max(at * page), to.min((at + 1).saturating_mul(page))))
        });
        single.partition(|(from, _)| self.is_allocated(block(*from)))
    }

    pub(super) fn is_mapped(&self, (from, to): (u64, u64)) -> bool {
        (block(from)..=block(to - 1)).all(|page| self.mapped.contains(&page))
    }

    pub(super) fn last_writes(&self, pieces: &[(u64, u64)]) -> Vec<MicroOpId> {
        pieces
            .iter()
            .flat_map(|(from, to)| self.dirty.range(block(*from)..=block(to - 1)))
            .map(|(_, dirty)| dirty.last)
            .collect()
    }

    pub(super) fn dirtied(&mut self, pieces: &[(u64, u64)], id: MicroOpId) {
        for (from, to) in pieces {
            for page in block(*from)..=block(to - 1) {
                self.dirty.entry(page).or_insert(Dirty { first: id, last: id }).last = id;
            }
        }
    }

    /// The blocks were freed.
    pub(super) fn forget(&mut self, blocks: std::ops::Range<u64>) {
        if blocks.start < blocks.end {
            self.mapped.retain(|block| !blocks.contains(block));
            self.dirty.retain(|block, _| !blocks.contains(block));
            self.allocated = std::mem::take(&mut self.allocated)
                .into_iter()
                .flat_map(|one| {
                    [one.start..one.end.min(blocks.start), one.start.max(blocks.end)..one.end]
                })
                .filter(|one| !one.is_empty())
                .collect();
        }
    }

    pub(super) fn allocate(&mut self, from: u64, to: u64) {
        self.allocated.push(block(from)..to.div_ceil(PAGE as u64));
    }
}

pub(super) fn block(offset: u64) -> u64 {
    offset / PAGE as u64
}
