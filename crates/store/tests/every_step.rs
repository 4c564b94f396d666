//! A recorded run, killed at every step of its recording: the store opens, verifies, and has every
//! run that was acknowledged.
#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::{FinishPlain as _, PlainRecording as _, PlainStore as _};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use common::{assert_intact, intent, outcome, plain};
use retake_store::{Store, VerifyDepth};
use retake_types::{RunId, State, Stream};

/// Notes acknowledged runs outside of the store.
fn acknowledge(file: &Path, id: RunId) {
    let mut file = fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
    writeln!(file, "{id}").unwrap();
}

#[test]
fn a_recording_survives_a_crash_at_every_step() {
    first::test()
        .run(|env| {
            retake_store::watch_crash_points(first::crash_point);
            let mut store = Store::open(&env.path("store")).unwrap();
            for (command, bytes) in [("small", 40), ("large", 200_000), ("doomed", 100)] {
                let mut recording = store.begin_plain(&intent(command)).unwrap();
                let id = recording.id();
                recording.append_plain(Stream::Stdout, &vec![b'a'; bytes]);
                recording.append_plain(Stream::Stderr, b"warning\n");
                recording.append_plain(Stream::Stdout, b"end\n");
                recording.finish_plain(&mut store, outcome(0)).unwrap();
                acknowledge(&env.path("acknowledged"), id);
                if command == "doomed" {
                    store.compact(Duration::from_secs(60)).unwrap();
                    // It may be gone from here on.
                    let kept = fs::read_to_string(env.path("acknowledged")).unwrap();
                    let kept = kept.replace(&format!("{id}\n"), "");
                    fs::write(env.path("kept"), kept).unwrap();
                    fs::rename(env.path("kept"), env.path("acknowledged")).unwrap();
                    store.delete(id).unwrap();
                }
            }
            let mut recording = store.begin_plain(&intent("held")).unwrap();
            for bytes in [40, 200_000] {
                let id = recording.id();
                recording.append_plain(Stream::Stdout, &vec![b'a'; bytes]);
                recording.append_plain(Stream::Stdout, b"end\n");
                let ended = recording.end(plain(outcome(0)));
                let next = plain(intent("next"));
                let (finished, begun) = ended.commit_and_begin(&mut store, &next);
                finished.unwrap();
                acknowledge(&env.path("acknowledged"), id);
                recording = begun.unwrap();
            }
        })
        .verify(|env, _| {
            let root = env.path("store");
            if !root.join("retake.db").exists() {
                return;
            }
            let mut store = Store::open(&root).unwrap();
            store.recover().unwrap();
            while store.compact(Duration::from_secs(60)).unwrap().more {}
            assert_intact(&store);
            let problems = store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects;
            assert!(problems.is_empty(), "{problems:?}");
            let acknowledged = fs::read_to_string(env.path("acknowledged")).unwrap_or_default();
            for line in acknowledged.lines() {
                let run = store.get(line.parse().unwrap()).unwrap();
                assert_eq!(run.state, State::Finished, "{line}");
                let mut output = Vec::new();
                let mut reader = store.read_output(run.intent.id(), Stream::Stdout).unwrap();
                std::io::Read::read_to_end(&mut reader, &mut output).unwrap();
                assert_eq!(output.len() as u64, run.outcome.unwrap().stdout_bytes);
                assert!(output.ends_with(b"end\n"));
            }
        });
}
