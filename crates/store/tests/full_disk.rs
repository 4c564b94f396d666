//! A full disk: the outcome is still recorded, lost bytes are counted, and operations that free
//! space work.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::{FinishPlain as _, PlainRecording as _, PlainStore as _};
use std::fs;
use std::io::Write;
use std::path::PathBuf;

use common::{intent, outcome};
use jiff::Timestamp;
use retake_store::{Error, Prune, RunFilter, Store, repair};
use retake_types::{RunId, State, Stream};

/// A file system of 3 MiB.
struct SmallDisk {
    path: PathBuf,
    _temp: tempfile::TempDir,
}

impl SmallDisk {
    fn mount() -> Option<Self> {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("disk");
        fs::create_dir(&path).unwrap();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: all strings are NUL-terminated literals or `name`, which outlives the call.
        let mounted = unsafe {
            libc::mount(
                c"tmpfs".as_ptr(),
                name.as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                c"size=3m".as_ptr().cast(),
            )
        } == 0;
        if !mounted {
            assert!(std::env::var_os("CI").is_none(), "this needs the right to mount");
            return None;
        }
        Some(Self { path, _temp: temp })
    }

    fn store(&self) -> PathBuf {
        self.path.join("store")
    }

    /// Fills every free block.
    fn fill(&self) {
        let mut ballast = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path.join("ballast"))
            .unwrap();
        while ballast.write_all(&[b'x'; 4096]).is_ok() {}
    }

    fn free(&self) -> u64 {
        let name = std::ffi::CString::new(self.path.to_str().unwrap()).unwrap();
        // SAFETY: zero is a valid statfs, and the name is NUL-terminated.
        unsafe {
            let mut stats: libc::statfs = std::mem::zeroed();
            assert_eq!(libc::statfs(name.as_ptr(), &raw mut stats), 0);
            stats.f_bavail * u64::try_from(stats.f_bsize).unwrap()
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let name = std::ffi::CString::new(self.path.to_str().unwrap()).unwrap();
        // SAFETY: the name is NUL-terminated.
        unsafe { libc::umount2(name.as_ptr(), libc::MNT_DETACH) };
    }
}

const WRITTEN: u64 = 20_000_000;

/// Records a run that writes more than the disk has room for, and its end.
fn flood(store: &mut Store) -> (RunId, u64) {
    let full = intent("full");
    let mut recording = store.begin_plain(&full).unwrap();
    let block = vec![b'x'; 250_000];
    for _ in 0..WRITTEN / 250_000 {
        recording.append_plain(Stream::Stdout, &block);
    }
    let (lost, problem) = recording.lost_bytes().unwrap();
    assert!(matches!(problem, Error::DiskFull { .. }), "{problem}");
    let stored = recording.stored_bytes(Stream::Stdout);
    assert_eq!(stored + lost, WRITTEN);
    let finished = recording.finish_plain(store, outcome(7)).unwrap();
    assert_eq!(finished.lost, [lost, 0]);
    assert!(matches!(finished.error, Some(Error::DiskFull { .. })), "{:?}", finished.error);
    (full.id(), stored)
}

fn record(store: &mut Store, text: &[u8]) -> Result<RunId, Error> {
    let intent = intent("echo");
    let mut recording = store.begin_plain(&intent)?;
    recording.append_plain(Stream::Stdout, text);
    recording.finish_plain(store, outcome(0))?;
    Ok(intent.id())
}

#[test]
fn a_full_disk_costs_output_and_not_the_outcome() {
    let Some(disk) = SmallDisk::mount() else { return };
    let mut store = Store::open(&disk.store()).unwrap();
    let (id, stored) = flood(&mut store);
    disk.fill();
    // Later runs are recorded too, with their small output.
    let later: Vec<RunId> = (0..10).map(|_| record(&mut store, b"little").unwrap()).collect();
    drop(store);

    let mut store = Store::open(&disk.store()).unwrap();
    assert!(store.recover().unwrap().is_empty());
    let run = store.get(id).unwrap();
    assert_eq!(run.state, State::Finished);
    let outcome = run.outcome.unwrap();
    assert_eq!(
        (outcome.exit_code, outcome.stdout_bytes, outcome.truncated),
        (Some(7), stored, true)
    );
    for id in later {
        assert_eq!(store.get(id).unwrap().outcome.unwrap().stdout_bytes, 6);
    }
    common::assert_intact(&store);
}

#[test]
fn deleting_repairing_and_pruning_work_on_a_full_disk() {
    let Some(disk) = SmallDisk::mount() else { return };
    let mut store = Store::open(&disk.store()).unwrap();
    let (id, stored) = flood(&mut store);
    disk.fill();
    assert_eq!(disk.free(), 0);
    store.delete(id).unwrap();
    assert!(disk.free() >= stored / 4096 * 4096, "{} of {stored} are free", disk.free());
    common::assert_intact(&store);

    flood(&mut store);
    disk.fill();
    repair(&disk.store()).unwrap();
    assert!(disk.free() > 1_000_000, "output is compressed: {} are free", disk.free());
    common::assert_intact(&store);

    flood(&mut store);
    disk.fill();
    let all =
        Prune { before: Timestamp::now(), keep_failed: false, kinds: Vec::new(), dry_run: false };
    store.prune(&all).unwrap();
    assert!(disk.free() > 1_000_000, "{} are free", disk.free());
    assert!(store.list(&RunFilter::default(), None, 9).unwrap().runs.is_empty());
    common::assert_intact(&store);
}

#[test]
fn runs_that_use_up_the_reserve_leave_enough_to_erase_them() {
    let Some(disk) = SmallDisk::mount() else { return };
    let mut store = Store::open(&disk.store()).unwrap();
    record(&mut store, b"first").unwrap();
    disk.fill();
    let text = b"many words that are not the same ".repeat(200);
    let mut recorded = 0;
    let error = loop {
        match record(&mut store, &text) {
            Ok(_) => recorded += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    assert!(recorded > 5, "{recorded}");
    let states: Vec<State> = store
        .list(&RunFilter::default(), None, 1000)
        .unwrap()
        .runs
        .iter()
        .map(|run| run.state)
        .collect();
    assert!(states.iter().all(|state| *state == State::Finished), "{states:?}");
    let all =
        Prune { before: Timestamp::now(), keep_failed: false, kinds: Vec::new(), dry_run: false };
    assert_eq!(store.prune(&all).unwrap().runs.len(), recorded + 1);
    record(&mut store, &text).unwrap();
    common::assert_intact(&store);
}

#[test]
fn a_record_without_a_reserve_is_erased_too() {
    let Some(disk) = SmallDisk::mount() else { return };
    let mut store = Store::open(&disk.store()).unwrap();
    let (id, _) = flood(&mut store);
    // As an earlier release leaves it: no blocks are reserved.
    let plain = rusqlite::Connection::open(disk.store().join("retake.db")).unwrap();
    plain.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(plain);
    disk.fill();
    store.delete(id).unwrap();
    assert!(disk.free() > 1_000_000, "{} are free", disk.free());
    common::assert_intact(&store);
}

#[test]
fn runs_beside_each_other_on_a_full_disk_are_all_recorded_and_erased() {
    let Some(disk) = SmallDisk::mount() else { return };
    let root = disk.store();
    drop(Store::open(&root).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut store = Store::open(&root).unwrap();
                let mut recording = store.begin_plain(&intent("full")).unwrap();
                for _ in 0..80 {
                    recording.append_plain(Stream::Stdout, &[b'x'; 50_000]);
                    std::thread::yield_now();
                }
                let finished = recording.finish_plain(&mut store, outcome(0)).unwrap();
                assert_eq!(finished.outcome.stdout_bytes + finished.lost[0], 4_000_000);
            });
        }
    });
    disk.fill();
    let mut store = Store::open(&root).unwrap();
    assert_eq!(common::assert_intact(&store).runs, 8);
    let all =
        Prune { before: Timestamp::now(), keep_failed: false, kinds: Vec::new(), dry_run: false };
    assert_eq!(store.prune(&all).unwrap().runs.len(), 8);
    assert!(disk.free() > 100_000, "{} are free", disk.free());
    common::assert_intact(&store);
}
