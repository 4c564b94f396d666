//! What of a git repository a confined command may write, and what not: `git commit` works, and
//! nothing that git or the user's shell executes later can be changed.

use std::path::{Path, PathBuf};

use retake_types::PathGrant;

use crate::lists::GIT_PROTECTED;
use crate::real_path::real_path;

/// Directories of submodules that are looked at, those inside of others included.
const MOST_MODULES: usize = 500;
/// A configuration that is larger than this is no configuration.
const LARGEST: u64 = 1 << 20;

/// The rules for the repository that a directory lies in. The directory of git is writable, that of
/// a linked worktree too, which lies in the main one. A `.git` file is believed only if the
/// directory it names points back to it, and a link not at all, since what was confined earlier may
/// have made them.
pub(crate) fn rules(cwd: &Path) -> Vec<(PathGrant, PathBuf)> {
    let Ok(cwd) = real_path(cwd) else { return Vec::new() };
    let dot_git = cwd.ancestors().map(|dir| dir.join(".git")).find(|path| path.exists());
    let Some(dot_git) = dot_git else { return Vec::new() };
    let mut rules = Vec::new();
    let common = match dot_git.is_dir() && !dot_git.is_symlink() {
        true => Some(dot_git.clone()),
        false => {
            rules.push((PathGrant::DenyWrite, dot_git.clone()));
            linked_worktree(&dot_git)
        }
    };
    if let Some(common) = common {
        if common.join("HEAD").exists() {
            // A cover needs something to lie on, and git makes this directory in most repositories.
            // Where it cannot be made, nobody else can make it either.
            _ = std::fs::create_dir(common.join("hooks"));
        }
        rules.push((PathGrant::AllowWrite, common.clone()));
        rules.push((PathGrant::DenyRead, common.join("retake")));
        let protected = protected(&common).into_iter();
        rules.extend(protected.map(|path| (PathGrant::DenyWrite, path)));
        if let Some(top) = dot_git.parent() {
            let named = named_by_configuration(&common, top).into_iter();
            rules.extend(named.map(|path| (PathGrant::DenyWrite, path)));
        }
    }
    rules
}

/// What in git's directory can name a program: of the repository, of its submodules and worktrees.
pub(crate) fn protected(git: &Path) -> Vec<PathBuf> {
    let mut directories = vec![git.to_owned()];
    if let Ok(entries) = std::fs::read_dir(git.join("worktrees")) {
        directories.extend(entries.flatten().map(|entry| entry.path()));
    }
    // The name of a submodule may have slashes, and submodules have submodules.
    let mut waiting = vec![git.join("modules")];
    let mut looked_at = 0;
    while let Some(directory) = waiting.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            looked_at += 1;
            if looked_at > MOST_MODULES || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = entry.path();
            match path.join("HEAD").exists() {
                true => {
                    waiting.push(path.join("modules"));
                    directories.push(path);
                }
                false => waiting.push(path),
            }
        }
    }
    let files = |dir: PathBuf| GIT_PROTECTED.iter().map(move |name| dir.join(name));
    directories.into_iter().flat_map(files).collect()
}

/// Where the repository's own configuration says that hooks and more configuration are.
fn named_by_configuration(common: &Path, top: &Path) -> Vec<PathBuf> {
    let mut named = Vec::new();
    for name in ["config", "config.worktree"] {
        let file = common.join(name);
        if !file.metadata().is_ok_and(|meta| meta.is_file() && meta.len() <= LARGEST) {
            continue;
        }
        let Ok(text) = std::fs::read(&file) else { continue };
        let text = String::from_utf8_lossy(&text);
        let mut section = String::new();
        for line in text.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix('[') {
                let end = rest.find(|c: char| c == ']' || c == '"' || c.is_whitespace());
                section = rest[..end.unwrap_or(rest.len())].to_ascii_lowercase();
                continue;
            }
            let Some((key, value)) = line.split_once('=') else { continue };
            let value = value.trim().trim_matches('"');
            match (section.as_str(), key.trim().to_ascii_lowercase().as_str()) {
                ("core", "hookspath" | "attributesfile") => named.push(top.join(value)),
                ("include" | "includeif", "path") => named.push(common.join(value)),
                _ => {}
            }
        }
    }
    // What begins so lies in the home directory, where nothing is writable.
    named.retain(|path| !path.to_string_lossy().contains('~'));
    named
}

/// The directory that a linked worktree shares with the main one.
fn linked_worktree(dot_git: &Path) -> Option<PathBuf> {
    // A FIFO of one of these names would be waited for without end.
    let read = |path: &Path| {
        let regular = path.metadata().ok()?.is_file();
        regular.then(|| std::fs::read_to_string(path).ok()).flatten()
    };
    let text = read(dot_git)?;
    let named = dot_git.parent()?.join(text.strip_prefix("gitdir: ")?.trim_end());
    let git_dir = real_path(&named).ok()?;
    let back = read(&git_dir.join("gitdir"))?;
    if real_path(&git_dir.join(back.trim_end())).ok()? != real_path(dot_git).ok()? {
        return None;
    }
    let worktrees = git_dir.parent().filter(|dir| dir.ends_with("worktrees"))?;
    let common = worktrees.parent()?;
    let shared = read(&git_dir.join("commondir"))?;
    let shared = real_path(&git_dir.join(shared.trim_end())).ok()?;
    (shared == common).then(|| common.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn submodules_of_submodules_are_protected() {
        let dir = tempfile::tempdir().unwrap();
        let git = dir.path().join(".git");
        for module in ["modules/a", "modules/group/b", "modules/a/modules/deep", "worktrees/w"] {
            std::fs::create_dir_all(git.join(module)).unwrap();
            std::fs::write(git.join(module).join("HEAD"), "").unwrap();
        }
        let found = protected(&git);
        for path in [
            "hooks",
            "modules/a/config",
            "modules/group/b/hooks",
            "modules/a/modules/deep/config",
            "worktrees/w/config.worktree",
        ] {
            assert!(found.contains(&git.join(path)), "{path}");
        }
    }

    #[test]
    fn hooks_and_configuration_elsewhere_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let git = dir.path().join(".git");
        std::fs::create_dir_all(&git).unwrap();
        let text = "[core]\n\tbare = false\n\thooksPath = .githooks\n[include]\n\tpath = ../shared.gitconfig\n\
                    [includeIf \"gitdir:x\"]\n\tpath = ~/x\n";
        std::fs::write(git.join("config"), text).unwrap();
        assert_eq!(
            named_by_configuration(&git, dir.path()),
            [dir.path().join(".githooks"), git.join("../shared.gitconfig")]
        );
    }
}
