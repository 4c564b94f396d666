//! The path of a file without symbolic links.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

/// Like [`Path::canonicalize`], which examines every directory of the path. Most of the hundred
/// paths of a policy do not exist, and most others contain no links, which a single system call
/// shows.
pub(crate) fn real_path(path: &Path) -> io::Result<PathBuf> {
    if is_normal(path) {
        match open_without_links(path) {
            Ok(_) => return Ok(path.to_owned()),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Err(error),
            // It contains a link, or the kernel lacks the call.
            Err(_) => {}
        }
    }
    let file = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
    match std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())) {
        // A real name can also end like this.
        Ok(real) if real.is_absolute() && !real.as_os_str().as_bytes().ends_with(b" (deleted)") => {
            Ok(real)
        }
        _ => path.canonicalize(),
    }
}

/// A path without `.` and `..`, by text alone.
pub(crate) fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::with_capacity(path.as_os_str().len());
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                normal.pop();
            }
            part => normal.push(part),
        }
    }
    normal
}

/// Whether a path is in normal form.
fn is_normal(path: &Path) -> bool {
    let plain = |name: &[u8]| !matches!(name, b"" | b"." | b"..");
    path.as_os_str().as_bytes().strip_prefix(b"/").is_some_and(|below| {
        let mut names = below.split(|byte| *byte == b'/');
        names.all(plain)
    })
}

/// Fails at any symbolic link, also a final one.
fn open_without_links(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: zero is a valid `open_how`.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
    how.resolve = libc::RESOLVE_NO_SYMLINKS;
    let size = size_of::<libc::open_how>();
    // SAFETY: a C string, and a structure of the stated length.
    let fd = unsafe {
        libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, path.as_ptr(), &raw const how, size)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, owned only here.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_symbolic_links_are_resolved() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        std::fs::create_dir(top.join("real")).unwrap();
        std::fs::write(top.join("real/file (deleted)"), "").unwrap();
        std::os::unix::fs::symlink("real", top.join("link")).unwrap();
        std::os::unix::fs::symlink("link/file (deleted)", top.join("second")).unwrap();
        std::os::unix::fs::symlink("nowhere", top.join("dangling")).unwrap();
        let names = ["link", "link/../link/file (deleted)", "second", "real/.", "real", "real/"];
        for name in names.into_iter().chain(["link/file (deleted)", "real/file (deleted)"]) {
            let path = top.join(name);
            assert_eq!(real_path(&path).unwrap(), path.canonicalize().unwrap(), "{name}");
        }
        for name in ["dangling", "absent", "second/below"] {
            let path = top.join(name);
            let kind = |result: io::Result<PathBuf>| result.unwrap_err().kind();
            assert_eq!(kind(real_path(&path)), kind(path.canonicalize()), "{name}");
        }
    }
}
