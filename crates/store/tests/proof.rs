//! The ledger proves itself: every kind of tampering is found at its place, and erased content is
//! gone from every file while the rest still verifies.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::PlainStore as _;
use std::time::Duration;

use common::{TestStore, all_files, files_with, intent};
use jiff::{Timestamp, ToSpan};
use memchr::memmem;
use proptest::prelude::*;
use retake_store::SearchEffort;
use retake_store::{
    Break, BreakKind, Error, Head, Prune, RunFilter, Store, Verification, VerifyDepth,
};
use retake_types::{Kind, RunId, State, Stream};

use Stream::{Stderr, Stdout};

/// Five runs: entries 1 to 10, with output and labels.
fn five() -> (TestStore, Vec<RunId>) {
    let mut test = TestStore::new();
    let ids = (0..5)
        .map(|i| {
            let mut intent = intent(&format!("command {i}"));
            intent.request.labels.insert("n".into(), i.to_string());
            test.record(&intent, i, &[(Stdout, format!("output {i}\n").as_bytes())]);
            intent.id()
        })
        .collect();
    (test, ids)
}

fn first_break(test: &TestStore, expect: Option<Head>) -> Break {
    match test.store.verify(expect).unwrap() {
        Verification::Broken(mut found) => found.remove(0),
        Verification::Intact(_) => panic!("the tampering was not seen"),
    }
}

type Expected = fn(&BreakKind) -> bool;

#[test]
fn tampering_is_found_at_its_place() {
    let cases: [(&str, u64, Expected); 15] = [
        (
            "UPDATE ledger SET body = CAST(replace(CAST(body AS TEXT), 'command 2', 'command 7') AS BLOB) WHERE seq = 5",
            5,
            |kind| *kind == BreakKind::EditedBody,
        ),
        ("DELETE FROM ledger WHERE seq = 4", 4, |kind| *kind == BreakKind::DeletedEntry),
        ("DELETE FROM ledger WHERE seq = 1", 1, |kind| *kind == BreakKind::DeletedEntry),
        (
            "UPDATE ledger SET seq = 99 WHERE seq = 3; UPDATE ledger SET seq = 3 WHERE seq = 5; UPDATE ledger SET seq = 5 WHERE seq = 99",
            3,
            |kind| *kind == BreakKind::EditedEntry,
        ),
        ("UPDATE ledger SET hash = zeroblob(32) WHERE seq = 6", 6, |kind| {
            *kind == BreakKind::EditedEntry
        }),
        ("UPDATE ledger SET hash = x'00' WHERE seq = 6", 6, |kind| *kind == BreakKind::EditedEntry),
        (
            "UPDATE ledger SET body = NULL WHERE seq = 7; DELETE FROM runs WHERE seq = 7",
            8,
            |kind| matches!(kind, BreakKind::Projection(_)),
        ),
        (
            "UPDATE ledger SET body = NULL WHERE seq IN (7, 8); DELETE FROM runs WHERE seq = 7; DELETE FROM outputs WHERE place / 2 = 7; DELETE FROM labels WHERE run = 7",
            7,
            |kind| *kind == BreakKind::UnmarkedErasure,
        ),
        ("UPDATE runs SET command = 'innocent' WHERE seq = 3", 3, |kind| {
            matches!(kind, BreakKind::Projection(_))
        }),
        ("UPDATE runs SET status = 0, exit_code = 0 WHERE seq = 3", 4, |kind| {
            matches!(kind, BreakKind::Projection(_))
        }),
        ("DELETE FROM runs WHERE seq = 9", 9, |kind| matches!(kind, BreakKind::Projection(_))),
        ("INSERT INTO labels VALUES ('forged', 'x', 1, 1)", 10, |kind| {
            matches!(kind, BreakKind::Projection(_))
        }),
        ("DELETE FROM labels WHERE run = 5", 5, |kind| matches!(kind, BreakKind::Projection(_))),
        (
            "UPDATE outputs SET content = CAST('output 9' || char(10) AS BLOB) WHERE place = 10",
            6,
            |kind| matches!(kind, BreakKind::Output { stream: Stdout, .. }),
        ),
        // The tail is cut, and no head is expected: the projection still has the run.
        ("DELETE FROM ledger WHERE seq > 8", 8, |kind| matches!(kind, BreakKind::Projection(_))),
    ];
    for (sql, seq, kind) in cases {
        let (test, _) = five();
        assert_eq!(test.assert_intact().runs, 5);
        test.tamper(sql);
        let found = first_break(&test, None);
        assert_eq!(found.seq, seq, "{sql}: {found}");
        assert!(kind(&found.kind), "{sql}: {found}");
        assert!(found.to_string().contains(&format!("entry {seq}")), "{found}");
    }
}

#[test]
fn a_head_kept_elsewhere_finds_a_cut_tail_and_a_rewritten_chain() {
    let (test, _) = five();
    let head = test.store.head().unwrap();
    assert_eq!(head.count, 10);
    assert_eq!(test.assert_intact().head, head);
    assert!(matches!(test.store.verify(Some(head)).unwrap(), Verification::Intact(_)));
    // Cut so that nothing inside shows it.
    test.tamper(
        "DELETE FROM ledger WHERE seq > 8; DELETE FROM runs WHERE seq > 8;
         DELETE FROM outputs WHERE place > 17; DELETE FROM labels WHERE run > 8",
    );
    assert_eq!(test.assert_intact().runs, 4);
    let found = first_break(&test, Some(head));
    assert_eq!((found.seq, found.kind), (8, BreakKind::CutTail { expected: 10 }));
    let other = Head { count: 6, hash: blake3::hash(b"another chain") };
    assert_eq!(first_break(&test, Some(other)).kind, BreakKind::Rewritten);
}

#[test]
fn a_deleted_run_is_gone_from_every_file_and_the_chain_still_verifies() {
    let mut test = TestStore::new();
    let mut doomed = intent("run zyxwvcommand");
    doomed.request.labels.insert("zyxwvlabel".into(), "zyxwvvalue".into());
    doomed.request.correlation_ids.session_id = Some("zyxwvsession".into());
    doomed.request.cwd = "/zyxwvdirectory".into();
    for i in 0..20 {
        test.record(&intent(&format!("before {i}")), 0, &[(Stdout, b"zyxaaa zyxzzz common\n")]);
    }
    let mut large = b"zyxwvlarge middle\n".repeat(20_000);
    large.extend(b"zyxwvend");
    test.record(&doomed, 1, &[(Stdout, b"zyxwvsmall words\n"), (Stderr, &large)]);
    for i in 0..20 {
        test.record(&intent(&format!("after {i}")), 0, &[(Stdout, b"zyxaaa zyxzzz common\n")]);
    }
    test.compact();
    assert_eq!(test.store.search("zyxwvsmall", 5, SearchEffort::reading(0)).unwrap().hits.len(), 1);
    assert!(!files_with(&test.root(), b"zyxwv").is_empty());
    let head = test.store.head().unwrap();

    let erased = test.store.delete(doomed.id()).unwrap();
    assert_eq!((erased.runs, erased.wal_in_use), (vec![doomed.id()], false));
    let left = files_with(&test.root(), b"zyxwv");
    assert!(left.is_empty(), "{left:?}");
    assert!(matches!(test.store.get(doomed.id()), Err(Error::NotFound { .. })));
    assert_eq!(
        test.store.search("zyxwvsmall", 5, SearchEffort::reading(1 << 30)).unwrap().hits.len(),
        0
    );
    assert_eq!(test.store.search("zyxaaa", 50, SearchEffort::reading(0)).unwrap().hits.len(), 40);
    let intact = test.assert_intact();
    assert_eq!((intact.runs, intact.erased), (40, 2));
    assert!(matches!(test.store.verify(Some(head)).unwrap(), Verification::Intact(_)));
}

#[test]
fn a_run_can_be_deleted_before_it_was_indexed_and_not_while_it_runs() {
    let mut test = TestStore::new();
    let (pending, running) = (intent("pending"), intent("running"));
    test.record(&pending, 0, &[(Stdout, &b"zyxwv ".repeat(50_000)), (Stderr, b"zyxwv")]);
    let recording = test.store.begin_plain(&running).unwrap();
    assert!(matches!(test.store.delete(running.id()), Err(Error::StillRunning { .. })));
    test.store.delete(pending.id()).unwrap();
    assert!(files_with(&test.root(), b"zyxwv").is_empty());
    assert_eq!(test.store.get(running.id()).unwrap().state, State::Running);
    drop(recording);
    assert_eq!(test.store.get(running.id()).unwrap().state, State::Interrupted);
    test.store.delete(running.id()).unwrap();
    test.assert_intact();
    assert!(test.store.recover().unwrap().is_empty());
    assert!(test.store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects.is_empty());
}

#[test]
fn an_index_that_cannot_be_undone_is_made_anew() {
    let mut test = TestStore::new();
    let (doomed, kept) = (intent("doomed"), intent("kept"));
    test.record(&doomed, 0, &[(Stdout, &b"zyxwvlost ".repeat(50_000))]);
    test.record(&kept, 0, &[(Stdout, b"zyxwvkept")]);
    test.compact();
    let (path, _) = all_files(&test.root())
        .into_iter()
        .find(|(path, _)| path.extension().is_some_and(|extension| extension == "zst"))
        .unwrap();
    std::fs::remove_file(path).unwrap();
    test.store.delete(doomed.id()).unwrap();
    assert!(files_with(&test.root(), b"zyxwvlost").is_empty());
    test.compact();
    assert_eq!(test.store.search("zyxwvkept", 5, SearchEffort::reading(0)).unwrap().hits.len(), 1);
    test.assert_intact();
}

#[test]
fn pruning_takes_old_exec_runs_and_leaves_the_rest() {
    let mut test = TestStore::new();
    let now = Timestamp::now();
    let mut made = Vec::new();
    for (age_hours, kind, code) in
        [(100, Kind::Exec, 0), (100, Kind::Exec, 1), (100, Kind::Matrix, 0), (1, Kind::Exec, 0)]
    {
        let mut intent = intent("zyxwv old");
        intent.start_time = now - age_hours.hours();
        intent.request.position.kind = kind;
        test.record(&intent, code, &[(Stdout, b"zyxwv text")]);
        made.push(intent.id());
    }
    let mut prune =
        Prune { before: now - 50.hours(), keep_failed: true, kinds: Vec::new(), dry_run: true };
    let dry = test.store.prune(&prune).unwrap();
    assert_eq!((dry.runs, dry.output_bytes), (vec![made[0]], 10));
    assert_eq!(test.assert_intact().runs, 4);
    prune.dry_run = false;
    assert_eq!(test.store.prune(&prune).unwrap().runs, [made[0]]);
    prune.keep_failed = false;
    assert_eq!(test.store.prune(&prune).unwrap().runs, [made[1]]);
    assert_eq!(test.store.prune(&prune).unwrap().runs, []);
    prune.kinds = vec![Kind::Matrix];
    assert_eq!(test.store.prune(&prune).unwrap().runs, [made[2]]);
    assert_eq!(test.store.list(&RunFilter::default(), None, 9).unwrap().runs.len(), 1);
    assert_eq!(test.assert_intact().erased, 6);
}

#[test]
fn two_prunes_at_once_share_the_work() {
    let mut test = TestStore::new();
    let made: Vec<_> = (0..300).map(|n| test.run(&format!("run {n}"), 0)).collect();
    let prune = Prune {
        before: Timestamp::now() + 1.hours(),
        keep_failed: false,
        kinds: Vec::new(),
        dry_run: false,
    };
    let root = test.root();
    let erased: Vec<_> = std::thread::scope(|scope| {
        let work = || Store::open(&root).unwrap().prune(&prune).unwrap().runs;
        let both = [scope.spawn(work), scope.spawn(work)];
        both.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(erased.len(), made.len(), "each run is erased once");
    assert_eq!(test.assert_intact().runs, 0);
}

#[test]
fn retention_looks_once_a_day() {
    let mut test = TestStore::new();
    let now = Timestamp::now();
    let mut old = intent("old");
    old.start_time = now - (24 * 31).hours();
    test.record(&old, 0, &[]);
    test.run("new", 0);
    assert_eq!(test.store.retain(30, now).unwrap().unwrap().runs, [old.id()]);
    assert!(test.store.retain(30, now + 23.hours()).unwrap().is_none());
    assert!(test.store.retain(30, now + 25.hours()).unwrap().is_some());
    assert_eq!(test.assert_intact().runs, 1);
}

#[test]
fn search_finds_what_is_indexed_pending_and_in_the_middle() {
    let mut test = TestStore::new();
    let indexed = intent("indexed");
    test.record(
        &indexed,
        0,
        &[(Stderr, b"first\n\x1b[31merror\x1b[0m: Needle in a haystack\nlast")],
    );
    let mut large = b"filler text\n".repeat(30_000);
    large.extend(b"a needle in the middle\n");
    large.extend(b"filler text\n".repeat(30_000));
    let middle = intent("middle");
    test.record(&middle, 0, &[(Stdout, &large)]);
    test.compact();
    let pending = intent("pending");
    test.record(&pending, 0, &[(Stdout, "x\nthe needle, déjà vu\n".as_bytes())]);

    let found = test.store.search("NEEDLE", 10, SearchEffort::reading(1 << 30)).unwrap();
    let seen: Vec<_> = found
        .hits
        .iter()
        .map(|hit| (hit.run.intent.id(), hit.stream, hit.snippet.as_str()))
        .collect();
    assert_eq!(
        seen,
        [
            (pending.id(), Stdout, "the needle, déjà vu"),
            (middle.id(), Stdout, "a needle in the middle"),
            (indexed.id(), Stderr, "error: Needle in a haystack"),
        ]
    );
    for hit in &found.hits {
        assert_eq!(hit.snippet[hit.matches[0].clone()].to_lowercase(), "needle");
    }
    assert_eq!((found.skipped_bytes, found.more), (0, false));

    let found = test.store.search("needle", 10, SearchEffort::reading(0)).unwrap();
    assert_eq!(found.hits.len(), 1);
    assert!(found.skipped_bytes > 500_000, "{}", found.skipped_bytes);
    let first = test.store.search("needle", 1, SearchEffort::reading(1 << 30)).unwrap();
    assert_eq!((first.hits[0].run.intent.id(), first.more), (pending.id(), true));
    let hits = |text: &str| {
        test.store.search(text, 10, SearchEffort::reading(1 << 30)).unwrap().hits.len()
    };
    assert_eq!(hits("needle in a"), 1);
    assert_eq!(hits("in needle"), 0);
    assert_eq!(hits("hays*"), 1);
    assert_eq!(hits("hays"), 0);
    assert_eq!(hits("\"; OR *"), 0);
    assert_eq!(hits("--"), 0);
    test.compact();
    assert_eq!(test.store.search("deja vu", 10, SearchEffort::reading(0)).unwrap().hits.len(), 1);
    assert_eq!(test.store.compact(Duration::ZERO).unwrap(), Default::default());
}

/// A separator between two leaves of the search index is a prefix of a word, here the whole word.
#[test]
fn no_erased_word_stays_between_the_leaves_of_the_index() {
    const RUNS: usize = 8;
    let mut test = TestStore::new();
    let words = |run: usize| (0..4000).skip(run).step_by(RUNS).map(|n| format!("zyxwv{n:05}"));
    let mut ids = Vec::new();
    for run in 0..RUNS {
        let intent = intent("c");
        let text = words(run).collect::<Vec<_>>().join(" ");
        test.record(&intent, 0, &[(Stdout, text.as_bytes())]);
        ids.push(intent.id());
    }
    test.compact();
    for (run, id) in ids.into_iter().enumerate() {
        test.store.delete(id).unwrap();
        let files = all_files(&test.root());
        for word in words(run) {
            let found =
                files.iter().find(|(_, bytes)| memmem::find(bytes, word.as_bytes()).is_some());
            assert!(found.is_none(), "{word} in {:?}", found.unwrap().0);
        }
        test.tamper("INSERT INTO search (search) VALUES ('integrity-check')");
        for other in run + 1..RUNS {
            let word = words(other).nth(250).unwrap();
            assert_eq!(
                test.store.search(&word, 5, SearchEffort::reading(0)).unwrap().hits.len(),
                1,
                "{word}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Erasing is exact with any other content in the index and in any order; also in an index of
    /// many leaves, whose separators are prefixes of words.
    #[test]
    fn deletions_in_any_order_leave_no_word_behind(
        words in proptest::collection::vec("[a-c]{3,6}", 2..12),
        order in proptest::collection::vec(any::<proptest::sample::Index>(), 1..12),
        compact_after in 0usize..12,
    ) {
        let mut test = TestStore::new();
        let mut left: Vec<(RunId, String)> = Vec::new();
        for (index, word) in words.iter().enumerate() {
            // A unique word for each run, close to others in the index's order.
            let letter = char::from(b'a' + index as u8);
            let word = format!("zyxwv{word}{letter}{letter}{letter}qjkvx");
            let intent = intent(&format!("c {word}"));
            let text = format!("{word} zyxwvshared {word}\n").repeat(40 * (index + 1));
            test.record(&intent, 0, &[(Stdout, text.as_bytes())]);
            left.push((intent.id(), word));
            if index == compact_after {
                test.compact();
            }
        }
        test.compact();
        for pick in order {
            if left.is_empty() {
                break;
            }
            let (id, word) = left.remove(pick.index(left.len()));
            test.store.delete(id).unwrap();
            // The index shares prefixes of words, so only the end is unique. One letter before
            // `qjkvx` would not suffice: an overflow page number can look like it.
            let files = files_with(&test.root(), &word.as_bytes()[word.len() - 7..]);
            prop_assert!(files.is_empty(), "{} in {:?}", word, files);
            prop_assert_eq!(test.assert_intact().runs, left.len() as u64);
            test.tamper("INSERT INTO search (search) VALUES ('integrity-check')");
            for (other, word) in &left {
                let hits = test.store.search(word, 5, SearchEffort::reading(0)).unwrap().hits;
                prop_assert_eq!(hits.len(), 1);
                prop_assert_eq!(hits[0].run.intent.id(), *other);
            }
        }
    }
}
