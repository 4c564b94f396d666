//! `retake matrix clean`: removes the worktrees, and with them what is set up. Results stay.

use std::path::Path;

use retake_matrix::git::Git;
use serde::Serialize;

use super::open::{self, Common, Project, git_failure};
use crate::Exit;
use crate::Failure;
use crate::term;
use retake_runner::project_lock::Lock;

/// Remove the worktrees, so that setups run again; results stay in the record
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
    let setting = open::setting(&args.common, store, Project::Look)?;
    let mut removed = Vec::new();
    if let Some(repo) = setting.repo().filter(|_| setting.agent.is_dir()) {
        let mut slot = open::slots(&setting, 1)?.remove(0);
        let lock = Lock::acquire(&setting.agent, "clean")
            .map_err(|error| Failure::Refused(error.to_string()))?;
        let (keeper, cancel) = slot.parts();
        let cleaned = Git::open(keeper, cancel, repo, std::env::vars_os())
            .and_then(|mut git| setting.worktrees().clean(&mut git));
        drop(lock);
        drop(slot.end());
        removed = cleaned.map_err(|error| git_failure(&error))?;
    }
    if setting.agent.is_dir() {
        match std::fs::remove_dir_all(setting.setups()) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::File { action: "remove", path: setting.setups(), source });
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
