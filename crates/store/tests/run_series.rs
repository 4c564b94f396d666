//! Runs among runs of the same command, and their origin.
#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::{FinishPlain as _, PlainStore as _, TestStore, intent, outcome};
use jiff::{SignedDuration, Timestamp};
use retake_store::{NAMED_SQL, NearestRun, RunSeries, Store};
use retake_types::request::LoopPosition;
use retake_types::{Kind, LoopId, Run, RunId};
use serde_json::json;

/// A run of a series.
#[derive(Default)]
struct Recorded<'a> {
    minute: i64,
    code: i32,
    cwd: &'a str,
    cell: &'a str,
    of: Option<LoopId>,
    files: &'a [&'a str],
}

fn record(test: &mut TestStore, command: &str, recorded: &Recorded<'_>) -> RunId {
    let mut intent = intent(command);
    intent.start_time =
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(1_000_000 + recorded.minute);
    if !recorded.cwd.is_empty() {
        intent.request.cwd = recorded.cwd.into();
    }
    if !recorded.cell.is_empty() {
        intent.request.label("cell", recorded.cell);
    }
    if let Some(id) = recorded.of {
        intent.request.position = LoopPosition { kind: Kind::Matrix, id, iteration: 0 };
    }
    let recording = test.store.begin_plain(&intent).unwrap();
    let mut outcome = outcome(recorded.code);
    if !recorded.files.is_empty() {
        let effects = json!({"filesTracked": true, "filesModified": recorded.files});
        outcome.effects = Some(serde_json::from_value(effects).unwrap());
    }
    recording.finish_plain(&mut test.store, outcome).unwrap();
    intent.id()
}

fn get(test: &TestStore, id: RunId) -> Run {
    test.store.get(id).unwrap()
}

#[test]
fn a_run_has_neighbours_of_the_same_command_in_the_same_directory() {
    let mut test = TestStore::new();
    let at = |minute, code| Recorded { minute, code, ..Recorded::default() };
    let passed = record(&mut test, "make a*", &at(1, 0));
    let failed = record(&mut test, "make a*", &at(2, 1));
    // Neither another command that the first would match as a pattern, nor another directory.
    record(&mut test, "make ab", &at(3, 0));
    record(&mut test, "make a*", &Recorded { cwd: "/elsewhere", ..at(4, 0) });
    let again = record(&mut test, "make a*", &at(5, 1));
    // For equal times the order of recording decides.
    let last = record(&mut test, "make a*", &at(5, 0));
    let near = |id| test.store.neighbours(&get(&test, id), &RunSeries::Command).unwrap();
    let found = near(again);
    assert_eq!(found.previous, NearestRun::Found(failed));
    assert_eq!(found.next, NearestRun::Found(last));
    assert_eq!(found.last_passed, NearestRun::Found(passed));
    assert_eq!(near(passed).previous, NearestRun::None);
    assert_eq!(near(passed).last_passed, NearestRun::None);
    assert_eq!(near(last).next, NearestRun::None);
    assert_eq!(near(last).previous, NearestRun::Found(again));
}

#[test]
fn cells_and_loops_are_series_of_their_own() {
    let mut test = TestStore::new();
    let id = LoopId::new();
    let at = |minute, cell| Recorded { minute, cell, of: Some(id), ..Recorded::default() };
    let first = record(&mut test, "bench", &at(1, "a"));
    let other = record(&mut test, "bench", &at(2, "b"));
    let second = record(&mut test, "bench", &at(3, "a"));
    let run = get(&test, second);
    assert_eq!(RunSeries::of(&run, "cell"), RunSeries::Label("cell".to_owned()));
    assert_eq!(RunSeries::of(&run, "another"), RunSeries::Loop);
    let cell = test.store.neighbours(&run, &RunSeries::of(&run, "cell")).unwrap();
    assert_eq!((cell.previous, cell.next), (NearestRun::Found(first), NearestRun::None));
    let whole = test.store.neighbours(&run, &RunSeries::Loop).unwrap();
    assert_eq!(whole.previous, NearestRun::Found(other));
}

#[test]
fn runs_that_changed_files_between_two_runs_are_listed() {
    let mut test = TestStore::new();
    let at = |minute| Recorded { minute, ..Recorded::default() };
    record(&mut test, "before", &Recorded { files: &["early"], ..at(1) });
    let a = record(&mut test, "make", &at(2));
    let one = record(&mut test, "edit", &Recorded { files: &["one"], ..at(3) });
    record(&mut test, "look", &at(4));
    let two = record(&mut test, "edit", &Recorded { files: &["two"], ..at(5) });
    let b = record(&mut test, "make", &at(6));
    let (a, b) = (get(&test, a), get(&test, b));
    let ids = |most| {
        let between = test.store.watched_between(&a, &b, most).unwrap();
        let ids: Vec<RunId> = between.runs.iter().map(|run| run.intent.id()).collect();
        (ids, between.complete)
    };
    assert_eq!(ids(9), (vec![two, one], true));
    assert_eq!(ids(1), (vec![two], false));
}

#[test]
fn a_run_from_another_record_is_known_as_one() {
    let mut test = TestStore::new();
    let own = test.run("own", 0);
    let mut other = TestStore::new();
    let theirs = other.run("theirs", 0);
    let mut lines = Vec::new();
    other.store.export(&other.store.get(theirs).unwrap(), &mut lines).unwrap();
    test.store.import(&mut lines.as_slice()).unwrap();
    assert!(test.store.is_imported(theirs).unwrap());
    assert!(!test.store.is_imported(own).unwrap());
    let later = test.run("later", 0);
    assert!(!test.store.is_imported(later).unwrap());
}

#[test]
fn series_and_the_history_of_a_test_are_served_by_an_index_without_a_sort() {
    let mut test = TestStore::new();
    let id = test.run("make", 0);
    let run = get(&test, id);
    let connection = rusqlite::Connection::open(test.store.database_path()).unwrap();
    let plan = |sql: &str, parameters: Vec<rusqlite::types::Value>| {
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let rows = statement
            .query_map(rusqlite::params_from_iter(parameters), |row| row.get::<_, String>(3))
            .unwrap();
        rows.map(Result::unwrap).collect::<Vec<_>>().join("\n")
    };
    for (series, index) in [
        (RunSeries::Command, "runs_command"),
        (RunSeries::Loop, "runs_loop"),
        (RunSeries::Label("k".to_owned()), "SEARCH l USING PRIMARY KEY"),
    ] {
        for later in [false, true] {
            let (sql, parameters) = Store::explainable_series(&run, &series, later);
            let plan = plan(&sql, parameters);
            assert!(plan.contains(index) && !plan.contains("TEMP B-TREE"), "{index}:\n{plan}");
        }
    }
    let plan = plan(NAMED_SQL, vec!["name".to_owned().into(), 5.into()]);
    assert!(plan.contains("SEARCH tests USING PRIMARY KEY (name=?)"), "{plan}");
    assert!(!plan.contains("TEMP B-TREE"), "{plan}");
}

#[test]
fn a_test_is_read_by_its_exact_name_with_its_newest_results() {
    let mut test = TestStore::new();
    for minute in 0..6 {
        let mut intent = intent("make");
        intent.start_time = Timestamp::UNIX_EPOCH + SignedDuration::from_mins(1_000_000 + minute);
        let recording = test.store.begin_plain(&intent).unwrap();
        let mut outcome = outcome(0);
        let details =
            json!([{"name": "a*", "status": "passed"}, {"name": "ab", "status": "failed"}]);
        let effects =
            json!({"testResults": {"total": 2, "passed": 1, "failed": 1, "details": details}});
        outcome.effects = Some(serde_json::from_value(effects).unwrap());
        recording.finish_plain(&mut test.store, outcome).unwrap();
    }
    let history = test.store.test_named("a*", 4).unwrap().unwrap();
    assert_eq!((history.name.as_str(), history.results.len()), ("a*", 4));
    assert!(history.results.is_sorted_by_key(|result| result.at));
    assert_eq!(history.results[3].at.as_second(), (1_000_000 + 5) * 60);
    assert!(test.store.test_named("a", 4).unwrap().is_none());
    // Reading one at a time returns the same as reading all at once.
    let mut names = Vec::new();
    test.store
        .each_test(None, &mut |history| names.push((history.name, history.results.len())))
        .unwrap();
    assert_eq!(names, [("a*".to_owned(), 6), ("ab".to_owned(), 6)]);
}
