//! Saves the project's files in git without changing anything of the user's: the pure parts. Names,
//! arguments and rules; the driver runs git.
//!
//! A checkpoint is a commit under `refs/retake/checkpoints/`, made with a separate index. Branch,
//! index, stash and hooks stay unchanged: only plumbing that runs no hooks is used. The record has
//! the commit and tree of each iteration; references only keep git from collecting them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use retake_runner::safe_git;
use retake_types::loop_record::agent::{Checkpoint, CheckpointTime};

use crate::workspace::Name;

/// The owner of checkpoints: worktrees share the references of a repository, and a name can be
/// reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointOwner {
    /// The worktree as git names it; empty for the main one.
    pub worktree: String,
    pub workspace: Name,
    /// When the workspace was created.
    pub created: Timestamp,
}

impl CheckpointOwner {
    /// The prefix of every reference of this owner.
    pub fn prefix(&self) -> String {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let worktree: String = match self.worktree.as_str() {
            "" => "main".to_owned(),
            name => format!("worktree-{}", name.replace(|c| !plain(c), "-")),
        };
        let created = self.created.as_millisecond();
        format!("refs/retake/checkpoints/{worktree}/{}/{created}/", self.workspace)
    }

    /// The reference of a checkpoint made by `maker`, a loop or a rollback.
    pub fn reference(&self, maker: &str, checkpoint: &Checkpoint) -> String {
        let label = match checkpoint.time {
            CheckpointTime::Start => "start".to_owned(),
            CheckpointTime::Iteration => checkpoint.number.to_string(),
            CheckpointTime::Rollback => "before".to_owned(),
        };
        format!("{}{maker}/{label}", self.prefix())
    }
}

/// A git command with the variables it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Git {
    pub argv: Vec<OsString>,
    pub env: Vec<(String, OsString)>,
    /// Its standard input.
    pub stdin: Option<Vec<u8>>,
}

impl Git {
    fn reading(self, paths: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let mut stdin = Vec::new();
        for path in paths {
            stdin.extend_from_slice(path.as_ref().as_bytes());
            stdin.push(0);
        }
        Self { stdin: Some(stdin), ..self }
    }
}

/// Builds the commands for one repository.
#[derive(Clone, Debug)]
pub struct Commands<'a> {
    /// The project's directory; git works on everything below it.
    pub project: &'a Path,
    /// The file of the separate index.
    pub index: &'a Path,
    /// The id of the empty tree in this repository.
    pub empty_tree: &'a str,
    /// Variables that replace programs from the repository's configuration.
    pub replaced: &'a [(String, String)],
}

/// Overrides of options that the user, or an agent, may have set and that would hide changes or
/// convert contents; in addition to those against running programs.
const SAFE: [&str; 7] = [
    // A bare repository in the project's directory must not be used.
    "safe.bareRepository=explicit",
    "core.untrackedCache=false",
    "core.ignoreStat=false",
    "core.checkStat=default",
    "core.autocrlf=false",
    "commit.gpgSign=false",
    "gc.auto=0",
];

/// The id of the empty tree, which is valid in every repository.
pub fn empty_tree(object_format: &str) -> &'static str {
    match object_format {
        "sha256" => "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
        _ => "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    }
}

impl Commands<'_> {
    fn plain(&self, words: &[&str]) -> Git {
        let mut argv: Vec<OsString> = ["git", "-C"].map(OsString::from).into();
        argv.push(self.project.into());
        argv.extend(safe_git::OPTIONS.map(OsString::from));
        argv.extend(SAFE.iter().flat_map(|option| ["-c", option]).map(OsString::from));
        argv.extend(words.iter().map(OsString::from));
        let mut env: Vec<(String, OsString)> = Vec::new();
        let own = [
            // Attributes of the tree name filters, which run programs and change contents.
            ("GIT_ATTR_SOURCE", self.empty_tree),
            ("GIT_LITERAL_PATHSPECS", "0"),
            ("GIT_AUTHOR_NAME", "retake"),
            ("GIT_AUTHOR_EMAIL", "retake@localhost"),
            ("GIT_COMMITTER_NAME", "retake"),
            ("GIT_COMMITTER_EMAIL", "retake@localhost"),
        ];
        let shared = safe_git::VARIABLES.into_iter().chain(safe_git::WITHOUT_NETWORK);
        for (name, value) in shared.chain(own) {
            env.push((name.to_owned(), value.into()));
        }
        env.extend(self.replaced.iter().map(|(name, value)| (name.clone(), value.into())));
        Git { argv, env, stdin: None }
    }

    fn git(&self, words: &[&str]) -> Git {
        let mut git = self.plain(words);
        git.env.push(("GIT_INDEX_FILE".to_owned(), self.index.into()));
        git
    }

    /// The configuration, with the origin of each part.
    pub fn configuration(&self) -> Git {
        self.git(&safe_git::LIST_CONFIGURATION)
    }

    /// The object format of the repository, for [`empty_tree`].
    pub fn object_format(&self) -> Git {
        let mut git = self.git(&["rev-parse", "--show-object-format"]);
        git.env.retain(|(name, _)| *name != "GIT_ATTR_SOURCE");
        git
    }

    /// The top of the work tree, if there is one.
    pub fn top(&self) -> Git {
        self.git(&["rev-parse", "--show-toplevel"])
    }

    /// The checked-out commit; fails in a repository without one.
    pub fn head(&self) -> Git {
        self.git(&["rev-parse", "--verify", "--quiet", "HEAD^{commit}"])
    }

    /// Which of these paths git ignores, each followed by a NUL. Fails if none is.
    pub fn ignored(&self, paths: &[PathBuf]) -> Git {
        self.plain(&["check-ignore", "--stdin", "-z", "--no-index"]).reading(paths)
    }

    /// Ignored files in the user's index, each followed by a NUL.
    pub fn tracked_though_ignored(&self) -> Git {
        self.plain(&["ls-files", "-z", "--cached", "--ignored", "--exclude-standard"])
    }

    /// Adds everything except ignored files, `without`, and retake's own directory.
    pub fn add_all(&self, without: &[PathBuf]) -> Git {
        let exclude = |path: &PathBuf| {
            let mut spec = OsString::from(":(exclude,literal)");
            spec.push(path);
            spec
        };
        // Git rejects an exclusion by plain name if an ignore file excludes it already.
        let specs: Vec<OsString> = [".", ":(exclude,glob)[.]agent/**"]
            .map(OsString::from)
            .into_iter()
            .chain(without.iter().map(exclude))
            .collect();
        let words = ["add", "--all", "--pathspec-from-file=-", "--pathspec-file-nul"];
        self.git(&words).reading(specs)
    }

    /// Adds files although they are ignored.
    pub fn add_ignored(&self, paths: &[PathBuf]) -> Git {
        let literal = |path: &PathBuf| {
            let mut spec = OsString::from(":(literal)");
            spec.push(path);
            spec
        };
        let words = ["add", "--force", "--pathspec-from-file=-", "--pathspec-file-nul"];
        self.git(&words).reading(paths.iter().map(literal))
    }

    /// Prints the id of the tree.
    pub fn write_tree(&self) -> Git {
        self.git(&["write-tree"])
    }

    /// Prints the id of the commit. It has a fixed author, so that the user's configuration is not
    /// needed.
    pub fn commit_tree(&self, tree: &str, parent: Option<&str>, message: &str) -> Git {
        let mut words = vec!["commit-tree", tree];
        if let Some(parent) = parent {
            words.extend(["-p", parent]);
        }
        words.extend(["-m", message]);
        self.git(&words)
    }

    pub fn update_ref(&self, reference: &str, commit: &str) -> Git {
        self.git(&["update-ref", reference, commit])
    }

    /// Prints the tree of a commit; fails if the commit is gone.
    pub fn tree_of(&self, commit: &str) -> Git {
        let tree = format!("{commit}^{{tree}}");
        self.git(&["rev-parse", "--verify", "--quiet", &tree])
    }

    /// `<commit> <reference>` per line of everything below a prefix.
    pub fn list_below(&self, prefix: &str) -> Git {
        self.git(&["for-each-ref", "--format=%(objectname) %(refname)", prefix])
    }

    /// Changes references, all or none; takes the output of [`removals`].
    pub fn change_refs(&self, changes: String) -> Git {
        Git { stdin: Some(changes.into_bytes()), ..self.git(&["update-ref", "--stdin"]) }
    }

    /// The differences between two trees, as `STATUS<NUL>PATH<NUL>`, relative to the project.
    pub fn differences(&self, from: &str, to: &str) -> Git {
        self.git(&[
            "diff-tree",
            "-r",
            "-z",
            "--relative",
            "--no-renames",
            "--name-status",
            from,
            to,
        ])
    }

    /// Lines added and removed per file, as `ADDED<TAB>REMOVED<TAB>PATH<NUL>`.
    pub fn line_counts(&self, from: &str, to: &str) -> Git {
        self.git(&["diff-tree", "-r", "-z", "--relative", "--no-renames", "--numstat", from, to])
    }

    /// The changes from one tree to another, for people.
    pub fn diff(&self, from: &str, to: &str, colour: bool) -> Git {
        let colour = if colour { "--color=always" } else { "--color=never" };
        self.git(&["diff", "--no-ext-diff", "--no-textconv", "--find-renames", colour, from, to])
    }

    /// Changes the working tree from `from` to `to` through the separate index. Git refuses if a
    /// file matches neither.
    pub fn switch_tree(&self, from: &str, to: &str) -> Git {
        self.git(&["read-tree", "-m", "-u", from, to])
    }
}

/// The commands that remove what [`Commands::list_below`] listed, and the number of references.
pub fn removals(listed: &str) -> (String, usize) {
    let mut lines = String::new();
    let mut count = 0;
    for (commit, name) in listed.lines().filter_map(|line| line.split_once(' ')) {
        count += 1;
        // Only the listed commit: a newer reference stays.
        lines.push_str(&format!("delete {name} {commit}\n"));
    }
    (lines, count)
}

/// Selects a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointChoice {
    /// The one after this iteration; 0 is the one before the first.
    Iteration(u32),
    /// By a prefix of its commit id.
    Commit(String),
}

impl std::str::FromStr for CheckpointChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(number) = text.parse().ok().filter(|_| text.len() < 7) {
            return Ok(Self::Iteration(number));
        }
        let hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match hex && (7..=64).contains(&text.len()) {
            true => Ok(Self::Commit(text.to_ascii_lowercase())),
            false => Err(format!(
                "{text:?} is neither the number of an iteration nor a commit of at least 7 digits"
            )),
        }
    }
}

impl CheckpointChoice {
    /// The last match: a repeated iteration has a later one.
    pub fn find<'a>(&self, all: &'a [Checkpoint]) -> Option<&'a Checkpoint> {
        all.iter().rev().find(|checkpoint| match self {
            Self::Iteration(0) => {
                checkpoint.number == 0 && checkpoint.time == CheckpointTime::Start
            }
            Self::Iteration(number) => {
                checkpoint.number == *number && checkpoint.time == CheckpointTime::Iteration
            }
            Self::Commit(start) => checkpoint.commit.starts_with(start.as_str()),
        })
    }
}

impl std::fmt::Display for CheckpointChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Iteration(number) => write!(f, "iteration {number}"),
            Self::Commit(commit) => f.write_str(commit),
        }
    }
}

/// Repositories inside the project, relative to it. Git does not add their files.
pub fn nested_repositories(project: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(dir) = pending.pop() {
        let entries = match std::fs::read_dir(project.join(&dir)) {
            Ok(entries) => entries,
            // Git reports unreadable files itself.
            Err(_) if !dir.as_os_str().is_empty() => continue,
            Err(error) => return Err(error),
        };
        let mut below = Vec::new();
        let mut nested = false;
        for entry in entries.flatten() {
            let name = entry.file_name();
            let top = dir.as_os_str().is_empty();
            if name == ".git" {
                nested = !top && is_repository(&entry.path());
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir())
                && !(top && name == ".agent")
            {
                below.push(dir.join(name));
            }
        }
        if nested {
            found.push(dir);
        } else {
            pending.append(&mut below);
        }
    }
    found.sort();
    Ok(found)
}

/// Git treats a directory that only has the name as an ordinary one.
fn is_repository(dot_git: &Path) -> bool {
    match std::fs::metadata(dot_git) {
        Ok(there) => there.is_file() || dot_git.join("HEAD").symlink_metadata().is_ok(),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(worktree: &str) -> CheckpointOwner {
        CheckpointOwner {
            worktree: worktree.to_owned(),
            workspace: Name::new("t").unwrap(),
            created: Timestamp::from_millisecond(1_700_000_000_123).unwrap(),
        }
    }

    fn checkpoint(number: u32, time: CheckpointTime, commit: &str) -> Checkpoint {
        let (commit, tree) = (commit.repeat(40), "f".repeat(40));
        Checkpoint { number, time, commit, tree, not_covered: Vec::new() }
    }

    #[test]
    fn references_carry_the_worktree_and_the_loop() {
        let third = checkpoint(3, CheckpointTime::Iteration, "a");
        let main = owner("").reference("loop", &third);
        assert_eq!(main, "refs/retake/checkpoints/main/t/1700000000123/loop/3");
        let linked = owner("worktrees/b c").reference("loop", &third);
        assert_eq!(linked, "refs/retake/checkpoints/worktree-worktrees-b-c/t/1700000000123/loop/3");
        let (lines, count) = removals(&format!("aa {main}\nbb {linked}\n"));
        assert_eq!((lines, count), (format!("delete {main} aa\ndelete {linked} bb\n"), 2));
        assert_eq!(removals(""), (String::new(), 0));
    }

    #[test]
    fn a_checkpoint_is_chosen_by_iteration_or_commit() {
        use CheckpointTime::{Iteration, Rollback, Start};
        let all = [
            checkpoint(0, Start, "1"),
            checkpoint(1, Iteration, "2"),
            checkpoint(1, Start, "3"),
            checkpoint(2, Iteration, "4"),
            checkpoint(2, Iteration, "5"),
            checkpoint(1, Rollback, "6"),
        ];
        let find = |text: &str| {
            let choice: CheckpointChoice = text.parse().unwrap();
            choice.find(&all).map(|found| found.commit.chars().next().unwrap())
        };
        assert_eq!(find("0"), Some('1'));
        assert_eq!(find("1"), Some('2'));
        assert_eq!(find("2"), Some('5'));
        assert_eq!(find("3333333"), Some('3'));
        assert_eq!(find("666666666"), Some('6'));
        assert_eq!(find("7"), None);
        for wrong in ["", "x", "-1", "abc"] {
            assert!(wrong.parse::<CheckpointChoice>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn nested_repositories_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let make = |path: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        for file in [
            ".git/HEAD",
            "src/a",
            "vendor/lib/.git",
            "vendor/lib/deeper/.git/HEAD",
            "made/.git/HEAD",
            "fake/.git/x",
            ".agent/cache/.git/HEAD",
        ] {
            make(file);
        }
        let found = nested_repositories(dir.path()).unwrap();
        assert_eq!(found, ["made", "vendor/lib"].map(PathBuf::from));
    }
}
