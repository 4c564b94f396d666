//! A tree as it was at one moment, in little memory.
//!
//! One [`Directory`] holds the files of one directory in two flat arrays. Two snapshots share the
//! directories in which nothing changed, so a second snapshot of an unchanged tree costs a pointer
//! per directory.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FileType;

use super::line_records::RecordPosition;
use super::line_store::Segments;
use super::syscalls::Stat;

/// The content could not be read, so `hash` says nothing.
pub(super) const UNREADABLE: u8 = 1;
/// Not even `stat` worked: only the name is known.
pub(super) const UNKNOWN: u8 = 2;
/// `stat` alone can tell next time: the last change lies safely before the scan began.
pub(super) const RELIABLE: u8 = 4;

/// One file or symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileEntry {
    pub(super) stat: Stat,
    pub(super) lines: RecordPosition,
    /// BLAKE3 of the content, or of a link's target.
    pub(super) hash: [u8; 32],
    /// With `name_len` a [`Name`], taken apart so that it shares a word with the flags.
    name_at: u32,
    name_len: u16,
    pub(super) flags: u8,
}

impl FileEntry {
    pub(super) fn new(name: Name, stat: Stat, flags: u8) -> Self {
        let (name_at, name_len) = (name.at, name.len);
        Self { stat, lines: RecordPosition::NONE, hash: [0; 32], name_at, name_len, flags }
    }

    pub(super) fn name(&self) -> Name {
        Name { at: self.name_at, len: self.name_len }
    }

    pub(super) fn named(mut self, name: Name) -> Self {
        (self.name_at, self.name_len) = (name.at, name.len);
        self
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn is_link(&self) -> bool {
        self.stat.kind() == FileType::Symlink
    }
}

/// Where a name lies in its directory's `names`, where it ends in a NUL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) at: u32,
    pub(super) len: u16,
}

impl Name {
    pub(super) fn bytes(self, names: &[u8]) -> &[u8] {
        &names[self.at as usize..][..usize::from(self.len)]
    }

    pub(super) fn c_str(self, names: &[u8]) -> &CStr {
        let bytes = &names[self.at as usize..][..usize::from(self.len) + 1];
        CStr::from_bytes_until_nul(bytes).unwrap_or_default()
    }
}

/// Names of files that decide what is left out; their presence is remembered, not their content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct IgnoreFilesPresent {
    pub(super) gitignore: bool,
    pub(super) ignore: bool,
    pub(super) git: bool,
}

impl IgnoreFilesPresent {
    pub(super) fn note(&mut self, name: &[u8]) {
        match name {
            b".gitignore" => self.gitignore = true,
            b".ignore" => self.ignore = true,
            b".git" => self.git = true,
            _ => {}
        }
    }
}

#[derive(Debug)]
pub(super) struct Directory {
    /// Relative to the root, without slashes at either end; empty for the root itself.
    pub(super) path: Box<[u8]>,
    pub(super) stat: Stat,
    /// The listing can be taken over as long as `stat` stays the same.
    pub(super) reliable: bool,
    pub(super) present: IgnoreFilesPresent,
    /// Stands for all rules that decided what of this directory is counted.
    pub(super) rules: [u8; 16],
    pub(super) names: Box<[u8]>,
    /// Sorted by name.
    pub(super) entries: Box<[FileEntry]>,
    pub(super) subdirs: Box<[Subdir]>,
}

/// A directory in a directory, and under which rules it is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Subdir {
    pub(super) name: Name,
    pub(super) rule: SubdirRule,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubdirRule {
    /// Under the rules of its parent.
    Plain,
    /// It is left out, but holds a subtree that counts.
    Passing,
    /// The top of a subtree that counts whatever is said above it.
    Top,
}

impl Directory {
    pub(super) fn find(&self, name: &[u8]) -> Option<&FileEntry> {
        let at = self.entries.binary_search_by(|entry| entry.name().bytes(&self.names).cmp(name));
        at.ok().map(|at| &self.entries[at])
    }

    pub(super) fn has_name(&self, name: &[u8]) -> bool {
        let subdir = |subdir: &Subdir| subdir.name.bytes(&self.names).cmp(name);
        self.find(name).is_some() || self.subdirs.binary_search_by(subdir).is_ok()
    }

    pub(super) fn with_entries(&self, entries: Box<[FileEntry]>) -> Self {
        Self {
            path: self.path.clone(),
            names: self.names.clone(),
            subdirs: self.subdirs.clone(),
            entries,
            ..*self
        }
    }

    /// The path of one of its files, relative to the root.
    pub(super) fn path_of(&self, entry: &FileEntry) -> PathBuf {
        join(&self.path, entry.name().bytes(&self.names))
    }
}

pub(super) fn join(directory: &[u8], name: &[u8]) -> PathBuf {
    let mut path = PathBuf::from(OsStr::from_bytes(directory));
    path.push(OsStr::from_bytes(name));
    path
}

/// The state of a tree at one moment. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub(super) tree: Arc<SnapshotTree>,
}

#[derive(Debug)]
pub(super) struct SnapshotTree {
    /// Sorted by path, as bytes.
    pub(super) directories: Vec<Arc<Directory>>,
    /// Directories that could not be read, sorted: nothing is known of what they hold.
    pub(super) closed: Vec<Box<[u8]>>,
    /// What earlier snapshots of this tracker counted and this one does not, though it is still
    /// there: other rules, not a deletion. A directory stands for all that it holds.
    pub(super) hidden: Vec<Box<[u8]>>,
    /// Clock at the start of the scan.
    pub(super) start: i64,
    pub(super) segments: Segments,
}

impl SnapshotTree {
    pub(super) fn directory(&self, path: &[u8]) -> Option<&Arc<Directory>> {
        let at = self.directories.binary_search_by(|found| (*found.path).cmp(path));
        at.ok().map(|at| &self.directories[at])
    }

    /// Whether a file or directory of this path is counted.
    pub(super) fn counts(&self, path: &[u8]) -> bool {
        let (directory, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&path[..0], path),
        };
        self.directory(directory).is_some_and(|directory| directory.has_name(name))
    }
}

impl Snapshot {
    /// How many files and links are counted.
    pub fn len(&self) -> usize {
        self.tree.directories.iter().map(|directory| directory.entries.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.tree.directories.iter().all(|directory| directory.entries.is_empty())
    }

    /// Bytes of all paths together, as a measure of what of a snapshot's memory is names.
    pub fn path_bytes(&self) -> usize {
        let bytes = |directory: &Arc<Directory>| directory.path.len() + directory.names.len();
        self.tree.directories.iter().map(bytes).sum()
    }

    /// All counted paths relative to the root, in order.
    pub fn paths(&self) -> Vec<PathBuf> {
        let mut paths: Vec<_> = (self.tree.directories.iter())
            .flat_map(|directory| directory.entries.iter().map(|entry| directory.path_of(entry)))
            .collect();
        sort(&mut paths);
        paths
    }
}

/// Sorts by the bytes of the paths, which is the order every list of paths is in.
pub(super) fn sort(paths: &mut [PathBuf]) {
    paths.sort_unstable_by(|a, b| bytes(a).cmp(bytes(b)));
}

pub(super) fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

const _: () = assert!(size_of::<FileEntry>() <= 88, "memory per file is a promise");
