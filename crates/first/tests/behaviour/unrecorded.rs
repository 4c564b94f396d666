//! Workloads that cannot be recorded: they are run again for every point, and a line says so.

use crate::stage::{Played, Stage};

const AGAIN: &str =
    "each crash point runs the workload again, which is slower, and weaker where its runs differ";

/// The line that says why it is not recorded, and the other ones.
#[track_caller]
fn told(played: &Played) -> (&str, Vec<&str>) {
    let (why, others): (Vec<_>, Vec<_>) =
        played.lines().into_iter().partition(|line| line.starts_with("not recorded ("));
    assert_eq!(why.len(), 1, "{}", played.text);
    (why[0], others)
}

#[test]
fn where_ptrace_is_forbidden_every_point_is_tried_all_the_same() {
    for scenario in ["passes", "fails_at_b"] {
        let played = Stage::new().forbid_ptrace().play(scenario);
        let (why, others) = told(&played);
        assert!(why.starts_with("not recorded (a process may not be watched here ("), "{why}");
        assert!(why.ends_with(AGAIN), "{why}");
        let usual = Stage::new().play(scenario);
        let plain = |lines: Vec<&str>| -> Vec<String> {
            let before = |line: &str| line.split(" (see ").next().unwrap_or_default().to_owned();
            lines.into_iter().map(before).collect()
        };
        assert_eq!((played.code, plain(others)), (usual.code, plain(usual.lines())));
    }
}

#[test]
fn where_ptrace_is_forbidden_power_loss_is_only_a_kill_and_a_line_says_so() {
    let played = Stage::new().forbid_ptrace().play("forgets_to_sync");
    let (why, _) = told(played.passed());
    assert!(why.contains("a process may not be watched here"), "{why}");
    assert!(why.ends_with("weaker than ext4, crash points are only killed"), "{why}");
}

#[test]
fn a_call_that_no_model_understands_is_named() {
    let played = Stage::new().play("uses_io_uring");
    let (why, others) = told(played.passed());
    assert!(why.starts_with("not recorded (`io_uring_setup` cannot be recorded: "), "{why}");
    assert!(why.ends_with(AGAIN), "{why}");
    assert_eq!(others, ["crash point 1: OK", "all 1 crash point passed"]);
}
