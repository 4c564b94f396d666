//! SQLite through `rusqlite` in its journal modes: the findings must match its documentation
//! of `PRAGMA journal_mode` and `PRAGMA synchronous`, no more and no less.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../examples/sqlite/database.rs"]
mod database;
mod workload;

use database::{CheckError, JOURNALS, SYNCHRONOUS, check, create, put};
use retake_crash::marker::Marker;
use retake_crash::model::{CrashState, CrashStates, Explainer, ExploreOptions, FailureKind, Model};
use retake_crash::operation::Recording;

const JOURNAL: &str = "FIRST_SQLITE_JOURNAL";
const SYNCED: &str = "FIRST_SQLITE_SYNCHRONOUS";

const ROWS: u32 = 2;

fn record(journal: &str, synchronous: &str) -> Recording {
    assert!(JOURNALS.contains(&journal) && SYNCHRONOUS.contains(&synchronous));
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    create(root.path(), journal).unwrap();
    workload::record(root.path(), [(JOURNAL, journal), (SYNCED, synchronous)], ROWS as usize)
}

#[test]
#[ignore = "what the other tests record"]
fn the_workload() {
    let (Ok(journal), Ok(synchronous)) = (std::env::var(JOURNAL), std::env::var(SYNCED)) else {
        return;
    };
    let acknowledge = |row: u32| Marker::Acknowledgement.send(row.to_string().as_bytes());
    put(".".as_ref(), &journal, &synchronous, ROWS, acknowledge).unwrap();
}

/// The worst that any state of a model shows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Verdict {
    Durable,
    /// Promised rows can be lost, but the database is intact.
    Whole,
    Damaged,
}
use Verdict::{Damaged, Durable, Whole};

fn verdict_of(state: &CrashState) -> Verdict {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    retake_crash::materialise(&state.tree, place.path()).unwrap();
    match check(place.path(), state.acks as u32) {
        Ok(()) => Durable,
        Err(CheckError::Lost(_)) => Whole,
        Err(CheckError::Damaged(_)) => Damaged,
    }
}

fn verdict(recording: &Recording, model: Model) -> Verdict {
    let states = CrashStates::new(recording, model, ExploreOptions::default()).unwrap();
    states.map(|state| verdict_of(&state)).max().unwrap()
}

/// Why some states are that bad.
fn reasons(recording: &Recording, model: Model, bad: Verdict) -> Vec<String> {
    let mut explainer = Explainer::new(recording, model, &ExploreOptions::default()).unwrap();
    for state in CrashStates::new(recording, model, ExploreOptions::default()).unwrap() {
        if verdict_of(&state) >= bad {
            explainer.add(&state, None, |state| {
                (verdict_of(state) >= bad).then(|| FailureKind::new("", ""))
            });
        }
    }
    explainer.findings().into_iter().map(|one| format!("{} {}", one.key, one.sentence)).collect()
}

#[track_caller]
fn verdicts(journal: &str, synchronous: &str, expected: [(Model, Verdict); 3]) {
    let recording = record(journal, synchronous);
    for (model, expected) in expected {
        let found = verdict(&recording, model);
        let why = if found > expected { reasons(&recording, model, found) } else { Vec::new() };
        assert_eq!(found, expected, "{journal} {synchronous} {model}: {why:#?}");
    }
}

fn all(kill: Verdict, ext4: Verdict, posix: Verdict) -> [(Model, Verdict); 3] {
    [(Model::Kill, kill), (Model::Ext4, ext4), (Model::Posix, posix)]
}

/// "The extra WAL sync following each transaction helps ensure that transactions are durable across a
/// power loss."
#[test]
fn wal_is_durable_with_full() {
    verdicts("WAL", "FULL", all(Durable, Durable, Durable));
}

/// "WAL mode is always consistent with synchronous=NORMAL, but WAL mode does lose durability. […]
/// Transactions are durable across application crashes regardless of the synchronous setting."
#[test]
fn wal_is_whole_with_normal() {
    verdicts("WAL", "NORMAL", all(Durable, Whole, Whole));
}

/// "EXTRA synchronous is like FULL with the addition that the directory containing a rollback
/// journal is synced after that journal is unlinked to commit a transaction in DELETE mode."
#[test]
fn a_deleted_journal_is_durable_with_extra() {
    verdicts("DELETE", "EXTRA", all(Durable, Durable, Durable));
}

/// FULL "ensures that an operating system crash or power failure will not corrupt the database".
/// Without EXTRA's sync of the directory the last commit can roll back.
#[test]
fn a_deleted_journal_is_whole_with_full() {
    verdicts("DELETE", "FULL", all(Durable, Whole, Whole));
}

/// NORMAL: "a very small (though non-zero) chance that a power failure at just the wrong time could
/// corrupt the database in journal_mode=DELETE on an older filesystem […] probably DELETE mode is
/// safe too on modern filesystems".
#[test]
fn a_deleted_journal_is_whole_with_normal_on_a_modern_file_system() {
    verdicts("DELETE", "NORMAL", all(Durable, Whole, Damaged));
}

/// Instead of removing a name, these sync a journal that they empty or whose header they zero.
#[test]
fn persistent_journals_are_durable_with_synchronous_full() {
    verdicts("TRUNCATE", "FULL", all(Durable, Durable, Durable));
    verdicts("PERSIST", "FULL", all(Durable, Durable, Durable));
}

/// "If the application running SQLite crashes, the data will be safe, but the database might become
/// corrupted if the operating system crashes."
#[test]
fn without_syncs_a_kill_is_safe_and_a_power_loss_is_not() {
    verdicts("DELETE", "OFF", all(Durable, Damaged, Damaged));
}

/// "If the application using SQLite crashes in the middle of a transaction when the MEMORY
/// journaling mode is set, then the database file will very likely go corrupt." OFF: the same.
#[test]
fn without_a_journal_on_disk_a_kill_corrupts() {
    for journal in ["MEMORY", "OFF"] {
        assert_eq!(verdict(&record(journal, "FULL"), Model::Kill), Damaged, "{journal}");
    }
}
