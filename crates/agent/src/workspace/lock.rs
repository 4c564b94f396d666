//! The lock of a workspace: one process at a time works on it.
//!
//! A process forked while the lock is held shares it, so fork keepers before.

use std::path::PathBuf;

use retake_runner::file_lock::{FileLock, LockError};

use super::Workspace;

#[derive(Debug, thiserror::Error)]
pub enum WorkspaceLockError {
    #[error("Workspace {name} is in use by {holder}")]
    Held { name: String, holder: String },
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: std::io::Error },
}

/// Held until dropped, or until the process dies.
#[derive(Debug)]
pub struct WorkspaceLock(FileLock);

impl WorkspaceLock {
    /// `command` is the holder's action, such as `run`.
    pub fn acquire(workspace: &Workspace, command: &str) -> Result<Self, WorkspaceLockError> {
        let purpose = format!("retake agent {command} {}", workspace.name());
        workspace.make_loop_state_dir().map_err(|error| WorkspaceLockError::Io {
            path: workspace.loop_state_dir().to_owned(),
            error,
        })?;
        match FileLock::acquire(&path(workspace), &purpose) {
            Ok(lock) => Ok(Self(lock)),
            Err(LockError::Held { holder }) => {
                Err(WorkspaceLockError::Held { name: workspace.name().to_string(), holder })
            }
            Err(LockError::Io { path, error }) => Err(WorkspaceLockError::Io { path, error }),
        }
    }

    /// The current holder's description of itself.
    pub fn holder(workspace: &Workspace) -> Option<String> {
        FileLock::holder(&path(workspace))
    }

    /// A previous holder that died with the lock.
    pub fn abandoned(&self) -> Option<&str> {
        self.0.abandoned()
    }
}

fn path(workspace: &Workspace) -> PathBuf {
    workspace.loop_state_dir().join("lock")
}
