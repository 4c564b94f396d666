//! `retake matrix clean`: removes the worktrees and everything set up in them. Results are kept.

use std::path::Path;

use retake_matrix::git::Git;
use serde::Serialize;

use super::events;
use super::open::{self, Common, IfMissing};
use crate::{Exit, Failure, term};

/// Remove the worktrees, so that setups run again; results are kept in the record
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
}

#[derive(Serialize)]
struct Document<'a> {
    removed: &'a [String],
}

pub(super) fn clean(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let (project, _) = open::project(&args.common, store, IfMissing::Ignore)?;
    let mut removed = Vec::new();
    let exists = project.agent_directory.is_dir();
    if let Some(repo) = project.repo().filter(|_| exists) {
        let mut worker = open::workers(&project, 1)?.remove(0);
        let lock = project
            .lock("retake matrix clean")
            .map_err(|error| Failure::Refused(events::lock_error(&error)))?;
        let (keeper, cancel) = worker.parts();
        let cleaned = Git::open(keeper, cancel, repo, std::env::vars_os())
            .and_then(|mut git| project.worktrees().clean(&mut git));
        drop(lock);
        drop(worker.end());
        removed = cleaned.map_err(|error| Failure::Refused(error.to_string()))?;
    }
    if exists {
        let path = project.setup_marks();
        match std::fs::remove_dir_all(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::File { action: "remove", path, source });
            }
            _ => {}
        }
    }
    if args.common.json {
        term::document(&Document { removed: &removed })?;
    } else {
        term::say(&format!("removed {}", term::count(removed.len() as u64, "worktree")));
    }
    Ok(Exit::OK)
}
