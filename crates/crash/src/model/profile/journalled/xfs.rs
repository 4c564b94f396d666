//! How XFS zeros a range of a file.

use crate::model::micro_op::{MicroOpId, by_whole_blocks};
use crate::model::pending_ops::PendingOps;
use crate::model::tree::file_content::PAGE;
use crate::operation::Action;

use super::Journalled;
use super::inode::block;

impl Journalled {
    /// XFS writes the pages of the range and waits for them, frees the blocks that are completely
    /// inside, and writes zeros over the rest. The last block of a file is no exception: if the range
    /// ends inside it, it stays.
    pub(super) fn zero_on_xfs(&mut self, pending: &mut PendingOps, action: &Action) {
        let &Action::Zero { node, offset, length, hole, .. } = action else { return };
        if length == 0 {
            return;
        }
        let end = offset.saturating_add(length);
        let size = pending.now.file(node).map_or(0, |file| file.size());
        let inode = self.inode(node);
        let pages = block(offset)..=block(end - 1);
        let grown = inode.grown.filter(|(_, size)| pages.contains(&block(size - 1)));
        let mut flushed: Vec<MicroOpId> =
            inode.dirty.range(pages).map(|(_, dirty)| dirty.last).collect();
        flushed.extend(grown.map(|(id, _)| id));
        let (edges, whole) = by_whole_blocks(action, size);
        self.zeros(pending, node, &edges);
        if let Some(whole) = whole {
            let id = self.change_after(pending, node, &whole, flushed);
            self.inode(node).resized = Some(id);
        }
        let inode = self.inode(node);
        inode.forget(offset.div_ceil(PAGE as u64)..block(end));
        if !hole {
            inode.allocate(offset, end);
        }
    }
}
