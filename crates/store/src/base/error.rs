//! What can go wrong with the record: what happened, and to which path. What to do next is for the
//! front end to say.
//!
//! SQLite's codes are sorted here once, so that no caller ever looks inside a database error.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_types::{LoopId, RunId, Stream};

use super::output_damage::OutputDamage;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no record at {path}")]
    NoStore { path: PathBuf },

    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },

    #[error("the store {path} cannot be written ({source})")]
    NotWritable { path: PathBuf, source: io::Error },

    #[error(
        "the store {path} vanished while it was in use; what was recorded before went with it, the next command makes a new one"
    )]
    Vanished { path: PathBuf },

    #[error("the store {path} was opened for reading only, so it cannot {action}")]
    ReadOnly { path: PathBuf, action: &'static str },

    #[error("{path} belongs to user id {owner}, not to you ({user})")]
    ForeignOwner { path: PathBuf, owner: u32, user: u32 },

    #[error("{path} is on a network file system ({kind}), where SQLite's WAL loses data")]
    NetworkFilesystem { path: PathBuf, kind: &'static str },

    #[error(
        "{path} was written by a newer retake (schema {found}, this one knows {known}); upgrade retake, nothing was changed"
    )]
    Newer { path: PathBuf, found: i64, known: i64 },

    #[error("{path} is not a retake record: {detail}; nothing was changed")]
    NotARecord { path: PathBuf, detail: String },

    #[error("{path} is damaged ({detail}); nothing was overwritten")]
    Corrupt { path: PathBuf, detail: String },

    #[error("the disk of {path} is full")]
    DiskFull { path: PathBuf },

    #[error(
        "another program kept {path} locked for {}s; find it with `fuser {path}` and end it if it hangs",
        waited.as_secs()
    )]
    Busy { path: PathBuf, waited: Duration },

    #[error("cannot {action} in {path}: {source}")]
    Sqlite { action: &'static str, path: PathBuf, source: rusqlite::Error },

    #[error("ledger entry {seq} cannot be read: {detail}")]
    BadEntry { seq: i64, detail: String },

    #[error("no run matches `{text}`")]
    NotFound { text: String },

    #[error(
        "`{text}` matches {} runs; give more digits, or one of: {}",
        candidates.len(),
        joined(candidates)
    )]
    Ambiguous { text: String, candidates: Vec<RunId> },

    #[error("run {id} is already in the record; every run needs an id of its own")]
    Duplicate { id: RunId },

    #[error("loop {id} is not in the record")]
    NoLoop { id: LoopId },

    #[error("loop {id} is still running")]
    LoopRunning { id: LoopId },

    #[error("loop {id} has ended")]
    LoopFinished { id: LoopId },

    #[error("an entry of loop {id} cannot be written as JSON: {source}")]
    BadLoopEntry { id: LoopId, source: serde_json::Error },

    #[error("run {id} is still running; end it first, then delete it")]
    StillRunning { id: RunId },

    #[error("the {} of run {id} {damage}", stream.as_str())]
    OutputDamaged { id: RunId, stream: Stream, damage: OutputDamage },

    #[error("the output of run {id} cannot be read: {source}")]
    Reading { id: RunId, source: io::Error },

    #[error(
        "the order in which the output of run {id} arrived is not the recorded one; stdout and stderr can be read by themselves"
    )]
    OrderAltered { id: RunId },

    #[error("line {line} of the import is not usable: {detail}; nothing of that run was imported")]
    BadImport { line: u64, detail: String },

    #[error("the redaction pattern `{name}` is not usable: {detail}")]
    BadPattern { name: String, detail: String },
}

fn joined(candidates: &[RunId]) -> String {
    let shown: Vec<String> = candidates.iter().take(10).map(RunId::to_string).collect();
    let rest = candidates.len().saturating_sub(shown.len());
    if rest == 0 { shown.join(", ") } else { format!("{} and {rest} more", shown.join(", ")) }
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        if matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) {
            return Self::DiskFull { path: path.to_owned() };
        }
        Self::Io { action, path: path.to_owned(), source }
    }

    pub(crate) fn sqlite(action: &'static str, path: &Path, source: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode;
        let path = path.to_owned();
        match source.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::DiskFull { path },
            Some(ErrorCode::DatabaseCorrupt) => Self::Corrupt { path, detail: source.to_string() },
            Some(ErrorCode::NotADatabase) => {
                Self::Corrupt { path, detail: "the file is not a database".to_owned() }
            }
            Some(ErrorCode::CannotOpen) => {
                Self::NotWritable { path, source: io::Error::other(source.to_string()) }
            }
            // Every migration is transactional, so a missing table was taken away later.
            _ if source.to_string().starts_with("no such ") => {
                Self::Corrupt { path, detail: source.to_string() }
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                Self::Busy { path, waited: super::write_lock::PATIENCE }
            }
            Some(ErrorCode::ReadOnly) => {
                Self::NotWritable { path, source: io::Error::from(io::ErrorKind::PermissionDenied) }
            }
            _ => Self::Sqlite { action, path, source },
        }
    }

    /// What reading the output of a run failed with. An error of a reader carries one of these.
    pub fn reading(id: RunId, error: io::Error) -> Self {
        error.downcast().unwrap_or_else(|source| Self::Reading { id, source })
    }

    /// Whether the record itself is damaged, as opposed to unreachable or badly asked.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Corrupt { .. }
                | Self::BadEntry { .. }
                | Self::OutputDamaged { .. }
                | Self::OrderAltered { .. }
                | Self::Reading { .. }
        )
    }
}
