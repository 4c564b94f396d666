//! The cache between processes: used only if it is exactly right.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod files_support;
mod no_secrets;

use no_secrets::NoSecrets;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use files_support::{TrackedTree, lines, paths, shown};
use retake_effects::files::{Error, Tracker, TrackingRules, cache_name, clear_cache};

fn keep(tree: &TrackedTree) {
    let mut tracker = tree.cached();
    tracker.snapshot().unwrap();
    tracker.save(&mut NoSecrets).unwrap();
}

fn named(tree: &TrackedTree, start: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(tree.cache()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(start)).collect()
}

fn only(tree: &TrackedTree, start: &str) -> PathBuf {
    let found = named(tree, start);
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().unwrap()
}

#[test]
fn the_next_process_goes_on_where_the_last_one_stopped() {
    let tree = TrackedTree::with(&[("a", "1\n2\n3\n"), ("b/c", "x\n"), ("d", "gone\n")]);
    keep(&tree);
    let mut tracker = tree.cached();
    let before = tracker.last().unwrap();
    assert_eq!(paths(&before), ["a", "b/c", "d"]);
    tree.put("a", "1\n3\n4\n5\n");
    tree.remove("d");
    let changes = before.changes(&tracker.snapshot().unwrap());
    assert_eq!(shown(&changes), ["~a", "-d"]);
    assert_eq!(lines(&changes, "a"), Some((2, 1)));
    assert_eq!(lines(&changes, "d"), Some((0, 1)));
    assert!(tracker.problem().is_none());
}

#[test]
fn an_unchanged_tree_does_not_rewrite_the_cache() {
    let tree = TrackedTree::with(&[("a", "1"), ("b", "2")]);
    tree.settle("b");
    tree.settle("");
    keep(&tree);
    let inode = |tree: &TrackedTree| std::fs::metadata(tree.cache().join("cache")).unwrap().ino();
    let first = inode(&tree);
    keep(&tree);
    assert_eq!(inode(&tree), first);
    tree.put("a", "3");
    keep(&tree);
    assert_ne!(inode(&tree), first);
}

#[test]
fn the_cache_is_private_and_contains_no_file_contents() {
    let tree = TrackedTree::with(&[("a", "PASSWORD=hunter2hunter2\n")]);
    keep(&tree);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&tree.cache()), 0o700);
    let files = named(&tree, "");
    assert_eq!(files.len(), 3);
    for file in files {
        assert_eq!(mode(&file), 0o600, "{file:?}");
        let content = std::fs::read(&file).unwrap();
        assert!(memchr::memmem::find(&content, b"hunter2").is_none(), "{file:?}");
    }
    // The permissions of a directory that others can read are corrected.
    std::fs::set_permissions(tree.cache(), PermissionsExt::from_mode(0o755)).unwrap();
    keep(&tree);
    assert_eq!(mode(&tree.cache()), 0o700);
}

#[test]
fn a_damaged_cache_is_built_anew() {
    let tree = TrackedTree::with(&[("a", "1\n"), ("b/c", "2\n")]);
    tree.link("a", "link");
    tree.settle("link");
    keep(&tree);
    let file = only(&tree, "cache");
    let whole = std::fs::read(&file).unwrap();
    let truth = tree.tracker().snapshot().unwrap();
    let cases = (0..whole.len())
        .map(|at| {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x41;
            damaged
        })
        .chain((0..whole.len()).map(|end| whole[..end].to_vec()))
        .chain([[&whole[..], b"more"].concat()]);
    for (at, damaged) in cases.enumerate() {
        std::fs::write(&file, &damaged).unwrap();
        let mut tracker = tree.cached();
        assert!(tracker.last().is_none(), "believed: {damaged:?}");
        // It suffices that nothing was used; a few positions are examined further.
        if at % 97 == 0 {
            let found = tracker.snapshot().unwrap();
            assert_eq!(shown(&truth.changes(&found)), [""; 0]);
        }
    }
    std::fs::write(&file, &whole).unwrap();
    assert!(tree.cached().last().is_some());
}

#[test]
fn another_root_s_cache_is_not_believed() {
    let (one, other) = (TrackedTree::with(&[("a", "1")]), TrackedTree::with(&[("a", "2")]));
    keep(&one);
    let mut tracker =
        Tracker::new(&other.root(), TrackingRules::new()).unwrap().with_cache(&one.cache());
    assert!(tracker.last().is_none());
    assert_ne!(cache_name(&one.root()), cache_name(&other.root()));
    assert_eq!(cache_name(&one.root()), cache_name(&one.at("../tree")));
}

#[test]
fn lines_that_are_lost_or_damaged_are_unknown_and_nothing_else() {
    let tree = TrackedTree::with(&[("a", "1\n2\n"), ("b", "3\n")]);
    tree.settle("b");
    keep(&tree);
    let file = only(&tree, "lines-");
    let whole = std::fs::read(&file).unwrap();
    tree.put("a", "1\n");
    let mut counted = 0;
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&file, damaged).unwrap();
        let mut tracker = tree.cached();
        let before = tracker.last().unwrap();
        let changes = before.changes(&tracker.snapshot().unwrap());
        assert_eq!(shown(&changes), ["~a"]);
        let found = lines(&changes, "a");
        assert!(found.is_none() || found == Some((0, 1)), "byte {at}: {found:?}");
        counted += usize::from(found.is_some());
    }
    assert!(counted > 0 && counted < whole.len() - 16, "{counted}");
    std::fs::remove_file(&file).unwrap();
    let mut tracker = tree.cached();
    let before = tracker.last().unwrap();
    let changes = before.changes(&tracker.snapshot().unwrap());
    assert_eq!((shown(&changes), lines(&changes, "a")), (vec!["~a".to_owned()], None));
    // From here on they are known again.
    tracker.save(&mut NoSecrets).unwrap();
    tree.put("a", "1\n2\n3\n");
    let before = tracker.last().unwrap();
    assert_eq!(lines(&before.changes(&tracker.snapshot().unwrap()), "a"), Some((2, 0)));
}

#[test]
fn lines_that_someone_removed_while_they_were_in_use_are_written_again() {
    let tree = TrackedTree::with(&[("a", "1\n2\n")]);
    let mut tracker = tree.cached();
    tracker.snapshot().unwrap();
    tracker.save(&mut NoSecrets).unwrap();
    std::fs::remove_file(only(&tree, "lines-")).unwrap();
    tree.put("b", "3\n");
    tracker.snapshot().unwrap();
    tracker.save(&mut NoSecrets).unwrap();
    drop(tracker);
    let mut tracker = tree.cached();
    let before = tracker.last().unwrap();
    tree.put("a", "2\n");
    assert_eq!(lines(&before.changes(&tracker.snapshot().unwrap()), "a"), Some((0, 1)));
}

#[test]
fn dead_lines_are_tidied_away_and_the_living_stay() {
    let tree = TrackedTree::with(&[("stays", "a\nb\n")]);
    let mut tracker = tree.cached();
    tracker.snapshot().unwrap();
    tracker.save(&mut NoSecrets).unwrap();
    for round in 0..6 {
        for file in 0..400 {
            tree.put(&format!("changes/{file}"), format!("{round} {file}\n"));
        }
        tracker.snapshot().unwrap();
    }
    let before = named(&tree, "lines-");
    tracker.save(&mut NoSecrets).unwrap();
    assert_ne!(named(&tree, "lines-"), before);
    let size = || std::fs::metadata(only(&tree, "lines-")).unwrap().len();
    assert!(size() < 30_000 + 8 * 1024, "{}", size());
    drop(tracker);
    let mut tracker = tree.cached();
    let before = tracker.last().unwrap();
    tree.put("stays", "b\n");
    tree.put("changes/7", "");
    let changes = before.changes(&tracker.snapshot().unwrap());
    assert_eq!(lines(&changes, "stays"), Some((0, 1)));
    assert_eq!(lines(&changes, "changes/7"), Some((0, 1)));
}

/// A log file: each change adds a record of all its lines, and makes the one before it dead.
#[test]
fn the_cache_of_a_growing_file_stays_small() {
    let tree = TrackedTree::with(&[("stays", "a\nb\n")]);
    let mut text = String::new();
    let mut tracker = tree.cached();
    for round in 0..100 {
        (0..200).for_each(|line| text += &format!("{round} {line}\n"));
        tree.put("log", &text);
        tracker.snapshot().unwrap();
        tracker.save(&mut NoSecrets).unwrap();
        // Every tenth round starts a new process.
        if round % 10 == 9 {
            tracker = tree.cached();
        }
    }
    let kept: u64 =
        named(&tree, "lines-").iter().map(|name| std::fs::metadata(name).unwrap().len()).sum();
    // The records of 20,000 lines take 160 kB; those of all rounds together take 8 MB.
    assert!(kept < 2 << 20, "{kept}");
    let before = tracker.last().unwrap();
    tree.put("log", text + "one more\n");
    tree.put("stays", "b\n");
    let changes = before.changes(&tracker.snapshot().unwrap());
    assert_eq!(lines(&changes, "log"), Some((1, 0)));
    assert_eq!(lines(&changes, "stays"), Some((0, 1)));
}

#[test]
fn two_at_once_do_each_other_no_harm() {
    let tree = TrackedTree::with(&[("a", "1\n"), ("b", "2\n")]);
    keep(&tree);
    std::thread::scope(|scope| {
        for who in 0..4 {
            let tree = &tree;
            scope.spawn(move || {
                let own = format!("own/{who}");
                tree.put(&own, "start\n");
                let mut tracker = tree.cached();
                let mut before = tracker.snapshot().unwrap();
                for round in 0..15 {
                    tree.put(&own, format!("{round}\nmore\n"));
                    let after = tracker.snapshot().unwrap();
                    let changes = before.changes(&after);
                    assert!(changes.modified.contains(&own.clone().into()), "{changes:?}");
                    let count = lines(&changes, &own);
                    assert!(matches!(count, Some((1 | 2, 1))), "{count:?}");
                    tracker.save(&mut NoSecrets).unwrap();
                    before = after;
                    // Occasionally as a new process.
                    if round % 5 == 4 {
                        tracker = tree.cached();
                    }
                }
            });
        }
    });
    let mut tracker = tree.cached();
    let kept = tracker.last().unwrap();
    let after = tracker.snapshot().unwrap();
    assert_eq!(shown(&tree.tracker().snapshot().unwrap().changes(&after)), [""; 0]);
    assert!(kept.len() == 6, "{:?}", kept.paths());
    tracker.save(&mut NoSecrets).unwrap();
    // Files left by the others are removed with the next change.
    tree.put("a", "3\n");
    tracker.snapshot().unwrap();
    tracker.save(&mut NoSecrets).unwrap();
    let segments = named(&tree, "lines-").len();
    assert!(segments <= 8, "{segments}");
}

#[test]
fn a_process_that_does_not_save_leaves_no_files() {
    let tree = TrackedTree::with(&[("a", "1\n")]);
    let mut tracker = tree.cached();
    tracker.snapshot().unwrap();
    assert_eq!(named(&tree, "lines-").len(), 1);
    drop(tracker);
    assert_eq!(named(&tree, "").len(), 0);
}

#[test]
fn a_cache_that_cannot_be_written_only_costs_time() {
    let tree = TrackedTree::with(&[("a", "1\n")]);
    std::fs::write(tree.cache().parent().unwrap().join(""), "").ok();
    std::fs::write(tree.root().parent().unwrap().join("kept"), "in the way").unwrap();
    let mut tracker = tree.cached();
    let before = tracker.snapshot().unwrap();
    assert!(matches!(tracker.problem(), Some(Error::Cache { .. })));
    tree.put("a", "2\n3\n");
    let changes = before.changes(&tracker.snapshot().unwrap());
    assert_eq!(lines(&changes, "a"), Some((2, 1)));
    assert!(matches!(tracker.save(&mut NoSecrets), Err(Error::Cache { .. })));
}

#[test]
fn clearing_the_cache_removes_only_its_files() {
    let tree = TrackedTree::with(&[("a", "1\n")]);
    keep(&tree);
    clear_cache(&tree.cache()).unwrap();
    assert!(!tree.cache().exists());
    clear_cache(&tree.cache()).unwrap();
    keep(&tree);
    std::fs::write(tree.cache().join("somebody's"), "").unwrap();
    assert!(clear_cache(&tree.cache()).is_err());
    assert_eq!(named(&tree, "").len(), 1);
}

#[test]
fn a_cache_within_the_tree_is_not_part_of_it() {
    let tree = TrackedTree::with(&[("a", "1\n")]);
    let cache = tree.at(".agent/data/snapshots").join(cache_name(&tree.root()));
    for _ in 0..2 {
        let mut tracker = tree.tracker().with_cache(&cache);
        assert_eq!(paths(&tracker.snapshot().unwrap()), ["a"]);
        tracker.save(&mut NoSecrets).unwrap();
    }
}
