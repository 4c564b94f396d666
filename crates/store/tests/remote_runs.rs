//! Runs on other machines: recorded before they are sent, and completed once by their result.

mod common;

use common::{PlainRecording as _, PlainStore as _, plain};
use common::{TestStore, intent, outcome};
use retake_store::{ResultFile, Verification, VerifyDepth};
use retake_types::{Intent, OutcomeKind, RanOn, RunOutcome, State, Stream};

fn result_file(intent: &Intent, outcome: RunOutcome, output: &[(Stream, &[u8])]) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a directory");
    let mut result = ResultFile::new(&dir.path().join("p"));
    output.iter().for_each(|(stream, bytes)| result.append_plain(*stream, bytes));
    let mut bytes = Vec::new();
    result.finish(&plain(intent.clone()), plain(outcome), &mut bytes).expect("written");
    bytes
}

fn verified(store: &TestStore) -> bool {
    matches!(store.store.verify(None).expect("read"), Verification::Intact(_))
}

#[test]
fn a_remote_run_reads_as_running_also_after_its_sender_died() {
    let mut it = TestStore::new();
    let runs = [intent("one"), intent("two")];
    it.store.begin_remote_runs(&runs.clone().map(plain)).unwrap();
    // A second sender of the same runs changes nothing.
    it.store.begin_remote_runs(&runs.clone().map(plain)).unwrap();
    assert!(it.store.recover().unwrap().is_empty());
    let mut reopened = retake_store::Store::open(&it.root()).unwrap();
    let mut expected: Vec<_> = runs.iter().map(|run| run.id()).collect();
    expected.sort_unstable();
    assert_eq!(reopened.remote_runs().unwrap(), expected);
    for run in &runs {
        assert_eq!(reopened.get(run.id()).unwrap().state, State::Running);
    }
    assert!(verified(&it));
    assert!(reopened.examine(VerifyDepth::Quick, &mut |_| {}).unwrap().defects.is_empty());
    assert!(it.store.delete(runs[0].id()).is_err() || it.store.get(runs[0].id()).is_ok());
}

#[test]
fn markers_of_runs_sent_together_are_links_to_one_file() {
    use std::os::unix::fs::MetadataExt;
    let mut it = TestStore::new();
    let runs = ["one", "two", "three"].map(intent);
    it.store.begin_remote_runs(&runs.clone().map(plain)).unwrap();
    let marks = std::fs::read_dir(it.root().join("away")).unwrap();
    let marks: Vec<_> = marks.map(|mark| mark.unwrap().metadata().unwrap()).collect();
    assert_eq!(marks.len(), 3);
    assert!(marks.iter().all(|mark| mark.ino() == marks[0].ino() && mark.nlink() == 3));
    // Removing one marker keeps the others.
    let result = result_file(&runs[0], outcome(0), &[]);
    it.store.import(&mut &result[..]).unwrap();
    let mut left: Vec<_> = runs[1..].iter().map(|run| run.id()).collect();
    left.sort_unstable();
    assert_eq!(it.store.remote_runs().unwrap(), left);
}

#[test]
fn a_remote_run_is_completed_by_exactly_one_result() {
    let mut it = TestStore::new();
    let sent = intent("far");
    it.store.begin_remote_runs(&[plain(sent.clone())]).unwrap();
    let large = vec![b'z'; 200 * 1024];
    let mut first = outcome(3);
    first.ran_on = Some(RanOn { node: Some("n1".into()), attempt: "a".into(), ..RanOn::default() });
    let output: [(Stream, &[u8]); 3] =
        [(Stream::Stdout, b"out\n"), (Stream::Stderr, &large), (Stream::Stdout, b"more\n")];
    let bytes = result_file(&sent, first, &output);
    let taken = it.store.import(&mut &bytes[..]).unwrap();
    assert_eq!((taken.imported, taken.known), (vec![sent.id()], 0));
    let late = result_file(&sent, outcome(0), &[(Stream::Stdout, b"another")]);
    let taken = it.store.import(&mut &late[..]).unwrap();
    assert_eq!((taken.imported.len(), taken.known), (0, 1));

    let run = it.store.get(sent.id()).unwrap();
    let ended = run.outcome.unwrap();
    assert_eq!(
        (run.state, ended.kind, ended.exit_code),
        (State::Finished, OutcomeKind::Exited, Some(3))
    );
    assert_eq!(ended.ran_on.as_ref().unwrap().node.as_deref(), Some("n1"));
    let mut stdout = String::new();
    let mut reader = it.store.read_output(sent.id(), Stream::Stdout).unwrap();
    std::io::Read::read_to_string(&mut reader, &mut stdout).unwrap();
    assert_eq!(stdout, "out\nmore\n");
    let mut stderr = Vec::new();
    let mut reader = it.store.read_output(sent.id(), Stream::Stderr).unwrap();
    std::io::Read::read_to_end(&mut reader, &mut stderr).unwrap();
    assert!(stderr == large);
    assert!(it.store.remote_runs().unwrap().is_empty());
    assert!(verified(&it));
    let problems = it.store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects;
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn a_run_that_died_here_is_not_completed_by_what_someone_imports() {
    let mut it = TestStore::new();
    let died = intent("here");
    drop(it.store.begin_plain(&died).unwrap());
    let bytes = result_file(&died, outcome(0), &[]);
    let taken = it.store.import(&mut &bytes[..]).unwrap();
    assert_eq!((taken.imported.len(), taken.known), (0, 1));
    assert_eq!(it.store.get(died.id()).unwrap().state, State::Interrupted);
}

#[test]
fn a_damaged_result_is_refused_and_the_run_stays_away() {
    let mut it = TestStore::new();
    let sent = intent("far");
    it.store.begin_remote_runs(&[plain(sent.clone())]).unwrap();
    let bytes = result_file(&sent, outcome(0), &[(Stream::Stdout, b"all of it")]);
    let cut = bytes.iter().position(|&b| b == b'\n').unwrap() + 1;
    assert!(it.store.import(&mut &bytes[..cut]).is_err());
    assert_eq!(it.store.remote_runs().unwrap(), [sent.id()]);
    assert_eq!(it.store.import(&mut &bytes[..]).unwrap().imported, [sent.id()]);
}
