//! What pages need: lists in pages, statistics over time, and output as it arrives.
#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::{FinishPlain as _, PlainLoop as _, PlainRecording as _, PlainStore as _};
use common::{intent, outcome};
use jiff::{SignedDuration, Timestamp};
use retake_store::{
    DurationOrder, DurationPlace, Error, LoopCursor, OutputPart, RunCursor, RunFilter, RunStatus,
    RunsByDuration, SearchEffort, StartOrder, Store,
};
use retake_types::{Kind, RanOn, RunId, Stream};

fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("data")).unwrap();
    (dir, store)
}

fn run(store: &mut Store, at: Timestamp, ms: u64, code: i32, output: &[u8]) -> RunId {
    let intent = retake_types::Intent { start_time: at, ..intent("x") };
    let mut recording = store.begin_plain(&intent).unwrap();
    recording.append_plain(Stream::Stdout, output);
    let outcome = retake_types::RunOutcome { duration_ms: ms, ..outcome(code) };
    recording.finish_plain(store, outcome).unwrap();
    intent.id()
}

#[test]
fn a_place_in_a_list_survives_being_written_down() {
    let (_dir, mut store) = store();
    let now = Timestamp::now();
    let ids: Vec<RunId> = (0..5).map(|_| run(&mut store, now, 1, 0, b"")).collect();
    let first = store.list(&RunFilter::default(), None, 2).unwrap();
    let cursor: RunCursor = first.next.unwrap().to_string().parse().unwrap();
    let rest = store.list(&RunFilter::default(), Some(cursor), 10).unwrap();
    let seen: Vec<RunId> =
        first.runs.iter().chain(&rest.runs).rev().map(|run| run.intent.id()).collect();
    assert_eq!(seen, ids);
}

#[test]
fn loops_come_page_by_page_and_by_kind() {
    let (_dir, mut store) = store();
    let mut all = Vec::new();
    // All at the same moment: the id decides.
    let mut recordings = Vec::new();
    for n in 0..7 {
        let kind = if n % 3 == 0 { Kind::Crash } else { Kind::Agent };
        let recording = store.begin_plain_loop(kind, "{}").unwrap();
        all.push(recording.id());
        recordings.push(recording);
    }
    let database = rusqlite::Connection::open(store.database_path()).unwrap();
    database
        .execute("UPDATE loops SET start_us = ?1", [Timestamp::now().as_microsecond()])
        .unwrap();
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let page = store.page_loops(None, cursor, 2).unwrap();
        assert!(page.loops.len() <= 2);
        seen.extend(page.loops.iter().map(|record| record.id));
        match page.next {
            Some(next) => cursor = Some(next.to_string().parse::<LoopCursor>().unwrap()),
            None => break,
        }
    }
    seen.reverse();
    assert_eq!(seen, all);
    let crashes = store.page_loops(Some(Kind::Crash), None, 3).unwrap();
    assert_eq!((crashes.loops.len(), crashes.next), (3, None));
    assert_eq!(store.last_loop_entry(all[0]).unwrap(), 0);
    recordings[0].append_plain_entries(&mut store, &[(), ()]).unwrap();
    assert_eq!(store.last_loop_entry(all[0]).unwrap(), 2);
}

#[test]
fn figures_over_time_count_every_run_once() {
    let (_dir, mut store) = store();
    let until = Timestamp::now();
    let since = until - SignedDuration::from_hours(4);
    let at = |minutes| since + SignedDuration::from_mins(minutes);
    for (minutes, ms, code) in
        [(0, 10, 0), (30, 20, 1), (59, 30, 0), (61, 5, 0), (239, 100, 2), (-1, 9, 0)]
    {
        run(&mut store, at(minutes), ms, code, b"");
    }
    let unfinished = retake_types::Intent { start_time: at(125), ..intent("x") };
    let recording = store.begin_plain(&unfinished).unwrap();
    let slices = store.timeline(since, until, 4).unwrap();
    let counts: Vec<_> = slices.iter().map(|s| (s.ok, s.failed, s.unfinished)).collect();
    assert_eq!(counts, [(2, 1, 0), (1, 0, 0), (0, 0, 1), (0, 1, 0)]);
    assert_eq!((slices[0].p50_ms, slices[0].p95_ms), (Some(20), Some(30)));
    assert_eq!((slices[2].p50_ms, slices[3].p95_ms), (None, Some(100)));
    assert!(store.timeline(until, since, 4).unwrap().iter().all(|slice| slice.ok == 0));
    let totals = store.totals().unwrap();
    assert_eq!((totals.runs, totals.failed, totals.first), (7, 2, Some(rounded(at(-1)))));
    drop(recording);
}

/// To the microsecond, as stored.
fn rounded(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap()
}

#[test]
fn output_is_returned_in_order_and_in_portions() {
    let (_dir, mut store) = store();
    let intent = intent("x");
    let mut recording = store.begin_plain(&intent).unwrap();
    let part = |stream, offset, bytes: &[u8]| OutputPart { stream, offset, bytes: bytes.to_vec() };
    assert!(!store.output_after(intent.id(), [0, 0], 100).unwrap().over);
    recording.append_plain(Stream::Stdout, b"one ");
    recording.append_plain(Stream::Stderr, b"two ");
    recording.append_plain(Stream::Stdout, b"three");
    let new = store.output_after(intent.id(), [0, 0], 100).unwrap();
    let expected = [
        part(Stream::Stdout, 0, b"one "),
        part(Stream::Stderr, 0, b"two "),
        part(Stream::Stdout, 4, b"three"),
    ];
    assert_eq!((&new.parts[..], new.over, new.more), (&expected[..], false, false));
    // A slow reader gets it in pieces, and nothing twice.
    let (mut from, mut text) = ([0, 0], Vec::new());
    loop {
        let new = store.output_after(intent.id(), from, 3).unwrap();
        assert!(new.parts.iter().map(|part| part.bytes.len()).sum::<usize>() <= 3);
        for OutputPart { stream, offset, bytes } in new.parts {
            assert_eq!(offset, from[stream.index()]);
            from[stream.index()] += bytes.len() as u64;
            text.extend(bytes);
        }
        if !new.more {
            break;
        }
    }
    assert_eq!(text, b"one two three");
    recording.finish_plain(&mut store, outcome(0)).unwrap();
    let new = store.output_after(intent.id(), [9, 0], 100).unwrap();
    assert_eq!((&new.parts[..], new.over), (&[part(Stream::Stderr, 0, b"two ")][..], true));
    let gone = store.output_after(RunId::new(), [0, 0], 100);
    assert!(matches!(gone, Err(Error::NotFound { .. })));
}

const EFFORT: SearchEffort =
    SearchEffort { scanned_bytes: 1 << 20, sifted: 1000, ..SearchEffort::UNLIMITED };

#[test]
fn a_search_continues_from_its_cursor() {
    let (_dir, mut store) = store();
    let now = Timestamp::now();
    let ids: Vec<RunId> = (0..5).map(|_| run(&mut store, now, 1, 0, b"a needle\n")).collect();
    // Half of it indexed, half of it not.
    while store.compact(std::time::Duration::from_secs(5)).unwrap().more {}
    let later: Vec<RunId> = (0..4).map(|_| run(&mut store, now, 1, 0, b"a needle\n")).collect();
    let (mut seen, mut from) = (Vec::new(), None);
    loop {
        let found = store.search_from("needle", &RunFilter::default(), from, 2, EFFORT).unwrap();
        seen.extend(found.hits.iter().map(|hit| hit.run.intent.id()));
        assert_eq!(found.more, found.next.is_some());
        from = found.next;
        if from.is_none() {
            break;
        }
    }
    seen.reverse();
    assert_eq!(seen, [ids, later].concat());
}

/// All hits of a search, newest first, and how often it was cut short.
fn found(
    store: &Store,
    filter: &RunFilter,
    limit: usize,
    effort: SearchEffort,
) -> (Vec<RunId>, usize) {
    let (mut seen, mut cut, mut from) = (Vec::new(), 0, None);
    loop {
        let found = store.search_from("needle", filter, from, limit, effort).unwrap();
        seen.extend(found.hits.iter().map(|hit| hit.run.intent.id()));
        // A page is full, or the last, or says why it is short.
        assert!(found.hits.len() == limit || found.next.is_none() || found.cut_short);
        cut += usize::from(found.cut_short);
        match found.next {
            Some(next) => from = Some(next),
            None => return (seen, cut),
        }
    }
}

#[test]
fn a_search_heeds_every_filter_of_a_list() {
    let (_dir, mut store) = store();
    let now = Timestamp::now();
    let ok = |store: &mut Store| run(store, now, 1, 0, b"a needle\n");
    let early = run(&mut store, now, 1, 3, b"a needle\n");
    (0..30).for_each(|_| _ = ok(&mut store));
    while store.compact(std::time::Duration::from_secs(5)).unwrap().more {}
    let late = run(&mut store, now, 1, 3, b"a needle\n");
    (0..9).for_each(|_| _ = ok(&mut store));
    run(&mut store, now, 1, 3, b"hay\n");
    let mut intent = intent("cargo needle");
    intent.request.labels.insert("nightly".into(), "yes".into());
    let mut recording = store.begin_plain(&intent).unwrap();
    recording.append_plain(Stream::Stderr, b"a needle\n");
    recording.append_plain(Stream::Stdout, b"a needle\n");
    recording.finish_plain(&mut store, outcome(0)).unwrap();
    let failed = RunFilter { status: Some(RunStatus::Failed), ..RunFilter::default() };
    for limit in [1, 2, 5] {
        assert_eq!(found(&store, &failed, limit, EFFORT), (vec![late, early], 0));
    }
    let (seen, cut) = found(&store, &failed, 2, SearchEffort { sifted: 7, ..EFFORT });
    assert_eq!(seen, [late, early]);
    assert!(cut >= 3, "{cut}");
    let of = |filter: RunFilter| found(&store, &filter, 3, EFFORT).0;
    let own = vec![intent.id(), intent.id()];
    assert_eq!(of(RunFilter { command: Some("*argo n*".into()), ..RunFilter::default() }), own);
    assert_eq!(of(RunFilter { command: Some("*zzzz*".into()), ..RunFilter::default() }), []);
    let label = |value: &str| vec![("nightly".to_owned(), value.to_owned())];
    assert_eq!(of(RunFilter { labels: label("yes"), ..RunFilter::default() }), own);
    assert_eq!(of(RunFilter { labels: label("no"), ..RunFilter::default() }), []);
    let both =
        RunFilter { labels: label("yes"), status: Some(RunStatus::Failed), ..RunFilter::default() };
    assert_eq!(of(both), []);
    assert_eq!(of(RunFilter { changed: Some("/x".into()), ..RunFilter::default() }), []);
    assert_eq!(of(RunFilter { until: Some(now), ..RunFilter::default() }), []);
    assert_eq!(of(RunFilter { status: Some(RunStatus::Running), ..RunFilter::default() }), []);
    let kind = |kind| RunFilter { kind: Some(kind), ..RunFilter::default() };
    assert_eq!((of(kind(Kind::Agent)).len(), of(kind(Kind::Exec)).len()), (0, 43));
}

#[test]
fn disk_use_includes_output_in_files_and_in_the_database() {
    let (_dir, mut store) = store();
    let large = b"0123456789abcdef".repeat(20_000);
    run(&mut store, Timestamp::now(), 1, 0, &large);
    let before = store.disk_use();
    assert!(before.spool >= large.len() as u64 && before.output == 0, "{before:?}");
    while store.compact(std::time::Duration::from_secs(5)).unwrap().more {}
    let after = store.disk_use();
    assert!(after.spool < 1000 && after.output > 0 && after.database > 0, "{after:?}");
    assert_eq!(after.total(), after.database + after.spool + after.output);
}

/// All pages of an order, each continued from the end of the one before.
fn by_duration(store: &Store, filter: &RunFilter, order: DurationOrder) -> Vec<(u64, RunId)> {
    let all = RunsByDuration::read(store).unwrap();
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = store.list_by_duration(&all, filter, order, after, 7).unwrap();
        assert!(page.runs.len() <= 7 && page.unreadable.is_empty());
        let took = |run: &retake_types::Run| run.outcome.as_ref().unwrap().duration_ms;
        seen.extend(page.runs.iter().map(|run| (took(run), run.intent.id())));
        match page.next {
            Some(next) => after = Some(next.to_string().parse::<DurationPlace>().unwrap()),
            None => return seen,
        }
    }
}

#[test]
fn every_run_that_ended_is_sorted_by_duration_whatever_the_filter() {
    let (_dir, mut store) = store();
    let now = Timestamp::now();
    let mut expected = Vec::new();
    // The slowest are the oldest, and durations repeat.
    for n in 0..40u64 {
        let (ms, code) = (1000 - n / 2 * 10, i32::from(n % 5 == 0));
        let at = now - SignedDuration::from_hours(40 - n as i64);
        let id = run(&mut store, at, ms, code, b"");
        expected.push((ms, id, code));
    }
    let unfinished = store.begin_plain(&intent("still running")).unwrap();
    for (order, slowest) in
        [(DurationOrder::SlowestFirst, true), (DurationOrder::FastestFirst, false)]
    {
        let sorted = |failed: bool| -> Vec<(u64, RunId)> {
            // Runs of equal duration are ordered by number.
            let mut sorted: Vec<(u64, RunId)> = expected
                .iter()
                .filter(|(_, _, code)| !failed || *code != 0)
                .map(|(ms, id, _)| (*ms, *id))
                .collect();
            sorted.sort();
            if slowest {
                sorted.reverse();
            }
            sorted
        };
        assert_eq!(by_duration(&store, &RunFilter::default(), order), sorted(false));
        let failed = RunFilter { status: Some(RunStatus::Failed), ..RunFilter::default() };
        assert_eq!(by_duration(&store, &failed, order), sorted(true));
        // A pattern has no index: the order of all runs is walked.
        let pattern = RunFilter { command: Some("x*".into()), ..failed };
        assert_eq!(by_duration(&store, &pattern, order), sorted(true));
        let none = RunFilter { command: Some("y*".into()), ..RunFilter::default() };
        assert_eq!(by_duration(&store, &none, order), []);
    }
    let slowest = store.slowest_commands(now - SignedDuration::from_hours(10), 5).unwrap();
    let seen: Vec<RunId> = slowest.iter().map(|run| run.intent.id()).collect();
    // Each command once, and nothing older.
    assert_eq!(seen, [expected[31].1]);
    drop(unfinished);
}

#[test]
fn runs_are_listed_from_either_end() {
    let (_dir, mut store) = store();
    let now = Timestamp::now();
    let ids: Vec<RunId> = (0..9).map(|_| run(&mut store, now, 1, 0, b"")).collect();
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let (page, _) =
            store.list_in(StartOrder::OldestFirst, &RunFilter::default(), after, 4).unwrap();
        seen.extend(page.runs.iter().map(|run| run.intent.id()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, ids);
}

#[test]
fn runs_of_a_machine_are_those_it_recorded_and_those_placed_on_it() {
    let (_dir, mut store) = store();
    let mut expected = Vec::new();
    for n in 0..60 {
        let mut intent = intent("make node7");
        let mut outcome = outcome(i32::from(n % 4 == 0));
        match n % 6 {
            0 => intent.host = "node7".to_owned(),
            1 => {
                let node = Some("node7".to_owned());
                outcome.ran_on =
                    Some(RanOn { executor: "slurm".to_owned(), node, ..RanOn::default() });
            }
            // Names that only contain it, or merely mention it.
            2 => intent.host = "node70".to_owned(),
            3 => intent.request.label("about", "node7"),
            _ => {}
        }
        if n % 6 < 2 {
            expected.push((intent.id(), n % 4 == 0));
        }
        let recording = store.begin_plain(&intent).unwrap();
        recording.finish_plain(&mut store, outcome).unwrap();
    }
    expected.reverse();
    let all = |filter: &RunFilter| {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = store.list(filter, after, 3).unwrap();
            seen.extend(page.runs.iter().map(|run| run.intent.id()));
            after = page.next;
            if after.is_none() {
                return seen;
            }
        }
    };
    let of = RunFilter { host: Some("node7".into()), ..RunFilter::default() };
    let ids: Vec<RunId> = expected.iter().map(|(id, _)| *id).collect();
    assert_eq!(all(&of), ids);
    let failed = RunFilter { status: Some(RunStatus::Failed), ..of.clone() };
    let failures: Vec<RunId> = expected.iter().filter(|(_, bad)| *bad).map(|(id, _)| *id).collect();
    assert_eq!(all(&failed), failures);
    // In counts, and in another order.
    assert_eq!(store.stats(&of).unwrap().runs, expected.len() as u64);
    assert_eq!(by_duration(&store, &of, DurationOrder::SlowestFirst).len(), expected.len());
    assert_eq!(all(&RunFilter { host: Some("node".into()), ..RunFilter::default() }), []);
}
