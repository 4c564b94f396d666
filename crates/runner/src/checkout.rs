//! Which commit and worktree a directory belongs to, read from git's own files. Starting git for
//! this would cost more than a short run.

use std::fs;
use std::path::{Path, PathBuf};

/// The commit checked out, and the name of the worktree (`main` for the first).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkout {
    pub sha: Option<String>,
    pub worktree: Option<String>,
}

/// Looks upwards from a directory. Both are `None` outside a repository.
pub fn checkout(directory: &Path) -> Checkout {
    let Some(git_dir) = directory.ancestors().find_map(git_dir) else { return Checkout::default() };
    // A linked worktree names the directory it shares with the others.
    let common = fs::read_to_string(git_dir.join("commondir"))
        .map_or_else(|_| git_dir.clone(), |text| git_dir.join(text.trim_end()));
    let worktree = if common == git_dir {
        Some("main".to_owned())
    } else {
        git_dir.file_name().map(|name| name.to_string_lossy().into_owned())
    };
    Checkout { sha: head(&git_dir, &common), worktree }
}

fn git_dir(directory: &Path) -> Option<PathBuf> {
    let dot_git = directory.join(".git");
    let meta = fs::metadata(&dot_git).ok()?;
    if meta.is_dir() {
        return dot_git.join("HEAD").exists().then_some(dot_git);
    }
    let text = fs::read_to_string(&dot_git).ok()?;
    Some(directory.join(text.strip_prefix("gitdir: ")?.trim_end()))
}

fn head(git_dir: &Path, common: &Path) -> Option<String> {
    let mut text = fs::read_to_string(git_dir.join("HEAD")).ok()?;
    // A symbolic reference may name another one; git itself stops at five.
    for _ in 0..5 {
        let Some(name) = text.strip_prefix("ref: ") else { break };
        let name = name.trim_end().to_owned();
        if Path::new(&name).components().any(|part| part.as_os_str() == "..") {
            return None;
        }
        text = fs::read_to_string(git_dir.join(&name))
            .or_else(|_| fs::read_to_string(common.join(&name)))
            .ok()
            .or_else(|| packed(common, &name))?;
    }
    let sha = text.trim_end();
    let hex = matches!(sha.len(), 40 | 64) && sha.bytes().all(|b| b.is_ascii_hexdigit());
    hex.then(|| sha.to_owned())
}

fn packed(common: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(common.join("packed-refs")).ok()?;
    text.lines().find_map(|line| {
        let (sha, reference) = line.split_once(' ')?;
        (reference == name).then(|| sha.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn git(directory: &Path, arguments: &[&str]) -> String {
        let output = Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@t", "-C"])
            .arg(directory)
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn agrees_with_git_itself() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir_all(top.join("sub")).unwrap();
        assert_eq!(checkout(&top), Checkout::default());
        git(&top, &["init", "-q"]);
        assert_eq!(checkout(&top), Checkout { sha: None, worktree: Some("main".into()) });
        git(&top, &["commit", "-q", "--allow-empty", "-m", "one"]);
        let expected = |of: &Path| Some(git(of, &["rev-parse", "HEAD"]));
        assert_eq!(checkout(&top.join("sub")).sha, expected(&top));

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
