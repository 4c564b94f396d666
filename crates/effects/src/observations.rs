//! Combines changed files, test results, progress and summary for the record.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use retake_types::{Observations, RenamedPath, RunProgress, TestResults, text};

use crate::files::Changes;

/// Combines the findings about one run. `changes` is `None` if files were not tracked.
pub fn observations(
    changes: Option<&Changes>,
    test_results: Option<TestResults>,
    progress: RunProgress,
    summary: Option<String>,
) -> Observations {
    let nothing = Changes::default();
    let found = changes.unwrap_or(&nothing);
    let mut texts = PathTexts::default();
    let mut observations = Observations {
        files_tracked: changes.is_some(),
        files_created: texts.all(&found.created),
        files_modified: texts.all(&found.modified),
        files_deleted: texts.all(&found.deleted),
        files_renamed: (found.renamed.iter())
            .map(|rename| RenamedPath { from: texts.one(&rename.from), to: texts.one(&rename.to) })
            .collect(),
        files_unreadable: texts.all(&found.unreadable),
        line_changes: BTreeMap::new(),
        paths_base64: BTreeMap::new(),
        test_results,
        progress,
        summary,
        root: None,
    };
    for (path, lines) in &found.lines {
        let text = text::path(path);
        // Two paths with the same text cannot both have a count under it.
        if !texts.is_ambiguous(path, &text) {
            observations.line_changes.insert(text.into_owned(), *lines);
        }
    }
    observations.paths_base64 = texts.base64;
    observations
}

/// Paths as text, and the bytes of those that are not UTF-8.
#[derive(Default)]
struct PathTexts {
    base64: BTreeMap<String, Vec<String>>,
    /// UTF-8 paths with a backslash: their text may equal that of a path that is not UTF-8.
    lookalikes: Vec<PathBuf>,
}

impl PathTexts {
    fn one(&mut self, path: &Path) -> String {
        if let Some(text) = path.to_str() {
            if text.contains('\\') {
                self.lookalikes.push(path.to_owned());
            }
            return text.to_owned();
        }
        let text = text::path(path).into_owned();
        let bytes = BASE64_STANDARD.encode(path.as_os_str().as_bytes());
        let all = self.base64.entry(text.clone()).or_default();
        if !all.contains(&bytes) {
            all.push(bytes);
        }
        text
    }

    fn all(&mut self, paths: &[PathBuf]) -> Vec<String> {
        paths.iter().map(|path| self.one(path)).collect()
    }

    fn is_ambiguous(&self, path: &Path, text: &str) -> bool {
        let others = self.base64.get(text).map_or(0, Vec::len);
        let lookalike = self.lookalikes.iter().any(|like| like.to_str() == Some(text));
        others + usize::from(lookalike) > 1 || (others == 1 && path.to_str().is_some())
    }
}

#[cfg(test)]
mod cases {
    use std::ffi::OsStr;

    use retake_types::{LineChange, ProgressReason};

    use super::*;
    use crate::files::Rename;

    fn path(bytes: &[u8]) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(bytes))
    }

    fn progress() -> RunProgress {
        RunProgress { detected: true, reasons: vec![ProgressReason::FilesChanged] }
    }

    #[test]
    fn the_shape_is_the_promised_one() {
        let changes = Changes {
            created: vec!["a".into()],
            modified: vec!["b/c".into()],
            deleted: vec!["d".into()],
            renamed: vec![Rename { from: "e".into(), to: "f".into() }],
            unreadable: Vec::new(),
            lines: [("b/c".into(), LineChange { added: 3, removed: 1 })].into(),
        };
        let effects = observations(Some(&changes), None, progress(), Some("Done.".into()));
        let json = serde_json::to_value(&effects).unwrap();
        let expected = serde_json::json!({
            "filesTracked": true,
            "filesCreated": ["a"],
            "filesModified": ["b/c"],
            "filesDeleted": ["d"],
            "filesRenamed": [{"from": "e", "to": "f"}],
            "lineChanges": {"b/c": {"added": 3, "removed": 1}},
            "testResults": null,
            "progress": {"detected": true, "reasons": ["files_changed"]},
            "summary": "Done.",
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<Observations>(json).unwrap(), effects);
        assert!(["a", "b/c", "d", "e", "f"].iter().all(|path| effects.touches(path)));
        assert!(!effects.touches("c"));
    }

    #[test]
    fn paths_that_are_not_utf8_keep_their_bytes_and_line_counts() {
        let count = LineChange { added: 1, removed: 0 };
        let same = [path(b"x\xff"), path(b"x\xfe")];
        // The second is UTF-8 that looks like the first.
        let alike = [path(b"y\xff"), path(b"y\\xff")];
        let [a, b] = &alike;
        let changes = Changes {
            created: vec![same[1].clone(), same[0].clone(), a.clone(), b.clone()],
            lines: same.iter().chain(&alike).map(|path| (path.clone(), count)).collect(),
            ..Changes::default()
        };
        let effects = observations(Some(&changes), None, progress(), None);
        assert_eq!(effects.files_created, ["x\\xfe", "x\\xff", "y\\xff", "y\\xff"]);
        assert_eq!(effects.paths_base64["x\\xfe"], ["eP4="]);
        assert_eq!(effects.paths_base64["x\\xff"], ["eP8="]);
        assert_eq!(effects.paths_base64["y\\xff"], ["ef8="]);
        let counted: Vec<_> = effects.line_changes.keys().collect();
        assert_eq!(counted, ["x\\xfe", "x\\xff"]);
        let text = serde_json::to_string(&effects).unwrap();
        assert_eq!(serde_json::from_str::<Observations>(&text).unwrap(), effects);
    }

    #[test]
    fn without_tracking_the_lists_say_nothing() {
        let effects = observations(None, None, progress(), None);
        assert!(!effects.files_tracked && effects.files_created.is_empty());
    }
}
