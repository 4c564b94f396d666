//! Finds set-user-ID and set-group-ID files at any place and under any name, also in directories
//! that the other search skips.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use retake_types::LeftFileKind;

use super::{Findings, HostFiles};

/// Maximum directory entries to examine.
const MOST_ENTRIES: usize = 200_000;
/// The bits for the owner and the group.
pub(super) const SET_ID: u32 = 0o6000;

/// Searches the whole project. Returns whether the search was complete.
pub(super) fn search(host: &HostFiles, found: &mut Findings) -> bool {
    let mut waiting: Vec<PathBuf> = vec![host.root.clone()];
    waiting.extend(host.git_dirs().filter(|dir| !dir.starts_with(&host.root)).map(PathBuf::from));
    let (mut left, mut complete) = (MOST_ENTRIES, true);
    while let Some(dir) = waiting.pop() {
        let entries = match std::fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) => {
                // A directory closed to its owner may be open to others.
                complete &= error.kind() == io::ErrorKind::NotFound;
                continue;
            }
        };
        for entry in entries.flatten() {
            if left == 0 {
                return false;
            }
            left -= 1;
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() {
                waiting.push(entry.path());
            } else if meta.is_file() && meta.mode() & SET_ID != 0 && host.is_new(&meta) {
                // Directories use the bit to pass on their group.
                found.add(LeftFileKind::SetIdFile, &entry.path(), Vec::new());
            }
        }
    }
    complete
}
