//! A database written by the first release opens, verifies and stays usable.
//!
//! The fixture was made once, by the ignored test below, and stays unchanged: a release that
//! changes the schema adds another fixture.
#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::{FinishPlain as _, PlainLoop as _, PlainRecording as _, PlainStore as _};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{TestStore, intent, outcome};
use retake_store::SearchEffort;
use retake_store::{
    Head, Liveness, RunFilter, SCHEMA_VERSION, Store, StoredLoop, TestHistory, Verification,
    VerifyDepth,
};
use retake_types::{Kind, LoopId, MeasuredRun, OutcomeKind, RunId, State, StopReason, Stream};
use serde_json::{Value, json};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
            fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
    // Git does not keep these modes.
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn the_first_release_s_database_opens_and_verifies() {
    let expected: Value = serde_json::from_slice(&fs::read(fixture("v1.json")).unwrap()).unwrap();
    let head: Head = expected["head"].as_str().unwrap().parse().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    copy(&fixture("v1"), &root);

    let mut test = TestStore { store: Store::open(&root).unwrap(), temp };
    assert!(matches!(test.store.verify(Some(head)).unwrap(), Verification::Intact(_)));
    let page = test.store.list(&RunFilter::default(), None, 50).unwrap();
    assert_eq!(serde_json::to_value(&page.runs).unwrap(), expected["runs"]);
    for run in &page.runs {
        for stream in Stream::BOTH {
            let hash = blake3::hash(&test.output(run.intent.id(), stream)).to_hex().to_string();
            let key = format!("{}.{}", run.intent.id(), stream.as_str());
            assert_eq!(expected["outputs"][&key], hash, "{key}");
        }
    }
    assert_eq!(page.runs.iter().filter(|run| run.state == State::Interrupted).count(), 1);
    let hits = test.store.search("needle", 9, SearchEffort::reading(0)).unwrap().hits;
    assert_eq!(hits[0].snippet, "a needle in a haystack");
    let id: LoopId = expected["loop"].as_str().unwrap().parse().unwrap();
    assert_eq!(test.store.get_loop(id).unwrap().stop_reason, Some(StopReason::Completed));
    assert_eq!(test.store.loop_entries(id, 0, 9).unwrap().len(), 2);

    let new: RunId = test.run("after", 0);
    test.store.delete(page.runs[0].intent.id()).unwrap();
    assert_eq!(test.store.find("last").unwrap().intent.id(), new);
    assert!(matches!(test.store.verify(Some(head)).unwrap(), Verification::Intact(_)));
    assert!(test.store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects.is_empty());
}

/// Reading never migrates: an old database may be on a read-only file system.
#[test]
fn the_first_release_s_database_is_read_as_it_is() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    copy(&fixture("v1"), &root);
    let store = Store::open_read_only(&root).unwrap();
    assert!(matches!(store.verify(None).unwrap(), Verification::Intact(_)));
    let changed = RunFilter { changed: Some("/".into()), ..RunFilter::default() };
    assert!(store.list(&changed, None, 9).unwrap().runs.is_empty());
    assert!(store.tests(None).unwrap().is_empty());
}

#[test]
fn version_2_s_database_opens_and_verifies() {
    let expected: Value = serde_json::from_slice(&fs::read(fixture("v2.json")).unwrap()).unwrap();
    let head: Head = expected["head"].as_str().unwrap().parse().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    copy(&fixture("v2"), &root);

    let test = TestStore { store: Store::open(&root).unwrap(), temp };
    assert!(matches!(test.store.verify(Some(head)).unwrap(), Verification::Intact(_)));
    let changed = RunFilter { changed: Some("/project/src".into()), ..RunFilter::default() };
    let page = test.store.list(&changed, None, 9).unwrap();
    assert_eq!(serde_json::to_value(&page.runs).unwrap(), expected["runs"]);
    let history = &test.store.tests(Some("works")).unwrap()[0];
    assert_eq!(history.first_failure().unwrap().run, page.runs[0].intent.id());
    assert!(test.store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects.is_empty());
}

/// Recorded by the program itself: `exec` with every option, a matrix, a bisection, agents and
/// crash tests. The runner of the second agent was killed by a release in which loops had no live
/// file.
#[test]
fn a_database_with_every_option_and_every_kind_of_loop_is_read_back() {
    let read = fs::read(fixture("v2-full.json")).unwrap();
    let expected: Value = serde_json::from_slice(&read).unwrap();
    let head: Head = expected["head"].as_str().unwrap().parse().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    copy(&fixture("v2-full"), &root);

    let mut test = TestStore { store: Store::open(&root).unwrap(), temp };
    assert!(matches!(test.store.verify(Some(head)).unwrap(), Verification::Intact(_)));
    let runs = test.store.list(&RunFilter::default(), None, 99).unwrap().runs;
    assert_eq!(serde_json::to_value(&runs).unwrap(), expected["runs"]);
    for run in &runs {
        for stream in Stream::BOTH {
            let hash = blake3::hash(&test.output(run.intent.id(), stream)).to_hex().to_string();
            let key = format!("{}.{}", run.intent.id(), stream.as_str());
            assert_eq!(expected["outputs"][&key], hash, "{key}");
        }
    }
    let asked = runs.iter().find(|run| run.intent.request.labels.contains_key("suite")).unwrap();
    let request = serde_json::to_value(&asked.intent).unwrap().to_string();
    for word in ["TOKEN", "input.txt", "\"nice\":5", "\"capture\":\"stdout\"", "sess-456"] {
        assert!(request.contains(word), "{word} in {request}");
    }
    assert!(runs.iter().any(|run| run.intent.request.pty));

    let loops = test.store.list_loops(None, 99).unwrap();
    let shown: Vec<Value> = loops.iter().map(|stored| shown(&test.store, stored)).collect();
    assert_eq!(Value::from(shown), expected["loops"]);
    for kind in [Kind::Agent, Kind::Matrix, Kind::Crash] {
        assert!(loops.iter().any(|stored| stored.kind == kind), "{kind:?}");
    }
    assert!(loops.iter().all(|stored| !matches!(stored.stop_reason, Some(StopReason::Other(_)))));

    let open = test.store.open_loops(Kind::Agent).unwrap().remove(0).id;
    assert_eq!(test.store.loop_liveness(open), Liveness::Unknown);
    assert!(test.store.recover().unwrap().is_empty());
    let resumed = test.store.adopt_loop(open).unwrap();
    assert!(test.store.loop_is_alive(open));
    resumed.finish(&mut test.store, &StopReason::Completed).unwrap();
    assert!(test.store.open_loops(Kind::Agent).unwrap().is_empty());
    assert!(test.store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects.is_empty());
}

fn shown(store: &Store, stored: &StoredLoop) -> Value {
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let entries: Vec<Value> = store
        .loop_entries(stored.id, 0, 999)
        .unwrap()
        .iter()
        .map(|entry| json!({"seq": entry.seq, "at": entry.at, "body": json(&entry.body)}))
        .collect();
    json!({
        "id": stored.id,
        "kind": stored.kind.as_str(),
        "plan": json(&stored.plan),
        "state": stored.state,
        "stopReason": stored.stop_reason,
        "startTime": stored.start_time,
        "endTime": stored.end_time,
        "entries": entries,
    })
}

/// Everything recorded of the run then is read now; there may be more.
fn assert_holds(now: &Value, then: &Value) {
    match (now, then) {
        (Value::Object(now), Value::Object(then)) => {
            for (key, value) in then {
                assert_holds(now.get(key).unwrap_or(&Value::Null), value);
            }
        }
        _ => assert_eq!(now, then),
    }
}

#[test]
fn each_measured_gives_the_same_as_whole_runs_for_every_release() {
    for name in ["v1", "v2", "v2-full", "v3", "v4"] {
        let dir = tempfile::tempdir().unwrap();
        copy(&fixture(name), dir.path());
        let store = Store::open_read_only(dir.path()).unwrap();
        let filter = RunFilter::default();
        let mut whole = store.list(&filter, None, 1000).unwrap().runs;
        whole.reverse();
        let whole: Vec<MeasuredRun> = whole.iter().map(MeasuredRun::from).collect();
        assert!(!whole.is_empty(), "{name}");
        let mut read = Vec::new();
        store.each_measured(&filter, &mut |run| read.push(run)).unwrap();
        assert_eq!(read, whole, "{name}");
    }
}

/// Version 3 has lists of block hashes, and the order of arrival in the chain.
#[test]
fn version_3_s_database_opens_and_verifies() {
    let expected: Value = serde_json::from_slice(&fs::read(fixture("v3.json")).unwrap()).unwrap();
    let head: Head = expected["head"].as_str().unwrap().parse().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    copy(&fixture("v3"), &root);

    let mut test = TestStore { store: Store::open(&root).unwrap(), temp };
    let Verification::Intact(intact) = test.store.verify(Some(head)).unwrap() else { panic!() };
    assert_eq!((intact.runs, intact.unproven_orders), (1, 0));
    let run = test.store.list(&RunFilter::default(), None, 9).unwrap().runs.remove(0);
    assert_holds(&serde_json::to_value(&run).unwrap(), &expected["run"]);
    let hash = blake3::hash(&test.interleaved(run.intent.id())).to_hex().to_string();
    assert_eq!(expected["interleaved"], hash);
    // It was copied between the compression of its output and the removal of the spool.
    test.store.compact(Duration::from_secs(60)).unwrap();
    assert!(!test.store.needs_maintenance());
    assert!(test.store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects.is_empty());
}

/// Version 4 records what results imply about tests that they do not name: a complete run without a
/// failure ends "failing".
#[test]
fn version_4_s_database_opens_and_verifies() {
    let expected: Value = serde_json::from_slice(&fs::read(fixture("v4.json")).unwrap()).unwrap();
    let head: Head = expected["head"].as_str().unwrap().parse().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    copy(&fixture("v4"), &root);

    let read_only = Store::open_read_only(&root).unwrap();
    assert!(matches!(read_only.verify(Some(head)).unwrap(), Verification::Intact(_)));
    drop(read_only);
    let mut test = TestStore { store: Store::open(&root).unwrap(), temp };
    let Verification::Intact(intact) = test.store.verify(Some(head)).unwrap() else { panic!() };
    assert_eq!((intact.runs, intact.unproven_orders), (5, 0));
    let runs = test.store.list(&RunFilter::default(), None, 9).unwrap().runs;
    for (run, then) in runs.iter().zip(expected["runs"].as_array().unwrap()) {
        assert_holds(&serde_json::to_value(run).unwrap(), then);
    }
    for run in &runs {
        let hash = blake3::hash(&test.interleaved(run.intent.id())).to_hex().to_string();
        assert_eq!(expected["interleaved"][run.intent.id().to_string()], hash);
    }
    let histories = test.store.tests(Some("test_b")).unwrap();
    assert_eq!(Value::from(results(&histories[0])), expected["results"]);
    assert!(histories[0].failing_since().is_none() && histories[0].is_flaky());
    let loops = test.store.list_loops(None, 9).unwrap();
    let shown: Vec<Value> = loops.iter().map(|stored| shown(&test.store, stored)).collect();
    assert_eq!(Value::from(shown), expected["loops"]);
    test.run("after", 0);
    assert!(matches!(test.store.verify(Some(head)).unwrap(), Verification::Intact(_)));
    assert!(test.store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects.is_empty());
}

/// The result of a test in each run, and whether the run names it.
fn results(history: &TestHistory) -> Vec<Value> {
    let each = history.results.iter();
    each.map(|result| json!([result.run, result.status, result.inferred])).collect()
}

/// `cargo test -p retake-store --test fixture -- --ignored version_4`, once, when it was made.
#[test]
#[ignore = "writes the fixture; made once"]
fn make_the_fixture_of_version_4() {
    assert_eq!(SCHEMA_VERSION, 4, "a later version makes a fixture of its own");
    assert!(!fixture("v4").exists(), "a fixture is never made again");
    let mut test = TestStore::new();
    let mut recording = test.store.begin_plain_loop(Kind::Agent, r#"{"agent":"claude"}"#).unwrap();
    recording.append_plain_entries(&mut test.store, &[1, 2]).unwrap();
    recording.finish(&mut test.store, &StopReason::Completed).unwrap();
    // Plain unittest names only failures.
    for failed in [1, 0, 1, 0] {
        let intent = intent("python3 -m unittest");
        let mut recording = test.store.begin_plain(&intent).unwrap();
        recording.append_plain(Stream::Stderr, b"Ran 3 tests in 0.001s\n");
        let mut outcome = outcome(failed);
        let named = json!([{"name": "test_b", "status": "failed", "error": "1 != 2"}]);
        let effects = json!({"testResults": {
            "framework": "unittest", "total": 3, "passed": 3 - failed, "failed": failed, "skipped": 0,
            "allPassed": failed == 0, "confidence": "high",
            "details": if failed == 0 { json!([]) } else { named },
        }});
        outcome.effects = Some(serde_json::from_value(effects).unwrap());
        recording.finish_plain(&mut test.store, outcome).unwrap();
    }
    let large = b"a line of a log that compresses well\n".repeat(60_000);
    let streams = [(Stream::Stdout, &large[..]), (Stream::Stderr, b"warning\n")];
    test.record(&intent("make all"), 0, &streams);
    test.compact();
    let runs = test.store.list(&RunFilter::default(), None, 9).unwrap().runs;
    let hash = |id| blake3::hash(&test.interleaved(id)).to_hex().to_string();
    let interleaved: serde_json::Map<String, Value> = (runs.iter())
        .map(|run| (run.intent.id().to_string(), hash(run.intent.id()).into()))
        .collect();
    let loops = test.store.list_loops(None, 9).unwrap();
    let expected = json!({
        "head": test.store.head().unwrap().to_string(),
        "runs": runs,
        "interleaved": interleaved,
        "results": results(&test.store.tests(Some("test_b")).unwrap()[0]),
        "loops": loops.iter().map(|stored| shown(&test.store, stored)).collect::<Vec<_>>(),
    });
    keep(test, "v4", &expected);
}

/// `cargo test -p retake-store --test fixture -- --ignored version_3`, once, when it was made.
#[test]
#[ignore = "writes the fixture; made once"]
fn make_the_fixture_of_version_3() {
    assert_eq!(SCHEMA_VERSION, 3, "a later version makes a fixture of its own");
    assert!(!fixture("v3").exists(), "a fixture is never made again");
    let mut test = TestStore::new();
    let intent = intent("make all");
    let large = b"a line of a log that compresses well\n".repeat(60_000);
    let streams =
        [(Stream::Stdout, &large[..]), (Stream::Stderr, b"warning\n"), (Stream::Stdout, b"done\n")];
    test.record(&intent, 0, &streams);
    test.compact();
    let expected = json!({
        "head": test.store.head().unwrap().to_string(),
        "run": test.store.get(intent.id()).unwrap(),
        "interleaved": blake3::hash(&test.interleaved(intent.id())).to_hex().to_string(),
    });
    keep(test, "v3", &expected);
}

/// `cargo test -p retake-store --test fixture -- --ignored version_2`, once, when it was made.
#[test]
#[ignore = "writes the fixture; made once"]
fn make_the_fixture_of_version_2() {
    assert_eq!(SCHEMA_VERSION, 2, "a later version makes a fixture of its own");
    assert!(!fixture("v2").exists(), "a fixture is never made again");
    let mut test = TestStore::new();
    let intent = intent("make test");
    let recording = test.store.begin_plain(&intent).unwrap();
    let mut outcome = outcome(1);
    let effects = json!({
        "filesCreated": [], "filesModified": ["src/lib.rs"], "filesDeleted": [],
        "filesRenamed": [{"from": "a", "to": "b"}],
        "lineChanges": {"src/lib.rs": {"added": 1, "removed": 2}},
        "testResults": {
            "framework": "cargo", "total": 1, "passed": 0, "failed": 1, "skipped": 0,
            "allPassed": false, "successRate": 0.0,
            "details": [
                {"name": "works", "status": "failed", "durationMs": 3, "error": "it does not"}
            ],
        },
        "progress": {"detected": true, "reasons": ["files_changed"]},
        "summary": null,
    });
    outcome.effects = Some(serde_json::from_value(effects).unwrap());
    recording.finish_plain(&mut test.store, outcome).unwrap();
    test.compact();
    let expected = json!({
        "head": test.store.head().unwrap().to_string(),
        "runs": test.store.list(&RunFilter::default(), None, 9).unwrap().runs,
    });
    keep(test, "v2", &expected);
}

fn keep(test: TestStore, name: &str, expected: &Value) {
    fs::write(fixture(&format!("{name}.json")), serde_json::to_vec_pretty(expected).unwrap())
        .unwrap();
    let root = test.root();
    test.tamper("PRAGMA wal_checkpoint(TRUNCATE)");
    drop(test.store);
    copy(&root, &fixture(name));
    for file in ["write.lock", "retake.db-wal", "retake.db-shm", ".gitignore"] {
        // Created again when the store is opened.
        drop(fs::remove_file(fixture(name).join(file)));
    }
}

/// `cargo test -p retake-store --test fixture -- --ignored`, once, when version 1 was made.
#[test]
#[ignore = "writes the fixture; made once"]
fn make_the_fixture_of_version_1() {
    assert_eq!(SCHEMA_VERSION, 1, "a later version makes a fixture of its own");
    assert!(!fixture("v1").exists(), "a fixture is never made again");
    let mut test = TestStore::new();
    let plan = r#"{"axis":["a","b"]}"#;
    let mut recording = test.store.begin_plain_loop(Kind::Matrix, plan).unwrap();
    let loop_id = recording.id();
    recording.append_plain_entries(&mut test.store, &[1, 2]).unwrap();
    recording.finish(&mut test.store, &StopReason::Completed).unwrap();
    let mut labelled = intent("make check");
    labelled.request.labels.insert("suite".into(), "nightly".into());
    labelled.request.correlation_ids.session_id = Some("sess-456".into());
    labelled.request.position.kind = Kind::Matrix;
    labelled.request.position.id = loop_id;
    test.record(
        &labelled,
        2,
        &[
            (Stream::Stdout, b"one\n"),
            (Stream::Stderr, b"\xff\xfe bytes\n"),
            (Stream::Stdout, b"two\n"),
        ],
    );
    let mut child = intent("echo needle");
    child.parent_id = Some(labelled.id());
    test.record(&child, 0, &[(Stream::Stdout, b"a needle in a haystack\n")]);
    test.record(&intent("seq"), 0, &[(Stream::Stdout, &b"0123456789\n".repeat(20_000))]);
    let doomed = test.run("to be deleted", 0);
    test.compact();
    test.store.delete(doomed).unwrap();
    let mut dead = test.store.begin_plain(&intent("sleep 9")).unwrap();
    dead.append_plain(Stream::Stdout, b"still here\n");
    drop(dead);
    assert_eq!(
        test.store.recover().unwrap().runs[0].outcome.as_ref().unwrap().kind,
        OutcomeKind::Interrupted
    );
    let mut timed_out = outcome(124);
    timed_out.kind = OutcomeKind::TimedOut;
    let recording = test.store.begin_plain(&intent("sleep 10")).unwrap();
    recording.finish_plain(&mut test.store, timed_out).unwrap();
    test.compact();

    let runs = test.store.list(&RunFilter::default(), None, 50).unwrap().runs;
    let outputs: serde_json::Map<String, Value> = runs
        .iter()
        .flat_map(|run| Stream::BOTH.map(|stream| (run.intent.id(), stream)))
        .map(|(id, stream)| {
            let hash = blake3::hash(&test.output(id, stream)).to_hex().to_string();
            (format!("{id}.{}", stream.as_str()), hash.into())
        })
        .collect();
    let expected = json!({
        "head": test.store.head().unwrap().to_string(),
        "runs": runs,
        "outputs": outputs,
        "loop": loop_id,
    });
    keep(test, "v1", &expected);
}
