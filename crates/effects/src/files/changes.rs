//! The differences between two snapshots.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use retake_types::LineChange;

use super::file_examiner::TICK;
use super::line_store;
use super::snapshot::{
    Directory, FileEntry, Snapshot, SnapshotTree, UNKNOWN, UNREADABLE, bytes, join, sort,
};

/// Files and symbolic links that differ between two snapshots. Paths are relative to the root,
/// every list is sorted by the bytes of the paths, and no path is in two of the first three.
///
/// Directories are not listed, only their content.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    pub created: Vec<PathBuf>,
    /// Different content, permissions, type or link target.
    pub modified: Vec<PathBuf>,
    pub deleted: Vec<PathBuf>,
    /// Same content under another name. With different permissions, `to` is also listed as
    /// modified.
    pub renamed: Vec<Rename>,
    /// What could not be read, before or after; for a directory, the changes of everything in it
    /// are unknown.
    pub unreadable: Vec<PathBuf>,
    /// For text files that were created, modified or deleted, if both sides are known.
    pub lines: BTreeMap<PathBuf, LineChange>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rename {
    pub from: PathBuf,
    pub to: PathBuf,
}

impl Changes {
    /// Whether nothing changed, as far as it could be read.
    pub fn is_empty(&self) -> bool {
        self.created.is_empty()
            && self.modified.is_empty()
            && self.deleted.is_empty()
            && self.renamed.is_empty()
    }
}

impl Snapshot {
    /// The changes from this snapshot to a later one of the same root.
    pub fn changes(&self, later: &Self) -> Changes {
        let (before, after) = (&*self.tree, &*later.tree);
        let (mut found, mut other_rules) = (ComparedFiles::default(), false);
        walk_both(
            &before.directories,
            &after.directories,
            |directory| &directory.path,
            |old, new| {
                if let (Some(old), Some(new)) = (old, new) {
                    if Arc::ptr_eq(old, new) {
                        return;
                    }
                    other_rules |= old.rules != new.rules;
                }
                found.compare(old.map(|old| &**old), new.map(|new| &**new));
            },
        );
        let since = before.start.saturating_sub(TICK);
        found.created.retain(|(path, entry)| {
            // With other rules, a file may appear that existed before.
            let old = other_rules && entry.stat.ctime < since && !entry.has(UNKNOWN);
            !old && !holds(&before.closed, path)
        });
        found
            .deleted
            .retain(|(path, _)| !holds(&after.closed, path) && !holds(&after.hidden, path));
        let mut renamed = found.renamed();
        renamed.sort_unstable_by(|a, b| bytes(&a.from).cmp(bytes(&b.from)));

        let mut lines = BTreeMap::new();
        let mut count = |path: &PathBuf, old: Option<&FileEntry>, new: Option<&FileEntry>| {
            // The target of a link is not text.
            let texts = old.iter().chain(&new).all(|e| !e.is_link() && !e.has(UNREADABLE));
            let old = old.map(|old| (&before.segments, old));
            let new = new.map(|new| (&after.segments, new));
            if texts && let Some(change) = line_store::count_changes(old, new) {
                lines.insert(path.clone(), change);
            }
        };
        found.modified.iter().for_each(|(path, old, new)| count(path, Some(old), Some(new)));
        found.created.iter().for_each(|(path, new)| count(path, None, Some(new)));
        found.deleted.iter().for_each(|(path, old)| count(path, Some(old), None));

        let mut unreadable: Vec<_> = [before, after].into_iter().flat_map(not_read).collect();
        sort(&mut unreadable);
        unreadable.dedup();
        let mut modified: Vec<_> = found.modified.into_iter().map(|(path, ..)| path).collect();
        modified.append(&mut found.chmodded);
        let paths = |sides: Vec<Side<'_>>| sides.into_iter().map(|(path, _)| path).collect();
        let mut changes = Changes {
            created: paths(found.created),
            modified,
            deleted: paths(found.deleted),
            renamed,
            unreadable,
            lines,
        };
        for list in [&mut changes.created, &mut changes.modified, &mut changes.deleted] {
            sort(list);
        }
        changes
    }
}

type Side<'t> = (PathBuf, &'t FileEntry);

#[derive(Default)]
struct ComparedFiles<'t> {
    created: Vec<Side<'t>>,
    modified: Vec<(PathBuf, &'t FileEntry, &'t FileEntry)>,
    deleted: Vec<Side<'t>>,
    /// Renamed files with different permissions.
    chmodded: Vec<PathBuf>,
}

impl<'t> ComparedFiles<'t> {
    fn compare(&mut self, old: Option<&'t Directory>, new: Option<&'t Directory>) {
        let entries = |directory: Option<&'t Directory>| -> Vec<(&'t [u8], &'t FileEntry)> {
            let Some(directory) = directory else { return Vec::new() };
            let named = |entry: &'t FileEntry| (entry.name().bytes(&directory.names), entry);
            directory.entries.iter().map(named).collect()
        };
        let Some(path) = new.or(old).map(|directory| &directory.path) else { return };
        walk_both(
            &entries(old),
            &entries(new),
            |(name, _)| name,
            |old, new| match (old, new) {
                (Some((_, old)), Some((name, new))) if differ(old, new) => {
                    self.modified.push((join(path, name), old, new));
                }
                (None, Some((name, new))) => self.created.push((join(path, name), new)),
                (Some((name, old)), None) => self.deleted.push((join(path, name), old)),
                _ => {}
            },
        );
    }

    /// Moves files from created and deleted that have the same content under another name. Empty
    /// files are excluded, because all are alike.
    ///
    /// Of several candidates it prefers the same inode, then the same file name, then the first in
    /// order. An inode alone proves nothing: file systems reuse freed ones at once.
    fn renamed(&mut self) -> Vec<Rename> {
        self.deleted.sort_unstable_by(|(a, _), (b, _)| bytes(a).cmp(bytes(b)));
        self.created.sort_unstable_by(|(a, _), (b, _)| bytes(a).cmp(bytes(b)));
        let mut origin = vec![None; self.created.len()];
        let mut gone = vec![false; self.deleted.len()];
        for matching in [RenameMatch::Inode, RenameMatch::Name, RenameMatch::Content] {
            let mut candidates: HashMap<_, VecDeque<usize>> = HashMap::new();
            for (at, old) in self.deleted.iter().enumerate().filter(|(at, _)| !gone[*at]) {
                if let Some(key) = matching.key(old) {
                    candidates.entry(key).or_default().push_back(at);
                }
            }
            for (new, origin) in self.created.iter().zip(&mut origin) {
                if origin.is_none()
                    && let Some(key) = matching.key(new)
                    && let Some(old) = candidates.get_mut(&key).and_then(VecDeque::pop_front)
                {
                    gone[old] = true;
                    *origin = Some(old);
                }
            }
        }
        let mut renames = Vec::new();
        for ((to, new), from) in self.created.iter().zip(&origin) {
            if let Some((from, old)) = from.map(|from| &self.deleted[from]) {
                if old.stat.mode != new.stat.mode {
                    self.chmodded.push(to.clone());
                }
                renames.push(Rename { from: from.clone(), to: to.clone() });
            }
        }
        let mut stays = origin.iter().map(Option::is_none);
        self.created.retain(|_| stays.next().unwrap_or(true));
        let mut stays = gone.iter().map(|gone| !gone);
        self.deleted.retain(|_| stays.next().unwrap_or(true));
        renames
    }
}

/// What must be equal, besides the content, for a rename.
#[derive(Clone, Copy)]
enum RenameMatch {
    Inode,
    Name,
    Content,
}

type Key<'s> = ([u8; 32], bool, Option<(u32, u64)>, Option<&'s OsStr>);

impl RenameMatch {
    /// Equal for matching files; `None` for a file that matches nothing.
    fn key<'s>(self, (path, entry): &'s Side<'_>) -> Option<Key<'s>> {
        let inode = matches!(self, Self::Inode).then_some((entry.stat.dev, entry.stat.ino));
        let name = if matches!(self, Self::Name) { path.file_name() } else { None };
        let tells = entry.stat.size > 0 && !entry.has(UNREADABLE);
        tells.then_some((entry.hash, entry.is_link(), inode, name))
    }
}

fn differ(old: &FileEntry, new: &FileEntry) -> bool {
    if old.has(UNKNOWN) || new.has(UNKNOWN) {
        return false;
    }
    let content = if old.has(UNREADABLE) || new.has(UNREADABLE) {
        // Of unreadable content only the size is known.
        old.stat.size != new.stat.size
    } else {
        old.hash != new.hash
    };
    content || old.stat.mode != new.stat.mode
}

/// Walks two sorted lists in parallel.
fn walk_both<'t, T>(
    old: &'t [T],
    new: &'t [T],
    key: impl Fn(&T) -> &[u8],
    mut on: impl FnMut(Option<&'t T>, Option<&'t T>),
) {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => key(a).cmp(key(b)),
        };
        match order {
            Ordering::Less => on(old.next(), None),
            Ordering::Greater => on(None, new.next()),
            Ordering::Equal => on(old.next(), new.next()),
        }
    }
}

/// Whether the path is one of `paths`, which are sorted, or is inside one of them.
fn holds(paths: &[Box<[u8]>], path: &Path) -> bool {
    let path = bytes(path);
    let slashes = memchr::memchr_iter(b'/', path);
    let has = |end: usize| paths.binary_search_by(|holder| (**holder).cmp(&path[..end])).is_ok();
    !paths.is_empty() && slashes.chain([0, path.len()]).any(has)
}

fn not_read(tree: &SnapshotTree) -> impl Iterator<Item = PathBuf> {
    let files = tree.directories.iter().flat_map(|directory| {
        let unread = directory.entries.iter().filter(|entry| entry.has(UNREADABLE));
        unread.map(|entry| directory.path_of(entry))
    });
    files.chain(tree.closed.iter().map(|closed| PathBuf::from(OsStr::from_bytes(closed))))
}
