//! `retake crash confirm`: a finding on a real file system, or why it cannot be tried.

use std::io::Write as _;

use crate::env::{Env, compiled};

/// Why no ext4 can be crashed here; `None` if it can.
fn impossible(stderr: &str) -> Option<&str> {
    stderr.split("cannot be tried here: ").nth(1)
}

#[test]
fn a_finding_is_seen_on_a_real_file_system() {
    let env = Env::new();
    env.save(1, "none", &[]);
    let called = env.crash(&["confirm", "last", "F1", "--tries", "60"]);
    if let Some(why) = impossible(&called.stderr) {
        // Without loop devices the reason is printed.
        assert_eq!(called.code, 125, "{}", called.snapshot());
        _ = writeln!(std::io::stderr(), "SKIP: no ext4 is crashed: {why}");
        return;
    }
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stdout.contains("F1 seen on a real ext4: crash "), "{}", called.snapshot());
    // Nothing is left mounted or attached.
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains("retake-crash-"), "{mounts}");
    let json = env.expect(0, &["confirm", "last", "F1", "--tries", "60", "--json"]).json();
    assert_eq!((&json["seen"], &json["model"]), (&true.into(), &"ext4".into()));
}

#[test]
fn a_finding_not_reproduced_on_a_real_file_system_stays_allowed() {
    let env = Env::new();
    // The finding is about lost bytes; another check accepts them.
    let (save, check) = (compiled("save"), compiled("check"));
    let (save, check) = (save.to_str().unwrap(), check.to_str().unwrap());
    env.expect(0, &["record", "--root", "root", "-o", "log", "--", save, "none", "1"]);
    env.expect(1, &["explore", "log", "--verify", check]);
    let findings = env.sandbox.project().join("log.findings.json");
    let text = std::fs::read_to_string(&findings).unwrap();
    let mut changed: serde_json::Value = serde_json::from_str(&text).unwrap();
    changed["verify"] = "true".into();
    std::fs::write(&findings, changed.to_string()).unwrap();
    let called = env.crash(&["confirm", "log", "F1", "--tries", "3"]);
    if impossible(&called.stderr).is_some() {
        return;
    }
    assert_eq!(called.code, 1, "{}", called.snapshot());
    assert_eq!(called.stdout, "F1 allowed, not reproduced in 3 tries\n");
}

#[test]
fn findings_that_no_file_system_can_show_are_refused_with_the_reason() {
    let env = Env::new();
    env.expect(0, &["record", "--root", "root", "-o", "log", "--", "touch", "root/a"]);
    let called = env.expect(125, &["confirm", "log"]);
    assert!(called.stderr.contains("has no findings yet"), "{}", called.snapshot());
    let check = "test -e \"$FIRST_WORK_DIR/a\"";
    for (model, why) in [
        ("kill", "nothing is lost"),
        ("posix", "no file system"),
        ("btrfs", "cannot be crashed on purpose"),
    ] {
        env.expect(1, &["explore", "log", "--model", model, "--verify", check]);
        let called = env.expect(125, &["confirm", "log", "F1"]);
        assert!(called.stderr.contains("F1 cannot be tried here: "), "{}", called.snapshot());
        assert!(called.stderr.contains(why), "{}", called.snapshot());
    }
    let called = env.expect(125, &["confirm", "log", "F7"]);
    assert!(called.stderr.contains("choose from: F1"), "{}", called.snapshot());
}
