//! The working directory of a confined keeper, in which its children start.
//!
//! Changing the directory is a watched call for a confined process (see denials in
//! `retake-sandbox`), so the keeper changes it once for all commands in the same directory. Under
//! the rules of `serve.rs`: no allocation, no lock, no panic.

use std::ffi::CStr;

use crate::syscalls;

pub(super) struct KeeperDirectory {
    path: [u8; libc::PATH_MAX as usize],
    length: usize,
    /// Device and inode of the entered directory. While the keeper is in it, they are not reused.
    entered: (u64, u64),
}

impl KeeperDirectory {
    pub(super) fn new() -> Self {
        Self { path: [0; libc::PATH_MAX as usize], length: 0, entered: (0, 0) }
    }

    /// Enters a directory by path, unless the path still leads to the keeper's current directory.
    pub(super) fn enter(&mut self, path: &CStr) -> Result<(), i32> {
        let bytes = path.to_bytes();
        let found = identity(path)?;
        if found == self.entered && self.path.get(..self.length) == Some(bytes) {
            return Ok(());
        }
        // The confinement may have started there. Later the same directory may be on another mount.
        let is_there = self.entered == (0, 0) && identity(c".") == Ok(found);
        self.length = 0;
        // SAFETY: a C string.
        if !is_there && unsafe { libc::chdir(path.as_ptr()) } < 0 {
            return Err(syscalls::errno());
        }
        // Identifies the directory itself: the path may lead elsewhere by now.
        self.entered = identity(c".")?;
        if let Some(place) = self.path.get_mut(..bytes.len()) {
            place.copy_from_slice(bytes);
            self.length = bytes.len();
        }
        Ok(())
    }
}

fn identity(path: &CStr) -> Result<(u64, u64), i32> {
    // SAFETY: a C string, and zero is a valid value to be filled.
    unsafe {
        let mut meta: libc::stat = std::mem::zeroed();
        match libc::stat(path.as_ptr(), &raw mut meta) {
            0 => Ok((meta.st_dev, meta.st_ino)),
            _ => Err(syscalls::errno()),
        }
    }
}
