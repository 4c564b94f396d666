//! Paths without `.`, `..` and symbolic links.

use std::path::{Component, Path, PathBuf};

/// A path without symbolic links; if it does not exist, at least without `..`.
pub(super) fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| without_dots(path))
}

/// A path without `.` and `..`, without access to the file system.
pub(super) fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = plain.pop(),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}
