//! Finds the files that changed between two moments.
//!
//! A [`Tracker`] takes [`Snapshot`]s of a directory; two of them give [`Changes`]. Content decides:
//! a `touch` is not a change, an edit that keeps size and mtime is one. Between snapshots, also of
//! different processes, a cache of each file's stat and BLAKE3 hash saves reading: a file with the
//! same device, inode, size, mode, mtime and ctime has the same content, provided that its ctime
//! was safely before the last scan. ctime cannot be set, which leaves one exception: a store
//! through a shared memory mapping to a page that is already dirty changes no timestamp until the
//! page is written back. [`Tracker::exact`] hashes everything and finds that, too.
//!
//! Ignore files apply as in ripgrep, with or without git. Ignored files that git tracks are left
//! out: the index is not read.
//!
//! Never follows a symbolic link below the root, never opens anything but directories and regular
//! files, and never writes into the tree unless its cache is placed there.

mod cache_format;
mod changes;
mod directory_listing;
mod file_examiner;
mod ignore_files;
mod line_records;
mod line_store;
mod snapshot;
mod snapshot_cache;
mod syscalls;
mod tracker;
mod tracking_rules;
mod tree_scan;
mod work_queue;

use retake_types::text;
use std::io;
use std::path::PathBuf;

pub use changes::{Changes, Rename};
pub use snapshot::Snapshot;
pub use tracker::{Tracker, cache_name, clear_cache};
pub use tracking_rules::TrackingRules;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot track {path}: {source}")]
    Root { path: PathBuf, source: io::Error },

    #[error("the ignore pattern `{pattern}` is not valid: {source}")]
    Pattern { pattern: String, source: ignore::Error },

    #[error("{} too large together; use fewer", text::count(*count as u64, "ignore pattern"))]
    Patterns { count: usize },

    #[error("the scan of {path} was interrupted")]
    Stopped { path: PathBuf },

    #[error("cannot {action} the snapshot cache {path}: {source}")]
    Cache { action: &'static str, path: PathBuf, source: io::Error },

    #[error(
        "another program keeps the snapshot cache {path} locked; this snapshot was not kept, the next will take longer"
    )]
    Busy { path: PathBuf },

    #[error("cannot keep the lines of the files in {path}, so line counts are missing: {source}")]
    Lines { path: PathBuf, source: io::Error },
}
