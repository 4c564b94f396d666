//! A program that records many runs through one connection: its WAL is overwritten and short at the
//! end, and one live file serves all of its runs.
#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{FinishPlain as _, PlainStore as _, TestStore, assert_intact, intent, outcome};
use retake_store::{RunFilter, RunStatus, Store, VerifyDepth};
use retake_types::State;

/// More runs than it takes to count as such a program.
const MANY: usize = 20;
/// The longest WAL that a cold open should read: 64 frames, its header, and one run.
const SHORT: u64 = 96 * 4120;
/// The room reserved for a WAL.
const ROOM: u64 = 512 * 1024;

fn wal_length(root: &Path) -> u64 {
    root.join("retake.db-wal").metadata().unwrap().len()
}

fn live_files(root: &Path) -> Vec<String> {
    let names = fs::read_dir(root.join("live")).unwrap();
    names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn many_runs() -> TestStore {
    let mut test = TestStore::new();
    for n in 0..MANY {
        test.run(&format!("run {n}"), 0);
    }
    test
}

/// The files that a program leaves if it is killed now.
fn killed(test: &TestStore) -> (tempfile::TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    for (path, bytes) in common::all_files(&test.root()) {
        let copy = root.join(path.strip_prefix(test.root()).unwrap());
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::write(copy, bytes).unwrap();
    }
    // Shared memory is lost with the last process that had it open.
    fs::remove_file(root.join("retake.db-shm")).unwrap();
    (temp, root)
}

#[test]
fn the_wal_keeps_its_blocks_while_runs_are_recorded_and_is_short_in_the_end() {
    let mut test = many_runs();
    let mut lengths = Vec::new();
    for n in 0..4 * MANY {
        test.run(&format!("more {n}"), 0);
        lengths.push(wal_length(&test.root()));
    }
    assert!(lengths.is_sorted(), "blocks were given back: {lengths:?}");
    assert!(lengths.iter().all(|length| *length <= ROOM), "{lengths:?}");
    let settled = &lengths[lengths.len() / 2..];
    assert!(settled.iter().all(|length| *length == settled[0]), "it still grows: {lengths:?}");
    assert!(settled[0] > SHORT / 2, "the limit of a short-lived program: {lengths:?}");
    let (temp, root) = (test.temp, PathBuf::from(test.store.path()));
    drop(test.store);
    assert!(wal_length(&root) <= SHORT, "{}", wal_length(&root));
    let store = Store::open(&root).unwrap();
    assert_eq!(assert_intact(&store).runs as usize, 5 * MANY);
    drop((store, temp));
}

#[test]
fn the_wal_of_a_killed_program_is_read_and_then_shortened() {
    let mut test = many_runs();
    for n in 0..3 * MANY {
        test.run(&format!("more {n}"), 0);
        let (_temp, root) = killed(&test);
        let runs = MANY + n + 1;
        let reader = Store::open_read_only(&root).unwrap();
        assert_eq!(assert_intact(&reader).runs as usize, runs);
        drop(reader);
        if n % 8 == 0 {
            let mut store = Store::open(&root).unwrap();
            // Commands that record one run each.
            for _ in 0..8 {
                let recording = store.begin_plain(&intent("next")).unwrap();
                recording.finish_plain(&mut store, outcome(0)).unwrap();
                store = Store::open(&root).unwrap();
            }
            assert!(wal_length(&root) <= SHORT, "{}", wal_length(&root));
            assert_eq!(assert_intact(&store).runs as usize, runs + 8);
        }
    }
}

#[test]
fn a_reader_that_takes_long_delays_the_fold_and_loses_nothing() {
    let mut test = many_runs();
    let reader = rusqlite::Connection::open(test.store.database_path()).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM runs").unwrap();
    let seen = |reader: &rusqlite::Connection| -> i64 {
        reader.query_row("SELECT count(*) FROM runs", [], |row| row.get(0)).unwrap()
    };
    let before = seen(&reader);
    for n in 0..3 * MANY {
        test.run(&format!("beside {n}"), 0);
    }
    assert_eq!(seen(&reader), before, "the reader's view changed under it");
    assert!(wal_length(&test.root()) > ROOM);
    drop(reader);
    test.run("after", 0);
    assert!(wal_length(&test.root()) <= ROOM, "the room of a WAL that grew was kept");
    assert_eq!(test.assert_intact().runs as usize, 4 * MANY + 1);
}

#[test]
fn a_program_reuses_one_live_file_named_after_its_current_run() {
    let mut test = many_runs();
    let root = test.root();
    for _ in 0..3 {
        let intent = intent("next");
        let recording = test.store.begin_plain(&intent).unwrap();
        assert_eq!(live_files(&root), [intent.id().to_string()]);
        let reader = Store::open_read_only(&root).unwrap();
        assert_eq!(reader.get(intent.id()).unwrap().state, State::Running);
        // Another starting command leaves it alone.
        assert!(Store::open(&root).unwrap().recover().unwrap().is_empty());
        recording.finish_plain(&mut test.store, outcome(0)).unwrap();
        assert_eq!(live_files(&root), [format!("{}.idle", intent.id())]);
        assert_eq!(reader.get(intent.id()).unwrap().state, State::Finished);
        let running = RunFilter { status: Some(RunStatus::Running), ..RunFilter::default() };
        assert!(reader.list(&running, None, 10).unwrap().runs.is_empty());
        assert!(Store::open(&root).unwrap().recover().unwrap().is_empty());
        assert_eq!(live_files(&root).len(), 1, "the next run needs it");
        let examined = reader.examine(VerifyDepth::Full, &mut |_| {}).unwrap();
        assert!(examined.defects.is_empty(), "{:?}", examined.defects);
    }
    let (_temp, copy) = killed(&test);
    let mut store = Store::open(&copy).unwrap();
    assert!(store.recover().unwrap().is_empty());
    assert!(live_files(&copy).is_empty(), "nobody will use it");
    drop(test.store);
    assert!(live_files(&root).is_empty());
}

#[test]
fn a_program_that_is_killed_in_its_hundredth_run_leaves_one_that_is_interrupted() {
    let mut test = many_runs();
    let intent = intent("killed");
    let _recording = test.store.begin_plain(&intent).unwrap();
    let (_temp, root) = killed(&test);
    let mut store = Store::open(&root).unwrap();
    let recovered = store.recover().unwrap();
    let runs: Vec<_> = recovered.runs.iter().map(|run| (run.intent.id(), run.state)).collect();
    assert_eq!(runs, [(intent.id(), State::Interrupted)]);
    assert!(live_files(&root).is_empty());
    assert_eq!(assert_intact(&store).runs as usize, MANY + 1);
}

/// Makes `fsync` fail in this thread from now on.
fn without_fsync() {
    let load = |offset| libc::sock_filter {
        code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16,
        jt: 0,
        jf: 0,
        k: offset,
    };
    let give = |value| libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: value,
    };
    let is_fsync = libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: 1,
        k: libc::SYS_fsync as u32,
    };
    let failed = give(libc::SECCOMP_RET_ERRNO | libc::EIO as u32);
    let mut filter = [load(0), is_fsync, failed, give(libc::SECCOMP_RET_ALLOW)];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program is valid during the call, which copies it; both calls affect only this
    // thread.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set =
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program);
        assert_eq!(set, 0);
    }
}

/// `fsync` would also write the times of the WAL each time.
#[test]
fn commits_and_folds_sync_the_bytes_and_not_the_times_of_a_file() {
    let mut test = many_runs();
    let thread = std::thread::spawn(move || {
        without_fsync();
        assert!(fs::File::create(test.root().join("probe")).unwrap().sync_all().is_err());
        fs::remove_file(test.root().join("probe")).unwrap();
        for n in 0..2 * MANY {
            test.run(&format!("more {n}"), 0);
        }
        assert_intact(&test.store);
    });
    thread.join().unwrap();
}
