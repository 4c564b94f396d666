//! What in a recording changes files.

use retake_crash::operation::{Action, Entry, Recording};

/// Whether the program changed anything: syncs and closes change nothing.
pub fn changes_anything(recording: &Recording) -> bool {
    recording.entries.iter().any(is_change)
}

/// Whether an entry of a recording changes files.
pub(crate) fn is_change(entry: &Entry) -> bool {
    match entry {
        Entry::Operation(operation) => !matches!(
            operation.action,
            Action::Sync { .. }
                | Action::SyncPart { .. }
                | Action::SyncRange { .. }
                | Action::SyncAll
                | Action::Close { .. }
        ),
        _ => false,
    }
}
