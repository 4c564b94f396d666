//! A bounded search of a project, top down.

use std::collections::VecDeque;
use std::fs::{DirEntry, Metadata};
use std::path::{Path, PathBuf};

use retake_types::LeftFileKind;

use crate::git_index;

use super::quarantine::MARK;
use super::{AGENT, Findings, HostFiles, Moment, git_config, new_scripts, read};

/// Maximum directory entries to examine.
const MOST_ENTRIES: usize = 50_000;
/// Maximum gitlinks.
const MOST_LINKS: usize = 1000;

/// Skipped directories: large, and not acted on by themselves. Repositories in them that git would
/// enter are gitlinks, which are examined separately.
const SKIPPED: [&str; 8] =
    ["node_modules", "target", ".venv", "venv", "__pycache__", ".tox", ".gradle", ".cache"];

/// Files that the host acts on, by name.
const FILES: [(&str, LeftFileKind); 26] = [
    (".envrc", LeftFileKind::Envrc),
    (".mcp.json", LeftFileKind::AgentConfiguration),
    (".aider.conf.yml", LeftFileKind::AgentConfiguration),
    ("opencode.json", LeftFileKind::AgentConfiguration),
    (".gitmodules", LeftFileKind::GitConfig),
    (".pre-commit-config.yaml", LeftFileKind::BuildConfiguration),
    (".npmrc", LeftFileKind::BuildConfiguration),
    (".yarnrc", LeftFileKind::BuildConfiguration),
    (".yarnrc.yml", LeftFileKind::BuildConfiguration),
    (".pnpmfile.cjs", LeftFileKind::BuildConfiguration),
    ("bunfig.toml", LeftFileKind::BuildConfiguration),
    (".bazelrc", LeftFileKind::BuildConfiguration),
    ("mise.toml", LeftFileKind::BuildConfiguration),
    (".mise.toml", LeftFileKind::BuildConfiguration),
    ("lefthook.yml", LeftFileKind::BuildConfiguration),
    (".lefthook.yml", LeftFileKind::BuildConfiguration),
    ("gradle-wrapper.properties", LeftFileKind::BuildConfiguration),
    ("maven-wrapper.properties", LeftFileKind::BuildConfiguration),
    (".exrc", LeftFileKind::EditorTask),
    (".vimrc", LeftFileKind::EditorTask),
    (".nvimrc", LeftFileKind::EditorTask),
    (".nvim.lua", LeftFileKind::EditorTask),
    (".dir-locals.el", LeftFileKind::EditorTask),
    (".devcontainer.json", LeftFileKind::EditorTask),
    (".gdbinit", LeftFileKind::EditorTask),
    (".lldbinit", LeftFileKind::EditorTask),
];

/// Directories of which every file counts.
const DIRECTORIES: [(&str, LeftFileKind); 13] = [
    (".devcontainer", LeftFileKind::EditorTask),
    (".zed", LeftFileKind::EditorTask),
    (".fleet", LeftFileKind::EditorTask),
    (".opencode", LeftFileKind::AgentConfiguration),
    (".mvn", LeftFileKind::BuildConfiguration),
    (".vscode", LeftFileKind::EditorTask),
    (".idea", LeftFileKind::EditorTask),
    (".claude", LeftFileKind::AgentConfiguration),
    (".codex", LeftFileKind::AgentConfiguration),
    (".gemini", LeftFileKind::AgentConfiguration),
    (".cursor", LeftFileKind::AgentConfiguration),
    (".husky", LeftFileKind::BuildConfiguration),
    (".cargo", LeftFileKind::BuildConfiguration),
];

/// A directory to search, and the kind of its files if known.
type Waiting = (PathBuf, Option<LeftFileKind>);

/// Searches the project. Returns whether the search was complete.
pub(super) fn project(host: &HostFiles, found: &mut Findings) -> bool {
    let mut waiting: VecDeque<Waiting> = VecDeque::from([(host.root.clone(), None)]);
    let mut left = MOST_ENTRIES;
    while let Some((dir, kind)) = waiting.pop_front() {
        // Missing or unreadable: then programs of the host do not read it either.
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        let mut bare = [false; 3];
        for entry in entries.flatten() {
            if left == 0 {
                gitlinks(host, found);
                return false;
            }
            left -= 1;
            let name = entry.file_name();
            for (seen, part) in bare.iter_mut().zip(["HEAD", "objects", "refs"]) {
                *seen |= name == part;
            }
            one(host, &dir, &entry, kind, found, &mut waiting);
        }
        if bare == [true; 3] {
            bare_repository(host, &dir, found);
        }
    }
    gitlinks(host, found);
    true
}

fn one(
    host: &HostFiles,
    dir: &Path,
    entry: &DirEntry,
    kind: Option<LeftFileKind>,
    found: &mut Findings,
    waiting: &mut VecDeque<Waiting>,
) {
    let name = entry.file_name();
    let Some(name) = name.to_str() else {
        // Nothing acts on such a name, but files below it may have any name.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            waiting.push_back((entry.path(), kind));
        }
        return;
    };
    let Ok(file_type) = entry.file_type() else { return };
    if name == ".git" {
        if dir != host.root {
            repository(host, dir, found);
        }
        return;
    }
    if file_type.is_dir() {
        if SKIPPED.contains(&name) {
            return;
        }
        if name == AGENT {
            return retake_project(host, dir, found);
        }
        let named = DIRECTORIES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
        waiting.push_back((entry.path(), named.or(kind)));
        return;
    }
    // Quarantined after an earlier run.
    if name.contains(MARK) {
        return;
    }
    let is_new = || entry.metadata().is_ok_and(|meta| host.is_new(&meta));
    let listed = FILES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
    let workspace = name.ends_with(".code-workspace").then_some(LeftFileKind::EditorTask);
    if let Some(kind) = listed.or(workspace).or(kind) {
        if is_new() {
            found.add(kind, &entry.path(), Vec::new());
        }
    } else if name == "package.json" && is_new() {
        package(host, &entry.path(), found);
    }
}

/// A directory that retake would use as a project, if created or changed during the run. The
/// sandbox protects the project's own one, where possible.
fn retake_project(host: &HostFiles, dir: &Path, found: &mut Findings) {
    let agent = dir.join(AGENT);
    let Ok(meta) = std::fs::symlink_metadata(&agent) else { return };
    let own = dir == host.root;
    if own && super::identity(&agent) != host.agent_identity || !own && host.is_made(&meta) {
        found.add(LeftFileKind::RetakeProject, &agent, Vec::new());
        return;
    }
    for name in ["config.yml", "data"] {
        let path = agent.join(name);
        // Unconfined processes write the record all the time.
        let written = own && name == "data" || host.before.iter().any(|known| known.path == path);
        if !written && std::fs::symlink_metadata(&path).is_ok_and(|meta| host.is_new(&meta)) {
            found.add(LeftFileKind::RetakeProject, &path, Vec::new());
        }
    }
}

/// A `package.json` that was unknown before; known ones are compared.
fn package(host: &HostFiles, path: &Path, found: &mut Findings) {
    if host.before.iter().any(|before| before.path == path) {
        return;
    }
    let scripts = new_scripts(b"", &read(path).unwrap_or_default());
    if !scripts.is_empty() {
        found.add(LeftFileKind::PackageScript, path, scripts);
    }
}

/// A repository inside the project, if it is new or may have new hooks or programs.
fn repository(host: &HostFiles, dir: &Path, found: &mut Findings) {
    let git = dir.join(".git");
    let Ok(meta) = std::fs::symlink_metadata(&git) else { return };
    let is_new = host.is_new(&meta);
    if !meta.is_dir() {
        // A file or link that leads git to a directory elsewhere.
        if is_new {
            found.add(LeftFileKind::NestedRepository, &git, Vec::new());
        }
        return;
    }
    let names = git_config::new_programs(b"", &read(&git.join("config")).unwrap_or_default());
    if host.is_made(&meta) {
        found.add(LeftFileKind::NestedRepository, &git, names);
        return;
    }
    // A repository that was moved here is older than the run, but its parent directory has changed.
    let parent = std::fs::symlink_metadata(dir).map(|meta| Moment::modified(&meta));
    let moved = is_new && parent.is_ok_and(|modified| modified >= host.since);
    let hooks = std::fs::read_dir(git.join("hooks")).into_iter().flatten().flatten();
    let active = |name: &std::ffi::OsStr| !name.to_string_lossy().ends_with(".sample");
    let hooks: Vec<Metadata> = hooks
        .filter(|hook| active(&hook.file_name()))
        .filter_map(|hook| hook.metadata().ok())
        .collect();
    let redirected = git.join("commondir").exists();
    if moved && (!names.is_empty() || !hooks.is_empty() || redirected) {
        found.add(LeftFileKind::NestedRepository, &git, names);
    } else {
        host.git_dir(&git, &git, found);
    }
}

/// A directory that git, run inside it, treats as a bare repository.
fn bare_repository(host: &HostFiles, dir: &Path, found: &mut Findings) {
    let is_new =
        |name: &str| std::fs::symlink_metadata(dir.join(name)).is_ok_and(|meta| host.is_new(&meta));
    if is_new("HEAD") || is_new("config") {
        let names = git_config::new_programs(b"", &read(&dir.join("config")).unwrap_or_default());
        found.add(LeftFileKind::NestedRepository, dir, names);
    }
}

/// Repositories that `git status` enters, at any place.
fn gitlinks(host: &HostFiles, found: &mut Findings) {
    let Some(repository_) = &host.repository else { return };
    let index = repository_.git_dir.join("index");
    if !std::fs::symlink_metadata(&index).is_ok_and(|meta| host.is_new(&meta)) {
        return;
    }
    let top = repository_.top.as_deref().unwrap_or(&host.root);
    for link in git_index::gitlinks(&index, MOST_LINKS).unwrap_or_default() {
        let dir = top.join(link);
        if dir.starts_with(&host.root) && dir != host.root {
            repository(host, &dir, found);
        }
    }
}
