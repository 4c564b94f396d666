//! A tree at one moment, in little memory.
//!
//! One [`Directory`] holds the files of one directory in two flat arrays. Snapshots share unchanged
//! directories, so a second snapshot of an unchanged tree costs a pointer per directory.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FileType;

use super::line_records::RecordPosition;
use super::line_store::Segments;
use super::syscalls::Stat;

/// The content could not be read, so `hash` is meaningless.
pub(super) const UNREADABLE: u8 = 1;
/// Even `stat` failed: only the name is known.
pub(super) const UNKNOWN: u8 = 2;
/// `stat` suffices next time: the last change was safely before the scan.
pub(super) const RELIABLE: u8 = 4;

/// One file or symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileEntry {
    pub(super) stat: Stat,
    pub(super) lines: RecordPosition,
    /// BLAKE3 of the content, or of a link's target.
    pub(super) hash: [u8; 32],
    /// A [`Name`] together with `name_len`, split so that it shares a word with the flags.
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

/// The place of a name in its directory's `names`, where it ends in a NUL.
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

/// Names of files with ignore rules; only their presence is recorded, not their content.
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
    /// Whether the listing stays valid while `stat` is unchanged.
    pub(super) reliable: bool,
    pub(super) present: IgnoreFilesPresent,
    /// A fingerprint of all rules that decided what counts in this directory.
    pub(super) rules: [u8; 16],
    pub(super) names: Box<[u8]>,
    /// Sorted by name.
    pub(super) entries: Box<[FileEntry]>,
    pub(super) subdirs: Box<[Subdir]>,
}

/// A subdirectory, and the rules under which it is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Subdir {
    pub(super) name: Name,
    pub(super) rule: SubdirRule,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubdirRule {
    /// The rules of its parent apply.
    Plain,
    /// It is excluded, but contains a subtree that counts.
    Passing,
    /// The top of a subtree that counts regardless of rules above it.
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
    /// Unreadable directories, sorted: their content is unknown.
    pub(super) closed: Vec<Box<[u8]>>,
    /// Paths that earlier snapshots of this tracker counted and this one does not although they
    /// exist: different rules, not a deletion. A directory stands for everything in it.
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

    /// Whether a file or directory with this path is counted.
    pub(super) fn counts(&self, path: &[u8]) -> bool {
        let (directory, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&path[..0], path),
        };
        self.directory(directory).is_some_and(|directory| directory.has_name(name))
    }
}

impl Snapshot {
    /// The number of counted files and links.
    pub fn len(&self) -> usize {
        self.tree.directories.iter().map(|directory| directory.entries.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.tree.directories.iter().all(|directory| directory.entries.is_empty())
    }

    /// The total length of all paths, which shows how much of a snapshot's memory is names.
    pub fn path_bytes(&self) -> usize {
        let bytes = |directory: &Arc<Directory>| directory.path.len() + directory.names.len();
        self.tree.directories.iter().map(bytes).sum()
    }

    /// All counted paths relative to the root, sorted.
    pub fn paths(&self) -> Vec<PathBuf> {
        let mut paths: Vec<_> = (self.tree.directories.iter())
            .flat_map(|directory| directory.entries.iter().map(|entry| directory.path_of(entry)))
            .collect();
        sort(&mut paths);
        paths
    }
}

/// Sorts by the bytes of the paths, the order of every list of paths.
pub(super) fn sort(paths: &mut [PathBuf]) {
    paths.sort_unstable_by(|a, b| bytes(a).cmp(bytes(b)));
}

pub(super) fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

const _: () = assert!(size_of::<FileEntry>() <= 88, "memory per file is a promise");
