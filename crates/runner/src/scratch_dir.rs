//! The scratch directory of a measuring run: an empty directory for its files, and a path for its
//! metrics.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, RawDir};

/// A directory that is empty at the start and removed at the end.
#[derive(Debug)]
pub struct ScratchDir {
    directory: PathBuf,
}

impl ScratchDir {
    /// Creates `parent/name`; removes what a killed run left there first.
    pub fn new(parent: &Path, name: &str) -> io::Result<Self> {
        let scratch = Self { directory: parent.join(name) };
        scratch.renew()?;
        Ok(scratch)
    }

    /// Empties it for the next iteration. An empty one costs nothing: creating and removing
    /// directories waits for other writes to the same file system.
    pub fn renew(&self) -> io::Result<()> {
        if has_entries(&self.tmp(), 0) && has_entries(&self.directory, 1) {
            return Ok(());
        }
        match remove(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::create_dir_all(self.tmp())
    }

    /// The value of `RETAKE_TMP`.
    pub fn tmp(&self) -> PathBuf {
        self.directory.join("tmp")
    }

    /// The value of `RETAKE_METRICS`; outside of the directory above, which must stay empty.
    pub fn metrics(&self) -> PathBuf {
        self.directory.join("metrics.json")
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // Unremovable files stay until the next run of this worker clears them.
        drop(remove(&self.directory));
    }
}

/// Whether a real directory, not a link, is readable and has this many entries.
fn has_entries(directory: &Path, count: usize) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(opened) = rustix::fs::open(directory, flags, Mode::empty()) else { return false };
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(opened, &mut buffer);
    let mut found = 0;
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { return false };
        found += usize::from(![&b"."[..], b".."].contains(&entry.file_name().to_bytes()));
        if found > count {
            return false;
        }
    }
    found == count
}

/// Removes a directory, even one that a command made read-only: package caches often are.
pub fn remove(directory: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            unlock(directory)?;
            std::fs::remove_dir_all(directory)
        }
        other => other,
    }
}

fn unlock(directory: &Path) -> io::Result<()> {
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700))?;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            unlock(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_directory_is_empty_at_the_start_and_gone_in_the_end() {
        let parent = tempfile::tempdir().unwrap();
        let left = parent.path().join("w0/tmp/left");
        std::fs::create_dir_all(&left).unwrap();
        let scratch = ScratchDir::new(parent.path(), "w0").unwrap();
        assert_eq!(std::fs::read_dir(scratch.tmp()).unwrap().count(), 0);
        for left in [scratch.metrics(), scratch.tmp().join("left")] {
            std::fs::write(&left, "{}").unwrap();
            scratch.renew().unwrap();
            assert!(!left.exists());
            assert_eq!(std::fs::read_dir(scratch.tmp()).unwrap().count(), 0);
        }
        std::fs::remove_dir(scratch.tmp()).unwrap();
        scratch.renew().unwrap();
        assert!(scratch.tmp().is_dir());
        // A link to an empty directory does not count.
        let elsewhere = parent.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::remove_dir(scratch.tmp()).unwrap();
        std::os::unix::fs::symlink(&elsewhere, scratch.tmp()).unwrap();
        scratch.renew().unwrap();
        assert!(std::fs::symlink_metadata(scratch.tmp()).unwrap().is_dir());
        assert!(elsewhere.is_dir());
        drop(scratch);
        assert!(!parent.path().join("w0").exists());
    }
}
