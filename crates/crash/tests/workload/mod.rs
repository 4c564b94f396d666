//! A test program that records itself: it is run again, with only its `the_workload`.

use std::path::Path;

use retake_crash::operation::{Entry, Recording};

/// Records the workload with these variables, and checks that it finished.
pub(crate) fn record(root: &Path, variables: [(&str, &str); 2], acknowledged: usize) -> Recording {
    let mut recorder = retake_crash::record(std::env::current_exe().unwrap())
        .args(["--exact", "the_workload", "--ignored", "--nocapture"])
        .current_dir(root)
        .root(root)
        .acknowledge_lines(false)
        .output(std::io::sink());
    for (name, value) in variables {
        recorder = recorder.env(name, value);
    }
    let recording = recorder.run().unwrap().recording;
    let acks = recording.entries.iter();
    let acks = acks.filter(|entry| matches!(entry, Entry::Acknowledgement(_))).count();
    assert_eq!(acks, acknowledged);
    recording
}
