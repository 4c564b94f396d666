//! A store appears complete or not at all, also to concurrent readers and when its creator is
//! killed.

mod common;

use common::{FinishPlain as _, PlainStore as _};
use std::fs;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{intent, outcome};
use retake_store::{Error, RunFilter, Store};

#[test]
fn readers_find_no_store_or_a_whole_one_while_many_make_it() {
    const EACH: usize = 6;
    for _ in 0..20 {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("store");
        let (start, working) = (Barrier::new(2 * EACH), AtomicUsize::new(EACH));
        std::thread::scope(|scope| {
            for _ in 0..EACH {
                scope.spawn(|| {
                    start.wait();
                    let mut store = Store::open(&root).unwrap();
                    let recording = store.begin_plain(&intent("first")).unwrap();
                    recording.finish_plain(&mut store, outcome(0)).unwrap();
                    working.fetch_sub(1, Ordering::SeqCst);
                });
                scope.spawn(|| {
                    start.wait();
                    loop {
                        let last = working.load(Ordering::SeqCst) == 0;
                        match Store::open_read_only(&root) {
                            Ok(store) => {
                                store.list(&RunFilter::default(), None, 9).unwrap();
                            }
                            Err(Error::NoStore { .. }) if !last => {}
                            Err(error) => panic!("{error}"),
                        }
                        if last {
                            break;
                        }
                    }
                });
            }
        });
        let store = Store::open_read_only(&root).unwrap();
        assert_eq!(common::assert_intact(&store).runs, EACH as u64);
    }
}

#[test]
fn an_incomplete_store_left_by_a_killed_process_is_replaced() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("new.db"), b"half of a database").unwrap();
    fs::write(temp.path().join("new.db-journal"), b"half of a journal").unwrap();
    fs::write(temp.path().join("retake.db-wal"), b"of another database").unwrap();
    let error = Store::open_read_only(temp.path()).unwrap_err();
    assert!(matches!(error, Error::NoStore { .. }), "{error}");
    let store = Store::open(temp.path()).unwrap();
    common::assert_intact(&store);
    assert!(!temp.path().join("new.db").exists());

    // An earlier release made the file first and its tables later.
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("retake.db"), b"").unwrap();
    let error = Store::open_read_only(temp.path()).unwrap_err();
    assert!(matches!(error, Error::NoStore { .. }), "{error}");
    common::assert_intact(&Store::open(temp.path()).unwrap());
}
