//! The counted names in one directory.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

use super::file_examiner::KnownBefore;
use super::ignore_files::IgnoreFiles;
use super::snapshot::{Directory, FileEntry, IgnoreFilesPresent, Name, Subdir, SubdirRule};
use super::syscalls::{self, Stat};
use super::tracking_rules::{SubtreeRelation, Subtrees, TrackingRules, is_private, short};

/// One directory before its files are examined.
pub(super) struct DirectoryListing {
    pub(super) directory: OpenDirectory,
    pub(super) ignore_files: Arc<IgnoreFiles>,
    pub(super) present: IgnoreFilesPresent,
    pub(super) fingerprint: [u8; 16],
    /// The same directory in the last snapshot.
    pub(super) old: Option<Arc<Directory>>,
    /// `None` if the old names and subdirectories are still valid.
    pub(super) fresh: Option<DirectoryNames>,
}

/// An open directory.
pub(super) struct OpenDirectory {
    pub(super) path: Vec<u8>,
    pub(super) fd: OwnedFd,
    /// Read before the directory's names.
    pub(super) stat: Stat,
    /// Whether the file system's times are reliable.
    pub(super) local: bool,
}

#[derive(Default)]
pub(super) struct DirectoryNames {
    pub(super) bytes: Vec<u8>,
    pub(super) files: Vec<NamedItem>,
    pub(super) subdirs: Vec<Subdir>,
    /// Paths that counted last time, still exist, and do not count with the present rules.
    pub(super) hidden: Vec<Box<[u8]>>,
}

#[derive(Clone, Copy)]
pub(super) struct NamedItem {
    pub(super) name: Name,
    kind: FileType,
}

impl DirectoryListing {
    pub(super) fn len(&self) -> usize {
        match (&self.fresh, &self.old) {
            (Some(names), _) => names.files.len(),
            (None, old) => old.as_ref().map_or(0, |old| old.entries.len()),
        }
    }

    pub(super) fn names(&self) -> &[u8] {
        match (&self.fresh, &self.old) {
            (Some(names), _) => &names.bytes,
            (None, old) => old.as_ref().map_or(&[], |old| &old.names),
        }
    }

    pub(super) fn subdirs(&self) -> &[Subdir] {
        match (&self.fresh, &self.old) {
            (Some(names), _) => &names.subdirs,
            (None, old) => old.as_ref().map_or(&[], |old| &old.subdirs),
        }
    }

    pub(super) fn file(&self, at: usize) -> Option<(Name, KnownBefore<'_>)> {
        let Some(names) = &self.fresh else {
            let entry = self.old.as_ref()?.entries.get(at)?;
            return Some((entry.name(), KnownBefore::Known(entry)));
        };
        let item = names.files.get(at)?;
        let name = item.name.bytes(&names.bytes);
        let known = self.old.as_ref().and_then(|old| old.find(name));
        let listed = match (known, item.kind) {
            (Some(known), _) => KnownBefore::Known(known),
            (None, FileType::RegularFile) => KnownBefore::File,
            (None, _) => KnownBefore::Other,
        };
        Some((item.name, listed))
    }

    /// The directory with its examined files in order; the old one if it is still correct.
    pub(super) fn into_directory(self, entries: &[FileEntry], reliable: bool) -> Arc<Directory> {
        if let Some(old) = &self.old
            && old.reliable == reliable
            && old.is(&self, entries)
        {
            return old.clone();
        }
        let names = self.names();
        let subdirs = self.subdirs();
        let bytes = |name: Name| usize::from(name.len) + 1;
        let len = entries.iter().map(|entry| bytes(entry.name())).sum::<usize>()
            + subdirs.iter().map(|subdir| bytes(subdir.name)).sum::<usize>();
        let mut packed = Vec::with_capacity(len);
        let mut pack = |name: Name| {
            let at = packed.len() as u32;
            packed.extend_from_slice(name.bytes(names));
            packed.push(0);
            Name { at, len: name.len }
        };
        let entries: Box<[FileEntry]> =
            entries.iter().map(|entry| entry.named(pack(entry.name()))).collect();
        let subdirs = subdirs
            .iter()
            .map(|subdir| Subdir { name: pack(subdir.name), rule: subdir.rule })
            .collect();
        Arc::new(Directory {
            stat: self.directory.stat,
            reliable,
            present: self.present,
            rules: self.fingerprint,
            names: packed.into_boxed_slice(),
            entries,
            subdirs,
            path: self.directory.path.into_boxed_slice(),
        })
    }
}

impl Directory {
    /// Whether a new listing would give the same result.
    fn is(&self, listing: &DirectoryListing, entries: &[FileEntry]) -> bool {
        let same = |old: Name, new: Name| old.bytes(&self.names) == new.bytes(listing.names());
        let alike = |(old, new): (&FileEntry, &FileEntry)| {
            old.named(new.name()) == *new && same(old.name(), new.name())
        };
        let entered =
            |(old, new): (&Subdir, &Subdir)| old.rule == new.rule && same(old.name, new.name);
        let subdirs = listing.subdirs();
        self.stat == listing.directory.stat
            && self.rules == listing.fingerprint
            && self.present == listing.present
            && (self.entries.len(), self.subdirs.len()) == (entries.len(), subdirs.len())
            && self.entries.iter().zip(entries).all(alike)
            && self.subdirs.iter().zip(subdirs).all(entered)
    }
}

/// Reads directories under one set of rules.
pub(super) struct DirectoryReader<'a> {
    pub(super) rules: &'a TrackingRules,
    /// The path from the topmost ignore file to the root; empty or ending in a slash.
    pub(super) prefix: &'a [u8],
    pub(super) passing: bool,
    /// Whether directory times are reliable.
    pub(super) lasting: bool,
}

impl DirectoryReader<'_> {
    /// Determines which names count. `buffer` is for directory entries.
    pub(super) fn list(
        &self,
        directory: OpenDirectory,
        ignore_files: &Arc<IgnoreFiles>,
        old: Option<&Arc<Directory>>,
        buffer: &mut [MaybeUninit<u8>],
    ) -> Result<DirectoryListing, Errno> {
        let (path, fd) = (&directory.path, directory.fd.as_fd());
        let same = old.filter(|old| self.lasting && old.reliable && old.stat == directory.stat);
        let mut raw = None;
        let present = match same {
            Some(old) => old.present,
            None => raw.insert(read_names(fd, buffer)?).1,
        };
        let full = [self.prefix, path, if path.is_empty() { b"" } else { b"/" }].concat();
        let ignore_files = ignore_files.extended(fd, &full, present);
        let fingerprint = self.fingerprint(&ignore_files);
        let fresh = match (same, raw) {
            (Some(old), _) if old.rules == fingerprint => None,
            (_, Some((names, _))) => Some(names),
            (_, None) => Some(read_names(fd, buffer)?.0),
        };
        let fresh = fresh.map(|names| self.choose(names, &directory, full, &ignore_files, old));
        Ok(DirectoryListing {
            directory,
            ignore_files,
            present,
            fingerprint,
            old: old.cloned(),
            fresh,
        })
    }

    fn fingerprint(&self, ignore_files: &IgnoreFiles) -> [u8; 16] {
        if !self.passing {
            return ignore_files.fingerprint;
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"passing").update(&ignore_files.fingerprint);
        short(&hasher)
    }

    /// Keeps and sorts the names that count. The bytes of the names stay in place: they are packed
    /// later.
    fn choose(
        &self,
        mut names: DirectoryNames,
        directory: &OpenDirectory,
        mut full: Vec<u8>,
        ignore_files: &IgnoreFiles,
        old: Option<&Arc<Directory>>,
    ) -> DirectoryNames {
        let base = full.len();
        let near = SubtreesBelow {
            excluded: self.rules.excluded.relation(&directory.path) == SubtreeRelation::Above,
            included: self.rules.included.relation(&directory.path) == SubtreeRelation::Above,
        };
        for mut item in std::mem::take(&mut names.files) {
            let name = item.name.bytes(&names.bytes);
            if item.kind == FileType::Unknown {
                let found = syscalls::stat_at(directory.fd.as_fd(), item.name.c_str(&names.bytes));
                item.kind = found.map_or(FileType::RegularFile, |stat| stat.kind());
            }
            let is_dir = item.kind == FileType::Directory;
            if !(is_dir || matches!(item.kind, FileType::RegularFile | FileType::Symlink)) {
                continue;
            }
            full.truncate(base);
            full.extend_from_slice(name);
            let rule = if is_private(&directory.path, name) {
                None
            } else {
                self.rule(&full, is_dir, near, ignore_files)
            };
            match rule {
                Some(rule) if is_dir => names.subdirs.push(Subdir { name: item.name, rule }),
                Some(_) => names.files.push(item),
                None if old.is_some_and(|old| old.has_name(name)) => {
                    names.hidden.push(full[self.prefix.len()..].into());
                }
                None => {}
            }
        }
        let bytes = &names.bytes;
        names.files.sort_unstable_by(|a, b| a.name.bytes(bytes).cmp(b.name.bytes(bytes)));
        names.subdirs.sort_unstable_by(|a, b| a.name.bytes(bytes).cmp(b.name.bytes(bytes)));
        names
    }

    /// How a path is entered or counted; `None` if it is left out.
    fn rule(
        &self,
        full: &[u8],
        is_dir: bool,
        near: SubtreesBelow,
        ignore_files: &IgnoreFiles,
    ) -> Option<SubdirRule> {
        let relative = &full[self.prefix.len()..];
        let relation = |subtrees: &Subtrees, near: bool| {
            if near { subtrees.relation(relative) } else { SubtreeRelation::Apart }
        };
        let excluded = relation(&self.rules.excluded, near.excluded);
        if matches!(excluded, SubtreeRelation::Top | SubtreeRelation::Within) {
            return None;
        }
        let included = relation(&self.rules.included, near.included);
        if matches!(included, SubtreeRelation::Top | SubtreeRelation::Within) {
            return Some(SubdirRule::Top);
        }
        let ignored = self.passing
            || (self.rules.ignores_by_pattern(relative, is_dir))
                .unwrap_or_else(|| ignore_files.ignores(full, is_dir));
        match (ignored, included) {
            (false, _) => Some(SubdirRule::Plain),
            (true, SubtreeRelation::Above) if is_dir => Some(SubdirRule::Passing),
            (true, _) => None,
        }
    }
}

/// Whether a directory has excluded or included subtrees below it; most have none, and their names
/// need no comparison with the lists.
#[derive(Clone, Copy)]
struct SubtreesBelow {
    excluded: bool,
    included: bool,
}

/// Reads all names, and notes which special ones are among them.
fn read_names(
    fd: BorrowedFd<'_>,
    buffer: &mut [MaybeUninit<u8>],
) -> Result<(DirectoryNames, IgnoreFilesPresent), Errno> {
    // A second reading must start at the beginning.
    rustix::fs::seek(fd, rustix::fs::SeekFrom::Start(0))?;
    let (mut names, mut present) = (DirectoryNames::default(), IgnoreFilesPresent::default());
    let mut raw = RawDir::new(fd, buffer);
    while let Some(entry) = raw.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(Errno::INTR) => continue,
            // The directory was removed during the reading, so it is empty.
            Err(Errno::NOENT) => break,
            Err(error) => return Err(error),
        };
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        present.note(name);
        let at = u32::try_from(names.bytes.len()).map_err(|_| Errno::FBIG)?;
        let len = u16::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
        names.bytes.extend_from_slice(entry.file_name().to_bytes_with_nul());
        names.files.push(NamedItem { name: Name { at, len }, kind: entry.file_type() });
    }
    Ok((names, present))
}
