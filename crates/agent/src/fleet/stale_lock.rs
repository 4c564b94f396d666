//! Lock files of git that a killed runner or a killed agent left: git refuses to work until they are gone.
//! Only those that this fleet or this agent can have made, and that no process has open, are removed.

use std::fs;
use std::path::{Path, PathBuf};

use super::git::MainRepository;
use super::record::RecordedFleet;
use super::tree::worker_in;
use crate::checkpoint;

/// Removes what the calls of git of a dead runner left. The fleet is locked, so that nobody of ours
/// works on these references now.
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

/// Removes what the calls of git of an agent left that was killed: it continues in its tree, and would
/// be refused there. Nothing is done while a process works in the tree.
pub(super) fn remove_agents_locks(tree: &Path) {
    if worker_in(tree).is_some() {
        return;
    }
    let mut found = Vec::new();
    // What cannot be listed is named by the git that needs it.
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
        // One that cannot be removed is named by the git that needs it.
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

/// The files that processes have open, as far as that can be seen.
fn open_files() -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let descriptors = processes.flat_map(|process| {
        fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten()
    });
    descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok()).collect()
}
