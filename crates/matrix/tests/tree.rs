//! Directories that are changed in every possible way, and reset.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use retake_matrix::tree::{TreeChanges, TreeSnapshot};

struct Tree {
    temp: tempfile::TempDir,
}

impl Tree {
    fn new() -> Self {
        let tree = Self { temp: tempfile::tempdir().unwrap() };
        fs::create_dir_all(tree.path("deep/er")).unwrap();
        fs::create_dir(tree.path("empty")).unwrap();
        fs::write(tree.path("file"), "one\n").unwrap();
        fs::write(tree.path("deep/er/program"), "binary").unwrap();
        fs::set_permissions(tree.path("deep/er/program"), Permissions::from_mode(0o755)).unwrap();
        fs::write(tree.path("linked"), "many names").unwrap();
        fs::hard_link(tree.path("linked"), tree.path("deep/also-linked")).unwrap();
        symlink("../file", tree.path("deep/link")).unwrap();
        fs::write(tree.path("strange \u{fc} \n name"), "x").unwrap();
        // Old timestamps, which no new write produces.
        tree.sh("find . -depth -exec touch -h -d 2001-02-03T04:05:06.123456789Z {} +");
        tree
    }

    fn root(&self) -> PathBuf {
        self.temp.path().join("tree")
    }

    fn path(&self, name: &str) -> PathBuf {
        fs::create_dir_all(self.root()).unwrap();
        self.root().join(name)
    }

    fn store(&self) -> PathBuf {
        self.temp.path().join("store")
    }

    fn sh(&self, script: &str) {
        let ran = Command::new("sh").args(["-ec", script]).current_dir(self.root()).output();
        let ran = ran.unwrap();
        assert!(ran.status.success(), "{script}: {ran:?}");
    }

    /// Everything that a build system may examine.
    fn listing(&self) -> Vec<String> {
        fn walk(root: &Path, path: &Path, lines: &mut Vec<String>) {
            let meta = fs::symlink_metadata(path).unwrap();
            let content = match path {
                path if meta.is_symlink() => {
                    fs::read_link(path).unwrap().into_os_string().into_encoded_bytes()
                }
                path if meta.is_file() => fs::read(path).unwrap(),
                _ => Vec::new(),
            };
            let links = if meta.is_dir() { 0 } else { meta.nlink() };
            lines.push(format!(
                "{:?} {:o} {}:{} {}.{} {links} {:?}",
                path.strip_prefix(root).unwrap(),
                meta.mode(),
                meta.uid(),
                meta.gid(),
                meta.mtime(),
                meta.mtime_nsec(),
                String::from_utf8_lossy(&content),
            ));
            if meta.is_dir() {
                let mut names: Vec<PathBuf> =
                    fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
                names.sort();
                names.iter().for_each(|path| walk(root, path, lines));
            }
        }
        let mut lines = Vec::new();
        walk(&self.root(), &self.root(), &mut lines);
        lines
    }
}

/// Changes that a command may make to its tree.
const CHANGES: [&str; 22] = [
    "echo two >> file",
    "printf 'two\\n' > file",
    // The same size and modification time.
    "printf 'two\\n' > file; touch -d 2001-02-03T04:05:06.123456789Z file",
    "touch file",
    "chmod 600 file",
    "chmod 000 file deep",
    "rm file",
    "mv file other",
    "cp file file.new && mv file.new file",
    "rm -r deep",
    "rm -r deep && echo x > deep",
    "rm file && mkdir file && echo x > file/inside",
    "rm deep/link && ln -s elsewhere deep/link",
    "rm deep/link && cp file deep/link",
    "echo more >> linked",
    "rm linked && printf 'many names' > linked",
    "rm deep/also-linked",
    "mkdir -p new/er && echo x > new/er/file && chmod 555 new/er new",
    "mkfifo pipe; ln -s nowhere dangling; echo x > empty/file",
    "rmdir empty",
    "touch deep; touch .",
    "chmod 755 empty; chmod 500 deep/er; echo x > deep/er/program",
];

#[test]
fn a_reset_undoes_every_kind_of_change() {
    let tree = Tree::new();
    let before = tree.listing();
    let mut snapshot = TreeSnapshot::take(&tree.root(), &tree.store()).unwrap();
    assert_eq!(tree.listing(), before, "taking a snapshot changes nothing");
    for change in CHANGES {
        tree.sh(change);
        let changes = snapshot.reset().unwrap();
        assert_eq!(tree.listing(), before, "{change}");
        if !change.contains("touch deep") {
            assert!(!changes.is_empty(), "{change}");
        }
        assert_eq!(snapshot.reset().unwrap(), TreeChanges::default(), "{change}: nothing is left");
    }
    // All of them combined, as far as possible.
    for change in CHANGES {
        _ = Command::new("sh").args(["-c", change]).current_dir(tree.root()).output();
    }
    snapshot.reset().unwrap();
    assert_eq!(tree.listing(), before);
}

#[test]
fn a_reset_reports_removed_and_restored_files() {
    let tree = Tree::new();
    let mut snapshot = TreeSnapshot::take(&tree.root(), &tree.store()).unwrap();
    tree.sh("echo x > new; echo x > file; rm -r empty");
    let changes = snapshot.reset().unwrap();
    let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
    assert_eq!(changes.removed, paths(&["new"]));
    let mut restored = changes.restored;
    restored.sort();
    assert_eq!(restored, paths(&["empty", "file"]));
}

#[test]
fn the_next_process_knows_it_too() {
    let tree = Tree::new();
    let before = tree.listing();
    let mut snapshot = TreeSnapshot::take(&tree.root(), &tree.store()).unwrap();
    tree.sh("echo x > file; rm linked");
    snapshot.reset().unwrap();
    snapshot.save().unwrap();
    let mut again = TreeSnapshot::load(&tree.root(), &tree.store()).unwrap();
    assert_eq!(again.reset().unwrap(), TreeChanges::default());
    tree.sh("echo x > file; rm deep/also-linked");
    drop(again);
    let mut again = TreeSnapshot::load(&tree.root(), &tree.store()).unwrap();
    again.reset().unwrap();
    assert_eq!(tree.listing(), before);
    // Even if the whole directory is missing, and the list was not saved after a reset.
    fs::remove_dir_all(tree.root()).unwrap();
    let mut again = TreeSnapshot::load(&tree.root(), &tree.store()).unwrap();
    again.reset().unwrap();
    assert_eq!(tree.listing(), before);
}

#[test]
fn an_incomplete_snapshot_is_not_loaded() {
    let tree = Tree::new();
    TreeSnapshot::take(&tree.root(), &tree.store()).unwrap();
    assert!(TreeSnapshot::load(&tree.root(), &tree.store()).is_some());
    let list = tree.store().join("list.jsonl");
    let text = fs::read(&list).unwrap();
    fs::write(&list, &text[..text.len() - 9]).unwrap();
    assert!(TreeSnapshot::load(&tree.root(), &tree.store()).is_none());
    fs::remove_file(&list).unwrap();
    assert!(TreeSnapshot::load(&tree.root(), &tree.store()).is_none());
}
