//! The commit and worktree of a directory, read from git's own files. Starting git for this would
//! cost more than a short run.

use std::path::Path;

use crate::git_dir::{Repository, read_small};
use crate::regular_file;

/// The commit checked out, and the name of the worktree (`main` for the first).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkout {
    pub sha: Option<String>,
    pub worktree: Option<String>,
}

/// Searches a directory and its parents. Both are `None` outside a repository.
pub fn checkout(directory: &Path) -> Checkout {
    let Some(Repository { git_dir, common, .. }) = Repository::find(directory) else {
        return Checkout::default();
    };
    let worktree = if common == git_dir {
        Some("main".to_owned())
    } else {
        git_dir.file_name().map(|name| name.to_string_lossy().into_owned())
    };
    Checkout { sha: head(&git_dir, &common), worktree }
}

/// The branch that is checked out, also one without a commit; `None` outside a repository, and for a
/// detached HEAD.
pub fn branch(directory: &Path) -> Option<String> {
    let repository = Repository::find(directory)?;
    let head = read_small(&repository.git_dir.join("HEAD")).ok()?;
    head.strip_prefix("ref: refs/heads/").map(|name| name.trim_end().to_owned())
}

fn head(git_dir: &Path, common: &Path) -> Option<String> {
    let mut text = read_small(&git_dir.join("HEAD")).ok()?;
    // A symbolic reference may name another one; git stops at five.
    for _ in 0..5 {
        let Some(name) = text.strip_prefix("ref: ") else { break };
        let name = name.trim_end().to_owned();
        if Path::new(&name).components().any(|part| part.as_os_str() == "..") {
            return None;
        }
        text = read_small(&git_dir.join(&name))
            .or_else(|_| read_small(&common.join(&name)))
            .ok()
            .or_else(|| packed(common, &name))?;
    }
    let sha = text.trim_end();
    let hex = matches!(sha.len(), 40 | 64) && sha.bytes().all(|b| b.is_ascii_hexdigit());
    hex.then(|| sha.to_owned())
}

fn packed(common: &Path, name: &str) -> Option<String> {
    let text = regular_file::read_text(&common.join("packed-refs")).ok()?;
    text.lines().find_map(|line| {
        let (sha, reference) = line.split_once(' ')?;
        (reference == name).then(|| sha.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::git_dir::tests::git;

    #[test]
    fn the_checkout_agrees_with_git() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir_all(top.join("sub")).unwrap();
        assert_eq!(checkout(&top), Checkout::default());
        assert_eq!(branch(&top), None);
        git(&top, &["init", "-q", "-b", "topic/one"]);
        assert_eq!(branch(&top).as_deref(), Some("topic/one"));
        assert_eq!(checkout(&top), Checkout { sha: None, worktree: Some("main".into()) });
        git(&top, &["commit", "-q", "--allow-empty", "-m", "one"]);
        let expected = |of: &Path| Some(git(of, &["rev-parse", "HEAD"]));
        assert_eq!(checkout(&top.join("sub")).sha, expected(&top));
        assert_eq!(branch(&top.join("sub")).as_deref(), Some("topic/one"));

        git(&top, &["pack-refs", "--all"]);
        assert_eq!(checkout(&top).sha, expected(&top), "packed");

        let linked = dir.path().join("linked");
        git(&top, &["worktree", "add", "-q", "-b", "other", linked.to_str().unwrap()]);
        git(&linked, &["commit", "-q", "--allow-empty", "-m", "two"]);
        let got = checkout(&linked);
        assert_eq!((got.sha, got.worktree.as_deref()), (expected(&linked), Some("linked")));

        git(&top, &["checkout", "-q", "--detach"]);
        assert_eq!(checkout(&top).sha, expected(&top), "detached");
    }
}
