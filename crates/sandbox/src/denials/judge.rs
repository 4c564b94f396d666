//! Decides whether the sandbox is the reason that a call fails.
//!
//! At the full level the kernel is asked about the sandbox's root directory, because mounts enforce
//! the rules. Landlock cannot be queried, so at its level the rules are evaluated. In both cases,
//! calls that would fail outside as well are not reported.

use std::collections::{HashMap, HashSet};
use std::ffi::{CString, OsStr};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use retake_types::{DeniedOperation, PathAccess, SandboxLevel};

use super::call::{CallPath, Wants};
use crate::policy::{Area, Policy};
use crate::real_path::normal;

/// The properties of a sandbox that decide about calls.
#[derive(Debug)]
pub(crate) struct Judge {
    level: SandboxLevel,
    /// The access at a path and below it, up to the next path in the map.
    access: HashMap<PathBuf, PathAccess>,
    /// Directories that cannot be moved or removed, because of a mount at or below them.
    pinned: HashSet<PathBuf>,
}

/// The verdict on one path of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The call fails outside as well.
    Fails,
    /// The sandbox allows it.
    Allowed,
    /// The sandbox denies it; with the path, resolved as far as possible.
    Denied(PathBuf),
}

/// Maximum symbolic links to missing targets to follow.
const MOST_LINKS: usize = 8;

impl Judge {
    pub(crate) fn full(policy: &Policy) -> Self {
        let mut access = HashMap::from([
            (PathBuf::from("/"), PathAccess::ReadOnly),
            (PathBuf::from("/dev"), PathAccess::Writable),
        ]);
        let mut pinned = HashSet::new();
        for rule in policy.rules.iter() {
            let path = rule.path.as_path();
            let now = policy.access(path);
            access.insert(path.to_owned(), now);
            if now < PathAccess::Writable {
                pinned.extend(path.ancestors().map(Path::to_owned));
            }
        }
        for (path, area) in &policy.areas {
            let now = match area {
                Area::Temp => PathAccess::Writable,
                // The sandbox has its own devices.
                Area::Empty if path == Path::new("/dev") => PathAccess::Writable,
                Area::Empty => PathAccess::ReadOnly,
            };
            access.insert(path.clone(), now);
        }
        Self { level: SandboxLevel::Full, access, pinned }
    }

    pub(crate) fn landlock(policy: &Policy, temp: &Path) -> Self {
        let mut access = HashMap::from([
            (PathBuf::from("/"), PathAccess::ReadOnly),
            (PathBuf::from("/dev"), PathAccess::Writable),
        ]);
        // This level cannot restrict anything below a writable path.
        access.extend(policy.writable().map(|path| (path.to_owned(), PathAccess::Writable)));
        access.insert(temp.to_owned(), PathAccess::Writable);
        Self { level: SandboxLevel::Landlock, access, pinned: HashSet::new() }
    }

    fn access(&self, path: &Path) -> PathAccess {
        let found = path.ancestors().find_map(|path| self.access.get(path));
        found.copied().unwrap_or(PathAccess::ReadOnly)
    }

    /// Whether a directory entry cannot be moved, removed or replaced, because of a mount.
    fn stays(&self, wants: Wants, path: &Path) -> bool {
        matches!(wants, Wants::OldEntry | Wants::Entry) && self.pinned.contains(path)
    }

    /// Whether a call may be denied, judging by the path's text. Wrong if a symbolic link leads
    /// elsewhere.
    pub(super) fn suspects(&self, operation: DeniedOperation, place: &CallPath) -> bool {
        if operation == DeniedOperation::Change && self.level == SandboxLevel::Landlock {
            return false;
        }
        let path = normal(&place.path);
        !about_process(&path)
            && (self.stays(place.wants, &path) || self.access(&path) < PathAccess::Writable)
    }

    /// Whether the sandbox denies it. `root` is the sandbox's root directory.
    pub(super) fn judge(
        &self,
        root: BorrowedFd<'_>,
        operation: DeniedOperation,
        place: &CallPath,
    ) -> Verdict {
        if operation == DeniedOperation::Change && self.level == SandboxLevel::Landlock {
            return Verdict::Allowed;
        }
        let found = match find(root, &place.path, place.follow, MOST_LINKS) {
            Ok(found) => found,
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
                // A cover cannot be entered.
                let path = normal(&place.path);
                let hidden = self.access(&path) == PathAccess::Hidden;
                return match hidden && allowed_outside(&path, place.wants, operation) {
                    true => Verdict::Denied(path),
                    false => Verdict::Fails,
                };
            }
            Err(_) => return Verdict::Fails,
        };
        let Found { file, directory, path } = found;
        let subject = match (place.wants, file) {
            (Wants::File | Wants::Touch | Wants::FileOrNew, Some(file)) => Ok(file),
            (Wants::NewEntry, Some(_)) | (Wants::File | Wants::Touch | Wants::OldEntry, None) => {
                return Verdict::Fails;
            }
            _ => directory.map_or_else(|| open_directory_of(root, &path), Ok),
        };
        let Ok(subject) = subject else { return Verdict::Fails };
        if about_process(&path) || place.wants == Wants::Touch && is_git_object(&path) {
            return Verdict::Allowed;
        }
        let denied = match self.level {
            SandboxLevel::Full => {
                let moved = self.stays(place.wants, &path);
                let hidden = self.access(&path) == PathAccess::Hidden;
                match writable(subject.as_raw_fd()) {
                    Ok(()) => moved,
                    Err(libc::EROFS) => true,
                    // An owner can change metadata even of files that are not writable.
                    Err(libc::EACCES) if operation == DeniedOperation::Change => {
                        hidden || is_on_read_only_mount(subject.as_raw_fd())
                    }
                    Err(libc::EACCES) => hidden,
                    Err(_) => false,
                }
            }
            SandboxLevel::Landlock => self.access(&path) < PathAccess::Writable,
        };
        match denied && allowed_outside(&path, place.wants, operation) {
            true => Verdict::Denied(path),
            false => Verdict::Allowed,
        }
    }

    /// Whether a socket exists outside but not inside.
    pub(super) fn hides_socket(&self, root: BorrowedFd<'_>, path: &Path) -> bool {
        let is_socket = |meta: &std::fs::Metadata| meta.file_type().is_socket();
        if !std::fs::metadata(path).is_ok_and(|meta| is_socket(&meta)) {
            return false;
        }
        match find(root, path, true, MOST_LINKS) {
            Ok(Found { file: Some(file), .. }) => {
                !std::fs::File::from(file).metadata().is_ok_and(|meta| is_socket(&meta))
            }
            _ => true,
        }
    }

    /// Whether an address is unreachable from inside.
    pub(super) fn out_of_reach(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.level == SandboxLevel::Full && !ip.is_loopback() && !ip.is_unspecified()
    }
}

/// A resolved path.
struct Found {
    /// `None` if it does not exist.
    file: Option<OwnedFd>,
    /// Its directory, if it was opened already.
    directory: Option<OwnedFd>,
    path: PathBuf,
}

fn open_directory_of(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let parent = path.parent().ok_or_else(|| io::Error::from_raw_os_error(libc::EBUSY))?;
    open(root, parent, true)
}

fn find(root: BorrowedFd<'_>, path: &Path, follow: bool, links: usize) -> io::Result<Found> {
    match open(root, path, follow) {
        Ok(file) => {
            let path = real_path(&file)?;
            Ok(Found { file: Some(file), directory: None, path })
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(error);
            };
            let directory = open(root, parent, true)?;
            let real = real_path(&directory)?;
            // Creating through a dangling link creates its target.
            if follow
                && links > 0
                && let Ok(link) = open(root, path, false)
                && let Ok(target) = read_link_at(&link)
            {
                return find(root, &real.join(target), true, links - 1);
            }
            Ok(Found { file: None, directory: Some(directory), path: real.join(name) })
        }
        Err(error) => Err(error),
    }
}

/// Whether the existing part of a path contains no symbolic link.
pub(super) fn is_without_links(root: BorrowedFd<'_>, place: &CallPath) -> bool {
    let resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_SYMLINKS;
    match open_with(root, &place.path, place.follow, resolve) {
        Ok(_) => true,
        Err(error) => error.raw_os_error() == Some(libc::ENOENT),
    }
}

fn open(root: BorrowedFd<'_>, path: &Path, follow: bool) -> io::Result<OwnedFd> {
    open_with(root, path, follow, libc::RESOLVE_IN_ROOT)
}

fn open_with(root: BorrowedFd<'_>, path: &Path, follow: bool, resolve: u64) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: zero is a valid `open_how`.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    let last = if follow { 0 } else { libc::O_NOFOLLOW };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC | last) as u64;
    how.resolve = resolve;
    let size = size_of::<libc::open_how>();
    // SAFETY: a C string, and a structure of the stated length.
    let fd = unsafe {
        libc::syscall(libc::SYS_openat2, root.as_raw_fd(), path.as_ptr(), &raw const how, size)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, owned only here.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// The name of an open file in its mount.
fn real_path(file: &OwnedFd) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn read_link_at(link: &OwnedFd) -> io::Result<PathBuf> {
    let mut buffer = [0_u8; libc::PATH_MAX as usize];
    // SAFETY: an empty path selects the descriptor; the buffer has the stated length.
    let got = unsafe {
        libc::readlinkat(link.as_raw_fd(), c"".as_ptr(), buffer.as_mut_ptr().cast(), buffer.len())
    };
    match usize::try_from(got) {
        Ok(got) => Ok(PathBuf::from(OsStr::from_bytes(&buffer[..got]))),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Whether a file is writable, and why not.
fn writable(file: RawFd) -> Result<(), i32> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_EACCESS;
    // SAFETY: an empty path selects the descriptor.
    let result =
        unsafe { libc::syscall(libc::SYS_faccessat2, file, c"".as_ptr(), libc::W_OK, flags) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
    }
}

fn is_on_read_only_mount(file: RawFd) -> bool {
    // SAFETY: zero is a valid value to be filled.
    unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        libc::fstatvfs(file, &raw mut found) == 0 && found.f_flag & libc::ST_RDONLY != 0
    }
}

/// Whether the user could do it without a sandbox.
fn allowed_outside(path: &Path, wants: Wants, operation: DeniedOperation) -> bool {
    let may_write = |path: &Path| {
        let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
        // SAFETY: a C string.
        unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, libc::AT_EACCESS) == 0 }
    };
    if operation == DeniedOperation::Change {
        // SAFETY: no arguments, no failure.
        let user = unsafe { libc::geteuid() };
        return std::fs::symlink_metadata(path).is_ok_and(|meta| user == 0 || meta.uid() == user);
    }
    match wants {
        Wants::File | Wants::Touch => may_write(path),
        Wants::FileOrNew if path.symlink_metadata().is_ok() => may_write(path),
        _ => path.parent().is_some_and(may_write),
    }
}

/// Whether a file is a git object or pack, judging by its name. Before git writes an object it
/// updates the time of an existing copy, also in a repository that it borrows from, and writes its
/// own copy if that fails: the denial does no harm, and allowing it would make the other repository
/// writable.
fn is_git_object(path: &Path) -> bool {
    let is_hash = |text: &[u8], lengths: [usize; 2]| {
        lengths.contains(&text.len()) && text.iter().all(u8::is_ascii_hexdigit)
    };
    let (Some(name), Some(directory)) = (path.file_name(), path.parent().and_then(Path::file_name))
    else {
        return false;
    };
    let (name, directory) = (name.as_bytes(), directory.as_bytes());
    match name.strip_prefix(b"pack-").and_then(|rest| rest.split(|byte| *byte == b'.').next()) {
        Some(hash) => directory == b"pack" && is_hash(hash, [40, 64]),
        None => is_hash(directory, [2, 2]) && is_hash(name, [38, 62]),
    }
}

/// The files of `/proc` that a process may write: those about itself.
fn about_process(path: &Path) -> bool {
    let Ok(below) = path.strip_prefix("/proc") else { return false };
    below.components().next().is_some_and(|first| {
        let name = first.as_os_str().as_bytes();
        name == b"self" || name == b"thread-self" || name.iter().all(u8::is_ascii_digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_git_are_known_by_their_names() {
        let hash = "ce013625030ba8dba906f756967f9e9ca394464a";
        let loose = format!("/r/.git/objects/{}/{}", &hash[..2], &hash[2..]);
        let pack = format!("/r/.git/objects/pack/pack-{hash}.pack");
        for path in [&loose, &pack] {
            assert!(is_git_object(Path::new(path)), "{path}");
        }
        let short = format!("/r/.git/objects/{}/{}", &hash[..2], &hash[3..]);
        let elsewhere = format!("/r/{hash}");
        for path in [&short, &elsewhere, "/r/pack/pack-list.txt", "/r/.git/config", "/"] {
            assert!(!is_git_object(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn symbolic_links_on_a_path_are_detected_unless_they_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        std::fs::create_dir(top.join("directory")).unwrap();
        std::os::unix::fs::symlink("directory", top.join("link")).unwrap();
        let root = OwnedFd::from(std::fs::File::open("/").unwrap());
        for (name, follow, expected) in [
            ("directory", true, true),
            ("directory/absent", true, true),
            ("absent/below", true, true),
            ("link", true, false),
            ("link", false, true),
            ("link/absent", false, false),
            ("directory/../link/absent", true, false),
        ] {
            let place = CallPath { path: top.join(name), wants: Wants::Entry, follow };
            let root = std::os::fd::AsFd::as_fd(&root);
            assert_eq!(is_without_links(root, &place), expected, "{name} {follow}");
        }
    }
}
