//! Refs and their commits.

use super::{Git, GitError};

/// A ref and its commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    pub reference: String,
    /// The hash of the commit, also if the ref is an annotated tag.
    pub sha: String,
}

/// The commits between two, oldest first, including both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commits {
    pub shas: Vec<String>,
    /// Whether merges count as one step without the merged commits. Not if the older end itself is
    /// on a merged branch.
    pub first_parent: bool,
}

/// A commit and its subject line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    pub sha: String,
    pub subject: String,
}

impl Git<'_> {
    /// The commit of a ref, a tag or a (shortened) hash.
    pub fn resolve(&mut self, reference: &str) -> Result<Resolved, GitError> {
        let bad = |why: &str| GitError::BadRef { reference: reference.to_owned(), why: why.into() };
        if reference.starts_with('-') {
            return Err(bad("begins with -, which a ref cannot"));
        }
        if reference.is_empty() || reference.contains(|c: char| c.is_control()) {
            return Err(bad("is not a valid ref name"));
        }
        let wanted = format!("{reference}^{{commit}}");
        let said = self.ask(&["rev-parse", "--verify", "--quiet", "--end-of-options", &wanted])?;
        let sha = said.stdout.trim();
        let hex = matches!(sha.len(), 40 | 64) && sha.bytes().all(|b| b.is_ascii_hexdigit());
        if said.ok && hex {
            return Ok(Resolved { reference: reference.to_owned(), sha: sha.to_owned() });
        }
        let exists =
            self.ask(&["rev-parse", "--verify", "--quiet", "--end-of-options", reference])?;
        let mut why = if exists.ok && self.has_object(&exists.stdout)? {
            "is not a commit".to_owned()
        } else {
            "there is no such branch, tag or commit here".to_owned()
        };
        let remote = format!("refs/remotes/origin/{reference}");
        if self.ask(&["rev-parse", "--verify", "--quiet", "--end-of-options", &remote])?.ok {
            why += &format!("; there is origin/{reference}");
        } else if self.is_shallow()? {
            why += "; this is a shallow clone, so `git fetch --unshallow` (or fetching the ref) may bring it";
        }
        Err(bad(&why))
    }

    /// Whether an object exists: rev-parse accepts any full hash.
    fn has_object(&mut self, sha: &str) -> Result<bool, GitError> {
        Ok(self.ask(&["cat-file", "-e", sha.trim()])?.ok)
    }

    pub fn is_shallow(&mut self) -> Result<bool, GitError> {
        Ok(self.ask(&["rev-parse", "--is-shallow-repository"])?.stdout.trim() == "true")
    }

    /// The commits between two, in either order.
    pub fn between(&mut self, one: &Resolved, other: &Resolved) -> Result<Commits, GitError> {
        let (old, new) = if self.is_ancestor(&one.sha, &other.sha)? {
            (one, other)
        } else if self.is_ancestor(&other.sha, &one.sha)? {
            (other, one)
        } else {
            let base = self.ask(&["merge-base", &one.sha, &other.sha])?;
            let mut why = format!("neither it nor {} comes before the other", other.reference);
            if base.ok {
                let base = base.stdout.trim();
                why += &format!(
                    "; both come from {}, so search from there",
                    &base[..base.len().min(12)]
                );
            } else if self.is_shallow()? {
                why += "; this is a shallow clone, `git fetch --unshallow` brings the rest";
            }
            return Err(GitError::BadRef { reference: one.reference.clone(), why });
        };
        let range = format!("{}..{}", old.sha, new.sha);
        let list = |text: String| -> Vec<String> {
            std::iter::once(old.sha.clone()).chain(text.lines().map(str::to_owned)).collect()
        };
        let repo = self.repo.clone();
        // A merge was a real state of the main line; its merged commits were not.
        let arguments = ["rev-list", "--reverse", "--first-parent", &range];
        let shas = list(self.tell_in(&repo, &arguments)?);
        let first_of_new = shas.get(1).map_or(&new.sha, |sha| sha).clone();
        let parent =
            self.ask(&["rev-parse", "--verify", "--quiet", &format!("{first_of_new}^1")])?;
        if old.sha == new.sha || parent.stdout.trim() == old.sha {
            return Ok(Commits { shas, first_parent: true });
        }
        let arguments = ["rev-list", "--reverse", "--topo-order", "--ancestry-path", &range];
        Ok(Commits { shas: list(self.tell_in(&repo, &arguments)?), first_parent: false })
    }

    /// The subject line of a commit.
    pub fn subject(&mut self, sha: &str) -> Result<String, GitError> {
        let repo = self.repo.clone();
        let text = self.tell_in(&repo, &["log", "-1", "--format=%s", sha])?;
        Ok(text.trim().to_owned())
    }

    /// The history of a branch, oldest first: merges count as one step. At most `most` of the
    /// newest commits.
    pub fn first_parents(&mut self, tip: &Resolved, most: usize) -> Result<Vec<Commit>, GitError> {
        let repo = self.repo.clone();
        let count = format!("--max-count={most}");
        let arguments =
            ["log", "--first-parent", "--no-show-signature", &count, "--format=%H %s", &tip.sha];
        let text = self.tell_in(&repo, &arguments)?;
        let commit = |line: &str| {
            let (sha, subject) = line.split_once(' ').unwrap_or((line, ""));
            Commit { sha: sha.to_owned(), subject: subject.to_owned() }
        };
        let mut commits: Vec<Commit> = text.lines().map(commit).collect();
        commits.reverse();
        Ok(commits)
    }

    fn is_ancestor(&mut self, old: &str, new: &str) -> Result<bool, GitError> {
        Ok(self.ask(&["merge-base", "--is-ancestor", old, new])?.ok)
    }
}
