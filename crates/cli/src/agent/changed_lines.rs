//! How many lines an iteration added and removed, from the record of its run. A file without a count
//! (binary, or too large) gets none.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use retake_store::Store;
use retake_types::loop_record::agent::Iteration;
use retake_types::{Effects, LineChange};

#[derive(Default)]
pub(super) struct ChangedLines(BTreeMap<String, LineChange>);

impl ChangedLines {
    /// Without counts if the run has been erased from the record.
    pub(super) fn of(iteration: &Iteration, store: Option<&Store>) -> Self {
        let run = iteration.facts.run_id.zip(store).and_then(|(id, store)| store.get(id).ok());
        let outcome = run.as_ref().and_then(|run| run.outcome.as_ref());
        let effects = outcome.and_then(|outcome| outcome.effects.as_ref());
        let observed = effects.and_then(Effects::observations);
        Self(observed.map(|observed| observed.line_changes.clone()).unwrap_or_default())
    }

    /// `+12 -3` of one file.
    pub(super) fn in_file(&self, path: &Path) -> Option<String> {
        self.of_file(path).map(words)
    }

    /// `+12 -3` of all files that the iteration changed; `None` if any of them has no count.
    pub(super) fn in_all(&self, iteration: &Iteration) -> Option<String> {
        let result = iteration.result.as_ref()?;
        let lists = [&result.files_modified, &result.files_created, &result.files_deleted];
        let mut files = lists.into_iter().flatten().peekable();
        files.peek()?;
        let sum = files.map(|path: &PathBuf| self.of_file(path)).try_fold(
            LineChange::default(),
            |sum, file| {
                let file = file?;
                let added = sum.added.saturating_add(file.added);
                Some(LineChange { added, removed: sum.removed.saturating_add(file.removed) })
            },
        );
        sum.map(words)
    }

    fn of_file(&self, path: &Path) -> Option<LineChange> {
        self.0.get(path.to_str()?).copied()
    }
}

fn words(LineChange { added, removed }: LineChange) -> String {
    format!("+{added} -{removed}")
}
