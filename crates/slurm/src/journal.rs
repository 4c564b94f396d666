//! Which batches this record is waiting for, so that a submitter that died has a successor.
//!
//! One file for each, beside the record, made before anything else of the batch and removed when
//! its last result is recorded. The submitter holds a lock on it for as long as he lives.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_types::{Kind, LoopId};
use serde::{Deserialize, Serialize};

use super::Error;

/// What a file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub key: String,
    pub kind: Kind,
    /// The directory of the batch.
    pub dir: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
}

/// Whose results they are: the same question, asked again after its asker died, gets them. An entry
/// with a claim therefore outlives its batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// A hash of the question.
    pub topic: String,
    /// The loop that the runs are of.
    pub loop_id: LoopId,
}

/// For how long nobody need have asked again until an entry is forgotten.
const CLAIMED: Duration = Duration::from_secs(7 * 24 * 3600);

/// A batch that is ours to look after.
#[derive(Debug)]
pub struct Held {
    pub entry: Entry,
    path: PathBuf,
    /// The lock goes with it.
    file: File,
}

fn directory(store: &Path) -> PathBuf {
    store.join("batches")
}

impl Held {
    /// Begins a batch.
    pub fn begin(store: &Path, entry: Entry) -> Result<Self, Error> {
        let dir = directory(store);
        match fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::io("make", &dir)(error));
            }
            _ => {}
        }
        let path = dir.join(&entry.key);
        let failed = |error| Error::io("write", &path)(error);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        lock(&file).map_err(failed)?;
        let text = super::batch::json(&entry, &path)?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(failed)?;
        super::batch::sync(&dir).map_err(failed)?;
        Ok(Self { entry, path, file })
    }

    /// All results are recorded. Whoever asked for them may come back for a while.
    pub fn end_unless_claimed(self) -> Result<(), Error> {
        let old = || {
            let modified = self.file.metadata().and_then(|about| about.modified()).ok()?;
            Some(modified.elapsed().is_ok_and(|age| age > CLAIMED))
        };
        if self.entry.claim.is_some() && !old().unwrap_or(false) {
            return Ok(());
        }
        self.end()
    }

    /// All results are recorded: nobody needs to come back.
    pub fn end(self) -> Result<(), Error> {
        fs::remove_file(&self.path).map_err(Error::io("remove", &self.path))
    }
}

/// The batches whose submitter is gone; each is ours from now on.
pub fn orphans(store: &Path) -> Result<Vec<Held>, Error> {
    let dir = directory(store);
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("read", &dir)(error)),
    };
    let mut held = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::io("read", &dir))?.path();
        held.extend(adopt(&path)?);
    }
    held.sort_by(|a, b| a.entry.key.cmp(&b.entry.key));
    Ok(held)
}

fn adopt(path: &Path) -> Result<Option<Held>, Error> {
    let failed = |error| Error::io("read", path)(error);
    let mut file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    match lock(&file) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(error) => return Err(failed(error)),
    }
    // Someone may have ended it between our opening and our locking.
    if file.metadata().map_err(failed)?.nlink() == 0 {
        return Ok(None);
    }
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).map_err(failed)?;
    let Ok(entry) = serde_json::from_str(&text) else {
        // Its submitter died while it wrote this, so before there was anything else.
        fs::remove_file(path).map_err(failed)?;
        return Ok(None);
    };
    Ok(Some(Held { entry, path: path.to_owned(), file }))
}

fn lock(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `file` is borrowed.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_one_keeper_at_a_time_and_a_successor_when_he_is_gone() {
        let store = tempfile::tempdir().unwrap();
        assert!(orphans(store.path()).unwrap().is_empty());
        let entry = Entry { key: "k1".into(), kind: Kind::Exec, dir: "/s/k1".into(), claim: None };
        let held = Held::begin(store.path(), entry.clone()).unwrap();
        assert!(orphans(store.path()).unwrap().is_empty());
        drop(held);
        let mut found = orphans(store.path()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].entry, entry);
        assert!(orphans(store.path()).unwrap().is_empty());
        found.remove(0).end().unwrap();
        assert!(orphans(store.path()).unwrap().is_empty());
    }

    #[test]
    fn what_is_claimed_stays_until_nobody_asked_for_long() {
        let store = tempfile::tempdir().unwrap();
        let claim = Claim { topic: "t".into(), loop_id: LoopId::new() };
        let entry = Entry { key: "k".into(), kind: Kind::Crash, dir: "/s/k".into(), claim: None };
        let entry = Entry { claim: Some(claim), ..entry };
        Held::begin(store.path(), entry.clone()).unwrap().end_unless_claimed().unwrap();
        let found = orphans(store.path()).unwrap().remove(0);
        assert_eq!(found.entry, entry);
        let long_ago = std::time::SystemTime::now() - CLAIMED - Duration::from_secs(60);
        found.file.set_modified(long_ago).unwrap();
        found.end_unless_claimed().unwrap();
        assert!(orphans(store.path()).unwrap().is_empty());
    }

    #[test]
    fn a_batch_that_was_not_even_begun_is_forgotten() {
        let store = tempfile::tempdir().unwrap();
        fs::create_dir(store.path().join("batches")).unwrap();
        fs::write(store.path().join("batches/k"), "{\"key\":").unwrap();
        assert!(orphans(store.path()).unwrap().is_empty());
        assert!(!store.path().join("batches/k").exists());
    }
}
