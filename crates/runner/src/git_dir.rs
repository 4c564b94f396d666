//! Finds a repository by reading git's own files as git does, but without a process and without the
//! `GIT_*` variables: a hook sets those, and they would point at another repository.
//!
//! Only regular files are read. A named pipe in place of one would block forever.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::regular_file;

/// Longer than any file that is read here.
const LONGEST: u64 = 4096;

/// The repository of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    /// The top of the work tree; `None` inside a bare repository.
    pub top: Option<PathBuf>,
    /// The git directory of this work tree alone, with its `HEAD`.
    pub git_dir: PathBuf,
    /// The directory that all work trees share.
    pub common: PathBuf,
}

impl Repository {
    /// Searches a directory and its parents.
    pub fn find(from: &Path) -> Option<Self> {
        from.ancestors()
            .find_map(Self::with_top)
            // A bare repository inside a work tree is test data, not the current repository.
            .or_else(|| from.ancestors().find_map(Self::bare))
    }

    /// The repository whose work tree begins at a directory.
    fn with_top(top: &Path) -> Option<Self> {
        let dot_git = top.join(".git");
        let kind = fs::metadata(&dot_git).ok()?.file_type();
        let git_dir = if kind.is_dir() {
            dot_git
        } else if kind.is_file() {
            let text = read_small(&dot_git).ok()?;
            top.join(text.strip_prefix("gitdir:")?.trim())
        } else {
            return None;
        };
        let git_dir = normal(&git_dir);
        is_git_dir(&git_dir).then(|| Self {
            top: Some(top.to_owned()),
            common: common_dir(&git_dir),
            git_dir,
        })
    }

    fn bare(dir: &Path) -> Option<Self> {
        let bare = dir.join("HEAD").exists() && dir.join("refs").is_dir() && is_git_dir(dir);
        bare.then(|| Self { top: None, git_dir: dir.to_owned(), common: common_dir(dir) })
    }

    /// The top of the main work tree, if it can be found from here.
    pub fn main_top(&self) -> Option<&Path> {
        if self.git_dir == self.common {
            return self.top.as_deref();
        }
        let named = self.common.file_name().is_some_and(|name| name == ".git");
        self.common.parent().filter(|_| named)
    }

    /// The outermost repository of which this one is a direct or indirect submodule; itself
    /// otherwise.
    #[must_use]
    pub fn outermost(&self) -> Self {
        let mut found = self.clone();
        while let Some(outer) = found.superproject() {
            found = outer;
        }
        found
    }

    fn superproject(&self) -> Option<Self> {
        let above = || self.top.as_deref()?.ancestors().skip(1).find_map(Self::with_top);
        // git keeps submodules in `modules/` of the superproject's git directory.
        for dir in self.common.ancestors().skip(1) {
            if dir.file_name().is_some_and(|name| name == "modules")
                && let Some(git_dir) = dir.parent()
                && is_git_dir(git_dir)
            {
                let common = common_dir(git_dir);
                if let Some(outer) = above().filter(|outer| outer.common == common) {
                    return Some(outer);
                }
                let top = common.parent().filter(|_| common.ends_with(".git"));
                return Some(Self {
                    top: top.map(Path::to_owned),
                    git_dir: common.clone(),
                    common,
                });
            }
        }
        // A submodule with its own git directory is only named in the superproject.
        let outer = above()?;
        let path = self.top.as_deref()?.strip_prefix(outer.top.as_deref()?).ok()?;
        names_submodule(outer.top.as_deref()?, path).then_some(outer)
    }
}

/// Whether `.gitmodules` has a submodule at this path.
fn names_submodule(top: &Path, path: &Path) -> bool {
    let Ok(text) = regular_file::read_text_start(&top.join(".gitmodules"), 1 << 20) else {
        return false;
    };
    text.lines().any(|line| {
        let value = line.trim().strip_prefix("path").map(str::trim_start);
        value
            .and_then(|rest| rest.strip_prefix('='))
            .is_some_and(|value| Path::new(value.trim().trim_matches('"')) == path)
    })
}

/// A directory with a record stays a git directory, so that damage to other files in it does not
/// change the place of the record.
fn is_git_dir(dir: &Path) -> bool {
    let head = fs::symlink_metadata(dir.join("HEAD")).map(|meta| meta.file_type());
    let whole = head.is_ok_and(|kind| kind.is_file() || kind.is_symlink())
        && (dir.join("objects").is_dir() || dir.join("commondir").is_file());
    whole || dir.join("retake/retake.db").is_file()
}

/// The directory that all work trees share. `commondir` is followed only where git itself creates
/// one: elsewhere a confined command may have planted it, pointing to its own repository and
/// record.
fn common_dir(git_dir: &Path) -> PathBuf {
    linked_common(git_dir).unwrap_or_else(|| git_dir.to_owned())
}

/// The directory that a linked work tree shares with the others: the one whose `worktrees` contains
/// its git directory.
pub(crate) fn linked_common(git_dir: &Path) -> Option<PathBuf> {
    let named = git_dir.join(read_small(&git_dir.join("commondir")).ok()?.trim_end());
    let real = git_dir.canonicalize().ok()?;
    let common = real.parent().filter(|dir| dir.ends_with("worktrees"))?.parent()?;
    (named.canonicalize().ok()? == common).then(|| normal(&named))
}

/// Without `..`, so that each directory has one name.
fn normal(path: &Path) -> PathBuf {
    if path.components().any(|part| part == Component::ParentDir) {
        // A missing directory is reported on use.
        return path.canonicalize().unwrap_or_else(|_| path.to_owned());
    }
    path.to_owned()
}

/// The text of a small file.
pub(crate) fn read_small(path: &Path) -> io::Result<String> {
    regular_file::read_text_start(path, LONGEST)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::process::Command;

    use super::*;

    pub(crate) fn git(directory: &Path, arguments: &[&str]) -> String {
        let output = Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@t"])
            .args(["-c", "protocol.file.allow=always", "-C"])
            .arg(directory)
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// A repository with one commit.
    pub(crate) fn repository(top: &Path) {
        fs::create_dir_all(top).unwrap();
        git(top, &["init", "-q"]);
        git(top, &["commit", "-q", "--allow-empty", "-m", "one"]);
    }

    fn common(from: &Path) -> Option<PathBuf> {
        Repository::find(from).map(|found| found.common)
    }

    #[test]
    fn the_common_directory_is_the_one_that_git_names() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let top = dir.join("top");
        repository(&top);
        fs::create_dir(top.join("sub")).unwrap();
        git(&top, &["worktree", "add", "-q", "../linked"]);
        git(&dir, &["init", "-q", "--separate-git-dir", "kept", "apart"]);
        git(&dir, &["init", "-q", "--bare", "bare.git"]);
        for from in ["top", "top/sub", "top/.git/refs", "linked", "apart", "bare.git"] {
            let from = dir.join(from);
            let said = git(&from, &["rev-parse", "--git-common-dir"]);
            assert_eq!(common(&from), Some(normal(&from.join(said))), "{}", from.display());
        }
        assert_eq!(common(&dir), None);
        let linked = Repository::find(&dir.join("linked")).unwrap();
        assert_eq!(linked.main_top(), Some(top.as_path()));
    }

    #[test]
    fn a_common_directory_that_git_did_not_name_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let top = dir.join("top");
        repository(&top);
        repository(&top.join("evil"));
        git(&top, &["worktree", "add", "-q", "../linked"]);
        fs::write(top.join(".git/commondir"), "../evil/.git").unwrap();
        assert_eq!(common(&top), Some(top.join(".git")));
        fs::write(top.join(".git/worktrees/linked/commondir"), "../../../evil/.git").unwrap();
        assert_eq!(common(&dir.join("linked")), Some(top.join(".git/worktrees/linked")));
    }

    #[test]
    fn a_submodule_belongs_to_the_outermost_superproject() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        for name in ["inner", "middle", "outer"] {
            repository(&dir.join(name));
        }
        git(&dir.join("middle"), &["submodule", "--quiet", "add", "../inner", "in"]);
        git(&dir.join("middle"), &["commit", "-qm", "in"]);
        git(&dir.join("outer"), &["submodule", "--quiet", "add", "../middle", "mid"]);
        git(&dir.join("outer"), &["submodule", "--quiet", "update", "--init", "--recursive"]);
        let deepest = dir.join("outer/mid/in");
        let found = Repository::find(&deepest).unwrap();
        assert_eq!(found.top.as_deref(), Some(deepest.as_path()));
        let outermost = found.outermost();
        assert_eq!(outermost.top, Some(dir.join("outer")));
        assert_eq!(outermost.common, dir.join("outer/.git"));
        // A submodule that kept its own git directory.
        repository(&dir.join("outer/own"));
        assert_eq!(
            Repository::find(&dir.join("outer/own")).unwrap().outermost().common,
            dir.join("outer/own/.git")
        );
        git(&dir.join("outer"), &["submodule", "--quiet", "add", "./own"]);
        assert_eq!(
            Repository::find(&dir.join("outer/own")).unwrap().outermost().common,
            dir.join("outer/.git")
        );
    }

    #[test]
    fn special_files_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let make_fifo = |path: &Path| {
            assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
        };
        make_fifo(&dir.path().join(".git"));
        assert_eq!(common(dir.path()), None);
        let top = dir.path().join("top");
        repository(&top);
        fs::remove_file(top.join(".git/HEAD")).unwrap();
        make_fifo(&top.join(".git/HEAD"));
        assert_eq!(common(&top), None);
        assert_eq!(crate::checkout::checkout(&top), crate::checkout::Checkout::default());
    }
}
