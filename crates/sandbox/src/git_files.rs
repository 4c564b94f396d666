//! Which files of a git repository a confined command may write: `git commit` works, but nothing
//! that git or the user's shell executes later can be changed.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use retake_types::PathGrant;

use crate::git_config::{self, NamedByGit};
use crate::lists::GIT_PROTECTED;
use crate::real_path::real_path;

/// The rules for the repository of a command.
#[derive(Debug, Default)]
pub(crate) struct GitRules {
    pub(crate) rules: Vec<(PathGrant, PathBuf)>,
    /// The targets of git's configuration, existing or not.
    pub(crate) named: BTreeSet<NamedByGit>,
}

/// Maximum submodule directories to examine, including nested ones.
const MOST_MODULES: usize = 500;

/// The rules for the repository of a directory. Its git directory is writable, also that of a
/// linked worktree, which is inside the main one. A `.git` file is trusted only if the directory it
/// names points back to it, and a link never, because an earlier confined command may have created
/// them.
pub(crate) fn rules(cwd: &Path, home: Option<&Path>) -> GitRules {
    let mut found = GitRules::default();
    let Ok(cwd) = real_path(cwd) else { return found };
    let dot_git = cwd.ancestors().map(|dir| dir.join(".git")).find(|path| path.exists());
    let Some(dot_git) = dot_git else { return found };
    let rules = &mut found.rules;
    let common = match dot_git.is_dir() && !dot_git.is_symlink() {
        true => Some(dot_git.clone()),
        false => {
            rules.push((PathGrant::DenyWrite, dot_git.clone()));
            linked_worktree(&dot_git)
        }
    };
    if let Some(common) = common {
        if common.join("HEAD").exists() {
            // A cover needs an existing file below it, and git creates this directory in most
            // repositories. If it cannot be created here, no other process can create it either.
            make_hooks(&common);
        }
        rules.push((PathGrant::AllowWrite, common.clone()));
        rules.push((PathGrant::DenyRead, common.join("retake")));
        let protected = protected(&common).into_iter();
        rules.extend(protected.map(|path| (PathGrant::DenyWrite, path)));
        if let Some(top) = dot_git.parent() {
            found.named = git_config::named(configurations(&common, home), top, home);
            // Protecting one of these would protect all the files to work on.
            found.named.retain(|named| {
                !top.starts_with(named.path()) && !common.starts_with(named.path())
            });
            let named = found.named.iter().map(|named| named.path().to_owned());
            rules.extend(named.map(|path| (PathGrant::DenyWrite, path)));
        }
    }
    found
}

/// Creates the hooks directory with the repository's owner: root may work in another user's
/// repository.
fn make_hooks(common: &Path) {
    let hooks = common.join("hooks");
    // SAFETY: no arguments, no failure.
    let root = unsafe { libc::geteuid() } == 0;
    if std::fs::create_dir(&hooks).is_ok()
        && root
        && let Ok(owner) = common.metadata()
    {
        // Fails harmlessly on a file system without owners.
        _ = std::os::unix::fs::lchown(&hooks, Some(owner.uid()), Some(owner.gid()));
    }
}

/// The configuration files that git reads for a repository.
fn configurations(common: &Path, home: Option<&Path>) -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from("/etc/gitconfig")];
    if let Some(home) = home {
        let named = std::env::var_os("XDG_CONFIG_HOME").filter(|value| !value.is_empty());
        let configuration = named.map_or_else(|| home.join(".config"), PathBuf::from);
        files.extend([configuration.join("git/config"), home.join(".gitconfig")]);
    }
    files.extend(["config", "config.worktree"].map(|name| common.join(name)));
    files
}

/// The files in git's directory that can name a program: of the repository, its submodules and its
/// worktrees.
pub(crate) fn protected(git: &Path) -> Vec<PathBuf> {
    let mut directories = vec![git.to_owned()];
    if let Ok(entries) = std::fs::read_dir(git.join("worktrees")) {
        directories.extend(entries.flatten().map(|entry| entry.path()));
    }
    // A submodule's name may contain slashes, and submodules can be nested.
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

/// The directory that a linked worktree shares with the main one.
fn linked_worktree(dot_git: &Path) -> Option<PathBuf> {
    // Reading a FIFO of one of these names would block forever.
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
    fn a_directory_of_hooks_that_is_the_work_tree_protects_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        std::fs::create_dir(top.join(".git")).unwrap();
        for value in [".", ".git", "/", "", "../.."] {
            let text = format!("[core]\n hooksPath = {value}\n[include]\n path = x\n");
            std::fs::write(top.join(".git/config"), text).unwrap();
            let GitRules { named, .. } = rules(&top, None);
            let expected = NamedByGit::Configuration(top.join(".git/x"));
            assert!(named.contains(&expected), "{value}");
            let protects_all = |named: &NamedByGit| top.join(".git").starts_with(named.path());
            assert!(!named.iter().any(protects_all), "{value}: {named:?}");
        }
    }
}
