//! The names in one directory that count.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

use super::chain::Chain;
use super::examine::Listed;
use super::rules::{Rules, Standing, Subtrees, is_private, short};
use super::sys::{self, Stat};
use super::tree::{Directory, Entry, Marks, Name, Subdir, Way};

/// One directory on its way to becoming a [`Directory`].
pub(super) struct Listing {
    pub(super) here: Here,
    pub(super) chain: Arc<Chain>,
    pub(super) marks: Marks,
    pub(super) print: [u8; 16],
    /// As it was in the last snapshot.
    pub(super) old: Option<Arc<Directory>>,
    /// `None` if the old names and subdirectories still hold.
    pub(super) fresh: Option<Names>,
}

/// An open directory.
pub(super) struct Here {
    pub(super) path: Vec<u8>,
    pub(super) fd: OwnedFd,
    /// Taken before its names were read.
    pub(super) stat: Stat,
    /// On a file system whose times can be relied on.
    pub(super) local: bool,
}

#[derive(Default)]
pub(super) struct Names {
    pub(super) bytes: Vec<u8>,
    pub(super) files: Vec<Item>,
    pub(super) subdirs: Vec<Subdir>,
    /// Paths that counted last time, are still there and do not count any more.
    pub(super) hidden: Vec<Box<[u8]>>,
}

#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) name: Name,
    kind: FileType,
}

impl Listing {
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

    pub(super) fn file(&self, at: usize) -> Option<(Name, Listed<'_>)> {
        let Some(names) = &self.fresh else {
            let entry = self.old.as_ref()?.entries.get(at)?;
            return Some((entry.name(), Listed::Known(entry)));
        };
        let item = names.files.get(at)?;
        let name = item.name.bytes(&names.bytes);
        let known = self.old.as_ref().and_then(|old| old.find(name));
        let listed = match (known, item.kind) {
            (Some(known), _) => Listed::Known(known),
            (None, FileType::RegularFile) => Listed::File,
            (None, _) => Listed::Other,
        };
        Some((item.name, listed))
    }

    /// The directory with what was found out about its files, in order; the old one if that is
    /// still right.
    pub(super) fn into_directory(self, entries: &[Entry], settled: bool) -> Arc<Directory> {
        if let Some(old) = &self.old
            && old.settled == settled
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
        let entries: Box<[Entry]> =
            entries.iter().map(|entry| entry.named(pack(entry.name()))).collect();
        let subdirs = subdirs
            .iter()
            .map(|subdir| Subdir { name: pack(subdir.name), way: subdir.way })
            .collect();
        Arc::new(Directory {
            stat: self.here.stat,
            settled,
            marks: self.marks,
            rules: self.print,
            names: packed.into_boxed_slice(),
            entries,
            subdirs,
            path: self.here.path.into_boxed_slice(),
        })
    }
}

impl Directory {
    /// Whether this is what a new look at the directory would say, too.
    fn is(&self, listing: &Listing, entries: &[Entry]) -> bool {
        let same = |old: Name, new: Name| old.bytes(&self.names) == new.bytes(listing.names());
        let alike = |(old, new): (&Entry, &Entry)| {
            old.named(new.name()) == *new && same(old.name(), new.name())
        };
        let entered =
            |(old, new): (&Subdir, &Subdir)| old.way == new.way && same(old.name, new.name);
        let subdirs = listing.subdirs();
        self.stat == listing.here.stat
            && self.rules == listing.print
            && self.marks == listing.marks
            && (self.entries.len(), self.subdirs.len()) == (entries.len(), subdirs.len())
            && self.entries.iter().zip(entries).all(alike)
            && self.subdirs.iter().zip(subdirs).all(entered)
    }
}

/// How a directory is entered.
pub(super) struct Entrance<'a> {
    pub(super) rules: &'a Rules,
    /// Leads from where the chain begins to the root; empty or ends in a slash.
    pub(super) prefix: &'a [u8],
    pub(super) passing: bool,
    /// Directory times can be believed.
    pub(super) lasting: bool,
}

impl Entrance<'_> {
    /// Finds out which names count. `buffer` is for the kernel's answers.
    pub(super) fn list(
        &self,
        here: Here,
        chain: &Arc<Chain>,
        old: Option<&Arc<Directory>>,
        buffer: &mut [MaybeUninit<u8>],
    ) -> Result<Listing, Errno> {
        let (path, fd) = (&here.path, here.fd.as_fd());
        let same = old.filter(|old| self.lasting && old.settled && old.stat == here.stat);
        let mut raw = None;
        let marks = match same {
            Some(old) => old.marks,
            None => raw.insert(read_names(fd, buffer)?).1,
        };
        let full = [self.prefix, path, if path.is_empty() { b"" } else { b"/" }].concat();
        let chain = chain.extended(fd, &full, marks);
        let print = self.print(&chain);
        let fresh = match (same, raw) {
            (Some(old), _) if old.rules == print => None,
            (_, Some((names, _))) => Some(names),
            (_, None) => Some(read_names(fd, buffer)?.0),
        };
        let fresh = fresh.map(|names| self.choose(names, &here, full, &chain, old));
        Ok(Listing { here, chain, marks, print, old: old.cloned(), fresh })
    }

    fn print(&self, chain: &Chain) -> [u8; 16] {
        if !self.passing {
            return chain.print;
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"passing").update(&chain.print);
        short(&hasher)
    }

    /// Keeps what counts and sorts it. The names' bytes stay as they are: they are packed later.
    fn choose(
        &self,
        mut names: Names,
        here: &Here,
        mut full: Vec<u8>,
        chain: &Chain,
        old: Option<&Arc<Directory>>,
    ) -> Names {
        let base = full.len();
        let near = Near {
            excluded: self.rules.excluded.standing(&here.path) == Standing::Above,
            included: self.rules.included.standing(&here.path) == Standing::Above,
        };
        for mut item in std::mem::take(&mut names.files) {
            let name = item.name.bytes(&names.bytes);
            if item.kind == FileType::Unknown {
                let found = sys::stat_at(here.fd.as_fd(), item.name.c_str(&names.bytes));
                item.kind = found.map_or(FileType::RegularFile, |stat| stat.kind());
            }
            let is_dir = item.kind == FileType::Directory;
            if !(is_dir || matches!(item.kind, FileType::RegularFile | FileType::Symlink)) {
                continue;
            }
            full.truncate(base);
            full.extend_from_slice(name);
            let way = if is_private(&here.path, name) {
                None
            } else {
                self.way(&full, is_dir, near, chain)
            };
            match way {
                Some(way) if is_dir => names.subdirs.push(Subdir { name: item.name, way }),
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
    fn way(&self, full: &[u8], is_dir: bool, near: Near, chain: &Chain) -> Option<Way> {
        let relative = &full[self.prefix.len()..];
        let standing = |subtrees: &Subtrees, near: bool| {
            if near { subtrees.standing(relative) } else { Standing::Apart }
        };
        let excluded = standing(&self.rules.excluded, near.excluded);
        if matches!(excluded, Standing::Top | Standing::Within) {
            return None;
        }
        let included = standing(&self.rules.included, near.included);
        if matches!(included, Standing::Top | Standing::Within) {
            return Some(Way::Top);
        }
        let ignored = self.passing
            || (self.rules.speak(relative, is_dir)).unwrap_or_else(|| chain.ignores(full, is_dir));
        match (ignored, included) {
            (false, _) => Some(Way::Plain),
            (true, Standing::Above) if is_dir => Some(Way::Passing),
            (true, _) => None,
        }
    }
}

/// Whether a directory has excluded or included subtrees somewhere below; most have neither, and
/// their names need not be held against the lists.
#[derive(Clone, Copy)]
struct Near {
    excluded: bool,
    included: bool,
}

/// All names, and which of the telling ones are among them.
fn read_names(fd: BorrowedFd<'_>, buffer: &mut [MaybeUninit<u8>]) -> Result<(Names, Marks), Errno> {
    // A descriptor is read to its end once; a second reading begins anew.
    rustix::fs::seek(fd, rustix::fs::SeekFrom::Start(0))?;
    let (mut names, mut marks) = (Names::default(), Marks::default());
    let mut raw = RawDir::new(fd, buffer);
    while let Some(entry) = raw.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(Errno::INTR) => continue,
            // The directory was removed while it was read: it holds nothing any more.
            Err(Errno::NOENT) => break,
            Err(error) => return Err(error),
        };
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        marks.note(name);
        let at = u32::try_from(names.bytes.len()).map_err(|_| Errno::FBIG)?;
        let len = u16::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
        names.bytes.extend_from_slice(entry.file_name().to_bytes_with_nul());
        names.files.push(Item { name: Name { at, len }, kind: entry.file_type() });
    }
    Ok((names, marks))
}
