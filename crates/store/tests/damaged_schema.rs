//! A schema that was changed behind the store's back: every command says so in one short sentence, the
//! doctor sees it, and a repair brings back everything that the ledger holds.

mod common;

use common::{TestStore, intent, outcome};
use retake_store::{Defect, Error, RunFilter, Store, VerifyDepth, repair};
use retake_types::{Kind, Stream};

const DAMAGE: [&str; 13] = [
    "PRAGMA user_version = 1",
    "PRAGMA user_version = 0",
    "DROP TABLE runs",
    "DROP TABLE labels",
    "DROP TABLE effects",
    "DROP TABLE settings",
    "DROP TABLE search",
    "DROP TABLE loops",
    "DROP TABLE events",
    "DROP INDEX runs_start",
    "ALTER TABLE runs DROP COLUMN chunks",
    "DROP INDEX runs_session; ALTER TABLE runs DROP COLUMN session_id",
    "ALTER TABLE ledger DROP COLUMN body_hash",
];

fn assert_short(error: &Error) {
    let text = error.to_string();
    assert!(text.len() < 250 && !text.contains('\n') && !text.contains("SELECT"), "{text}");
    assert!(error.is_damage(), "{text}");
}

#[test]
fn damage_is_seen_named_and_repaired() {
    for damage in DAMAGE {
        let mut test = TestStore::new();
        let mut labelled = intent("labelled");
        labelled.request.labels.insert("k".into(), "v".into());
        test.record(&labelled, 3, &[(Stream::Stdout, b"one"), (Stream::Stderr, b"two")]);
        let large = intent("large");
        test.record(&large, 0, &[(Stream::Stdout, &b"abc".repeat(50_000))]);
        test.compact();
        let series = test.store.begin_loop(Kind::Matrix, "{}").unwrap();
        drop(series);
        let head = test.store.head().unwrap();
        let root = test.root();
        test.tamper(damage);
        let TestStore { temp: _temp, store } = test;
        drop(store);

        // Any of these may still work, depending on what is missing.
        match Store::open(&root) {
            Ok(mut store) => {
                if let Err(error) = store.list(&RunFilter::default(), None, 9) {
                    assert_short(&error);
                }
                if let Err(error) = store
                    .begin(&intent("b"))
                    .and_then(|recording| recording.finish(&mut store, outcome(0)).map(drop))
                {
                    assert_short(&error);
                }
            }
            Err(error) => assert_short(&error),
        }
        match Store::open_read_only(&root)
            .and_then(|store| store.examine(VerifyDepth::Quick, &mut |_| {}))
        {
            Ok(found) => {
                let seen = found.defects.iter().any(|defect| matches!(defect, Defect::Schema(_)));
                assert!(seen, "{damage}: {:?}", found.defects);
            }
            Err(error) => assert_short(&error),
        }

        let repaired = repair(&root).unwrap();
        assert!(repaired.backup.is_some(), "{damage}");
        assert_eq!(repaired.entries_lost, 0, "{damage}");
        let store = Store::open(&root).unwrap();
        let found = store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects;
        assert!(found.is_empty(), "{damage}: {found:?}");
        for id in [labelled.id(), large.id()] {
            assert!(store.get(id).unwrap().outcome.is_some(), "{damage}");
        }
        assert_eq!(store.read_output(large.id(), Stream::Stdout).unwrap().length(), 150_000);
        if !damage.contains("ledger") {
            let entries = common::assert_intact(&store).head.count;
            assert!(entries >= head.count, "{damage}: the chain goes on");
        }
        let with_label = RunFilter { labels: vec![("k".into(), "v".into())], ..Default::default() };
        assert_eq!(store.list(&with_label, None, 9).unwrap().runs.len(), 1, "{damage}");
    }
}

#[test]
fn lost_outputs_cost_the_outputs_alone() {
    let mut test = TestStore::new();
    let small = intent("small");
    test.record(&small, 3, &[(Stream::Stdout, b"one")]);
    test.tamper("DROP TABLE outputs");
    repair(&test.root()).unwrap();
    test.reopen();
    assert_eq!(test.store.get(small.id()).unwrap().outcome.unwrap().exit_code, Some(3));
}

#[test]
fn a_repair_leaves_a_database_of_something_else_alone() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("retake.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = repair(temp.path()).unwrap_err();
    assert!(matches!(error, Error::NotARecord { .. }), "{error}");
    assert!(std::fs::read(&path).unwrap() == before);
}
