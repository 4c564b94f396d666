//! Many writers at once, and writers that are killed at any instant.
//!
//! The helpers are this test binary itself, started with their task in the environment.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::{FinishPlain as _, PlainRecording as _, PlainStore as _};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{assert_intact, intent, outcome};
use retake_store::{RunFilter, RunStatus, Store, VerifyDepth};
use retake_types::{OutcomeKind, RunId, State, Stream};

const TASK: &str = "RETAKE_STORE_TEST_TASK";
const ROOT: &str = "RETAKE_STORE_TEST_ROOT";

/// Killed when a test fails, so that no helper outlives it.
struct Helper(Child);

impl Drop for Helper {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn start(task: &str, root: &Path) -> Helper {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper", "--nocapture", "--test-threads=1"])
        .env(TASK, task)
        .env(ROOT, root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    Helper(child)
}

/// Not a test: the entry point of helpers.
#[test]
fn helper() {
    let (Ok(task), Ok(root)) = (std::env::var(TASK), std::env::var(ROOT)) else { return };
    let root = Path::new(&root);
    match task.as_str() {
        "fifty" => record_fifty(root),
        "forever" => record_forever(root),
        "hang" => {
            let mut store = Store::open(root).unwrap();
            let intent = intent("hang");
            let mut recording = store.begin_plain(&intent).unwrap();
            recording.append_plain(Stream::Stdout, b"before the end\n");
            recording.append_plain(Stream::Stderr, &b"large\n".repeat(50_000));
            acknowledge(&intent.id());
            loop {
                std::thread::park();
            }
        }
        other => panic!("{other}"),
    }
}

fn acknowledge(id: &RunId) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\ndone {id}").unwrap();
    out.flush().unwrap();
}

fn record_fifty(root: &Path) {
    for i in 0..50 {
        // A new connection each time, as separate commands would make.
        let mut store = Store::open(root).unwrap();
        store.recover().unwrap();
        let intent = intent(&format!("fifty {i}"));
        let mut recording = store.begin_plain(&intent).unwrap();
        recording.append_plain(Stream::Stdout, format!("output {i}\n").as_bytes());
        recording.finish_plain(&mut store, outcome(0)).unwrap();
        acknowledge(&intent.id());
    }
}

fn record_forever(root: &Path) {
    let mut store = Store::open(root).unwrap();
    store.recover().unwrap();
    for i in 0u32.. {
        let intent = intent("forever");
        let mut recording = store.begin_plain(&intent).unwrap();
        recording.append_plain(Stream::Stdout, format!("out {i} {}\n", intent.id()).as_bytes());
        recording.append_plain(Stream::Stderr, b"err\n");
        if i % 4 == 1 {
            recording.append_plain(Stream::Stdout, &b"0123456789abcdef\n".repeat(8_000));
        }
        recording.finish_plain(&mut store, outcome(0)).unwrap();
        acknowledge(&intent.id());
        if i % 3 == 2 {
            store.compact(Duration::from_secs(1)).unwrap();
        }
        if i % 5 == 4 {
            let oldest = store.list(&RunFilter::default(), None, 1000).unwrap().runs.pop().unwrap();
            if oldest.intent.command() == "victim" {
                store.delete(oldest.intent.id()).unwrap();
            }
        }
    }
}

fn acknowledged(output: &str) -> Vec<RunId> {
    output
        .lines()
        .filter_map(|line| line.strip_prefix("done "))
        .map(|id| id.parse().unwrap())
        .collect()
}

#[test]
fn thirty_two_processes_record_fifty_runs_each() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    let mut children: Vec<Helper> = (0..32).map(|_| start("fifty", &root)).collect();
    let readers: Vec<_> = children
        .iter_mut()
        .map(|child| {
            let mut stdout = child.0.stdout.take().unwrap();
            std::thread::spawn(move || {
                let mut text = String::new();
                stdout.read_to_string(&mut text).unwrap();
                text
            })
        })
        .collect();
    let mut ids: Vec<RunId> =
        readers.into_iter().flat_map(|reader| acknowledged(&reader.join().unwrap())).collect();
    for mut child in children {
        assert!(child.0.wait().unwrap().success());
    }
    assert_eq!(ids.len(), 1600);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 1600, "ids are unique");
    let mut store = Store::open(&root).unwrap();
    assert!(store.recover().unwrap().is_empty());
    assert_eq!(assert_intact(&store).runs, 1600);
    assert!(store.examine(VerifyDepth::Quick, &mut |_| {}).unwrap().defects.is_empty());
    for id in ids {
        assert_eq!(store.get(id).unwrap().state, State::Finished);
    }
}

#[test]
fn a_reader_never_blocks_a_writer() {
    let mut test = common::TestStore::new();
    test.run("before", 0);
    let reader = rusqlite::Connection::open(test.store.database_path()).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM runs").unwrap();
    let begun = Instant::now();
    for i in 0..200 {
        test.run(&format!("while {i}"), 0);
    }
    assert!(begun.elapsed() < Duration::from_secs(20));
    let seen: i64 = reader.query_row("SELECT count(*) FROM runs", [], |row| row.get(0)).unwrap();
    assert_eq!(seen, 1, "the reader's snapshot did not move");
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(test.assert_intact().runs, 201);
}

#[test]
fn a_killed_runner_reads_interrupted_with_its_output() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    let mut child = start("hang", &root);
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let id = loop {
        let line = lines.next().unwrap().unwrap();
        if let Some(id) = line.strip_prefix("done ") {
            break id.parse::<RunId>().unwrap();
        }
    };
    let reader = Store::open_read_only(&root).unwrap();
    assert_eq!(reader.get(id).unwrap().state, State::Running);
    let running = RunFilter { status: Some(RunStatus::Running), ..RunFilter::default() };
    assert_eq!(reader.list(&running, None, 9).unwrap().runs.len(), 1);
    child.0.kill().unwrap();
    child.0.wait().unwrap();

    // Before any recovery, and without writing.
    assert_eq!(reader.get(id).unwrap().state, State::Interrupted);
    assert!(reader.list(&running, None, 9).unwrap().runs.is_empty());
    let interrupted = RunFilter {
        status: Some(RunStatus::Outcome(OutcomeKind::Interrupted)),
        ..RunFilter::default()
    };
    assert_eq!(reader.list(&interrupted, None, 9).unwrap().runs.len(), 1);
    let output = |store: &Store, stream| {
        let mut bytes = Vec::new();
        store.read_output(id, stream).unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    };
    assert_eq!(output(&reader, Stream::Stdout), b"before the end\n");

    let mut store = Store::open(&root).unwrap();
    let recovered = store.recover().unwrap().runs;
    assert_eq!(recovered.len(), 1);
    let run = store.get(id).unwrap();
    assert_eq!(recovered[0], run);
    let outcome = run.outcome.unwrap();
    assert_eq!((outcome.kind, outcome.exit_code), (OutcomeKind::Interrupted, None));
    assert_eq!((outcome.stdout_bytes, outcome.stderr_bytes), (15, 300_000));
    assert_eq!(output(&store, Stream::Stdout), b"before the end\n");
    assert!(output(&store, Stream::Stderr) == b"large\n".repeat(50_000));
    assert_eq!(store.list(&interrupted, None, 9).unwrap().runs.len(), 1);
    assert_intact(&store);
    assert!(store.recover().unwrap().is_empty());
    assert!(store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects.is_empty());
}

#[test]
fn killed_at_any_instant_nothing_acknowledged_is_lost() {
    let mut killed = 0;
    // Kill times spread over the life of a helper, including its start.
    let mut delays = (0..300u64).map(|i| Duration::from_micros(3_000 + (i * 7_919) % 40_000));
    while killed < 300 {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("store");
        let mut known: Vec<RunId> = Vec::new();
        for nth in 0..20 {
            let Some(delay) = delays.next() else { break };
            let mut child = start("forever", &root);
            let mut stdout = BufReader::new(child.0.stdout.take().unwrap());
            let mut text = String::new();
            // On a slow machine too, the last helper of a store acknowledges a run before it is
            // killed.
            while nth == 19 && !text.contains("done ") {
                assert_ne!(stdout.read_line(&mut text).unwrap(), 0, "it ended by itself");
            }
            std::thread::sleep(delay);
            child.0.kill().unwrap();
            child.0.wait().unwrap();
            killed += 1;
            stdout.read_to_string(&mut text).unwrap();
            // The last line may be torn by the kill.
            let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
            known.extend(acknowledged(whole));
            if !root.join("retake.db").exists() {
                continue;
            }
            check(&root, &known);
        }
        assert!(!known.is_empty());
    }
}

fn check(root: &Path, known: &[RunId]) {
    let mut store = Store::open(root).unwrap();
    store.recover().unwrap();
    let sound: String = rusqlite::Connection::open(store.database_path())
        .unwrap()
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(sound, "ok");
    assert_intact(&store);
    for &id in known {
        let run = store.get(id).unwrap();
        assert_eq!(run.state, State::Finished, "{id}");
        let outcome = run.outcome.unwrap();
        for (stream, hash) in [
            (Stream::Stdout, outcome.stdout_blake3.clone()),
            (Stream::Stderr, outcome.stderr_blake3.clone()),
        ] {
            let mut hasher = blake3::Hasher::new();
            std::io::copy(&mut store.read_output(id, stream).unwrap(), &mut hasher).unwrap();
            assert_eq!(Some(hasher.finalize().to_hex().to_string()), hash);
        }
    }
    let unfinished = RunFilter { status: Some(RunStatus::Running), ..RunFilter::default() };
    assert!(store.list(&unfinished, None, 9).unwrap().runs.is_empty());
    // A killed compaction leaves only harmless files.
    for problem in store.examine(VerifyDepth::Quick, &mut |_| {}).unwrap().defects {
        assert!(matches!(problem, retake_store::Defect::Orphan(_)), "{problem}");
    }
}
