//! What an iteration of an agent changed: the difference between the checkpoints around it, from git, with the
//! rules of `retake agent diff`. Trees are named by the record and never change, so results are cached.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use retake_agent::driver::git_checkpoints::GitCheckpoints;
use retake_runner::config::Config;
use retake_runner::context::RunContext;
use retake_runner::notice::Notify;
use retake_runner::project::Project;
use retake_runner::worker::Worker;
use retake_store::Store;

/// How many results are cached; each may be megabytes.
const KEPT: usize = 8;
/// Maximum number of bytes of a difference that are shown.
const MAX_DIFF: usize = 2 << 20;

/// Access to the checkpoints; provided by the program that starts the server.
pub struct CheckpointAccess {
    pub project: Project,
    /// A directory for temporary files, beside the record.
    pub scratch: PathBuf,
    pub notify: Notify,
    /// As in [`RunContext`].
    pub on_open: fn(&mut Store, &Notify),
}

/// The trees before and after an iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreePair {
    pub(crate) before: String,
    pub(crate) after: String,
}

/// The output of git, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeDiff {
    pub(crate) text: String,
    /// Not all of it is shown.
    pub(crate) cut: bool,
}

pub(crate) struct CheckpointDiffs {
    access: Arc<CheckpointAccess>,
    kept: Mutex<VecDeque<(TreePair, Arc<TreeDiff>)>>,
    /// Only one git runs at a time.
    turn: tokio::sync::Mutex<()>,
}

impl CheckpointDiffs {
    pub(crate) fn new(access: CheckpointAccess) -> Self {
        Self {
            access: Arc::new(access),
            kept: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// The project that has these checkpoints.
    pub(crate) fn access(&self) -> Arc<CheckpointAccess> {
        self.access.clone()
    }

    fn known(&self, trees: &TreePair) -> Option<Arc<TreeDiff>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|(known, _)| known == trees).map(|(_, diff)| diff.clone())
    }

    /// The error is shown on the page.
    pub(crate) async fn get(&self, trees: &TreePair) -> Result<Arc<TreeDiff>, String> {
        if let Some(known) = self.known(trees) {
            return Ok(known);
        }
        let _turn = self.turn.lock().await;
        if let Some(known) = self.known(trees) {
            return Ok(known);
        }
        // These names come from the record and become arguments of git.
        let is_name = |tree: &str| tree.len() >= 40 && tree.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_name(&trees.before) || !is_name(&trees.after) {
            return Err("the record does not name a tree".to_owned());
        }
        let (access, asked) = (self.access.clone(), trees.clone());
        let diff = tokio::task::spawn_blocking(move || ask(&access, &asked)).await;
        let diff = Arc::new(diff.map_err(|_| "git could not be run".to_owned())??);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(KEPT - 1);
        kept.push_front((trees.clone(), diff.clone()));
        Ok(diff)
    }
}

fn ask(access: &CheckpointAccess, trees: &TreePair) -> Result<TreeDiff, String> {
    let root = access.project.root.as_deref().ok_or("there is no project here")?;
    let config = Config::load(Some(root)).map_err(|error| error.to_string())?;
    let context = RunContext::new(&access.project, &config, access.notify.clone(), access.on_open);
    let mut worker = Worker::independent(&context)
        .map_err(|error| format!("could not start a process: {error}"))?;
    let answer = GitCheckpoints::new(&mut worker, root, &access.scratch)
        .and_then(|mut git| git.diff(&trees.before, &trees.after, false));
    drop(worker.end());
    // It may still contain files of another server, or be gone already.
    drop(std::fs::remove_dir(&access.scratch));
    Ok(TreeDiff::of(answer.map_err(|error| error.to_string())?))
}

/// One file of a difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileDiff<'a> {
    pub(crate) name: &'a str,
    /// The parts that differ; empty for a binary file.
    pub(crate) hunks: &'a str,
    pub(crate) added: usize,
    pub(crate) removed: usize,
}

impl TreeDiff {
    /// Parses the output of git.
    pub(crate) fn of(mut bytes: Vec<u8>) -> Self {
        let cut = bytes.len() > MAX_DIFF;
        bytes.truncate(MAX_DIFF);
        Self { text: String::from_utf8_lossy(&bytes).into_owned(), cut }
    }

    pub(crate) fn files(&self) -> Vec<FileDiff<'_>> {
        const BEGIN: &str = "diff --git ";
        let mut starts: Vec<usize> =
            self.text.match_indices("\ndiff --git ").map(|m| m.0 + 1).collect();
        if self.text.starts_with(BEGIN) {
            starts.insert(0, 0);
        }
        let ends = starts.iter().skip(1).copied().chain([self.text.len()]);
        starts.iter().zip(ends).map(|(start, end)| file(&self.text[*start..end])).collect()
    }
}

fn file(text: &str) -> FileDiff<'_> {
    let (head, hunks) = match text.find("\n@@ ") {
        Some(at) => text.split_at(at + 1),
        None => (text, ""),
    };
    let line = |begin: &str| head.lines().find_map(|line| line.strip_prefix(begin));
    // git appends a tab to a path that contains a space.
    let path = |begin: &str| line(begin).map(|path| path.trim_end_matches('\t'));
    let name = path("+++ b/")
        .or_else(|| path("--- a/"))
        .or_else(|| path("rename to "))
        .or_else(|| path("diff --git a/").and_then(|both| both.split(" b/").next()));
    let count = |sign| hunks.lines().filter(|line| line.starts_with(sign)).count();
    FileDiff { name: name.unwrap_or("a file"), hunks, added: count('+'), removed: count('-') }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_read_file_by_file() {
        let text = "diff --git a/src/a b.rs b/src/a b.rs\nindex 1..2 100644\n--- a/src/a b.rs\t\n+++ b/src/a b.rs\t\n@@ -1 +1,2 @@\n-old\n+new\n+diff --git in a line\n\
                    diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n\
                    diff --git a/p.png b/p.png\nindex 1..2 100644\nBinary files a/p.png and b/p.png differ\n\
                    diff --git a/one b/two\nsimilarity index 100%\nrename from one\nrename to two\n";
        let diff = TreeDiff { text: text.to_owned(), cut: false };
        let files = diff.files();
        let seen: Vec<_> = files.iter().map(|f| (f.name, f.added, f.removed)).collect();
        assert_eq!(seen, [("src/a b.rs", 2, 1), ("gone", 0, 1), ("p.png", 0, 0), ("two", 0, 0)]);
        assert!(files[0].hunks.starts_with("@@ -1 +1,2 @@\n") && files[2].hunks.is_empty());
        assert!(TreeDiff { text: String::new(), cut: false }.files().is_empty());
    }
}
