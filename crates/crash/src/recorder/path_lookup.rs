//! Resolves paths of the workload: the directory that contains the last name, and the file there.
//!
//! Paths are resolved while the task is stopped at the beginning of its call. No other task of the
//! workload changes the watched tree in the meantime, so the call will find the same file.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use libc::pid_t;

use super::file::{FileId, FileKind, FileStatus, c_string, open_at, read_link};

/// Maximum number of symbolic links that the kernel follows.
const LINKS: usize = 40;

/// A name in an existing directory.
#[derive(Debug)]
pub(super) struct ResolvedPath {
    pub(super) parent: OwnedFd,
    pub(super) parent_id: FileId,
    pub(super) name: OsString,
    /// The file that has this name.
    pub(super) status: Option<FileStatus>,
}

impl ResolvedPath {
    /// The file that has this name now.
    pub(super) fn status_now(&self) -> io::Result<Option<FileStatus>> {
        look(&self.parent, &self.name)
    }

    pub(super) fn c_name(&self) -> io::Result<CString> {
        c_string(&self.name)
    }
}

fn look(parent: &OwnedFd, name: &OsStr) -> io::Result<Option<FileStatus>> {
    let name = c_string(name)?;
    match FileStatus::at(parent.as_raw_fd(), &name, libc::AT_SYMLINK_NOFOLLOW) {
        Ok(status) => Ok(Some(status)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The path as this process can use it: relative to the task's directory, and with `self` meaning the
/// task.
pub(super) fn seen_from_here(pid: pid_t, base: i32, path: &OsStr) -> PathBuf {
    let bytes = path.as_bytes();
    if bytes.first() != Some(&b'/') {
        let mut start = match base {
            libc::AT_FDCWD => PathBuf::from(format!("/proc/{pid}/cwd")),
            fd => PathBuf::from(format!("/proc/{pid}/fd/{fd}")),
        };
        if !bytes.is_empty() {
            start.push(path);
        }
        return start;
    }
    for (prefix, stands_for) in
        [("/proc/self/", ""), ("/proc/thread-self/", ""), ("/dev/fd/", "fd/")]
    {
        if let Some(rest) = bytes.strip_prefix(prefix.as_bytes()) {
            let mut start = OsString::from(format!("/proc/{pid}/{stands_for}"));
            start.push(OsStr::from_bytes(rest));
            return PathBuf::from(start);
        }
    }
    PathBuf::from(path)
}

/// The file that a path leads to after following links.
pub(super) fn target(pid: pid_t, base: i32, path: &OsStr, itself: bool) -> Option<FileStatus> {
    let path = c_string(seen_from_here(pid, base, path).as_os_str()).ok()?;
    let flags = if itself { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
    FileStatus::at(libc::AT_FDCWD, &path, flags).ok()
}

/// The place that a path names. `None` if it leads nowhere, so that the call fails, too, or if
/// it has no last name to create or remove (`/`, `..`).
pub(super) fn find(pid: pid_t, base: i32, path: &OsStr, follow: bool) -> Option<ResolvedPath> {
    if path.is_empty() {
        return None;
    }
    let mut path = seen_from_here(pid, base, path).into_os_string();
    let mut start: Option<OwnedFd> = None;
    for _ in 0..=LINKS {
        let (directory, name) = split(&path)?;
        let from = start.as_ref().map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let parent = open_at(from, &c_string(directory).ok()?, flags).ok()?;
        let parent_id = FileStatus::of_descriptor(parent.as_raw_fd()).ok()?.id;
        let status = look(&parent, name).ok()?;
        let linked = status.is_some_and(|status| status.kind == FileKind::Symlink);
        if !(linked && follow) {
            return Some(ResolvedPath { parent, parent_id, name: name.to_owned(), status });
        }
        path = read_link(parent.as_raw_fd(), &c_string(name).ok()?).ok()?;
        start = Some(parent);
    }
    None
}

/// The directory part and the last name.
fn split(path: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = path.as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/')? + 1;
    let bytes = &bytes[..end];
    let (directory, name) = match bytes.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (&b"/"[..], &bytes[1..]),
        Some(slash) => (&bytes[..slash], &bytes[slash + 1..]),
        None => (&b"."[..], bytes),
    };
    (name != b"." && name != b"..").then(|| (OsStr::from_bytes(directory), OsStr::from_bytes(name)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn paths_split_at_their_last_name() {
        let said = |path: &'static str| {
            split(OsStr::new(path)).map(|(a, b)| (a.to_str().unwrap(), b.to_str().unwrap()))
        };
        assert_eq!(said("/a/b"), Some(("/a", "b")));
        assert_eq!(said("/a"), Some(("/", "a")));
        assert_eq!(said("a//"), Some((".", "a")));
        assert_eq!(said("a//b/"), Some(("a/", "b")));
        assert_eq!(said("/"), None);
        assert_eq!(said("a/.."), None);
    }

    #[test]
    fn links_are_followed_where_the_call_does() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("in")).unwrap();
        symlink("in/file", dir.path().join("link")).unwrap();
        let pid = std::process::id() as pid_t;
        let path = dir.path().join("link");
        let itself = find(pid, libc::AT_FDCWD, path.as_os_str(), false).unwrap();
        assert_eq!(itself.name, "link");
        assert_eq!(itself.status.unwrap().kind, FileKind::Symlink);
        let followed = find(pid, libc::AT_FDCWD, path.as_os_str(), true).unwrap();
        assert_eq!(followed.name, "file");
        assert!(followed.status.is_none());
        symlink("loop", dir.path().join("loop")).unwrap();
        assert!(find(pid, libc::AT_FDCWD, dir.path().join("loop").as_os_str(), true).is_none());
    }
}
