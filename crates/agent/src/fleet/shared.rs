//! Directories of the project that a sandbox shows in every tree, with the workspaces: an agent that
//! commits everything must not make them part of its result.
//!
//! Untracked files are excluded in its clone. Tracked ones cannot be: the result gets the user's
//! version of them, so that it neither changes nor deletes what the user has there.

use std::fs;
use std::path::Path;

use retake_types::OsText;
use retake_types::loop_record::fleet::FleetLoopPlan;

use super::git::{FleetGit, FleetGitError, GitCall, at};

/// Lists the directories in a new clone's own ignore file.
pub(super) fn exclude(git_dir: &Path, shared: &[OsText]) -> Result<(), FleetGitError> {
    let mut patterns = Vec::new();
    for directory in shared {
        patterns.extend(pattern(directory.as_path().as_os_str().as_encoded_bytes()));
    }
    if patterns.is_empty() {
        return Ok(());
    }
    let info = git_dir.join("info");
    fs::create_dir_all(&info).map_err(at(&info))?;
    let file = info.join("exclude");
    fs::write(&file, patterns).map_err(at(&file))
}

/// The line that ignores exactly this directory.
fn pattern(directory: &[u8]) -> Vec<u8> {
    // A pattern is one line; such a name is left to the collection.
    if directory.is_empty() || directory.contains(&b'\n') {
        return Vec::new();
    }
    let mut line = vec![b'/'];
    for byte in directory {
        if matches!(byte, b'*' | b'?' | b'[' | b'\\') {
            line.push(b'\\');
        }
        line.push(*byte);
    }
    line.extend_from_slice(b"/\n");
    line
}

/// A result with the user's version of the shared directories.
pub(super) struct Unshared {
    pub(super) tree: String,
    /// The directories that the agent had changed.
    pub(super) undone: Vec<String>,
}

impl FleetGit<'_> {
    /// The result with the user's version of the shared directories; `None` if it has
    /// that already. `index` contains the result, and `start` is the agent's last commit.
    pub(super) fn without_shared(
        &mut self,
        (tree, index): (&Path, &Path),
        plan: &FleetLoopPlan,
        (start, prefix): (&str, &str),
    ) -> Result<Option<Unshared>, FleetGitError> {
        if plan.shared.is_empty() {
            return Ok(None);
        }
        let users = self.users_commit(plan, start, prefix)?;
        let common = self.main.common.clone();
        let call = |words: &[&str]| GitCall::new(tree, words).on_tree(&common, tree, index);
        let mut reset = call(&["reset", "--quiet", &users, "--"]);
        let mut undone = Vec::new();
        for directory in &plan.shared {
            let mut spec = std::ffi::OsString::from(":(top,literal)");
            spec.push(directory.as_path());
            let same = ["diff-index", "--cached", "--quiet", "--no-ext-diff", &users, "--"];
            if self.run(call(&same).and(&spec))?.code != 0 {
                undone.push(directory.as_path().to_string_lossy().into_owned());
                reset = reset.and(&spec);
            }
        }
        if undone.is_empty() {
            return Ok(None);
        }
        self.text(reset)?;
        let tree = self.text(call(&["write-tree"]))?;
        Ok(Some(Unshared { tree, undone }))
    }

    /// The last commit of the user that the agent's work contains: its starting point, or the tip
    /// that it merged to resolve a conflict.
    fn users_commit(
        &mut self,
        plan: &FleetLoopPlan,
        start: &str,
        prefix: &str,
    ) -> Result<String, FleetGitError> {
        let fleet = prefix.trim_end_matches('/').rsplit_once('/').map_or("", |(fleet, _)| fleet);
        let merged = format!("--merged={start}");
        let words = ["for-each-ref", "--format=%(objectname)", &merged];
        let top = self.main.top.clone();
        let listed = self.text(GitCall::new(&top, &words).and(format!("{fleet}/onto/")))?;
        let mut newest = plan.base.clone();
        for onto in listed.lines() {
            if self.is_ancestor(&newest, onto)? {
                newest = onto.to_owned();
            }
        }
        Ok(newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_names_one_directory() {
        assert_eq!(pattern(b".agent"), b"/.agent/\n");
        assert_eq!(pattern(b"a b/[x]*"), b"/a b/\\[x]\\*/\n");
        assert_eq!(pattern(b"a\nb"), b"");
        assert_eq!(pattern(b""), b"");
    }
}
