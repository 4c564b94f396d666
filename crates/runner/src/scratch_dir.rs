//! The directory of its own that a run which measures gets: an empty one for its files, and a name
//! for its metrics.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, RawDir};

/// A directory that is empty at the start and gone in the end.
#[derive(Debug)]
pub struct ScratchDir {
    directory: PathBuf,
}

impl ScratchDir {
    /// Makes `parent/name`; what a killed run left there goes first.
    pub fn new(parent: &Path, name: &str) -> io::Result<Self> {
        let scratch = Self { directory: parent.join(name) };
        scratch.renew()?;
        Ok(scratch)
    }

    /// Makes it empty for the next iteration. One that still is costs nothing: making and removing
    /// directories waits for whatever else is being written to the same file system.
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

    /// For `RETAKE_TMP`.
    pub fn tmp(&self) -> PathBuf {
        self.directory.join("tmp")
    }

    /// For `RETAKE_METRICS`; outside of the directory above, which is to be empty.
    pub fn metrics(&self) -> PathBuf {
        self.directory.join("metrics.json")
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // What a command made unreadable stays until the next run of this worker clears it.
        drop(remove(&self.directory));
    }
}

/// Whether a directory, and no link to one, can be read and has this many entries.
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

/// Removes a directory, also one that a command has locked: caches of packages are often not writable.
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
        // A link to an empty directory is no directory of its own.
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
