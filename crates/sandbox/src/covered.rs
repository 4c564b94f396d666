//! Checks whether the covers of protected files are still in place.
//!
//! A cover is a mount, and the kernel removes it when a process outside replaces or removes the
//! file below it: the new file is then as writable as the directory. Check before reusing a
//! confined process for further commands.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use retake_types::PathAccess;

use crate::policy::Policy;

/// The covered files inside writable directories, with their identities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Covered(Vec<(PathBuf, Option<(u64, u64)>)>);

impl Covered {
    /// What a policy covers at present.
    pub fn by(policy: &Policy) -> Self {
        let writable = |path: &Path| policy.access(path) == PathAccess::Writable;
        let covered = policy
            .rules
            .iter()
            .map(|rule| rule.path.as_path())
            .filter(|path| !writable(path) && path.ancestors().skip(1).any(writable));
        // Several rules may concern one path; check each path once, because this runs before each
        // run.
        let covered: BTreeSet<&Path> = covered.collect();
        let known = covered.into_iter().map(|path| (path.to_owned(), identity(path)));
        Self(known.collect())
    }

    pub fn is_unchanged(&self) -> bool {
        self.0.iter().all(|(path, before)| identity(path) == *before)
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|meta| (meta.dev(), meta.ino()))
}
