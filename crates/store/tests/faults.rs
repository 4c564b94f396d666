//! A store that cannot be written, read or trusted: a clear message, nothing overwritten, and the
//! run's own result is still returned.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::{FinishPlain as _, PlainRecording as _, PlainStore as _};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};

use common::{TestStore, intent, outcome};
use retake_store::{
    BreakKind, Defect, Error, Exported, RunFilter, Store, Verification, VerifyDepth, repair,
};
use retake_types::Stream;

#[test]
fn a_newer_database_is_refused_and_left_alone() {
    let mut test = TestStore::new();
    test.run("a", 0);
    test.tamper("PRAGMA user_version = 99");
    let before = fs::read(test.store.database_path()).unwrap();
    for error in
        [Store::open(&test.root()).unwrap_err(), Store::open_read_only(&test.root()).unwrap_err()]
    {
        assert!(matches!(error, Error::Newer { found: 99, .. }), "{error}");
        assert!(error.to_string().contains("upgrade retake"), "{error}");
    }
    assert!(repair(&test.root()).is_err(), "a repair must not touch it either");
    assert!(fs::read(test.store.database_path()).unwrap() == before);
}

#[test]
fn a_database_of_something_else_is_refused_and_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("retake.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let before = fs::read(&path).unwrap();
    let error = Store::open(temp.path()).unwrap_err();
    assert!(matches!(error, Error::NotARecord { .. }), "{error}");
    assert!(fs::read(&path).unwrap() == before);

    fs::write(&path, b"this is no database at all, not even remotely, however long it is").unwrap();
    let error = Store::open(temp.path()).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("nothing was overwritten"), "{error}");
}

#[test]
fn a_half_migrated_database_cannot_exist_but_a_half_deleted_one_is_named() {
    let mut test = TestStore::new();
    test.run("a", 0);
    test.tamper("DROP TABLE runs");
    test.reopen();
    let error = test.store.begin_plain(&intent("b")).unwrap_err();
    assert!(error.is_damage(), "{error}");
    assert!(error.to_string().contains("nothing was overwritten"), "{error}");
    let repaired = repair(&test.root()).unwrap();
    assert!(repaired.backup.is_some());
    test.reopen();
    assert_eq!(test.assert_intact().runs, 1);
}

#[test]
fn a_store_of_another_user_is_refused() {
    let mut test = TestStore::new();
    test.run("a", 0);
    if std::os::unix::fs::chown(test.store.database_path(), Some(12_345), None).is_err() {
        assert!(std::env::var_os("CI").is_none(), "only root can give a file away");
        return;
    }
    for error in
        [Store::open(&test.root()).unwrap_err(), Store::open_read_only(&test.root()).unwrap_err()]
    {
        assert!(matches!(error, Error::ForeignOwner { owner: 12_345, .. }), "{error}");
    }
}

#[test]
fn a_missing_store_is_named_and_not_made_by_a_reader() {
    let temp = tempfile::tempdir().unwrap();
    let error = Store::open_read_only(&temp.path().join("none")).unwrap_err();
    assert!(matches!(error, Error::NoStore { .. }), "{error}");
    assert!(!temp.path().join("none").exists());
}

#[test]
fn a_reader_needs_no_right_to_write() {
    let mut test = TestStore::new();
    let intent = intent("a");
    test.record(&intent, 0, &[(Stream::Stdout, b"text")]);
    let root = test.root();
    drop(test.store);
    for with_wal in [true, false] {
        if !with_wal {
            let store = rusqlite::Connection::open(root.join("retake.db")).unwrap();
            store.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
            drop(store);
        }
        let locked = ReadOnly::mount_or_chmod(&root);
        let store = Store::open_read_only(&locked.path).unwrap();
        assert!(store.is_read_only());
        let mut text = String::new();
        store.read_output(intent.id(), Stream::Stdout).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        assert_eq!(store.list(&RunFilter::default(), None, 5).unwrap().runs.len(), 1);
        let mut store = store;
        let error = store.begin_plain(&common::intent("b")).unwrap_err();
        assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
        if locked.enforced {
            let refused = Store::open(&locked.path)
                .and_then(|mut store| store.begin_plain(&common::intent("c")).map(drop));
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::NotWritable { .. } | Error::Io { .. }), "{error:?}");
        }
    }
}

/// Root ignores permission bits, so root uses a read-only bind mount.
struct ReadOnly {
    path: std::path::PathBuf,
    mounted: bool,
    enforced: bool,
    _temp: tempfile::TempDir,
}

impl ReadOnly {
    fn mount_or_chmod(root: &std::path::Path) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let target = temp.path().join("ro");
        fs::create_dir(&target).unwrap();
        let name = |path: &std::path::Path| {
            std::ffi::CString::new(path.to_str().unwrap().as_bytes()).unwrap()
        };
        let (from, to) = (name(root), name(&target));
        // SAFETY: both names are NUL-terminated; the other arguments may be null for MS_BIND.
        let bound = unsafe {
            libc::mount(
                from.as_ptr(),
                to.as_ptr(),
                std::ptr::null(),
                libc::MS_BIND,
                std::ptr::null(),
            )
        } == 0;
        // SAFETY: as above.
        let mounted = bound
            && unsafe {
                libc::mount(
                    std::ptr::null(),
                    to.as_ptr(),
                    std::ptr::null(),
                    libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY,
                    std::ptr::null(),
                )
            } == 0;
        if mounted {
            return Self { path: target, mounted, enforced: true, _temp: temp };
        }
        // SAFETY: geteuid only reads credentials.
        let enforced = unsafe { libc::geteuid() } != 0;
        fs::set_permissions(root, fs::Permissions::from_mode(0o500)).unwrap();
        Self { path: root.to_owned(), mounted, enforced, _temp: temp }
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        if self.mounted {
            let name = std::ffi::CString::new(self.path.to_str().unwrap()).unwrap();
            // SAFETY: the name is NUL-terminated.
            unsafe { libc::umount2(name.as_ptr(), libc::MNT_DETACH) };
        } else {
            fs::set_permissions(&self.path, fs::Permissions::from_mode(0o700)).unwrap();
        }
    }
}

#[test]
fn a_store_that_vanishes_costs_the_record_and_not_the_run() {
    let mut test = TestStore::new();
    let mut recording = test.store.begin_plain(&intent("a")).unwrap();
    recording.append_plain(Stream::Stdout, b"before");
    fs::remove_dir_all(test.root()).unwrap();
    recording.append_plain(Stream::Stdout, b"after");
    recording.append_plain(Stream::Stderr, b"lost");
    let large = vec![b'x'; 100_000];
    recording.append_plain(Stream::Stderr, &large);
    let (lost, problem) = recording.lost_bytes().unwrap();
    assert_eq!(lost, 100_000 + 4 - 64 * 1024);
    assert!(problem.to_string().contains("spool"), "{problem}");
    let error = recording.finish_plain(&mut test.store, outcome(0)).unwrap_err();
    assert!(matches!(error, Error::Vanished { .. }), "{error}");
    assert!(matches!(
        test.store.begin_plain(&intent("b")),
        Err(Error::Io { .. } | Error::Vanished { .. })
    ));

    // Another process created a new store meanwhile: the old connection must not pretend to write
    // to it.
    let fresh = Store::open(&test.root()).unwrap();
    assert!(matches!(test.store.begin_plain(&intent("c")), Err(Error::Vanished { .. })));
    assert_eq!(common::assert_intact(&fresh).runs, 0);
}

#[test]
fn a_truncated_spool_is_read_up_to_its_end() {
    let mut test = TestStore::new();
    let intent = intent("a");
    let mut recording = test.store.begin_plain(&intent).unwrap();
    recording.append_plain(Stream::Stdout, b"one\n");
    recording.append_plain(Stream::Stderr, b"two\n");
    recording.append_plain(Stream::Stdout, b"three\n");
    drop(recording);
    let spool = |name: &str| test.root().join(format!("spool/{}.{name}", intent.id()));
    let cut = |path: &std::path::Path, by: u64| {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() - by).unwrap();
    };
    cut(&spool("stdout"), 3);
    cut(&spool("chunks"), 1);
    assert_eq!(test.interleaved(intent.id()), b"one\nthrtwo\n");
    test.store.recover().unwrap();
    assert_eq!(test.output(intent.id(), Stream::Stdout), b"one\nthr");
    assert_eq!(test.interleaved(intent.id()), b"one\nthrtwo\n");
    test.assert_intact();
}

#[test]
fn orphans_are_reported_and_set_aside() {
    let mut test = TestStore::new();
    test.record(&intent("a"), 0, &[(Stream::Stdout, &[b'x'; 100_000])]);
    test.compact();
    let stray = [
        test.root().join(format!("spool/{}.stdout", retake_types::RunId::new())),
        test.root().join("spool/nonsense"),
        test.root().join("output/ab/cdef.zst"),
    ];
    fs::create_dir_all(test.root().join("output/ab")).unwrap();
    for path in &stray {
        fs::write(path, b"stray").unwrap();
    }
    let problems = test.store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects;
    for path in &stray {
        assert!(problems.contains(&Defect::Orphan(path.clone())), "{problems:?}");
    }
    assert_eq!(repair(&test.root()).unwrap().set_aside.len(), 3);
    assert!(test.store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects.is_empty());
    assert_eq!(fs::read_dir(test.root().join("orphans")).unwrap().count(), 3);
}

#[test]
fn lost_and_edited_output_is_reported() {
    let mut test = TestStore::new();
    let intent = intent("a");
    test.record(&intent, 0, &[(Stream::Stdout, &b"abc".repeat(100_000))]);
    let path = test.root().join(format!("spool/{}.stdout", intent.id()));
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"X", 5).unwrap();
    let problems = test.store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects;
    assert!(matches!(problems[..], [Defect::DamagedOutput { .. }]), "{problems:?}");
    test.compact();
    assert!(path.exists(), "bytes that are not the recorded ones are not compressed over");
    fs::remove_file(&path).unwrap();
    let error = test.store.read_output(intent.id(), Stream::Stdout).unwrap_err();
    assert!(matches!(error, Error::OutputDamaged { .. }), "{error}");
}

#[test]
fn a_repair_rebuilds_the_list_and_does_not_hide_an_edit() {
    let mut test = TestStore::new();
    for i in 0..3 {
        let mut intent = intent(&format!("c{i}"));
        intent.request.labels.insert("k".into(), "v".into());
        test.record(
            &intent,
            0,
            &[(Stream::Stdout, b"1"), (Stream::Stderr, b"2"), (Stream::Stdout, b"3")],
        );
    }
    let head = test.store.head().unwrap();
    test.tamper("UPDATE runs SET command = 'x' WHERE seq = 3; DELETE FROM labels; DELETE FROM runs WHERE seq = 5");
    let repaired = repair(&test.root()).unwrap();
    assert!(repaired.projection_rebuilt && repaired.backup.unwrap().join("retake.db").exists());
    test.reopen();
    assert_eq!(test.assert_intact().head, head);
    let runs = test.store.list(&RunFilter::default(), None, 9).unwrap().runs;
    assert_eq!(runs.len(), 3);
    assert_eq!(test.interleaved(runs[2].intent.id()), b"123");

    test.tamper("UPDATE ledger SET body = CAST(replace(CAST(body AS TEXT), 'c1', 'c9') AS BLOB) WHERE seq = 3");
    repair(&test.root()).unwrap();
    test.reopen();
    match test.store.verify(None).unwrap() {
        Verification::Broken(found) => assert_eq!(found[0].kind, BreakKind::EditedBody),
        Verification::Intact(_) => panic!("the repair hid the edit"),
    }
}

#[test]
fn a_damaged_database_is_kept_and_what_can_be_read_recovered() {
    let mut test = TestStore::new();
    let large = b"large output\n".repeat(20_000);
    let mut ids = Vec::new();
    for i in 0..300 {
        let intent = intent(&format!("command {i}"));
        let text = format!("output {i}\n");
        let mut output: Vec<(Stream, &[u8])> = vec![(Stream::Stdout, text.as_bytes())];
        if i % 100 == 0 {
            output.push((Stream::Stderr, &large));
        }
        test.record(&intent, 0, &output);
        ids.push(intent.id());
    }
    test.compact();
    test.tamper("PRAGMA wal_checkpoint(TRUNCATE)");
    let root = test.root();
    drop(test.store);
    let database = root.join("retake.db");
    let pages = fs::metadata(&database).unwrap().len() / 4096;
    let file = fs::OpenOptions::new().read(true).write(true).open(&database).unwrap();
    for page in [pages / 3, pages / 2, pages * 2 / 3] {
        file.write_all_at(&[0xA5; 4096], page * 4096).unwrap();
    }
    drop(file);
    let damaged = fs::read(&database).unwrap();

    let found = Store::open(&root)
        .map(|store| store.examine(VerifyDepth::Quick, &mut |_| {}).map(|e| e.defects));
    assert!(!matches!(&found, Ok(Ok(problems)) if problems.is_empty()), "the damage was not seen");
    let repaired = repair(&root).unwrap();
    let backup = repaired.backup.clone().unwrap();
    assert!(fs::read(backup.join("retake.db")).unwrap() == damaged, "the damaged file is kept");
    let store = Store::open(&root).unwrap();
    let runs = store.list(&RunFilter::default(), None, 1000).unwrap().runs;
    assert!(runs.len() > 150, "{} runs of 300, {repaired:?}", runs.len());
    assert!(ids.contains(&runs[0].intent.id()));
    let mut store = store;
    let new = intent("after the repair");
    let recording = store.begin_plain(&new).unwrap();
    recording.finish_plain(&mut store, outcome(0)).unwrap();
    assert_eq!(store.find("last").unwrap().intent.id(), new.id());
    let sound = store.examine(VerifyDepth::Quick, &mut |_| {}).unwrap().defects;
    assert!(!sound.iter().any(|problem| matches!(problem, Defect::Integrity(_))), "{sound:?}");
}

#[test]
fn an_export_omits_only_the_output_whose_file_is_lost() {
    let mut test = TestStore::new();
    let (first, second) = (intent("a"), intent("b"));
    let large = b"abc".repeat(100_000);
    test.record(&first, 5, &[(Stream::Stdout, &large), (Stream::Stderr, b"kept")]);
    test.record(&second, 0, &[(Stream::Stdout, b"whole")]);
    fs::remove_file(test.root().join(format!("spool/{}.stdout", first.id()))).unwrap();
    let mut lines = Vec::new();
    let mut export = |id| test.store.export(&test.store.get(id).unwrap(), &mut lines).unwrap();
    let Exported::Written { lost, .. } = export(first.id()) else { panic!("it is finished") };
    assert!(
        matches!(&lost[..], [(Stream::Stdout, why)] if why.to_string().contains("spool")),
        "{lost:?}"
    );
    assert_eq!(export(second.id()), Exported::Written { lost: Vec::new(), order_altered: false });

    // The other record has exactly the exported output.
    let mut other = TestStore::new();
    assert_eq!(other.store.import(&mut &lines[..]).unwrap().imported.len(), 2);
    let outcome = other.store.get(first.id()).unwrap().outcome.unwrap();
    assert_eq!((outcome.stdout_bytes, outcome.stderr_bytes, outcome.truncated), (0, 4, true));
    assert_eq!(other.output(first.id(), Stream::Stderr), b"kept");
    other.assert_intact();
}
