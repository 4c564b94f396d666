//! Mount namespaces in which another directory is mounted over the recorded one, so that a check finds a
//! crash state at the same path that the program used.
//!
//! Theory of operation. A process inherits its parent's namespace. Before any thread starts, this
//! process enters one new namespace after the other, mounts a directory over the recorded one in
//! each and starts a process there; then it returns. Without privileges all of that happens in a
//! user namespace in which the user keeps its id, and which the process cannot leave again.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The mount namespace that this process was started in.
pub(crate) struct OriginalNamespace {
    namespace: File,
    /// Entering a namespace resets the working directory.
    directory: Option<File>,
}

impl OriginalNamespace {
    /// Ensures that namespaces can be created here. Only for a process without threads.
    pub(crate) fn new() -> io::Result<Self> {
        let directory = File::open(".").ok();
        if !rustix::process::geteuid().is_root() {
            enter_user_namespace()?;
        }
        let namespace = File::open("/proc/self/ns/mnt")?;
        let original = Self { namespace, directory };
        // A trial without consequences: containers forbid some of it even to root.
        enter_new().and_then(|()| original.restore())?;
        Ok(original)
    }

    /// Enters a new namespace in which `source` is mounted at `target`.
    pub(crate) fn enter_new_with(&self, source: &Path, target: &Path) -> io::Result<()> {
        enter_new()?;
        mount(Some(&c_path(source)?), &c_path(target)?, libc::MS_BIND)?;
        // The working directory may be below the covered one now.
        if let Ok(here) = std::env::current_dir() {
            std::env::set_current_dir(here)?;
        }
        Ok(())
    }

    /// Returns to it, and to the working directory.
    pub(crate) fn restore(&self) -> io::Result<()> {
        // SAFETY: the descriptor of a namespace, which is open.
        done(unsafe { libc::setns(self.namespace.as_raw_fd(), libc::CLONE_NEWNS) })?;
        if let Some(directory) = &self.directory {
            // SAFETY: the descriptor of a directory, which is open.
            done(unsafe { libc::fchdir(directory.as_raw_fd()) })?;
        }
        Ok(())
    }
}

fn enter_new() -> io::Result<()> {
    // SAFETY: plain numbers.
    done(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    // Later mounts must not be visible outside.
    mount(None, c"/", libc::MS_REC | libc::MS_PRIVATE)
}

/// Enters a user namespace with the same ids and the right to mount in it.
fn enter_user_namespace() -> io::Result<()> {
    // SAFETY: no arguments, no failure.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    // A joined thread may be counted for a moment longer.
    let mut tries = 0;
    // SAFETY: plain numbers.
    while unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } < 0 {
        let error = io::Error::last_os_error();
        tries += 1;
        if error.raw_os_error() != Some(libc::EINVAL) || tries > 1000 {
            return Err(error);
        }
        std::thread::yield_now();
    }
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

fn mount(from: Option<&CStr>, to: &CStr, flags: libc::c_ulong) -> io::Result<()> {
    let from = from.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: both paths are NUL-terminated; the rest is not used with these flags.
    done(unsafe { libc::mount(from, to.as_ptr(), std::ptr::null(), flags, std::ptr::null()) })
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
