//! Whether the directory of a batch is reachable, and what it means if not.
//!
//! A missing directory says nothing about the submission: a network file system can be
//! unavailable for a moment. Only if the shared directory itself is present, and is the same one, the batch
//! was certainly removed from it.

use std::fs;
use std::io;
use std::path::Path;

use retake_types::text;

use crate::batch_dir::BatchDir;
use crate::batch_entry::BatchEntry;
use crate::error::Unreachable;
use crate::shared_dir;

/// Whether a batch's directory exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchPresence {
    There,
    /// It may be reachable again later.
    NotReachable(Unreachable),
    /// It, or its manifest, was removed from the shared directory.
    Removed,
}

/// Checks a batch.
pub(crate) fn of(entry: &BatchEntry) -> BatchPresence {
    let not_reachable =
        |error: &io::Error| BatchPresence::NotReachable(Unreachable::System(text::plain(error)));
    match fs::metadata(BatchDir::at(&entry.dir).manifest()) {
        Ok(_) => return BatchPresence::There,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return not_reachable(&error),
    }
    let shared = entry.dir.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let found = match shared_dir::read_id(shared) {
        Ok(found) => found,
        Err(error) => return not_reachable(&error),
    };
    match (&entry.shared, found) {
        (Some(known), Some(found)) if *known == found => BatchPresence::Removed,
        (Some(_), Some(_)) => BatchPresence::NotReachable(Unreachable::OtherDirectory),
        (Some(_), None) => BatchPresence::NotReachable(Unreachable::NoSharedDir),
        (None, _) => BatchPresence::NotReachable(Unreachable::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retake_types::Kind;

    #[test]
    fn a_missing_batch_was_removed_only_if_its_shared_directory_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let shared = dir.path().join("shared");
        let batch = shared.join("batches/k");
        fs::create_dir_all(&batch).unwrap();
        fs::write(shared.join("id"), "one\n").unwrap();
        fs::write(batch.join("batch.json"), "{}").unwrap();
        let entry = BatchEntry {
            key: "k".into(),
            kind: Kind::Matrix,
            dir: batch.clone(),
            shared: Some("one".into()),
            runs: Vec::new(),
            question: None,
        };
        assert_eq!(of(&entry), BatchPresence::There);
        fs::remove_dir_all(&batch).unwrap();
        assert_eq!(of(&entry), BatchPresence::Removed);
        let old = BatchEntry { shared: None, ..entry.clone() };
        assert_eq!(of(&old), BatchPresence::NotReachable(Unreachable::Unknown));
        // An empty mount point with a new id.
        fs::write(shared.join("id"), "two").unwrap();
        assert_eq!(of(&entry), BatchPresence::NotReachable(Unreachable::OtherDirectory));
        fs::remove_dir_all(&shared).unwrap();
        assert_eq!(of(&entry), BatchPresence::NotReachable(Unreachable::NoSharedDir));
        fs::write(&shared, "a file").unwrap();
        assert!(matches!(of(&entry), BatchPresence::NotReachable(Unreachable::System(_))));
    }
}
