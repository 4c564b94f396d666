//! Whether the task is complete, as reported in this run and not an earlier one.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Status, StatusError, Todo};
use crate::files;

/// More than a list of items needs.
const LARGEST_TODO: u64 = 4 << 20;

/// The state of the status files at some moment, to detect later writes. Writing the same content
/// again counts as a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    status: Option<Mark>,
    todo: Option<Mark>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Mark {
    fn of(path: &Path) -> Option<Self> {
        let meta = std::fs::metadata(path).ok()?;
        Some(Self {
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }
}

/// The files in which an agent reports about its task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusPaths {
    pub status: PathBuf,
    pub todo: PathBuf,
}

impl Marks {
    pub fn take(paths: &StatusPaths) -> Self {
        Self { status: Mark::of(&paths.status), todo: Mark::of(&paths.todo) }
    }
}

/// The source of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Status,
    /// The status is missing or invalid, so the check boxes decide.
    Todo,
    Nothing,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    pub source: Source,
    /// Complete, reported after the marks were taken.
    pub complete: bool,
    /// Complete, but reported earlier, so it does not count.
    pub stale: bool,
    pub remaining: Option<u64>,
    /// If it was written after the marks were taken.
    pub worked: Option<bool>,
    pub status: Option<Status>,
    /// The error in the status file, for the screen and the next prompt.
    pub invalid: Option<String>,
}

/// The status files as read at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusFiles {
    marks: Marks,
    status: Result<Status, StatusError>,
    /// Read only without a valid status.
    todo: Option<Todo>,
}

impl StatusFiles {
    /// Reads the status, and the check boxes if they may replace it.
    pub fn read(paths: &StatusPaths, todo_fallback: bool) -> Self {
        // Before reading, so that a concurrent write counts as a later one.
        let marks = Marks::take(paths);
        let status = Status::read(&paths.status);
        let wanted = todo_fallback && status.is_err();
        let content = if wanted { files::read(&paths.todo, LARGEST_TODO).ok() } else { None };
        let todo = content.map(|content| Todo::parse(&String::from_utf8_lossy(&content)));
        Self { marks, status, todo: todo.filter(|todo| *todo != Todo::default()) }
    }

    /// The agent's summary of its work, if written after the marks were taken.
    pub fn summary(&self, since: Marks) -> Option<&str> {
        let status = self.status.as_ref().ok()?;
        status.summary.as_deref().filter(|_| self.marks.status != since.status)
    }

    /// The result of the files after an iteration: completion counts if reported since the loop
    /// began, everything else only if written in the iteration.
    pub fn after_iteration(&self, since_loop: Marks, since_iteration: Marks) -> Completion {
        let mut found = self.completion(since_loop);
        let fresh = match found.source {
            Source::Status => self.marks.status != since_iteration.status,
            Source::Todo => self.marks.todo != since_iteration.todo,
            Source::Nothing => false,
        };
        found.worked = self.worked(since_iteration);
        if !fresh {
            (found.remaining, found.status) = (None, None);
        }
        found
    }

    /// What the agent reports about its own work, if written after the marks were taken.
    pub fn worked(&self, since: Marks) -> Option<bool> {
        let status = self.status.as_ref().ok()?;
        status.worked.filter(|_| self.marks.status != since.status)
    }

    /// Whether the task is complete; `since` was taken when the run began.
    pub fn completion(&self, since: Marks) -> Completion {
        let mut found = Completion {
            source: Source::Nothing,
            complete: false,
            stale: false,
            remaining: None,
            worked: self.worked(since),
            status: None,
            invalid: None,
        };
        match &self.status {
            Ok(status) => {
                let fresh = self.marks.status != since.status;
                found.source = Source::Status;
                (found.complete, found.stale) =
                    (status.complete && fresh, status.complete && !fresh);
                found.remaining = status.remaining();
                found.status = Some(status.clone());
                return found;
            }
            Err(StatusError::Missing) => {}
            Err(error @ StatusError::Invalid { .. }) => found.invalid = Some(error.to_string()),
        }
        if let Some(todo) = self.todo {
            let fresh = self.marks.todo != since.todo;
            found.source = Source::Todo;
            found.complete = todo.is_complete() && fresh;
            found.stale = todo.is_complete() && !fresh;
            found.remaining = Some(todo.open);
        }
        found
    }
}
