//! Caches recent findings, so that a process that writes to the same files repeatedly is examined
//! less closely.
//!
//! A process can invalidate an entry only by a notified call, and each such call clears the cache
//! before it continues. Changes from outside the sandbox are noticed after a moment: the cache
//! affects only reports, not decisions.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::call::CallPath;

/// How long entries are kept. Process ids are not reused within this time.
const KEPT: Duration = Duration::from_millis(100);
/// How long a continued call may take to have its effect.
const UNDER_WAY: Duration = Duration::from_millis(5);
/// Maximum entries of each kind.
const MOST: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Recent {
    since: Option<Instant>,
    /// Working directories of processes.
    directories: HashMap<u32, PathBuf>,
    /// Paths of writable places, without symbolic links.
    harmless: HashSet<CallPath>,
    /// Processes whose last call may still invalidate entries.
    under_way: Vec<(u32, Instant)>,
}

impl Recent {
    /// A process makes a call. `moves` says that the call may change a working directory, or where
    /// a path leads.
    pub(super) fn begin(&mut self, pid: u32, moves: bool, now: Instant) {
        let is_old = |since: &Instant| now.saturating_duration_since(*since) >= KEPT;
        if moves || self.since.as_ref().is_none_or(is_old) {
            self.directories.clear();
            self.harmless.clear();
            self.since = Some(now);
        }
        // A task that makes another call has finished its last one.
        self.under_way.retain(|(other, since)| {
            *other != pid && now.saturating_duration_since(*since) < UNDER_WAY
        });
        if moves {
            self.under_way.push((pid, now));
        }
    }

    pub(super) fn directory(&self, pid: u32) -> Option<&Path> {
        self.directories.get(&pid).map(PathBuf::as_path)
    }

    pub(super) fn note_directory(&mut self, pid: u32, directory: &Path) {
        if self.under_way.is_empty() && self.directories.len() < MOST {
            self.directories.insert(pid, directory.to_owned());
        }
    }

    pub(super) fn is_harmless(&self, path: &CallPath) -> bool {
        self.harmless.contains(path)
    }

    pub(super) fn note_harmless(&mut self, path: CallPath) {
        if self.under_way.is_empty() && self.harmless.len() < MOST {
            self.harmless.insert(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::call::Wants;
    use super::*;

    #[test]
    fn a_rename_clears_the_cache_and_blocks_new_entries_until_it_ends() {
        let path = || CallPath { path: "/p/file".into(), wants: Wants::File, follow: true };
        let mut recent = Recent::default();
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let note = |recent: &mut Recent| {
            recent.note_directory(1, Path::new("/p"));
            recent.note_harmless(path());
        };
        let known = |recent: &Recent| {
            let [directory, harmless] =
                [recent.directory(1).is_some(), recent.is_harmless(&path())];
            assert_eq!(directory, harmless);
            harmless
        };
        recent.begin(1, false, at(0));
        note(&mut recent);
        recent.begin(1, false, at(50));
        assert!(known(&recent));
        recent.begin(1, false, at(100));
        assert!(!known(&recent), "kept for too long");
        note(&mut recent);
        recent.begin(2, true, at(110));
        assert!(!known(&recent));
        // The call of the other process may be unfinished.
        recent.begin(1, false, at(111));
        note(&mut recent);
        assert!(!known(&recent));
        recent.begin(1, false, at(115));
        note(&mut recent);
        assert!(known(&recent));
        // A process's own call is finished when its next one begins.
        recent.begin(1, true, at(116));
        recent.begin(1, false, at(117));
        note(&mut recent);
        assert!(known(&recent));
    }
}
