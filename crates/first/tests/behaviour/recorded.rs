//! Crash points and acknowledgements of a program that is recorded as a whole, outside of
//! `first::test()`.

use first::operation::{Action, Entry};
use first::record::WorkloadOutcome;

#[test]
fn labels_and_promises_stand_where_they_were_made() {
    let root = tempfile::tempdir().unwrap();
    let recorded = first::record(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "recorded::program", "--test-threads=1"])
        .acknowledge_lines(false)
        .env("FIRST_TEST_RECORDED_PROGRAM", "1")
        .root(root.path())
        .current_dir(root.path())
        .output(std::io::sink())
        .run()
        .unwrap();
    assert_eq!(recorded.outcome, WorkloadOutcome::Exited(0));
    let said: Vec<String> = recorded.recording.entries.iter().map(said).collect();
    assert_eq!(
        said,
        ["label before", "create", "label made", "ack promised\nto be kept", "remove"]
    );
}

fn said(entry: &Entry) -> String {
    match entry {
        Entry::Label(label) => format!("label {label}"),
        Entry::Acknowledgement(promise) => format!("ack {}", String::from_utf8_lossy(promise)),
        Entry::Operation(operation) => match &operation.action {
            Action::Create { .. } => "create".to_owned(),
            Action::Remove { .. } => "remove".to_owned(),
            other => format!("{other:?}"),
        },
    }
}

#[test]
#[ignore = "the program that the test above records"]
fn program() {
    if std::env::var_os("FIRST_TEST_RECORDED_PROGRAM").is_some() {
        first::crash_point("before");
        // SAFETY: a finished string.
        unsafe { libc::mknod(c"a".as_ptr(), libc::S_IFREG | 0o600, 0) };
        first::crash_point("made");
        first::ack("promised\nto be kept");
        std::fs::remove_file("a").unwrap();
    }
}
