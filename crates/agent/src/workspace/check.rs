//! The conditions for running a loop, and the criteria that the agent judges.

use std::path::PathBuf;

use super::{Workspace, WorkspaceError};
use crate::status::{Status, StatusError};

/// One criterion of `validate` for instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Criterion {
    pub name: &'static str,
    pub asks: &'static str,
}

const fn criterion(name: &'static str, asks: &'static str) -> Criterion {
    Criterion { name, asks }
}

/// Required for a task that runs unattended.
pub const REQUIRED: [Criterion; 7] = [
    criterion("Goal", "states what exists or holds when the task is done"),
    criterion("Scope", "says which files, directories or systems may be changed"),
    criterion("Items", "the work can be divided into items that can be counted or listed"),
    criterion("Completion", "says how to decide that the whole task is complete"),
    criterion("Checks", "says how each item is checked, with commands where there are any"),
    criterion("Independence", "can be followed by someone without memory of earlier sessions"),
    criterion("No loop mechanics", "describes the task, not iterations, status files or the loop"),
];

/// Recommended for better results.
pub const RECOMMENDED: [Criterion; 3] = [
    criterion("Examples", "shows an example of a finished item"),
    criterion("Failures", "says what to do when an item cannot be done"),
    criterion("Conventions", "names the conventions of the code or text to keep to"),
];

/// A problem that prevents a run.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceProblem {
    #[error("{} names the workspace {name:?}", .path.display())]
    OtherName { path: PathBuf, name: String },
    #[error("there are no instructions")]
    NoInstructions,
    #[error(transparent)]
    Unreadable(#[from] WorkspaceError),
    #[error(transparent)]
    Status(#[from] StatusError),
    #[error("{} is missing", .0.display())]
    DirectoryMissing(PathBuf),
}

/// All problems that prevent a run, in the order to fix them.
pub fn problems(workspace: &Workspace) -> Vec<WorkspaceProblem> {
    let mut found = Vec::new();
    match workspace.metadata() {
        Ok(metadata) if metadata.name != workspace.name().as_str() => {
            let path = workspace.metadata_path();
            found.push(WorkspaceProblem::OtherName { path, name: metadata.name });
        }
        Ok(_) => {}
        Err(error) => found.push(error.into()),
    }
    match workspace.instructions() {
        Ok(Some(_)) => {}
        Ok(None) => found.push(WorkspaceProblem::NoInstructions),
        Err(error) => found.push(error.into()),
    }
    match Status::read(&workspace.status_path()) {
        Ok(_) | Err(StatusError::Missing) => {}
        Err(error) => found.push(error.into()),
    }
    for dir in [workspace.working_dir(), workspace.reports_dir()] {
        if !dir.is_dir() {
            found.push(WorkspaceProblem::DirectoryMissing(dir));
        }
    }
    found
}
