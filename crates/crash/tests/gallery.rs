//! The stores of the gallery, each with one sync missing: the missing one is named, and the correct
//! stores have no findings.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../examples/gallery/store.rs"]
mod store;
mod workload;

use retake_crash::marker::Marker;
use retake_crash::model::{
    CrashState, CrashStates, Explainer, ExploreOptions, FailureKind, Finding, Model,
};
use retake_crash::operation::Recording;
use store::{Missing, Pairs, Store, check, recover};

const STORE: &str = "FIRST_GALLERY_STORE";
const MISSING: &str = "FIRST_GALLERY_MISSING";

fn record(store: Store, missing: Missing) -> Recording {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let [store, missing] = [format!("{store:?}"), format!("{missing:?}")];
    workload::record(root.path(), [(STORE, &store), (MISSING, &missing)], 5)
}

#[test]
#[ignore = "what the other tests record"]
fn the_workload() {
    let (Ok(store), Ok(missing)) = (std::env::var(STORE), std::env::var(MISSING)) else { return };
    let store = Store::ALL.into_iter().find(|one| format!("{one:?}") == store).unwrap();
    let missing = Missing::ALL.into_iter().find(|one| format!("{one:?}") == missing).unwrap();
    let mut pairs = Pairs::create(".".as_ref(), store, missing).unwrap();
    for key in 1..=5 {
        pairs.put(key, key * key).unwrap();
        Marker::Acknowledgement.send(format!("put {key}").as_bytes());
    }
}

fn fails(state: &CrashState) -> bool {
    let read = |name: &str| {
        let found = state.tree.find(name.as_ref())?;
        let file = state.tree.file(found.node)?;
        let mut bytes = vec![0; file.size() as usize];
        file.read(0, &mut bytes);
        Some(bytes)
    };
    recover(read).and_then(|pairs| check(&pairs, state.acks)).is_err()
}

fn findings(model: Model, store: Store, missing: Missing) -> Vec<Finding> {
    let recording = record(store, missing);
    let mut explainer = Explainer::new(&recording, model, &ExploreOptions::default()).unwrap();
    for state in CrashStates::new(&recording, model, ExploreOptions::default()).unwrap() {
        if fails(&state) {
            explainer.add(&state, None, |state| fails(state).then(|| FailureKind::new("", "")));
        }
    }
    explainer.findings()
}

#[track_caller]
fn clean(model: Model, store: Store, missing: Missing) {
    let sentences: Vec<String> =
        findings(model, store, missing).into_iter().map(|finding| finding.sentence).collect();
    assert_eq!(sentences, [""; 0]);
}

/// One finding, and its sentence has these words.
#[track_caller]
fn found(model: Model, store: Store, missing: Missing, words: &[&str]) {
    let findings = findings(model, store, missing);
    let sentences: Vec<&str> = findings.iter().map(|finding| finding.sentence.as_str()).collect();
    assert!(!sentences.is_empty(), "nothing found");
    for word in words {
        assert!(sentences[0].contains(word), "{word:?} is not in {sentences:#?}");
    }
    assert_eq!(sentences.len(), 1, "{sentences:#?}");
}

#[test]
fn correct_stores_are_clean() {
    for store in Store::ALL {
        for model in Model::ALL {
            clean(model, store, Missing::Nothing);
        }
    }
}

#[test]
fn a_kill_shows_no_missing_sync() {
    for store in Store::ALL {
        for missing in Missing::ALL {
            clean(Model::Kill, store, missing);
        }
    }
}

#[test]
fn a_snapshot_that_is_not_synced() {
    for model in [Model::Ext4, Model::Posix] {
        for store in [Store::Snapshot, Store::Compacting] {
            let words =
                ["the rename of `map.tmp` survives but its bytes 0–", "`fsync` the file before op"];
            found(model, store, Missing::SnapshotFile, &words);
        }
    }
}

#[test]
fn a_snapshot_whose_name_is_not_synced() {
    for model in [Model::Ext4, Model::Posix] {
        let words = [
            "the rename of `map.tmp` to `map` (op",
            "is lost although",
            "acknowledged",
            "`fsync` the directory `.` after op",
        ];
        found(model, Store::Snapshot, Missing::SnapshotName, &words);
    }
}

#[test]
fn a_log_that_is_emptied_before_the_name_of_the_snapshot_is_synced() {
    let words = ["the rename of `map.tmp` to `map` (op", "`fsync` the directory `.`"];
    found(Model::Posix, Store::Compacting, Missing::SnapshotName, &words);
    // The truncation comes after the rename in the journal, and its sync commits both.
    clean(Model::Ext4, Store::Compacting, Missing::SnapshotName);
}

#[test]
fn a_log_that_is_not_synced() {
    for model in [Model::Ext4, Model::Posix] {
        let words = ["of `log` (op", "lost although", "`fsync` `log` after op"];
        found(model, Store::Log, Missing::LogFile, &words);
    }
}

#[test]
fn a_log_whose_name_is_not_synced() {
    let words =
        ["the creation of `log` (op 1) is lost although", "`fsync` the directory `.` after op 1"];
    found(Model::Posix, Store::Log, Missing::LogName, &words);
    // ext4 commits the name with the first line that needs a block.
    clean(Model::Ext4, Store::Log, Missing::LogName);
}
