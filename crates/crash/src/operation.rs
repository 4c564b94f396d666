//! What a workload did to the watched directory, one operation after the other: the words that the
//! recorder, the log file and the models share.
//!
//! Nothing here does I/O or knows a profile. Inode numbers are reused at once by real file systems,
//! so a [`Node`] is bound when it is created and never names anything else afterwards.

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

/// One workload, watched from start to end.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The absolute path the workload saw.
    pub root: PathBuf,
    /// What was there before, parents before children, [`Node::ROOT`] first. It counts as durable.
    pub initial: Vec<Initial>,
    /// What happened, in order.
    pub entries: Vec<Entry>,
    /// Where each operation was called from; empty if that was not asked for.
    pub stacks: CallStacks,
    /// What was still running when the workload's first process ended.
    pub left_running: LeftRunning,
}

/// Processes that outlive the workload's first one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct LeftRunning {
    /// How many there were, if any of them was recorded doing something or had to be ended.
    pub processes: u32,
    /// How many did not end by themselves and were ended. What they would have done later is not in
    /// the recording.
    pub ended: u32,
}

impl Recording {
    /// How many bytes a state can have at most: as if no file had ever been removed or cut.
    pub fn largest_state(&self) -> u64 {
        /// How long a file was at most, and how many bytes were ever put into it: it may be sparse.
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

/// A node that was there before the workload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Initial {
    /// The node.
    pub node: Node,
    /// Its permission bits.
    pub mode: u32,
    /// Every name it has; none for the root. More than one means hard links.
    pub dir_entries: Vec<DirEntry>,
    /// What it held.
    pub content: Content,
}

/// What a node held before the workload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// A directory.
    Directory,
    /// The bytes by extent, in order, holes left out.
    File {
        /// The size in bytes.
        size: u64,
        /// Offsets and bytes.
        extents: Vec<(u64, RecordedBytes)>,
    },
    /// A symbolic link.
    Symlink {
        /// Where it leads.
        target: OsString,
    },
}

/// One line of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A system call that changed the tree or made something durable.
    Operation(Operation),
    /// `crash_point` was passed.
    Label(String),
    /// The workload promised something: from here on it must survive.
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
    /// Bytes, at the offset where they landed (`O_APPEND` resolved). `sync` tells whether the call
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
    /// The size is set; what is beyond it is gone, what is new reads as zeros.
    Truncate {
        /// The node.
        node: Node,
        /// The size in bytes.
        size: u64,
    },
    /// `fallocate`: space, and size unless it is kept. Bytes that were there stay.
    Allocate {
        /// The node.
        node: Node,
        /// Where the range begins.
        offset: u64,
        /// How long the range is.
        length: u64,
        /// Whether the size stays.
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
        /// Whether the size stays.
        keep_size: bool,
        /// Whether the space is given back.
        hole: bool,
    },
    /// A further name.
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
    /// A name is moved.
    Rename {
        /// The node.
        node: Node,
        /// The old name.
        from: DirEntry,
        /// The new name.
        to: DirEntry,
        /// What had the new name before.
        replaced: Option<Node>,
    },
    /// `RENAME_EXCHANGE`: both names keep existing and swap their nodes.
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
    /// The permission bits are set.
    Mode {
        /// The node.
        node: Node,
        /// The permission bits.
        mode: u32,
    },
    /// An extended attribute is set or removed.
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
    /// `sync_file_range`: told for people; no barrier in any profile.
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
    /// The last descriptor of a writable open file went away.
    Close {
        /// The node.
        node: Node,
    },
}

/// What a new node is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file.
    File,
    /// A symbolic link.
    Symlink {
        /// Where it leads.
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
            // Written over three times; and far behind a hole.
            entries: vec![write(1, 0, 100), write(1, 50, 100), write(2, 1 << 40, 7)],
            stacks: CallStacks::default(),
            left_running: LeftRunning::default(),
        };
        assert_eq!(recording.largest_state(), 150 + 7);
    }
}
