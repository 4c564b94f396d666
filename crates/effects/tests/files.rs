//! Tests each promise about file changes individually.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod files_support;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use files_support::{TrackedTree, lines, shown};
use retake_effects::files::{Error, Tracker, TrackingRules};

#[test]
fn created_modified_deleted_and_renamed_in_order() {
    let tree =
        TrackedTree::with(&[("a", "1"), ("b/deep/er", "x\ny\n"), ("c", "2"), ("z", "moved")]);
    let changes = tree.during(|| {
        tree.put("new/2", "");
        tree.put("new/1", "one\ntwo\n");
        tree.put("b/deep/er", "x\nY\nz\n");
        tree.remove("a");
        tree.rename("z", "elsewhere/z");
    });
    assert_eq!(shown(&changes), ["+new/1", "+new/2", "~b/deep/er", "-a", "z>elsewhere/z"]);
    assert_eq!(lines(&changes, "b/deep/er"), Some((2, 1)));
    assert_eq!(lines(&changes, "new/1"), Some((2, 0)));
    assert_eq!(lines(&changes, "new/2"), Some((0, 0)));
    assert_eq!(lines(&changes, "a"), Some((0, 1)));
    assert_eq!(lines(&changes, "elsewhere/z"), None);
    assert!(tree.during(|| {}).is_empty());
}

#[test]
fn an_edit_that_keeps_size_and_mtime_is_detected() {
    let tree = TrackedTree::with(&[("a", "old"), ("b", "old")]);
    tree.settle("b");
    let mtime = std::fs::metadata(tree.at("a")).unwrap().modified().unwrap();
    let changes = tree.during(|| {
        tree.put("a", "new");
        let file = std::fs::File::options().write(true).open(tree.at("a")).unwrap();
        file.set_modified(mtime).unwrap();
    });
    assert_eq!(std::fs::metadata(tree.at("a")).unwrap().modified().unwrap(), mtime);
    assert_eq!(shown(&changes), ["~a"]);
}

#[test]
fn a_touch_or_the_same_content_again_is_no_change() {
    let tree = TrackedTree::with(&[("a", "same"), ("b", "same again"), ("c", "copied")]);
    tree.settle("c");
    let changes = tree.during(|| {
        let file = std::fs::File::options().write(true).open(tree.at("a")).unwrap();
        file.set_modified(std::time::SystemTime::now()).unwrap();
        tree.put("b", "same again");
        std::fs::copy(tree.at("c"), tree.at("c.new")).unwrap();
        tree.rename("c.new", "c");
    });
    assert_eq!(shown(&changes), [""; 0]);
}

#[test]
fn permissions_count() {
    let tree = TrackedTree::with(&[("a", "x\n")]);
    tree.chmod("a", 0o644);
    tree.settle("a");
    let changes = tree.during(|| tree.chmod("a", 0o755));
    assert_eq!(shown(&changes), ["~a"]);
    assert_eq!(lines(&changes, "a"), Some((0, 0)));
}

#[test]
fn links_count_by_their_target_and_are_not_followed() {
    let tree = TrackedTree::with(&[("real/file", "content"), ("outside", "x")]);
    tree.link("real", "directory");
    tree.link("..", "real/loop");
    tree.link("self", "self");
    tree.link("nowhere", "dangling");
    let changes = tree.during(|| {
        tree.put("real/file", "other");
        tree.remove("dangling");
        tree.link("outside", "dangling");
    });
    assert_eq!(shown(&changes), ["~dangling", "~real/file"]);
    assert_eq!(lines(&changes, "dangling"), None);
    assert_eq!(
        tree.paths(TrackingRules::new()),
        ["dangling", "directory", "outside", "real/file", "real/loop", "self"]
    );
}

#[test]
fn a_change_of_the_file_type_is_reported() {
    let tree = TrackedTree::with(&[("to_link", "target"), ("to_dir", "1"), ("from_dir/a", "2")]);
    tree.put("to_fifo", "3");
    tree.link("target", "from_link");
    let changes = tree.during(|| {
        tree.remove("to_link");
        tree.link("target", "to_link");
        tree.remove("from_link");
        tree.put("from_link", "target");
        tree.remove("to_dir");
        tree.put("to_dir/b", "4");
        std::fs::remove_dir_all(tree.at("from_dir")).unwrap();
        tree.put("from_dir", "5");
        tree.remove("to_fifo");
        fifo(&tree, "to_fifo");
    });
    assert_eq!(
        shown(&changes),
        ["+from_dir", "+to_dir/b", "~from_link", "~to_link", "-from_dir/a", "-to_dir", "-to_fifo"]
    );
}

fn fifo(tree: &TrackedTree, path: &str) {
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, tree.at(path), kind, mode, 0).unwrap();
}

#[test]
fn special_files_are_never_opened() {
    let tree = TrackedTree::with(&[("a", "1")]);
    let _socket = UnixListener::bind(tree.at("socket")).unwrap();
    fifo(&tree, "fifo");
    // Opening the FIFO for reading would wait for a writer forever.
    assert_eq!(tree.paths(TrackingRules::new()), ["a"]);
    let changes = tree.during(|| fifo(&tree, "another"));
    assert!(changes.is_empty() && changes.unreadable.is_empty());
}

#[test]
fn renames_prefer_the_inode_then_the_name_then_the_order() {
    let tree = TrackedTree::with(&[("a", "same"), ("b", "same"), ("c/n", "same"), ("d", "same")]);
    let changes = tree.during(|| {
        tree.rename("d", "y");
        tree.remove("a");
        tree.remove("b");
        tree.remove("c/n");
        tree.put("w/n", "same");
        tree.put("x", "same");
        tree.put("z", "same");
        tree.put("zz", "same");
    });
    // d kept its inode, n its name; a and b match in order, and zz has no origin left. Freed inodes
    // may be reused, but then with other content or for a matching file.
    assert_eq!(changes.renamed.len(), 4);
    let to = |from: &str| {
        let rename = changes.renamed.iter().find(|r| r.from == Path::new(from)).unwrap();
        rename.to.to_str().unwrap().to_owned()
    };
    assert_eq!(to("d"), "y");
    assert_eq!(changes.created.len(), 1);
    assert!(changes.deleted.is_empty());
}

#[test]
fn renames_need_content_and_keep_a_change_of_permissions() {
    let tree = TrackedTree::with(&[("empty", ""), ("tool", "#!/bin/sh\n"), ("edited", "one")]);
    tree.chmod("tool", 0o644);
    tree.link("tool", "link");
    let changes = tree.during(|| {
        tree.rename("empty", "void");
        tree.rename("tool", "bin/tool");
        tree.chmod("bin/tool", 0o755);
        tree.rename("edited", "edited2");
        tree.put("edited2", "two");
        tree.rename("link", "bin/link");
    });
    assert_eq!(
        shown(&changes),
        ["+edited2", "+void", "~bin/tool", "-edited", "-empty", "link>bin/link", "tool>bin/tool"]
    );
}

#[test]
fn file_names_need_not_be_utf8() {
    let tree = TrackedTree::new();
    let name = |bytes: &'static [u8]| tree.at(OsStr::from_bytes(bytes));
    std::fs::write(name(b"a\xff"), "1").unwrap();
    let changes = tree.during(|| {
        std::fs::write(name(b"a\xff"), "2").unwrap();
        std::fs::write(name(b"a\xfe\n"), "3").unwrap();
    });
    assert_eq!(changes.modified, [OsStr::from_bytes(b"a\xff")]);
    assert_eq!(changes.created, [OsStr::from_bytes(b"a\xfe\n")]);
}

#[test]
fn large_directories_and_paths_beyond_the_limit() {
    let tree = TrackedTree::new();
    for at in 0..3_000 {
        tree.put(&format!("many/{at:05}"), format!("{at}"));
    }
    // Deeper than PATH_MAX, created one step at a time.
    let name = "d".repeat(250);
    let mut here =
        rustix::fs::open(tree.root(), rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty())
            .unwrap();
    for _ in 0..20 {
        rustix::fs::mkdirat(&here, &*name, rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY;
        here = rustix::fs::openat(&here, &*name, flags, rustix::fs::Mode::empty()).unwrap();
    }
    let changes = tree.during(|| {
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        rustix::fs::openat(&here, "bottom", flags, mode).unwrap();
        tree.put("many/01234", "other");
        tree.remove("many/02999");
        tree.put("many/03000", "new");
    });
    assert_eq!(changes.created.len(), 2, "{:?}", &shown(&changes)[1..]);
    assert!(changes.created[0].as_os_str().len() > 5_000);
    assert_eq!(shown(&changes)[1..], ["+many/03000", "~many/01234", "-many/02999"]);
    assert_eq!(tree.tracker().snapshot().unwrap().len(), 3_001);
}

#[test]
fn files_that_come_and_go_do_no_harm() {
    let tree = TrackedTree::with(&[("stays", "1")]);
    for at in 0..200 {
        tree.put(&format!("goes/{at}"), "x");
    }
    let done = Arc::new(AtomicBool::new(false));
    let (root, stop) = (tree.root(), done.clone());
    let churn = std::thread::spawn(move || {
        let mut round = 0usize;
        while !stop.load(Ordering::Relaxed) {
            let path = root.join(format!("goes/{}", round % 200));
            // The path is alternately a file, a directory, a link, or missing.
            std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path)).ok();
            match round % 4 {
                0 => std::fs::write(&path, "y").unwrap(),
                1 => std::fs::create_dir(&path).unwrap(),
                2 => std::os::unix::fs::symlink("/", &path).unwrap(),
                _ => {}
            }
            round += 7;
        }
    });
    let mut tracker = tree.tracker();
    for _ in 0..30 {
        let snapshot = tracker.snapshot().unwrap();
        assert!(snapshot.len() <= 201 && snapshot.paths().contains(&"stays".into()));
    }
    done.store(true, Ordering::Relaxed);
    churn.join().unwrap();
    // After all threads have ended, the tracker finds exactly the files that exist.
    let quiet = tracker.snapshot().unwrap();
    let changes = quiet.changes(&tree.tracker().snapshot().unwrap());
    assert_eq!(shown(&changes), [""; 0]);
}

#[test]
fn unreadable_paths_are_reported_and_not_as_changes() {
    let tree =
        TrackedTree::with(&[("closed/a", "1"), ("open", "2"), ("secret", "3"), ("grows", "4")]);
    tree.put("listed/b", "5");
    let everyone = |path: &str| tree.chmod(path, 0o755);
    everyone("");
    let mut up = tree.root();
    while up.pop() && up != Path::new("/tmp") && up != Path::new("/") {
        std::fs::set_permissions(&up, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    // Only this thread, and those it starts, loses the right to read everything.
    let changes = std::thread::scope(|scope| {
        let become_nobody = || {
            // SAFETY: plain system calls; the raw ones affect only the calling thread.
            unsafe {
                if libc::geteuid() == 0 {
                    assert_eq!(libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534), 0);
                }
            }
        };
        let look = |tracker: Tracker| {
            let mut tracker = tracker;
            scope
                .spawn(move || {
                    become_nobody();
                    (tracker.snapshot(), tracker)
                })
                .join()
                .unwrap()
        };
        let (before, tracker) = look(tree.tracker());
        tree.chmod("closed", 0o000);
        tree.chmod("listed", 0o744);
        tree.chmod("secret", 0o000);
        tree.put("grows", "44");
        let (after, tracker) = look(tracker);
        let (before, after) = (before.unwrap(), after.unwrap());
        // In the other direction nothing is created either.
        let back = after.changes(&before);
        assert_eq!(shown(&back), ["~grows", "~secret", "?closed", "?listed/b", "?secret"]);
        tree.chmod("", 0o000);
        let (refused, _) = look(tracker);
        assert!(matches!(refused, Err(Error::Root { .. })));
        before.changes(&after)
    });
    everyone("");
    everyone("closed");
    assert_eq!(shown(&changes), ["~grows", "~secret", "?closed", "?listed/b", "?secret"]);
    assert_eq!(lines(&changes, "secret"), None);
}

#[test]
fn binary_and_very_large_files_have_no_line_counts() {
    let tree = TrackedTree::with(&[("text", "a\n"), ("huge", ""), ("long", "")]);
    tree.put("binary", b"a\0b\n");
    tree.put("huge", vec![b'x'; 5 << 20]);
    let changes = tree.during(|| {
        tree.put("binary", b"a\0c\n");
        tree.put("huge", vec![b'y'; 5 << 20]);
        tree.put("long", vec![b'\n'; 200_000]);
        tree.put("text", "a\nb\n");
    });
    assert_eq!(shown(&changes), ["~binary", "~huge", "~long", "~text"]);
    let counted: Vec<_> = changes.lines.keys().collect();
    assert_eq!(counted, [Path::new("text")]);
}

#[test]
fn exact_sees_a_store_through_a_mapping() {
    // In memory, so that the page is not written back in between.
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = home.path().join("mapped");
    std::fs::write(&path, [b'a'; 4096]).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    // SAFETY: a new shared mapping of a file of that size, unmapped at the end; nothing else refers
    // to it.
    let page = unsafe {
        use std::os::fd::AsRawFd;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let at = libc::mmap(std::ptr::null_mut(), 4096, access, kind, file.as_raw_fd(), 0);
        assert_ne!(at, libc::MAP_FAILED);
        at.cast::<u8>()
    };
    // SAFETY: within the mapping.
    let store = |byte: u8| unsafe { page.write_volatile(byte) };
    store(b'b');
    let mut tracker = Tracker::new(home.path(), TrackingRules::new()).unwrap().exact(true);
    let before = tracker.snapshot().unwrap();
    store(b'c');
    let changes = before.changes(&tracker.snapshot().unwrap());
    // SAFETY: mapped above, not used below.
    unsafe { libc::munmap(page.cast(), 4096) };
    assert_eq!(shown(&changes), ["~mapped"]);
}

#[test]
fn a_root_must_be_a_directory_and_may_be_reached_through_a_link() {
    let tree = TrackedTree::with(&[("a/b", "1")]);
    tree.link("a", "to_a");
    let mut tracker = Tracker::new(&tree.at("to_a"), TrackingRules::new()).unwrap();
    assert_eq!(files_support::paths(&tracker.snapshot().unwrap()), ["b"]);
    assert!(matches!(
        Tracker::new(&tree.at("none"), TrackingRules::new()),
        Err(Error::Root { .. })
    ));
    let mut file = Tracker::new(&tree.at("a/b"), TrackingRules::new()).unwrap();
    assert!(matches!(file.snapshot(), Err(Error::Root { .. })));
    std::fs::remove_dir_all(tree.at("a")).unwrap();
    assert!(matches!(tracker.snapshot(), Err(Error::Root { .. })));
}

#[test]
fn a_snapshot_can_be_stopped() {
    let tree = TrackedTree::with(&[("a", "1")]);
    let stop = Arc::new(AtomicBool::new(true));
    let mut tracker = tree.tracker().stop_on(stop.clone());
    assert!(matches!(tracker.snapshot(), Err(Error::Stopped { .. })));
    stop.store(false, Ordering::Relaxed);
    assert_eq!(tracker.snapshot().unwrap().len(), 1);
}
