//! Whether a tree in memory equals the directory on disk: names, kinds, modes, sizes, bytes, links.
//!
//! Times and owners are not compared: a log does not contain them.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::directory_scan::{for_each_extent, names, open_directory};
use super::file::{FileId, FileKind, FileStatus, c_string, open_at, read_link};
use crate::model::{FileView, Tree, TreeEntry, TreeEntryKind};
use crate::operation::{Entry, Node, Recording};
use crate::text::count;

const BLOCK: usize = 4096;

/// The tree that the whole recording produces.
pub(crate) fn replayed(recording: &Recording) -> Tree {
    let mut tree = Tree::new(&recording.initial);
    for entry in &recording.entries {
        if let Entry::Operation(operation) = entry {
            tree.apply(&operation.action);
        }
    }
    tree
}

/// The differences, one sentence each; empty if there are none.
pub(crate) fn differences(tree: &Tree, root: &OwnedFd) -> io::Result<Vec<String>> {
    let mut comparison = Comparison {
        expected: tree.walk().map(|found| (found.path.clone(), found)).collect(),
        ids: HashMap::new(),
        nodes: HashMap::new(),
        told: Vec::new(),
    };
    let status = FileStatus::of_descriptor(root.as_raw_fd())?;
    if let Some(found) = comparison.expected.remove(Path::new("")) {
        comparison.mode(&found, status);
    }
    comparison.directory(root, Path::new(""))?;
    let mut missing: Vec<_> = comparison.expected.into_keys().collect();
    missing.sort_unstable();
    comparison.told.extend(missing.iter().map(|path| format!("{} is not there", path.display())));
    Ok(comparison.told)
}

struct Comparison<'a> {
    /// Entries that have not been found on disk yet.
    expected: HashMap<PathBuf, TreeEntry<'a>>,
    ids: HashMap<FileId, Node>,
    nodes: HashMap<Node, FileId>,
    told: Vec<String>,
}

impl Comparison<'_> {
    fn directory(&mut self, directory: &OwnedFd, path: &Path) -> io::Result<()> {
        for name in names(directory.as_raw_fd())? {
            let path = path.join(&name);
            let name = c_string(&name)?;
            let base = directory.as_raw_fd();
            let status = FileStatus::at(base, &name, libc::AT_SYMLINK_NOFOLLOW)?;
            if status.kind == FileKind::Special {
                continue;
            }
            let Some(found) = self.expected.remove(&path) else {
                self.told.push(format!("{} is there and was never made", path.display()));
                continue;
            };
            self.mode(&found, status);
            self.identity(&found, status);
            match (found.kind, status.kind) {
                (TreeEntryKind::Directory, FileKind::Directory) => {
                    self.directory(&open_directory(base, &name)?, &path)?;
                }
                (TreeEntryKind::Symlink(target), FileKind::Symlink) => {
                    let real = read_link(base, &name)?;
                    if real != target {
                        self.told.push(format!(
                            "{} points to {real:?} and should point to {target:?}",
                            path.display()
                        ));
                    }
                }
                (TreeEntryKind::File(view), FileKind::Regular) => {
                    let flags = libc::O_RDONLY | libc::O_NOFOLLOW;
                    let file = File::from(open_at(base, &name, flags)?);
                    let difference = bytes(view, &file, status.size)?;
                    self.told.extend(difference.map(|how| format!("{} {how}", path.display())));
                }
                _ => self.told.push(format!("{} is of another kind", path.display())),
            }
        }
        Ok(())
    }

    fn mode(&mut self, found: &TreeEntry<'_>, status: FileStatus) {
        let symlink = status.kind == FileKind::Symlink;
        if !symlink && found.mode & 0o7777 != status.mode {
            self.told.push(format!(
                "{} has mode {:o} and should have {:o}",
                shown(&found.path),
                status.mode,
                found.mode
            ));
        }
    }

    /// Names that share a file on one side must share it on the other.
    fn identity(&mut self, found: &TreeEntry<'_>, status: FileStatus) {
        let node = *self.ids.entry(status.id).or_insert(found.node);
        let id = *self.nodes.entry(found.node).or_insert(status.id);
        if node != found.node || id != status.id {
            self.told.push(format!("{} has other hard links", shown(&found.path)));
        }
    }
}

fn shown(path: &Path) -> String {
    if path.as_os_str().is_empty() {
        return "the directory".to_owned();
    }
    path.display().to_string()
}

fn bytes(view: FileView<'_>, file: &File, size: u64) -> io::Result<Option<String>> {
    if view.size() != size {
        return Ok(Some(format!("has {} and should have {}", count(size, "byte"), view.size())));
    }
    let differs = |at: u64| Some(format!("has another byte at {at}"));
    // In both directions: the bytes of the file, and the expected bytes.
    let mut buffer = [0; BLOCK];
    let mut different = None;
    for_each_extent(file, size, |start, data| {
        for (number, block) in data.chunks(BLOCK).enumerate() {
            let at = start + (number * BLOCK) as u64;
            let expected = &mut buffer[..block.len()];
            view.read(at, expected);
            if different.is_none() {
                different = first_difference(block, expected).map(|first| at + first);
            }
        }
        Ok(())
    })?;
    if let Some(at) = different {
        return Ok(differs(at));
    }
    for (at, expected) in view.extents() {
        let real = &mut buffer[..expected.len()];
        file.read_exact_at(real, at)?;
        if let Some(first) = first_difference(real, expected) {
            return Ok(differs(at + first));
        }
    }
    Ok(None)
}

fn first_difference(one: &[u8], other: &[u8]) -> Option<u64> {
    if one == other {
        return None;
    }
    one.iter().zip(other).position(|(one, other)| one != other).map(|at| at as u64)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::recorder::open_root;

    #[test]
    fn each_difference_is_reported() {
        type Change = (fn(&Path), &'static str);
        let changes: [Change; 9] = [
            (|p| fs::write(p.join("a/file"), "texx").unwrap(), "a/file has another byte at 3"),
            (|p| fs::write(p.join("a/file"), "text!").unwrap(), "a/file has 5 bytes"),
            (|p| fs::remove_file(p.join("link")).unwrap(), "link is not there"),
            (|p| fs::write(p.join("new"), "").unwrap(), "new is there and was never made"),
            (
                |p| fs::set_permissions(p.join("a"), PermissionsExt::from_mode(0o700)).unwrap(),
                "a has mode 700",
            ),
            (
                |p| {
                    fs::remove_file(p.join("link")).unwrap();
                    symlink("elsewhere", p.join("link")).unwrap();
                },
                "link points to \"elsewhere\"",
            ),
            (
                |p| {
                    fs::remove_file(p.join("again")).unwrap();
                    fs::copy(p.join("a/file"), p.join("again")).unwrap();
                },
                "again has other hard links",
            ),
            (
                |p| {
                    fs::remove_file(p.join("link")).unwrap();
                    fs::create_dir(p.join("link")).unwrap();
                },
                "link is of another kind",
            ),
            (
                |p| {
                    File::options()
                        .write(true)
                        .open(p.join("hole"))
                        .unwrap()
                        .write_all_at(b"x", 50_000)
                        .unwrap()
                },
                "hole has another byte at 50000",
            ),
        ];
        for (change, told) in changes {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path();
            fs::create_dir(path.join("a")).unwrap();
            fs::set_permissions(path.join("a"), PermissionsExt::from_mode(0o755)).unwrap();
            fs::write(path.join("a/file"), "text").unwrap();
            fs::hard_link(path.join("a/file"), path.join("again")).unwrap();
            symlink("nowhere", path.join("link")).unwrap();
            File::create(path.join("hole")).unwrap().set_len(100_000).unwrap();
            let root = open_root(path).unwrap();
            let tree = crate::recorder::tree_of(path).unwrap();
            assert_eq!(differences(&tree, &root).unwrap(), [""; 0]);
            change(path);
            let differences = differences(&tree, &root).unwrap();
            assert!(differences.iter().any(|one| one.contains(told)), "{differences:?}");
        }
    }
}
