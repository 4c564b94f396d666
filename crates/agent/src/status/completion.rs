//! Whether the task is complete, said in this run and not in an earlier one.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Status, StatusError, Todo};
use crate::files;
use crate::workspace::Workspace;

/// What the status files were at some moment, to tell later whether they were written since.
/// An agent that writes the same words again has written them again.
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

impl Marks {
    pub fn take(workspace: &Workspace) -> Self {
        Self { status: Mark::of(&workspace.status_path()), todo: Mark::of(&workspace.todo_path()) }
    }
}

/// Where the answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Status,
    /// The status is missing or invalid; check boxes decide.
    Todo,
    Nothing,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    pub source: Source,
    /// Complete, and said so since the marks were taken.
    pub complete: bool,
    /// Complete, but said so earlier: not to be believed.
    pub stale: bool,
    pub remaining: Option<u64>,
    /// As long as it was written since the marks were taken.
    pub worked: Option<bool>,
    pub status: Option<Status>,
    /// What is wrong with the status file, for the screen and the next prompt.
    pub invalid: Option<String>,
}

impl Completion {
    /// Looks at the files now. `since` was taken when the run began.
    pub fn find(workspace: &Workspace, since: Marks, todo_fallback: bool) -> Self {
        let now = Marks::take(workspace);
        let mut found = Self {
            source: Source::Nothing,
            complete: false,
            stale: false,
            remaining: None,
            worked: None,
            status: None,
            invalid: None,
        };
        match Status::read(&workspace.status_path()) {
            Ok(status) => {
                let fresh = now.status != since.status;
                found.source = Source::Status;
                (found.complete, found.stale) =
                    (status.complete && fresh, status.complete && !fresh);
                found.remaining = status.remaining();
                found.worked = status.worked.filter(|_| fresh);
                found.status = Some(status);
                return found;
            }
            Err(StatusError::Missing) => {}
            Err(error @ StatusError::Invalid { .. }) => found.invalid = Some(error.to_string()),
        }
        if !todo_fallback {
            return found;
        }
        if let Ok(content) = files::read(&workspace.todo_path(), 4 << 20) {
            let todo = Todo::parse(&String::from_utf8_lossy(&content));
            if todo != Todo::default() {
                let fresh = now.todo != since.todo;
                found.source = Source::Todo;
                found.complete = todo.is_complete() && fresh;
                found.stale = todo.is_complete() && !fresh;
                found.remaining = Some(todo.open);
            }
        }
        found
    }
}
