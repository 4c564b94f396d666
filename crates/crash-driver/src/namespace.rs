//! Mount namespaces in which another directory lies over the recorded one, so that a check finds a
//! crash state under the very path the program used.
//!
//! Theory of operation. A process inherits its parent's namespace. Before any thread begins, this
//! process steps into one new namespace after the other, lays a directory over the recorded one in
//! each and lets a process be started there; then it steps back. Without privileges all of that
//! happens in a user namespace in which we stay who we are; that one cannot be left again.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where we came from.
pub struct Home {
    namespace: File,
    /// Coming back forgets the working directory.
    directory: Option<File>,
}

impl Home {
    /// Makes sure that namespaces can be made here. Only for a process without threads.
    pub fn remember() -> io::Result<Self> {
        let directory = File::open(".").ok();
        // SAFETY: no arguments, no failure.
        if unsafe { libc::geteuid() } != 0 {
            become_somebody()?;
        }
        let namespace = File::open("/proc/self/ns/mnt")?;
        let home = Self { namespace, directory };
        // Tried once without any consequence: containers forbid some of it to root, too.
        home.step_out().and_then(|()| home.return_home())?;
        Ok(home)
    }

    fn step_out(&self) -> io::Result<()> {
        // SAFETY: plain numbers.
        done(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
        // Nothing that is mounted from here on may be seen outside.
        mount(None, c"/", libc::MS_REC | libc::MS_PRIVATE)
    }

    /// Steps into a new namespace where `over` is found at `path`.
    pub fn cover(&self, path: &Path, over: &Path) -> io::Result<()> {
        self.step_out()?;
        mount(Some(&c_path(over)?), &c_path(path)?, libc::MS_BIND)?;
        // The working directory may be below what is covered now.
        if let Ok(here) = std::env::current_dir() {
            std::env::set_current_dir(here)?;
        }
        Ok(())
    }

    pub fn return_home(&self) -> io::Result<()> {
        // SAFETY: a namespace that we hold.
        done(unsafe { libc::setns(self.namespace.as_raw_fd(), libc::CLONE_NEWNS) })?;
        if let Some(directory) = &self.directory {
            // SAFETY: a directory that we hold.
            done(unsafe { libc::fchdir(directory.as_raw_fd()) })?;
        }
        Ok(())
    }
}

/// Enters a user namespace with our own ids and the right to mount in it.
fn become_somebody() -> io::Result<()> {
    // SAFETY: no arguments, no failure.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    // A thread that was joined may be counted for a moment longer.
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
    // SAFETY: both paths end with a zero; the rest is not used with these flags.
    done(unsafe { libc::mount(from, to.as_ptr(), std::ptr::null(), flags, std::ptr::null()) })
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
