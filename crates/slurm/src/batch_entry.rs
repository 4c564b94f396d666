//! The batches that this record is waiting for, so that another process can collect the results if
//! the submitter dies.
//!
//! One file for each, beside the record, created before anything else of the batch and removed after
//! its last result is recorded. The submitter holds a lock on it as long as it lives.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_runner::loop_driver::remote::Question;
use retake_types::{Kind, LoopId, RunId};
use serde::{Deserialize, Serialize};

use crate::batch_dir;
use crate::error::Error;

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BatchEntry {
    pub key: String,
    pub kind: Kind,
    /// The directory of the batch.
    pub dir: PathBuf,
    /// The id of the shared directory that contains it; entries of earlier releases have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<String>,
    /// The run of each cell; entries of earlier releases have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunId>,
    /// An entry with a question outlives its batch.
    #[serde(rename = "claim", default, skip_serializing_if = "Option::is_none")]
    pub question: Option<BatchQuestion>,
}

/// The question that a batch's runs answer: if the submitter dies, a process that asks the same question
/// gets the results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BatchQuestion {
    /// Of everything that determines the answers.
    #[serde(rename = "topic")]
    pub hash: String,
    /// The loop that the runs belong to.
    pub loop_id: LoopId,
}

impl From<Question> for BatchQuestion {
    fn from(question: Question) -> Self {
        Self { hash: question.hash, loop_id: question.loop_id }
    }
}

/// How long the results of a question can be asked for again.
const QUESTION_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// A batch that only this process takes care of.
#[derive(Debug)]
pub(crate) struct OwnedBatch {
    pub entry: BatchEntry,
    path: PathBuf,
    /// Holds the lock.
    file: File,
}

fn directory(store: &Path) -> PathBuf {
    store.join("batches")
}

impl OwnedBatch {
    /// Creates the entry of a new batch.
    pub(crate) fn begin(store: &Path, entry: BatchEntry) -> Result<Self, Error> {
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
        file.try_lock().map_err(|error| failed(error.into()))?;
        let text = batch_dir::to_json(&entry, &path)?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(failed)?;
        batch_dir::sync(&dir).map_err(failed)?;
        Ok(Self { entry, path, file })
    }

    /// All results are recorded. An entry with a question stays for a while, so that it can be asked again.
    pub(crate) fn release(self) -> Result<(), Error> {
        let old = || {
            let modified = self.file.metadata().and_then(|about| about.modified()).ok()?;
            Some(modified.elapsed().is_ok_and(|age| age > QUESTION_KEPT))
        };
        if self.entry.question.is_some() && !old().unwrap_or(false) {
            return Ok(());
        }
        self.remove()
    }

    /// All results are recorded: removes the entry.
    pub(crate) fn remove(self) -> Result<(), Error> {
        fs::remove_file(&self.path).map_err(Error::io("remove", &self.path))
    }
}

/// Takes over the batches whose submitter is gone.
pub(crate) fn take_abandoned(store: &Path) -> Result<Vec<OwnedBatch>, Error> {
    let dir = directory(store);
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("read", &dir)(error)),
    };
    let mut owned = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::io("read", &dir))?.path();
        owned.extend(adopt(&path)?);
    }
    owned.sort_by(|a, b| a.entry.key.cmp(&b.entry.key));
    Ok(owned)
}

/// The entries of all batches, including those with a living submitter. A file that is just being
/// written is skipped: nothing of that batch is in the record yet.
pub(crate) fn all(store: &Path) -> Result<Vec<BatchEntry>, Error> {
    let dir = directory(store);
    let files = match fs::read_dir(&dir) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("read", &dir)(error)),
    };
    let mut entries = Vec::new();
    for file in files {
        let path = file.map_err(Error::io("read", &dir))?.path();
        match fs::read_to_string(&path) {
            Ok(text) => entries.extend(serde_json::from_str::<BatchEntry>(&text).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("read", &path)(error)),
        }
    }
    Ok(entries)
}

fn adopt(path: &Path) -> Result<Option<OwnedBatch>, Error> {
    let failed = |error| Error::io("read", path)(error);
    let mut file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    // It may have been removed between opening and locking.
    if file.metadata().map_err(failed)?.nlink() == 0 {
        return Ok(None);
    }
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).map_err(failed)?;
    let Ok(entry) = serde_json::from_str(&text) else {
        // Its submitter died while writing it, before it created anything else.
        fs::remove_file(path).map_err(failed)?;
        return Ok(None);
    };
    Ok(Some(OwnedBatch { entry, path: path.to_owned(), file }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_one_owner_at_a_time_and_another_when_it_is_gone() {
        let store = tempfile::tempdir().unwrap();
        assert!(take_abandoned(store.path()).unwrap().is_empty());
        let entry = BatchEntry {
            key: "k1".into(),
            kind: Kind::Exec,
            dir: "/s/k1".into(),
            shared: Some("s".into()),
            runs: vec![RunId::new(), RunId::new()],
            question: None,
        };
        let held = OwnedBatch::begin(store.path(), entry.clone()).unwrap();
        assert!(take_abandoned(store.path()).unwrap().is_empty());
        assert_eq!(all(store.path()).unwrap(), std::slice::from_ref(&entry));
        drop(held);
        let mut found = take_abandoned(store.path()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].entry, entry);
        assert!(take_abandoned(store.path()).unwrap().is_empty());
        found.remove(0).remove().unwrap();
        assert!(take_abandoned(store.path()).unwrap().is_empty());
    }

    #[test]
    fn a_batch_entry_with_a_question_is_kept_for_a_week() {
        let store = tempfile::tempdir().unwrap();
        let question = BatchQuestion { hash: "t".into(), loop_id: LoopId::new() };
        let entry = BatchEntry {
            key: "k".into(),
            kind: Kind::Crash,
            dir: "/s/k".into(),
            shared: None,
            runs: Vec::new(),
            question: Some(question),
        };
        OwnedBatch::begin(store.path(), entry.clone()).unwrap().release().unwrap();
        let found = take_abandoned(store.path()).unwrap().remove(0);
        assert_eq!(found.entry, entry);
        let long_ago = std::time::SystemTime::now() - QUESTION_KEPT - Duration::from_secs(60);
        found.file.set_modified(long_ago).unwrap();
        found.release().unwrap();
        assert!(take_abandoned(store.path()).unwrap().is_empty());
    }

    #[test]
    fn the_names_in_the_file_stay() {
        let loop_id = LoopId::new();
        let text = format!(
            r#"{{"key":"k","kind":"crash","dir":"/s/k","claim":{{"topic":"t","loopId":"{loop_id}"}}}}"#
        );
        let entry: BatchEntry = serde_json::from_str(&text).unwrap();
        assert_eq!(entry.question, Some(BatchQuestion { hash: "t".into(), loop_id }));
        assert_eq!(serde_json::to_string(&entry).unwrap(), text);
    }

    #[test]
    fn a_batch_that_was_not_even_begun_is_forgotten() {
        let store = tempfile::tempdir().unwrap();
        fs::create_dir(store.path().join("batches")).unwrap();
        fs::write(store.path().join("batches/k"), "{\"key\":").unwrap();
        assert!(take_abandoned(store.path()).unwrap().is_empty());
        assert!(!store.path().join("batches/k").exists());
    }
}
