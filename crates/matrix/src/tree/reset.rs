//! Resets a directory to its snapshot.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, RawMode, Timespec, Timestamps, UTIME_OMIT, mknodat, utimensat,
};

use super::snapshot::{Entry, TreeSnapshot, copy_file, remove_tree, wait_past};
use super::walk::{self, Directory, EntryKind, EntryStat, NANOS};
use super::{TreeChanges, TreeError};

/// State of a reset.
struct Reset<'a> {
    root: &'a Path,
    files: PathBuf,
    names: &'a HashMap<u64, Vec<PathBuf>>,
    changes: TreeChanges,
    /// Hard-linked files of which a name was touched.
    groups: HashSet<u64>,
    /// The newest timestamp that this reset has caused.
    newest: i64,
    /// Whether an entry got a new timestamp or inode.
    restamped: bool,
}

impl TreeSnapshot {
    /// Resets the directory, and returns the corrections.
    pub fn reset(&mut self) -> Result<TreeChanges, TreeError> {
        let files = self.copy_of(Path::new(""));
        let mut reset = Reset {
            root: &self.root,
            files,
            names: &self.names,
            changes: TreeChanges::default(),
            groups: HashSet::new(),
            newest: 0,
            restamped: false,
        };
        match walk::stat(&self.root)? {
            Some(now) if now.kind == EntryKind::Directory => {
                reset.directory(Path::new(""), &mut self.top, &now)?;
            }
            _ => reset.restore(Path::new(""), &mut self.top)?,
        }
        for group in std::mem::take(&mut reset.groups) {
            reset.link_again(&mut self.top, group)?;
        }
        let Reset { changes, newest, restamped, .. } = reset;
        self.changed |= restamped;
        wait_past(newest);
        Ok(changes)
    }
}

impl Reset<'_> {
    /// Resets an existing directory.
    fn directory(
        &mut self,
        path: &Path,
        entry: &mut Entry,
        now: &EntryStat,
    ) -> Result<(), TreeError> {
        let full = self.root.join(path);
        let mut touched = !entry.stat.untouched(now);
        if now.mode & 0o500 != 0o500 {
            // Otherwise its entries are inaccessible.
            set_mode(&full, now.mode | 0o700)?;
            touched = true;
        }
        let mut found = 0;
        for (name, now) in Directory::open(&full)?.entries(&full)? {
            let path = path.join(&name);
            match entry.children.get_mut(&name) {
                None => {
                    unlock(&full)?;
                    remove_tree(&self.root.join(&path))?;
                    self.changes.removed.push(path);
                    touched = true;
                }
                Some(child) => {
                    found += 1;
                    touched |= self.child(&path, child, &now)?;
                }
            }
        }
        if found < entry.children.len() {
            touched |= self.missing(path, &mut entry.children)?;
        }
        if touched {
            if !entry.stat.same_shape(now) {
                self.changes.restored.push(path.to_owned());
            }
            self.stamp(path, entry)?;
        }
        Ok(())
    }

    /// Resets an existing entry; returns whether its directory was changed.
    fn child(
        &mut self,
        path: &Path,
        entry: &mut Entry,
        now: &EntryStat,
    ) -> Result<bool, TreeError> {
        if entry.stat.kind == EntryKind::Other {
            return Ok(false);
        }
        if entry.stat.kind == now.kind && now.kind == EntryKind::Directory {
            self.directory(path, entry, now)?;
            return Ok(false);
        }
        if entry.stat.untouched(now) {
            return Ok(false);
        }
        if self.names.contains_key(&entry.group) && entry.stat.kind == EntryKind::File {
            self.groups.insert(entry.group);
            return Ok(false);
        }
        if entry.stat.kind == now.kind && self.same_content(path, entry, now)? {
            if !entry.stat.same_shape(now) || entry.stat.mtime != now.mtime {
                self.changes.restored.push(path.to_owned());
            }
            self.stamp(path, entry)?;
            return Ok(false);
        }
        let full = self.root.join(path);
        unlock(full.parent().unwrap_or(self.root))?;
        remove_tree(&full)?;
        self.restore(path, entry)?;
        Ok(true)
    }

    fn same_content(&self, path: &Path, entry: &Entry, now: &EntryStat) -> Result<bool, TreeError> {
        let full = self.root.join(path);
        match entry.stat.kind {
            EntryKind::File if entry.stat.size != now.size => Ok(false),
            EntryKind::File => {
                same_bytes(&full, &self.files.join(path)).or_else(|error| match error.kind() {
                    // The file is rewritten instead.
                    io::ErrorKind::PermissionDenied => Ok(false),
                    _ => Err(TreeError::at(&full)(error)),
                })
            }
            EntryKind::Symlink => {
                let target = fs::read_link(&full).map_err(TreeError::at(&full))?;
                Ok(entry.target.as_ref() == Some(&target))
            }
            EntryKind::Directory | EntryKind::Fifo | EntryKind::Other => Ok(true),
        }
    }

    /// Restores missing entries of a directory; returns whether there were any.
    fn missing(
        &mut self,
        path: &Path,
        children: &mut BTreeMap<OsString, Entry>,
    ) -> Result<bool, TreeError> {
        let mut made = false;
        for (name, entry) in children {
            let path = path.join(name);
            if entry.stat.kind != EntryKind::Other && walk::stat(&self.root.join(&path))?.is_none()
            {
                if !std::mem::replace(&mut made, true) {
                    unlock(path.parent().map_or(self.root.to_owned(), |p| self.root.join(p)))?;
                }
                self.restore(&path, entry)?;
            }
        }
        Ok(made)
    }

    /// Creates a missing entry, with everything below it.
    fn restore(&mut self, path: &Path, entry: &mut Entry) -> Result<(), TreeError> {
        let full = self.root.join(path);
        self.changes.restored.push(path.to_owned());
        match entry.stat.kind {
            EntryKind::Directory => {
                fs::create_dir(&full).map_err(TreeError::at(&full))?;
                for (name, child) in &mut entry.children {
                    self.restore(&path.join(name), child)?;
                }
            }
            EntryKind::File if self.names.contains_key(&entry.group) => {
                self.groups.insert(entry.group);
                return Ok(());
            }
            EntryKind::File => copy_file(&self.files.join(path), &full)?,
            EntryKind::Symlink => {
                let target = entry.target.as_deref().unwrap_or(Path::new(""));
                symlink(target, &full).map_err(TreeError::at(&full))?;
            }
            EntryKind::Fifo => {
                let mode = Mode::from_raw_mode(RawMode::from(entry.stat.mode));
                mknodat(CWD, &full, FileType::Fifo, mode, 0).map_err(TreeError::at(&full))?;
            }
            EntryKind::Other => return Ok(()),
        }
        self.stamp(path, entry)
    }

    /// Restores a hard-linked file with all of its names.
    fn link_again(&mut self, top: &mut Entry, group: u64) -> Result<(), TreeError> {
        let Some(names) = self.names.get(&group) else { return Ok(()) };
        let mut first: Option<PathBuf> = None;
        for name in names {
            let full = self.root.join(name);
            unlock(full.parent().unwrap_or(self.root))?;
            remove_tree(&full)?;
            match &first {
                None => {
                    copy_file(&self.files.join(name), &full)?;
                    first = Some(full);
                }
                Some(first) => fs::hard_link(first, &full).map_err(TreeError::at(&full))?,
            }
            if !self.changes.restored.contains(name) {
                self.changes.restored.push(name.clone());
            }
        }
        // Creating links changes the file's timestamps, so they are recorded last.
        for name in names {
            if let Some(entry) = find(top, name) {
                self.stamp(name, entry)?;
            }
            let parent = name.parent().unwrap_or(Path::new(""));
            if let Some(entry) = find(top, parent) {
                self.stamp(parent, entry)?;
            }
        }
        Ok(())
    }

    /// Restores an entry's owner, permissions and modification time, and records its new
    /// timestamps.
    fn stamp(&mut self, path: &Path, entry: &mut Entry) -> Result<(), TreeError> {
        let full = self.root.join(path);
        let gone = || TreeError::at(&full)(io::Error::from(io::ErrorKind::NotFound));
        let now = walk::stat(&full)?.ok_or_else(gone)?;
        let wanted = entry.stat;
        if (now.uid, now.gid) != (wanted.uid, wanted.gid) {
            lchown(&full, Some(wanted.uid), Some(wanted.gid)).map_err(TreeError::at(&full))?;
        }
        // Changing the owner clears some permissions.
        if wanted.kind != EntryKind::Symlink {
            let now = walk::stat(&full)?.ok_or_else(gone)?;
            if now.mode != wanted.mode {
                set_mode(&full, wanted.mode)?;
            }
        }
        if now.mtime != wanted.mtime {
            let times = Timestamps {
                last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                last_modification: Timespec {
                    tv_sec: wanted.mtime.div_euclid(NANOS),
                    tv_nsec: wanted.mtime.rem_euclid(NANOS),
                },
            };
            utimensat(CWD, &full, &times, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(TreeError::at(&full))?;
        }
        let stamped = walk::stat(&full)?.ok_or_else(gone)?;
        self.newest = self.newest.max(stamped.ctime);
        self.restamped = true;
        entry.stat = EntryStat { mtime: wanted.mtime, ..stamped };
        Ok(())
    }
}

fn find<'a>(top: &'a mut Entry, path: &Path) -> Option<&'a mut Entry> {
    path.iter().try_fold(top, |entry, part| entry.children.get_mut(part))
}

/// Makes entries of a directory writable; its permissions are restored with its timestamps.
fn unlock(directory: impl AsRef<Path>) -> Result<(), TreeError> {
    let directory = directory.as_ref();
    match walk::stat(directory)? {
        Some(now) if now.mode & 0o300 != 0o300 => set_mode(directory, now.mode | 0o700),
        _ => Ok(()),
    }
}

fn set_mode(path: &Path, mode: u32) -> Result<(), TreeError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(TreeError::at(path))
}

fn same_bytes(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    let (mut a, mut b) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        let read = one.read(&mut a)?;
        if read == 0 {
            return Ok(other.read(&mut b[..1])? == 0);
        }
        match other.read_exact(&mut b[..read]) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        if a[..read] != b[..read] {
            return Ok(false);
        }
    }
}
