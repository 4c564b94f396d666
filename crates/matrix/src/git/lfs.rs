//! Files that Git LFS has not fetched: a pointer of three lines stands in their place.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::{Git, GitError};

const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\n";

impl Git<'_> {
    /// Files of a worktree that should be large ones and are their pointers.
    pub fn lfs_pointers(&mut self, worktree: &Path) -> Result<Vec<String>, GitError> {
        let list = ["ls-files", "-z", "--", ":(attr:filter=lfs)"];
        let listed = self.tell_in(worktree, &list)?;
        let is_pointer = |name: &&str| {
            let mut start = [0; POINTER.len()];
            // A name that is no text is not listed as it is, and one that is gone is no pointer.
            let read = File::open(worktree.join(name)).and_then(|mut f| f.read_exact(&mut start));
            read.is_ok() && start == POINTER
        };
        let names = listed.split('\0').filter(|name| !name.is_empty());
        Ok(names.filter(is_pointer).map(str::to_owned).collect())
    }
}
