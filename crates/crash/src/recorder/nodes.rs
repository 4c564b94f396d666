//! Which files of the system are nodes of the watched tree.
//!
//! A file's number can be reused once it is gone, so a number is bound when a file is
//! created and checked again as soon as its last name is removed.

use std::collections::HashMap;

use super::file::{FileId, FileKind};
use crate::operation::Node;

#[derive(Clone, Copy, Debug)]
pub(super) struct KnownFile {
    pub(super) node: Node,
    pub(super) kind: FileKind,
    /// It has no name any more. It is still this node as long as the file really has none.
    pub(super) nameless: bool,
}

#[derive(Debug, Default)]
pub(super) struct Nodes {
    by_id: HashMap<FileId, KnownFile>,
    next: u64,
}

impl Nodes {
    /// A new node for a new file, whatever had its number before.
    pub(super) fn bind(&mut self, id: FileId, kind: FileKind, nameless: bool) -> Node {
        let node = Node(self.next);
        self.next += 1;
        self.by_id.insert(id, KnownFile { node, kind, nameless });
        node
    }

    pub(super) fn get(&self, id: FileId) -> Option<KnownFile> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn directory(&self, id: FileId) -> Option<Node> {
        let known = self.get(id)?;
        (known.kind == FileKind::Directory && !known.nameless).then_some(known.node)
    }

    pub(super) fn set_nameless(&mut self, id: FileId, nameless: bool) {
        if let Some(known) = self.by_id.get_mut(&id) {
            known.nameless = nameless;
        }
    }

    pub(super) fn forget(&mut self, id: FileId) {
        self.by_id.remove(&id);
    }
}
