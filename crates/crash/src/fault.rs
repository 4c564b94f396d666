//! Faults: how a call on a file can fail, which calls of a run could, and what the kernel may drop
//! after a failed sync.
//!
//! The recorder lists the calls and makes one of them fail; this module runs no program.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::call_stack::CallStacks;
use crate::model::Tree;
use crate::operation::{Action, DirEntry, Entry, Node, Operation, Recording, WriteSync};

/// How a call fails.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fault {
    /// The device or its connection is broken.
    Eio,
    /// The file system is full.
    Enospc,
    /// The user's quota is used up.
    Edquot,
    /// The process has reached its limit of open files.
    Emfile,
    /// The system has no memory left.
    Enomem,
    /// The file system does not support this operation.
    Eopnotsupp,
    /// Only a part of the bytes is written, and the call says how many.
    ShortWrite,
}

impl Fault {
    /// Every fault, in the order in which they are tried.
    pub const ALL: [Self; 7] = [
        Self::Eio,
        Self::Enospc,
        Self::Edquot,
        Self::Emfile,
        Self::Enomem,
        Self::Eopnotsupp,
        Self::ShortWrite,
    ];

    /// Its name, such as `ENOSPC`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eio => "EIO",
            Self::Enospc => "ENOSPC",
            Self::Edquot => "EDQUOT",
            Self::Emfile => "EMFILE",
            Self::Enomem => "ENOMEM",
            Self::Eopnotsupp => "EOPNOTSUPP",
            Self::ShortWrite => "short",
        }
    }

    /// The error number; `None` for a call that succeeds in part.
    pub fn code(self) -> Option<i32> {
        match self {
            Self::Eio => Some(libc::EIO),
            Self::Enospc => Some(libc::ENOSPC),
            Self::Edquot => Some(libc::EDQUOT),
            Self::Emfile => Some(libc::EMFILE),
            Self::Enomem => Some(libc::ENOMEM),
            Self::Eopnotsupp => Some(libc::EOPNOTSUPP),
            Self::ShortWrite => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No fault has this name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownFault(pub String);

impl fmt::Display for UnknownFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "there is no fault `{}`: it is one of {}",
            self.0,
            Fault::ALL.map(Fault::name).join(", ")
        )
    }
}

impl std::error::Error for UnknownFault {}

impl FromStr for Fault {
    type Err = UnknownFault;

    fn from_str(name: &str) -> Result<Self, UnknownFault> {
        let found = Self::ALL.into_iter().find(|fault| fault.name() == name);
        found.ok_or_else(|| UnknownFault(name.to_owned()))
    }
}

/// The call to make fail: the one with this number among the calls of this name on files of the
/// watched directory. Other calls may differ between two runs without changing which call is hit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultTarget {
    /// The name of the system call.
    pub call: String,
    /// From 1.
    pub occurrence: u32,
    /// How it fails.
    pub fault: Fault,
}

/// A call that could fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultSite {
    /// The name of the system call.
    pub call: &'static str,
    /// From 1, among the calls of this name.
    pub occurrence: u32,
    /// What it operates on.
    pub subject: FaultSubject,
    /// The number of entries of the recording before it.
    pub position: usize,
    /// The faults that its manual page allows.
    pub faults: Vec<Fault>,
}

/// What a call operates on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FaultSubject {
    /// A whole file or directory.
    Node(Node),
    /// A range of a file's bytes, given by the call's arguments.
    Range {
        /// The file.
        node: Node,
        /// Where the range begins.
        offset: u64,
        /// How long it is.
        length: u64,
    },
    /// A name in a directory.
    Name(DirEntry),
    /// A rename, or a link to another name.
    Names {
        /// The name it has.
        from: DirEntry,
        /// The name it gets.
        to: DirEntry,
    },
    /// `sync`, `syncfs`.
    Everything,
}

/// The calls of a recorded run that could fail.
#[derive(Clone, Default, Debug)]
pub struct FaultTrace {
    /// Every call that could fail.
    pub sites: Vec<FaultSite>,
    /// The one that was made to fail.
    pub injected: Option<FaultSite>,
}

const PAGE: u64 = 4096;

/// Pages that were written but not synced, with the bytes that the disk has.
type DirtyPages = HashMap<Node, BTreeMap<u64, Vec<u8>>>;

/// The recording as it reached the disk if the kernel dropped what it could not write; `None` if that
/// changes nothing.
///
/// After a failed sync (or a failed `close`, which reports the same error) Linux marks the pages
/// that it could not write as clean. They are read from the cache until they are evicted, no later
/// sync writes them, and then the old bytes are back. A page that the program writes to afterwards
/// is dirty again, and is written whole. The size is in the journal, and stays.
pub fn with_dropped_pages(recording: &Recording, site: &FaultSite) -> Option<Recording> {
    if !matches!(
        site.call,
        "fsync" | "fdatasync" | "msync" | "sync_file_range" | "syncfs" | "close"
    ) {
        return None;
    }
    let position = site.position.min(recording.entries.len());
    let (before, after) = recording.entries.split_at(position);
    let (tree, mut dirty) = dirty_pages(recording, before);
    keep_affected(&mut dirty, &site.subject);
    for entry in after {
        if let Entry::Operation(Operation { action, .. }) = entry {
            forget_rewritten(&mut dirty, action);
        }
    }
    let mut dropped: Vec<Entry> = Vec::new();
    let mut nodes: Vec<_> = dirty.into_iter().collect();
    nodes.sort_unstable_by_key(|(node, _)| *node);
    for (node, pages) in nodes {
        let Some(size) = tree.file(node).map(|file| file.size()) else { continue };
        for (offset, data) in runs(&pages, size) {
            let mut now = vec![0; data.len()];
            if let Some(file) = tree.file(node) {
                file.read(offset, &mut now);
            }
            if now != data {
                let (data, sync) = (data.into(), WriteSync::None);
                let action = Action::Write { node, offset, data, sync, mapped: false };
                let call = format!("lost by {}", site.call);
                dropped.push(Entry::Operation(Operation { task: 0, call, action }));
            }
        }
    }
    if dropped.is_empty() {
        return None;
    }
    let entries = before.iter().cloned().chain(dropped).chain(after.iter().cloned()).collect();
    let Recording { root, initial, .. } = recording;
    // The operations have different numbers now.
    Some(Recording {
        root: root.clone(),
        initial: initial.clone(),
        entries,
        stacks: CallStacks::default(),
        left_running: recording.left_running,
        outside: Default::default(),
        initial_is_copy: false,
    })
}

/// Replays a part of a recording, and keeps the content of each dirty page before its first write.
fn dirty_pages(recording: &Recording, entries: &[Entry]) -> (Tree, DirtyPages) {
    let mut tree = Tree::new(&recording.initial);
    let mut dirty: DirtyPages = HashMap::new();
    for entry in entries {
        let Entry::Operation(Operation { action, .. }) = entry else { continue };
        if let Action::Write { node, offset, data, sync: WriteSync::None, .. } = action {
            let of_file = dirty.entry(*node).or_default();
            for page in pages(*offset, data.len() as u64) {
                of_file.entry(page).or_insert_with(|| {
                    let mut bytes = vec![0; PAGE as usize];
                    if let Some(file) = tree.file(*node) {
                        file.read(page * PAGE, &mut bytes);
                    }
                    bytes
                });
            }
        } else {
            forget_rewritten(&mut dirty, action);
            match action {
                Action::Sync { node, .. } => _ = dirty.remove(node),
                Action::SyncPart { node, offset, length } => {
                    forget(&mut dirty, *node, pages(*offset, *length));
                }
                Action::SyncAll => dirty.clear(),
                _ => {}
            }
        }
        tree.apply(action);
    }
    (tree, dirty)
}

/// Removes pages that are written again, and those that are cut off.
fn forget_rewritten(dirty: &mut DirtyPages, action: &Action) {
    match action {
        Action::Write { node, offset, data, .. } => {
            forget(dirty, *node, pages(*offset, data.len() as u64));
        }
        Action::Truncate { node, size } => {
            forget(dirty, *node, size.div_ceil(PAGE)..u64::MAX);
        }
        Action::Zero { node, offset, length, .. } => {
            let end = offset.saturating_add(*length) / PAGE;
            forget(dirty, *node, offset.div_ceil(PAGE)..end);
        }
        _ => {}
    }
}

/// Keeps only the pages that the failed call was meant to write.
fn keep_affected(dirty: &mut DirtyPages, subject: &FaultSubject) {
    match subject {
        FaultSubject::Node(node) => dirty.retain(|one, _| one == node),
        FaultSubject::Range { node, offset, length } => {
            dirty.retain(|one, _| one == node);
            // A length of 0 means up to the end, as in `sync_file_range`.
            let length = if *length == 0 { u64::MAX } else { *length };
            let range = pages(*offset, length);
            if let Some(of_file) = dirty.get_mut(node) {
                of_file.retain(|page, _| range.contains(page));
            }
        }
        FaultSubject::Everything => {}
        FaultSubject::Name(_) | FaultSubject::Names { .. } => dirty.clear(),
    }
}

fn forget(dirty: &mut DirtyPages, node: Node, range: Range<u64>) {
    if let Some(of_file) = dirty.get_mut(&node) {
        of_file.retain(|page, _| !range.contains(page));
    }
}

fn pages(offset: u64, length: u64) -> Range<u64> {
    offset / PAGE..offset.saturating_add(length).div_ceil(PAGE)
}

/// Joins consecutive pages, up to the end of the file.
fn runs(pages: &BTreeMap<u64, Vec<u8>>, size: u64) -> Vec<(u64, Vec<u8>)> {
    let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
    for (page, bytes) in pages {
        let start = page * PAGE;
        let length = size.saturating_sub(start).min(PAGE) as usize;
        if length == 0 {
            continue;
        }
        match runs.last_mut() {
            Some((offset, run)) if *offset + run.len() as u64 == start => {
                run.extend_from_slice(&bytes[..length]);
            }
            _ => runs.push((start, bytes[..length].to_vec())),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Kind;

    const FILE: Node = Node(1);

    fn operation(action: Action) -> Entry {
        Entry::Operation(Operation { task: 1, call: String::new(), action })
    }

    fn write(offset: u64, byte: u8, length: usize) -> Entry {
        let (data, sync) = (vec![byte; length].into(), WriteSync::None);
        operation(Action::Write { node: FILE, offset, data, sync, mapped: false })
    }

    fn sync() -> Entry {
        operation(Action::Sync { node: FILE, data_only: false })
    }

    fn recording(entries: Vec<Entry>) -> Recording {
        let dir_entry = Some(DirEntry { directory: Node::ROOT, name: "a".into() });
        let create = Action::Create { node: FILE, mode: 0o644, kind: Kind::File, dir_entry };
        let entries = [vec![operation(create)], entries].concat();
        Recording {
            root: "/r".into(),
            initial: Vec::new(),
            entries,
            stacks: CallStacks::default(),
            left_running: Default::default(),
            outside: Default::default(),
            initial_is_copy: false,
        }
    }

    /// The remaining bytes of the file, one for each half page.
    fn left(entries: Vec<Entry>, position: usize, subject: FaultSubject) -> Option<String> {
        let recording = recording(entries);
        let site =
            FaultSite { call: "fsync", occurrence: 1, subject, position, faults: Vec::new() };
        let dropped = with_dropped_pages(&recording, &site)?;
        let mut tree = Tree::new(&dropped.initial);
        for entry in &dropped.entries {
            if let Entry::Operation(operation) = entry {
                tree.apply(&operation.action);
            }
        }
        let file = tree.file(FILE).unwrap();
        let mut bytes = vec![0; file.size() as usize];
        file.read(0, &mut bytes);
        let seen = bytes.iter().step_by(2048).map(|byte| match byte {
            0 => '.',
            other => char::from(*other),
        });
        Some(seen.collect())
    }

    #[test]
    fn a_failed_sync_loses_dirty_data_and_keeps_synced_data() {
        let entries = vec![write(0, b'a', 8192), sync(), write(4096, b'b', 8192), sync()];
        // The second sync failed; the recording of such a run does not contain it.
        let whole = left(entries[..3].to_vec(), 4, FaultSubject::Node(FILE));
        assert_eq!(whole.as_deref(), Some("aaaa.."));
        // A later successful sync does not write them.
        assert_eq!(left(entries, 4, FaultSubject::Node(FILE)).as_deref(), Some("aaaa.."));
    }

    #[test]
    fn a_page_that_is_written_again_is_there_whole() {
        let again = vec![write(0, b'a', 8192), write(4096, b'b', 2048), sync()];
        assert_eq!(left(again, 2, FaultSubject::Node(FILE)).as_deref(), Some("..ba"));
        let all = vec![write(0, b'a', 8192), write(0, b'a', 8192), sync()];
        assert_eq!(left(all, 2, FaultSubject::Node(FILE)), None);
    }

    #[test]
    fn a_failed_call_loses_only_the_data_it_was_to_write() {
        let entries = || vec![write(0, b'a', 8192)];
        let range = FaultSubject::Range { node: FILE, offset: 4096, length: 4096 };
        assert_eq!(left(entries(), 2, range).as_deref(), Some("aa.."));
        assert_eq!(left(entries(), 2, FaultSubject::Everything).as_deref(), Some("...."));
        assert_eq!(left(entries(), 2, FaultSubject::Node(Node(7))), None);
    }

    #[test]
    fn truncated_data_does_not_count_as_lost() {
        let cut = operation(Action::Truncate { node: FILE, size: 0 });
        assert_eq!(left(vec![write(0, b'a', 8192), cut], 2, FaultSubject::Node(FILE)), None);
    }

    #[test]
    fn names_are_read_back() {
        for fault in Fault::ALL {
            assert_eq!(fault.name().parse(), Ok(fault));
        }
        assert!("ENOENT".parse::<Fault>().is_err());
    }
}
