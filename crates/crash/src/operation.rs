//! What a workload did to the watched directory, one operation after the other: the types that the
//! recorder, the log file and the models share.
//!
//! No I/O, and independent of profiles. Real file systems reuse inode numbers immediately,
//! so a [`Node`] is assigned at creation and never names anything else afterwards.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use crate::call_stack::CallStacks;
use crate::recorded_bytes::RecordedBytes;

/// A file, directory or symbolic link of the watched tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Node(pub u64);

impl Node {
    /// The watched directory itself.
    pub const ROOT: Self = Self(0);
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DirEntry {
    /// The directory.
    pub directory: Node,
    /// The name.
    pub name: OsString,
}

/// One workload, recorded from start to end.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The absolute path that the workload saw.
    pub root: PathBuf,
    /// The content before it, parents before children, [`Node::ROOT`] first. It counts as durable.
    pub initial: Vec<Initial>,
    /// What happened, in order.
    pub entries: Vec<Entry>,
    /// Where each operation was called from; empty if that was not requested.
    pub stacks: CallStacks,
    /// What was still running when the workload's first process ended.
    pub left_running: LeftRunning,
    /// Files outside of the directory that the workload wrote to.
    pub outside: OutsideWrites,
    /// Whether the content before it was put there for this recording, rather than left by earlier runs.
    pub initial_is_copy: bool,
}

/// Regular files outside of the watched directory that the workload wrote to and that are still there
/// when it ends. No state is without these writes.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct OutsideWrites {
    /// Some of them, by absolute path; those behind symbolic links first.
    pub paths: Vec<PathBuf>,
    /// How many there are.
    pub files: u64,
    /// How many of them a symbolic link in the directory leads to.
    pub behind_links: u64,
}

/// Processes that outlive the workload's first one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct LeftRunning {
    /// How many there were, if any of them was recorded doing something or had to be terminated.
    pub processes: u32,
    /// How many did not end by themselves and were terminated. What they would have done later is not in
    /// the recording.
    pub ended: u32,
}

impl Recording {
    /// The maximum size of a state in bytes: as if no file had ever been removed or cut.
    pub fn largest_state(&self) -> u64 {
        /// The maximum length of a file, and the number of bytes ever written to it: it may be sparse.
        #[derive(Default)]
        struct Extent {
            end: u64,
            written: u64,
        }
        let mut files: HashMap<Node, Extent> = HashMap::new();
        let mut put = |node: Node, offset: u64, length: usize| {
            let file = files.entry(node).or_default();
            file.end = file.end.max(offset.saturating_add(length as u64));
            file.written += length as u64;
        };
        for initial in &self.initial {
            if let Content::File { extents, .. } = &initial.content {
                extents.iter().for_each(|(offset, data)| put(initial.node, *offset, data.len()));
            }
        }
        for entry in &self.entries {
            if let Entry::Operation(Operation {
                action: Action::Write { node, offset, data, .. },
                ..
            }) = entry
            {
                put(*node, *offset, data.len());
            }
        }
        files.values().map(|file| file.end.min(file.written)).sum()
    }
}

/// A node that existed before the workload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Initial {
    /// The node.
    pub node: Node,
    /// Its permission bits.
    pub mode: u32,
    /// All its names; none for the root. More than one means hard links.
    pub dir_entries: Vec<DirEntry>,
    /// Its content.
    pub content: Content,
}

/// The content of a node before the workload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// A directory.
    Directory,
    /// The bytes by extent, in order, without holes.
    File {
        /// The size in bytes.
        size: u64,
        /// Offsets and bytes.
        extents: Vec<(u64, RecordedBytes)>,
    },
    /// A symbolic link.
    Symlink {
        /// Its target.
        target: OsString,
    },
}

/// One entry of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A system call that changed the tree or made something durable.
    Operation(Operation),
    /// `crash_point` was passed.
    Label(String),
    /// The workload promised something: from now on it must survive.
    Acknowledgement(Vec<u8>),
}

/// A system call that changed the tree, or made something of it durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// The thread it came from, counted from 1 in order of appearance.
    pub task: u32,
    /// The system call, such as `pwrite64`, for people.
    pub call: String,
    /// What it did.
    pub action: Action,
}

/// What a system call did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// A new node; without a directory entry it is unnamed (`O_TMPFILE`).
    Create {
        /// The node.
        node: Node,
        /// The permission bits.
        mode: u32,
        /// What it is.
        kind: Kind,
        /// The name it got.
        dir_entry: Option<DirEntry>,
    },
    /// Bytes, at the offset where they were written (`O_APPEND` resolved). `sync` says whether the call
    /// itself waited for the device.
    Write {
        /// The node.
        node: Node,
        /// Where the range begins.
        offset: u64,
        /// The bytes.
        data: RecordedBytes,
        /// What the call waited for.
        sync: WriteSync,
        /// Whether they were stored through a memory mapping.
        mapped: bool,
    },
    /// Sets the size; bytes beyond it are gone, new ones read as zeros.
    Truncate {
        /// The node.
        node: Node,
        /// The size in bytes.
        size: u64,
    },
    /// `fallocate`: space, and size unless it is kept. Existing bytes stay.
    Allocate {
        /// The node.
        node: Node,
        /// Where the range begins.
        offset: u64,
        /// How long the range is.
        length: u64,
        /// Whether the size is kept.
        keep_size: bool,
    },
    /// `fallocate` with a hole or zeros: the range reads as zeros; the size grows only without
    /// `keep_size`.
    Zero {
        /// The node.
        node: Node,
        /// Where the range begins.
        offset: u64,
        /// How long the range is.
        length: u64,
        /// Whether the size is kept.
        keep_size: bool,
        /// Whether the space is freed.
        hole: bool,
    },
    /// Adds a name.
    Link {
        /// The node.
        node: Node,
        /// The name.
        dir_entry: DirEntry,
    },
    /// `unlink` or `rmdir`.
    Remove {
        /// The node.
        node: Node,
        /// The name.
        dir_entry: DirEntry,
    },
    /// Renames.
    Rename {
        /// The node.
        node: Node,
        /// The old name.
        from: DirEntry,
        /// The new name.
        to: DirEntry,
        /// The node that had the new name before.
        replaced: Option<Node>,
    },
    /// `RENAME_EXCHANGE`: both names stay and swap their nodes.
    Exchange {
        /// One node.
        first: Node,
        /// The name that it had.
        first_entry: DirEntry,
        /// The other node.
        second: Node,
        /// The name that it had.
        second_entry: DirEntry,
    },
    /// Sets the permission bits.
    Mode {
        /// The node.
        node: Node,
        /// The permission bits.
        mode: u32,
    },
    /// Sets or removes an extended attribute.
    Attribute {
        /// The node.
        node: Node,
        /// Its name.
        name: OsString,
        /// Its value; `None` if it is removed.
        value: Option<Arc<[u8]>>,
    },
    /// `fsync`, `fdatasync` (`data_only`), `msync(MS_SYNC)` of a whole file (`data_only`).
    Sync {
        /// The node.
        node: Node,
        /// Whether only the bytes and what is needed to read them are made durable.
        data_only: bool,
    },
    /// `msync(MS_SYNC)` of a part of a file: an `fdatasync` of these pages.
    SyncPart {
        /// The node.
        node: Node,
        /// Where the range begins.
        offset: u64,
        /// How long the range is.
        length: u64,
    },
    /// `sync_file_range`: recorded for people; not a barrier in any profile.
    SyncRange {
        /// The node.
        node: Node,
        /// Where the range begins.
        offset: u64,
        /// How long the range is.
        length: u64,
    },
    /// `sync`, `syncfs`.
    SyncAll,
    /// The last descriptor of a writable open file was closed.
    Close {
        /// The node.
        node: Node,
    },
}

/// The kind of a new node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file.
    File,
    /// A symbolic link.
    Symlink {
        /// Its target.
        target: OsString,
    },
}

/// What a write waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteSync {
    /// Nothing: the bytes are in memory.
    None,
    /// `O_DSYNC`, `RWF_DSYNC`.
    Data,
    /// `O_SYNC`, `RWF_SYNC`.
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_state_counts_every_byte_of_a_file_once() {
        let write = |node, offset, length: usize| {
            let data = vec![1; length].into();
            let action = Action::Write {
                node: Node(node),
                offset,
                data,
                sync: WriteSync::None,
                mapped: false,
            };
            Entry::Operation(Operation { task: 1, call: "write".into(), action })
        };
        let initial = Initial {
            node: Node(1),
            mode: 0o600,
            dir_entries: Vec::new(),
            content: Content::File { size: 1 << 40, extents: vec![(0, vec![1; 100].into())] },
        };
        let recording = Recording {
            root: "/".into(),
            initial: vec![initial],
            // Overwritten three times; and far behind a hole.
            entries: vec![write(1, 0, 100), write(1, 50, 100), write(2, 1 << 40, 7)],
            stacks: CallStacks::default(),
            left_running: LeftRunning::default(),
            outside: OutsideWrites::default(),
            initial_is_copy: false,
        };
        assert_eq!(recording.largest_state(), 150 + 7);
    }
}
