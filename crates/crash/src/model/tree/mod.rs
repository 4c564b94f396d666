//! A directory tree in memory: cheap to clone, sparse, and with a digest that is updated with each change.
//!
//! Applies one action after the other, whatever a profile allows. An action that does
//! not fit the tree (the removal of a missing name, a link that would make a directory
//! its own ancestor, a node that was never created) changes nothing: in a crash state some actions
//! are missing by design. Whether a *complete* recording fits is found by comparing with the disk.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::operation::{Action, Content, DirEntry, Initial, Kind, Node};
use file_content::FileContent;
use radix_map::RadixMap;

pub(super) mod digest;
pub(super) mod file_content;
mod radix_map;

/// A directory tree in memory. Copies share equal parts.
#[derive(Clone, Debug)]
pub struct Tree {
    inodes: RadixMap<Arc<Inode>>,
}

#[derive(Clone, Debug)]
struct Inode {
    mode: u32,
    /// All its names, in no particular order.
    dir_entries: Vec<DirEntry>,
    attributes: Arc<BTreeMap<OsString, Arc<[u8]>>>,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    /// The names, and the sum of the digests of all names and their nodes.
    Directory {
        names: Arc<BTreeMap<OsString, Node>>,
        sum: u128,
    },
    File(FileContent),
    Symlink(OsString),
}

/// One name of the tree.
#[derive(Clone, Debug)]
pub struct TreeEntry<'a> {
    /// Relative to the root, which itself has the empty path.
    pub path: PathBuf,
    /// The file, directory or link.
    pub node: Node,
    /// Permission bits as recorded.
    pub mode: u32,
    /// How many names of the tree the node has, including this one.
    pub links: usize,
    /// Extended attributes.
    pub attributes: &'a BTreeMap<OsString, Arc<[u8]>>,
    /// What it is, with its content.
    pub kind: TreeEntryKind<'a>,
}

/// What an entry of a tree is.
#[derive(Clone, Copy, Debug)]
pub enum TreeEntryKind<'a> {
    /// A directory.
    Directory,
    /// A file.
    File(FileView<'a>),
    /// A symbolic link, with its target.
    Symlink(&'a OsStr),
}

/// The bytes of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileView<'a>(&'a FileContent);

impl<'a> FileView<'a> {
    /// Its size in bytes, holes included.
    pub fn size(&self) -> u64 {
        self.0.size()
    }

    /// Offset and bytes, in order; at most a page (4 KiB) each and cut at the size. The rest
    /// is zeros.
    pub fn extents(&self) -> impl Iterator<Item = (u64, &'a [u8])> + use<'a> {
        self.0.extents()
    }

    /// Fills the buffer from `offset` on; returns how many bytes there were.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        self.0.read(offset, buffer)
    }
}

impl Tree {
    /// The tree as it was before the workload.
    pub fn new(initial: &[Initial]) -> Self {
        let mut tree = Self { inodes: RadixMap::default() };
        tree.create(Node::ROOT, 0o755, Body::directory());
        for one in initial {
            let body = match &one.content {
                Content::Directory => Body::directory(),
                Content::File { size, extents } => {
                    let mut bytes = FileContent::default();
                    for (offset, data) in extents {
                        bytes.write(*offset, data);
                    }
                    bytes.resize(*size);
                    Body::File(bytes)
                }
                Content::Symlink { target } => Body::Symlink(target.clone()),
            };
            tree.create(one.node, one.mode, body);
        }
        // A file with several names may precede the directory of one of them.
        for one in initial {
            for dir_entry in &one.dir_entries {
                tree.link(one.node, dir_entry);
            }
        }
        tree
    }

    /// Applies a change; syncs and closes change nothing.
    pub fn apply(&mut self, action: &Action) {
        match action {
            Action::Create { node, mode, kind, dir_entry } => {
                let body = match kind {
                    Kind::Directory => Body::directory(),
                    Kind::File => Body::File(FileContent::default()),
                    Kind::Symlink { target } => Body::Symlink(target.clone()),
                };
                self.create(*node, *mode, body);
                if let Some(dir_entry) = dir_entry {
                    self.link(*node, dir_entry);
                }
            }
            Action::Write { node, offset, data, .. } => {
                self.bytes(*node, |bytes| bytes.write(*offset, data));
            }
            Action::Truncate { node, size } => self.bytes(*node, |bytes| bytes.resize(*size)),
            Action::Allocate { node, offset, length, keep_size } => {
                if !keep_size {
                    self.bytes(*node, |bytes| {
                        bytes.resize(bytes.size().max(offset.saturating_add(*length)));
                    });
                }
            }
            Action::Zero { node, offset, length, keep_size, .. } => self.bytes(*node, |bytes| {
                bytes.zero(*offset, *length);
                if !keep_size {
                    bytes.resize(bytes.size().max(offset.saturating_add(*length)));
                }
            }),
            Action::Link { node, dir_entry } => {
                self.link(*node, dir_entry);
            }
            Action::Remove { node, dir_entry } => {
                self.unlink(*node, dir_entry);
            }
            Action::Rename { node, from, to, .. } => self.rename(*node, from, to),
            Action::Exchange { first, first_entry, second, second_entry } => {
                self.exchange(*first, first_entry, *second, second_entry);
            }
            Action::Mode { node, mode } => self.change(*node, |inode| inode.mode = *mode),
            Action::Attribute { node, name, value } => self.change(*node, |inode| {
                let attributes = Arc::make_mut(&mut inode.attributes);
                match value {
                    Some(value) => attributes.insert(name.clone(), value.clone()),
                    None => attributes.remove(name),
                };
            }),
            Action::Sync { .. }
            | Action::SyncPart { .. }
            | Action::SyncRange { .. }
            | Action::SyncAll
            | Action::Close { .. } => {}
        }
    }

    /// Equal for trees that no check can distinguish: names, kinds, modes, bytes, hard links and
    /// attributes. Node numbers only matter for which names share one file.
    pub fn digest(&self) -> u128 {
        self.inodes.get(Node::ROOT.0).map_or(0, |root| root.digest())
    }

    /// Every name, parents before children, in order of the names. The root comes first.
    pub fn walk(&self) -> impl Iterator<Item = TreeEntry<'_>> {
        let mut stack = vec![(PathBuf::new(), Node::ROOT)];
        std::iter::from_fn(move || {
            let (path, node) = stack.pop()?;
            let inode = self.inodes.get(node.0)?;
            if let Body::Directory { names, .. } = &inode.body {
                stack.extend(names.iter().rev().map(|(name, node)| (path.join(name), *node)));
            }
            Some(self.found(inode, path, node))
        })
    }

    /// The entry at a path relative to the root. Symbolic links are not followed.
    pub fn find(&self, path: &Path) -> Option<TreeEntry<'_>> {
        let mut node = Node::ROOT;
        for part in path {
            node = self.entry(&DirEntry { directory: node, name: part.to_owned() })?;
        }
        Some(self.found(self.inodes.get(node.0)?, path.to_owned(), node))
    }

    /// The node that has this name.
    pub fn entry(&self, dir_entry: &DirEntry) -> Option<Node> {
        match &self.inodes.get(dir_entry.directory.0)?.body {
            Body::Directory { names, .. } => names.get(&dir_entry.name).copied(),
            _ => None,
        }
    }

    /// A path of the node, or `None` if it is not reachable from the root.
    pub fn path(&self, node: Node) -> Option<PathBuf> {
        if node == Node::ROOT {
            return Some(PathBuf::new());
        }
        self.inodes
            .get(node.0)?
            .dir_entries
            .iter()
            .find_map(|dir_entry| Some(self.path(dir_entry.directory)?.join(&dir_entry.name)))
    }

    /// The bytes of a file, reachable or not.
    pub fn file(&self, node: Node) -> Option<FileView<'_>> {
        match &self.inodes.get(node.0)?.body {
            Body::File(bytes) => Some(FileView(bytes)),
            _ => None,
        }
    }

    /// How many names a node has, reachable or not.
    pub fn links(&self, node: Node) -> usize {
        self.inodes.get(node.0).map_or(0, |inode| inode.dir_entries.len())
    }

    pub(crate) fn is_directory(&self, node: Node) -> bool {
        self.inodes.get(node.0).is_some_and(|inode| matches!(inode.body, Body::Directory { .. }))
    }

    pub(crate) fn bytes(&mut self, node: Node, change: impl FnOnce(&mut FileContent)) {
        self.change(node, |inode| {
            if let Body::File(bytes) = &mut inode.body {
                change(bytes);
            }
        });
    }

    /// Adds a name, replacing an existing one.
    pub(crate) fn link(&mut self, node: Node, dir_entry: &DirEntry) {
        let fits = self.inodes.get(node.0).is_some()
            && self.is_directory(dir_entry.directory)
            && self.entry(dir_entry) != Some(node)
            && !(self.is_directory(node) && self.is_below(dir_entry.directory, node));
        if !fits {
            return;
        }
        if let Some(old) = self.entry(dir_entry) {
            self.unlink(old, dir_entry);
        }
        self.change(node, |inode| inode.dir_entries.push(dir_entry.clone()));
        let digest = self.inodes.get(node.0).map_or(0, |inode| inode.digest());
        self.change(dir_entry.directory, |inode| {
            if let Body::Directory { names, sum } = &mut inode.body {
                Arc::make_mut(names).insert(dir_entry.name.clone(), node);
                *sum = sum.wrapping_add(entry_digest(&dir_entry.name, digest));
            }
        });
    }

    /// Removes a name, if it belongs to the node.
    pub(crate) fn unlink(&mut self, node: Node, dir_entry: &DirEntry) -> bool {
        if self.entry(dir_entry) != Some(node) {
            return false;
        }
        let digest = self.inodes.get(node.0).map_or(0, |inode| inode.digest());
        self.change(dir_entry.directory, |inode| {
            if let Body::Directory { names, sum } = &mut inode.body {
                Arc::make_mut(names).remove(&dir_entry.name);
                *sum = sum.wrapping_sub(entry_digest(&dir_entry.name, digest));
            }
        });
        self.change(node, |inode| inode.dir_entries.retain(|one| one != dir_entry));
        true
    }

    fn create(&mut self, node: Node, mode: u32, body: Body) {
        match self.inodes.get(node.0) {
            // The root exists from the start.
            Some(_) => self.change(node, |inode| inode.mode = mode),
            None => {
                let inode =
                    Inode { mode, dir_entries: Vec::new(), attributes: Arc::default(), body };
                self.inodes.insert(node.0, Arc::new(inode));
            }
        }
    }

    fn rename(&mut self, node: Node, from: &DirEntry, to: &DirEntry) {
        let cycle = self.is_directory(node) && self.is_below(to.directory, node);
        // A rename between two names of one file does nothing (POSIX).
        if cycle || !self.is_directory(to.directory) || self.entry(to) == Some(node) {
            return;
        }
        if self.unlink(node, from) {
            self.link(node, to);
        }
    }

    fn exchange(
        &mut self,
        first: Node,
        first_entry: &DirEntry,
        second: Node,
        second_entry: &DirEntry,
    ) {
        let there =
            self.entry(first_entry) == Some(first) && self.entry(second_entry) == Some(second);
        let cycle = self.is_below(first_entry.directory, second)
            || self.is_below(second_entry.directory, first);
        if there && !cycle {
            self.unlink(first, first_entry);
            self.unlink(second, second_entry);
            self.link(first, second_entry);
            self.link(second, first_entry);
        }
    }

    fn found<'a>(&self, inode: &'a Inode, path: PathBuf, node: Node) -> TreeEntry<'a> {
        // A crash state may contain a directory that was removed before its names were.
        let reachable = |dir_entry: &&DirEntry| self.path(dir_entry.directory).is_some();
        let links = match inode.dir_entries.len() {
            2.. => inode.dir_entries.iter().filter(reachable).count(),
            few => few,
        };
        TreeEntry {
            path,
            node,
            mode: inode.mode,
            links,
            attributes: &inode.attributes,
            kind: match &inode.body {
                Body::Directory { .. } => TreeEntryKind::Directory,
                Body::File(bytes) => TreeEntryKind::File(FileView(bytes)),
                Body::Symlink(target) => TreeEntryKind::Symlink(target),
            },
        }
    }

    /// Whether `node` is `above` or below it.
    fn is_below(&self, node: Node, above: Node) -> bool {
        node == above
            || self.inodes.get(node.0).is_some_and(|inode| {
                inode.dir_entries.iter().any(|dir_entry| self.is_below(dir_entry.directory, above))
            })
    }

    /// Changes an inode and updates its parent directories. Ends because no directory is its own
    /// ancestor.
    fn change(&mut self, node: Node, change: impl FnOnce(&mut Inode)) {
        let Some(inode) = self.inodes.get_mut(node.0) else { return };
        let inode = Arc::make_mut(inode);
        let before = inode.digest();
        change(inode);
        let after = inode.digest();
        if before == after {
            return;
        }
        let dir_entries = inode.dir_entries.clone();
        for dir_entry in dir_entries {
            // While a name is added or removed its directory does not include it.
            if self.entry(&dir_entry) == Some(node) {
                self.retell(&dir_entry, before, after);
            }
        }
    }

    fn retell(&mut self, dir_entry: &DirEntry, before: u128, after: u128) {
        let difference = entry_digest(&dir_entry.name, after)
            .wrapping_sub(entry_digest(&dir_entry.name, before));
        self.change(dir_entry.directory, |inode| {
            if let Body::Directory { sum, .. } = &mut inode.body {
                *sum = sum.wrapping_add(difference);
            }
        });
    }
}

impl Body {
    fn directory() -> Self {
        Self::Directory { names: Arc::default(), sum: 0 }
    }
}

impl Inode {
    fn digest(&self) -> u128 {
        let (role, size, sum) = match &self.body {
            Body::Directory { sum, .. } => (1, 0, *sum),
            Body::File(bytes) => (2, bytes.size(), bytes.sum()),
            Body::Symlink(target) => (3, 0, digest::bytes(4, target.as_bytes())),
        };
        let attributes = self.attributes.iter().fold(0_u128, |sum, (name, value)| {
            let one = [digest::bytes(5, name.as_bytes()), digest::bytes(6, value)];
            sum.wrapping_add(digest::numbers(7, one))
        });
        // A single name shares nothing; two names of one file differ from two equal files.
        let shared = if self.dir_entries.len() < 2 {
            0
        } else {
            self.dir_entries.iter().fold(0_u128, |sum, dir_entry| {
                let name = digest::bytes(8, dir_entry.name.as_bytes());
                sum.wrapping_add(digest::numbers(9, [u128::from(dir_entry.directory.0), name]))
            })
        };
        digest::numbers(role, [u128::from(self.mode), u128::from(size), sum, attributes, shared])
    }
}

fn entry_digest(name: &OsStr, thing: u128) -> u128 {
    digest::numbers(10, [digest::bytes(11, name.as_bytes()), thing])
}

#[cfg(test)]
mod tests;
