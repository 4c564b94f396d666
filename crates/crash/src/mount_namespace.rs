//! A mount namespace for a child, with one directory mounted over another, so that several states
//! can be checked at the same time, each under the path it was recorded at.
//!
//! Root needs nothing else. Other users become root of a user namespace first, if the kernel
//! allows it; inside it they keep their user id.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Fully prepared: entering allocates nothing.
#[derive(Clone, Debug)]
pub struct MountNamespace {
    source: CString,
    target: CString,
    /// Files and their content, for a user namespace.
    maps: Option<[(CString, String); 3]>,
}

impl MountNamespace {
    /// `source` becomes visible at `target`, which must exist.
    pub fn new(source: &Path, target: &Path) -> io::Result<Self> {
        // SAFETY: neither can fail.
        let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
        let map = |file: &str, text: String| Ok::<_, io::Error>((CString::new(file)?, text));
        let maps = if user == 0 {
            None
        } else {
            Some([
                map("/proc/self/setgroups", "deny".to_owned())?,
                map("/proc/self/uid_map", format!("{user} {user} 1"))?,
                map("/proc/self/gid_map", format!("{group} {group} 1"))?,
            ])
        };
        Ok(Self {
            source: CString::new(source.as_os_str().as_bytes())?,
            target: CString::new(target.as_os_str().as_bytes())?,
            maps,
        })
    }

    /// Moves the calling thread into it. Async-signal-safe. A user namespace can only be entered by a
    /// process with one thread, such as a forked copy.
    pub fn enter(&self) -> io::Result<()> {
        let done = |result: i32| {
            if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        };
        let none = std::ptr::null::<libc::c_char>();
        let flags = if self.maps.is_some() { libc::CLONE_NEWUSER } else { 0 };
        // SAFETY: plain numbers, NUL-terminated strings, and buffers of the given length.
        unsafe {
            done(libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FS | flags))?;
            for (file, text) in self.maps.iter().flatten() {
                let fd = libc::open(file.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                done(fd)?;
                let n = libc::write(fd, text.as_ptr().cast(), text.len());
                libc::close(fd);
                done(n as i32)?;
            }
            let private = libc::MS_REC | libc::MS_PRIVATE;
            done(libc::mount(c"none".as_ptr(), c"/".as_ptr(), none, private, none.cast()))?;
            let (source, target) = (self.source.as_ptr(), self.target.as_ptr());
            done(libc::mount(source, target, none, libc::MS_BIND, none.cast()))
        }
    }
}
