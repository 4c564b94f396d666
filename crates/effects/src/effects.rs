//! What one run did, in the shape in which it is stored and printed.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

use crate::files::{Changes, LineChange};
use crate::progress::Progress;
use crate::tests::TestResults;

/// What one run did. Paths are relative to the tracked directory.
///
/// JSON knows no paths but text: bytes that are no UTF-8 show as U+FFFD, and `pathsBase64` then
/// holds the bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Effects {
    /// Whether anyone looked at files: without that the lists are empty for want of knowledge.
    #[serde(default)]
    pub files_tracked: bool,
    pub files_created: Vec<String>,
    pub files_modified: Vec<String>,
    pub files_deleted: Vec<String>,
    pub files_renamed: Vec<RenamedPath>,
    /// What could not be read, so that nothing is known of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files_unreadable: Vec<String>,
    /// Text files only, and only where both sides were known.
    pub line_changes: BTreeMap<String, LineChange>,
    /// For each path as shown above that is not UTF-8: the paths it stands for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub paths_base64: BTreeMap<String, Vec<String>>,
    pub test_results: Option<TestResults>,
    pub progress: Progress,
    pub summary: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenamedPath {
    pub from: String,
    pub to: String,
}

impl Effects {
    /// Puts together what was found out. `changes` is `None` if files were not tracked.
    pub fn new(
        changes: Option<&Changes>,
        test_results: Option<TestResults>,
        progress: Progress,
        summary: Option<String>,
    ) -> Self {
        let nothing = Changes::default();
        let found = changes.unwrap_or(&nothing);
        let mut shown = Shown::default();
        let mut effects = Self {
            files_tracked: changes.is_some(),
            files_created: shown.all(&found.created),
            files_modified: shown.all(&found.modified),
            files_deleted: shown.all(&found.deleted),
            files_renamed: (found.renamed.iter())
                .map(|rename| RenamedPath {
                    from: shown.one(&rename.from),
                    to: shown.one(&rename.to),
                })
                .collect(),
            files_unreadable: shown.all(&found.unreadable),
            line_changes: BTreeMap::new(),
            paths_base64: BTreeMap::new(),
            test_results,
            progress,
            summary,
        };
        for (path, lines) in &found.lines {
            let text = path.to_string_lossy();
            // Two paths that look the same cannot both have a count under one name.
            if !shown.is_ambiguous(path, &text) {
                effects.line_changes.insert(text.into_owned(), *lines);
            }
        }
        effects.paths_base64 = shown.base64;
        effects
    }

    /// Whether the run created, modified, deleted or renamed the path, from or to it.
    pub fn touches(&self, path: &str) -> bool {
        let lists = [&self.files_created, &self.files_modified, &self.files_deleted];
        lists.into_iter().flatten().any(|touched| touched == path)
            || self.files_renamed.iter().any(|rename| rename.from == path || rename.to == path)
    }
}

/// Paths as text, and the bytes of those that are none.
#[derive(Default)]
struct Shown {
    base64: BTreeMap<String, Vec<String>>,
    /// Paths that are text, but text with U+FFFD in it: they look like one that is not.
    lookalikes: Vec<PathBuf>,
}

impl Shown {
    fn one(&mut self, path: &Path) -> String {
        if let Some(text) = path.to_str() {
            if text.contains('\u{fffd}') {
                self.lookalikes.push(path.to_owned());
            }
            return text.to_owned();
        }
        let text = path.to_string_lossy().into_owned();
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

    use super::*;
    use crate::files::Rename;
    use crate::progress::Reason;

    fn path(bytes: &[u8]) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(bytes))
    }

    fn progress() -> Progress {
        Progress { detected: true, reasons: vec![Reason::FilesChanged] }
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
        let effects = Effects::new(Some(&changes), None, progress(), Some("Done.".into()));
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
        assert_eq!(serde_json::from_value::<Effects>(json).unwrap(), effects);
        assert!(["a", "b/c", "d", "e", "f"].iter().all(|path| effects.touches(path)));
        assert!(!effects.touches("c"));
    }

    #[test]
    fn paths_that_are_no_text_keep_their_bytes_and_never_mix_up_counts() {
        let count = LineChange { added: 1, removed: 0 };
        let same = [path(b"x\xff"), path(b"x\xfe")];
        let lone = path(b"y\xff");
        let changes = Changes {
            created: vec![same[1].clone(), same[0].clone(), lone.clone()],
            lines: same.iter().chain([&lone]).map(|path| (path.clone(), count)).collect(),
            ..Changes::default()
        };
        let effects = Effects::new(Some(&changes), None, progress(), None);
        assert_eq!(effects.files_created, ["x\u{fffd}", "x\u{fffd}", "y\u{fffd}"]);
        assert_eq!(effects.paths_base64["x\u{fffd}"], ["eP4=", "eP8="]);
        assert_eq!(effects.paths_base64["y\u{fffd}"], ["ef8="]);
        let counted: Vec<_> = effects.line_changes.keys().collect();
        assert_eq!(counted, ["y\u{fffd}"]);
        let text = serde_json::to_string(&effects).unwrap();
        assert_eq!(serde_json::from_str::<Effects>(&text).unwrap(), effects);
    }

    #[test]
    fn without_tracking_the_lists_say_nothing() {
        let effects = Effects::new(None, None, progress(), None);
        assert!(!effects.files_tracked && effects.files_created.is_empty());
    }
}
