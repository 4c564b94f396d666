//! Scratch directories that are removed with their owner, in memory if possible: the models decide
//! what is durable, so there is no need to wait for a disk.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A file system in memory that every user may use.
const MEMORY: &str = "/dev/shm";

/// Younger ones may be about to be locked.
const MIN_AGE: Duration = Duration::from_secs(60);

/// A private directory, removed when dropped. A directory that a killed process left is removed by
/// the next process that creates one beside it, because memory is not freed by itself.
#[derive(Debug)]
pub struct ScratchDir {
    path: PathBuf,
    /// Locked as long as the owner lives, however it ends.
    _lock: Option<File>,
}

impl ScratchDir {
    /// In `parent`, by default in memory, otherwise among the temporary files.
    pub fn new(parent: Option<&Path>) -> io::Result<Self> {
        match parent {
            Some(parent) => Self::inside(parent),
            None => {
                Self::inside(Path::new(MEMORY)).or_else(|_| Self::inside(&std::env::temp_dir()))
            }
        }
    }

    fn inside(parent: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let parent = parent.canonicalize()?;
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("first-{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    let lock = File::open(&path)?;
                    lock.try_lock().map_err(io::Error::from)?;
                    if number == 0 {
                        remove_abandoned(&parent);
                    }
                    return Ok(Self { path, _lock: Some(lock) });
                }
                // Left by an earlier process with the same pid.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes ownership of a directory that is about to be created.
    pub fn adopt(path: PathBuf) -> Self {
        Self { path, _lock: None }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // An error cannot be returned from here; the rest is among the temporary files.
        _ = remove_tree(&self.path);
    }
}

/// Removes directories whose owner is gone.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(|name| {
            let numbers = name.strip_prefix("first-").and_then(|rest| rest.split_once('-'));
            numbers.is_some_and(|(pid, number)| {
                pid.parse::<u32>().is_ok() && number.parse::<u64>().is_ok()
            })
        });
        let old = entry.metadata().is_ok_and(|metadata| {
            let age = metadata.modified().ok().and_then(|time| time.elapsed().ok());
            metadata.is_dir() && age.is_some_and(|age| age >= MIN_AGE)
        });
        if ours
            && old
            && File::open(entry.path()).is_ok_and(|directory| directory.try_lock().is_ok())
        {
            // Another user's, or just removed by another process: not worth a report.
            _ = remove_tree(&entry.path());
        }
    }
}

/// Empties a directory that only its owner uses.
pub fn empty_dir(path: &Path) -> io::Result<()> {
    remove_tree(path)?;
    fs::create_dir(path)
}

/// Removes the content of a directory, which itself must stay: it may be mounted somewhere.
pub fn clear_dir(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Removes a directory and its content, including read-only directories. A missing one is not an
/// error.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match ignore_missing(fs::remove_dir_all(path)) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            // The workload removed its own write permission.
            open_up(path)?;
            ignore_missing(fs::remove_dir_all(path))
        }
        result => result,
    }
}

fn open_up(directory: &Path) -> io::Result<()> {
    fs::set_permissions(directory, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_up(&entry.path())?;
        }
    }
    Ok(())
}

/// The result of a removal: something missing is not an error.
pub fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn only_unlocked_scratch_directories_are_swept() {
        let parent = tempfile::tempdir().unwrap();
        let long_ago = SystemTime::now() - 2 * MIN_AGE;
        let made = |name: &str, time: SystemTime| {
            let path = parent.path().join(name);
            fs::create_dir_all(path.join("inner")).unwrap();
            let directory = File::open(&path).unwrap();
            directory.set_modified(time).unwrap();
            (path, directory)
        };
        let (left, lock) = made("first-1-0", long_ago);
        drop(lock);
        let (held, lock) = made("first-2-0", long_ago);
        lock.try_lock().unwrap();
        let (young, _) = made("first-3-0", SystemTime::now());
        let (foreign, _) = made("first-class", long_ago);
        remove_abandoned(parent.path());
        let there = [&left, &held, &young, &foreign].map(|path| path.exists());
        assert_eq!(there, [false, true, true, true]);
    }

    #[test]
    fn inaccessible_directories_are_made_accessible_for_removal() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b/c")).unwrap();
        for dir in ["a/b/c", "a/b"] {
            fs::set_permissions(root.path().join(dir), Permissions::from_mode(0o000)).unwrap();
        }
        open_up(&root.path().join("a")).unwrap();
        let mode = fs::metadata(root.path().join("a/b/c")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}
