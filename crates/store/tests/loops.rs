//! Loops whose runner is alive, dies, or resumes them.

mod common;

use common::TestStore;
use common::{PlainLoop as _, PlainStore as _};
use retake_store::{Error, Liveness, Store};
use retake_types::{Kind, LoopId, LoopState, StopReason};
use serde_json::json;

#[test]
fn a_loop_is_alive_for_as_long_as_it_is_recorded() {
    let mut test = TestStore::new();
    let mut recording = test.store.begin_plain_loop(Kind::Matrix, "{}").unwrap();
    let id = recording.id();
    recording.append_plain_entries(&mut test.store, &[json!({"event": "begun"})]).unwrap();
    let mut other = Store::open(&test.root()).unwrap();
    assert!(other.loop_is_alive(id));
    assert!(other.recover().unwrap().is_empty());
    assert!(matches!(other.adopt_loop(id), Err(Error::LoopRunning { id: of }) if of == id));
    recording.finish(&mut test.store, &StopReason::Completed).unwrap();
    assert_eq!(other.loop_liveness(id), Liveness::Unknown);
    assert!(other.recover().unwrap().is_empty());
    assert_eq!(other.get_loop(id).unwrap().stop_reason, Some(StopReason::Completed));
    assert!(matches!(other.adopt_loop(id), Err(Error::LoopFinished { id: of }) if of == id));
    assert!(!test.store.needs_maintenance());
}

#[test]
fn a_loop_that_was_left_is_ended_by_the_next_recovery() {
    let mut test = TestStore::new();
    for kind in [Kind::Matrix, Kind::Crash] {
        let recording = test.store.begin_plain_loop(kind, "{}").unwrap();
        let id = recording.id();
        drop(recording);
        assert_eq!(test.store.loop_liveness(id), Liveness::Dead);
        assert!(test.store.needs_maintenance());
        let recovered = test.store.recover().unwrap();
        assert!(recovered.runs.is_empty());
        assert_eq!(recovered.loops.iter().map(|stored| stored.id).collect::<Vec<_>>(), [id]);
        let stored = test.store.get_loop(id).unwrap();
        assert_eq!(stored.state, LoopState::Finished);
        assert_eq!(stored.stop_reason, Some(StopReason::Interrupted));
        assert!(stored.end_time.is_some());
        assert!(test.store.recover().unwrap().is_empty());
        assert!(!test.store.needs_maintenance());
    }
}

#[test]
fn the_loop_of_an_agent_waits_to_be_resumed() {
    let mut test = TestStore::new();
    let mut recording = test.store.begin_plain_loop(Kind::Agent, "{}").unwrap();
    let id = recording.id();
    assert_eq!(recording.append_plain_entries(&mut test.store, &[1, 2]).unwrap(), 2);
    drop(recording);
    assert!(test.store.recover().unwrap().is_empty());
    assert!(!test.store.needs_maintenance());
    assert!(!test.store.loop_is_alive(id));
    assert_eq!(test.store.open_loops(Kind::Agent).unwrap()[0].id, id);
    let mut resumed = test.store.adopt_loop(id).unwrap();
    assert!(test.store.loop_is_alive(id));
    assert_eq!(resumed.append_plain_entries(&mut test.store, &[3]).unwrap(), 3);
    resumed.finish(&mut test.store, &StopReason::Stopped).unwrap();
    assert!(test.store.open_loops(Kind::Agent).unwrap().is_empty());
}

/// Earlier releases kept the live files of crash tests next to their logs.
#[test]
fn the_crash_loop_of_an_earlier_release_is_ended_too() {
    let mut test = TestStore::new();
    let recording = test.store.begin_plain_loop(Kind::Crash, "{}").unwrap();
    let id = recording.id();
    let live = test.root().join("live").join(format!("{id}.loop"));
    let earlier = test.root().join("crash");
    std::fs::create_dir(&earlier).unwrap();
    std::fs::write(earlier.join(format!("{id}.log")), b"log").unwrap();
    std::fs::rename(live, earlier.join(format!("{id}.live"))).unwrap();
    // Its runner is alive.
    assert!(test.store.recover().unwrap().is_empty());
    drop(recording);
    assert_eq!(test.store.recover().unwrap().loops[0].id, id);
    assert!(earlier.join(format!("{id}.log")).exists());
    assert!(!earlier.join(format!("{id}.live")).exists());
}

#[test]
fn a_read_only_store_cannot_record_a_loop() {
    let test = TestStore::new();
    let mut reader = Store::open_read_only(&test.root()).unwrap();
    assert!(matches!(reader.begin_plain_loop(Kind::Matrix, "{}"), Err(Error::ReadOnly { .. })));
    assert!(matches!(reader.adopt_loop(LoopId::new()), Err(Error::ReadOnly { .. })));
    assert!(!test.root().join("live").exists());
}
