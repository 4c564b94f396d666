//! Files that Git LFS has not fetched: a pointer of three lines is in their place.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::{Git, GitError};

const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\n";

impl Git<'_> {
    /// Files of a worktree whose content is a pointer instead of the large file.
    pub fn lfs_pointers(&mut self, worktree: &Path) -> Result<Vec<String>, GitError> {
        let list = ["ls-files", "-z", "--", ":(attr:filter=lfs)"];
        let listed = self.tell_in(worktree, &list)?;
        let is_pointer = |name: &&str| {
            let mut start = [0; POINTER.len()];
            // A name that is not UTF-8 is quoted in the list, and a missing file is not a pointer.
            let read = File::open(worktree.join(name)).and_then(|mut f| f.read_exact(&mut start));
            read.is_ok() && start == POINTER
        };
        let names = listed.split('\0').filter(|name| !name.is_empty());
        Ok(names.filter(is_pointer).map(str::to_owned).collect())
    }
}
