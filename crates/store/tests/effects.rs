//! Effects of runs can be searched, are verified like the rest, and are erased with their run.
#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::{FinishPlain as _, PlainStore as _};
use std::path::PathBuf;

use common::{TestStore, files_with, intent, outcome};
use retake_store::{BreakKind, RunFilter, Store, Verification};
use retake_types::{RunId, TestStatus};
use serde_json::{Value, json};

fn record(test: &mut TestStore, effects: Value) -> RunId {
    let intent = intent("make");
    let recording = test.store.begin_plain(&intent).unwrap();
    let mut outcome = outcome(0);
    outcome.effects = Some(serde_json::from_value(effects).unwrap());
    recording.finish_plain(&mut test.store, outcome).unwrap();
    intent.id()
}

fn results(tests: &[(&str, &str, u64)]) -> Value {
    let failed = tests.iter().filter(|(_, status, _)| matches!(*status, "failed" | "error"));
    let details: Vec<Value> = tests
        .iter()
        .map(|(name, status, ms)| json!({"name": name, "status": status, "durationMs": ms}))
        .collect();
    json!({"failed": failed.count(), "details": details})
}

fn found(store: &Store, filter: &RunFilter) -> Vec<RunId> {
    let page = store.list(filter, None, 50).unwrap();
    page.runs.iter().map(|run| run.intent.id()).collect()
}

fn changed(store: &Store, path: &str) -> Vec<RunId> {
    found(store, &RunFilter { changed: Some(PathBuf::from(path)), ..RunFilter::default() })
}

#[test]
fn runs_are_found_by_the_files_they_changed() {
    let mut test = TestStore::new();
    let one = record(
        &mut test,
        json!({
            "filesCreated": ["src/new.rs"], "filesModified": ["src/lib.rs", "src/lib.rs"],
            "filesDeleted": ["old"], "filesRenamed": [{"from": "a/x", "to": "b/x"}],
        }),
    );
    let two = record(&mut test, json!({"filesModified": ["src/lib.rs"], "root": "/elsewhere"}));
    test.run("no effects", 0);
    let store = &test.store;
    for path in ["/project/src/new.rs", "/project/old", "/project/a/x", "/project/b", "/project/"] {
        assert_eq!(changed(store, path), [one], "{path}");
    }
    assert_eq!(changed(store, "/elsewhere/src"), [two]);
    assert_eq!(changed(store, "/"), [two, one]);
    assert_eq!(changed(store, "/project/src/lib"), []);
    assert_eq!(changed(store, "/project/src/lib.rs0"), []);
    test.assert_intact();
}

#[test]
fn tests_have_a_history() {
    let mut test = TestStore::new();
    let runs: Vec<RunId> = [
        &[("a::one", "passed", 3), ("b", "skipped", 1)][..],
        &[("a::one", "failed", 4), ("b", "skipped", 1)],
        &[("a::one", "error", 5), ("a::one", "passed", 5)],
        &[("b", "passed", 2)],
    ]
    .iter()
    .map(|tests| record(&mut test, json!({"testResults": results(tests)})))
    .collect();
    let failed = RunFilter { tests_failed: true, ..RunFilter::default() };
    assert_eq!(found(&test.store, &failed), [runs[2], runs[1]]);

    let all = test.store.tests(None).unwrap();
    assert_eq!(all.iter().map(|test| test.name.as_str()).collect::<Vec<_>>(), ["a::one", "b"]);
    let one = &test.store.tests(Some("a::*")).unwrap()[0];
    let statuses: Vec<_> = one.results.iter().map(|result| (result.run, result.status)).collect();
    assert_eq!(
        statuses,
        [
            (runs[0], TestStatus::Passed),
            (runs[1], TestStatus::Failed),
            (runs[2], TestStatus::Error)
        ]
    );
    assert_eq!((one.flips(), one.results[1].duration_ms), (1, Some(4)));
    assert_eq!(one.failing_since().unwrap().run, runs[1]);
    assert_eq!(one.first_failure().unwrap().run, runs[1]);
    let b = &all[1];
    assert_eq!((b.flips(), b.failing_since(), b.first_failure()), (0, None, None));
    assert_eq!(test.store.tests(Some("a::[o]ne")).unwrap().len(), 1);
    assert_eq!(test.store.tests(Some("nothing")).unwrap(), []);
}

#[test]
fn changes_to_the_search_tables_are_detected_and_repaired() {
    for edit in [
        "UPDATE effects SET tests_failed = 0",
        "DELETE FROM changes",
        "UPDATE changes SET path = '/other'",
        "INSERT INTO changes VALUES ('/forged', 1, 1)",
        "UPDATE tests SET status = 0",
        "INSERT INTO tests VALUES ('forged', 1, 1, 0, NULL)",
        "INSERT INTO effects VALUES (77, 1, 1, 1, 0)",
        "UPDATE effects SET tests = 9",
        "UPDATE effects SET vouches = 1",
    ] {
        let mut test = TestStore::new();
        let effects = json!({"filesCreated": ["x"], "testResults": results(&[("t", "failed", 1)])});
        let id = record(&mut test, effects);
        test.tamper(edit);
        let Verification::Broken(found) = test.store.verify(None).unwrap() else {
            panic!("{edit} does not show")
        };
        let found = &found[0];
        assert!(matches!(found.kind, BreakKind::Projection(_)), "{edit}: {found}");
        let root = test.root();
        drop(test.store);
        retake_store::repair(&root).unwrap();
        let store = Store::open(&root).unwrap();
        common::assert_intact(&store);
        assert_eq!(changed(&store, "/project/x"), [id], "{edit}");
        assert_eq!(store.tests(Some("t")).unwrap().len(), 1, "{edit}");
    }
}

#[test]
fn effects_go_with_their_run() {
    let mut test = TestStore::new();
    let id = record(
        &mut test,
        json!({
            "filesCreated": ["zyxwvsecretpath"],
            "testResults": results(&[("zyxwvsecrettest", "failed", 1)]),
        }),
    );
    test.store.delete(id).unwrap();
    test.assert_intact();
    assert_eq!(files_with(&test.root(), b"zyxwvsecret"), Vec::<PathBuf>::new());
    assert!(test.store.tests(None).unwrap().is_empty());
}

#[test]
fn effects_of_a_later_release_are_kept_although_not_understood() {
    let mut test = TestStore::new();
    let effects = json!({"filesCreated": {"by": "someone else"}});
    let id = record(&mut test, effects.clone());
    test.assert_intact();
    let read = test.store.get(id).unwrap().outcome.unwrap().effects.clone();
    assert_eq!(serde_json::to_value(read).unwrap(), effects);
}
