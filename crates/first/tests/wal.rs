//! The reference write-ahead log passes, and each broken one is caught at the point where it breaks.

#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(unreachable_pub, reason = "the modules are an example's too")]

#[path = "../examples/wal/ledger.rs"]
mod ledger;
#[path = "../examples/wal/survive.rs"]
mod survive;

use std::process::Command;

use first::Model;
use ledger::Flaw;
use survive::survives_every_crash;

#[test]
fn the_correct_one_survives_under_every_model() {
    for model in [Model::Kill, Model::Ext4, Model::Posix] {
        survives_every_crash(model, None);
    }
}

/// The limit of killing a process, documented as a test: without a single fsync, it passes.
#[test]
fn killing_a_process_cannot_reveal_a_missing_sync() {
    survives_every_crash(Model::Kill, Some(Flaw::ForgetsToSync));
}

#[test]
#[ignore = "broken on purpose"]
fn forgets_to_sync() {
    survives_every_crash(Model::Ext4, Some(Flaw::ForgetsToSync));
}

#[test]
fn a_power_loss_reveals_it() {
    let text = run_broken("forgets_to_sync");
    assert!(text.contains("[first] ext4: F1 FAILED (see "), "{text}");
    assert!(text.contains("acknowledged, 0 there"), "{text}");
}

/// Runs a broken one and returns what it prints.
#[track_caller]
fn run_broken(test: &str) -> String {
    let tmp = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--include-ignored", "--nocapture"])
        .env("TMPDIR", tmp.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(101));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks at which crash point, and why, a broken one fails.
#[track_caller]
fn breaks(test: &str, at: &str, because: &str) {
    let text = run_broken(test);
    let failures: Vec<&str> = text.lines().filter(|line| line.contains(": FAILED (see ")).collect();
    assert_eq!(failures.len(), 1, "{text}");
    assert!(text.contains(&format!("[first] crash label: {at:?}\n")), "{text}");
    let reason = text.lines().find_map(|line| line.strip_prefix("[first] reason: ")).unwrap();
    assert!(reason.contains(because), "{reason}");
}

macro_rules! broken {
    ($($name:ident, $flaw:ident, at $at:literal, because $because:literal;)*) => {
        mod broken {
            use super::{Flaw, Model, survives_every_crash};
            $(#[test] #[ignore = "broken on purpose"] fn $name() {
                survives_every_crash(Model::Kill, Some(Flaw::$flaw));
            })*
        }
        $(#[test] fn $name() {
            breaks(concat!("broken::", stringify!($name)), $at, $because);
        })*
    };
}

broken! {
    trusting_the_tail_breaks_on_a_torn_record, TrustsTheTail,
        at "append: header written", because "failed to fill whole buffer";
    keeping_the_tail_loses_what_follows_it, KeepsTheTail,
        at "append: header written", because "what was appended after the crash is not there";
    acknowledging_first_loses_what_was_promised, AcknowledgesFirst,
        at "append: begin", because "1 acknowledged, 0 there";
    a_snapshot_in_place_is_torn, SnapshotInPlace,
        at "checkpoint: half written", because "the snapshot is damaged";
    emptying_the_log_first_loses_everything, EmptiesLogFirst,
        at "checkpoint: log emptied", because "3 acknowledged, 0 there";
    replaying_twice_doubles, ReplaysTwice,
        at "checkpoint: in place", because "the values are not those appended";
}
