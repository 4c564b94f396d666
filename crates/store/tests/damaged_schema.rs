//! A schema that was changed outside of the store: every command reports it in one short sentence,
//! the doctor finds it, and a repair restores everything that the ledger holds.

mod common;

use common::{FinishPlain as _, PlainStore as _};
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
        let series = test.store.begin_plain_loop(Kind::Matrix, "{}").unwrap();
        drop(series);
        let head = test.store.head().unwrap();
        let root = test.root();
        test.tamper(damage);
        let TestStore { temp: _temp, store } = test;
        drop(store);

        // Each of these may still work, depending on what is missing.
        match Store::open(&root) {
            Ok(mut store) => {
                if let Err(error) = store.list(&RunFilter::default(), None, 9) {
                    assert_short(&error);
                }
                if let Err(error) = store
                    .begin_plain(&intent("b"))
                    .and_then(|recording| recording.finish_plain(&mut store, outcome(0)).map(drop))
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
            assert!(entries >= head.count, "{damage}: the chain continues");
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
fn outputs_whose_rows_are_missing_or_swapped_are_found_again() {
    // Three runs with output in the database, in a raw file and in a compressed one.
    let swap = "UPDATE outputs SET place = -place; UPDATE outputs SET place = CASE";
    for damage in [
        "DELETE FROM outputs WHERE storage > 0",
        &format!("{swap} WHEN -place = 2 THEN 6 WHEN -place = 6 THEN 2 ELSE -place END"),
        &format!("{swap} WHEN -place = 2 THEN 10 WHEN -place = 10 THEN 2 ELSE -place END"),
        "UPDATE outputs SET place = place + 1000",
        "UPDATE outputs SET hash = zeroblob(32)",
        "UPDATE outputs SET storage = 3 - storage WHERE storage > 0",
        "UPDATE outputs SET content = (SELECT content FROM outputs WHERE place = 4)
           WHERE place = 2; UPDATE runs SET cwd = 'x'",
    ] {
        let mut test = TestStore::new();
        let runs = [intent("large"), intent("small"), intent("raw")];
        let outputs: [Vec<u8>; 3] =
            [b"abc".repeat(50_000), b"small".to_vec(), b"0123456789".repeat(20_000)];
        test.record(&runs[0], 0, &[(Stream::Stdout, &outputs[0])]);
        test.compact();
        test.record(&runs[1], 0, &[(Stream::Stdout, &outputs[1])]);
        test.record(&runs[2], 0, &[(Stream::Stdout, &outputs[2])]);
        test.tamper(damage);
        let repaired = repair(&test.root()).unwrap();
        assert!(repaired.backup.is_some(), "{damage}");
        test.reopen();
        test.assert_intact();
        for (run, output) in runs.iter().zip(&outputs) {
            assert!(test.output(run.id(), Stream::Stdout) == *output, "{damage}");
        }
        assert_eq!(repair(&test.root()).unwrap().backup, None, "{damage}: all is mended");
    }
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
