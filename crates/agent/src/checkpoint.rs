//! The tree's state after an iteration, kept in git without touching anything of the user's: the
//! pure parts. Names, argument vectors and rules; running git is the front end's.
//!
//! A checkpoint is a commit under `refs/retake/`, made with an index of its own. Branch, index,
//! stash and hooks stay as they are: only plumbing that runs no hooks is used.

use std::path::{Path, PathBuf};

use retake_runner::safe_git;

use crate::workspace::Name;

/// `refs/retake/agent/NAME/N`.
pub fn reference(workspace: &Name, iteration: u32) -> String {
    format!("refs/retake/agent/{workspace}/{iteration}")
}

/// All checkpoints of a workspace lie below this.
pub fn prefix(workspace: &Name) -> String {
    format!("refs/retake/agent/{workspace}/")
}

/// Where the checkpoints of an archived workspace are.
pub fn archive_prefix(archive: &Name) -> String {
    format!("refs/retake/archive/{archive}/")
}

/// The iteration that a reference belongs to.
pub fn iteration_of(workspace: &Name, reference: &str) -> Option<u32> {
    reference.strip_prefix(&prefix(workspace))?.parse().ok().filter(|number| *number > 0)
}

/// A git command with the variables it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Git {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    /// What it reads.
    pub stdin: Option<String>,
}

/// Makes the commands for one repository.
#[derive(Clone, Debug)]
pub struct Commands<'a> {
    /// The project's directory; git works on what lies below it.
    pub project: &'a Path,
    /// A file that does not exist yet, for an index of our own.
    pub index: &'a Path,
    /// Variables that replace the programs which the repository configures.
    pub replaced: &'a [(String, String)],
}

impl Commands<'_> {
    fn git(&self, words: &[&str]) -> Git {
        let own = [
            "-c",
            "commit.gpgSign=false",
            "-c",
            "gc.auto=0",
            // What lies in the project's directory is no repository without a work tree.
            "-c",
            "safe.bareRepository=explicit",
        ];
        let mut argv =
            vec!["git".to_owned(), "-C".to_owned(), self.project.to_string_lossy().into_owned()];
        let options = safe_git::OPTIONS.iter().chain(&own);
        argv.extend(options.chain(words).map(|word| (*word).to_owned()));
        let mut env =
            vec![("GIT_INDEX_FILE".to_owned(), self.index.to_string_lossy().into_owned())];
        let fixed = safe_git::VARIABLES.into_iter().chain(safe_git::WITHOUT_NETWORK);
        env.extend(fixed.map(|(name, value)| (name.to_owned(), value.to_owned())));
        env.extend(self.replaced.iter().cloned());
        Git { argv, env, stdin: None }
    }

    /// Whether there is a repository, and where its top is.
    pub fn top(&self) -> Git {
        self.git(&["rev-parse", "--show-toplevel"])
    }

    /// The commit that is checked out; fails in a repository without one.
    pub fn head(&self) -> Git {
        self.git(&["rev-parse", "--verify", "--quiet", "HEAD^{commit}"])
    }

    /// Starts our index from a tree, so that unchanged files are not read again.
    pub fn read_tree(&self, tree: &str) -> Git {
        self.git(&["read-tree", tree])
    }

    /// The configuration, and where each part of it comes from.
    pub fn configuration(&self) -> Git {
        self.git(&safe_git::LIST_CONFIGURATION)
    }

    /// Takes everything in, ignored files left out, and retake's own directory as well. Gitlinks are
    /// left as they are: git would run itself in each, with what the repository there configures.
    pub fn add_all(&self, gitlinks: &[PathBuf]) -> Git {
        // Git refuses to leave out by its plain name what an ignore file leaves out already.
        let mut words = vec!["add".to_owned(), "--all".to_owned(), "--".to_owned(), ".".to_owned()];
        words.push(":(exclude,glob)[.]agent/**".to_owned());
        let exclude = |link: &PathBuf| format!(":(top,exclude,literal){}", link.display());
        words.extend(gitlinks.iter().map(exclude));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.git(&words)
    }

    /// Takes in which commits gitlinks are at, without running anything in them.
    pub fn add_gitlinks(&self, top: &Path, gitlinks: &[PathBuf]) -> Git {
        let lines = gitlinks.iter().map(|link| format!("{}\0", top.join(link).display()));
        let git = self.git(&["update-index", "--add", "--remove", "-z", "--stdin"]);
        Git { stdin: Some(lines.collect()), ..git }
    }

    /// Prints the name of the tree.
    pub fn write_tree(&self) -> Git {
        self.git(&["write-tree"])
    }

    /// Prints the name of the commit. It has an author of its own, so that no configuration of
    /// the user's is needed.
    pub fn commit_tree(
        &self,
        tree: &str,
        parent: Option<&str>,
        workspace: &Name,
        iteration: u32,
    ) -> Git {
        let message = format!("retake: {workspace}, iteration {iteration}");
        let mut words = vec!["commit-tree", tree];
        if let Some(parent) = parent {
            words.extend(["-p", parent]);
        }
        words.extend(["-m", &message]);
        let mut git = self.git(&words);
        for (name, value) in [
            ("GIT_AUTHOR_NAME", "retake"),
            ("GIT_AUTHOR_EMAIL", "retake@localhost"),
            ("GIT_COMMITTER_NAME", "retake"),
            ("GIT_COMMITTER_EMAIL", "retake@localhost"),
        ] {
            git.env.push((name.to_owned(), value.to_owned()));
        }
        git
    }

    pub fn update_ref(&self, workspace: &Name, iteration: u32, commit: &str) -> Git {
        self.git(&["update-ref", &reference(workspace, iteration), commit])
    }

    /// `<commit> <tree> <reference>` per line, for [`parse_list`].
    pub fn list(&self, workspace: &Name) -> Git {
        let format = "--format=%(objectname) %(tree) %(refname)";
        self.git(&["for-each-ref", format, &prefix(workspace)])
    }

    /// `<commit> <reference>` per line of everything below a prefix.
    pub fn list_below(&self, prefix: &str) -> Git {
        self.git(&["for-each-ref", "--format=%(objectname) %(refname)", prefix])
    }

    /// Changes references, all of them or none; takes what [`changes`] makes.
    pub fn change_refs(&self, changes: String) -> Git {
        Git { stdin: Some(changes), ..self.git(&["update-ref", "--stdin"]) }
    }

    /// What is in one tree and not in the other, as `STATUS<NUL>PATH<NUL>`.
    pub fn differences(&self, from: &str, to: &str) -> Git {
        self.git(&["diff-tree", "-r", "-z", "--no-renames", "--name-status", from, to])
    }

    /// Makes the working tree what `to` says, from what `from` says, through our index. Refuses
    /// by itself where a file is neither.
    pub fn switch_tree(&self, from: &str, to: &str) -> Git {
        self.git(&["read-tree", "-m", "-u", from, to])
    }

    /// Our index must know the files' times, or git would think that all of them changed.
    pub fn refresh(&self) -> Git {
        self.git(&["update-index", "-q", "--refresh"])
    }
}

/// What becomes of references below a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    Copy { to: &'a str },
    Move { to: &'a str },
    Remove,
}

/// The commands for a change of what [`Commands::list_below`] listed, and how many there are of.
pub fn changes(listed: &str, prefix: &str, change: Change<'_>) -> (String, usize) {
    let mut lines = String::new();
    let mut count = 0;
    for line in listed.lines() {
        let Some((commit, name)) = line.split_once(' ') else { continue };
        let Some(rest) = name.strip_prefix(prefix) else { continue };
        count += 1;
        if let Change::Copy { to } | Change::Move { to } = change {
            lines.push_str(&format!("update {to}{rest} {commit}\n"));
        }
        if let Change::Move { .. } | Change::Remove = change {
            // Only what was listed: a checkpoint that came since stays.
            lines.push_str(&format!("delete {name} {commit}\n"));
        }
    }
    (lines, count)
}

/// One checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub iteration: u32,
    pub commit: String,
    pub tree: String,
}

/// Reads what [`Commands::list`] prints; oldest first.
pub fn parse_list(workspace: &Name, output: &str) -> Vec<Checkpoint> {
    let mut all: Vec<Checkpoint> = output
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (commit, tree, name) = (words.next()?, words.next()?, words.next()?);
            let hex = |word: &str| word.len() >= 40 && word.bytes().all(|b| b.is_ascii_hexdigit());
            let iteration = iteration_of(workspace, name)?;
            (hex(commit) && hex(tree)).then(|| Checkpoint {
                iteration,
                commit: commit.to_owned(),
                tree: tree.to_owned(),
            })
        })
        .collect();
    all.sort_by_key(|checkpoint| checkpoint.iteration);
    all
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RollbackError {
    #[error("{0} has no checkpoints")]
    None(Name),
    #[error("{workspace} has no checkpoint of iteration {iteration}; there are {known}")]
    NoSuch { workspace: Name, iteration: u32, known: String },
    #[error(
        "the tree differs from the last checkpoint (iteration {iteration}); commit or stash your \
         changes first"
    )]
    Changed { iteration: u32 },
}

/// Decides about a rollback and finds where to go. `now` is the tree of what is in the project at
/// this moment. It must be the last checkpoint's, or someone's work would be lost; after a
/// rollback it is an earlier one's, and nothing is lost either.
pub fn rollback<'a>(
    workspace: &Name,
    checkpoints: &'a [Checkpoint],
    to: u32,
    now: &str,
) -> Result<&'a Checkpoint, RollbackError> {
    let last = checkpoints.last().ok_or_else(|| RollbackError::None(workspace.clone()))?;
    let target = checkpoints.iter().find(|checkpoint| checkpoint.iteration == to);
    let target = target.ok_or_else(|| {
        let known: Vec<String> = checkpoints.iter().map(|c| c.iteration.to_string()).collect();
        let (workspace, known) = (workspace.clone(), known.join(", "));
        RollbackError::NoSuch { workspace, iteration: to, known }
    })?;
    if !checkpoints.iter().any(|checkpoint| checkpoint.tree == now) {
        return Err(RollbackError::Changed { iteration: last.iteration });
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Name {
        Name::new("t").unwrap()
    }

    #[test]
    fn references_read_back() {
        assert_eq!(reference(&name(), 3), "refs/retake/agent/t/3");
        assert_eq!(iteration_of(&name(), "refs/retake/agent/t/3"), Some(3));
        for other in ["refs/retake/agent/tt/3", "refs/retake/agent/t/x", "refs/retake/agent/t/0"] {
            assert_eq!(iteration_of(&name(), other), None);
        }
        let (a, b) = ("a".repeat(40), "b".repeat(40));
        let list =
            format!("{a} {b} refs/retake/agent/t/10\n{b} {a} refs/retake/agent/t/9\nrubbish\n");
        let all = parse_list(&name(), &list);
        assert_eq!(all.iter().map(|c| c.iteration).collect::<Vec<_>>(), [9, 10]);
    }

    #[test]
    fn references_move_together() {
        let (a, b) = ("a".repeat(40), "b".repeat(40));
        let listed = format!("{a} refs/x/1\n{b} refs/x/2\n{b} refs/other/2\n");
        let moved = changes(&listed, "refs/x/", Change::Move { to: "refs/y/" });
        let lines = format!(
            "update refs/y/1 {a}\ndelete refs/x/1 {a}\nupdate refs/y/2 {b}\ndelete refs/x/2 {b}\n"
        );
        assert_eq!(moved, (lines, 2));
        let (copied, _) = changes(&listed, "refs/x/", Change::Copy { to: "refs/y/" });
        assert!(!copied.contains("delete"));
        let (removed, _) = changes(&listed, "refs/x/", Change::Remove);
        assert!(!removed.contains("update"));
        assert_eq!(changes("", "refs/x/", Change::Remove), (String::new(), 0));
    }

    #[test]
    fn a_rollback_loses_nobodys_work() {
        let point = |iteration: u32, tree: &str| Checkpoint {
            iteration,
            commit: "c".repeat(40),
            tree: tree.to_owned(),
        };
        let all = [point(1, "one"), point(2, "two"), point(3, "three")];
        assert_eq!(rollback(&name(), &all, 1, "three").unwrap().tree, "one");
        assert_eq!(rollback(&name(), &all, 3, "one").unwrap().tree, "three");
        assert_eq!(
            rollback(&name(), &all, 1, "edited"),
            Err(RollbackError::Changed { iteration: 3 })
        );
        let error = rollback(&name(), &all, 7, "three").unwrap_err();
        assert!(error.to_string().ends_with("there are 1, 2, 3"));
        assert_eq!(rollback(&name(), &[], 1, "x"), Err(RollbackError::None(name())));
    }
}
