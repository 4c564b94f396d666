//! Files outside of the watched tree that the workload wrote to: no state is without these writes.

use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libc::pid_t;

use super::file::{FileId, FileKind};
use super::tracer::Tracer;
use crate::operation::OutsideWrites;

/// How many files are remembered.
const REMEMBERED: usize = 1000;
/// How many files are named.
const NAMED: usize = 3;

/// Directories for files that need not survive a reboot, or that no disk has.
const SHORT_LIVED: [&str; 7] = ["/tmp", "/var/tmp", "/dev/shm", "/run", "/dev", "/proc", "/sys"];

#[derive(Debug, Default)]
pub(super) struct OutsideFiles {
    /// Asked once for each file: every further write costs nothing.
    seen: HashSet<FileId>,
    written: Vec<(FileId, PathBuf)>,
}

impl Tracer {
    /// A file that is no node is written to, or mapped for writing.
    pub(super) fn written_outside(&mut self, pid: pid_t, fd: i32, id: FileId) {
        let files = &mut self.outside_files;
        if files.written.len() >= REMEMBERED || !files.seen.insert(id) {
            return;
        }
        let regular = self.status(pid, fd).is_some_and(|status| {
            // Without a name it is gone with its process, whatever happens.
            status.kind == FileKind::Regular && status.links > 0
        });
        if let (true, Ok(path)) = (regular, fs::read_link(format!("/proc/{pid}/fd/{fd}"))) {
            self.outside_files.written.push((id, path));
        }
    }
}

impl OutsideFiles {
    /// What is left of these files at the end.
    pub(super) fn finish(self, root: &Path, directory: &Path) -> OutsideWrites {
        if self.written.is_empty() {
            return OutsideWrites::default();
        }
        let mut links = Vec::new();
        links_out(root, root, &mut links);
        let (mut linked, mut others) = (Vec::new(), Vec::new());
        for (id, path) in self.written {
            let Some(path) = current_name(id, path) else { continue };
            if links.iter().any(|target| path.starts_with(target)) {
                linked.push(path);
            } else if !is_short_lived(&path, &[root, directory]) {
                others.push(path);
            }
        }
        let (behind_links, files) = (linked.len() as u64, (linked.len() + others.len()) as u64);
        linked.extend(others);
        linked.truncate(NAMED);
        OutsideWrites { paths: linked, files, behind_links }
    }
}

/// The targets of the symbolic links of a directory that lead out of the root.
fn links_out(root: &Path, directory: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            links_out(root, &entry.path(), found);
        } else if kind.is_symlink()
            && let Ok(target) = entry.path().canonicalize()
            && !target.starts_with(root)
            // Such as a link to `/`: it stands for everything, and not for a part of the data.
            && !root.starts_with(&target)
        {
            found.push(target);
        }
    }
}

/// The path of a file that may have been renamed in its directory; `None` if it was removed.
fn current_name(id: FileId, path: PathBuf) -> Option<PathBuf> {
    let is_it = |path: &Path| {
        let status = path.symlink_metadata();
        status.is_ok_and(|status| (status.dev(), status.ino()) == (id.device, id.inode))
    };
    if is_it(&path) {
        return Some(path);
    }
    let entries = fs::read_dir(path.parent()?).ok()?;
    let mut renamed = entries.flatten().map(|entry| entry.path());
    renamed.find(|path| is_it(path))
}

/// Whether nobody expects this file after a reboot. A whole project can be in `/tmp`: what is
/// in the same directory of `/tmp` as one of `beside` counts.
fn is_short_lived(path: &Path, beside: &[&Path]) -> bool {
    if path.components().any(|part| part.as_os_str() == "__pycache__") {
        return true;
    }
    let Some(area) = SHORT_LIVED.iter().find(|area| path.starts_with(area)) else { return false };
    let below = |path: &Path| {
        let rest = path.strip_prefix(area).ok()?;
        let first = rest.components().next()?.as_os_str().as_bytes().to_owned();
        Some(first)
    };
    let own = below(path);
    own.is_none() || !beside.iter().any(|other| below(other) == own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_should_last_are_named() {
        let beside = [Path::new("/tmp/project/data"), Path::new("/home/me")];
        for lasting in ["/tmp/project/log", "/home/me/wal/1", "/var/lib/x"] {
            assert!(!is_short_lived(Path::new(lasting), &beside), "{lasting}");
        }
        for gone in ["/tmp/other", "/tmp/other/x", "/dev/tty", "/dev/shm/x", "/a/__pycache__/b"] {
            assert!(is_short_lived(Path::new(gone), &beside), "{gone}");
        }
    }
}
