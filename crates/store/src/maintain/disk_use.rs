//! How much disk space the record uses. Files that appear or vanish during the count are not an
//! error.

use std::path::Path;

use crate::Store;

/// Bytes on disk by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// The database with its log.
    pub database: u64,
    /// Output of current runs, and large output that is not compressed yet.
    pub spool: u64,
    /// Compressed output.
    pub output: u64,
}

impl DiskUse {
    pub fn total(&self) -> u64 {
        self.database + self.spool + self.output
    }
}

impl Store {
    pub fn disk_use(&self) -> DiskUse {
        let length = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        DiskUse {
            database: length(self.dir.database()) + length(&self.dir.wal()),
            spool: below(&self.dir.spool_dir(), 0),
            output: below(&self.dir.output_dir(), 1),
        }
    }
}

/// Bytes of the files in a directory, down to `depth` levels below it.
fn below(dir: &Path, depth: u8) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_file() => metadata.len(),
        Ok(metadata) if metadata.is_dir() && depth > 0 => below(&entry.path(), depth - 1),
        _ => 0,
    };
    entries.flatten().map(of).sum()
}
