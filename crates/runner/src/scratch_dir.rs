//! The directory of its own that a run which measures gets: an empty one for its files, and a name
//! for its metrics.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

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
        let unused = std::fs::symlink_metadata(self.tmp()).is_ok_and(|meta| meta.is_dir())
            && std::fs::read_dir(self.tmp()).is_ok_and(|mut entries| entries.next().is_none())
            && std::fs::read_dir(&self.directory).is_ok_and(|entries| entries.count() == 1);
        if unused {
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
        drop(scratch);
        assert!(!parent.path().join("w0").exists());
    }
}
