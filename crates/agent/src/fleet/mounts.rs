//! Mounts of a fleet, in a namespace of its own processes: invisible outside, and gone with the
//! last process, however it ends.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The mount namespace that this process has entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountNamespace {
    /// Whether it has a user namespace, in which the kernel refuses some mount options.
    own_users: bool,
}

/// Enters a new mount namespace. Only root can do that without a user namespace, in which programs
/// that change the user, such as sudo, do not work; so a user namespace is entered only if
/// `confined`, because a sandbox has one anyway. Call it with a single thread and before any
/// worker.
pub fn enter_mount_namespace(confined: bool) -> io::Result<MountNamespace> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("several threads run"));
    }
    let own_users = match unshare(libc::CLONE_NEWNS) {
        Ok(()) => false,
        Err(error) if error.raw_os_error() == Some(libc::EPERM) && confined => {
            // SAFETY: no arguments, no failure.
            let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
            unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
            std::fs::write("/proc/self/setgroups", "deny")?;
            std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
            std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
            true
        }
        Err(error) => return Err(error),
    };
    // New mounts of the user appear here, but not the reverse.
    mount(None, c"/", None, libc::MS_REC | libc::MS_SLAVE, None)?;
    Ok(MountNamespace { own_users })
}

/// Enters the namespace of another process of this user, under the same conditions.
pub fn join_mount_namespace(process: i32) -> io::Result<()> {
    let open = |kind: &str| std::fs::File::open(format!("/proc/{process}/ns/{kind}"));
    let (users, mounts) = (open("user")?, open("mnt")?);
    let same = |a: &Path, b: &Path| -> io::Result<bool> {
        Ok(std::fs::read_link(a)? == std::fs::read_link(b)?)
    };
    let theirs = format!("/proc/{process}/ns/user");
    if !same(Path::new(&theirs), Path::new("/proc/self/ns/user"))? {
        set_namespace(&users, libc::CLONE_NEWUSER)?;
    }
    // setns resets the working directory to the root.
    let here = std::env::current_dir()?;
    set_namespace(&mounts, libc::CLONE_NEWNS)?;
    std::env::set_current_dir(here)
}

fn set_namespace(namespace: &std::fs::File, kind: i32) -> io::Result<()> {
    // SAFETY: an open descriptor, and a plain number.
    check(unsafe { libc::setns(namespace.as_raw_fd(), kind) })
}

fn unshare(kinds: i32) -> io::Result<()> {
    // SAFETY: a plain number.
    check(unsafe { libc::unshare(kinds) })
}

impl MountNamespace {
    /// Mounts a writable layer over a directory that must not change.
    pub(super) fn mount_layer(
        self,
        lower: &Path,
        (upper, work): (&Path, &Path),
        at: &Path,
    ) -> io::Result<()> {
        // In a user namespace the kernel stores its notes in user attributes, and cannot rename a
        // directory of the lower layer: `rename` fails with EXDEV, as between two file systems.
        let own = if self.own_users { "userxattr" } else { "redirect_dir=on" };
        let mut options = b"lowerdir=".to_vec();
        for (name, path) in [("", lower), (",upperdir=", upper), (",workdir=", work)] {
            options.extend_from_slice(name.as_bytes());
            escape(path, &mut options);
        }
        options.extend_from_slice(format!(",{own}").as_bytes());
        let options = CString::new(options)?;
        let flags = libc::MS_NOSUID | libc::MS_NODEV;
        mount(Some(c"overlay"), &c_path(at)?, Some(c"overlay"), flags, Some(&options))
    }

    /// Mounts a directory read-only at a second place.
    pub(super) fn mount_read_only(self, from: &Path, at: &Path) -> io::Result<()> {
        let place = c_path(at)?;
        mount(Some(&c_path(from)?), &place, None, libc::MS_BIND, None)?;
        let made = read_only_flags(&place).and_then(|flags| mount(None, &place, None, flags, None));
        if made.is_err() {
            // A writable one must not remain.
            unmount(at)?;
        }
        made
    }
}

/// The flags for a read-only remount: in a user namespace existing flags cannot be removed.
fn read_only_flags(place: &CStr) -> io::Result<libc::c_ulong> {
    // SAFETY: a C string, and zero is a valid value to be filled.
    let has = unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        check(libc::statvfs(place.as_ptr(), &raw mut found))?;
        found.f_flag
    };
    let mut flags = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY;
    for (known, flag) in [
        (libc::ST_NOSUID, libc::MS_NOSUID),
        (libc::ST_NODEV, libc::MS_NODEV),
        (libc::ST_NOEXEC, libc::MS_NOEXEC),
        (libc::ST_NOATIME, libc::MS_NOATIME),
        (libc::ST_NODIRATIME, libc::MS_NODIRATIME),
        (libc::ST_RELATIME, libc::MS_RELATIME),
    ] {
        if has & known != 0 {
            flags |= flag;
        }
    }
    Ok(flags)
}

/// Whether exactly this path is a mount point.
pub(super) fn is_mounted(at: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(own), Some(Ok(above))) = (at.symlink_metadata(), at.parent().map(Path::metadata))
    else {
        return false;
    };
    own.dev() != above.dev() || super::tree::mount_points().iter().any(|point| point == at)
}

pub(super) fn unmount(at: &Path) -> io::Result<()> {
    let place = c_path(at)?;
    // SAFETY: a C string.
    check(unsafe { libc::umount2(place.as_ptr(), libc::UMOUNT_NOFOLLOW) })
}

/// Escapes characters that would end a path in mount options.
fn escape(path: &Path, into: &mut Vec<u8>) {
    for byte in path.as_os_str().as_bytes() {
        if matches!(byte, b',' | b':' | b'\\') {
            into.push(b'\\');
        }
        into.push(*byte);
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn mount(
    source: Option<&CStr>,
    at: &CStr,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    options: Option<&CStr>,
) -> io::Result<()> {
    let text = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: C strings or null.
    check(unsafe {
        libc::mount(text(source), at.as_ptr(), text(kind), flags, text(options).cast())
    })
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
