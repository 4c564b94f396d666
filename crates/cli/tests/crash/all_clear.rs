//! No all-clear without a check that looked at the data: where it runs, what it can see, and whether it
//! can fail.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::common::{Called, called};
use crate::env::Env;

const LOSES: &str = "#!/bin/sh\necho 2 > root/new; mv root/new root/current; echo saved\n";
const CHECK: &str = "#!/bin/sh\n! grep -q saved $FIRST_ACKS || grep -qx 2 root/current\n";

/// A project with these scripts, which are executable.
fn env_with(scripts: &[(&str, &str)]) -> Env {
    let env = Env::new();
    for (name, text) in scripts {
        env.sandbox.file(name, text);
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(env.sandbox.project().join(name), mode).unwrap();
    }
    env
}

/// The newest log of the project.
fn log(env: &Env) -> String {
    let logs = env.sandbox.project().join(".agent/data/crash");
    let logs = fs::read_dir(logs).unwrap().map(|entry| entry.unwrap().path());
    let mut logs: Vec<_> =
        logs.filter(|path| path.extension().is_some_and(|e| e == "log")).collect();
    logs.sort();
    logs.pop().unwrap().to_str().unwrap().to_owned()
}

/// `retake crash` in another directory of the project.
fn elsewhere(env: &Env, arguments: &[&str]) -> Called {
    let directory = env.sandbox.project().join("elsewhere");
    fs::create_dir_all(&directory).unwrap();
    called(env.command(arguments).current_dir(directory))
}

#[test]
fn a_recorded_check_runs_where_it_ran_and_a_given_one_here() {
    let env = env_with(&[("save", LOSES), ("check", CHECK)]);
    env.expect(1, &["--root", "root", "--verify", "./check", "--", "./save"]);
    let log = log(&env);
    let again = elsewhere(&env, &["repro", &log]);
    assert_eq!(again.code, 1, "{}", again.snapshot());
    assert!(again.stderr.contains("fails: the check exited with"), "{}", again.snapshot());
    let given = elsewhere(&env, &["repro", &log, "--verify", "./check"]);
    assert_eq!(given.code, 125, "{}", given.snapshot());
    let why = "the check `./check` could not be run in ";
    assert!(given.stderr.contains(why) && given.stderr.contains("elsewhere"), "{}", given.stderr);
    let explored = elsewhere(&env, &["explore", &log, "--verify", "./check"]);
    assert_eq!(explored.code, 125, "{}", explored.snapshot());
    assert!(explored.stderr.contains(why), "{}", explored.stderr);
}

#[test]
fn a_check_that_cannot_be_run_comes_with_what_was_meant() {
    let env = env_with(&[("save", LOSES), ("check", CHECK)]);
    let test = |verify: &str, program: &str| {
        env.expect(125, &["--root", "root", "--verify", verify, "--", program]).stderr
    };
    let why = test("check", "./save");
    assert!(why.contains("could not be run") && why.contains("did you mean ./check?"), "{why}");
    let why = test("exit 127", "./save");
    assert!(why.contains("the check `exit 127` could not be run in"), "{why}");
    let mode = fs::Permissions::from_mode(0o644);
    fs::set_permissions(env.sandbox.project().join("check"), mode).unwrap();
    let why = test("./check", "./save");
    assert!(why.contains("make it executable with chmod +x"), "{why}");
    let why = test("true", "save");
    assert!(why.contains("did you mean ./save?"), "{why}");
}

#[test]
fn a_state_in_which_a_command_is_missing_is_still_a_finding() {
    let script = "#!/bin/sh\ncp /bin/true root/tool; echo saved\n";
    let env = env_with(&[("save", script)]);
    let check = "! grep -q saved $FIRST_ACKS || root/tool";
    env.expect(1, &["--root", "root", "--verify", check, "--", "./save"]);
    env.expect(1, &["repro", "last"]);
}

#[test]
fn another_check_that_finds_nothing_keeps_what_was_found() {
    let env = env_with(&[("save", LOSES), ("check", CHECK)]);
    env.expect(0, &["record", "--root", "root", "-o", "log", "--", "./save"]);
    env.expect(1, &["explore", "log", "--verify", "./check"]);
    let told = env.expect(0, &["explore", "log", "--verify", "test -d root"]).stderr;
    assert!(told.contains("of an earlier exploration are kept (check `./check`"), "{told}");
    env.expect(1, &["repro", "log", "F1"]);
    let told = env.expect(
        1,
        &["explore", "log", "--verify", "! grep -q saved $FIRST_ACKS || grep 2 root/current"],
    );
    assert!(told.stderr.contains("of an earlier exploration are replaced"), "{}", told.stderr);
}

#[test]
fn data_outside_the_root_is_named() {
    let script = "#!/bin/sh\nmkdir -p wal; echo 1 > wal/part; mv wal/part wal/rec; \
                  echo 2 > root/a; sync root/a root; echo saved\n";
    let env = env_with(&[("save", script)]);
    let check = "! grep -q saved $FIRST_ACKS || test -s root/a";
    let arguments =
        ["--root", "root", "--json", "--html", "page.html", "--verify", check, "--", "./save"];
    let told = env.expect(0, &arguments);
    let path = env.sandbox.project().join("wal/rec").canonicalize().unwrap();
    let note = format!(
        "the program also wrote {}, outside --root; its loss is not tested",
        path.display()
    );
    assert!(told.stderr.contains(&note), "{}", told.stderr);
    assert_eq!(told.json()["outside"]["paths"][0], path.to_str().unwrap());
    let page = fs::read_to_string(env.sandbox.project().join("page.html")).unwrap();
    assert!(page.contains(path.to_str().unwrap()), "{page}");
}

#[test]
fn data_behind_a_symbolic_link_is_no_all_clear() {
    let script =
        "#!/bin/sh\necho 1 > root/wal/rec; echo 2 > root/a; sync root/a root; echo saved\n";
    let env = env_with(&[("save", script)]);
    let wal = env.sandbox.project().join("walreal");
    fs::create_dir(&wal).unwrap();
    symlink(&wal, env.root().join("wal")).unwrap();
    let check = "! grep -q saved $FIRST_ACKS || test -s root/a";
    let told = env.expect(125, &["--root", "root", "--verify", check, "--", "./save"]).stdout;
    assert!(told.contains("walreal/rec, outside --root, through a symbolic link"), "{told}");
    assert!(told.contains("not complete: 1 file behind a symbolic link not tested"), "{told}");
    // From a log as well.
    env.expect(0, &["record", "--root", "root", "-o", "log", "--", "./save"]);
    env.expect(125, &["explore", "log", "--verify", check]);
}

#[test]
fn a_check_that_cannot_fail_is_asked_about() {
    let env = env_with(&[("save", LOSES), ("check", CHECK)]);
    let note = "the check also accepts an empty directory: can it fail?";
    for check in ["true", "./check | cat"] {
        let told = env.expect(0, &["--root", "root", "--verify", check, "--", "./save"]).stdout;
        assert!(told.contains(note), "{check}: {told}");
    }
    let safe = "echo 2 > root/new; sync root/new; mv root/new root/current; sync root; echo saved";
    let arguments = ["--root", "root", "--fresh", "--verify", "./check", "--", "sh", "-c", safe];
    let told = env.expect(0, &arguments).stdout;
    assert!(!told.contains(note), "{told}");
}

#[test]
fn the_last_test_is_the_newest_of_this_directory() {
    let env = env_with(&[("save", LOSES), ("check", CHECK)]);
    env.expect(1, &["--root", "root", "--verify", "./check", "--", "./save"]);
    env.expect(1, &["repro", "last"]);
    let told = elsewhere(&env, &["repro", "last"]);
    assert_eq!(told.code, 125, "{}", told.snapshot());
    assert!(told.stderr.contains("no crash test was started in"), "{}", told.stderr);
    env.expect(0, &["--root", "root", "--verify", "test -d root", "--", "./save"]);
    let told = env.expect(125, &["repro", "last"]).stderr;
    assert!(told.contains("found nothing; the last findings there are of "), "{told}");
    assert!(told.contains("retake crash show "), "{told}");
    // How to see what a correct program does.
    let told = env.expect(125, &["show", "last"]).stderr;
    assert!(told.contains("`retake crash record -o LOG` records what a program does"), "{told}");
}

#[test]
fn a_check_that_refuses_the_directory_at_the_start_is_told_as_that() {
    let check = "#!/bin/sh\ntest -s root/current\n";
    let save = "#!/bin/sh\necho 2 > root/new; sync root/new; mv root/new root/current; sync root\n";
    let env = env_with(&[("save", save), ("check", check)]);
    let tested = |options: &[&str], code| {
        let mut arguments = vec!["--root", "root", "--verify", "./check"];
        arguments.extend(options);
        arguments.extend(["--", "./save"]);
        env.expect(code, &arguments).stdout
    };
    let told = tested(&["--fresh"], 1);
    assert!(
        told.contains(
            "the check fails on the directory as it was before the program did anything: start from a \
             valid state with --fresh=DIR, or let the check accept an empty one"
        ),
        "{told}"
    );
    fs::create_dir(env.sandbox.project().join("seed")).unwrap();
    env.sandbox.file("seed/current", "1");
    let told = tested(&["--fresh=seed"], 0);
    assert!(!told.contains("the root was not empty"), "{told}");
}

#[test]
fn files_are_not_lost_by_a_wrong_option() {
    let env = env_with(&[("save", LOSES), ("check", CHECK)]);
    env.sandbox.file("notes.txt", "important");
    let told = env.expect(125, &["record", "--root", "root", "-o", "notes.txt", "--", "./save"]);
    assert!(told.stderr.contains("it exists and is not a crash log"), "{}", told.stderr);
    let notes = env.sandbox.project().join("notes.txt");
    assert_eq!(fs::read_to_string(notes).unwrap(), "important");
    for _ in 0..2 {
        env.expect(0, &["record", "--root", "root", "-o", "log", "--", "./save"]);
    }
    for option in ["--html=no/page.html", "--junit=no/report.xml"] {
        let arguments = ["--root", "new", "--fresh", option, "--verify", "./check", "--", "./save"];
        let told = env.expect(125, &arguments).stderr;
        assert!(told.contains("no is not a directory; create it"), "{told}");
        assert!(!env.sandbox.project().join("new").exists());
    }
    env.expect(1, &["--root", "root", "--verify", "./check", "--", "./save"]);
    let told = env.expect(125, &["repro", "last", "--into", "root"]).stderr;
    assert!(told.contains("--into root exists already"), "{told}");
    let arguments = ["--root", "typo", "--fresh", "--verify", "./check", "--", "./save"];
    env.expect(125, &arguments);
    assert!(!env.sandbox.project().join("typo").exists());
}

#[test]
fn a_word_that_belongs_elsewhere_is_told_where() {
    let env = Env::new();
    let check = ["--root", "root", "--verify", "true"];
    for (words, advice) in [
        (&["./save"][..], "go after '--': retake crash … -- ./save"),
        (&["--faults", "only", "--", "./save"], "--faults=only"),
        (&["--fresh", "init", "--", "./save"], "--fresh=init"),
    ] {
        let told = env.expect(2, &[&check[..], words].concat()).stderr;
        assert!(told.contains(advice), "{told}");
    }
}

#[test]
fn a_mistyped_command_is_told_with_the_one_that_was_meant() {
    let env = Env::new();
    for (words, says) in [
        (
            &["rerpo", "last"][..],
            "unrecognized subcommand 'rerpo'\n\n  tip: a similar subcommand exists: 'repro'",
        ),
        (&["shwo", "last"], "tip: a similar subcommand exists: 'show'"),
        (&["recrod", "--root", "root", "-o", "log", "--", "true"], "'record'"),
        (&["last"], "a log follows a command: retake crash show last"),
        (&["save.log"], "a log follows a command: retake crash show save.log"),
        (&["sh", "save"], "go after '--': retake crash … -- sh"),
        (&["./save"], "go after '--': retake crash … -- ./save"),
    ] {
        let told = env.expect(2, words).stderr;
        assert!(told.contains(says), "{told}");
        assert!(!told.contains("share") && !told.contains("fault'"), "{told}");
    }
}
