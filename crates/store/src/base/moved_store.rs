//! The note at the former place of a moved store, which names the new place.
//!
//! Programs that know the old path, such as a server started before the move, follow the note
//! instead of creating a second record. It is ignored while the new place has no record, so it can
//! be written before the move is complete.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::dir::{StoreDir, sync_dir};
use crate::{Error, Result};

pub(crate) const MOVED_TO: &str = "moved-to";
/// How many moves in a row are followed.
const HOPS: usize = 8;

impl StoreDir {
    /// The store to use for a path, after following moves.
    pub(crate) fn followed(root: &Path) -> Self {
        let mut root = root.to_owned();
        for _ in 0..HOPS {
            match moved_to(&root) {
                Some(next) => root = next,
                None => break,
            }
        }
        Self::new(&root)
    }
}

/// The new place of this directory's record, if it was moved.
pub fn moved_to(root: &Path) -> Option<PathBuf> {
    let to = PathBuf::from(OsStr::from_bytes(&read_note(&root.join(MOVED_TO))?));
    (to != root && to.join("retake.db").exists()).then_some(to)
}

/// Reads a path from a file; `None` if the file does not exist.
pub(crate) fn read_note(path: &Path) -> Option<Vec<u8>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let mut text = Vec::new();
    if !file.metadata().ok()?.is_file() || file.take(1 << 14).read_to_end(&mut text).is_err() {
        return None;
    }
    text.pop_if(|last| *last == b'\n');
    (!text.is_empty()).then_some(text)
}

/// Writes a path to a file atomically, also across a power loss.
pub(crate) fn write_note(path: &Path, noted: &[u8]) -> Result<()> {
    let new = path.with_added_extension("new");
    let failed = |error: io::Error| Error::io("write", &new, error);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&new)
        .map_err(failed)?;
    file.write_all(noted).and_then(|()| file.write_all(b"\n")).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    fs::rename(&new, path).map_err(|error| Error::io("write", path, error))?;
    path.parent().map_or(Ok(()), sync_dir)
}
