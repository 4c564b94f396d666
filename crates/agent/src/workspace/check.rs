//! What must be right before a loop may run, and what the agent itself is asked to judge.

use super::{Workspace, WorkspaceError};
use crate::status::{Status, StatusError};

/// One thing that `validate` asks about instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Criterion {
    pub name: &'static str,
    pub asks: &'static str,
}

const fn criterion(name: &'static str, asks: &'static str) -> Criterion {
    Criterion { name, asks }
}

/// Without these a task cannot be left alone.
pub const REQUIRED: [Criterion; 7] = [
    criterion("Goal", "states what exists or holds when the task is done"),
    criterion("Scope", "says which files, directories or systems may be changed"),
    criterion("Items", "the work can be divided into items that can be counted or listed"),
    criterion("Completion", "says how to decide that the whole task is complete"),
    criterion("Checks", "says how each item is checked, with commands where there are any"),
    criterion("Independence", "can be followed by someone without memory of earlier sessions"),
    criterion("No loop mechanics", "describes the task, not iterations, status files or the loop"),
];

/// These make it go better.
pub const RECOMMENDED: [Criterion; 3] = [
    criterion("Examples", "shows an example of a finished item"),
    criterion("Failures", "says what to do when an item cannot be done"),
    criterion("Conventions", "names the conventions of the code or text to keep to"),
];

/// Everything that stands in the way of a run, in the order in which to mend it.
pub fn problems(workspace: &Workspace) -> Vec<String> {
    let mut found = Vec::new();
    let mut note = |error: WorkspaceError| found.push(error.to_string());
    match workspace.metadata() {
        Ok(metadata) if metadata.name != workspace.name().as_str() => {
            found.push(format!(
                "{} names the workspace {:?}",
                workspace.metadata_path().display(),
                metadata.name
            ));
        }
        Ok(_) => {}
        Err(error) => note(error),
    }
    match workspace.instructions() {
        Ok(Some(_)) => {}
        Ok(None) => found.push(crate::messages::instructions_not_found(workspace.name())),
        Err(error) => found.push(error.to_string()),
    }
    match Status::read(&workspace.status_path()) {
        Ok(_) | Err(StatusError::Missing) => {}
        Err(error) => found.push(error.to_string()),
    }
    for dir in [workspace.working_dir(), workspace.reports_dir()] {
        if !dir.is_dir() {
            found.push(format!("{} is missing", dir.display()));
        }
    }
    found
}
