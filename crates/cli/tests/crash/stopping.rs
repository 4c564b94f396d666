//! A budget that is spent, a check that hangs, Ctrl-C, kill -9: what is known is told, and nothing
//! is left running.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;

use crate::common::{alive, called, eventually};
use crate::env::Env;

#[test]
fn a_spent_budget_is_told() {
    let env = Env::new();
    // Only the uncrashed state is checked at once.
    let check = "test $FIRST_CRASH_POINT_ID = 4 || sleep 8";
    let program = "touch root/a; touch root/b; touch root/c; rm root/a";
    let answer = env.expect(
        0,
        &[
            "--root", "root", "--json", "--jobs", "1", "--budget", "7s", "--model", "kill",
            "--verify", check, "--", "sh", "-c", program,
        ],
    );
    let json = answer.json();
    assert_eq!(json["complete"], false, "{}", answer.snapshot());
    assert!(json["verified"].as_u64().unwrap() < json["distinct"].as_u64().unwrap());
    assert!(answer.stderr.contains("not complete: "), "{}", answer.stderr);
    assert_eq!(env.loop_record().0.as_deref(), Some("budget"));
}

#[test]
fn a_check_that_takes_too_long_has_failed_and_is_ended() {
    let env = Env::new();
    let pid = env.sandbox.project().join("pid");
    let check = format!(
        "test -e \"$FIRST_WORK_DIR/a\" || {{ sleep 1000 & echo $! > {}; wait; }}",
        pid.display()
    );
    let answer = env.expect(
        1,
        &[
            "--root",
            "root",
            "--verify-timeout",
            "700ms",
            "--model",
            "kill",
            "--verify",
            &check,
            "--",
            "touch",
            "root/a",
        ],
    );
    assert!(answer.stdout.contains("the check did not end within 700ms"), "{}", answer.stdout);
    assert!(!alive(std::fs::read_to_string(pid).unwrap().trim().parse().unwrap()));
}

/// A test whose check waits for ever in its first state.
fn stuck(env: &Env) -> (std::process::Child, i32) {
    let pid = env.sandbox.project().join("pid");
    let check = format!(
        "test $FIRST_CRASH_POINT_ID = 2 || {{ setsid sleep 1000 & echo $! > {pid}.new; mv {pid}.new {pid}; wait; }}",
        pid = pid.display()
    );
    let mut command = env.command(&[
        "--root", "root", "--jobs", "1", "--model", "kill", "--verify", &check, "--", "touch",
        "root/a",
    ]);
    let test = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the check of the first state runs", || pid.exists());
    (test, std::fs::read_to_string(pid).unwrap().trim().parse().unwrap())
}

/// Directories for crash states that a process still holds.
fn scratches() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/dev/shm").unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.to_string_lossy().contains("retake-crash-")).collect()
}

#[test]
fn ctrl_c_ends_the_check_tells_the_rest_and_ends_us() {
    let env = Env::new();
    let (test, check) = stuck(&env);
    // SAFETY: our own child, not waited for yet.
    assert_eq!(unsafe { libc::kill(i32::try_from(test.id()).unwrap(), libc::SIGINT) }, 0);
    let output = test.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGINT));
    assert!(!alive(check));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("not complete: 2 of 2 states not checked"), "{told}");
    assert_eq!(env.loop_record().0.as_deref(), Some("interrupted"));
}

#[test]
fn a_killed_test_takes_its_check_along_and_the_next_one_tidies_up() {
    let env = Env::new();
    let before = scratches();
    let (mut test, check) = stuck(&env);
    let made: Vec<_> = scratches().into_iter().filter(|path| !before.contains(path)).collect();
    test.kill().unwrap();
    test.wait().unwrap();
    eventually("the check is gone", || !alive(check));
    env.expect(0, &["--root", "root", "--verify", "true", "--", "touch", "root/new"]);
    // Other tests of this program make such directories, too, and remove them.
    eventually("what it left is removed", || !made.iter().any(|path| path.exists()));
}

#[test]
fn a_killed_test_is_ended_on_the_record_by_whoever_comes_next() {
    let env = Env::new();
    let list = || called(env.sandbox.command(crate::common::RETAKE).args(["runs", "list"]));
    let live = || {
        let files = std::fs::read_dir(env.sandbox.project().join(".agent/data/live"));
        files
            .into_iter()
            .flatten()
            .flatten()
            .filter(|file| file.path().extension() == Some("loop".as_ref()))
            .count()
    };
    let (mut test, check) = stuck(&env);
    // Whoever comes while it lives leaves it alone.
    let listed = list();
    assert_eq!((listed.code, env.loop_record().0, live()), (0, None, 1), "{}", listed.snapshot());
    test.kill().unwrap();
    test.wait().unwrap();
    eventually("the check is gone", || !alive(check));
    eventually("somebody notices", || {
        list();
        env.loop_record().0.is_some()
    });
    assert_eq!(env.loop_record().0.as_deref(), Some("interrupted"));
    assert_eq!(live(), 0);
}

#[test]
fn ctrl_c_while_the_program_runs_ends_the_program() {
    let env = Env::new();
    let pid = env.root().join("pid");
    let program =
        format!("echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 1000", pid = pid.display());
    let mut command =
        env.command(&["--root", "root", "--verify", "true", "--", "sh", "-c", &program]);
    let test = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the program runs", || pid.exists());
    let child: i32 = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    // SAFETY: our own child, not waited for yet.
    assert_eq!(unsafe { libc::kill(i32::try_from(test.id()).unwrap(), libc::SIGTERM) }, 0);
    let output = test.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGTERM));
    assert!(!alive(child));
    assert_eq!(env.loop_record().0.as_deref(), Some("interrupted"));
    let listed =
        called(env.sandbox.command(crate::common::RETAKE).args(["runs", "list", "--json"]));
    assert_eq!(listed.json()[0]["outcome"], "cancelled", "{}", listed.snapshot());
}
