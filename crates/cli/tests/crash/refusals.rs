//! What cannot be tested exits with 125 and a reason.

use crate::env::Env;

fn refused(env: &Env, arguments: &[&str]) -> String {
    let called = env.expect(125, arguments);
    assert_eq!(called.stdout, "", "{}", called.snapshot());
    called.stderr
}

#[test]
fn a_missing_program_is_named() {
    let env = Env::new();
    let why = refused(&env, &["--root", "root", "--verify", "true", "--", "no-such-program"]);
    assert!(why.contains("no-such-program"), "{why}");
    assert_eq!(env.loop_record().0.as_deref(), Some("could not test"));
}

#[test]
fn a_missing_directory_is_named() {
    let env = Env::new();
    let why = refused(&env, &["--root", "nowhere", "--verify", "true", "--", "true"]);
    assert!(why.contains("nowhere"), "{why}");
}

#[test]
fn a_call_that_no_model_understands_is_refused() {
    let env = Env::new();
    let script = "import ctypes, os; \
                  p = ctypes.create_string_buffer(256); \
                  fd = ctypes.CDLL(None, use_errno=True).syscall(425, 8, p); \
                  print(fd, ctypes.get_errno())";
    let why = refused(&env, &["--root", "root", "--verify", "true", "--", "python3", "-c", script]);
    assert!(why.contains("io_uring_setup"), "{why}");
}

#[test]
fn a_program_that_fails_by_itself_is_not_tested() {
    let env = Env::new();
    let why = refused(&env, &["--root", "root", "--verify", "true", "--", "sh", "-c", "exit 3"]);
    assert!(why.contains("exited with 3"), "{why}");
}

#[test]
fn a_check_that_fails_without_a_crash_checks_something_else() {
    let env = Env::new();
    let check = "echo never good; exit 4";
    let why = refused(&env, &["--root", "root", "--verify", check, "--", "touch", "root/a"]);
    assert!(why.contains("without any crash") && why.contains("exited with 4"), "{why}");
    assert!(why.contains("never good"), "{why}");
}

#[test]
fn a_program_that_hangs_ends_with_the_budget() {
    let env = Env::new();
    let program = "echo $$ > root/pid; sleep 1000";
    let why = refused(
        &env,
        &["--root", "root", "--budget", "2s", "--verify", "true", "--", "sh", "-c", program],
    );
    assert!(why.contains("did not finish within 2s"), "{why}");
    let pid = std::fs::read_to_string(env.root().join("pid")).unwrap();
    assert!(!crate::common::alive(pid.trim().parse().unwrap()));
}

#[test]
fn a_file_that_is_not_a_log_and_a_truncated_log_have_different_messages() {
    let env = Env::new();
    env.sandbox.file("other", "something else entirely");
    assert!(refused(&env, &["show", "other"]).contains("not a crash log"));
    assert!(refused(&env, &["show", "missing"]).contains("cannot open missing"));
    env.expect(0, &["record", "--root", "root", "-o", "log", "--", "touch", "root/a"]);
    let whole = std::fs::read(env.sandbox.project().join("log")).unwrap();
    std::fs::write(env.sandbox.project().join("cut"), &whole[..whole.len() - 3]).unwrap();
    let why = refused(&env, &["explore", "cut", "--verify", "true"]);
    assert!(why.contains("ends early"), "{why}");
}

#[test]
fn a_program_that_changes_nothing_is_not_tested() {
    let env = Env::new();
    std::fs::write(env.root().join("a"), "x").unwrap();
    for program in ["true", "sync root/a", "touch elsewhere"] {
        let why = refused(&env, &["--root", "root", "--verify", "true", "--", "sh", "-c", program]);
        assert!(why.contains("nothing was written below"), "{program}: {why}");
        assert!(why.contains("root; is --root right?"), "{program}: {why}");
    }
    let said = env.expect(0, &["record", "--root", "root", "-o", "log", "--", "true"]);
    assert!(said.stderr.contains("is --root right?"), "{}", said.stderr);
    assert!(refused(&env, &["explore", "log", "--verify", "true"]).contains("nothing was written"));
}

#[test]
fn programs_that_cannot_be_recorded_are_refused_with_advice() {
    let env = Env::new();
    env.sandbox.file("save", "#!/bin/sh\n");
    let why = refused(&env, &["--root", "root", "--verify", "true", "--", "./save"]);
    assert!(why.contains("make it executable with chmod +x"), "{why}");
    let why = refused(&env, &["--root", "nowhere", "--verify", "true", "--", "true"]);
    assert!(why.contains("create it, or give another --root"), "{why}");
}

#[test]
fn missing_or_invalid_options_are_reported() {
    let env = Env::new();
    let called = env.expect(2, &["--root", "root", "--", "true"]);
    assert!(called.stderr.contains("--verify"), "{}", called.stderr);
    let called =
        env.expect(2, &["--root", "root", "--verify", "true", "--model", "ntfs", "--", "true"]);
    assert!(
        called.stderr.contains("it is one of kill, ext4, ext4:dioread_lock, "),
        "{}",
        called.stderr
    );
}
