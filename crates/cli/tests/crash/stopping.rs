//! An exhausted budget, a check that hangs, Ctrl-C, kill -9: results so far are reported, and
//! nothing is left running.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;

use crate::common::{alive, called, eventually};
use crate::env::Env;

#[test]
fn a_spent_budget_is_reported() {
    let env = Env::new();
    // Only the uncrashed state and the first two are checked at once.
    let check = "test $FIRST_CRASH_POINT_ID -lt 2 -o $FIRST_CRASH_POINT_ID = 7 || sleep 8";
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
fn a_budget_that_is_spent_before_the_states_are_known_is_no_all_clear() {
    let env = Env::new();
    let log = env.sandbox.project().join("two.log");
    let log = log.to_str().unwrap();
    let program = "touch root/a; touch root/b";
    env.expect(0, &["record", "--root", "root", "-o", log, "--", "sh", "-c", program]);
    let arguments = ["explore", log, "--model", "kill", "--verify", "true", "--budget", "1ms"];
    let told = env.expect(125, &arguments).stdout;
    assert!(told.contains("no state of kill was checked"), "{told}");
    assert!(
        told.contains(
            "not complete: only the first 0 operations looked at for states, none checked"
        ),
        "{told}"
    );
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

/// A test whose check hangs in its first state.
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

/// Directories for crash states that a process still locks.
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

/// A program whose states fail, stopped by a signal in the check of this number, which hangs.
fn stopped_after_failures(
    signal: i32,
    model: &str,
    slow_from: usize,
) -> (Env, std::process::Output) {
    let env = Env::new();
    let count = env.sandbox.project().join("count");
    // The uncrashed state passes; from some check on it hangs until it is killed.
    let check = format!(
        "echo x >> {count}; [ $(wc -l < {count}) -lt {slow_from} ] || sleep 1000; \
         [ -d \"$FIRST_WORK_DIR/8\" ] || {{ echo lost; exit 3; }}",
        count = count.display()
    );
    let program = "for i in 1 2 3 4 5 6 7 8; do mkdir root/$i; done";
    let arguments =
        ["--root", "root", "--jobs", "1", "--model", model, "--verify", &check, "--", "sh"];
    let mut command = env.command(&[&arguments[..], &["-c", program]].concat());
    let test = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the check is slow", || {
        std::fs::read_to_string(&count).is_ok_and(|text| text.lines().count() >= slow_from)
    });
    // SAFETY: our own child, not waited for yet.
    assert_eq!(unsafe { libc::kill(i32::try_from(test.id()).unwrap(), signal) }, 0);
    let output = test.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(signal));
    (env, output)
}

#[test]
fn failures_before_a_signal_are_findings() {
    // Seven checks: the uncrashed state, and six that fail. The next one hangs.
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let (env, output) = stopped_after_failures(signal, "kill", 8);
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!told.contains("recover"), "{told}");
        assert!(told.contains("1 finding in 6 states of kill: 6 fail"), "{told}");
        assert!(
            told.contains("6 states, smallest before the first operation; the check exited with 3"),
            "{told}"
        );
        assert!(
            told.contains(
                "not complete: 3 of 9 states not checked, 6 failing states not explained"
            ),
            "{told}"
        );
        let name = if signal == libc::SIGINT { "SIGINT" } else { "SIGTERM" };
        assert!(told.contains(&format!("interrupted by {name}")), "{told}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let log = said.split("retake crash explore ").nth(1).unwrap().split('`').next().unwrap();
        assert!(std::path::Path::new(log).exists(), "{said}");
        // The recording can be explored, and the failing state can be reproduced.
        env.expect(1, &["repro", log, "F1", "--verify", "false"]);
        assert_eq!(env.loop_record().0.as_deref(), Some("interrupted"));
    }
}

#[test]
fn failures_that_were_not_explained_yet_are_findings() {
    // All ten checks of the exploration are done; the second check for an explanation hangs.
    let (_, output) = stopped_after_failures(libc::SIGINT, "ext4", 12);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("in 9 states of ext4: 8 fail"), "{told}");
    assert!(told.contains("failing states not explained"), "{told}");
    assert!(told.contains("interrupted by SIGINT, not complete: "), "{told}");
    assert!(!told.contains("not checked"), "{told}");
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
    // Other tests of this program create such directories, too, and remove them.
    eventually("what it left is removed", || !made.iter().any(|path| path.exists()));
}

#[test]
fn a_killed_crash_test_is_marked_as_ended_by_the_next_command() {
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
    // While it runs, others do not remove it.
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
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("while the program was recorded: nothing was tested"), "{said}");
    assert_eq!(env.loop_record().0.as_deref(), Some("interrupted"));
    let listed =
        called(env.sandbox.command(crate::common::RETAKE).args(["runs", "list", "--json"]));
    assert_eq!(listed.json()[0]["outcome"], "cancelled", "{}", listed.snapshot());
}
