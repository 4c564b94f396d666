//! Which files a run changed, which tests it ran, and what changed since earlier runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Map, TestResults, map_strings};

/// What was observed of one run. Paths are relative to the tracked directory.
///
/// Paths in JSON are text: bytes that are not UTF-8 are written as `\xff`, and `pathsBase64` holds
/// the bytes. Records of earlier releases have U+FFFD for each of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observations {
    /// Whether files were tracked; if not, the empty lists mean "unknown".
    #[serde(default)]
    pub files_tracked: bool,
    #[serde(default)]
    pub files_created: Vec<String>,
    #[serde(default)]
    pub files_modified: Vec<String>,
    #[serde(default)]
    pub files_deleted: Vec<String>,
    #[serde(default)]
    pub files_renamed: Vec<RenamedPath>,
    /// What could not be read, so that its changes are unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files_unreadable: Vec<String>,
    /// Only for text files whose contents before and after are known.
    #[serde(default)]
    pub line_changes: BTreeMap<String, LineChange>,
    /// For each path above that is not UTF-8: the exact paths behind its text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub paths_base64: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub test_results: Option<TestResults>,
    #[serde(default)]
    pub progress: RunProgress,
    #[serde(default)]
    pub summary: Option<String>,
    /// The tracked directory, if it is not the run's working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenamedPath {
    pub from: String,
    pub to: String,
}

/// Lines added to and removed from one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LineChange {
    pub added: u64,
    pub removed: u64,
}

/// Whether a run made progress since the runs before it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunProgress {
    /// A file changed, or a test passes that failed before.
    pub detected: bool,
    /// In the order of [`ProgressReason`], without repeats. Empty only if the record has none.
    pub reasons: Vec<ProgressReason>,
}

/// Evidence for or against progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgressReason {
    /// A file that counts was created, modified, deleted or renamed.
    FilesChanged,
    /// A test that failed when it last ran passes.
    TestsNewlyPassing,
    /// A test that passed when it last ran fails.
    TestsNewlyFailing,
    /// A flaky test changed its result; it counts neither as newly passing nor as newly failing.
    TestsFlaky,
    /// None of the others.
    None,
    /// Written by a later version of retake.
    #[serde(other)]
    Other,
}

impl Observations {
    /// Whether the run created, modified, deleted or renamed this path, as source or target.
    pub fn touches(&self, path: &str) -> bool {
        let lists = [&self.files_created, &self.files_modified, &self.files_deleted];
        lists.into_iter().flatten().any(|touched| touched == path)
            || self.files_renamed.iter().any(|rename| rename.from == path || rename.to == path)
    }

    pub(super) fn map_strings(&mut self, map: Map<'_>) {
        let Self {
            files_tracked: _,
            files_created,
            files_modified,
            files_deleted,
            files_renamed,
            files_unreadable,
            line_changes,
            paths_base64,
            test_results,
            progress: RunProgress { detected: _, reasons: _ },
            summary,
            root,
        } = self;
        for paths in [files_created, files_modified, files_deleted, files_unreadable] {
            map_strings(paths, map);
        }
        for RenamedPath { from, to } in files_renamed {
            (*from, *to) = (map(from), map(to));
        }
        let lines = std::mem::take(line_changes).into_iter();
        *line_changes = lines.map(|(path, lines)| (map(&path), lines)).collect();
        let bytes = std::mem::take(paths_base64).into_iter();
        let mapped = bytes.map(|(path, mut bytes)| {
            map_strings(&mut bytes, map);
            (map(&path), bytes)
        });
        *paths_base64 = mapped.collect();
        if let Some(results) = test_results {
            results.map_strings(map);
        }
        for text in [summary, root].into_iter().flatten() {
            *text = map(text);
        }
    }
}
