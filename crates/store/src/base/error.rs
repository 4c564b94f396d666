//! Errors of the record: what happened, and to which path. The front end adds what to do about it.
//!
//! SQLite's codes are classified here, so that no caller examines a database error.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_types::{LoopId, RunId, Stream, text};

use super::output_damage::OutputDamage;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no record at {path}")]
    NoStore { path: PathBuf },

    #[error(
        "there is no directory for the record: neither $XDG_DATA_HOME nor $HOME is an absolute path, and the password database has no home for you"
    )]
    NoLocation,

    #[error("the store {path} is in use ({running} running, {remote} on other machines)")]
    InUse { path: PathBuf, running: usize, remote: usize },

    #[error("{path} exists and is not empty; nothing was moved")]
    Occupied { path: PathBuf },

    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },

    #[error("the store {path} cannot be written ({source})")]
    NotWritable { path: PathBuf, source: io::Error },

    #[error(
        "the store {path} was removed while it was in use, with what was recorded before; the next command creates a new one"
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

    #[error("there is no room for a new database beside {path}: it needs {needed} bytes")]
    NoRoomToRepair { path: PathBuf, needed: u64 },

    #[error("{path} would exceed the file size limit (ulimit -f)")]
    FileSizeLimit { path: PathBuf },

    #[error(
        "another program kept {path} locked for {}s; find it with `fuser {path}`, and stop it if it hangs",
        waited.as_secs()
    )]
    Busy { path: PathBuf, waited: Duration },

    #[error("cannot {action} in {path}: {detail}")]
    Sqlite { action: &'static str, path: PathBuf, detail: String },

    #[error("ledger entry {seq} cannot be read: {detail}")]
    BadEntry { seq: i64, detail: String },

    #[error("no run matches `{text}`")]
    NotFound { text: String },

    #[error(
        "`{text}` matches {}; give more digits, or one of: {}",
        text::count(candidates.len() as u64, "run"),
        joined(candidates)
    )]
    Ambiguous { text: String, candidates: Vec<RunId> },

    #[error("run {id} is already in the record; every run needs its own id")]
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
        "the arrival order of the output of run {id} is not the recorded one; read stdout and stderr separately"
    )]
    OrderAltered { id: RunId },

    #[error("line {line} of the import is not usable: {detail}; nothing of that run was imported")]
    BadImport { line: u64, detail: String },

    #[error("cannot {action} in the shared record: {detail}")]
    Shared { action: &'static str, detail: String },

    #[error("there is no project `{name}`")]
    NoProject { name: String },

    #[error("the redaction pattern `{name}` is not usable: {detail}")]
    BadPattern { name: String, detail: String },
}

fn joined(candidates: &[RunId]) -> String {
    let shown: Vec<String> = candidates.iter().take(10).map(RunId::to_string).collect();
    let rest = candidates.len().saturating_sub(shown.len());
    if rest == 0 { shown.join(", ") } else { format!("{} and {rest} more", shown.join(", ")) }
}

/// SQLite's message, without the failed statement.
fn short(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        other => other.to_string(),
    }
}

/// Whether one of the database's files has nearly reached the process's file size limit.
fn no_file_may_grow(database: &Path) -> bool {
    /// SQLite extends the index of the WAL in these steps.
    const STEP: u64 = 32 * 1024;
    let Some(limit) = file_size_limit() else { return false };
    let length = |suffix: &str| {
        let mut name = database.as_os_str().to_owned();
        name.push(suffix);
        Path::new(&name).metadata().map_or(0, |file| file.len()) // none: it begins empty
    };
    ["", "-wal", "-shm"].into_iter().any(|suffix| length(suffix) + STEP >= limit)
}

/// The process's file size limit, if any.
pub(crate) fn file_size_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: fills a structure of our own.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    Some(limit.rlim_cur).filter(|&limit| limit != libc::RLIM_INFINITY)
}

fn directory_of(database: &Path) -> &Path {
    database.parent().unwrap_or(Path::new("."))
}

fn no_room_beside(database: &Path) -> bool {
    let directory = directory_of(database);
    super::dir::free_bytes(directory).is_ok_and(|free| free < 64 * 1024)
        || super::dir::is_full(directory)
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        if matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) {
            return Self::DiskFull { path: path.to_owned() };
        }
        if source.raw_os_error() == Some(libc::EFBIG) {
            return Self::FileSizeLimit { path: path.to_owned() };
        }
        Self::Io { action, path: path.to_owned(), source }
    }

    pub(crate) fn sqlite(action: &'static str, path: &Path, source: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode;
        let detail = short(&source);
        let damaged = matches!(
            &source,
            // A statement that does not fit the tables, or a value that retake never writes:
            // migrations are transactional, so the schema or the row was changed afterwards.
            rusqlite::Error::SqlInputError { .. }
                | rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
                | rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::InvalidColumnName(_)
                | rusqlite::Error::Utf8Error(..)
        );
        let owned = path.to_owned();
        match source.sqlite_error_code() {
            _ if damaged => Self::Corrupt { path: owned, detail },
            Some(ErrorCode::DiskFull) => Self::DiskFull { path: owned },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::Unknown) => {
                Self::Corrupt { path: owned, detail }
            }
            Some(ErrorCode::NotADatabase) => {
                Self::Corrupt { path: owned, detail: "the file is not a database".to_owned() }
            }
            Some(ErrorCode::CannotOpen) if super::dir::is_full(directory_of(path)) => {
                Self::DiskFull { path: owned }
            }
            Some(ErrorCode::CannotOpen) => {
                Self::NotWritable { path: owned, source: io::Error::other(detail) }
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                Self::Busy { path: owned, waited: super::write_lock::PATIENCE }
            }
            Some(ErrorCode::ReadOnly) => Self::NotWritable {
                path: owned,
                source: io::Error::from(io::ErrorKind::PermissionDenied),
            },
            // SQLite does not report why a file could not grow.
            Some(ErrorCode::SystemIoFailure) if no_file_may_grow(path) => {
                Self::FileSizeLimit { path: owned }
            }
            Some(ErrorCode::SystemIoFailure) if no_room_beside(path) => {
                Self::DiskFull { path: owned }
            }
            _ => Self::Sqlite { action, path: owned, detail },
        }
    }

    /// A failure to read the output of a run. Errors of a reader contain one of these.
    pub fn reading(id: RunId, error: io::Error) -> Self {
        error.downcast().unwrap_or_else(|source| Self::Reading { id, source })
    }

    /// Whether the record itself is damaged, as opposed to unreachable or misused.
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
