//! The tracker against a model of the same operations: random edits, renames, chmods, links and
//! ignored paths, with and without a cache, over several snapshots.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod files_support;
mod no_secrets;

use no_secrets::NoSecrets;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use files_support::TrackedTree;
use proptest::prelude::*;
use proptest::sample::select;
use retake_effects::files::Changes;

const PATHS: [&str; 12] = [
    "a",
    "b",
    "c.log",
    "d/a",
    "d/b",
    "d/e/a",
    "d/e/c.log",
    "out/a",
    "out/b",
    "f/g/h/a",
    "f/b",
    "z",
];
const CONTENTS: [&str; 6] = ["", "x\n", "y\n", "x\ny\n", "x\nz\ny\n", "no newline"];

#[derive(Debug, Clone)]
enum Deed {
    Write(&'static str, &'static str),
    /// An edit that keeps the size and restores the mtime.
    Sneak(&'static str),
    Touch(&'static str),
    Remove(&'static str),
    Rename(&'static str, &'static str),
    Chmod(&'static str, u32),
    Link(&'static str, &'static str),
    /// A directory and everything in it.
    RemoveAll(&'static str),
    MoveAll(&'static str, &'static str),
    Snapshot,
    /// A snapshot after all changes are safely in the past.
    Settle,
    /// As in a new process.
    Restart,
}

fn deed() -> impl Strategy<Value = Deed> {
    let path = || select(PATHS.to_vec());
    let directory = || select(vec!["d", "d/e", "f", "f/g", "out", "moved"]);
    prop_oneof![
        6 => (path(), select(CONTENTS.to_vec())).prop_map(|(p, c)| Deed::Write(p, c)),
        3 => path().prop_map(Deed::Sneak),
        2 => path().prop_map(Deed::Touch),
        3 => path().prop_map(Deed::Remove),
        5 => (path(), path()).prop_map(|(from, to)| Deed::Rename(from, to)),
        2 => (path(), select(vec![0o644, 0o755, 0o600])).prop_map(|(p, m)| Deed::Chmod(p, m)),
        2 => (path(), select(vec!["a", "d", "nowhere"])).prop_map(|(p, t)| Deed::Link(p, t)),
        1 => directory().prop_map(Deed::RemoveAll),
        1 => (directory(), directory()).prop_map(|(from, to)| Deed::MoveAll(from, to)),
        3 => Just(Deed::Snapshot),
        2 => Just(Deed::Settle),
        1 => Just(Deed::Restart),
    ]
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Thing {
    File { content: String, mode: u32 },
    Link(String),
}

impl Thing {
    fn content(&self) -> (&str, bool) {
        match self {
            Self::File { content, .. } => (content, false),
            Self::Link(target) => (target, true),
        }
    }
}

type Model = BTreeMap<PathBuf, Thing>;

/// `out/` and `*.log` are ignored.
fn counted(model: &Model) -> Model {
    let counts = |path: &Path| !path.starts_with("out") && path.extension() != Some("log".as_ref());
    model.iter().filter(|(path, _)| counts(path)).map(|(p, t)| (p.clone(), t.clone())).collect()
}

fn perform(tree: &TrackedTree, model: &mut Model, deed: &Deed) {
    let there = |model: &Model, path: &str| model.contains_key(Path::new(path));
    // A path that is a directory, or is below a file, cannot be written.
    let free = |model: &Model, path: &str| {
        !model.keys().any(|known| {
            (known.starts_with(path) && known != Path::new(path))
                || (Path::new(path).starts_with(known) && known != Path::new(path))
        }) && !tree.at(path).symlink_metadata().is_ok_and(|m| m.is_dir())
    };
    match *deed {
        Deed::Write(path, content) if free(model, path) => {
            if matches!(model.get(Path::new(path)), Some(Thing::Link(_))) {
                tree.remove(path);
            }
            let mode = match model.get(Path::new(path)) {
                Some(Thing::File { mode, .. }) => *mode,
                _ => 0o644,
            };
            tree.put(path, content);
            tree.chmod(path, mode);
            model.insert(path.into(), Thing::File { content: content.into(), mode });
        }
        Deed::Sneak(path) => {
            if let Some(Thing::File { content, .. }) = model.get_mut(Path::new(path)) {
                let mtime = std::fs::metadata(tree.at(path)).unwrap().modified().unwrap();
                let other: String =
                    content.chars().map(|c| if c == 'x' { 'y' } else { c }).collect();
                std::fs::write(tree.at(path), &other).unwrap();
                let file = std::fs::File::options().write(true).open(tree.at(path)).unwrap();
                file.set_modified(mtime).unwrap();
                *content = other;
            }
        }
        Deed::Touch(path) => {
            if let Some(Thing::File { .. }) = model.get(Path::new(path)) {
                let file = std::fs::File::options().write(true).open(tree.at(path)).unwrap();
                file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
            }
        }
        Deed::Remove(path) if there(model, path) => {
            tree.remove(path);
            model.remove(Path::new(path));
        }
        Deed::Rename(from, to) if there(model, from) && free(model, to) => {
            tree.rename(from, to);
            if let Some(thing) = model.remove(Path::new(from)) {
                model.insert(to.into(), thing);
            }
        }
        Deed::Chmod(path, wanted) => {
            if let Some(Thing::File { mode, .. }) = model.get_mut(Path::new(path)) {
                tree.chmod(path, wanted);
                *mode = wanted;
            }
        }
        Deed::Link(path, target) if free(model, path) => {
            if there(model, path) {
                tree.remove(path);
            }
            std::fs::create_dir_all(tree.at(path).parent().unwrap()).unwrap();
            tree.link(target, path);
            model.insert(path.into(), Thing::Link(target.into()));
        }
        Deed::RemoveAll(path) if tree.at(path).is_dir() => {
            std::fs::remove_dir_all(tree.at(path)).unwrap();
            model.retain(|known, _| !known.starts_with(path));
        }
        Deed::MoveAll(from, to)
            if tree.at(from).is_dir()
                && tree.at(to).symlink_metadata().is_err()
                && !Path::new(to).starts_with(from)
                && tree.at(to).parent().unwrap().is_dir() =>
        {
            std::fs::rename(tree.at(from), tree.at(to)).unwrap();
            let moved: Vec<_> =
                model.keys().filter(|known| known.starts_with(from)).cloned().collect();
            for known in moved {
                let thing = model.remove(&known).unwrap();
                model.insert(Path::new(to).join(known.strip_prefix(from).unwrap()), thing);
            }
        }
        _ => {}
    }
}

fn check(before: &Model, after: &Model, found: &Changes) {
    let set = |paths: &[PathBuf]| paths.iter().cloned().collect::<BTreeSet<_>>();
    let gone: BTreeSet<_> = before.keys().filter(|p| !after.contains_key(*p)).cloned().collect();
    let new: BTreeSet<_> = after.keys().filter(|p| !before.contains_key(*p)).cloned().collect();
    let (mut from, mut to) = (set(&found.deleted), set(&found.created));
    let mut modified: BTreeSet<_> = (before.iter())
        .filter(|(path, thing)| after.get(*path).is_some_and(|now| now != *thing))
        .map(|(path, _)| path.clone())
        .collect();
    for rename in &found.renamed {
        let (old, now) = (&before[&rename.from], &after[&rename.to]);
        assert_eq!(old.content(), now.content(), "{rename:?}");
        assert_ne!(old.content().0, "", "{rename:?}");
        if old != now {
            modified.insert(rename.to.clone());
        }
        assert!(from.insert(rename.from.clone()) && to.insert(rename.to.clone()), "{rename:?}");
    }
    assert_eq!((from, to, set(&found.modified)), (gone, new, modified));
    for old in &found.deleted {
        for now in &found.created {
            let (old, now) = (before[old].content(), after[now].content());
            assert!(old != now || old.0.is_empty(), "a rename was missed: {old:?}");
        }
    }
    assert_eq!(found.unreadable, [""; 0].map(PathBuf::from));
    let lists = [&found.created, &found.modified, &found.deleted];
    assert!(lists.iter().all(|list| list.is_sorted_by_key(|path| path.as_os_str())));

    let count = |thing: Option<&Thing>| match thing {
        Some(Thing::File { content, .. }) => Some(content.lines().count() as i64),
        Some(Thing::Link(_)) => None,
        None => Some(0),
    };
    let touched = lists.into_iter().flatten();
    let renamed: BTreeSet<_> = found.renamed.iter().map(|rename| &rename.to).collect();
    for path in touched.filter(|path| !renamed.contains(path)) {
        let expected = count(before.get(path)).zip(count(after.get(path)));
        let lines = found.lines.get(path);
        let difference = lines.map(|lines| lines.added as i64 - lines.removed as i64);
        assert_eq!(difference, expected.map(|(old, now)| now - old), "{path:?}");
        if let (
            Some(Thing::File { content: old, .. }),
            Some(Thing::File { content: now, .. }),
            Some(lines),
        ) = (before.get(path), after.get(path), lines)
        {
            assert_eq!(old == now, lines.added == 0 && lines.removed == 0, "{path:?}");
        }
    }
}

fn play(deeds: &[Deed], cached: bool) {
    let tree = TrackedTree::with(&[(".gitignore", "out/\n*.log\n")]);
    let fresh = || if cached { tree.cached() } else { tree.tracker() };
    let ignores = Thing::File { content: "out/\n*.log\n".into(), mode: 0o644 };
    let mut model = Model::from([(".gitignore".into(), ignores)]);
    tree.chmod(".gitignore", 0o644);
    let mut tracker = fresh();
    let mut before = tracker.snapshot().unwrap();
    let mut known = counted(&model);
    for deed in deeds.iter().chain([&Deed::Snapshot]) {
        match deed {
            Deed::Snapshot | Deed::Settle => {
                if matches!(deed, Deed::Settle) {
                    std::thread::sleep(std::time::Duration::from_millis(12));
                }
                let after = tracker.snapshot().unwrap();
                let now = counted(&model);
                check(&known, &now, &before.changes(&after));
                let all: Vec<_> = now.keys().cloned().collect();
                assert_eq!(after.paths(), all);
                (before, known) = (after, now);
            }
            Deed::Restart if cached => {
                tracker.save(&mut NoSecrets).unwrap();
                tracker = tree.cached();
                before = tracker.last().unwrap();
            }
            deed => perform(&tree, &mut model, deed),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_tracker_says_what_was_done(deeds in prop::collection::vec(deed(), 1..40), cached: bool) {
        play(&deeds, cached);
    }
}
