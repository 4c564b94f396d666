//! Which files count.

mod files_support;

use std::path::Path;
use std::process::Command;

use files_support::{TrackedTree, paths, shown};
use retake_effects::files::{Tracker, TrackingRules};

#[test]
fn ignore_files_hold_without_git() {
    let tree = TrackedTree::with(&[
        (".gitignore", "*.o\n/target/\n!keep.o\n"),
        (".ignore", "notes\n"),
        ("a.o", ""),
        ("keep.o", ""),
        ("src/b.o", ""),
        ("src/target/c", ""),
        ("target/d", ""),
        ("notes", ""),
        ("sub/.gitignore", "\u{feff}e\n[bad\n"),
        ("sub/e", ""),
        ("sub/f", ""),
    ]);
    let counted = tree.paths(TrackingRules::new());
    assert_eq!(
        counted,
        [".gitignore", ".ignore", "keep.o", "src/target/c", "sub/.gitignore", "sub/f"]
    );
}

#[test]
fn dot_ignore_outranks_gitignore_and_the_configured_list_outranks_both() {
    let tree = TrackedTree::with(&[
        (".gitignore", "a\nb\n"),
        (".ignore", "!a\n!b\nc\n"),
        ("a", ""),
        ("b", ""),
        ("c", ""),
        ("d/e", ""),
    ]);
    assert_eq!(tree.paths(TrackingRules::new()), [".gitignore", ".ignore", "a", "b", "d/e"]);
    let rules = TrackingRules::new().ignore(["b", "!c", "d/"]).unwrap();
    assert_eq!(tree.paths(rules), [".gitignore", ".ignore", "a", "c"]);
}

#[test]
fn git_s_own_data_and_retake_s_never_count() {
    let tree = TrackedTree::with(&[
        (".git/config", ""),
        ("sub/.git", "gitdir: elsewhere"),
        (".agent/config.yml", ""),
        (".agent/data/retake.db", ""),
        (".agent/worktrees/a/b", ""),
        ("sub/.agent/data/x", ""),
        ("data/x", ""),
        ("store/y", ""),
        ("z", ""),
    ]);
    let rules = TrackingRules::new().exclude(Path::new("store")).exclude(Path::new("z"));
    assert_eq!(tree.paths(rules), [".agent/config.yml", "data/x"]);
}

#[test]
fn a_workspace_s_work_counts_though_its_surroundings_are_ignored() {
    let tree = TrackedTree::with(&[
        (".agent/.gitignore", "*\n"),
        (".agent/config.yml", ""),
        (".agent/workspaces/one/TODO.md", ""),
        (".agent/workspaces/one/working/a.rs", ""),
        (".agent/workspaces/one/working/.gitignore", "*.tmp\n"),
        (".agent/workspaces/one/working/b.tmp", ""),
        (".agent/workspaces/one/working/deep/c", ""),
        (".agent/workspaces/two/reports/r.md", ""),
        (".agent/workspaces/two/other/x", ""),
        (".agent/data/working/x", ""),
    ]);
    let work = [
        ".agent/workspaces/one/working/.gitignore",
        ".agent/workspaces/one/working/a.rs",
        ".agent/workspaces/one/working/deep/c",
        ".agent/workspaces/two/reports/r.md",
    ];
    assert_eq!(tree.paths(TrackingRules::new()), work);
    // A tracker that knows the other workspaces finds a new one.
    let mut tracker = tree.tracker();
    let before = tracker.snapshot().unwrap();
    tree.put(".agent/workspaces/three/working/new", "1");
    tree.put(".agent/workspaces/three/.status.json", "{}");
    let after = tracker.snapshot().unwrap();
    assert_eq!(shown(&before.changes(&after)), ["+.agent/workspaces/three/working/new"]);
    // A tracked workspace counts regardless of rules above it.
    tree.put(".git/HEAD", "");
    let working = tree.at(".agent/workspaces/one/working");
    let mut tracker = Tracker::new(&working, TrackingRules::new()).unwrap();
    assert_eq!(paths(&tracker.snapshot().unwrap()), [".gitignore", "a.rs", "deep/c"]);
}

#[test]
fn included_paths_are_tracked_and_excludes_take_precedence() {
    let tree = TrackedTree::with(&[
        (".gitignore", "out\n"),
        ("out/a/x", ""),
        ("out/b/x", ""),
        ("out/f", ""),
    ]);
    let rules = TrackingRules::new().include(Path::new("out/a")).include(Path::new("out/f"));
    assert_eq!(tree.paths(rules.clone()), [".gitignore", "out/a/x", "out/f"]);
    assert_eq!(tree.paths(rules.exclude(Path::new("out/a"))), [".gitignore", "out/f"]);
}

#[test]
fn the_repository_above_the_root_speaks_unless_it_ignores_the_root() {
    let tree = TrackedTree::with(&[
        (".git/info/exclude", "*.bak\n"),
        (".gitignore", "*.o\n/sub/gen/\n/ignored/\n"),
        ("sub/a.o", ""),
        ("sub/a.bak", ""),
        ("sub/gen/b", ""),
        ("sub/c", ""),
        ("ignored/d.o", ""),
        ("ignored/.gitignore", "e\n"),
        ("ignored/e", ""),
    ]);
    let counted = |path: &str| {
        paths(&Tracker::new(&tree.at(path), TrackingRules::new()).unwrap().snapshot().unwrap())
    };
    assert_eq!(counted("sub"), ["c"]);
    assert_eq!(counted("ignored"), [".gitignore", "d.o"]);
    // Rules of an outer repository do not apply in a nested one.
    tree.put("sub/inner/.git/HEAD", "");
    tree.put("sub/inner/f.o", "");
    assert_eq!(counted("sub"), ["c", "inner/f.o"]);
}

#[test]
fn other_rules_neither_create_nor_delete() {
    let tree =
        TrackedTree::with(&[("a.log", "1"), ("logs/b", "2"), ("c", "3"), (".gitignore", "\n")]);
    tree.settle(".gitignore");
    let mut tracker = tree.tracker();
    let before = tracker.snapshot().unwrap();
    tree.put(".gitignore", "*.log\n/logs/\n");
    tree.remove("c");
    let ignored = tracker.snapshot().unwrap();
    assert_eq!(shown(&before.changes(&ignored)), ["~.gitignore", "-c"]);
    let still = tracker.snapshot().unwrap();
    assert_eq!(shown(&before.changes(&still)), ["~.gitignore", "-c"]);
    tree.settle(".gitignore");
    let ignored = tracker.snapshot().unwrap();
    tree.put(".gitignore", "");
    tree.put("logs/new", "4");
    let back = tracker.snapshot().unwrap();
    assert_eq!(shown(&ignored.changes(&back)), ["+logs/new", "~.gitignore"]);
    tree.remove("a.log");
    let gone = tracker.snapshot().unwrap();
    assert_eq!(shown(&back.changes(&gone)), ["-a.log"]);
}

#[test]
fn a_changed_ignore_file_is_seen_in_an_otherwise_unchanged_tree() {
    let tree =
        TrackedTree::with(&[(".gitignore", "aa\n"), ("aa", "1"), ("bb", "2"), ("d/aa", "3")]);
    tree.put(".git/info/exclude", "cc\n");
    tree.put("cc", "");
    tree.settle("cc");
    let mut tracker = tree.tracker();
    assert_eq!(paths(&tracker.snapshot().unwrap()), [".gitignore", "bb"]);
    tree.put(".gitignore", "bb\n");
    assert_eq!(paths(&tracker.snapshot().unwrap()), [".gitignore", "aa", "d/aa"]);
    tree.put(".git/info/exclude", "dd\n");
    assert_eq!(paths(&tracker.snapshot().unwrap()), [".gitignore", "aa", "cc", "d/aa"]);
}

/// Compares with git in a tree that uses most pattern features.
#[test]
fn git_agrees() {
    let patterns = [
        "# comment",
        "*.o",
        "!important.o",
        "/top",
        "dir/",
        "a/**/z",
        "**/deep/",
        "doc/*.txt",
        "\\!bang",
        "trail\\ ",
        "q?x",
        "[a-c]1",
        "foo/*",
        "!foo/bar",
        "nested/only",
    ];
    let tree = TrackedTree::with(&[(".gitignore", &patterns.join("\n"))]);
    tree.put("sub/.gitignore", "/w\n!y.o\n*.md\n");
    tree.put("sub/more/.gitignore", "!z.md\n");
    for name in [
        "a.o",
        "important.o",
        "top",
        "dir/f",
        "a/z",
        "a/b/z",
        "a/b/c/z",
        "x/deep/f",
        "deep",
        "doc/a.txt",
        "doc/b/c.txt",
        "!bang",
        "trail ",
        "qqx",
        "b1",
        "d1",
        "foo/bar",
        "foo/baz",
        "nested/only",
        "other/nested/only",
    ] {
        for within in ["", "sub/", "sub/more/", "else/"] {
            tree.put(&format!("{within}{name}"), "");
        }
    }
    for name in ["w", "y.o", "r.md", "more/w", "more/z.md", "more/y.o"] {
        tree.put(&format!("sub/{name}"), "");
    }
    let git = |words: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(tree.root()).args(words);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    git(&["init", "--quiet"]);
    let listed = git(&["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let mut expected: Vec<_> = listed.split_terminator('\0').collect();
    expected.sort_unstable();
    assert!(expected.len() > 30);
    assert_eq!(tree.paths(TrackingRules::new()), expected);
}
