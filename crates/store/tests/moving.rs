//! A record that moves to another directory, or takes over runs of another record.
#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::{FinishPlain as _, PlainRecording as _, PlainStore as _};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use common::{assert_intact, intent, outcome};
use retake_store::{
    EarlierRecord, Error, RunFilter, Store, VerifyDepth, interrupted_move, moved_to, relocate,
    relocate_by_copying,
};

use retake_types::{OsText, RunId, Stream};

/// A run with output of this size, in this directory.
fn record(store: &mut Store, directory: &str, bytes: usize) -> RunId {
    let mut intent = intent("made");
    intent.request.cwd = OsText::from(directory);
    let mut recording = store.begin_plain(&intent).unwrap();
    recording.append_plain(Stream::Stdout, &vec![b'x'; bytes]);
    recording.finish_plain(store, outcome(0)).unwrap();
    intent.id()
}

/// Checks that the store is intact and has exactly these runs with their output.
fn assert_has(root: &Path, runs: &[RunId]) {
    let store = Store::open(root).unwrap();
    assert_intact(&store);
    let defects = store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects;
    assert!(defects.is_empty(), "{defects:?}");
    let page = store.list(&RunFilter::default(), None, 100).unwrap();
    let mut found: Vec<RunId> = page.runs.iter().map(|run| run.intent.id()).collect();
    found.reverse();
    assert_eq!(found, runs);
}

fn made(root: &Path) -> Vec<RunId> {
    let mut store = Store::open(root).unwrap();
    let runs = [10, 200_000, 300_000].map(|bytes| record(&mut store, "/project", bytes));
    while store.compact(std::time::Duration::from_millis(1)).unwrap().more {}
    runs.to_vec()
}

#[test]
fn a_moved_record_is_found_under_its_old_name() {
    type Move = fn(&Path, &Path) -> retake_store::Result<retake_store::Moved>;
    for transfer in [relocate as Move, relocate_by_copying] {
        let temp = tempfile::tempdir().unwrap();
        let (from, to) = (temp.path().join("a/data"), temp.path().join("b/c/retake"));
        let runs = made(&from);
        transfer(&from, &to).unwrap();
        assert_has(&to, &runs);
        let mut left: Vec<_> =
            fs::read_dir(&from).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".gitignore", "moved-to"]);
        assert_eq!(moved_to(&from), Some(to.clone()));
        // A program started before the move continues recording in the moved record.
        let mut store = Store::open(&from).unwrap();
        assert_eq!(store.path(), to);
        record(&mut store, "/project", 5);
        assert_eq!(Store::open_read_only(&from).unwrap().path(), to);
        assert_eq!(interrupted_move(&to), None);
        // Without the new place the note is ignored.
        drop(store);
        fs::remove_dir_all(&to).unwrap();
        assert_eq!(Store::open(&from).unwrap().path(), from);
    }
}

#[test]
fn a_record_moves_to_another_file_system() {
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else { return };
    let temp = tempfile::tempdir().unwrap();
    if temp.path().metadata().unwrap().dev() == other.path().metadata().unwrap().dev() {
        return;
    }
    let (from, to) = (temp.path().join("data"), other.path().join("retake"));
    let runs = made(&from);
    let moved = relocate(&from, &to).unwrap();
    assert!(moved.copied_bytes > 0 && !moved.resumed, "{moved:?}");
    assert_has(&to, &runs);
}

#[test]
fn a_store_in_use_is_not_moved_and_nothing_is_overwritten() {
    let temp = tempfile::tempdir().unwrap();
    let (from, to) = (temp.path().join("data"), temp.path().join("retake"));
    let runs = made(&from);
    let mut store = Store::open(&from).unwrap();
    let running = store.begin_plain(&intent("running")).unwrap();
    let error = relocate(&from, &to).unwrap_err();
    assert!(matches!(error, Error::InUse { running: 1, remote: 0, .. }), "{error}");
    running.finish_plain(&mut store, outcome(0)).unwrap();
    let loop_recording = store.begin_plain_loop(retake_types::Kind::Matrix, "{}").unwrap();
    assert!(matches!(relocate(&from, &to), Err(Error::InUse { running: 1, .. })));
    loop_recording.finish(&mut store, &retake_types::StopReason::Completed).unwrap();
    fs::create_dir(&to).unwrap();
    fs::write(to.join("something"), "").unwrap();
    assert!(matches!(relocate(&from, &to), Err(Error::Occupied { .. })));
    assert!(moved_to(&from).is_none() && Store::open(&from).unwrap().get(runs[0]).is_ok());
}

/// The place of the record, as found from the old one.
fn after_a_crash(
    env: &dyn Fn(&str) -> PathBuf,
    transfer: fn(&Path, &Path) -> retake_store::Result<retake_store::Moved>,
) {
    let (from, to) = (env("data"), env("retake"));
    let Ok(noted) = fs::read_to_string(env("runs")) else { return };
    let mut runs: Vec<RunId> = noted.lines().map(|id| id.parse().unwrap()).collect();
    // Between the two renames only the new place has the record.
    let place = if from.exists() { &from } else { &to };
    assert_has(place, &runs);
    let mut store = Store::open(place).unwrap();
    runs.push(record(&mut store, "/project", 70_000));
    drop(store);
    if !to.join("retake.db").exists() || interrupted_move(&to).is_some() {
        transfer(&from, &to).unwrap();
    }
    assert_has(&to, &runs);
    assert!(!from.join("retake.db").exists() && interrupted_move(&to).is_none());
}

fn moved_and_crashed(transfer: fn(&Path, &Path) -> retake_store::Result<retake_store::Moved>) {
    first::test()
        .run(move |env| {
            retake_store::watch_crash_points(first::crash_point);
            let runs = made(&env.path("data"));
            let noted: Vec<String> = runs.iter().map(RunId::to_string).collect();
            fs::write(env.path("new"), noted.join("\n")).unwrap();
            fs::rename(env.path("new"), env.path("runs")).unwrap();
            transfer(&env.path("data"), &env.path("retake")).unwrap();
        })
        .verify(move |env, _| after_a_crash(&|name| env.path(name), transfer));
}

#[test]
fn a_move_by_renaming_survives_a_crash_at_every_step() {
    moved_and_crashed(relocate);
}

#[test]
fn a_move_by_copying_survives_a_crash_at_every_step_and_is_resumed() {
    moved_and_crashed(relocate_by_copying);
}

#[test]
fn earlier_runs_below_a_directory_are_taken_over_once() {
    let temp = tempfile::tempdir().unwrap();
    let mut old = Store::open(&temp.path().join("old")).unwrap();
    let runs = ["/p", "/p/sub", "/p2", "/q", "/p/large"]
        .map(|dir| record(&mut old, dir, if dir == "/p/large" { 2_000_000 } else { 9 }));
    let mut unfinished = intent("running");
    unfinished.request.cwd = OsText::from("/p");
    let running = old.begin_plain(&unfinished).unwrap();
    let new = temp.path().join("new");
    let earlier =
        EarlierRecord { store: temp.path().join("old"), directories: vec![PathBuf::from("/p")] };
    assert!(earlier.open_if_used().unwrap().is_some());
    earlier.note_in(&new).unwrap();
    let mut store = Store::open(&new).unwrap();
    let taken = store.take_over_earlier().unwrap().unwrap();
    assert_eq!((taken.runs, taken.left), (3, 1));
    assert_has(&new, &[runs[0], runs[1], runs[4]]);
    assert_eq!(store.take_over_earlier().unwrap(), None);
    drop(running);
    let unused = EarlierRecord { directories: vec![PathBuf::from("/other")], ..earlier };
    assert!(unused.open_if_used().unwrap().is_none());
    assert!(Store::open(&temp.path().join("old")).unwrap().get(runs[0]).is_ok(), "it stays there");
}
