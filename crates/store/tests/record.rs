//! What is recorded reads back: runs, output in every form, arrival order, lists and families.

mod common;

use common::{FinishPlain as _, PlainLoop as _, PlainRecording as _, PlainStore as _, plain};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use common::{TestStore, intent, outcome};
use jiff::Timestamp;
use proptest::prelude::*;
use retake_store::{
    AuditRecord, Error, Exported, RunFilter, RunStatus, StartOrder, Store, StoredLoop, VerifyDepth,
    head_end, tail_start,
};
use retake_types::request::{CommandRequest, LoopPosition};
use retake_types::{
    CorrelationIds, ErrorCode, Kind, LeftFate, LeftProcess, LoopId, LoopState, OsText, OutcomeKind,
    RunError, RunId, State, StopReason, Stream, Usage,
};

use Stream::{Stderr, Stdout};

#[test]
fn a_run_reads_back_as_it_was_recorded() {
    let mut test = TestStore::new();
    let mut intent = intent("cargo test --all");
    intent.request.labels.insert("ci".into(), "yes".into());
    intent.request.command = CommandRequest::arguments("x", [OsText::from_bytes(vec![0xff])]);
    let mut recording = test.store.begin_plain(&intent).unwrap();
    let running = test.store.get(intent.id()).unwrap();
    assert_eq!((running.state, running.outcome), (State::Running, None));

    recording.append_plain(Stdout, b"hello ");
    recording.append_plain(Stderr, b"oops\n");
    recording.append_plain(Stdout, b"world\n");
    let mut given = outcome(3);
    given.error = Some(RunError {
        detail: None,
        code: ErrorCode::Failed,
        message: "failed".into(),
        hint: None,
        problems: vec![],
    });
    given.left_processes = vec![LeftProcess { pid: 7, command: "x".into(), fate: LeftFate::Ended }];
    given.usage = Usage { max_rss_kb: 9, ..Usage::default() };
    let finished = recording.finish_plain(&mut test.store, given.clone()).unwrap();
    given.stdout_bytes = 12;
    given.stderr_bytes = 5;
    given.stdout_blake3 = Some(blake3::hash(b"hello world\n").to_hex().to_string());
    given.stderr_blake3 = Some(blake3::hash(b"oops\n").to_hex().to_string());
    assert!(finished.outcome.order_blake3.is_some());
    given.order_blake3 = finished.outcome.order_blake3.clone();
    assert_eq!(*finished.outcome, given);

    test.reopen();
    let run = test.store.get(intent.id()).unwrap();
    assert_eq!(
        (run.intent, run.outcome, run.state),
        (plain(intent.clone()), Some(plain(given)), State::Finished)
    );
    assert_eq!(test.output(intent.id(), Stdout), b"hello world\n");
    assert_eq!(test.output(intent.id(), Stderr), b"oops\n");
    assert_eq!(test.interleaved(intent.id()), b"hello oops\nworld\n");
    assert_eq!(test.assert_intact().runs, 1);
}

#[test]
fn an_outcome_is_committed_together_with_the_next_intent() {
    let mut test = TestStore::new();
    let mut before = intent("first");
    let mut recording = test.store.begin_plain(&before).unwrap();
    for nth in 0..40 {
        recording.append_plain(Stdout, b"out\n");
        let ended = recording.end(plain(outcome(nth)));
        assert_eq!(ended.outcome().stdout_bytes, 4);
        assert_eq!(test.store.get(before.id()).unwrap().state, State::Running);
        let next = intent("next");
        let (finished, begun) = ended.commit_and_begin(&mut test.store, &plain(next.clone()));
        let committed = finished.unwrap().outcome;
        let run = test.store.get(before.id()).unwrap();
        assert_eq!((run.state, run.outcome), (State::Finished, Some(committed)));
        assert_eq!(test.output(before.id(), Stdout), b"out\n");
        assert_eq!(test.store.get(next.id()).unwrap().state, State::Running);
        (before, recording) = (next, begun.unwrap());
    }
    // An intent that cannot be committed does not affect the outcome.
    let ended = recording.end(plain(outcome(0)));
    let (finished, begun) = ended.commit_and_begin(&mut test.store, &plain(before.clone()));
    assert!(finished.unwrap().error.is_none());
    assert!(matches!(begun, Err(Error::Duplicate { id }) if id == before.id()), "{begun:?}");
    assert_eq!(test.store.get(before.id()).unwrap().state, State::Finished);
    assert_eq!(test.assert_intact().runs, 41);
    test.reopen();
    assert!(test.store.recover().unwrap().is_empty());
    assert!(test.store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects.is_empty());
}

#[test]
fn a_run_whose_outcome_was_held_for_ever_reads_interrupted_with_its_output() {
    let mut test = TestStore::new();
    let held = intent("held");
    let mut recording = test.store.begin_plain(&held).unwrap();
    recording.append_plain(Stdout, b"out\n");
    drop(recording.end(plain(outcome(0))));
    assert_eq!(test.store.recover().unwrap().runs.len(), 1);
    assert_eq!(test.store.get(held.id()).unwrap().state, State::Interrupted);
    assert_eq!(test.output(held.id(), Stdout), b"out\n");
    test.assert_intact();
}

#[test]
fn only_the_owner_can_read_the_store() {
    let mut test = TestStore::new();
    test.record(&intent("a"), 0, &[(Stdout, &[b'x'; 100_000])]);
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&test.root()), 0o700);
    for (path, _) in common::all_files(&test.root()) {
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[test]
fn a_finished_run_without_large_output_leaves_no_file() {
    let mut test = TestStore::new();
    test.record(&intent("a"), 0, &[(Stdout, b"x"), (Stderr, b"y"), (Stdout, b"z")]);
    let mut names: Vec<String> = common::all_files(&test.root())
        .iter()
        .map(|(path, _)| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert_eq!(names, [".gitignore", "retake.db", "retake.db-shm", "retake.db-wal", "write.lock"]);
}

#[test]
fn an_id_is_recorded_once() {
    let mut test = TestStore::new();
    let intent = intent("a");
    test.record(&intent, 0, &[]);
    assert!(
        matches!(test.store.begin_plain(&intent), Err(Error::Duplicate { id }) if id == intent.id())
    );
    let running = common::intent("b");
    let recording = test.store.begin_plain(&running).unwrap();
    assert!(matches!(test.store.begin_plain(&running), Err(Error::Duplicate { .. })));
    recording.finish_plain(&mut test.store, outcome(0)).unwrap();
    assert!(test.store.recover().unwrap().is_empty());
    assert_eq!(test.assert_intact().runs, 2);
}

#[test]
fn large_output_reads_the_same_raw_and_compressed_and_is_stored_once() {
    let mut test = TestStore::new();
    let text: Vec<u8> = (0..200_000).flat_map(|i| format!("line {i}\n").into_bytes()).collect();
    let (first, second) = (intent("a"), intent("b"));
    test.record(&first, 0, &[(Stdout, &text), (Stderr, b"small")]);
    test.record(&second, 0, &[(Stderr, &text)]);
    let check = |test: &TestStore| {
        assert!(test.output(first.id(), Stdout) == text);
        assert!(test.output(second.id(), Stderr) == text);
        assert_eq!(test.output(first.id(), Stderr), b"small");
        let mut output = test.store.read_output(first.id(), Stdout).unwrap();
        let end = head_end(&mut output, 2).unwrap();
        let start = tail_start(&mut output, 2).unwrap();
        assert_eq!(&text[..end as usize], b"line 0\nline 1\n");
        assert_eq!(&text[start as usize..], b"line 199998\nline 199999\n");
        output.seek(SeekFrom::Start(start)).unwrap();
        let mut tail = String::new();
        output.read_to_string(&mut tail).unwrap();
        assert_eq!(tail, "line 199998\nline 199999\n");
    };
    check(&test);
    let done = test.store.compact(Duration::from_secs(60)).unwrap();
    assert_eq!((done.compressed, done.indexed, done.more), (2, 3, false));
    check(&test);
    let compressed: Vec<_> = common::all_files(&test.root())
        .into_iter()
        .filter(|(path, _)| path.extension().is_some_and(|extension| extension == "zst"))
        .collect();
    assert_eq!(compressed.len(), 1);
    assert!(compressed[0].1.len() < text.len() / 3);
    assert!(test.store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects.is_empty());

    test.store.delete(first.id()).unwrap();
    assert!(test.output(second.id(), Stderr) == text, "still shared");
    test.store.delete(second.id()).unwrap();
    assert!(!compressed[0].0.exists());
    test.assert_intact();
}

/// Two threads of one program, such as a server, may compress the same output at once.
#[test]
fn threads_that_compress_the_same_output_do_not_take_each_others_files() {
    for round in 0..20 {
        let mut test = TestStore::new();
        let text: Vec<u8> =
            (0..300_000).flat_map(|i| format!("{round} {i}\n").into_bytes()).collect();
        let run = intent("a");
        test.record(&run, 0, &[(Stdout, &text)]);
        let root = test.root();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut store = Store::open(&root).unwrap();
                    store.compact(Duration::from_secs(60)).unwrap();
                    let mut read = Vec::new();
                    let mut output = store.read_output(run.id(), Stdout).unwrap();
                    output.read_to_end(&mut read).unwrap();
                    assert!(read == text);
                });
            }
        });
        assert!(test.store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects.is_empty());
    }
}

#[test]
fn output_can_be_followed_while_it_is_written() {
    let mut test = TestStore::new();
    let intent = intent("a");
    let mut recording = test.store.begin_plain(&intent).unwrap();
    let reader = Store::open_read_only(&test.root()).unwrap();
    let mut follow = reader.follow(intent.id(), None);
    let mut seen = Vec::new();
    let mut look = |expected: &str, over: bool| {
        let ended = follow.poll(&reader, &mut |_, bytes| seen.extend_from_slice(bytes)).unwrap();
        assert_eq!((String::from_utf8_lossy(&seen).as_ref(), ended), (expected, over));
    };
    look("", false);
    recording.append_plain(Stdout, b"1");
    look("1", false);
    recording.append_plain(Stdout, b"2");
    recording.append_plain(Stderr, b"3");
    recording.append_plain(Stdout, b"4");
    look("1234", false);
    recording.append_plain(Stderr, b"5");
    recording.append_plain(Stdout, b"6");
    recording.finish_plain(&mut test.store, outcome(0)).unwrap();
    look("123456", true);
    look("123456", true);
    let mut late = reader.follow(intent.id(), Some(Stderr)).from_offsets([0, 1]);
    let mut seen = Vec::new();
    assert!(late.poll(&reader, &mut |_, bytes| seen.extend_from_slice(bytes)).unwrap());
    assert_eq!((seen.as_slice(), late.offsets()), (&b"5"[..], [0, 2]));
}

#[test]
fn a_run_is_found_by_id_prefix_suffix_and_last() {
    let mut test = TestStore::new();
    let ids: Vec<RunId> = (0..5).map(|i| test.run(&format!("c{i}"), 0)).collect();
    let found = |text: &str| test.store.find(text).map(|run| run.intent.id());
    assert_eq!(found("last").unwrap(), ids[4]);
    assert_eq!(found(&ids[2].to_string()).unwrap(), ids[2]);
    assert_eq!(found(&ids[2].short()).unwrap(), ids[2]);
    assert_eq!(found(&ids[2].to_string()[..35].to_uppercase()).unwrap(), ids[2]);
    match found(&ids[0].to_string()[..8]) {
        Err(Error::Ambiguous { candidates, .. }) => {
            assert_eq!(candidates, ids.iter().rev().copied().collect::<Vec<_>>());
        }
        other => panic!("{other:?}"),
    }
    for nothing in ["zz", "", "00000000-0000-7000-8000-000000000000", "0123456789abcdef0123"] {
        assert!(matches!(found(nothing), Err(Error::NotFound { .. })), "{nothing}");
    }
}

#[test]
fn every_filter_finds_its_runs_in_pages() {
    let mut test = TestStore::new();
    let loop_id = LoopId::new();
    let mut expected = Vec::new();
    for i in 0..40 {
        let mut intent = intent(if i % 2 == 0 { "cargo test" } else { "make all" });
        if i % 4 == 0 {
            intent.request.position.kind = Kind::Matrix;
            intent.request.position.id = loop_id;
            intent.request.cwd = "/elsewhere".into();
            intent.request.labels.insert("k".into(), "v".into());
            intent.request.labels.insert("n".into(), (i % 8).to_string());
            let id = Some("same".to_owned());
            intent.request.correlation_ids = CorrelationIds {
                run_id: id.clone(),
                session_id: id.clone(),
                task_id: id.clone(),
                step_id: id.clone(),
                tool_call_id: id.clone(),
                worktree_id: id.clone(),
                repo_sha: id,
            };
            expected.push(intent.id());
        }
        test.record(&intent, i32::from(i % 4 == 0), &[]);
    }
    expected.reverse();
    let all = |filter: &RunFilter| {
        let (mut ids, mut cursor) = (Vec::new(), None);
        loop {
            let page = test.store.list(filter, cursor, 3).unwrap();
            assert!(page.runs.len() <= 3);
            ids.extend(page.runs.iter().map(|run| run.intent.id()));
            cursor = page.next;
            if cursor.is_none() {
                return ids;
            }
        }
    };
    let same = Some("same".to_owned());
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    for filter in [
        RunFilter { status: Some(RunStatus::Failed), ..RunFilter::default() },
        RunFilter { kind: Some(Kind::Matrix), ..RunFilter::default() },
        RunFilter { loop_id: Some(loop_id), ..RunFilter::default() },
        RunFilter { cwd: Some("/elsewhere".into()), ..RunFilter::default() },
        RunFilter { labels: vec![label("k", "v")], ..RunFilter::default() },
        RunFilter { run_id: same.clone(), ..RunFilter::default() },
        RunFilter { session_id: same.clone(), ..RunFilter::default() },
        RunFilter { task_id: same.clone(), ..RunFilter::default() },
        RunFilter { step_id: same.clone(), ..RunFilter::default() },
        RunFilter { tool_call_id: same.clone(), ..RunFilter::default() },
        RunFilter { worktree_id: same.clone(), ..RunFilter::default() },
        RunFilter {
            repo_sha: same.clone(),
            command: Some("cargo*".into()),
            ..RunFilter::default()
        },
    ] {
        assert_eq!(all(&filter), expected, "{filter:?}");
    }
    assert_eq!(all(&RunFilter::default()).len(), 40);
    assert_eq!(all(&RunFilter { status: Some(RunStatus::Ok), ..RunFilter::default() }).len(), 30);
    let exited =
        RunFilter { status: Some(RunStatus::Outcome(OutcomeKind::Exited)), ..RunFilter::default() };
    assert_eq!(all(&exited).len(), 40);
    let timed_out = RunFilter {
        status: Some(RunStatus::Outcome(OutcomeKind::TimedOut)),
        ..RunFilter::default()
    };
    assert_eq!(all(&timed_out).len(), 0);
    let both = RunFilter { labels: vec![label("k", "v"), label("n", "4")], ..RunFilter::default() };
    assert_eq!(all(&both).len(), 5);
    assert_eq!(all(&RunFilter { kind: Some(Kind::Exec), ..RunFilter::default() }).len(), 30);
    assert_eq!(
        all(&RunFilter { command: Some("make all".into()), ..RunFilter::default() }).len(),
        20
    );
    let third = test.store.get(expected[3]).unwrap().intent.start_time;
    let since = RunFilter { since: Some(third), kind: Some(Kind::Matrix), ..RunFilter::default() };
    assert_eq!(all(&since), &expected[..=3]);
    let until = RunFilter { until: Some(third), kind: Some(Kind::Matrix), ..RunFilter::default() };
    assert_eq!(all(&until), &expected[4..]);
}

#[test]
fn the_main_lists_are_served_by_an_index_without_a_sort() {
    let test = TestStore::new();
    let connection = rusqlite::Connection::open(test.store.database_path()).unwrap();
    let text = |value: &str| Some(value.to_owned());
    for (filter, index) in [
        (RunFilter::default(), "runs_start"),
        (RunFilter { session_id: text("s"), ..RunFilter::default() }, "runs_session"),
        (RunFilter { task_id: text("s"), ..RunFilter::default() }, "runs_task"),
        (RunFilter { run_id: text("s"), ..RunFilter::default() }, "runs_run_id"),
        (RunFilter { status: Some(RunStatus::Failed), ..RunFilter::default() }, "runs_failed"),
        (RunFilter { status: Some(RunStatus::Ok), ..RunFilter::default() }, "runs_status"),
        (RunFilter { kind: Some(Kind::Agent), ..RunFilter::default() }, "runs_kind"),
        (RunFilter { loop_id: Some(LoopId::new()), ..RunFilter::default() }, "runs_loop"),
        (RunFilter { cwd: Some("/x".into()), ..RunFilter::default() }, "runs_cwd"),
        (
            RunFilter { labels: vec![("a".into(), "b".into())], ..RunFilter::default() },
            "SEARCH l USING PRIMARY KEY",
        ),
    ] {
        let orders = [StartOrder::NewestFirst, StartOrder::OldestFirst];
        for (order, page) in orders.into_iter().flat_map(|order| [(order, false), (order, true)]) {
            let (sql, parameters) = filter.explainable(order, page, 50);
            let plan: Vec<String> = connection
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .unwrap()
                .query_map(rusqlite::params_from_iter(parameters), |row| row.get(3))
                .unwrap()
                .map(Result::unwrap)
                .collect();
            let plan = plan.join("\n");
            assert!(plan.contains(index), "{index}:\n{plan}");
            assert!(!plan.contains("TEMP B-TREE"), "{index}:\n{plan}");
        }
    }
}

#[test]
fn runs_inside_runs_are_a_tree() {
    let mut test = TestStore::new();
    let root = intent("root");
    let mut child = intent("child");
    child.parent_id = Some(root.id());
    let mut grandchild = intent("grandchild");
    grandchild.parent_id = Some(child.id());
    for intent in [&root, &child, &grandchild] {
        test.record(intent, 0, &[]);
    }
    let tree = test.store.tree(root.id()).unwrap();
    assert_eq!(tree.children[0].run.intent.id(), child.id());
    assert_eq!(tree.children[0].children[0].run.intent.id(), grandchild.id());
    assert!(tree.children[0].children[0].children.is_empty());
}

#[test]
fn loops_have_states_runs_and_numbered_events() {
    let mut test = TestStore::new();
    let before = Timestamp::now();
    let mut recording = test.store.begin_plain_loop(Kind::Matrix, "{}").unwrap();
    let id = recording.id();
    let begun = test.store.get_loop(id).unwrap();
    let expected = StoredLoop {
        id,
        kind: Kind::Matrix,
        plan: "{}".into(),
        state: LoopState::Running,
        stop_reason: None,
        start_time: begun.start_time,
        end_time: None,
    };
    assert_eq!(begun, expected);
    assert!(begun.start_time.as_microsecond() >= before.as_microsecond());
    assert_eq!(recording.append_plain_entries(&mut test.store, &[1, 2]).unwrap(), 2);
    assert_eq!(recording.append_plain_entries(&mut test.store, &[3]).unwrap(), 3);
    let entries = test.store.loop_entries(id, 1, 10).unwrap();
    let seen: Vec<_> = entries.iter().map(|entry| (entry.seq, entry.body.as_str())).collect();
    assert_eq!(seen, [(2, "2"), (3, "3")]);
    for iteration in 1..=3 {
        let mut intent = intent("x");
        intent.request.position = LoopPosition { kind: Kind::Matrix, id, iteration };
        test.record(&intent, 0, &[]);
    }
    let runs = test.store.runs_of_loop(id).unwrap();
    assert_eq!(runs.iter().map(|run| run.intent.iteration()).collect::<Vec<_>>(), [1, 2, 3]);
    let waiting = LoopState::Other("waiting".into());
    recording.set_state(&mut test.store, &waiting).unwrap();
    assert_eq!(test.store.get_loop(id).unwrap().state, waiting);
    recording.finish(&mut test.store, &StopReason::Completed).unwrap();
    let stopped = test.store.get_loop(id).unwrap();
    assert_eq!(
        (&stopped.state, &stopped.stop_reason),
        (&LoopState::Finished, &Some(StopReason::Completed))
    );
    assert!(stopped.end_time.is_some());
    assert_eq!(test.store.list_loops(Some(Kind::Matrix), 5).unwrap(), [stopped]);
    assert!(matches!(test.store.get_loop(LoopId::new()), Err(Error::NoLoop { .. })));
}

#[test]
fn an_export_imports_exactly_once_with_every_byte() {
    let mut test = TestStore::new();
    let big: Vec<u8> = (0..2_000_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    let (first, second) = (intent("a"), intent("b"));
    test.record(&first, 0, &[(Stdout, b"out\xff\n"), (Stderr, b"err"), (Stdout, b"more")]);
    test.record(&second, 4, &[(Stderr, &big)]);
    let unfinished = intent("c");
    let recording = test.store.begin_plain(&unfinished).unwrap();
    let mut lines = Vec::new();
    for run in test.store.list(&RunFilter::default(), None, 10).unwrap().runs {
        let written = test.store.export(&run, &mut lines).unwrap();
        let expected = match run.intent.id() == unfinished.id() {
            true => Exported::Unfinished,
            false => Exported::Written { lost: Vec::new(), order_altered: false },
        };
        assert_eq!(written, expected);
    }
    drop(recording);

    let mut other = TestStore::new();
    let done = other.store.import(&mut &lines[..]).unwrap();
    assert_eq!((done.imported.len(), done.known), (2, 0));
    let again = other.store.import(&mut &lines[..]).unwrap();
    assert_eq!((again.imported.len(), again.known), (0, 2));
    for id in [first.id(), second.id()] {
        assert_eq!(other.store.get(id).unwrap(), test.store.get(id).unwrap());
        assert!(other.interleaved(id) == test.interleaved(id));
    }
    assert!(other.output(second.id(), Stderr) == big);
    other.assert_intact();
    other.compact();
    assert!(other.output(second.id(), Stderr) == big);
    assert!(other.store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects.is_empty());

    let text = String::from_utf8(lines).unwrap();
    let last = text.lines().last().unwrap();
    let damaged = text.replacen("b3V0", "b3V1", 1);
    for (bad, why) in [
        (damaged.as_str(), "not the recorded one"),
        (last, "without the run"),
        ("{\"x\":1}", "line 1"),
        (&text[..text.len() - 40], "line"),
    ] {
        let mut fresh = TestStore::new();
        let error = fresh.store.import(&mut bad.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        fresh.assert_intact();
    }
}

#[test]
fn audit_records_have_the_specified_keys_in_order() {
    let mut test = TestStore::new();
    let mut intent = intent("dotnet build");
    intent.start_time = "2024-01-15T10:30:00Z".parse().unwrap();
    intent.request.correlation_ids.run_id = Some("run-123".into());
    test.record(&intent, 0, &[]);
    let run = test.store.get(intent.id()).unwrap();
    assert_eq!(
        serde_json::to_string(&AuditRecord::of(&run)).unwrap(),
        r#"{"eventType":"command_execution","timestamp":"2024-01-15T10:30:00Z","runId":"run-123","sessionId":null,"taskId":null,"stepId":null,"toolCallId":null,"worktreeId":null,"repoSha":null,"command":"dotnet build","exitCode":0,"durationMs":5}"#
    );
}

#[test]
fn stats_count_by_command() {
    let mut test = TestStore::new();
    for (command, code) in [("a", 0), ("a", 1), ("b", 0), ("a", 1)] {
        test.run(command, code);
    }
    let stats = test.store.stats(&RunFilter::default()).unwrap();
    assert_eq!((stats.runs, stats.ok, stats.failed, stats.unfinished), (4, 2, 2, 0));
    let a = &stats.commands[0];
    assert_eq!((a.command.as_str(), a.runs, a.streak, a.streak_ok), ("a", 3, 2, false));
    assert_eq!(a.p95_ms, Some(5));
    let failed = RunFilter { status: Some(RunStatus::Failed), ..RunFilter::default() };
    assert_eq!(test.store.stats(&failed).unwrap().runs, 2);
}

fn any_output() -> impl Strategy<Value = Vec<(bool, Vec<u8>)>> {
    let piece = prop_oneof![
        8 => proptest::collection::vec(any::<u8>(), 0..200),
        1 => (any::<u8>(), 30_000usize..90_000).prop_map(|(byte, length)| vec![byte; length]),
    ];
    proptest::collection::vec((any::<bool>(), piece), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_run_round_trips(
        command in "\\PC{0,40}",
        labels in proptest::collection::btree_map("\\PC{0,8}", "\\PC{0,8}", 0..4),
        set in proptest::collection::btree_map("[A-Z]{1,6}", "\\PC{0,20}", 0..4),
        session in proptest::option::of("\\PC{0,12}"),
        start_us in -1_000_000_000_000i64..4_000_000_000_000_000,
        exit_code in any::<i32>(),
        output in any_output(),
        compact in any::<bool>(),
    ) {
        let mut test = TestStore::new();
        let mut intent = intent(&command);
        intent.request.labels = labels;
        intent.request.environment.set = set.into_iter().map(|(n, v)| (n.into(), v.into())).collect();
        intent.request.correlation_ids.session_id = session;
        intent.start_time = Timestamp::from_microsecond(start_us).unwrap();
        let pieces: Vec<(Stream, &[u8])> =
            output.iter().map(|(err, bytes)| (Stream::BOTH[usize::from(*err)], &bytes[..])).collect();
        let outcome = test.record(&intent, exit_code, &pieces);
        if compact {
            test.compact();
        }
        test.reopen();
        let run = test.store.get(intent.id()).unwrap();
        prop_assert_eq!(&*run.intent, &intent);
        prop_assert_eq!(run.outcome, Some(outcome));
        for stream in Stream::BOTH {
            let expected: Vec<u8> = pieces
                .iter()
                .filter(|(of, _)| *of == stream)
                .flat_map(|(_, bytes)| bytes.to_vec())
                .collect();
            prop_assert!(test.output(intent.id(), stream) == expected);
        }
        let interleaved: Vec<u8> = pieces.iter().flat_map(|(_, bytes)| bytes.to_vec()).collect();
        prop_assert!(test.interleaved(intent.id()) == interleaved);
        test.assert_intact();
        let mut lines = Vec::new();
        test.store.export(&test.store.get(intent.id()).unwrap(), &mut lines).unwrap();
        let mut other = TestStore::new();
        other.store.import(&mut &lines[..]).unwrap();
        prop_assert_eq!(other.store.get(intent.id()).unwrap(), test.store.get(intent.id()).unwrap());
        prop_assert!(other.interleaved(intent.id()) == interleaved);
    }
}
