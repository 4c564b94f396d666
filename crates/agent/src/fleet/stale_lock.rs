//! Removes git lock files of a killed runner or agent, because git refuses to work until they are
//! gone. Only files that this fleet or agent can have created, and that no process has open, are
//! removed.

use std::fs;
use std::path::{Path, PathBuf};

use super::git::MainRepository;
use super::record::RecordedFleet;
use super::tree::worker_in;
use crate::checkpoint;

/// Removes the locks of a dead runner's git calls. The fleet is locked, so that no other process of
/// retake uses these references.
pub(super) fn remove_stale_locks(fleet: &RecordedFleet, main: &MainRepository) {
    let references = main.common.join("refs");
    let mut found = Vec::new();
    below(&references.join("retake/fleet").join(fleet.record.id.to_string()), &mut found);
    below(&references.join("heads/retake"), &mut found);
    for entry in fs::read_dir(fleet.plan.directory.as_path()).into_iter().flatten().flatten() {
        found.push(entry.path());
    }
    // The user's branch only if the dead runner was about to move it.
    for branch in fleet.agents.iter().filter_map(|agent| agent.moving.as_ref()) {
        found.push(references.join("heads").join(format!("{branch}.lock")));
    }
    remove_locks(found);
}

/// Removes the locks of a killed agent's git calls: it continues in its tree, where git would
/// refuse. Does nothing while a process works in the tree.
pub(super) fn remove_agents_locks(tree: &Path) {
    if worker_in(tree).is_some() {
        return;
    }
    let mut found = Vec::new();
    // The git command that needs an unreadable directory reports it.
    let nested = checkpoint::nested_repositories(tree).unwrap_or_default();
    for place in nested.iter().map(|inside| tree.join(inside)).chain([tree.to_owned()]) {
        let git_dir = place.join(".git");
        // A link would lead out of the tree.
        if fs::symlink_metadata(&git_dir).is_ok_and(|meta| meta.is_dir()) {
            let entries = fs::read_dir(&git_dir).into_iter().flatten().flatten();
            for entry in entries {
                match entry.file_type() {
                    Ok(kind) if kind.is_file() => found.push(entry.path()),
                    Ok(kind) if kind.is_dir() && entry.file_name() == "refs" => {
                        below(&entry.path(), &mut found);
                    }
                    _ => {}
                }
            }
        }
    }
    remove_locks(found);
}

fn remove_locks(mut found: Vec<PathBuf>) {
    found.retain(|path| path.extension().is_some_and(|ending| ending == "lock"));
    found.retain(|path| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file()));
    if found.is_empty() {
        return;
    }
    let open = open_files();
    for path in found.iter().filter(|path| !open.contains(path)) {
        // The git command that needs it reports a lock that cannot be removed.
        drop(fs::remove_file(path));
    }
}

fn below(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => below(&entry.path(), into),
            _ => into.push(entry.path()),
        }
    }
}

/// The files that processes have open, as far as visible.
fn open_files() -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let descriptors = processes.flat_map(|process| {
        fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten()
    });
    descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok()).collect()
}
